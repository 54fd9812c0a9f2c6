"""Federated algorithms, one per file; imported as ``hierfl.solvers``."""

from typing import TYPE_CHECKING

from hierfl.near_names import doors
from hierfl.runtime.step_search import Settling
from hierfl.solvers.branch_and_bound import BranchAndBound
from hierfl.solvers.fedavg import FedAvg
from hierfl.solvers.fedbio import FedBiO
from hierfl.solvers.fedmbo import FedMBO
from hierfl.solvers.fedmspp import FedMSPP
from hierfl.solvers.fednest import FedNest
from hierfl.solvers.fedprox import FedProx
from hierfl.solvers.fedrzo import FedRZO
from hierfl.solvers.fedzo import FedZO
from hierfl.solvers.hierfavg import HierFAVG
from hierfl.solvers.implicit_bundle import ImplicitBundle
from hierfl.solvers.implicit_gradient import ImplicitGradient
from hierfl.solvers.local_sgda import LocalSGDA
from hierfl.solvers.lower import LFD, Exact, Extragradient, FedAC, LocalSGD, ProjectedSGD, ProjectionMethod
from hierfl.solvers.newton import Newton
from hierfl.solvers.parts.step_schedules import Decay, LogGrowth
from hierfl.solvers.scaffnew import Scaffnew
from hierfl.solvers.scaffold import SCAFFOLD
from hierfl.solvers.simfbo import SimFBO
from hierfl.solvers.standard_errors import StandardErrors
from hierfl.solvers.zohfl import ZOHFL

__all__ = [
    "LFD",
    "SCAFFOLD",
    "ZOHFL",
    "BranchAndBound",
    "Decay",
    "Exact",
    "Extragradient",
    "FedAC",
    "FedAvg",
    "FedBiO",
    "FedMBO",
    "FedMSPP",
    "FedNest",
    "FedProx",
    "FedRZO",
    "FedZO",
    "HierFAVG",
    "ImplicitBundle",
    "ImplicitGradient",
    "LocalSGD",
    "LocalSGDA",
    "LogGrowth",
    "Newton",
    "ProjectedSGD",
    "ProjectionMethod",
    "Scaffnew",
    "Settling",
    "SimFBO",
    "StandardErrors",
]

if not TYPE_CHECKING:  # type-checkers know the names above
    __getattr__, __dir__ = doors("hierfl.solvers", __all__)

"""Federated algorithms, one per file; imported as ``hierfl.solvers``."""

from hierfl.solvers.fedrzo import FedRZO
from hierfl.solvers.lower import (
    LFD,
    Exact,
    Extragradient,
    FedAC,
    LocalSGD,
    LogGrowth,
    ProjectedSGD,
    ProjectionMethod,
)
from hierfl.solvers.schedules import Decay
from hierfl.solvers.zohfl import ZOHFL

__all__ = [
    "LFD",
    "ZOHFL",
    "Decay",
    "Exact",
    "Extragradient",
    "FedAC",
    "FedRZO",
    "LocalSGD",
    "LogGrowth",
    "ProjectedSGD",
    "ProjectionMethod",
]

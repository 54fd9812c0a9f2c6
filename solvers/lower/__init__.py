"""Solvers of the lower level, given to an algorithm as ``lower=...``."""

from hierfl.solvers.lower.exact import Exact
from hierfl.solvers.lower.federated import LFD, FedAC, LocalSGD
from hierfl.solvers.lower.projection_method import Extragradient, ProjectedSGD, ProjectionMethod

__all__ = ["LFD", "Exact", "Extragradient", "FedAC", "LocalSGD", "ProjectedSGD", "ProjectionMethod"]

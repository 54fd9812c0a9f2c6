"""Solvers of the lower level, given to an algorithm as ``lower=...``."""

from hierfl.solvers.lower.exact import Exact
from hierfl.solvers.lower.projected_sgd import ProjectedSGD

__all__ = ["Exact", "ProjectedSGD"]

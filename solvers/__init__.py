"""Federated algorithms, one per file; imported as ``hierfl.solvers``."""

from hierfl.solvers.lower import Exact, ProjectedSGD
from hierfl.solvers.schedules import Decay
from hierfl.solvers.zohfl import ZOHFL

__all__ = ["ZOHFL", "Decay", "Exact", "ProjectedSGD"]

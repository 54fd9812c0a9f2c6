"""The arguments of ``Result.report``, handed from module to module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class ReportSettings(NamedTuple):
    """The arguments of ``Result.report``."""

    radius: float | None
    smoothing: float | Sequence[float] | None
    points: int
    samples: int
    seed: int
    check: bool
    progress: bool
    time_budget: float

"""The point that a theorem is about, as a run gives it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class TheoremPoint:
    """The random iterate x_k* at which the class's theorem bounds E|grad f^eta|^2, drawn before the run from its seed.

    ``iterate`` is the mean of the clients' iterates after ``round`` rounds and ``local_step`` steps of the next, ``x`` its
    projection on X, and ``value`` f(x) with the lower level solved.
    """

    x: Any
    iterate: Any
    value: float
    round: int
    local_step: int

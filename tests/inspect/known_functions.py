"""Problems whose implicit functions are known, and how the kinks of a slice are read."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np

import hierfl as hf
from hierfl.inspect.pictures.slice import Slice


def toy(x: np.ndarray) -> np.ndarray:
    return 0.5 * np.sum((np.minimum(x, 0) + 1) ** 2, axis=-1)


def problem_of(objective: Any, *constraints: Any) -> hf.Problem:
    return hf.Problem(hf.Minimize(clients=objective), constraints=list(constraints))


def places(shown: Slice) -> list[float]:
    return [kink.t for kink in shown.kinks]


def slopes(shown: Slice) -> np.ndarray:
    return np.array([(kink.left_slope, kink.right_slope) for kink in shown.kinks])


def cournot(cap: float = np.inf) -> hf.Problem:
    """4 followers of demand 10 - x - sum(y); with one cost each they leave together at x = 10 - cost."""
    x, y = cp.Variable(name="x"), cp.Variable(4, name="y")
    game = hf.Equilibrium(y, 1.1 * y - 10 + x + cp.sum(y), [y >= 0] + ([y <= cap] if np.isfinite(cap) else []))
    return hf.Problem(hf.Minimize(clients=0.05 * x**2 - x * (10 - x - cp.sum(y))), game, [x >= 0, x <= 20])

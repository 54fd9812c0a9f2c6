"""Zeroth-order estimators of grad f^eta from values of f along random directions.

    g = n/q  sum_j  D_j v_j,          D_j = (f(x + eta v_j) - f(x)) / eta                        forward
                                      D_j = (f(x + eta v_j) - f(x - eta v_j)) / (2 eta)          central (antithetic)

v_j uniform on the unit sphere; every estimator here is unbiased for grad f^eta.
"""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from hierfl.solvers.parts.directions import Directions

ESTIMATORS = ("forward", "central")
Length = Array | np.ndarray | float


def shifts_of(count: int, smoothing: Length, estimator: str) -> tuple[np.ndarray, Array | np.ndarray]:
    """Where f is evaluated for ``count`` directions, relative to x: the numbers of directions, and how far along each."""
    numbers, plus = np.arange(count), np.ones(count)
    if estimator == "central":
        return np.concatenate([numbers, numbers]), smoothing * np.concatenate([-plus, plus])
    return np.concatenate([[0], numbers]), smoothing * np.concatenate([[0.0], plus])


def slopes(values: Float[Array, "points ..."], smoothing: Length, estimator: str) -> Float[Array, "q ..."]:
    """The slopes D_j from the values at ``shifts_of``, in the same order."""
    if estimator == "central":
        half = values.shape[0] // 2
        return (values[half:] - values[:half]) / (2 * smoothing)
    return (values[1:] - values[:1]) / smoothing


def average_along(directions: Directions, measured: Float[Array, " q"]) -> Float[Array, " n"]:
    """g from q directions and the slopes measured along them."""
    return directions.size / directions.count * directions.combination(measured)


def central_value(values: Float[Array, " points"], estimator: str) -> Float[Array, ""]:
    """f at x itself (forward) or the mean of the pairs, for the history."""
    return jnp.mean(values) if estimator == "central" else values[0]

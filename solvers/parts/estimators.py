"""Zeroth-order estimators of grad f^eta from values of f along random directions.

    g = n/q  sum_j  D_j v_j,          D_j = (f(x + eta v_j) - f(x)) / eta                        forward
                                      D_j = (f(x + eta v_j) - f(x - eta v_j)) / (2 eta)          central (antithetic)

v_j uniform on the unit sphere; every estimator here is unbiased for grad f^eta.

With a control variate c, a sketch of the gradient which must not depend on the v_j, g = c + n/q sum_j (D_j - c'v_j) v_j is unbiased too,
since E[n v v'] = I: only the difference is left to be estimated. After its use c is moved to agree with what was seen along the v_j (a
sketch in the sense of SEGA: Hanzely, Mishchenko and Richtarik, 2018). An empty array stands for no control variate.
"""

from __future__ import annotations

from typing import TypeVar

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


Control = TypeVar("Control", Array, "Array | None")


def first_control(x0: Float[Array, " n"], kept: bool) -> Array:
    """A client's control variate before it has seen anything; empty where none is kept."""
    return jnp.zeros(x0.size if kept else 0, x0.dtype)


def estimate(
    directions: Directions, measured: Float[Array, " q"], control: Control, kind: str
) -> tuple[Float[Array, " n"], Control]:
    """(g, next control variate) from q directions of a ``kind`` and the slopes measured along them."""
    if control is None or not control.size:
        return average_along(directions, measured), control
    count, size = directions.count, directions.size
    surprise = directions.combination(measured - directions.along(control))
    share = 1.0 if kind == "orthonormal" and count <= size else 1.0 / count
    return control + size / count * surprise, control + share * surprise

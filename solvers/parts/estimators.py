"""Zeroth-order estimators of grad f^eta from values of f along random directions.

    g = n/q  sum_j  D_j v_j,          D_j = (f(x + eta v_j) - f(x)) / eta                        forward
                                      D_j = (f(x + eta v_j) - f(x - eta v_j)) / (2 eta)          central (antithetic)

v_j uniform on the unit sphere; every estimator here is unbiased for grad f^eta. With a control variate c, which must not
depend on the v_j: g = c + n/q sum_j (D_j - c'v_j) v_j, since E[n v v'] = I; after its use c is moved to agree with what was
seen along the v_j (a sketch in the sense of SEGA: Hanzely, Mishchenko and Richtarik, 2018).
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from hierfl.compiler.expressions.program import Array
from hierfl.solvers.parts.directions import Directions

ESTIMATORS = ("forward", "central")


def shifts_of(count: int, smoothing: Any, estimator: str) -> tuple[np.ndarray, Any]:
    """Where f is evaluated for ``count`` directions, relative to x: the numbers of directions, and how far along each."""
    numbers, plus = np.arange(count), np.ones(count)
    if estimator == "central":
        return np.concatenate([numbers, numbers]), smoothing * np.concatenate([-plus, plus])
    return np.concatenate([[0], numbers]), smoothing * np.concatenate([[0.0], plus])


def slopes(values: Array, smoothing: Any, estimator: str) -> Array:
    """D_j (q,) from the values at ``shifts_of``, in the same order (further trailing axes are kept)."""
    if estimator == "central":
        half = values.shape[0] // 2
        return (values[half:] - values[:half]) / (2 * smoothing)
    return (values[1:] - values[:1]) / smoothing


def estimate(directions: Directions, found: Array, control: Array | None, kind: str) -> tuple[Array, Array | None]:
    """(g, next control variate) from q directions and their slopes (q,)."""
    count, size = directions.count, directions.size
    if control is None:
        return size / count * directions.combination(found), None
    surprise = directions.combination(found - directions.along(control))
    share = 1.0 if kind == "orthonormal" and count <= size else 1.0 / count
    return control + size / count * surprise, control + share * surprise


def central_value(values: Array, estimator: str) -> Array:
    """f at x itself (forward) or the mean of the pairs, for the history."""
    return jnp.mean(values) if estimator == "central" else values[0]

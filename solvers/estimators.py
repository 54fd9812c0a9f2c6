"""Zeroth-order estimators of grad f^eta from values of f along random directions.

    g = n/q  sum_j  D_j v_j,          D_j = (f(x + eta v_j) - f(x)) / eta                        forward
                                      D_j = (f(x + eta v_j) - f(x - eta v_j)) / (2 eta)          central (antithetic)

v_j uniform on the unit sphere; every estimator here is unbiased for grad f^eta. With a control variate c, which must not
depend on the v_j: g = c + n/q sum_j (D_j - c'v_j) v_j, since E[n v v'] = I; after its use c is moved to agree with what was
seen along the v_j (a sketch in the sense of SEGA: Hanzely, Mishchenko and Richtarik, 2018).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

Array = jax.Array
ESTIMATORS = ("forward", "central")


def shifts_of(directions: Array, smoothing: float, estimator: str) -> Array:
    """Where f is evaluated, relative to x: ``(points, n)`` for directions (q, n)."""
    plus = smoothing * directions
    other = -plus if estimator == "central" else jnp.zeros_like(plus[:1])
    return jnp.concatenate([other, plus])


def slopes(values: Array, smoothing: float, estimator: str) -> Array:
    """D_j (q,) from the values at ``shifts_of``, in the same order (further trailing axes are kept)."""
    if estimator == "central":
        half = values.shape[0] // 2
        return (values[half:] - values[:half]) / (2 * smoothing)
    return (values[1:] - values[:1]) / smoothing


def estimate(directions: Array, found: Array, control: Array | None, kind: str) -> tuple[Array, Array | None]:
    """(g, next control variate) from directions (q, n) and slopes (q,)."""
    count, size = directions.shape
    if control is None:
        return size / count * (found @ directions), None
    surprise = (found - directions @ control) @ directions
    share = 1.0 if kind == "orthonormal" and count <= size else 1.0 / count
    return control + size / count * surprise, control + share * surprise


def central_value(values: Array, estimator: str) -> Array:
    """f at x itself (forward) or the mean of the pairs, for the history."""
    return jnp.mean(values) if estimator == "central" else values[0]

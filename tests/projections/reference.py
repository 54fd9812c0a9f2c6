"""Independent answers for projections: CVXPY with Clarabel, central differences, the variational inequality."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import cvxpy as cp
import jax
import numpy as np

Constraints = Callable[[cp.Variable], list[cp.Constraint]]


def nearest(z: np.ndarray, constraints: Constraints, **attributes: Any) -> np.ndarray:
    """The projection of ``z`` by Clarabel at tight tolerances; ``constraints`` maps a variable of z's shape to its set."""
    z = np.asarray(z, dtype=float)
    y = cp.Variable(z.shape, **attributes)
    problem = cp.Problem(cp.Minimize(cp.sum_squares(y - z)), constraints(y))
    for tolerance in (
        1e-13,
        1e-11,
        1e-9,
        1e-7,
    ):  # rarely reached: what the last steps attain is accepted if it is good to 1e-8
        names = ("gap_abs", "gap_rel", "feas")
        limits = {f"tol_{name}": tolerance for name in names} | {
            f"reduced_tol_{name}": max(1e-8, 10 * tolerance) for name in names
        }
        with suppress(cp.SolverError), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            problem.solve(solver=cp.CLARABEL, max_iter=500, **limits)
        if problem.status in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE):
            break
    assert problem.status in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE), problem.status
    assert y.value is not None
    return np.asarray(y.value)


def check_derivatives(
    function: Callable[..., Any], *arguments: Any, step: float = 1e-6, tolerance: float = 1e-6, seed: int = 0
) -> None:
    """jvp and vjp of ``function`` against central differences along a random direction in all ``arguments`` (float64).

    Call it under the fixture ``x64`` and at points where the function is differentiable.
    """
    rng = np.random.default_rng(seed)
    function = jax.jit(function)
    arguments = tuple(np.asarray(argument, dtype=float) for argument in arguments)
    directions = tuple(rng.standard_normal(argument.shape) for argument in arguments)
    forward = np.asarray(function(*(a + step * d for a, d in zip(arguments, directions))))
    backward = np.asarray(function(*(a - step * d for a, d in zip(arguments, directions))))
    expected = (forward - backward) / (2 * step)

    value, tangent = jax.jvp(function, arguments, directions)
    np.testing.assert_allclose(tangent, expected, atol=tolerance * (1 + np.abs(expected).max()))

    cotangent = rng.standard_normal(np.shape(value))
    _, pullback = jax.vjp(function, *arguments)
    pulled = sum(float(np.sum(np.asarray(g) * d)) for g, d in zip(pullback(jax.numpy.asarray(cotangent)), directions))
    size = 1 + float(np.sum(np.abs(cotangent * expected)))
    np.testing.assert_allclose(pulled, float(np.sum(cotangent * expected)), atol=tolerance * size)


def variational_excess(z: np.ndarray, p: np.ndarray, feasible: np.ndarray) -> float:
    """The largest (z - p)'(q - p) over the rows q of ``feasible``; a projection has it at most zero, up to rounding."""
    z, p = np.asarray(z, dtype=float).ravel(), np.asarray(p, dtype=float).ravel()
    return float(np.max((np.asarray(feasible, dtype=float).reshape(len(feasible), -1) - p) @ (z - p)))


def check_projection(
    project: Callable[[Any], Any],
    violation: Callable[[np.ndarray], float],
    points: np.ndarray,
    tolerance: float = 1e-10,
) -> np.ndarray:
    """The projections of ``points`` (count, ...), checked for all that makes them projections on one convex set.

    Feasibility (``violation``, a distance or an excess, at most 0 inside), the variational inequality with every other projected
    point, idempotence and nonexpansiveness, all to ``tolerance`` relative to 1 + ||z|| + ||p||.
    """
    points = np.asarray(points)
    count = len(points)
    projected = np.asarray(jax.vmap(project)(points))
    again = np.asarray(jax.vmap(project)(projected))
    assert np.isfinite(projected).all()
    z, p = points.reshape(count, -1).astype(float), projected.reshape(count, -1).astype(float)
    sizes = 1.0 + np.linalg.norm(z, axis=1) + np.linalg.norm(p, axis=1)
    for point, size in zip(projected, sizes):
        assert violation(point) <= tolerance * size
    assert (np.linalg.norm(again.reshape(count, -1) - p, axis=1) <= tolerance * sizes).all()
    largest = sizes.max()
    for i in range(count):
        assert ((p - p[i]) @ (z[i] - p[i])).max() <= tolerance * largest * largest
        apart = np.linalg.norm(p - p[i], axis=1) - np.linalg.norm(z - z[i], axis=1)
        assert apart.max() <= tolerance * largest
    return projected

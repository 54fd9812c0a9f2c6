"""What every projection has: the variational inequality, and derivatives that are central differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np


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


def check_projection(
    project: Callable[[Any], Any],
    violation: Callable[[np.ndarray], float],
    points: np.ndarray,
    tolerance: float = 1e-10,
    of_polar: Callable[[np.ndarray], float] | None = None,
) -> np.ndarray:
    """The projections of ``points`` (count, ...), checked for all that makes them projections on one convex set.

    Feasibility (``violation``, a distance or an excess, at most 0 inside), the variational inequality with every other projected
    point, idempotence and nonexpansiveness, all to ``tolerance`` relative to 1 + ||z|| + ||p||. For a cone, where the violation
    ``of_polar`` is known, also Moreau's decomposition, relative to ||z||: p in it, z - p in its polar and orthogonal to p.
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
    for point, at in zip(points, projected) if of_polar is not None else ():
        size = np.linalg.norm(point)
        assert max(violation(at), of_polar(point - at)) <= tolerance * size
        assert abs(np.vdot(at, point - at)) <= tolerance * size * size
    largest = sizes.max()
    for i in range(count):
        assert ((p - p[i]) @ (z[i] - p[i])).max() <= tolerance * largest * largest
        apart = np.linalg.norm(p - p[i], axis=1) - np.linalg.norm(z - z[i], axis=1)
        assert apart.max() <= tolerance * largest
    return projected

"""Derivatives of projections on degenerate polyhedra: repeated and zero rows, redundant equations, entries forced to their bounds.

The independent answer is the nearest feasible point among the projections on all affine hulls of faces, differenced.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations
from math import comb
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hierfl.projections import polyhedron

pytestmark = pytest.mark.usefixtures("x64")
ANY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=200)
N = 4
STEP = 1e-5


def degenerate_set(kind: str, rows: Any, widths: Any, weights: Any, shift: Any) -> tuple[Any, ...]:
    """(matrix, low, high, lower, upper), which stays degenerate in the same way as the arguments move.

    Around ``shift``: y >= 0, y <= 1, two random rows, and what makes it degenerate.
    """
    none, zero, one = jnp.full(1, -jnp.inf), jnp.zeros(1), jnp.ones(1)
    one_sided = [rows, jnp.concatenate([none, none]), widths]
    further = {
        "repeated rows": [2.0 * rows, jnp.concatenate([none, none]), 2.0 * widths],
        "zero rows": [jnp.zeros((2, N)), jnp.array([-1.0, 0.0]), jnp.array([jnp.inf, 0.0])],
        "opposite rows": [-rows[:1], -widths[:1], jnp.full(1, jnp.inf)],
        "redundant equation": [jnp.stack([rows[0] + rows[1]]), jnp.sum(widths, keepdims=True), jnp.full(1, jnp.inf)],
        # weights > 0 of some entries sum up to their least value: these are forced to their lower bounds
        "forced to bounds": [jnp.stack([jnp.where(jnp.arange(N) < 2, weights, 0.0)]), none, zero],
        "forced by an equation": [jnp.stack([jnp.where(jnp.arange(N) < 2, weights, 0.0)]), zero, zero],
        "a bound as a row": [jnp.eye(N)[:2], jnp.zeros(2), jnp.full(2, jnp.inf)],
        "a forced sum": [jnp.stack([weights, -weights]), jnp.full(2, -jnp.inf), jnp.zeros(2)],
        "a vertex": [jnp.eye(N)[:2] + jnp.eye(N)[1:3], jnp.full(2, -jnp.inf), jnp.zeros(2)],
    }[kind]
    if kind == "redundant equation":
        one_sided[1] = widths
    matrix, low, high = (jnp.concatenate(parts) for parts in zip(one_sided, further))
    values = matrix @ shift
    return matrix, low + values, high + values, jnp.zeros(N) + shift, one + shift


KINDS = [
    "repeated rows", "zero rows", "opposite rows", "redundant equation", "forced to bounds", "forced by an equation",
    "a bound as a row", "a forced sum", "a vertex",
]  # fmt: skip


def nearest_of_all_faces(z: Any, matrix: Any, low: Any, high: Any, lower: Any, upper: Any) -> np.ndarray:
    """The projection by enumeration: it is the projection on the affine hull of some face, and nearest among the feasible ones."""
    size = len(z)
    rows, bounds, equations = [], [], []
    for row, least, most in zip(
        [*matrix, *np.eye(size)], np.concatenate([low, lower]), np.concatenate([high, upper]), strict=True
    ):
        if not row.any():
            continue
        if least == most:
            equations.append((row, most))
        else:
            rows += [-row] * bool(np.isfinite(least)) + [row] * bool(np.isfinite(most))
            bounds += [-least] * bool(np.isfinite(least)) + [most] * bool(np.isfinite(most))
    a, b = np.array(rows), np.array(bounds)
    always = np.array([row for row, _ in equations]).reshape(-1, size)
    totals = np.array([bound for _, bound in equations])
    best, distance = np.full(size, np.nan), np.inf
    for count in range(size + 1):
        chosen = np.array(list(combinations(range(len(a)), count)), int).reshape(comb(len(a), count), count)
        faces = np.concatenate([np.broadcast_to(always, (len(chosen), *always.shape)), a[chosen]], axis=1)
        at = np.concatenate([np.broadcast_to(totals, (len(chosen), len(totals))), b[chosen]], axis=1)
        points = z - np.einsum("cij,cj->ci", np.linalg.pinv(faces, rcond=1e-9), faces @ z - at)
        meet = np.abs(np.einsum("cij,cj->ci", faces, points) - at).max(axis=1, initial=0.0) <= 1e-8
        for point in points[meet & (points @ a.T <= b + 1e-9).all(axis=1)]:
            if np.linalg.norm(point - z) < distance - 1e-12:
                best, distance = point, np.linalg.norm(point - z)
    return best


def check_derivative(at: np.ndarray, ahead: np.ndarray, behind: np.ndarray, value: Any, tangent: Any) -> None:
    """The tangent against the difference of independent projections, unless there is a kink between them."""
    expected = (ahead - behind) / (2 * STEP)
    if np.isfinite(expected).all() and np.abs(ahead + behind - 2 * at).max() <= 1e-3 * STEP:
        np.testing.assert_allclose(value, at, atol=1e-8)
        np.testing.assert_allclose(tangent, expected, atol=1e-4 * (1 + np.abs(expected).max()))


@cache
def derivative_of(kind: str) -> Any:
    def project(z: Any, data: dict[str, Any]) -> Any:
        return polyhedron.project(z, *degenerate_set(kind, **data))[0]

    return jax.jit(lambda at, move: jax.jvp(project, at, move))


@ANY
@given(st.integers(0, 10**6), st.sampled_from(KINDS))
def test_derivatives_with_respect_to_z_and_to_what_moves_the_set(seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    at = (
        1.5 * rng.standard_normal(N),
        {
            "rows": rng.standard_normal((2, N)),
            "widths": rng.random(2),
            "weights": 0.2 + rng.random(N),
            "shift": rng.standard_normal(N),
        },
    )
    if kind in ("opposite rows", "redundant equation"):  # around a point of the box
        at[1]["widths"] = at[1]["rows"] @ rng.random(N)
    move = jax.tree.map(lambda array: rng.standard_normal(array.shape), at)

    def moved(along: float) -> np.ndarray:
        z, data = jax.tree.map(lambda array, by: array + along * by, at, move)
        return nearest_of_all_faces(z, *map(np.asarray, degenerate_set(kind, **data)))

    check_derivative(moved(0.0), moved(STEP), moved(-STEP), *derivative_of(kind)(at, move))


NODES, ARCS = 5, 7


@cache
def derivative_of_flows() -> Any:
    def project(z: Any, matrix: Any, supply: Any) -> Any:
        return polyhedron.project(z, matrix, supply, supply, jnp.zeros(ARCS), jnp.full(ARCS, jnp.inf))[0]

    return jax.jit(lambda z, dz, matrix, supply, change: jax.jvp(
        lambda z, supply: project(z, matrix, supply), (z, supply), (dz, change)
    ))  # fmt: skip


@ANY
@given(st.integers(0, 10**6))
def test_derivatives_of_flows_through_networks(seed: int) -> None:
    """Arcs that no flow can reach or leave are forced to 0, and one balance of a node follows from the others."""
    rng = np.random.default_rng(seed)
    matrix = np.zeros((NODES, ARCS))
    for arc, (tail, head) in enumerate(rng.permutation(list(combinations(range(NODES), 2)))[:ARCS]):
        matrix[tail, arc], matrix[head, arc] = -1.0, 1.0
    supply = np.zeros(NODES)
    supply[1], supply[3] = -1.0, 1.0
    z, move, change = 2.0 * rng.standard_normal(ARCS), rng.standard_normal(ARCS), rng.standard_normal() * supply

    def moved(along: float) -> np.ndarray:
        at = supply + along * change
        return nearest_of_all_faces(z + along * move, matrix, at, at, np.zeros(ARCS), np.full(ARCS, np.inf))

    check_derivative(moved(0.0), moved(STEP), moved(-STEP), *derivative_of_flows()(z, move, matrix, supply, change))

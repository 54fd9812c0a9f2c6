"""Constraint sets: what is recognised, that projections are right (by CVXPY and by optimality), and emptiness."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hierfl as hf
from hierfl.analysis.convexity import attribute_constraints, require_convex_set
from hierfl.analysis.hoist import hoist, instantiate
from hierfl.compiler.sets import CompiledSet, compile_set

pytestmark = pytest.mark.usefixtures("x64")

N = 5
A = np.random.default_rng(0).standard_normal((2, N))
Q = np.linalg.qr(np.random.default_rng(1).standard_normal((N, N)))[0]
LOW, HIGH = np.linspace(-1, 0, N), np.linspace(0.5, 2, N)


@dataclass(frozen=True)
class Spec:
    """Constraints on y (vector of N) given x (vector of N) and r (positive scalar), and the expected kind."""

    name: str
    build: Callable[[Any, Any, Any], list[Any]]
    kind: str


SPECS = [
    Spec("free", lambda y, x, r: [], "free"),
    Spec("orthant", lambda y, x, r: [y >= 0], "box"),
    Spec("negative orthant", lambda y, x, r: [y <= 0], "box"),
    Spec("fixed box", lambda y, x, r: [y >= LOW, y <= HIGH], "box"),
    Spec("moving box", lambda y, x, r: [y >= x - r, y <= x + r], "box"),
    Spec("abs", lambda y, x, r: [cp.abs(y - x) <= r], "box"),
    Spec("norm_inf", lambda y, x, r: [cp.norm(y - x, "inf") <= r], "box"),
    Spec("max", lambda y, x, r: [cp.max(y) <= r], "box"),
    Spec("min", lambda y, x, r: [cp.min(y - x) >= -r], "box"),
    Spec("maximum", lambda y, x, r: [cp.maximum(y, -2 * y) <= r], "box"),
    Spec("scaled bounds", lambda y, x, r: [2 * y <= 4 - x, -3 * y <= 5], "box"),
    Spec("bounds with moving coefficients", lambda y, x, r: [r * y <= x + 4], "box"),
    Spec("some entries only", lambda y, x, r: [y[0] >= x[1], y[2:4] <= r], "box"),
    Spec("pinned entries", lambda y, x, r: [y[:2] == x[:2], y >= -9], "box"),
    Spec("ball", lambda y, x, r: [cp.norm(y - x) <= r], "ball"),
    Spec("ball at the origin", lambda y, x, r: [cp.norm(y) <= 1], "ball"),
    Spec("ball by squares", lambda y, x, r: [cp.sum_squares(y - x) <= r], "ball"),
    Spec("half squared norm", lambda y, x, r: [0.5 * cp.sum_squares(y - x) <= cp.square(r)], "ball"),
    Spec("scaled ball", lambda y, x, r: [r * cp.norm(2 * y - x) <= 3], "ball"),
    Spec("rotated ball", lambda y, x, r: [cp.norm(Q @ y - x) <= r], "ball"),
    Spec("second-order cone constraint", lambda y, x, r: [cp.SOC(r, y - x)], "ball"),
    Spec("ball of a tall matrix", lambda y, x, r: [cp.norm(cp.hstack([y, -y]) - 0.1) <= 2 * r + 1], "ball"),
    Spec("halfspace", lambda y, x, r: [A[0] @ y <= r], "halfspace"),
    Spec("moving normal", lambda y, x, r: [x @ y <= r], "halfspace"),
    Spec("budget", lambda y, x, r: [cp.sum(y) <= cp.sum(x)], "halfspace"),
    Spec("pairs of halfspaces", lambda y, x, r: [y[:2] + y[2:4] <= x[:2]], "product of halfspace, free"),
    Spec("affine set", lambda y, x, r: [A @ y == x[:2]], "affine"),
    Spec("dependent rows", lambda y, x, r: [np.vstack([A, A[:1]]) @ y == cp.hstack([x[:2], x[0]])], "affine"),
    Spec("hyperplane with a moving normal", lambda y, x, r: [x @ y == r], "affine"),
    Spec("simplex", lambda y, x, r: [y >= 0, cp.sum(y) == 1], "simplex"),
    Spec("moving total", lambda y, x, r: [y >= 0, cp.sum(y) == r], "simplex"),
    Spec("scaled simplex", lambda y, x, r: [-2 * y <= 0, 3 * cp.sum(y) == r], "simplex"),
    Spec("ball beside a box", lambda y, x, r: [cp.norm(y[:3] - x[:3]) <= r, y[3:] >= x[3:]], "product of box, ball"),
    Spec("two balls", lambda y, x, r: [cp.norm(y[:2]) <= r, cp.norm(y[2:] - 1) <= r], "product of ball"),
    Spec(
        "simplex beside a halfspace",
        lambda y, x, r: [y[:3] >= 0, cp.sum(y[:3]) == r, y[3] + y[4] <= 1],
        "product of simplex, halfspace",
    ),
    Spec("ellipsoid", lambda y, x, r: [cp.norm(cp.multiply(np.arange(1, N + 1), y - x)) <= r], "cvxpy"),
    Spec("l1 ball", lambda y, x, r: [cp.norm1(y - x) <= r], "cvxpy"),
    Spec("box and budget", lambda y, x, r: [y >= 0, y <= 1, cp.sum(y) <= r], "cvxpy"),
    Spec("nonlinear sum", lambda y, x, r: [cp.sum(cp.exp(y)) <= 5 + r], "cvxpy"),
]


def compiled(spec: Spec) -> tuple[CompiledSet, cp.Variable, dict[int, jax.Array], dict[Any, np.ndarray]]:
    x, y, r = cp.Variable(N, name="x"), cp.Variable(N, name="y"), cp.Parameter(nonneg=True, name="r")
    constraints = spec.build(y, x, r)
    require_convex_set(constraints, [y], "Y")
    values = {x: np.array([0.3, -0.2, 0.5, 0.1, -0.4]), r: np.array(1.3)}
    return compile_set(constraints, [y], label="Y"), y, {leaf.id: jnp.asarray(v) for leaf, v in values.items()}, values


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
def test_recognised_as_expected_and_projects_as_cvxpy_does(spec: Spec) -> None:
    found, y, environment, values = compiled(spec)
    assert found.kind == spec.kind
    assert float(found.gap(environment)) <= 1e-9
    found.verify(environment)
    twin = cp.Variable(N)
    constraints = [c for c in instantiate(found.constraints, values)]
    hoisted = hoist(constraints, [y])
    target = cp.Parameter(N)
    reference = cp.Problem(cp.Minimize(cp.sum_squares(hoisted.twins[y] - target)), list(hoisted.expressions))
    del twin
    project = jax.jit(lambda z: found.project(z, environment))
    for z in 3 * np.random.default_rng(7).standard_normal((4, N)):
        p = np.asarray(project(jnp.asarray(z)))
        target.value = z
        reference.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
        np.testing.assert_allclose(p, hoisted.twins[y].value, atol=2e-5)
        if found.is_exact:
            np.testing.assert_allclose(np.asarray(project(jnp.asarray(p))), p, atol=1e-10 * (1 + np.linalg.norm(z)))
            # optimality: (z - p)'(q - p) <= 0 for every q in the set
            for q in 2 * np.random.default_rng(8).standard_normal((20, N)):
                inside = np.asarray(project(jnp.asarray(q)))
                assert (z - p) @ (inside - p) <= 1e-9 * (1 + np.linalg.norm(z)) ** 2


@pytest.mark.parametrize("spec", [s for s in SPECS if "cvxpy" not in s.kind and s.kind != "free"], ids=lambda s: s.name)
def test_closed_forms_batch_and_have_derivatives(spec: Spec) -> None:
    found, _, environment, _ = compiled(spec)
    z = jnp.asarray(np.random.default_rng(3).standard_normal((6, N)))
    batch = jax.vmap(lambda row: found.project(row, environment))(z)
    assert batch.shape == (6, N)
    jacobian = np.asarray(jax.jacfwd(lambda row: found.project(row, environment))(z[0]))
    assert np.isfinite(jacobian).all()
    assert np.linalg.norm(jacobian, 2) <= 1 + 1e-9  # projections are nonexpansive
    h = 1e-7
    direction = np.random.default_rng(4).standard_normal(N)
    slope = (
        np.asarray(found.project(z[0] + h * direction, environment))
        - np.asarray(found.project(z[0] - h * direction, environment))
    ) / (2 * h)
    np.testing.assert_allclose(jacobian @ direction, slope, atol=1e-5)


EMPTY = [
    ("crossing bounds", lambda y, x, r: [y >= x, y <= x - r]),
    ("negative radius", lambda y, x, r: [cp.norm(y) <= -r]),
    ("negative squared radius", lambda y, x, r: [cp.sum_squares(y - x) <= -r]),
    ("contradicting equations", lambda y, x, r: [np.vstack([A, A[:1]]) @ y == cp.hstack([x[:2], x[0] + r])]),
    ("negative total", lambda y, x, r: [y >= 0, cp.sum(y) == -r]),
    ("infeasible for cvxpy", lambda y, x, r: [cp.norm1(y) <= -r]),
]


@pytest.mark.parametrize(("name", "build"), EMPTY, ids=[e[0] for e in EMPTY])
def test_emptiness_is_detected(name: str, build: Callable[..., list[Any]]) -> None:
    found, _, environment, _ = compiled(Spec(name, build, ""))
    assert float(found.gap(environment)) > 1e-9


def test_a_point_and_a_zero_radius_are_not_empty() -> None:
    for build in (
        lambda y, x, r: [y >= x, y <= x],
        lambda y, x, r: [cp.norm(y - x) <= 0],
        lambda y, x, r: [cp.sum_squares(y - x) <= 0 * r],
    ):
        found, _, environment, values = compiled(Spec("", build, ""))
        assert float(found.gap(environment)) <= 1e-9
        x = next(v for leaf, v in values.items() if leaf.name() == "x")
        np.testing.assert_allclose(found.project(jnp.ones(N), environment), x, atol=1e-12)


def test_matrices_scalars_and_several_variables_in_one_set() -> None:
    m, s, c = cp.Variable((2, 3), name="m"), cp.Variable(name="s"), cp.Parameter((2, 3), name="c")
    found = compile_set([cp.norm(m - c, "fro") <= 1, m.T @ np.ones(2) <= 50, s >= cp.sum(c)], [m, s], label="Y")
    assert found.kind == "product of box, cvxpy"
    plain = compile_set([cp.norm(m - c, "fro") <= 1, s >= cp.sum(c)], [m, s], label="Y")
    centre = np.arange(6.0).reshape(2, 3)
    environment = {c.id: jnp.asarray(centre)}
    z = np.concatenate([np.zeros(6), [0.0]])
    p = np.asarray(plain.project(jnp.asarray(z), environment))
    np.testing.assert_allclose(p[:6].reshape(2, 3), centre * (1 - 1 / np.linalg.norm(centre)), atol=1e-12)
    assert p[6] == 15
    np.testing.assert_allclose(found.project(jnp.asarray(z), environment), p, atol=1e-6)


def test_ten_thousand_entries_stay_sparse() -> None:
    y, x = cp.Variable((100, 100), name="y"), cp.Variable((100, 100), name="x")
    found = compile_set([y >= x, y <= x + 1, y >= 0], [y], label="Y")
    assert found.kind == "box"
    z = np.random.default_rng(0).standard_normal(10_000)
    np.testing.assert_allclose(found.project(jnp.asarray(z), {x.id: jnp.zeros((100, 100))}), np.clip(z, 0, 1))


def test_attributes_are_constraints() -> None:
    y = cp.Variable(3, name="y", bounds=[np.array([-1, -np.inf, 0]), 2])
    found = compile_set(attribute_constraints([y]), [y], label="Y")
    np.testing.assert_allclose(found.project(jnp.array([-5.0, -5.0, 5.0]), {}), [-1, -5, 2])
    m = cp.Variable((2, 2), name="m", PSD=True)
    psd = compile_set(attribute_constraints([m]), [m], label="Y")
    np.testing.assert_allclose(psd.project(jnp.array([1.0, 0.0, 0.0, -1.0]), {}), [1, 0, 0, 0], atol=1e-6)


NOT_CONVEX = [
    ("outside a ball", lambda y, x: [cp.norm(y) >= 1]),
    ("sphere", lambda y, x: [cp.sum_squares(y) == 1]),
    ("product", lambda y, x: [y[0] * y[1] <= 1]),
    ("concave side", lambda y, x: [cp.sqrt(y) <= 1]),
    ("unknown sign", lambda y, x: [cp.multiply(x, cp.square(y)) <= 1]),
    ("difference of norms", lambda y, x: [cp.norm(y) - cp.norm(y - x) <= 1]),
    ("minimum below", lambda y, x: [cp.min(y) <= 0]),
    ("ratio", lambda y, x: [y[0] / y[1] <= 1]),
    ("maximum above", lambda y, x: [cp.max(y) >= 1]),
    ("norm equality", lambda y, x: [cp.norm1(y) == 1]),
]


@pytest.mark.parametrize(("name", "build"), NOT_CONVEX, ids=[n[0] for n in NOT_CONVEX])
def test_nonconvex_sets_are_refused_by_name(name: str, build: Callable[..., list[Any]]) -> None:
    x, y = cp.Variable(3, name="x"), cp.Variable(3, name="y")
    with pytest.raises(hf.NotConvexError, match="not convex in y"):
        require_convex_set(build(y, x), [y], "Y(x)")

"""Constraint sets: what is recognised, that projections are right (by CVXPY and by optimality), and emptiness."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hierfl as hf
from hierfl.analysis.convexity import require_convex_set
from hierfl.analysis.hoist import hoist, instantiate
from hierfl.analysis.variable_bounds import attribute_constraints
from hierfl.compiler.sets import CompiledSet, compile_set, families
from hierfl.compiler.sets.blocks import KINDS, ImageBlock
from hierfl.compiler.sets.compiled_set import verify
from hierfl.compiler.sets.families import FAMILIES, L2Ball, Membership
from hierfl.errors import HierflError
from tests.compiler.sets.set_specs import BY_PROGRAM, SPECS, A, N, Spec

pytestmark = pytest.mark.usefixtures("x64")

EXACT = [spec for spec in SPECS if spec.kind != "free" and "program" not in spec.kind]
ONE_OF_EACH_KIND = list({spec.kind: spec for spec in EXACT}.values())
ENVIRONMENTS = (
    (np.array([0.3, -0.2, 0.5, 0.1, -0.4]), 1.3, np.array([0.5, 1.2, -0.7, 0.9, 0.4])),
    (np.array([-0.5, 0.4, 0.2, -0.3, 0.6]), 1.05, np.array([-0.6, 0.3, 0.8, 0.7, -1.1])),
)


@functools.cache
def declared(spec: Spec) -> tuple[tuple[Any, ...], list[cp.Variable], list[Any], CompiledSet, Callable[..., jax.Array]]:
    """(leaves, variables, constraints, the set, its projection) of a specification, compiled once for all environments."""
    x, r, c = cp.Variable(N, name="x"), cp.Parameter(nonneg=True, name="r"), hf.ClientParameter(N, name="c")
    ys = [cp.Variable(shape, name=f"y{i}", **dict(spec.attributes)) for i, shape in enumerate(spec.shapes)]
    constraints = [*spec.build(*ys, x, r, c), *attribute_constraints(ys)]
    require_convex_set(constraints, ys, "Y")
    compiled_set = compile_set(constraints, ys, label="Y")
    return (x, r, c), ys, constraints, compiled_set, jax.jit(compiled_set.project)


class Case:
    """A compiled specification in an environment and CVXPY's own problem for the same projection."""

    of = functools.cache(lambda spec, place=0: Case(spec, place))

    def __init__(self, spec: Spec, place: int) -> None:
        leaves, ys, constraints, self.compiled_set, self.traced = declared(spec)
        values = dict(zip(leaves, map(np.asarray, ENVIRONMENTS[place])))
        hoisted = hoist(instantiate(constraints, values), ys)
        self.environment = {leaf.id: jnp.asarray(value) for leaf, value in values.items()}
        self.constraints, self.twins = list(hoisted.expressions), [hoisted.twins[y] for y in ys]

    def project(self, z: np.ndarray) -> np.ndarray:
        return np.asarray(self.traced(jnp.asarray(z), self.environment))

    def project_at(self, z: jax.Array, moved: Mapping[int, jax.Array]) -> np.ndarray:
        """The projection where some of the environment has moved."""
        there = {leaf: value + moved.get(leaf, 0.0) for leaf, value in self.environment.items()}
        return np.asarray(self.traced(z, there))

    def reference(self, z: np.ndarray) -> np.ndarray:
        flat = cp.hstack([cp.reshape(t, (t.size,), order="C") for t in self.twins])
        problem = cp.Problem(cp.Minimize(cp.sum_squares(flat - z)), self.constraints)
        problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
        return np.asarray(flat.value)

    def violation(self, p: np.ndarray) -> float:
        start = 0
        for twin in self.twins:
            twin.save_value(p[start : start + twin.size].reshape(twin.shape))
            start += twin.size
        return max((float(np.max(c.violation())) for c in self.constraints), default=0.0)


def test_every_family_and_every_kind_of_block_has_a_specification() -> None:
    blocks = [block for spec in SPECS for block in Case.of(spec).compiled_set.blocks]
    assert {type(block.family) for block in blocks if isinstance(block, ImageBlock)} == set(FAMILIES)
    assert set(KINDS) <= {type(block) for block in blocks}


def require_optimal_to_rounding(spec: Spec, place: int) -> None:
    """Projections are in the set, stay where they are, and are the nearest by the variational inequality."""
    case = Case.of(spec, place)
    rng = np.random.default_rng(place)
    tight = 1e-10 if case.compiled_set.is_exact else 1e-8
    inside = [case.project(q) for q in 2 * rng.standard_normal((12, case.compiled_set.size))]
    for z in [*3 * rng.standard_normal((4, case.compiled_set.size)), 1e4 * rng.standard_normal(case.compiled_set.size)]:
        p, scale = case.project(z), 1 + np.linalg.norm(z)
        assert case.violation(p) <= tight * scale
        np.testing.assert_allclose(case.project(p), p, atol=tight * scale)
        for q in inside:  # z - p is in the normal cone at p
            assert (z - p) @ (q - p) <= tight * scale * (1 + np.linalg.norm(q - p) + np.linalg.norm(z - p))


@pytest.mark.parametrize("spec", SPECS, ids=lambda s: s.name)
@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
def test_recognised_as_expected_and_projects_as_cvxpy_does(spec: Spec) -> None:
    case = Case.of(spec)
    assert case.compiled_set.kind == spec.kind
    assert float(case.compiled_set.gap(case.environment)) <= 1e-9
    verify(case.compiled_set, case.environment)
    for z in 3 * np.random.default_rng(7).standard_normal((3, case.compiled_set.size)):
        p, other = case.project(z), case.reference(z)
        np.testing.assert_allclose(p, other, atol=2e-3)  # the solver is that inaccurate along flat directions
        assert np.linalg.norm(z - p) <= np.linalg.norm(z - other) + 1e-7 * (1 + np.linalg.norm(z))
        np.testing.assert_allclose(case.project(p), p, atol=1e-7 * (1 + np.linalg.norm(z)))  # who is there stays
    if spec in EXACT:
        for place in range(len(ENVIRONMENTS)):
            require_optimal_to_rounding(spec, place)


@pytest.mark.parametrize("spec", ONE_OF_EACH_KIND, ids=lambda s: s.name)
def test_batches_and_derivatives(spec: Spec) -> None:
    case = Case.of(spec)
    compiled_set, environment = case.compiled_set, case.environment
    z = jnp.asarray(np.random.default_rng(3).standard_normal((6, compiled_set.size)))
    batch = jax.jit(jax.vmap(lambda row: compiled_set.project(row, environment)))(z)
    np.testing.assert_allclose(batch[2], case.project(np.asarray(z[2])), atol=1e-8)
    jacobian = np.asarray(jax.jit(jax.jacfwd(lambda row: compiled_set.project(row, environment)))(z[0]))
    assert np.isfinite(jacobian).all()
    assert np.linalg.norm(jacobian, 2) <= 1 + 1e-6  # projections are nonexpansive
    if not compiled_set.is_exact:
        return
    h, direction = 1e-6, np.random.default_rng(4).standard_normal(compiled_set.size)
    slope = (case.project(z[0] + h * direction) - case.project(z[0] - h * direction)) / (2 * h)
    np.testing.assert_allclose(jacobian @ direction, slope, atol=2e-5)


@pytest.mark.parametrize("spec", ONE_OF_EACH_KIND, ids=lambda s: s.name)
def test_derivatives_with_respect_to_what_moves_the_set(spec: Spec) -> None:
    case = Case.of(spec)
    compiled_set, environment = case.compiled_set, case.environment
    if not compiled_set.depends_on or not compiled_set.is_exact:
        return
    rng = np.random.default_rng(5)
    z = jnp.asarray(3 * rng.standard_normal(compiled_set.size))
    leaves = sorted(compiled_set.depends_on)
    directions = {leaf: jnp.asarray(rng.standard_normal(np.shape(environment[leaf]))) for leaf in leaves}

    def at(t: Any) -> jax.Array:
        return compiled_set.project(
            z, {**environment, **{leaf: environment[leaf] + t * directions[leaf] for leaf in leaves}}
        )

    slope = np.asarray(jax.jit(jax.jacfwd(at))(0.0))
    h = 1e-6
    ahead, behind = (case.project_at(z, {leaf: t * directions[leaf] for leaf in leaves}) for t in (h, -h))
    np.testing.assert_allclose(slope, (ahead - behind) / (2 * h), atol=5e-5)


@pytest.mark.parametrize("spec", ONE_OF_EACH_KIND, ids=lambda s: s.name)
def test_single_precision_stays_single(spec: Spec) -> None:
    case = Case.of(spec)
    z = np.random.default_rng(6).standard_normal(case.compiled_set.size).astype(np.float32)
    expected = case.project(z.astype(float))
    jax.clear_caches()  # JAX keeps NumPy index arrays in the precision in which it first saw them
    with jax.enable_x64(False):
        leaves = {leaf: jnp.asarray(v, jnp.float32) for leaf, v in case.environment.items()}
        p = case.compiled_set.project(jnp.asarray(z), leaves)
        assert p.dtype == jnp.float32
    jax.clear_caches()
    np.testing.assert_allclose(p, expected, atol=2e-3)


EMPTY = [
    ("crossing bounds", lambda y, x, r, c: [y >= x, y <= x - r]),
    ("a row whose coefficient vanishes", lambda y, x, r, c: [y <= 5, 0 * r * y[0] <= -1]),
    ("negative radius", lambda y, x, r, c: [cp.norm(y) <= -r]),
    ("negative squared radius", lambda y, x, r, c: [cp.sum_squares(y - x) <= -r]),
    ("negative l1 radius", lambda y, x, r, c: [cp.norm1(y) <= -r]),
    ("contradicting equations", lambda y, x, r, c: [np.vstack([A, A[:1]]) @ y == cp.hstack([x[:2], x[0] + r])]),
    ("parallel equations", lambda y, x, r, c: [cp.sum(y) == r, 2 * cp.sum(y) == r]),
    ("parallel halfspaces", lambda y, x, r, c: [cp.sum(y) <= -r, cp.sum(y) >= r]),
    ("negative total", lambda y, x, r, c: [y >= 0, cp.sum(y) == -r]),
    ("total above the caps", lambda y, x, r, c: [y >= 0, y <= 0.1, cp.sum(y) >= r]),
    (
        "rows that miss the box",
        lambda y, x, r, c: [y >= 0, y <= 1, y[0] + y[1] >= 1.5, y[1] + y[2] >= 1.6, cp.sum(y) <= 1],
    ),
    ("ball beside a halfspace", lambda y, x, r, c: [cp.norm(y) <= 1, cp.sum(y) >= 5 * r]),
    ("two balls apart", lambda y, x, r, c: [cp.norm(y) <= 1, cp.norm(y - 5) <= r]),
    ("ball beside a box", lambda y, x, r, c: [cp.norm(y) <= 1, y >= r]),
    ("ellipsoid too far from its constants", lambda y, x, r, c: [cp.norm(cp.hstack([y, 9.0])) <= r]),
    ("infeasible for CVXPY", lambda y, x, r, c: [cp.norm(y, 3) <= -r]),
]


@pytest.mark.parametrize(("name", "build"), EMPTY, ids=[e[0] for e in EMPTY])
def test_emptiness_is_detected(name: str, build: Callable[..., list[Any]]) -> None:
    case = Case.of(Spec(name, build, ""))
    assert float(case.compiled_set.gap(case.environment)) > 1e-9


DEGENERATE = [
    ("equal bounds", lambda y, x, r, c: [y >= x, y <= x]),
    ("radius 0", lambda y, x, r, c: [cp.norm(y - x) <= 0]),
    ("squared radius 0", lambda y, x, r, c: [cp.sum_squares(y - x) <= 0 * r]),
    ("l1 radius 0", lambda y, x, r, c: [cp.norm1(y - x) <= 0]),
    ("ellipsoid of radius 0", lambda y, x, r, c: [cp.norm(cp.multiply(np.arange(1, N + 1), y - x)) <= 0]),
    ("slabs without width", lambda y, x, r, c: [y + 0 * r == x]),
    ("a cone's tip", lambda y, x, r, c: [cp.norm(y - x) <= cp.sum(0 * y)]),
]


@pytest.mark.parametrize(("name", "build"), DEGENERATE, ids=[e[0] for e in DEGENERATE])
def test_single_points_are_not_empty(name: str, build: Callable[..., list[Any]]) -> None:
    case = Case.of(Spec(name, build, ""))
    assert float(case.compiled_set.gap(case.environment)) <= 1e-9
    np.testing.assert_allclose(case.project(np.ones(N)), ENVIRONMENTS[0][0], atol=1e-10)


@pytest.mark.parametrize("size", [1e-8, 1e8])
@pytest.mark.parametrize(
    "build",
    [
        lambda y, s: [y >= -s, y <= s],
        lambda y, s: [cp.norm(y) <= s],
        lambda y, s: [cp.norm1(y) <= s],
        lambda y, s: [cp.norm(cp.multiply(np.arange(1, N + 1), y)) <= s],
        lambda y, s: [y >= 0, cp.sum(y) == s],
        lambda y, s: [y >= 0, y <= 0.4 * s, np.arange(1, N + 1) @ y == s],
        lambda y, s: [np.ones(N) @ y / s <= 1e-3],
        lambda y, s: [y >= -s, A @ y <= s],
        lambda y, s: [cp.norm(y) <= s, y >= 0],
        lambda y, s: [cp.norm(y) <= s, cp.sum(y) == 0.1 * s],
    ],
    ids=["box", "ball", "l1", "ellipsoid", "simplex", "strip", "halfspace", "polyhedron", "ball+box", "ball+band"],
)
def test_scale_changes_nothing(build: Callable[..., list[Any]], size: float) -> None:
    y = cp.Variable(N, name="y")
    unit, scaled = (compile_set(build(y, s), [y], label="Y") for s in (1.0, size))
    for z in 2 * np.random.default_rng(0).standard_normal((3, N)):
        expected = size * np.asarray(unit.project(jnp.asarray(z), {}))
        np.testing.assert_allclose(scaled.project(jnp.asarray(size * z), {}), expected, rtol=1e-7, atol=1e-8 * size)
    assert float(scaled.gap({})) <= 1e-9


def test_ten_thousand_entries_stay_sparse() -> None:
    y, x = cp.Variable((100, 100), name="y"), cp.Variable((100, 100), name="x")
    compiled_set = compile_set([y >= x, y <= x + 1, y >= 0], [y], label="Y")
    assert compiled_set.kind == "box"
    z = np.random.default_rng(0).standard_normal(10_000)
    np.testing.assert_allclose(compiled_set.project(jnp.asarray(z), {x.id: jnp.zeros((100, 100))}), np.clip(z, 0, 1))
    rows = compile_set([y >= 0, cp.sum(y, axis=1) == 1], [y], label="Y")
    assert rows.kind == "simplex" and len(rows.blocks) == 1
    np.testing.assert_allclose(
        np.asarray(rows.project(jnp.asarray(z), {})).reshape(100, 100).sum(axis=1), 1, atol=1e-12
    )


@pytest.mark.parametrize(
    ("coefficients", "at"),
    [
        (lambda x: cp.hstack([cp.maximum(x[0], 5), 1]), lambda x: [max(x[0], 5), 1]),
        (lambda x: cp.hstack([cp.neg(x[0]), cp.neg(x[1])]), lambda x: np.maximum(-x, 0)),
        (lambda x: cp.hstack([x[0], cp.abs(x[0])]), lambda x: [x[0], abs(x[0])]),
        (lambda x: cp.hstack([1e13, x[0]]), lambda x: [1e13, x[0]]),
    ],
)
def test_coefficients_that_move_beside_others_or_on_one_branch_only(coefficients: Any, at: Any) -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable((2, 2), name="y")
    rows = compile_set([y @ coefficients(x) <= 1], [y], label="Y")
    bounds = compile_set([cp.multiply(cp.vstack([coefficients(x)] * 2), y) <= 1], [y], label="Y")
    z = np.random.default_rng(0).standard_normal((2, 2)) + 3
    for value in ([-9.0, -8.0], [9.0, 8.0], [1.0, -7.0]):
        a, given = np.asarray(at(np.array(value))), {x.id: jnp.asarray(value)}
        moved = np.maximum(z @ a - 1, 0) / (a @ a or 1.0)
        np.testing.assert_allclose(rows.project(z.ravel(), given).reshape(2, 2), z - np.outer(moved, a), atol=1e-9)
        nonzero = np.where(a, a, 1.0)
        inside = np.where(a > 0, np.minimum(z, 1 / nonzero), np.where(a < 0, np.maximum(z, 1 / nonzero), z))
        np.testing.assert_allclose(bounds.project(z.ravel(), given).reshape(2, 2), inside, atol=1e-9)


def test_attributes_are_constraints() -> None:
    y = cp.Variable(3, name="y", bounds=[np.array([-1, -np.inf, 0]), 2])
    compiled_set = compile_set(attribute_constraints([y]), [y], label="Y")
    np.testing.assert_allclose(compiled_set.project(jnp.array([-5.0, -5.0, 5.0]), {}), [-1, -5, 2])
    m = cp.Variable((2, 2), name="m", PSD=True)
    psd = compile_set(attribute_constraints([m]), [m], label="Y")
    assert psd.is_exact
    np.testing.assert_allclose(psd.project(jnp.array([1.0, 0.5, -0.5, -1.0]), {}), [1, 0, 0, 0], atol=1e-12)


def test_a_wrong_projection_is_an_error_of_ours_that_names_the_constraint(monkeypatch: pytest.MonkeyPatch) -> None:
    from hierfl.projections import ball

    case = Case.of(Spec("", lambda y, x, r, c: [cp.norm(y - x) <= r], ""))
    monkeypatch.setattr(ball, "project", lambda z, radius: z * 0.9)
    with pytest.raises(HierflError, match=r"internal error: the ball projection on Y .*norm"):
        verify(case.compiled_set, case.environment)


@pytest.mark.parametrize("spec", BY_PROGRAM, ids=lambda s: s.name)
def test_what_is_a_program_says_why(spec: Spec) -> None:
    assert "a program for the nearest point" in Case.of(spec).compiled_set.explain()


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
    ("a finite set", lambda y, x: [cp.FiniteSet(y, [0.0, 1.0])]),
    ("indefinite form", lambda y, x: [cp.quad_form(y, np.diag([1.0, -1.0, 1.0])) <= 1]),
]


@pytest.mark.parametrize(("name", "build"), NOT_CONVEX, ids=[n[0] for n in NOT_CONVEX])
def test_nonconvex_sets_are_refused_by_name(name: str, build: Callable[..., list[Any]]) -> None:
    x, y = cp.Variable(3, name="x"), cp.Variable(3, name="y")
    with pytest.raises(hf.NotConvexError, match="not convex in y"):
        require_convex_set(build(y, x), [y], "Y(x)")


class TooFar(L2Ball):
    """A ball whose projection lands inside it."""

    name = "ball too far"

    def project(self, v: jax.Array, d: jax.Array, radius: jax.Array) -> jax.Array:
        return v * jnp.minimum(1.0, (radius / d[0]) ** 2 / jnp.maximum(v @ v, 1e-30))


@pytest.mark.parametrize("above", [True, False])
def test_a_family_from_outside_that_does_not_project_is_refused(monkeypatch: pytest.MonkeyPatch, above: bool) -> None:
    monkeypatch.setattr(families, "FAMILIES", (TooFar, *FAMILIES))
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    ball = [cp.norm2(x if above else y) <= 2]
    lower = hf.ArgMin(y, cp.sum_squares(y - x), [] if above else ball)
    problem = hf.Problem(hf.Minimize(cp.sum_squares(y - 1)), lower=lower, constraints=ball if above else [])
    with pytest.raises(hf.HierflError, match=r"TooFar\.project does not give the nearest point"):
        problem.implicit(np.zeros(2))


def test_entries_of_a_box_without_a_bound_have_infinite_ones() -> None:
    x, y = cp.Variable(3, name="x"), cp.Variable(3, name="y")
    rows = [x[0] >= 1, x[2] <= 2]
    known = hf.Problem(hf.Minimize(cp.sum_squares(y)), hf.ArgMin(y, cp.sum_squares(y - x)), rows).compile().known_upper_set
    low, high = known.limits({})
    np.testing.assert_array_equal(low, [1, -np.inf, -np.inf])
    np.testing.assert_array_equal(high, [np.inf, np.inf, 2])


@pytest.mark.parametrize(
    ("recognise", "said"),
    [
        (None, "Mine is a Family without recognise"),
        (classmethod(lambda cls, term: True), "Mine.recognise gives True: it gives Membership"),
        (classmethod(lambda cls, term: Membership(cls, term.function.argument, np.zeros((1, 2), int))), "Mine.recognise gives Membership"),
    ],
)
def test_a_family_of_ones_own_that_lacks_something_is_told(recognise: Any, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type("Mine", (families.Family,), {} if recognise is None else {"recognise": recognise})
    monkeypatch.setattr(families, "FAMILIES", (kind,))
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    with pytest.raises((TypeError, NotImplementedError), match=said):
        hf.Problem(hf.Minimize(server=cp.sum(y) + x), hf.ArgMin(y, cp.sum_squares(y - x), [cp.norm(y) <= 1])).implicit(0.0)

"""What is taken to hold everywhere does: the modulus of a lower level at other points, for other clients, other parameters."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import jax
import numpy as np
import pytest
from scipy.optimize import lsq_linear

import hierfl as hf
from hierfl.compiler.compiled_problem import CompiledProblem
from tests.benchmarks.program_size import BAR, CATALOGUE, evaluations

N = 12


def certificate(problem: CompiledProblem, x: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """(y, modulus) of every owner."""
    solution = problem.exact.at(np.array(x)).solution
    assert solution is not None
    return np.asarray(solution.y), np.asarray(solution.strong_convexity)


def federation(count: int, *values: tuple[hf.ClientParameter, list]) -> hf.Federation:
    return hf.Federation([hf.Client(parameters={p: own[i] for p, own in values}) for i in range(count)])


@pytest.mark.parametrize("interval", [(5.0, 10.0), (0.0, 10.0), (-10.0, -2.0), (9.0, 10.0)])
@pytest.mark.parametrize("coupled", [False, True])
def test_a_modulus_that_moves_with_x_is_never_taken_for_a_constant(
    interval: tuple[float, float], coupled: bool
) -> None:
    """F = (11 - x) (d y + c 1 1' y) - 1 with d = 1, ..., 2: the modulus is 11 - x, wherever X lies."""
    x, y = cp.Variable(name="x"), cp.Variable(N, name="y")
    d = np.linspace(1.0, 2.0, N)
    force = (11 - x) * (cp.multiply(d, y) + (cp.sum(y) * np.ones(N) if coupled else 0.0)) - 1
    low, high = interval
    problem = hf.Problem(
        hf.Minimize(server=cp.sum(y) + cp.square(x)),
        hf.Equilibrium(y, force, [y >= -5, y <= 5]),
        [x >= low, x <= high],
    ).compile()
    for point in (low, 0.5 * (low + high), high):
        found, mu = certificate(problem, [point])
        matrix = (11 - point) * (np.diag(d) + coupled)
        np.testing.assert_allclose(found[0], np.linalg.solve(matrix, np.ones(N)), rtol=1e-8)
        assert mu[0] <= 11 - point + 1e-12 and mu[0] >= 0.99 * (11 - point)


@pytest.mark.parametrize("scope", ["client", "federation"])
def test_one_row_unlike_the_others(scope: str) -> None:
    """Of 10,000 rows one couples the entries of y: what holds for all others is no formula for its owner."""
    rng, (clients, count, size) = np.random.default_rng(0), (50, 200, 6)
    x, y, a, b = cp.Variable(size, name="x"), cp.Variable(size, name="y"), hf.Sample(size, name="a"), hf.Sample(name="b")
    features, targets = np.eye(size)[rng.integers(size, size=(clients, count))], rng.standard_normal((clients, count))
    features[20, 150] = 10 * rng.standard_normal(size)
    level = hf.ArgMin(y, hf.E(cp.square(a @ y - b)) + cp.sum_squares(y - x), [cp.abs(y) <= 0.5], scope=scope)
    held = hf.Federation([hf.Client({a: own, b: out}) for own, out in zip(features, targets)])
    found, _ = certificate(hf.Problem(hf.Minimize(clients=cp.sum(y)), level, federation=held).compile(), point := rng.standard_normal(size))
    shape = (clients, count) if scope == "client" else (1, clients * count)
    for y_, rows, out in zip(found, features.reshape(*shape, size), targets.reshape(shape)):
        weight = np.sqrt(shape[1])
        matrix, right = np.vstack([rows / weight, np.eye(size)]), np.concatenate([out / weight, point])
        np.testing.assert_allclose(y_, lsq_linear(matrix, right, (-0.5, 0.5), tol=1e-14).x, atol=1e-7)


@pytest.mark.parametrize("scope", ["federation", "client"])
def test_a_parameter_that_is_set_again(scope: str) -> None:
    """The modulus, and whether y is a formula, follow the parameters' values of the day."""
    x, y = cp.Variable(name="x"), cp.Variable(N, name="y")
    strength, coupling = cp.Parameter(nonneg=True, name="s"), cp.Parameter((N, N), PSD=True, name="C")
    strength.value, coupling.value = 2.0, np.zeros((N, N))
    cost = 0.5 * strength * cp.sum_squares(y) + 0.5 * cp.quad_form(y, coupling) - x * cp.sum(y)
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum(y) + cp.square(x)),
        hf.ArgMin(y, cost, scope=scope),
        [x >= 1, x <= 3],
        federation=hf.Federation([hf.Client() for _ in range(3)]),
    ).compile()
    matrix = np.random.default_rng(0).standard_normal((N, N))
    for s, pairs in ((2.0, np.zeros((N, N))), (0.1, np.zeros((N, N))), (0.1, matrix @ matrix.T)):
        strength.value, coupling.value = s, pairs
        found, mu = certificate(problem, [2.0])
        hessian = s * np.eye(N) + pairs
        np.testing.assert_allclose(found[0], np.linalg.solve(hessian, np.full(N, 2.0)), rtol=1e-7)
        assert 0.99 * s <= mu[0] <= np.linalg.eigvalsh(hessian)[0] * (1 + 1e-9)


@pytest.mark.parametrize("kind", ["box", "halfline", "free", "ball"])
def test_a_parameter_that_takes_the_curvature_away(kind: str) -> None:
    """A closed form chosen while all entries had curvature sends those that lose it to their bounds, where they have some."""
    x, y = cp.Variable(3, name="x"), cp.Variable(3, name="y")
    p = cp.Parameter(
        3 if kind in ("box", "halfline", "free") else (),
        nonneg=True,
        name="p",
        value=np.ones(3) if kind != "ball" else 1.0,
    )
    cost = p @ cp.square(y) if kind != "ball" else p * cp.sum_squares(y)
    sets = {"box": [y >= -1, y <= 1], "halfline": [y <= 2], "free": [], "ball": [cp.norm(y) <= 1]}
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y)), hf.ArgMin(y, cost - x @ y, sets[kind]))
    assert f"solved exactly by {'projection' if kind == 'ball' else 'closed form'}" in str(problem.explain())
    at = np.array([0.3, 0.2, -0.5])
    problem.implicit(at)
    p.value = np.array([1.0, 0.0, 2.0]) if kind != "ball" else 0.0
    if kind in ("ball", "free"):
        with pytest.raises(hf.LowerLevelError, match="curvature"):
            problem.implicit(at)
    else:
        expected = [0.15, 1.0 if kind == "box" else 2.0, -0.125]
        np.testing.assert_allclose(problem.implicit.response(at), expected, rtol=1e-12)
        assert problem.implicit.certificate(at).error_bound == np.inf
        np.testing.assert_allclose(problem.implicit.gradient(at), [0.15, 0.0, -0.0625], atol=1e-10)


@pytest.mark.parametrize("diagonal", [1.0, 1e-2, 1e-4, 1e-6, 1e-8])
@pytest.mark.parametrize("scope", ["federation", "client"])
def test_small_costs_beside_a_coupling(diagonal: float, scope: str) -> None:
    """F = d y + u u' y + Q x on a box, at twelve points: the natural residual, computed here, is small at all of them."""
    rng, size = np.random.default_rng(1), 30
    u, q = rng.standard_normal(size), rng.standard_normal((size, 2))
    x, y = cp.Variable(2, name="x"), cp.Variable(size, name="y")
    term = cp.sum(y) + cp.sum_squares(x)
    problem = hf.Problem(
        hf.Minimize(server=term) if scope == "federation" else hf.Minimize(clients=term),
        hf.Equilibrium(y, diagonal * y + u * (u @ y) + q @ x, [y >= -1, y <= 1], scope=scope),
        [x >= -3, x <= 3],
        federation=None if scope == "federation" else hf.Federation([hf.Client(), hf.Client()]),
    ).compile()
    assert problem.exact.method is not None and problem.exact.method.name == "diagonal plus rank one"
    for point in np.random.default_rng(0).uniform(-3, 3, (12, 2)):
        for answer in certificate(problem, point)[0]:
            force = diagonal * answer + u * (u @ answer) + q @ point
            assert np.linalg.norm(answer - np.clip(answer - force, -1, 1)) < 1e-11


def moved_by(leaf: str, size: int, force: Any, numbers: list[float], of_x: Any, public: cp.Parameter, box: float, most: float) -> CompiledProblem:
    """The equilibrium of a force of (y, s) within a box, where s is a function of x, a client's, a sample's, or a parameter."""
    x, y, sample, own = cp.Variable(name="x"), cp.Variable(size, name="y"), hf.Sample(nonneg=True, name="s"), hf.ClientParameter(nonneg=True, name="p")
    s = {"x": of_x(x), "client": own, "sample": sample, "parameter": public}[leaf]
    held = {"client": federation(len(numbers), (own, numbers)), "sample": hf.Federation([hf.Client({sample: np.array(numbers)})])}
    upper, scope = cp.sum(y) + cp.square(x), "sample" if leaf == "sample" else "client"
    level = hf.Equilibrium(y, force(y, s), [y >= -box, y <= box], scope=scope)
    upper = hf.E(upper + 0 * sample) if leaf == "sample" else upper
    return hf.Problem(hf.Minimize(clients=upper), level, [x >= 0, x <= most], held.get(leaf, hf.Federation([hf.Client()]))).compile()


LEAVES = ["x", "client", "sample", "parameter"]


@pytest.mark.parametrize("leaf", LEAVES)
def test_slopes_with_flat_pieces(leaf: str) -> None:
    """F = min(s, 1) y - 2, where s is 5 or 50 at most places and 0.1 at one: the modulus there is 0.1."""
    numbers, public = [5.0] * 25 + [0.1] + [5.0] * 25, cp.Parameter(nonneg=True, name="c", value=50.0)
    problem = moved_by(leaf, 3, lambda y, s: cp.minimum(s, 1) * y - 2, numbers, lambda x: cp.maximum(0.1, 60 - x), public, 50, 100)
    for odd in (False, True):
        public.value = 0.1 if odd else 50.0
        found, mu = certificate(problem, [80.0 if odd and leaf == "x" else 0.0])
        there = 25 if odd and leaf in ("client", "sample") else 0
        np.testing.assert_allclose(found[there], 20.0 if odd else 2.0)
        np.testing.assert_allclose(mu[there], 0.1 if odd else 1.0)


@pytest.mark.parametrize("leaf", LEAVES)
def test_a_coupling_that_vanishes(leaf: str) -> None:
    """F = y + s 1 1' y - 1, solved by 1 / (1 + s n), also where s is 0."""
    numbers, public = [2.0, 0.0, 2.0], cp.Parameter(nonneg=True, name="c", value=2.0)
    problem = moved_by(leaf, N, lambda y, s: y + s * (np.ones((N, N)) @ y) - 1, numbers, lambda x: x, public, 5, 2)
    for zero in (True, False):
        public.value = 0.0 if zero else 2.0
        found, mu = certificate(problem, [0.0 if zero else 2.0])
        values = [0.0 if zero else 2.0] if leaf in ("x", "parameter") else numbers
        for answer, modulus, s in zip(found, mu, values):
            np.testing.assert_allclose(answer, 1 / (1 + s * N), rtol=1e-9)
            assert modulus <= 1 + 1e-9


def test_looking_at_a_lower_level_compiles_nothing(programs: list[str]) -> None:
    """Each operation outside a program is one of its own, at some 20 ms: this problem took 226."""
    size, rng = 19, np.random.default_rng(0)
    x, y, u = cp.Variable(2, name="x"), cp.Variable(size, name="y"), hf.ClientParameter(size, name="u")
    cost = 0.05 * cp.sum_squares(y) + 0.5 * cp.square(u @ y) + (rng.standard_normal((size, 2)) @ x) @ y
    hf.Problem(
        hf.Minimize(clients=cp.sum(y) + cp.sum_squares(x)),
        hf.ArgMin(y, cost, [y >= 0, y <= 2], scope="client"),
        [x >= -2, x <= 2],
        federation=federation(3, (u, list(rng.standard_normal((3, size))))),
    ).compile()
    assert not programs
    jax.jit(lambda a: 5.0 * a + size)(np.ones(size))
    assert programs  # what is compiled would be seen


# --- Exact values are short programs, whatever the set and the method: XLA's time goes with their equations.


ON_HOST = {  # have no exact projection, and so a program on the host alone
    "polyhedron with a ball",
    "polyhedron with a ball that moves",
    "simplex cut by an l1 ball",
    "ball with a halfspace",
    "box with a ball and a halfspace",
    "dispatch in a ball",
    "logistic over a polyhedron with a ball",
    "equilibrium over a polyhedron with a ball",
    "equilibrium over an intersection",
}


@pytest.mark.parametrize("name", [name for name in CATALOGUE if name not in ON_HOST])
def test_an_exact_value_is_a_short_program(name: str) -> None:
    sizes = dict(evaluations(CATALOGUE[name]()))
    assert max(sizes.values()) <= BAR, sizes


# --- Numbers of very different sizes in one lower level: right answers, honest bounds, or a named error.


@pytest.mark.parametrize("epsilon", [1e-3, 1e-5, 1e-7, 1e-8, 1e-9])
def test_bounds_count_what_ill_conditioned_equations_make_of_rounding(epsilon: float) -> None:
    x, y = cp.Variable(3, name="x"), cp.Variable(3, name="y")
    rows = np.array([[1, 1, 0], [1, 1 + epsilon, 0.0]])
    level = hf.ArgMin(y, cp.sum_squares(y - x), [rows @ y == cp.hstack([x[0], x[0] + epsilon])])
    problem = hf.Problem(hf.Minimize(clients=cp.sum(y) + 0 * cp.sum(x)), lower=level)
    at = np.array([0.1, 0.7, 1 / 3])
    error = np.linalg.norm(problem.implicit.response(at) - np.array([at[0] - 1, 1, at[2]]))
    assert error <= problem.implicit.certificate(at).error_bound <= 1e-2


@pytest.mark.parametrize(
    "constraints",
    [
        lambda x, y: [y >= 1e-8, y <= 0.91e-8],
        lambda x, y: [y >= 0, y <= 1e-10, cp.sum(y) == 1e-9],
        lambda x, y: [cp.norm(y) <= -1e-10 * x],
        lambda x, y: [cp.sum(y) >= 1e-8, cp.sum(y) <= 0.9e-8],
    ],
)
def test_tiny_sets_are_empty_when_they_are(constraints: Any) -> None:
    x, y = cp.Variable(name="x"), cp.Variable(3, name="y")
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum(y) + 0 * x), lower=hf.ArgMin(y, cp.sum_squares(y - x), constraints(x, y))
    )
    with pytest.raises(hf.EmptyLowerSetError):
        problem.implicit(0.1)


@pytest.mark.parametrize(
    "constraints",
    [
        lambda x, y, z: [z >= y[0], cp.log(z) >= -1],
        lambda x, y, z: [cp.norm(y - x) <= 1, z >= y[0], cp.sqrt(z) >= 0.1],
        lambda x, y, z: [y[1] <= 1 + y[0], cp.inv_pos(y[0]) <= 2],
        lambda x, y, z: [y[1] >= y[0], cp.sqrt(y[1]) >= 1.5],
    ],
)
def test_no_constraint_is_lost_beside_a_band(constraints: Any) -> None:
    x, y, z = cp.Variable(2, name="x"), cp.Variable(2, name="y"), cp.Variable(name="z")
    level = hf.ArgMin([y, z], cp.sum_squares(y - x) + cp.square(z - x[0]), constraints(x, y, z))
    problem = hf.Problem(hf.Minimize(clients=cp.sum(y) + z), lower=level)
    at = np.array([-1.0, 0.5])
    direct = cp.Problem(cp.Minimize(cp.sum_squares(y - at) + cp.square(z - at[0])), constraints(at, y, z))
    direct.solve(solver=cp.CLARABEL)
    response = problem.implicit.response(at)
    np.testing.assert_allclose(response[y], y.value, atol=1e-5)
    np.testing.assert_allclose(response[z], z.value, atol=1e-5)


def test_a_pattern_beyond_a_kink_of_x_is_looked_for():
    """Where x is drawn J is diagonal; beyond 10 it is not."""
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")

    def declared(cost):
        return hf.Problem(hf.Minimize(clients=cp.sum_squares(y)), hf.ArgMin(y, cost, [y <= 0.9]), [x >= 0, x <= 20])

    problem = declared(cp.square(y[0] + cp.pos(x - 10) * y[1] - 1) + cp.square(y[1] - 1))
    for at in (5.0, 15.0, 19.0):
        z, slope = cp.Variable(2), max(at - 10, 0)
        cost = cp.square(z[0] + slope * z[1] - 1) + cp.square(z[1] - 1)
        cp.Problem(cp.Minimize(cost), [z <= 0.9]).solve(solver="CLARABEL", tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
        assert problem.implicit(at) == pytest.approx(float(z.value @ z.value), abs=1e-7)
    weighted = declared(cp.sum(cp.multiply(cp.abs(x - 10) + np.array([1, 2]), cp.square(y))) - cp.sum(y))
    assert weighted.compile().exact.method.name == "closed form"  # whatever the weights are

"""Answers that constraints force: f moves with the bound, also where the answer without constraints is the bound itself."""

from __future__ import annotations

from collections.abc import Callable

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.compiler.lower_level.methods import parametric_program
from hierfl.models import ClassificationData, heterogeneous_classification
from hierfl.solvers import Exact, ImplicitGradient

FORCED: dict[
    str, tuple[Callable, float]
] = {  # constraints that make y the bound 1 at x = 1, and the bound's slope there
    "an equation": (lambda x, y: [y == 1], 0.0),
    "two inequalities": (lambda x, y: [y >= 1, y <= 1], 0.0),
    "an equation twice": (lambda x, y: [y == 1, 2 * y == 2], 0.0),
    "an absolute value": (lambda x, y: [cp.abs(y - 1) <= 0], 0.0),
    "x itself": (lambda x, y: [y == x], 1.0),
    "an equation that moves": (lambda x, y: [y == 3 * x - 2], 3.0),
    "inequalities that move": (lambda x, y: [2 * y >= 3 - x, 4 * y <= 6 - 2 * x], -0.5),
}
LEVELS: dict[str, Callable] = {
    "objective": lambda x, y, sets: hf.ArgMin(y, cp.square(y - x), sets),
    "mapping": lambda x, y, sets: hf.Equilibrium(y, y - x, sets),
}
METHODS = [
    "closed form",
    "projection",
    "parametric program",
    "semismooth Newton",
    "accelerated gradient",
]


def forced(kind: str, level: str = "objective") -> tuple[hf.Problem, float]:
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    sets, slope = FORCED[kind]
    return hf.Problem(hf.Minimize(clients=2 * y), LEVELS[level](x, y, sets(x, y))), 2 * slope


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", FORCED)
def test_gradients_and_slices_have_no_kink(kind: str, level: str) -> None:
    problem, slope = forced(kind, level)
    for x in (0.999, 1.0, 1.001):
        assert problem.implicit(x) == pytest.approx(2 + slope * (x - 1), abs=1e-12)
        assert problem.implicit.gradient(x) == pytest.approx(slope, abs=1e-12)
    shown = problem.implicit.slice(1.0, radius=0.5, points=21, progress=False)
    assert not len(shown.kinks) and not shown.kinks.jumps


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", ["an equation", "an equation that moves"])
def test_rounds_of_implicit_gradients_by_every_method(kind: str, method: str) -> None:
    problem, slope = forced(kind)
    solver = ImplicitGradient(step_size=1.0, lower=Exact(method=method))
    result = problem.solve(solver, rounds=1, x0=1.0, progress=False)
    assert result.x == pytest.approx(1.0 - slope, abs=1e-9)


def test_some_entries_forced_some_at_a_kink_and_some_free() -> None:
    """y = (1, 2 x_2, max(x_3, 0), x_4), at a point where x_1 = 1, x_2 = 0, x_3 = 0: a kink of the third entry alone."""
    x, y = cp.Variable(4, name="x"), cp.Variable(4, name="y")
    lower = hf.ArgMin(y, cp.sum_squares(y - x), [y[0] == 1, y[1] == 2 * x[1], y[2] >= 0])
    gradient = hf.Problem(hf.Minimize(clients=np.array([1.0, 2.0, 3.0, 4.0]) @ y), lower).implicit.gradient
    at = np.array([1.0, 0.0, 0.0, 5.0])
    with pytest.raises(hf.NoGradientError):
        gradient(at)
    for side, slope in ((0.1, 3.0), (-0.1, 0.0)):
        beside = gradient(at + side * np.eye(4)[2])
        np.testing.assert_allclose(beside, [0.0, 4.0, slope, 4.0], atol=1e-12)


@pytest.mark.parametrize("low", [0.0, 1.0])
def test_a_bound_that_meets_a_clients_own(low: float) -> None:
    """y in [low, cap] with caps 1 and 3: the first client's is forced for low = 1. At x = 1 a client's y has a kink, whatever low is."""
    x, y, cap = cp.Variable(name="x"), cp.Variable(name="y"), hf.ClientParameter(name="cap")
    problem = hf.Problem(
        hf.Minimize(clients=y),
        hf.ArgMin(y, cp.square(y - x), [y >= low, y <= cap], scope="client"),
        federation=hf.Federation([hf.Client(parameters={cap: 1.0}), hf.Client(parameters={cap: 3.0})]),
    )
    assert problem.implicit.gradient(2.0) == pytest.approx(0.5, abs=1e-12)  # of the second client alone
    with pytest.raises(hf.NoGradientError):
        problem.implicit.gradient(1.0)
    assert problem.implicit.gradient(1.1) == pytest.approx(0.5, abs=1e-12)
    assert problem.implicit.gradient(0.9) == pytest.approx(0.0 if low else 1.0, abs=1e-12)


TOGETHER = {  # rows that leave y one point, (1, 2), only together
    "corner": lambda y: [y >= CORNER, cp.sum(y) <= 3],
    "norm": lambda y: [cp.norm1(y - CORNER) <= 0],
    "steep corner": lambda y: [y >= CORNER, y[0] + 2 * y[1] <= 5, y <= 7],
    "line": lambda y: [y[0] - y[1] == -1, y[0] >= 1, cp.sum(y) <= 3],
}
CORNER = np.array([1.0, 2.0])


@pytest.mark.parametrize("name", TOGETHER)
def test_rows_that_force_y_together_leave_it_no_derivative(name: str) -> None:
    """Also where y would be there without them."""
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    level = hf.ArgMin(y, cp.sum_squares(y - x), TOGETHER[name](y))
    problem = hf.Problem(hf.Minimize(clients=2 * y[0] - 3 * y[1] + 0 * cp.sum(x)), level)
    for at in (CORNER, CORNER + 0.1, CORNER - [0.3, 0.0]):
        np.testing.assert_allclose(problem.implicit.gradient(at), 0.0, atol=1e-12)


# --- Which table's samples are answered in sample scope, against means by hand.


A, B, S = np.array([0.0, 2.0]), np.array([1.0, 2.0, 3.0]), np.array([5.0, 7.0])


def leaves() -> tuple:
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    return x, y, hf.Sample(name="a"), hf.Sample(name="b"), hf.Sample(name="s")


def test_a_level_whose_constraints_alone_mention_the_sample() -> None:
    """y = max(x, a) for the samples 0 and 2; at x = 1 one of them is above, beside another table and the server's."""
    x, y, a, b, s = leaves()
    problem = hf.Problem(
        hf.Minimize(clients=hf.E(b * x) + hf.E(cp.square(y)), server=hf.E(s * x)),
        lower=hf.ArgMin(y, cp.square(y - x), [y >= a], scope="sample"),
        federation=hf.Federation([hf.Client({a: A, b: B})], server=hf.Client({s: S})),
    )
    assert problem.implicit(1.0) == pytest.approx(2.0 + (1.0 + 4.0) / 2 + 6.0, abs=1e-12)
    assert problem.implicit.gradient(1.0) == pytest.approx(2.0 + 2.0 / 2 + 6.0, abs=1e-12)


@pytest.mark.parametrize("other_first", [False, True])
def test_a_sample_that_a_game_drops_decides_no_table(other_first: bool) -> None:
    """y = x + a; the b in the player's objective has no part in its derivative, whatever table b has."""
    x, y, a, b, _ = leaves()
    answered, other = hf.E(cp.square(y)), hf.E(b * x)
    problem = hf.Problem(
        hf.Minimize(clients=other + answered if other_first else answered + other),
        lower=hf.Nash(hf.Player(y, cp.square(y - x - a) + b), scope="sample"),
        federation=hf.Federation([hf.Client({a: A, b: B})]),
    )
    assert problem.implicit(1.0) == pytest.approx((1.0 + 9.0) / 2 + 2.0, abs=1e-12)
    assert problem.implicit.gradient(1.0) == pytest.approx(1.0 + 3.0 + 2.0, abs=1e-12)


# --- Lower levels of thousands of scalars over thousands of rows are left to iterations before they are canonicalised.


def test_a_large_learning_level_is_refused_by_its_sizes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def canonicalised(structure: object) -> None:
        raise AssertionError("CVXPY canonicalised it, which takes minutes for models of thousands of weights")

    monkeypatch.setattr(parametric_program, "level_solver", canonicalised)
    rng = np.random.default_rng(0)
    data = ClassificationData(rng.integers(0, 255, (5000, 784), dtype=np.uint8), np.arange(5000) % 10, scale=255.0)
    exact = heterogeneous_classification(data, clients=2, scheme=hf.IID()).compile(progress=False).exact
    verdict = parametric_program.ParametricProgram.verdict(exact.method.structure)
    rows = 5000 * 9 // 10 * 7 // 10  # of both clients, each of which has a number at the least
    assert not verdict.applies and f"here {rows:,} or more, for 7,840 scalars of y" in verdict.why


def test_rows_of_uneven_clients_are_each_held_against_their_own_clients_answer() -> None:
    """y = rho x answers of three clients with 1, 3 and 2 rows: the least d / rho of a row binds x, whoever holds it."""
    x, y, rho, d = cp.Variable(name="x"), cp.Variable(name="y"), hf.ClientParameter(name="rho"), hf.Sample(name="d")
    held = {"a": (1.0, [5.0]), "b": (2.0, [1.0, 2.0, 9.0]), "c": (3.0, [4.0, 3.5])}
    federation = hf.Federation([hf.Client({d: rows}, {rho: slope}, name=name) for name, (slope, rows) in held.items()])
    level = hf.ArgMin(y, cp.square(y - rho * x) / 2, scope="client")
    problem = hf.Problem(hf.Minimize(server=cp.square(x - 4)), level, constraints=[y <= d], federation=federation)
    for at in (0.4, 0.6, 1.0, 1.2, 6.0):
        excess = {(name, row): slope * at - limit for name, (slope, rows) in held.items() for row, limit in enumerate(rows)}
        worst = max(excess, key=lambda place: excess[place] / (1 + held[place[0]][0] * at))  # in 1 + the larger side
        told = str(problem.implicit.violation(at))
        if excess[worst] <= 0:
            assert told == "y <= d holds"
        else:
            assert told == f"y <= d is violated by {excess[worst]:.6g} at client '{worst[0]}', row {worst[1]}"
    assert problem.solve(progress=False).x == pytest.approx(0.5, abs=1e-6)

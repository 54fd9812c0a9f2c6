"""The bundle method against minima known from elsewhere: the literature's, linear programs', and formulas."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar

import hierfl as hf
from hierfl.descent.convex_best import shared_best
from hierfl.errors import EmptyLowerSetError, IncompatibleSolverError, SettingError
from hierfl.runtime import InProcess
from hierfl.solvers import ImplicitBundle
from tests.bilevel_case import Case
from tests.bilevel_catalogue import LITERATURE
from tests.runtime.resumed import by_and_by, outcome, require_same

LOCAL = (
    "Bialas-Karwan",
    "Candler-Townsley",
    "Savard-Gauvin",
)  # where the default start is in the basin of another minimum


def solved(problem: hf.Problem, **given: Any) -> hf.Result:
    return problem.solve(ImplicitBundle(), progress=False, **given)


@pytest.mark.parametrize("case", [c for c in LITERATURE if c.least is not None and c.name not in LOCAL], ids=str)
def test_minima_of_the_literature(case: Case) -> None:
    result = solved(case.declare())
    assert result.status == "at rest" and result.settings["rounds_done"] <= 60
    assert result.value == pytest.approx(case.least, rel=1e-8, abs=1e-8)
    assert case.value(result.x) == pytest.approx(result.value, rel=1e-8, abs=1e-8)


@pytest.mark.parametrize("name", LOCAL)
def test_other_local_minima_are_local_minima(name: str) -> None:
    case = next(c for c in LITERATURE if c.name == name)
    result = solved(case.declare())
    rng, x = np.random.default_rng(0), np.asarray(result.x)
    near = [p for p in x + 1e-3 * rng.uniform(-1, 1, (300, x.size)) if case.holds(p)]
    values = [v for p in near if np.isfinite(v := _value(case, p))]
    assert result.status in ("at rest", "out of rounds") and values and min(values) >= result.value - 1e-7


def test_a_piece_from_far_away_does_not_call_a_crease_rest() -> None:
    """On the crease where y1 of a client meets 0, f falls on with slope .159 where a step from far away led: a piece from there forbade it."""
    b, cs = np.array([[1.016, 0.55], [1.102, 0.041]]), np.array([[1.602, 1.922], [-0.016, -0.937], [-0.591, -0.095]])
    w, t, e = np.array([0.642, 0.103, 0.255]), np.array([2.141, -1.918]), np.array([-1.091, 1.566])
    c, x, y = hf.ClientParameter(2, name="c"), cp.Variable(2, name="x"), cp.Variable(2, name="y")
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum_squares(y - t) + (e @ x) * y[0] + 0.3 * cp.sum_squares(x)),
        hf.ArgMin(y, cp.sum_squares(y - b @ x - c), [y >= 0], scope="client"),
        [cp.abs(x) <= 2],
        hf.Federation([hf.Client(parameters={c: row}) for row in cs], weights=list(w)),
    )

    def f(at: np.ndarray) -> float:
        each = np.maximum(cs + b @ at, 0)
        return float(w @ (((each - t) ** 2).sum(axis=1) + (e @ at) * each[:, 0] + 0.3 * at @ at))

    result = solved(problem)
    x0 = np.asarray(result.x)
    crease = np.array([-b[1, 1], b[1, 0]]) / np.hypot(*b[1])
    around = [x0 + h * way for way in (crease, -crease, *np.eye(2), *-np.eye(2)) for h in (1e-4, 1e-3, 1e-2)]
    assert result.status == "at rest" and min(map(f, around)) >= f(x0) - 1e-9


def _value(case: Case, x: np.ndarray) -> float:
    """f, infinite where Y(x) is empty."""
    try:
        return case.value(x)
    except Exception:  # the catalogue's answers are formulas and small solvers, which fail each in its own way
        return np.inf


def test_the_edge_of_where_y_exists_is_a_constraint() -> None:
    """Y(x) = {y >= x, y <= 1 - x / 2} is empty beyond x = 2/3, where f = -x has its least value."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    problem = hf.Problem(
        hf.Minimize(clients=-x + 0 * y), hf.ArgMin(y, cp.square(y), [y >= x, y <= 1 - x / 2]), [x >= 0, x <= 5]
    )
    result = solved(problem)
    assert result.status == "at rest" and result.x == pytest.approx(2 / 3, abs=1e-9)
    with pytest.raises(EmptyLowerSetError):
        solved(problem, x0=np.array(3.0))


@pytest.mark.parametrize("scope", ["client", "sample"])
def test_the_edge_is_that_of_every_owner(scope: str) -> None:
    x, y, room, visits = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="room"), hf.Sample(name="visits")
    own = hf.ClientParameter(name="own", nonneg=True)
    bound = room if scope == "sample" else own
    level = hf.ArgMin(y, cp.square(y - 1), [y >= x, y <= bound], scope=scope)
    other = np.ones(1)  # of a table with fewer rows
    clients = [hf.Client({visits: other, room: np.array([3.0, 2.5])}, {own: 2.5}), hf.Client({visits: other, room: np.array([4.0])}, {own: 4.0})]
    objective = hf.E(cp.square(y) - 9 * x + 0 * room) + hf.E(visits)
    result = solved(hf.Problem(hf.Minimize(clients=objective), level, [x >= 0], hf.Federation(clients)))
    assert result.status == "at rest" and result.x == pytest.approx(2.5, abs=1e-8)


def test_sets_over_cones_matrices_and_private_parts() -> None:
    x, z = cp.Variable((2, 2), name="x", PSD=True), cp.Variable(name="z")
    radius = hf.ClientParameter(name="radius", nonneg=True)
    target = np.array([[1.0, 2.0], [2.0, 1.0]])
    federation = hf.Federation([hf.Client(parameters={radius: r}) for r in (5.0, 0.5)])
    worth = -cp.sum_squares(x - target) - cp.square(z - 2)
    problem = hf.Problem(hf.Maximize(clients=worth), None, [cp.abs(z) <= radius], federation)
    result = solved(problem)
    by_variable = {variable.name(): value for variable, value in result.x.items()}
    assert np.allclose(by_variable["x"], 1.5, atol=1e-4) and by_variable["z"] == pytest.approx(0.5)
    assert result.value == pytest.approx(-1 - 2.25, abs=1e-8)


def test_a_run_that_is_cut_off_says_that_it_is_not_at_rest() -> None:
    x = cp.Variable(3, name="x")
    problem = hf.Problem(hf.Minimize(clients=cp.norm1(x - np.array([1.0, 2.0, 3.0])) + cp.sum_squares(x)))
    short, nothing, whole = solved(problem, rounds=1), solved(problem, rounds=0), solved(problem, rounds=None)
    assert short.ended == "completed" and short.status == "still descending"
    assert nothing.ended == "completed" and nothing.status == "out of rounds" and nothing.settings["rounds_done"] == 0
    assert whole.status == "at rest" and "more rounds" not in str(whole)
    assert whole.value == pytest.approx(0.75 + 1.75 + 2.75, abs=1e-8)  # |x_i| = 1/2 each


def test_runs_end_and_are_measured_as_those_of_other_solvers() -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum_squares(y - 2)), hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0]), [x >= -1]
    )
    seen: list[int] = []
    stopped = solved(problem, callback=lambda done, x, y: seen.append(done) or done >= 2, evaluate_every=1)
    assert stopped.status == "stopped by callback" and seen == [1, 2] == list(stopped.trajectory["round"][1:])
    measured = solved(problem, metrics={"distance": lambda x, y: float(np.linalg.norm(y - 2))}, evaluate_every=2)
    assert measured.metrics["distance"][0] == pytest.approx(np.sqrt(8)) and measured.metrics["distance"][-1] < 1e-4
    scalars = stopped.communication["scalars_down"] + stopped.communication["scalars_up"]
    assert scalars == 2 * (4 + 5)  # x and y down; the value, and gradients in both, up
    limited = solved(problem, communication_limit=19)
    assert limited.status == "communication limit reached" and limited.settings["rounds_done"] == 2
    assert solved(problem, tolerance=1e-3, evaluate_every=2).status == "gradient tolerance reached"
    runs = problem.solve(ImplicitBundle(), restarts=3, progress=False)
    assert len(runs) == 3 and all(run.value == pytest.approx(0, abs=1e-8) for run in runs)


def test_what_it_cannot_do_is_refused() -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    level = hf.ArgMin(y, cp.sum_squares(y - x))
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y)), level)
    for refused, asked in (
        (SettingError, {"queries": "raw"}),
        (IncompatibleSolverError, {"runtime": InProcess(precision="single")}),
    ):
        with pytest.raises(refused):
            solved(problem, **asked)
    box = hf.BlackBox(lambda v: float(np.sum(v**2)), y)
    with pytest.raises(IncompatibleSolverError, match="BlackBox"):
        solved(hf.Problem(hf.Minimize(clients=box), hf.ArgMin(y, cp.sum_squares(y - x))))
    with pytest.raises(SettingError, match="accuracy"):
        ImplicitBundle(accuracy=0)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("shape", ["linear", "quadratic", "exponential"])
def test_an_f_without_a_least_value_is_called_so(shape: str) -> None:
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    falls = {"linear": y, "quadratic": -cp.square(y), "exponential": -cp.exp(-y)}[shape]
    problem = hf.Problem(hf.Minimize(clients=falls), hf.ArgMin(y, cp.square(y - x)))
    result = solved(problem, x0=np.array(-0.1), rounds=2000)
    assert result.status == "f seems unbounded below" and result.value < -1e18
    assert solved(problem, x0=np.array(-0.1), rounds=4).value < problem.implicit(np.array(-0.1))


v, pair = cp.Variable(name="v"), cp.Variable(2, name="x")
valley = 1 + cp.square(1 - pair[0]) + 100 * cp.square(pair[1] - cp.square(pair[0]))  # Rosenbrock's


@pytest.mark.parametrize(
    ("objective", "constraints", "start", "least"),
    [
        (1e6 * cp.pos(1 - v) + 1e-4 * cp.square(v - 5) + 1, [], 0.0, 1.0),
        (cp.power(v - 30, 8) + 1, [], 0.0, 1.0),
        (cp.exp(v) + cp.square(v + 3), [], 30.0, 0.049182313628),
        (1e12 * (cp.square(v - 5) + 1), [], 0.0, 1e12),
        (cp.square(v - 1e5), [], 0.0, 0.0),
        (cp.sum_squares(pair - 2), [cp.log_sum_exp(pair) <= 2], None, 2 * np.log(2) ** 2),
        (0 * cp.sum(pair), [], None, 0.0),
        (cp.sum(pair), [pair == np.array([1.0, -2.0])], None, -1.0),
        (1e3 * cp.square(pair[0] - 1) - 1e-4 * pair[1], [pair >= -1, pair <= 1e6], None, -100.0),
        (cp.max(np.array([[2.0, 0], [-3, 0]]) @ pair), [cp.abs(pair) <= 1], None, 0.0),
        (cp.sum_squares(pair - 1) + cp.norm1(pair), [], [1e3, -1e3], 1.5),
        (cp.sum_squares(pair - 1) + cp.norm1(pair), [], [1e6, -1e6], 1.5),
        (valley, [], [10.0, 10.0], 1.0),
        (valley, [], [-7.0, 4.0], 1.0),
        (valley, [], [3.0, -9.0], 1.0),
    ],
    ids=str,
)
def test_minima_known_by_formula(objective: Any, constraints: list[Any], start: Any, least: float) -> None:
    """Steep starts and valleys, units that differ, curved and flat sets: rest is where the minimum is, and there alone."""
    given = {} if start is None else {"x0": np.array(start)}
    result = solved(hf.Problem(hf.Minimize(clients=objective), constraints=constraints), **given)
    assert result.status == "at rest" and result.value == pytest.approx(least, rel=1e-8, abs=1e-9)


w, duo = cp.Variable(name="y"), cp.Variable(2, name="y")
LEVELS: list[tuple[Any, hf.ArgMin, list[Any], Any, float]] = [  # f, its level, X, a start, and the least value
    (cp.square(w - 1), hf.ArgMin(w, cp.square(w - v), [w >= 0]), [v >= -2, v <= 3], None, 0.0),  # at 0 a gradient may be none by convention
    *(
        (scale * (cp.sum_squares(duo - 1) + cp.sum_squares(pair)), hf.ArgMin(duo, cp.sum_squares(duo - pair), [duo >= -1]), [], [3.0, -0.5], scale)
        for scale in (1e-12, 1e-6, 1e8)
    ),
    *(  # (s - 1)^2 + (t - 1)^2 + max(s + t, .5)^2 of s and t in different units: s = t = 1/3
        (cp.square(unit * pair[0] - 1) + cp.square(pair[1] / unit - 1) + cp.square(w), hf.ArgMin(w, cp.square(w - unit * pair[0] - pair[1] / unit), [w >= 0.5]), [], None, 4 / 3)
        for unit in (1e2, 1e4, 1e6)
    ),
    *(  # along a parabola f is one too, which a step's quadratic model knows nothing of: least at (0, 1)
        (-0.9 * bend * (1 - 1e-9) * cp.square(w) - 1.5 * pair[1], hf.ArgMin(w, cp.square(w - pair[0])), [cp.abs(pair) <= 2, bend * cp.square(pair[0]) + pair[1] <= 1], [0.6, 1 - 0.36 * bend], -1.5)
        for bend in (0.5, 2.0)
    ),
]


@pytest.mark.parametrize("place", range(len(LEVELS)))
def test_minima_over_levels_known_by_formula(place: int) -> None:
    objective, level, constraints, start, least = LEVELS[place]
    result = solved(hf.Problem(hf.Minimize(clients=objective), level, constraints), **({} if start is None else {"x0": np.array(start)}))
    assert result.status == "at rest" and result.settings["rounds_done"] < 150
    assert result.value == pytest.approx(least, rel=1e-7, abs=0.0 if least else 1e-12)


@pytest.mark.parametrize("unit", [1.0, 1e2, 1e4])
def test_least_absolute_deviations_with_a_column_in_other_units(unit: float) -> None:
    random, z = np.random.default_rng(1), cp.Variable(5, name="z")
    for _ in range(3):
        a, b = random.standard_normal((12, 5)), 3 * random.standard_normal(12) + 20
        a[:, 0] = 1
        least = cp.Problem(cp.Minimize(cp.norm1(a @ z - b))).solve(solver=cp.CLARABEL)
        result = solved(hf.Problem(hf.Minimize(clients=cp.norm1(a * [1, 1 / unit, 1, 1, 1] @ z - b))))
        assert result.status == "at rest" and result.value == pytest.approx(least, rel=1e-6)


# --- Descent in many variables, against minima known from formulas, linear programs, and CVXPY.


RNG = np.random.default_rng(0)


def separable(kind: str, t: np.ndarray, c: np.ndarray) -> tuple[hf.Problem, Callable[[float, int], float]]:
    """y = max(0, x) below a sum of functions of one variable each, and those functions."""
    x, y = cp.Variable(t.size, name="x"), cp.Variable(t.size, name="y")
    top, one = {
        "smooth": (
            0.5 * c @ cp.square(y - t) + 0.05 * cp.sum_squares(x - 1),
            lambda z, i: 0.5 * c[i] * (max(0, z) - t[i]) ** 2 + 0.05 * (z - 1) ** 2,
        ),
        "kinks of both": (
            c @ cp.abs(y - t) + 0.05 * cp.sum_squares(x - 1),
            lambda z, i: c[i] * abs(max(0, z) - t[i]) + 0.05 * (z - 1) ** 2,
        ),
    }[kind]
    problem = hf.Problem(hf.Minimize(clients=top), hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0]), [cp.abs(x) <= 3])
    return problem, one


@pytest.mark.parametrize("size", [50, 1000])
@pytest.mark.parametrize("kind", ["smooth", "kinks of both"])
def test_kinks_along_every_variable(kind: str, size: int) -> None:
    """At the minimum about half of the variables are at a kink."""
    t, c = 2 * RNG.standard_normal(size), RNG.uniform(0.5, 5, size)
    problem, one = separable(kind, t, c)
    least = 0.0
    for i in range(size):
        places = [-3.0, 0.0, 1.0, 3.0, float(np.clip(t[i], -3, 3))]
        ends = [minimize_scalar(one, bounds=b, args=(i,), method="bounded").x for b in ((-3, 0), (0, 3))]
        least += min(one(z, i) for z in [*places, *ends])
    result = problem.solve(progress=False)
    assert result.status == "at rest" and result.settings["rounds_done"] <= 500
    assert result.value == pytest.approx(least, rel=1e-6) and result.value >= least * (1 - 1e-9)


def test_a_smooth_sum_over_a_simplex_and_a_box() -> None:
    """Neither set's projection goes along the model: the steps are found by projected gradients of it."""
    n = 60
    x, a, b = cp.Variable(n, name="x"), RNG.standard_normal((90, n)), RNG.standard_normal(90)
    for within in ([cp.sum(x) == 1, x >= 0], [x >= -0.1, x <= 0.2]):
        f = 0.5 * cp.sum_squares(a @ x - b)
        least = cp.Problem(cp.Minimize(f), within).solve(solver=cp.CLARABEL)
        result = hf.Problem(hf.Minimize(clients=f), constraints=within).solve(progress=False)
        assert result.status == "at rest" and result.value == pytest.approx(least, rel=1e-7)


def test_ends_that_are_no_minimum_are_named() -> None:
    """f = -sum(x) + |x - w|^2 with sum(w) = 0, where sum(x) is at most 1/2: least at w + 1/100."""
    n = 50
    x, y = cp.Variable(n, name="x"), cp.Variable(name="y")
    level = hf.ArgMin(y, cp.square(y - cp.sum(x)))
    assert hf.Problem(hf.Minimize(clients=y), level).solve(progress=False).status == "f seems unbounded below"
    edge = hf.ArgMin(y, cp.square(y), [y >= cp.sum(x), y <= 1 - cp.sum(x)])
    top = hf.Minimize(clients=-cp.sum(x) + cp.sum_squares(x - np.linspace(-1, 1, n)) + 0 * y)
    result = hf.Problem(top, edge).solve(progress=False, rounds=60)
    assert result.status != "at rest" or result.value == pytest.approx(-0.495, abs=1e-8)
    assert float(np.sum(result.x)) <= 0.5 + 1e-9


# --- Prices at which those below do what is best above: found where there are any, and nowhere else.


CAP = np.array([1.0, 2.0, 3.0])


def priced(target: np.ndarray, low: float = -20.0, moves_rows: bool = False, bent: bool = False) -> hf.Problem:
    """Shares of three goods, each with a cap and a price; above, they should be near a target."""
    price, y = cp.Variable(3, name="price"), cp.Variable(3, name="y")
    charged = cp.square(price) if bent else price
    rows = [y >= 0, y <= (CAP + 0.1 * price if moves_rows else CAP), cp.sum(y) == 2.0]
    return hf.Problem(
        hf.Minimize(clients=cp.sum_squares(y - target)),
        hf.ArgMin(y, np.array([3.0, 1.0, 0.0]) @ y + 0.05 * cp.sum(cp.power(y, 4)) + charged @ y, rows),
        [price >= low, price <= 20.0],
    )


def nearest(target: np.ndarray) -> np.ndarray:
    y = cp.Variable(3)
    cp.Problem(cp.Minimize(cp.sum_squares(y - target)), [y >= 0, y <= CAP, cp.sum(y) == 2.0]).solve(solver="CLARABEL")
    return np.asarray(y.value)


@pytest.mark.parametrize("target", [np.array([0.5, 0.7, 0.4]), np.array([4.0, 0.1, 0.1]), np.array([0.0, 0.0, 9.0])])
def test_prices_bring_what_is_best_above(target: np.ndarray) -> None:
    """Inside, and at bounds."""
    problem = priced(target)
    found = shared_best(problem.compile(), np.zeros(3))
    assert found is not None
    np.testing.assert_allclose(problem.implicit.response(found), nearest(target), atol=1e-5)
    best = problem.solve(progress=False)
    assert best.value == pytest.approx(float(np.sum((nearest(target) - target) ** 2)), abs=1e-8)


def test_what_no_price_brings_is_not_claimed() -> None:
    """The first good is dear, and may not be subsidised: prices of others are limited as well."""
    assert shared_best(priced(np.array([1.0, 0.5, 0.5]), low=0.0).compile(), np.zeros(3)) is not None  # others may be dear
    price, y = cp.Variable(name="price"), cp.Variable(2, name="y")
    level = hf.ArgMin(y, 5.0 * y[0] + cp.sum_squares(y) + price * y[1], [y >= 0, cp.sum(y) == 1])
    problem = hf.Problem(hf.Minimize(clients=cp.square(y[0] - 1.0)), level, [price >= 0, price <= 1])
    assert shared_best(problem.compile(), np.zeros(1)) is None


@pytest.mark.parametrize("settings", [{"moves_rows": True}, {"bent": True}])
def test_other_kinds_are_left_alone(settings: dict[str, bool]) -> None:
    """Where x moves the rows, or prices are no affine function of x."""
    assert shared_best(priced(np.array([0.5, 0.7, 0.4]), **settings).compile(), np.ones(3)) is None


def test_what_is_not_convex_together_is_left_alone() -> None:
    price, y = cp.Variable(2, nonneg=True, name="price"), cp.Variable(2, name="y")
    level = hf.ArgMin(y, cp.sum(cp.power(y, 4)) + price @ y, [y >= 0, cp.sum(y) >= 1])
    assert shared_best(hf.Problem(hf.Maximize(clients=price @ y), level, [price <= 3]).compile(), np.zeros(2)) is None


# --- Descent on differences of values, and hopping from basin to basin, against what is known from elsewhere.


SEARCHED = ("Outrata-Zowe", "Aiyoshi-Shimizu", "Bard 1988, 3", "Falk-Liu")
BY_VALUES = ImplicitBundle(gradients="differences")


@pytest.mark.parametrize("case", [c for c in LITERATURE if c.name in SEARCHED], ids=str)
def test_minima_of_the_literature_by_values(case: Any) -> None:
    result = case.declare().solve(BY_VALUES, progress=False)
    assert result.status == "at rest" and "gradients" not in result.history
    assert result.value == pytest.approx(case.least, rel=1e-6, abs=1e-6)


def boxed(noise: float, constraints: list[Any], x: cp.Variable, goal: np.ndarray) -> hf.Problem:
    """|y - goal|_1 + |y - goal|^2 of a black box with a deterministic ripple, y = x."""
    y = cp.Variable(x.shape, name="y")

    def value(v: np.ndarray) -> float:
        away = np.abs(v - goal)
        return float(np.sum(away + away**2) + noise * np.sin(1e9 * np.sum(v)))

    return hf.Problem(hf.Minimize(clients=hf.BlackBox(value, y)), hf.ArgMin(y, cp.sum_squares(y - x)), constraints(x))


@pytest.mark.parametrize("noise", [0.0, 1e-8, 1e-5])
def test_values_that_err_are_taken_further_apart(noise: float) -> None:
    x, goal = cp.Variable((2, 2), name="x"), np.array([[0.3, -0.2], [1.0, 0.5]])
    result = boxed(noise, lambda x: [cp.abs(x) <= 2], x, goal).solve(BY_VALUES, rounds=300, progress=False)
    assert result.x == pytest.approx(goal, abs=1e-6 + 20 * np.sqrt(noise))


@pytest.mark.parametrize("digits", [4, 6, 8])
@pytest.mark.parametrize("start", [0.0, 0.5, 1.0])
def test_values_of_some_digits_are_taken_further_apart(digits: int, start: float) -> None:
    """Next to each other they are alike, or go evenly; at 0 and 1 X ends."""
    x = cp.Variable(name="x")
    value = hf.BlackBox(lambda v: round((float(v) - 0.3) ** 2, digits), x)
    result = hf.Problem(hf.Minimize(clients=value), constraints=[x >= 0, x <= 1]).solve(BY_VALUES, x0=start, progress=False)
    assert result.x == pytest.approx(0.3, abs=2 * 10 ** (-digits / 2))


@pytest.mark.parametrize("large", [1e3, 1e6])
def test_small_variables_beside_large_ones_are_moved(large: float) -> None:
    """(x1 / large - 1.2)^2 + (x2 - 1)^2 is 0 at (1.2 large, 1)."""
    x = cp.Variable(2, name="x")
    value = hf.BlackBox(lambda v: (v[0] / large - 1.2) ** 2 + (v[1] - 1) ** 2, x)
    result = hf.Problem(hf.Minimize(clients=value), constraints=[cp.abs(x) <= 10 * large]).solve(BY_VALUES, x0=[large, 0.0], progress=False)
    assert result.value == pytest.approx(0.0, abs=1e-10) and result.x[1] == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("constant", [0.0, 50.0])
def test_a_start_on_a_ridge_is_left_beside_a_large_constant_too(constant: float) -> None:
    """What f falls by first is nothing beside 50, and grows with each step."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    problem = hf.Problem(hf.Maximize(clients=cp.square(y) + constant), hf.ArgMin(y, cp.square(y - x)), [x >= -1, x <= 1])
    result = problem.solve(progress=False)
    assert abs(result.value - constant - 1.0) < 1e-6 and result.status == "at rest"


def test_a_set_without_inside_is_searched_along_itself() -> None:
    """On the simplex, |x - goal|_1 + |x - goal|^2 with goal in it is least there; the start is in the middle."""
    x, goal = cp.Variable(3, name="x"), np.array([0.7, 0.3, 0.0])
    result = boxed(0.0, lambda x: [x >= 0, cp.sum(x) == 1], x, goal).solve(BY_VALUES, progress=False)
    assert result.x == pytest.approx(goal, abs=1e-6)


def test_a_set_of_one_point_is_at_rest_there() -> None:
    x, goal = cp.Variable(2, name="x"), np.zeros(2)
    result = boxed(0.0, lambda x: [x == 2], x, goal).solve(progress=False)
    assert result.status == "at rest" and result.value == pytest.approx(12.0)


def wells() -> hf.Problem:
    """Two valleys of y^4/4 - y^2/2 + .1 y with y = x: the deeper one is at the least root of y^3 - y + .1."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    return hf.Problem(hf.Minimize(clients=0.25 * y**4 - 0.5 * cp.square(y) + 0.1 * y), hf.ArgMin(y, cp.square(y - x)), [cp.abs(x) <= 2])


@pytest.mark.parametrize("gradients", ["exact", "differences"])
def test_hops_find_the_deeper_valley(gradients: str) -> None:
    least = float(np.min(np.roots([1.0, 0.0, -1.0, 0.1]).real))
    start = np.array(0.9)
    assert wells().solve(ImplicitBundle(gradients=gradients), x0=start, progress=False).x > 0.5
    result = wells().solve(ImplicitBundle(gradients=gradients, hops=20), x0=start, progress=False)
    assert result.x == pytest.approx(least, abs=1e-6) and result.status == "at rest"
    assert (np.diff(result.history["objective"]) <= 0).all()


@pytest.mark.parametrize("gradients", ["exact", "differences"])
def test_a_run_that_hops_goes_on_where_it_was(gradients: str, tmp_path: Path) -> None:
    solver, settings = ImplicitBundle(gradients=gradients, hops=6), {"x0": np.array(0.9), "rounds": 60, "evaluate_every": 5}
    found, stopped = by_and_by(wells(), solver, tmp_path, 3, **settings)
    assert stopped > 1
    require_same(found, outcome(wells(), solver, **settings))


def test_the_default_spends_a_budget_on_hops() -> None:
    """Without one it is a local method."""
    start = np.array(0.9)
    local, wide = (wells().solve(x0=start, progress=False, **given) for given in ({}, {"budget": hf.Budget(lower_solves=200)}))
    assert local.x > 0.5 and wide.x < -0.5
    assert int(np.sum(wide.history["lower_solves"])) <= 200


def test_what_it_counts_are_values() -> None:
    heard = []
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    box = hf.BlackBox(lambda v: heard.append(v) or float(np.sum((v - 1) ** 2)), y)
    problem = hf.Problem(hf.Minimize(clients=box), hf.ArgMin(y, cp.sum_squares(y - x)))
    problem.compile(progress=False)
    heard.clear()
    result = problem.solve(BY_VALUES, progress=False)
    told, asked = int(np.sum(result.history["values"])), len(heard)
    assert told <= asked <= told + 40 and told == int(np.sum(result.history["lower_solves"]))  # metrics and the certificate ask as well


def test_settings_that_are_none_are_named() -> None:
    with pytest.raises(hf.errors.SettingError, match="gradients='finite'.*differences"):
        ImplicitBundle(gradients="finite")  # type: ignore[arg-type]
    with pytest.raises(hf.errors.SettingError, match="hops=-1: a whole number of at least 0"):
        ImplicitBundle(hops=-1)


def test_first_steps_that_go_where_f_is_astronomic() -> None:
    """Counts by a column of numbers up to 126 in size: exp(126 b) tells nothing; against L-BFGS-B on both parts of b, in a better unit."""
    rng, column, count = np.random.default_rng(0), hf.Sample(1, name="column"), hf.Sample(name="count")
    rows = rng.integers(-120, 127, 120).astype(float)
    counts = rng.poisson(np.exp(np.clip(0.2 + rows * rng.normal() * 0.01, -4, 3))) * 1.0
    federation = hf.Federation([hf.Client({column: rows[k::3, None], count: counts[k::3]}) for k in range(3)])
    result = hf.models.PoissonRegression(federation, column, count, penalty=0.01, l1_ratio=0.5).solve(progress=False)

    def objective(z: np.ndarray) -> float:
        b = (z[1] - z[2]) / 70
        score = z[0] + rows * b
        return float(np.mean(np.exp(score) - counts * score) + 0.01 * (0.5 * (z[1] + z[2]) / 70 + 0.25 * b**2))

    least = minimize(objective, np.zeros(3), bounds=[(None, None), (0, None), (0, None)], options={"ftol": 1e-15}).fun
    assert (result.status, result.value) == ("at rest", pytest.approx(least, abs=1e-8))


def test_a_bound_that_f_goes_below_is_none() -> None:
    x = cp.Variable(2, name="x")
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(x - 3)), constraints=[cp.abs(x) <= 5])
    with pytest.warns(hf.RestWarning, match=r"bound=500.0 is none: f is 18 at x = \[0. 0.\]"):
        assert problem.solve(ImplicitBundle(bound=500.0), progress=False).value == pytest.approx(0, abs=1e-8)
    assert problem.solve(ImplicitBundle(bound=0.0), progress=False).value == pytest.approx(0, abs=1e-8)


@pytest.mark.parametrize("size", [50, 300])
def test_many_variables_at_an_edge_of_where_y_exists(size: int) -> None:
    """Y(x) is empty where sum(x) > 1/2, and w + 1 / (2 n) is best there; models in pieces see it, others say that they cannot follow it."""
    x, y, w = cp.Variable(size, name="x"), cp.Variable(name="y"), np.linspace(-1, 1, size)
    between = hf.ArgMin(y, cp.square(y), [y >= cp.sum(x), y <= 1 - cp.sum(x)])
    result = solved(hf.Problem(hf.Minimize(clients=cp.sum_squares(x - w) - cp.sum(x) + 0 * y), between))
    if size == 300:
        assert result.status == "at the edge of where f has values" and "not known to be at rest" in str(result)
    else:
        assert result.status == "at rest" and result.value == pytest.approx(0.25 / size - 0.5, abs=1e-9)

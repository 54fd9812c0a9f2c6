"""The bundle method against minima known from elsewhere: the literature's, linear programs', and formulas."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

import hierfl as hf
from hierfl.errors import EmptyLowerSetError, IncompatibleSolverError, SettingError
from hierfl.runtime import InProcess
from hierfl.solvers import ImplicitBundle
from tests.bilevel_case import Case
from tests.bilevel_catalogue import LITERATURE

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


def _value(case: Case, x: np.ndarray) -> float:
    """f, infinite where Y(x) is empty."""
    try:
        return case.value(x)
    except Exception:  # the catalogue's answers are formulas and small solvers, which fail each in its own way
        return np.inf


@given(
    rows=st.lists(st.lists(st.integers(-3, 3), min_size=2, max_size=2), min_size=1, max_size=6),
    shift=st.lists(st.integers(-2, 2), min_size=6, max_size=6),
    tie=st.booleans(),
)
@settings(max_examples=25)
def test_largest_of_affine_functions_beside_a_linear_program(rows: list[Any], shift: list[int], tie: bool) -> None:
    """Flat pieces, repeated rows, a plane that X is in, and minima at corners of X."""
    slopes, offsets = np.array(rows, float), np.array(shift[: len(rows)], float)
    x = cp.Variable(2, name="x")
    within = [x >= -1, x <= 2] + ([x[0] == x[1]] if tie else [])
    found = solved(hf.Problem(hf.Minimize(clients=cp.max(slopes @ x + offsets)), constraints=within))
    program = linprog(
        [0, 0, 1],
        np.hstack([slopes, -np.ones((len(rows), 1))]),
        -offsets,
        [[1, -1, 0]] if tie else None,
        [0] if tie else None,
        [(-1, 2), (-1, 2), (None, None)],
    )
    assert found.status == "at rest" and found.value == pytest.approx(program.fun, abs=1e-7)


def test_a_start_where_every_gradient_vanishes_is_left() -> None:
    """y(x) = max(0, x): at x = 0 the gradient that the conventions choose may be zero, yet f falls to one side."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y", nonneg=True)
    level = hf.ArgMin(y, cp.square(y - x))
    result = solved(hf.Problem(hf.Minimize(clients=cp.square(y - 1)), level, [x >= -2, x <= 3]))
    assert result.value == pytest.approx(0, abs=1e-12) and result.x == pytest.approx(1, abs=1e-5)


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
    x, y, room = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="room")
    own = hf.ClientParameter(name="own", nonneg=True)
    bound = room if scope == "sample" else own
    level = hf.ArgMin(y, cp.square(y - 1), [y >= x, y <= bound], scope=scope)
    clients = [hf.Client({room: np.array([3.0, 2.5])}, {own: 2.5}), hf.Client({room: np.array([4.0])}, {own: 4.0})]
    objective = hf.E(cp.square(y) - 9 * x + 0 * room)
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


def test_a_limit_within_the_first_block_gives_the_start() -> None:
    x = cp.Variable(2, name="x")
    result = solved(hf.Problem(hf.Minimize(clients=cp.sum_squares(x - 1))), communication_limit=1)
    assert result.settings["rounds_done"] == 0 and np.array_equal(result.x, result.x0)


def test_small_and_large_values_of_f_are_minimised_alike() -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    level = hf.ArgMin(y, cp.sum_squares(y - x), [y >= -1])
    for scale in (1e-12, 1e-6, 1e8):
        f = scale * (cp.sum_squares(y - 1) + cp.sum_squares(x))
        result = solved(hf.Problem(hf.Minimize(clients=f), level), x0=np.array([3.0, -0.5]))
        assert result.status == "at rest" and result.value == pytest.approx(scale, rel=1e-7)


@pytest.mark.parametrize("unit", [1e2, 1e4, 1e6])
def test_variables_in_very_different_units(unit: float) -> None:
    """With u = t x_0 and v = x_1 / t, f = (u - 1)^2 + (v - 1)^2 + max(u + v, .5)^2: u = v = 1/3, f = 4/3."""
    x, y = cp.Variable(2, name="x"), cp.Variable(name="y")
    objective = hf.Minimize(clients=cp.square(unit * x[0] - 1) + cp.square(x[1] / unit - 1) + cp.square(y))
    problem = hf.Problem(objective, hf.ArgMin(y, cp.square(y - unit * x[0] - x[1] / unit), [y >= 0.5]))
    result = solved(problem)
    assert result.status == "at rest" and result.value == pytest.approx(4 / 3, rel=1e-6)
    assert result.settings["rounds_done"] < 150


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


@pytest.mark.parametrize("unit", [1.0, 1e2, 1e4])
def test_least_absolute_deviations_with_a_column_in_other_units(unit: float) -> None:
    random, z = np.random.default_rng(1), cp.Variable(5, name="z")
    for _ in range(3):
        a, b = random.standard_normal((12, 5)), 3 * random.standard_normal(12) + 20
        a[:, 0] = 1
        least = cp.Problem(cp.Minimize(cp.norm1(a @ z - b))).solve(solver=cp.CLARABEL)
        result = solved(hf.Problem(hf.Minimize(clients=cp.norm1(a * [1, 1 / unit, 1, 1, 1] @ z - b))))
        assert result.status == "at rest" and result.value == pytest.approx(least, rel=1e-6)


@pytest.mark.parametrize("bend", [0.5, 2.0])
def test_along_a_curved_boundary(bend: float) -> None:
    """Minimise -x_1^2 - 3 x_2 below a parabola: along it f is a parabola too, which a step's quadratic model knows nothing of."""
    x, y = cp.Variable(2, name="x"), cp.Variable(1, name="y")
    below = hf.ArgMin(y, cp.sum_squares(y - x[0]), [])
    problem = hf.Problem(
        hf.Minimize(clients=-(1 - 1e-9) * cp.square(y[0]) * 0.9 * bend - 3 * x[1] * 0.5),
        lower=below,
        constraints=[x >= -2, x <= 2, bend * cp.square(x[0]) + x[1] <= 1],
    )
    result = solved(problem, x0=np.array([0.6, 1 - bend * 0.36]))
    assert result.value == pytest.approx(-1.5, abs=1e-7) and np.abs(result.x - [0, 1]).max() <= 1e-3
    assert result.settings["rounds_done"] <= 45

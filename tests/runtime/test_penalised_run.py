"""Problems with upper constraints that mention y, solved: against closed forms, SciPy on them, and published optima."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import scipy.optimize

import hierfl as hf
from hierfl.compiler.compiled_problem import penalised_problem
from hierfl.result import Result
from hierfl.solvers import ZOHFL, FedNest, FedRZO, ImplicitBundle, ImplicitGradient

QUIET: dict[str, Any] = {"progress": False}
BUNDLE = ImplicitBundle()


def on_a_line(*constraints: Any, level: Any = (), objective: Any = None) -> hf.Problem:
    """Minimise x^2 where y(x) = x / 2, of the federation; constraints of (x, y)."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    lower = hf.ArgMin(y, cp.square(y - x / 2), [given(y) for given in level])
    told = hf.Minimize(server=cp.square(x)) if objective is None else objective(x, y)
    return hf.Problem(told, lower, [given(x, y) for given in constraints])


@pytest.mark.parametrize(
    ("constraints", "objective", "x"),
    [
        ([lambda x, y: y >= 1], None, 2.0),
        ([lambda x, y: y == -3], None, -6.0),
        ([lambda x, y: x + y >= 15], None, 10.0),
        ([lambda x, y: cp.square(y) >= 4, lambda x, y: x >= 0], None, 4.0),  # not convex, which is no matter
        ([lambda x, y: cp.SOC(1.0 + 0 * y, cp.hstack([y, 0.6]))], lambda x, y: hf.Maximize(clients=x), 1.6),
        ([lambda x, y: y <= 2], lambda x, y: hf.Maximize(clients=x + y), 4.0),  # unbounded without the constraint
        ([lambda x, y: y <= 2], lambda x, y: hf.Maximize(clients=1e4 * x), 4.0),
        ([lambda x, y: 1e-3 * y <= 2e-3], lambda x, y: hf.Maximize(clients=1e3 * x), 4.0),
    ],
)
def test_closed_forms(constraints: list[Any], objective: Any, x: float) -> None:
    result = on_a_line(*constraints, objective=objective).solve(**QUIET)
    assert result.x == pytest.approx(x, abs=2e-5)
    assert result.y == pytest.approx(x / 2, abs=2e-5)
    assert result.violation.feasible
    assert result.status == "at rest"
    assert result.settings["penalty"] > 0


def test_a_penalty_that_is_too_small_is_said_aloud() -> None:
    """x^2 + (1 - x / 2) has its minimum at 1/4, where y is 1/8."""
    with pytest.warns(hf.FeasibilityWarning, match=r"y >= 1 is violated by 0\.875, with penalty 1"):
        result = on_a_line(lambda x, y: y >= 1).solve(BUNDLE, penalty=1.0, **QUIET)
    assert result.x == pytest.approx(0.25, abs=1e-6)
    assert result.violation["y >= 1"].amount == pytest.approx(0.875, abs=1e-6)
    assert (result.status, result.value) == ("infeasible", pytest.approx(0.0625, abs=1e-6))
    assert "y >= 1 is violated by 0.875" in str(result)


def test_raising_the_penalty_compiles_nothing() -> None:
    """What is kept under the parameters' values are findings; all programs are there after the first run."""
    problem = on_a_line(lambda x, y: y >= 1)
    kept = []
    for penalty in (1.0, 10.0, 100.0):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", hf.FeasibilityWarning)
            problem.solve(FedRZO(step_size=0.01), penalty=penalty, rounds=20, **QUIET)
        goal = penalised_problem(problem.compile())
        findings = ("envelope", "modulus of f", "opposed")
        kept.append({key for key in goal.programs if not (isinstance(key, tuple) and key[0] in findings)})
    assert kept[0]
    assert kept[1] - kept[0] == kept[2] - kept[1] == set()


# --- published problems --------------------------------------------------------------------------------------------------


def mersha_dempe() -> hf.Problem:
    """Mersha and Dempe (2006), linear, with feasible x in two pieces."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    lower = hf.ArgMax(y, y, [-3 * x + y <= -3, 3 * x + y <= 30])
    return hf.Problem(hf.Minimize(server=-x - 2 * y), lower, [2 * x - 3 * y >= -12, x + y <= 14])


def test_two_feasible_pieces() -> None:
    """By hand: y(x) = min(3x - 3, 30 - 3x), feasible up to 3 and from 8 on; f = -15 at 3, -20 at 8."""
    problem = mersha_dempe()
    for start, x, value in ((2.0, 3.0, -15.0), (9.0, 8.0, -20.0)):
        result = problem.solve(BUNDLE, x0=start, **QUIET)
        assert (result.x, result.value) == (pytest.approx(x, abs=1e-5), pytest.approx(value, abs=1e-4))
    best = problem.reference(**QUIET)
    assert (best.x, best.value) == (pytest.approx(8.0, abs=1e-5), pytest.approx(-20.0, abs=1e-4))
    assert sorted(best.local_minima)[:1] == pytest.approx([-20.0], abs=1e-4)
    assert problem.solve(BUNDLE, x0=9.0, **QUIET).gap == pytest.approx(0.0, abs=1e-4)


# --- federations ---------------------------------------------------------------------------------------------------------

DEMANDS, CAPS, WEIGHTS = np.array([4.0, 5.0, 6.0]), np.array([1.0, 2.0, 0.8]), [0.5, 0.3, 0.2]


def taxed(*constraints: Any, objective: Any = None, weights: Any = WEIGHTS) -> hf.Problem:
    """Every client's output is y_i = max(0, d_i - x), x a tax in [0, 10] that costs its square."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    demand, cap = hf.ClientParameter(name="demand"), hf.ClientParameter(name="cap")
    lower = hf.ArgMin(y, 0.5 * cp.square(y - demand + x), [y >= 0], scope="client")
    clients = [hf.Client(parameters={demand: d, cap: c}) for d, c in zip(DEMANDS, CAPS)]
    told = hf.Minimize(clients=cp.square(x)) if objective is None else objective(x, y)
    given = [one(x, y, cap) for one in constraints]
    return hf.Problem(told, lower, [x >= 0, x <= 10, *given], hf.Federation(clients, weights=weights))


def mean_emission(x: float) -> float:
    return float(np.array(WEIGHTS) @ np.maximum(0, DEMANDS - x))


@pytest.mark.parametrize(
    ("constraint", "objective", "x"),
    [
        (lambda x, y, cap: y <= cap, None, np.max(DEMANDS - CAPS)),  # every client's own
        (lambda x, y, cap: hf.E(y) <= 1, None, scipy.optimize.brentq(lambda x: mean_emission(x) - 1, 0, 10)),
        (lambda x, y, cap: hf.total(y) <= 3, None, 4.0),  # 15 - 3x, whatever the weights
        (lambda x, y, cap: hf.E(y) == 2, None, scipy.optimize.brentq(lambda x: mean_emission(x) - 2, 0, 10)),
        (lambda x, y, cap: y >= cap, lambda x, y: hf.Maximize(clients=x), np.min(DEMANDS - CAPS)),
        (lambda x, y, cap: hf.E(cap * y) <= 1, None, None),
    ],
)
def test_conditions_of_clients(constraint: Any, objective: Any, x: float | None) -> None:
    if x is None:
        weighed = np.array(WEIGHTS) * CAPS
        x = scipy.optimize.brentq(lambda x: weighed @ np.maximum(0, DEMANDS - x) - 1, 0, 10)
    result = taxed(constraint, objective=objective).solve(BUNDLE, **QUIET)
    assert result.x == pytest.approx(x, abs=1e-5)
    assert result.violation.feasible
    np.testing.assert_allclose(result.y, np.maximum(0, DEMANDS - x), atol=2e-5)


def test_a_condition_without_a_value_is_violated_without_end() -> None:
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    problem = hf.Problem(hf.Minimize(clients=x), hf.ArgMin(y, cp.sum_squares(y - x)), [cp.abs(x) <= 2, -cp.log(y - np.array([0.0, -3.0])) <= 1])
    with np.errstate(invalid="raise"):
        told = problem.implicit.violation(0.0)
    (one,) = told.violated
    assert told.worst == np.inf and one.entry == (0,) and one.allowed == pytest.approx(1e-6)
    assert problem.implicit.violation(1.0).feasible


ROWS = [np.array([1.0, 2.0, 3.0]), np.array([2.0, 5.0])]


def of_rows(constraint: Any) -> hf.Problem:
    """Clients of three rows and of two, x in [0, 10], z = max(0, u - x) for every row; a constraint of z."""
    u, x, z = hf.Sample(name="u"), cp.Variable(name="x", nonneg=True), cp.Variable(name="z")
    lower = hf.ArgMin(z, 0.5 * cp.square(z - u + x), [z >= 0], scope="sample")
    federation = hf.Federation([hf.Client({u: own}) for own in ROWS])
    return hf.Problem(hf.Minimize(clients=cp.square(x) + 0 * hf.E(z)), lower, [x <= 10, constraint(z)], federation)


def test_rows_and_their_means() -> None:
    def solved(constraint: Any) -> Any:
        return of_rows(constraint).solve(BUNDLE, **QUIET).x

    def mean(x: float, own: np.ndarray) -> float:
        return float(np.mean(np.maximum(0, own - x)))

    assert solved(lambda z: z <= 1) == pytest.approx(4.0, abs=1e-5)
    assert solved(lambda z: hf.E(z) <= 1) == pytest.approx(3.0, abs=1e-5)  # the second client's (5 - x) / 2
    both = scipy.optimize.brentq(lambda x: 0.5 * (mean(x, ROWS[0]) + mean(x, ROWS[1])) - 0.75, 0, 5)
    assert solved(lambda z: hf.E(hf.E(z)) <= 0.75) == pytest.approx(both, abs=1e-5)
    assert solved(lambda z: hf.total(z) <= 1.5) == pytest.approx(3.5, abs=1e-5)
    told = of_rows(lambda z: z <= 1).implicit.violation(2.5)["z <= 1"]
    assert (told.owner, told.amount) == ("client 1, row 1", pytest.approx(1.5))


def test_constraints_that_read_alike_are_told_apart() -> None:
    """Long constants are not written out; y is x in every entry."""
    x, y = cp.Variable(name="x"), cp.Variable((3, 3), name="y")
    low, high = (y <= bound + np.arange(9.0).reshape(3, 3) for bound in (0.25, 5.0))
    problem = hf.Problem(hf.Maximize(server=x), hf.ArgMin(y, cp.sum_squares(y - x)), [x <= 4, low, high])
    told = problem.implicit.violation(1.0)
    assert (told.feasible, told.worst, len(told)) == (False, pytest.approx(0.75), 2)
    assert (told[low].amount, told[high].amount) == (pytest.approx(0.75), 0.0)
    result = problem.solve(**QUIET)
    assert result.x == pytest.approx(0.25, abs=1e-5)


def test_rows_of_clients_whose_y_they_share() -> None:
    """|a y - b| of every row is bounded: y = x has to be within the rows' intervals."""
    a, x, y = hf.Sample(name="a"), cp.Variable(name="x"), cp.Variable(name="y")
    federation = hf.Federation([hf.Client({a: np.array([1.0, 2.0])}), hf.Client({a: np.array([4.0])})])
    lower = hf.ArgMin(y, cp.square(y - x))
    problem = hf.Problem(hf.Maximize(clients=x), lower, [x <= 10, a * y <= 6], federation)
    result = problem.solve(BUNDLE, **QUIET)
    assert result.x == pytest.approx(1.5, abs=1e-5)
    assert problem.implicit.violation(2.0)["a * y <= 6"].owner == "client 1, row 0"


@pytest.mark.parametrize(
    "solver", [ZOHFL(smoothing=0.05, step_size=0.002), FedRZO(smoothing=0.05, step_size=0.002), ImplicitGradient(step_size=0.002)]
)
@pytest.mark.parametrize(
    ("constraint", "x"),
    [
        (lambda x, y, cap: hf.E(y) <= 1, 3.7),  # 0.5 (4 - x) + 0.3 (5 - x) + 0.2 (6 - x) = 1
        (lambda x, y, cap: hf.total(y) <= 3, 4.0),
    ],
)
def test_means_over_clients_have_prices_in_rounds(solver: Any, constraint: Any, x: float) -> None:
    """Near the x of the bundle method, which is held to the same formulas above; over the edge by a step at most."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hf.FeasibilityWarning)
        result = taxed(constraint).solve(solver, rounds=300, x0=3.0, penalty=40.0, **QUIET)
    assert result.x == pytest.approx(x, abs=0.12)
    assert result.violation.worst <= 0.1
    assert result.value == pytest.approx(float(result.x) ** 2, rel=1e-9)


@pytest.mark.parametrize("solver", [ZOHFL(smoothing=0.02, step_size=0.002), FedRZO(smoothing=0.02, step_size=0.002)])
def test_a_client_prices_the_mean_of_its_own_rows(solver: Any) -> None:
    """That of the second client is (5 - x) / 2 from x = 2 on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hf.FeasibilityWarning)
        result = of_rows(lambda z: hf.E(z) <= 1).solve(solver, rounds=300, x0=2.0, penalty=40.0, **QUIET)
    assert result.x == pytest.approx(3.0, abs=0.12)


def test_means_are_refused_by_name_where_nobody_asks_for_them() -> None:
    with pytest.raises(hf.IncompatibleSolverError, match=r"E\[y\] <= 1 is one on a mean.*FedNest.*ImplicitBundle.*FedRZO"):
        taxed(lambda x, y, cap: hf.E(y) <= 1).solve(FedNest(), rounds=5, **QUIET)


# --- infeasible ones, and what a run keeps -------------------------------------------------------------------------------


def test_an_infeasible_problem_is_named() -> None:
    problem = on_a_line(lambda x, y: y >= 5, lambda x, y: x <= 20, level=[lambda y: y <= 3])
    with pytest.warns(hf.FeasibilityWarning, match=r"y >= 5 is violated by 2.*as far as was found the problem is infeasible"):
        result = problem.solve(**QUIET)
    assert result.status == "infeasible"
    assert result.violation["y >= 5"].amount == pytest.approx(2.0, abs=1e-6)
    assert problem.implicit.violation(result.x).worst == pytest.approx(2.0, abs=1e-6)
    with pytest.raises(hf.InfeasibleError, match=r"y >= 5 is violated by 2"):
        problem.reference(**QUIET)


def test_an_infeasible_client_is_named() -> None:
    with pytest.warns(hf.FeasibilityWarning, match="y >= 5 is violated by 1 at client 0"):
        result = taxed(lambda x, y, cap: y >= 5).solve(BUNDLE, **QUIET)
    assert result.violation["y >= 5"].owner == "client 0"


def test_several_runs_have_a_feasible_best_one() -> None:
    runs = mersha_dempe().solve(BUNDLE, x0=9.0, restarts=3, **QUIET)
    assert len(runs) == 3
    assert runs.best.violation.feasible
    assert runs.value == pytest.approx(-20.0, abs=1e-4)


@pytest.mark.parametrize(("budget", "count"), [({"rounds": 15}, 15), ({"values": 40.0}, 40), ({"floats": 46.0}, 46)])
def test_a_budget_is_of_all_runs_together(budget: dict[str, Any], count: int) -> None:
    """Two values a round of 10, two scalars down, one up, and two of y down; what ends them is said, and no run is begun with nothing left."""
    problem = on_a_line(lambda x, y: y >= 1, objective=lambda x, y: hf.Minimize(clients=cp.square(x)))
    with pytest.warns(hf.FeasibilityWarning):
        result = problem.solve(FedRZO(step_size=1e-4), rounds=10, budget=hf.Budget(**budget), **QUIET)
    made = [one["rounds"] for one in result.settings["penalty_rounds"]]
    (name,) = budget
    each = {"rounds": 1, "values": 2, "floats": 5}[name]
    assert all(made) and count - each < sum(made) * each <= count
    assert result.ended == f"budget spent: {name}"


def test_a_budget_counts_the_trials_of_all_runs() -> None:
    problem = on_a_line(lambda x, y: y >= 1, objective=lambda x, y: hf.Minimize(clients=cp.square(x)))
    solver, settings = FedRZO(step_size="auto"), {"rounds": 2, **QUIET}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hf.FeasibilityWarning)
        first = problem.solve(solver, **settings).settings["penalty_rounds"][0]
        took = problem.solve(solver, penalty=first["penalty"], **settings).settings["auto"]["took"]["values"]
        result = problem.solve(solver, budget=hf.Budget(values=1.5 * took), **settings)
    assert result.ended == "budget spent: values"
    assert result.settings["penalty_rounds"] == [first]


def test_checkpoints_keep_one_run(tmp_path: Path) -> None:
    problem = taxed(lambda x, y, cap: y <= cap)
    with pytest.raises(hf.SettingError, match="name the penalty"):
        problem.solve(BUNDLE, checkpoint=tmp_path, **QUIET)
    settings: dict[str, Any] = {"penalty": 200.0, "checkpoint": tmp_path / "run", **QUIET}
    first = problem.solve(FedRZO(step_size=0.01), rounds=20, time_limit=60.0, **settings)
    again = problem.solve(FedRZO(step_size=0.01), rounds=20, resume=True, **settings)
    np.testing.assert_array_equal(first.x, again.x)
    with pytest.raises(hf.CheckpointError, match="penalty"):
        problem.solve(FedRZO(step_size=0.01), rounds=20, resume=True, **{**settings, "penalty": 100.0})


def test_saved_results_know_what_is_violated(tmp_path: Path) -> None:
    problem = on_a_line(lambda x, y: y >= 1)
    with pytest.warns(hf.FeasibilityWarning):
        result = problem.solve(BUNDLE, penalty=1.0, **QUIET)
    result.save(tmp_path / "result.npz")
    loaded = Result.load(tmp_path / "result.npz")
    assert loaded.violation == result.violation
    assert loaded.status == "infeasible"
    assert str(loaded) == str(Result.load(tmp_path / "result.npz"))


def test_a_run_that_was_to_end_says_what_it_violates() -> None:
    problem = taxed(lambda x, y, cap: y <= cap)
    problem.solve(BUNDLE, **QUIET)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hf.FeasibilityWarning)
        result = problem.solve(BUNDLE, penalty=1.0, x0=2.0, callback=lambda done, x, y: True, evaluate_every=1, **QUIET)
    assert result.ended == "stopped by callback"
    assert result.status == "infeasible"
    assert str(result.standing).startswith("stopped by callback: y <= cap is violated by ")
    assert result.value == pytest.approx(float(result.x) ** 2)


def test_games_and_equilibria() -> None:
    """y(x) = x by a variational inequality, and two players who each take (x - other's) / 2: both (x / 3)."""
    x, y, z = (cp.Variable(name=name) for name in "xyz")
    inequality = hf.Problem(hf.Minimize(server=cp.square(x)), hf.Equilibrium(y, y - x, [y >= 0]), [y >= 2])
    assert inequality.solve(BUNDLE, **QUIET).x == pytest.approx(2.0, abs=1e-5)
    players = hf.Nash(hf.Player(y, cp.square(y) + y * (z - x)), hf.Player(z, cp.square(z) + z * (y - x)))
    game = hf.Problem(hf.Minimize(server=cp.square(x)), players, [y + z >= 2])
    assert game.solve(BUNDLE, **QUIET).x == pytest.approx(3.0, abs=1e-5)


def test_the_best_answer_is_chosen_of_those_that_satisfy_the_constraints() -> None:
    """y_1 + y_2 = x below, however shared out. Upstairs y_1 costs, at most 0.3 of it are allowed, and 0.5 of y_2: x = 0.8."""
    x, y = cp.Variable(name="x", bounds=[0, 3]), cp.Variable(2, name="y")
    lower = hf.ArgMin(y, cp.sum(y), [cp.sum(y) >= x, y >= 0], selection="optimistic")
    problem = hf.Problem(hf.Minimize(server=-x + 0.1 * y[0]), lower, [y[0] <= 0.3, y[1] <= 0.5])
    result = problem.solve(BUNDLE, x0=0.1, **QUIET)
    assert result.x == pytest.approx(0.8, abs=1e-5)
    np.testing.assert_allclose(result.y, [0.3, 0.5], atol=1e-5)
    assert result.value == pytest.approx(-0.77, abs=1e-5)
    np.testing.assert_allclose(problem.implicit.response(0.6), [0.1, 0.5], atol=1e-6)
    assert problem.implicit.violation(0.9).worst == pytest.approx(0.1, abs=1e-6)
    assert "of those that satisfy the upper constraints" in str(problem)


@pytest.mark.parametrize("price", [hf.ShadowPrice, lambda balance: -balance.dual_variables[0]])
def test_a_cap_on_a_price(price: Any) -> None:
    """The price of what is generated, 10 - x, at the cost of half its square is 10 - x itself: at most 6 from x = 4 on."""
    x, g = cp.Variable(name="x", bounds=[0, 10]), cp.Variable(name="g")
    balance = g == 10 - x
    lower = hf.ArgMin(g, 0.5 * cp.square(g), [balance])
    result = hf.Problem(hf.Minimize(server=cp.square(x)), lower, [price(balance) <= 6]).solve(BUNDLE, **QUIET)
    assert result.x == pytest.approx(4.0, abs=1e-5)
    assert result.violation.feasible


@pytest.mark.parametrize("penalty", [0.0, -1.0, "much", True])
def test_penalties_out_of_range(penalty: Any) -> None:
    with pytest.raises(hf.SettingError, match="penalty="):
        on_a_line(lambda x, y: y >= 1).solve(BUNDLE, penalty=penalty, **QUIET)
    with pytest.raises(hf.SettingError, match="penalty=3: no constraint of this problem mentions y"):
        on_a_line().solve(BUNDLE, penalty=3.0, **QUIET)


def test_slices_hatch_what_is_not_feasible() -> None:
    problem = taxed(lambda x, y, cap: y <= cap)
    line = problem.implicit.slice(5.0, radius=2.0, direction=1.0, points=41, progress=False)
    (stretch,) = line.violated
    assert (stretch.low, stretch.high) == (pytest.approx(-2.0), pytest.approx(0.2, abs=1e-5))
    assert "not feasible for t in [-2, 0.19999" in str(line)
    labels = line.plot().axes[0].get_legend_handles_labels()[1]
    assert "violated: y <= cap" in labels


def test_values_at_infeasible_points_are_told_of() -> None:
    problem = taxed(lambda x, y, cap: y <= cap)
    with pytest.warns(hf.FeasibilityWarning, match=r"y <= cap is violated by 2\.2 at client 2"):
        assert problem.implicit(3.0) == pytest.approx(9.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert problem.implicit(6.0) == pytest.approx(36.0)
    assert problem.implicit.violation(6.0).feasible
    assert not on_a_line().implicit.violation(1.0)


def test_check_and_explain_say_what_is_not_covered() -> None:
    problem = taxed(lambda x, y, cap: y <= cap)
    assert problem.check(progress=False)["constraints on x alone"].status == "not covered"
    assert "y <= cap: one for each client" in str(problem.explain())


def test_a_reference_where_f_falls_faster_than_a_penalty_grows() -> None:
    """-x^3 beside x / 2 - 1: 2 is the best that is feasible; without an end of what is feasible there is no best."""
    bounded = on_a_line(lambda x, y: y <= 1, lambda x, y: x >= -5, objective=lambda x, y: hf.Minimize(server=-cp.power(x, 3)))
    found = bounded.reference(progress=False)
    assert found.x == pytest.approx(2.0, abs=1e-5) and found.value == pytest.approx(-8.0, abs=1e-4)
    assert "faster than a penalty grows" in found.guarantee
    with pytest.raises(hf.DivergedError, match="unbounded below where the upper constraints on y hold"):
        on_a_line(lambda x, y: y >= 1, objective=lambda x, y: hf.Minimize(server=-cp.power(x, 3))).reference(progress=False)

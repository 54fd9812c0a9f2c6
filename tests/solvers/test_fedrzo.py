"""FedRZO beyond ``test_printed_algorithms.py``: other lower-level solvers and schedules, and problems with known answers."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import jax
import numpy as np
import pytest
import scipy.stats

import hierfl as hf
from hierfl.models import stackelberg_cournot
from hierfl.solvers import LFD, SCAFFOLD, ZOHFL, Decay, FedAC, FedAvg, FedMSPP, FedRZO, LocalSGD, ProjectedSGD
from hierfl.solvers.lower import Exact
from hierfl.solvers.parts import client_oracle
from hierfl.solvers.parts.directions import Directions, estimate, shifts_of, slopes
from tests.draws import directions, row_numbers, split
from tests.draws import fold_in as fold
from tests.solvers.replayed import DATA, ROUNDS, START, round_key, solve

pytestmark = pytest.mark.filterwarnings("ignore::hierfl.LowerLevelWarning")
ETA, GAMMA, STEPS = 0.1, 0.02, 3


def federation(sample: hf.Sample) -> hf.Federation:
    return hf.Federation([hf.Client({sample: rows}) for rows in DATA])


def drawn(key: jax.Array, rows: np.ndarray, step: int = 0) -> np.ndarray:
    """A minibatch of one row, as the library's contract draws it: by the key and the step alone."""
    return rows[row_numbers(key, 1, len(rows), step)[0]]


def lower_gradient(row: np.ndarray, y: np.ndarray, x: np.ndarray) -> np.ndarray:
    return (row @ y - 1) * row + y - x


def test_client_scope_answers_by_itself_from_its_last_answer(x64: None) -> None:
    """The 2s skeleton with a lower level of each client, projected SGD, warm starts."""
    x, y, u = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.Sample(2, name="u")
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum_squares(x - y)),
        lower=hf.ArgMin(y, hf.E(0.5 * cp.square(u @ y - 1)) + 0.5 * cp.sum_squares(y - x), scope="client"),
        federation=federation(u),
    )
    lower = ProjectedSGD(steps=4, step_size=0.1, batch_size=1)
    solver = FedRZO(smoothing=ETA, step_size=GAMMA, local_steps=STEPS, lower=lower)
    expected, last = START, [START] * 3
    for r in range(ROUNDS):
        key, ends = round_key(r), []
        for i, rows in enumerate(DATA):
            own, client_key = expected, fold(key, i)
            for t in range(STEPS):
                v_key, sample_key = split(fold(client_key, t))
                v, lower_key = ETA * directions(v_key, 1, 2)[0], split(sample_key)[0]
                answers = []
                for at in (own, own + v):
                    z = last[i]
                    for s in range(4):
                        z = z - 0.1 * lower_gradient(drawn(lower_key, rows, s), z, at)
                    answers.append((z, np.sum((at - z) ** 2)))
                last[i] = np.mean([z for z, _ in answers], axis=0)
                own = own - GAMMA * 2 / ETA**2 * (answers[1][1] - answers[0][1]) * v
            ends.append(own)
        expected = np.mean(ends, axis=0)
    np.testing.assert_allclose(solve(problem, solver).iterate, expected, atol=1e-10)


# --- known answers -----------------------------------------------------------------------------------------------


def test_the_y_of_a_run_belongs_to_its_x() -> None:
    """y(x) = x; around x it was asked for at a distance of eta = 0.5."""
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y - 1)), hf.ArgMin(y, cp.sum_squares(y - x)))
    for estimator in ("forward", "central"):
        solver = FedRZO(smoothing=0.5, step_size=1e-9, estimator=estimator, lower=Exact())
        result = problem.solve(solver, rounds=2, x0=np.zeros(2), metrics={"off": lambda x, y: np.abs(y - x).max()}, evaluate_every=1, progress=False)
        assert max(result.metrics["off"]) < 1e-7


def test_large_followers_one_after_another_or_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> hf.Result:
        solver = FedRZO(step_size=0.05, local_steps=3, batch_size=2, directions=2)
        return solve(stackelberg_cournot(80, clients=2), solver, rounds=5, x0=2.0)

    one_by_one = run()
    monkeypatch.setattr(client_oracle, "LARGE", 10**9)
    together = run()
    np.testing.assert_allclose(one_by_one.x, together.x, rtol=1e-10)
    assert abs(one_by_one.x - 2.0) > 0.01


def test_control_variate_removes_the_variance_on_a_linear_function() -> None:
    result = {
        kept: solve(linear(20), FedRZO(step_size=1e-6, control_variate=kept), rounds=400, x0=np.zeros(20))
        for kept in (False, True)
    }
    noise = {kept: np.std(run.history["gradient_norm"][-50:]) for kept, run in result.items()}
    assert noise[True] < 1e-3 * noise[False]


def linear(n: int) -> hf.Problem:
    x = cp.Variable(n, name="x")
    return hf.Problem(hf.Minimize(clients=np.arange(1.0, n + 1) @ x))


# --- estimators --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("estimator", ["forward", "central"])
@pytest.mark.parametrize("kind", ["independent", "orthonormal"])
@pytest.mark.parametrize("control", [False, True])
def test_estimators_are_unbiased_for_the_smoothed_gradient(estimator: str, kind: str, control: bool, x64: None) -> None:
    """f = |x_1| + quadratic has a closed-form f^eta; false alarms below 1e-6, a planted bias of 2% is found (99%)."""
    n, q, eta, draws = 3, 2, 0.5, 200_000
    x, a = np.array([0.1, 0.8, -0.6]), np.array([1.0, -2.0, 0.5])
    t = x[0] / eta  # a coordinate of the unit ball of R^3 has density 3/4 (1 - s^2), so that E sign = (3 t - t^3) / 2
    truth = x + a + np.array([1.5 * t - 0.5 * t**3, 0, 0])

    def f(z: jax.Array) -> jax.Array:
        return jax.numpy.abs(z[0]) + 0.5 * z @ z + a @ z

    given = jax.numpy.asarray([0.7, -0.9, 0.3]) if control else jax.numpy.zeros(0)

    def one(key: jax.Array) -> jax.Array:
        v = Directions.draw(key, q, n, kind)
        values = v.each(lambda direction, length: f(x + length * direction), *shifts_of(q, eta, estimator))
        return estimate(v, slopes(values, eta, estimator), given, kind)[0]

    found = np.asarray(jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(1), draws)))
    error = found.std(axis=0) / np.sqrt(draws)
    threshold = scipy.stats.norm.isf(0.5e-6 / n)
    assert np.all(np.abs(found.mean(axis=0) - truth) < threshold * error)
    power = scipy.stats.norm.cdf(0.02 * np.abs(truth) / error - threshold)
    assert power.max() > 0.99  # a bias of 2% would be found


# --- what a review found -----------------------------------------------------------------------------------------


def test_weights_that_do_not_sum_to_one_leave_the_federated_solution_alone() -> None:
    x, y, d = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.ClientParameter(name="d")
    for lower in (FedAC(), LocalSGD(rounds=30, steps=5), LFD(rounds=30, steps=5)):
        problem = hf.Problem(
            hf.Minimize(clients=cp.sum_squares(y - 1) + cp.sum_squares(x)),
            lower=hf.ArgMin(y, cp.sum_squares(y - x - d)),
            federation=hf.Federation([hf.Client(parameters={d: t}) for t in (1.0, 2.0)], weights=[3.0, 3.0]),
        )
        result = problem.solve(FedRZO(lower=lower, step_size=1e-3), rounds=20, progress=False)
        assert result.own_value == pytest.approx(result.value, rel=0.05), lower


def test_the_server_alone_stays_on_the_upper_set() -> None:
    x, goal = cp.Variable(2, name="x"), np.array([3.0, 1.0])
    skew = np.array([[1, 0.9], [0.9, 1]])
    problem = hf.Problem(hf.Minimize(server=cp.quad_form(x - goal, skew)), constraints=[x[0] <= 1])
    solver = FedRZO(smoothing=0.01, step_size=0.005, directions=4)
    result = problem.solve(solver, rounds=1500, queries="raw", progress=False)
    assert result.value == pytest.approx(0.76, abs=0.03) and result.distances.max() < 0.05


def test_scalars_are_counted_by_the_steps_made() -> None:
    x = cp.Variable(3, name="x")
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum_squares(x)), constraints=[x >= -9], federation=hf.Federation([hf.Client()] * 5)
    )
    solver = FedRZO(communication="scalars", local_steps=Decay(1, -0.5), directions=2)
    result = problem.solve(solver, rounds=30, progress=False)
    made = np.ceil(np.sqrt(np.arange(1, 31)) - 1e-9)
    assert result.communication["scalars_up"] == 2 * 5 * made.sum()
    assert (
        result.communication["scalars_down"] == 5 * 2 * 5 * made[:-1].sum()
    )  # each catches up with all of the round before
    uneven = problem.solve(
        FedRZO(communication="scalars", local_steps=[1, 2, 3, 0, 2]), rounds=10, x0=np.ones(3), progress=False
    )
    assert uneven.communication["scalars_up"] == 80


def test_rounds_without_steps_still_report_the_objective() -> None:
    x = cp.Variable(2, name="x")
    problem = hf.Problem(
        hf.Minimize(clients=5 + cp.sum_squares(x), server=100 + cp.sum_squares(x)),
        federation=hf.Federation([hf.Client()], server=hf.Client()),
    )
    solver = FedRZO(local_steps=lambda r: r % 2, step_size=1e-9)
    history = problem.solve(solver, rounds=4, x0=np.zeros(2), progress=False).history["objective"]
    np.testing.assert_allclose(history, 105, atol=1e-6)


@pytest.mark.parametrize(
    "solver",
    [
        FedMSPP(step_size=1e-3),
        SCAFFOLD(server_step=0.01),
        FedAvg(local_steps=[1, 99]),
        FedRZO(participation=0.5, absent="zero"),
    ],
)
def test_a_tolerance_needs_moves_along_a_gradient(solver: Any) -> None:
    x = cp.Variable(2, name="x")
    two = hf.Federation([hf.Client()] * 2)
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(x - 1)), federation=two)
    with pytest.raises(hf.SettingError, match="stationarity"):
        problem.solve(solver, tolerance=0.1, progress=False)


# --- refusals ----------------------------------------------------------------------------------------------------


def test_lower_solvers_of_the_wrong_scope_say_which_fit() -> None:
    x, y, u = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.Sample(2, name="u")
    level = hf.ArgMin(y, hf.E(0.5 * cp.square(u @ y - 1)) + 0.5 * cp.sum_squares(y - x))
    problem = hf.Problem(hf.Minimize(clients=hf.E(cp.abs(u @ y - 1))), level, federation=federation(u))
    with pytest.raises(hf.IncompatibleSolverError, match="LocalSGD, FedAC, LFD or Exact"):
        solve(problem, FedRZO(lower=ProjectedSGD()))
    with pytest.raises(hf.IncompatibleSolverError, match="ProjectionMethod"):
        solve(stackelberg_cournot(clients=2), FedRZO(lower=LocalSGD()), x0=1.0)
    with pytest.raises(hf.IncompatibleSolverError, match="Use FedRZO"):
        solve(problem, ZOHFL())
    with pytest.raises(hf.errors.SettingError, match="federation scope"):
        solve(problem, FedRZO(control_variate=True))


@pytest.mark.filterwarnings("error::hierfl.errors.LowerLevelWarning")
@pytest.mark.parametrize("asked", ["price", "selection"])
@pytest.mark.parametrize(("solver", "scope"), [(FedRZO, "client"), (FedRZO, "federation"), (ZOHFL, "client")])
def test_prices_and_selected_answers_are_not_stepped_towards(solver: Any, scope: str, asked: str) -> None:
    """Steps leave a price where it is, and end at whichever solution is near. In closed form y = (x/2, x/2) at the price x - 2 E u; or the y nearest to (1, -1/2) of sum x + E u."""
    x, y, u = cp.Variable(name="x"), cp.Variable(2, name="y"), hf.Sample(name="u")
    row, means = cp.sum(y) == x, np.array([rows[:, 0].mean() for rows in DATA])
    if asked == "price":
        term, lower = cp.square(hf.ShadowPrice(row) - 1), hf.ArgMin(y, hf.E(cp.sum_squares(y - u)), [row], scope=scope)
        best = np.mean(1 + 2 * means)
    else:
        term, below = cp.sum_squares(y - np.array([1.0, -0.5])), hf.E(cp.square(cp.sum(y) - x - u))
        lower, best = hf.ArgMin(y, below, [cp.abs(y) <= 9], scope=scope, selection="optimistic"), np.mean(0.5 - means)
    clients = hf.Federation([hf.Client({u: rows[:, 0]}) for rows in DATA])
    problem = hf.Problem(hf.Minimize(clients=term), lower, [cp.abs(x) <= 3], federation=clients)
    settings = {"step_size": 0.1, "batch_size": None}
    result = problem.solve(solver(**settings), rounds=100, seed=0, progress=False)
    assert float(result.x) == pytest.approx(best, abs=0.1)
    steps = ProjectedSGD() if scope == "client" else LocalSGD()
    with pytest.raises(hf.IncompatibleSolverError, match=f"does not tell .*{'Price' if asked == 'price' else 'optimistic'}.*lower=Exact"):
        problem.solve(solver(lower=steps, **settings), progress=False)

"""Runs on a clock of drawn delays, in rounds and without: FedBuff against its transcription, and stragglers that set no pace."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import minimize

import hierfl as hf
from hierfl.runtime import Delayed
from hierfl.solvers import SCAFFOLD, ZOHFL, FedAvg, FedRZO, ProjectedSGD
from tests.runtime.levels_at_sites import common, least_squares
from tests.runtime.on_dask.test_dask_runtime import federation

START, SETTINGS = np.array([0.5, -0.5]), {"seed": 5, "evaluate_every": 1, "progress": False}
FULL: dict[str, Any] = {"step_size": 0.05, "batch_size": None, "local_steps": 1}


def rows(clients: int, count: int) -> list[tuple[np.ndarray, np.ndarray]]:
    rng = np.random.default_rng(2)
    return [(rng.standard_normal((count + i, 2)), rng.standard_normal(count + i)) for i in range(clients)]


def personal(clients: int) -> hf.Problem:
    """A lower level at each client."""
    x, y, u = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.Sample(2, name="u")
    lower = hf.ArgMin(y, hf.E(0.5 * cp.sum_squares(y - u)) + cp.sum_squares(y - x), scope="client")
    federation = hf.Federation([hf.Client({u: a}) for a, _ in rows(clients, 5)])
    return hf.Problem(
        hf.Minimize(clients=hf.E(cp.sum_squares(y - u)) + 0.5 * cp.sum_squares(x)), lower=lower, federation=federation
    )


def fedbuff(start: np.ndarray, data: Any, delays: list[float], buffer: int, ceiling: float) -> np.ndarray:
    """Twelve steps of FedBuff with one local step on all rows, as its paper writes it, with the weights of the objective."""
    total, x, version = sum(len(b) for _, b in data), start, 0
    path, moves = [start], list[tuple[np.ndarray, int]]()
    working = [(delay, client, 0, start) for client, delay in enumerate(delays)]
    while version < 12:
        working.sort(key=lambda job: job[0])
        time, client, began, point = working.pop(0)
        a, b = data[client]
        gradient = len(data) * len(b) / total * 2 * a.T @ (a @ point - b) / len(b)
        moves.append((np.minimum(point - 0.05 * gradient, ceiling) - point, began))
        if len(moves) == buffer:
            x = x + sum((1 + version - began) ** -0.5 * move for move, began in moves) / buffer
            x, moves, version = np.minimum(x, ceiling), [], version + 1
            path.append(x)
        working.append((time + delays[client], client, version, x))
    return np.array(path)


@pytest.mark.parametrize(("buffer", "bounded"), [(1, False), (2, True)])
def test_buffered_steps_are_those_of_fedbuff(buffer: int, bounded: bool) -> None:
    data, delays, start = rows(3, 4), [1.0, 2.3, 7.1], START - bounded
    runtime = Delayed(delays, spread=0.0, asynchronous=True, buffer=buffer, staleness=0.5)
    found = least_squares(data, 0.1 if bounded else None, weights="samples").solve(FedAvg(**FULL), runtime=runtime, rounds=12, x0=start, **SETTINGS)
    expected = fedbuff(start, data, delays, buffer, 0.1 if bounded else np.inf)
    np.testing.assert_allclose(found.trajectory["x"], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("absent", ["unbiased", "renormalise"])
def test_clients_weigh_what_they_weigh_in_rounds(absent: str) -> None:
    """The optimum of the weighted mean, 0.8 * 0 + 0.1 * 1 + 0.1 * 4, and not 5/3, where clients count alike."""
    x, b = cp.Variable(name="x"), hf.ClientParameter(name="b")
    held = hf.Federation([hf.Client(parameters={b: value}) for value in (0.0, 1.0, 4.0)], weights=[0.8, 0.1, 0.1])
    problem = hf.Problem(hf.Minimize(clients=cp.square(x - b)), federation=held)
    runtime = Delayed([1.0] * 3, spread=0.0, asynchronous=True, buffer=3, staleness=0.0)
    result = problem.solve(FedAvg(0.1, 1, absent=absent), runtime=runtime, rounds=100, progress=False)
    assert result.x == pytest.approx(0.5, abs=1e-6)


def test_in_rounds_delays_cost_time_only() -> None:
    problem, solver = least_squares(rows(3, 4), weights="samples"), FedAvg(step_size=0.05, local_steps=3, batch_size=2)
    expected = problem.solve(solver, rounds=15, x0=START, **SETTINGS)
    found = problem.solve(solver, runtime=Delayed([1.0, 5.0, 2.0], spread=0.0), rounds=15, x0=START, **SETTINGS)
    np.testing.assert_allclose(found.trajectory["x"], expected.trajectory["x"], rtol=0, atol=1e-10)
    np.testing.assert_allclose(found.history["clock"], 5.0 * np.arange(1, 16))


def one_level(x: np.ndarray) -> float:
    """The value of ``least_squares`` with ten clients."""
    data = rows(10, 6)
    return float(sum(np.sum((a @ x - b) ** 2) for a, b in data) / sum(len(b) for _, b in data))


def two_levels(x: np.ndarray) -> float:
    """The value of ``personal`` with ten clients, whose y is (mean of u + 2 x) / 3."""
    values = [np.mean(np.sum(((a.mean(axis=0) + 2 * x) / 3 - a) ** 2, axis=1)) for a, _ in rows(10, 5)]
    return float(np.mean(values) + 0.5 * x @ x)


STRAGGLING: dict[str, tuple[Any, Any, Any]] = {
    "FedAvg": (least_squares, one_level, FedAvg(step_size=0.05, local_steps=2)),
    "FedRZO": (least_squares, one_level, FedRZO(smoothing=0.01, step_size=0.02, local_steps=2, directions=2)),
    "ZO-HFL": (personal, two_levels, ZOHFL(smoothing=0.01, step_size=0.03, directions=2, lower=ProjectedSGD(steps=5))),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(STRAGGLING))
def test_one_straggler_of_ten_sets_no_pace(name: str) -> None:
    make, value, solver = STRAGGLING[name]
    problem, delays, start = make(rows(10, 6), weights="samples") if make is least_squares else make(10), [1.0] * 9 + [10.0], 2 * START
    best = minimize(value, start).fun

    def seconds(runtime: Delayed, rounds: int) -> float:
        """Until nine tenths of what can be gained are."""
        found = problem.solve(solver, runtime=runtime, rounds=rounds, x0=start, **SETTINGS)
        values = np.array([value(x) for x in found.trajectory["x"][1:]])
        return float(found.history["clock"][np.flatnonzero(values <= best + 0.1 * (value(start) - best))[0]])

    in_rounds, buffered = seconds(Delayed(delays), 60), seconds(Delayed(delays, asynchronous=True, buffer=3), 200)
    assert in_rounds >= 3 * buffered


def test_the_same_seed_is_the_same_run_and_the_clock_and_staleness_are_recorded() -> None:
    problem, runtime = least_squares(rows(3, 4), weights="samples"), Delayed([1.0, 1.0, 4.0], asynchronous=True)
    one, other = (
        problem.solve(FedAvg(step_size=0.05), runtime=runtime, rounds=20, x0=START, **SETTINGS) for _ in range(2)
    )
    np.testing.assert_array_equal(one.trajectory["x"], other.trajectory["x"])
    assert (np.diff(one.history["clock"]) >= 0).all() and one.history["staleness"].max() >= 3
    answered = {site: told["rounds_answered"] for site, told in one.settings["sites"].items()}
    assert sum(answered.values()) == 20 and answered["2"] < answered["0"]


def test_what_cannot_be_asynchronous_is_refused() -> None:
    problem = least_squares(rows(3, 4), weights="samples")
    runtime = Delayed([1.0] * 3, asynchronous=True)
    for solver, refused in (
        (SCAFFOLD(), problem),
        (FedAvg(participation=0.5), problem),
        (FedRZO(lower=None), common(federation)),
    ):
        given = Delayed([1.0] * refused.federation.num_clients, asynchronous=True)
        with pytest.raises(hf.IncompatibleSolverError, match="asynchronous=True: "):
            refused.solve(solver, runtime=given, rounds=2, **SETTINGS)
    with pytest.raises(hf.SettingError, match="buffer=4: there are 3 sites"):
        problem.solve(FedAvg(), runtime=Delayed([1.0] * 3, asynchronous=True, buffer=4), rounds=2, **SETTINGS)
    with pytest.raises(hf.SettingError, match="2 of them for 3 clients"):
        problem.solve(FedAvg(), runtime=Delayed([1.0] * 2), rounds=2, **SETTINGS)
    assert runtime.buffer == 1


def test_without_a_federation_there_is_one_client() -> None:
    x = cp.Variable(2, name="x")
    problem = hf.Problem(hf.Minimize(cp.sum_squares(x - 1)))
    here, delayed = (problem.solve(FedAvg(0.1), rounds=3, runtime=runtime, **SETTINGS) for runtime in (None, Delayed([2.0], spread=0)))
    np.testing.assert_array_equal(delayed.x, here.x)
    assert delayed.history["clock"].tolist() == [2.0, 4.0, 6.0]


@pytest.mark.parametrize("wrong", [{"delays": [1.0, np.inf]}, {"delays": [0.0]}, {"delays": 1.0}, {"delays": [1.0], "spread": np.inf}])
def test_a_clock_that_would_stand_still_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(hf.SettingError, match="positive mean seconds"):
        Delayed(**wrong)


@pytest.mark.parametrize(
    "given", [{"adversaries": 0.4}, {"buffer": 2}, {"staleness": 3.0}, {"asynchronous": True, "buffer": 1.5}, {"asynchronous": True, "buffer": np.nan}]
)
def test_settings_that_would_be_nothing_are_refused(given: dict[str, Any]) -> None:
    with pytest.raises(hf.SettingError, match=next(reversed(given))):
        Delayed([1.0], **given)

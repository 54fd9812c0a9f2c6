"""Runs with noise, their sites simulated: what is told of them, what leaves, and what is refused."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.runtime import Delayed, GaussianNoise, site_runtime
from hierfl.runtime.privacy.gaussian_noise import NoiseOrder
from hierfl.runtime.privacy.ledger import PrivacyLedger
from hierfl.runtime.sites.exchange import Exchange
from hierfl.runtime.sites.owner.site_rules import SiteRules
from hierfl.runtime.sites.parcels import Answered
from hierfl.runtime.sites.site import Site
from hierfl.solvers import SCAFFOLD, ZOHFL, FedAvg, FedRZO
from tests.runtime.levels_at_sites import common, least_squares
from tests.runtime.on_dask.test_dask_runtime import federation
from tests.runtime.privacy.test_limits_of_sites import a_start
from tests.runtime.privacy.test_masked_numbers import epsilon_of

CLIENTS = 6
RNG = np.random.default_rng(0)
ROWS = RNG.standard_normal((CLIENTS, 8, 3))
VALUES = ROWS @ np.array([1.0, -2.0, 0.5]) + 0.1 * RNG.standard_normal((CLIENTS, 8))
SETTINGS: dict[str, Any] = {"rounds": 6, "seed": 4, "x0": np.zeros(3), "progress": False}


@pytest.fixture(scope="module")
def problem() -> hf.Problem:
    return least_squares(list(zip(ROWS, VALUES)))


def noisy(clip: float = 0.5, multiplier: float = 2.0, **given: Any) -> Delayed:
    return Delayed([1.0] * CLIENTS, noise=GaussianNoise(clip, multiplier), **given)


def test_what_leaves_is_the_clipped_move_and_noise(problem: hf.Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a transcription of FedAvg, at a noise so small that the clipped moves show, and at one that hides them."""
    answers: list[Answered] = []
    received = Exchange.note_received

    def heard(exchange: Exchange, site: str, step: str, message: Any, size: int) -> None:
        answers.append(message) if isinstance(message, Answered) else None
        received(exchange, site, step, message, size)

    monkeypatch.setattr(Exchange, "note_received", heard)
    solver = FedAvg(step_size=0.1, local_steps=2, batch_size=None)
    moves = []
    for rows, values in zip(ROWS, VALUES):
        x = np.zeros(3)
        for _ in range(2):
            x = x - 0.1 * 2 * rows.T @ (rows @ x - values) / len(rows)
        moves.append(x * min(1.0, 0.5 / np.linalg.norm(x)))
    assert min(map(np.linalg.norm, moves)) == pytest.approx(0.5)  # some are clipped

    def sent(multiplier: float) -> np.ndarray:
        answers.clear()
        problem.solve(solver, runtime=noisy(0.5, multiplier), **SETTINGS | {"rounds": 1})
        assert len(answers) == CLIENTS
        assert all(answer.monitor["value"] == 0.0 and answer.seconds == 0.0 for answer in answers)
        return np.concatenate([answer.payload for answer in answers])

    np.testing.assert_allclose(sent(1e-3), moves, atol=0.5e-3 * 7)
    first, second = sent(10.0), sent(10.0)
    assert np.all(first != second)  # the same seed
    assert np.std(np.concatenate([first - moves, second - moves])) == pytest.approx(5.0, rel=0.6)


def test_what_the_result_tells(problem: hf.Problem) -> None:
    result = problem.solve(FedAvg(0.1), runtime=noisy(), **SETTINGS)
    told = result.settings["privacy"]
    assert told["epsilon"] == epsilon_of(2.0, 6, 1e-5, numbers=3) and told["releases"] == told["released"] == 6
    assert (told["clip"], told["multiplier"], told["delta"]) == (0.5, 2.0, 1e-5)
    assert "sensitivity 2 clip" in told["relation"] and told["accountant"].endswith("privacy loss distributions")
    assert told["adversary"] == "whoever sees all messages of the client" and told["epsilon_with_earlier_runs"] is None
    assert f"differential privacy: ({told['epsilon']:.3g}, 1e-05), local" in str(result)
    assert np.isnan(result.history["objective"]).all() and np.isnan(result.history["lower_residual"]).all()
    assert result.own_value is None and "slope" not in result.settings
    assert np.isfinite(result.history["gradient_norm"]).all() and np.all(result.history["answered"] == CLIENTS)


def test_sites_with_ledgers_say_what_all_runs_come_to(problem: hf.Problem, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with PrivacyLedger(tmp_path / "ledger") as ledger:
        monkeypatch.setattr(site_runtime, "Site", partial(Site, ledger=ledger))
        told = [problem.solve(FedAvg(0.1), runtime=noisy(), **SETTINGS).settings["privacy"] for _ in range(2)]
    assert [run["epsilon_with_earlier_runs"] for run in told] == pytest.approx([epsilon_of(2.0, 6, 1e-5), epsilon_of(2.0, 12, 1e-5)], rel=1e-9)
    assert told[0]["epsilon"] == told[1]["epsilon"] and [run.released for run in ledger.content.runs] == [6, 6]


@pytest.mark.parametrize(
    "solver", [FedRZO(local_steps=2), FedRZO(communication="scalars"), ZOHFL(communication="scalars")]
)
def test_zeroth_order_messages(problem: hf.Problem, solver: Any) -> None:
    plain = problem.solve(solver, runtime=Delayed([1.0] * CLIENTS), **SETTINGS)
    near = problem.solve(solver, runtime=noisy(50.0, 1e-3), **SETTINGS)
    far = problem.solve(solver, runtime=noisy(50.0, 2.0), **SETTINGS)
    a_little, much = (np.abs(run.trajectory["x"] - plain.trajectory["x"]).max() for run in (near, far))
    assert 0 < 10 * a_little < much  # noise of two thousand times the deviation: missed once in many thousand draws


def test_epsilon_counts_the_rounds_that_the_seed_asks_of_a_client(problem: hf.Problem) -> None:
    solver, settings = FedAvg(0.1, participation=0.34), SETTINGS | {"rounds": 20}
    told = problem.solve(solver, runtime=noisy(), **settings).settings["privacy"]
    assert told["releases"] == told["released"] < 20
    assert told["epsilon"] == epsilon_of(2.0, told["releases"], 1e-5, numbers=3)


def test_a_run_that_ends_within_a_block_asks_for_nothing_twice(problem: hf.Problem) -> None:
    result = problem.solve(FedAvg(0.1), runtime=noisy(), communication_limit=70, **SETTINGS)
    assert result.settings["rounds_done"] == len(result.history["answered"]) == 1  # 36 scalars in a round
    assert result.settings["privacy"]["released"] == 2 <= result.settings["privacy"]["releases"]  # nobody is asked after the round that is too much
    assert result.status == "communication limit reached"


def test_an_owner_asks_for_noise(problem: hf.Problem) -> None:
    rules, start, declaration = SiteRules(min_noise=1.5), a_start(), problem.declaration
    assert rules.against(start._replace(noise=NoiseOrder(1.0, 1.5, 1e-5, 9, "run")), declaration, {}) is None
    assert "the run has none" in str(rules.against(start, declaration, {}))
    assert "noise of multiplier 1 " in f"{rules.against(start._replace(noise=NoiseOrder(1.0, 1.0, 1e-5, 9, 'run')), declaration, {})} "
    with pytest.raises(hf.SettingError, match="min_noise=0"):
        SiteRules(min_noise=0)


def test_what_has_no_epsilon_is_refused(problem: hf.Problem, tmp_path: Any) -> None:
    for given, said in (({"clip": 0.0}, "clip"), ({"multiplier": 1e-4}, "at least 0.001"), ({"delta": 1.0}, "delta")):
        with pytest.raises(hf.SettingError, match=said):
            GaussianNoise(**{"clip": 1.0, "multiplier": 1.0, **given})
    with pytest.raises(hf.SettingError, match="choose one of the two"):
        noisy(asynchronous=True)
    with pytest.raises(hf.IncompatibleSolverError, match="SCAFFOLD would carry the noise"):
        problem.solve(SCAFFOLD(0.1), runtime=noisy(), **SETTINGS)
    with pytest.raises(hf.IncompatibleSolverError, match="common lower level would leave without noise"):
        lower = common(federation)
        lower.solve(FedRZO(), runtime=Delayed([1.0] * 4, noise=GaussianNoise(1.0, 1.0)), rounds=1, progress=False)
    for solver, given, said in (
        (FedAvg(0.1), {"rounds": None}, "give rounds"),
        (FedAvg(0.1), {"checkpoint": tmp_path / "run"}, "leave checkpoint out"),
        (FedAvg(0.1), {"tolerance": 1.0}, "leave it out"),
        (FedAvg(0.1), {"seeds": 2, "seed": 0}, "one by one"),
        (FedAvg("auto"), {}, "trial runs"),
        (FedRZO(schedule="theory"), {}, "practical"),
    ):
        with pytest.raises(hf.SettingError, match=said):
            problem.solve(solver, runtime=noisy(), **SETTINGS | given)


def test_conditions_on_answers_ask_for_one_run() -> None:
    """Without a penalty they take several runs, of which each would tell an epsilon of its own; so do several seeds."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    lower = hf.ArgMin(y, cp.square(y - x), scope="client")
    capped = hf.Problem(hf.Minimize(clients=cp.square(x)), lower, [y >= 1], hf.Federation([hf.Client()] * CLIENTS))
    for given, said in (({}, "name the penalty"), ({"penalty": 1.0, "seeds": 2}, "one by one")):
        with pytest.raises(hf.SettingError, match=said):
            capped.solve(FedRZO(), runtime=noisy(), rounds=1, progress=False, **given)


def test_answers_of_a_lower_level_are_refused_where_differences_are_not() -> None:
    x, y, u = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.Sample(2, name="u")
    clients = [hf.Client({u: rows[:, :2]}) for rows in ROWS]
    answered = hf.ArgMin(y, hf.E(0.5 * cp.sum_squares(y - u)) + cp.sum_squares(y - x), scope="client")
    public = hf.Problem(hf.Minimize(clients=cp.norm1(y)), lower=answered, federation=hf.Federation(clients))
    with pytest.raises(hf.IncompatibleSolverError, match='communication="scalars"'):
        public.solve(ZOHFL(), runtime=noisy(), rounds=1, progress=False)
    public.solve(ZOHFL(communication="scalars"), runtime=noisy(), rounds=1, progress=False)

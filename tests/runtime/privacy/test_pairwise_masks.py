"""Runs under masks, their sites simulated: what the server learns, what becomes of sites that are lost, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hierfl as hf
from hierfl.runtime import Delayed, GaussianNoise, PairwiseMasks
from hierfl.runtime.privacy.pairwise_masks import MaskOrder, opened, whole
from hierfl.runtime.sites.exchange import Exchange
from hierfl.runtime.sites.parcels import Answered, Unmasked
from hierfl.runtime.sites.site import SiteRules
from hierfl.solvers import SCAFFOLD, ZOHFL, FedAvg, FedProx, FedRZO, Newton
from tests.runtime.levels_at_sites import common, least_squares
from tests.runtime.lost_answers import losing
from tests.runtime.on_dask.test_dask_runtime import federation
from tests.runtime.privacy.test_limits_of_sites import a_start

CLIENTS = 6
RNG = np.random.default_rng(0)
ROWS = [RNG.standard_normal((4 + i, 3)) for i in range(CLIENTS)]
VALUES = [rows @ np.array([1.0, -2.0, 0.5]) + 0.1 * RNG.standard_normal(len(rows)) for rows in ROWS]
SETTINGS: dict[str, Any] = {"rounds": 6, "seed": 4, "x0": np.zeros(3), "progress": False}
LOCAL = {"local_steps": 2, "batch_size": 2}


@pytest.fixture(scope="module")
def problem() -> hf.Problem:
    return least_squares(list(zip(ROWS, VALUES)), weights="samples")


def masked(least: int = 3, **given: Any) -> Delayed:
    return Delayed([1.0] * CLIENTS, masks=PairwiseMasks(least), **given)


@pytest.fixture
def received(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Any]]:
    """Everything that comes from sites."""
    heard: list[tuple[str, Any]] = []
    note = Exchange.note_received

    def noted(exchange: Exchange, site: str, step: str, message: Any, size: int) -> None:
        heard.append((site, message))
        note(exchange, site, step, message, size)

    monkeypatch.setattr(Exchange, "note_received", noted)
    return heard


@pytest.mark.parametrize(
    "solver",
    [
        FedAvg(0.05, **LOCAL),
        FedProx(0.05, **LOCAL, participation=0.7, absent="renormalise"),
        SCAFFOLD(0.05, **LOCAL, participation=0.5),
        FedRZO(step_size=0.01, **LOCAL),
        Newton(),
    ],
    ids=lambda solver: type(solver).__name__,
)
def test_the_run_is_that_without_masks(problem: hf.Problem, solver: Any) -> None:
    plain, found = (problem.solve(solver, runtime=given, **SETTINGS) for given in (Delayed([1.0] * CLIENTS), masked()))
    assert np.abs(np.diff(plain.trajectory["x"], axis=0)).max() > 1e-3
    np.testing.assert_allclose(found.trajectory["x"], plain.trajectory["x"], rtol=0, atol=1e-10)
    np.testing.assert_allclose(found.history["objective"], plain.history["objective"], rtol=0, atol=1e-10)
    told = found.settings["masks"]
    assert told["resolution"] == 2.0**-40 and told["sums"] == 6 and 0 < told["rounding_at_most"] < 1e-11


def test_the_server_sees_the_sum_and_no_message(problem: hf.Problem, received: list[Any]) -> None:
    solver, settings = FedAvg(0.1, local_steps=1, batch_size=None), SETTINGS | {"rounds": 1}
    problem.solve(solver, runtime=Delayed([1.0] * CLIENTS), **settings)
    plain = {site: answer for site, answer in received if isinstance(answer, Answered)}
    received.clear()
    result = problem.solve(solver, runtime=masked(), **settings)
    hidden = {site: answer for site, answer in received if isinstance(answer, Answered)}
    own = [answer.key for _, answer in received if isinstance(answer, Unmasked)]
    assert len(hidden) == len(own) == CLIENTS and all(answer.monitor == {} for answer in hidden.values())
    shares = np.array([len(rows) for rows in ROWS]) / sum(map(len, ROWS))
    parts = {}
    for share, (site, answer) in zip(shares, plain.items()):
        parts[site] = share * np.concatenate([answer.payload[0], answer.monitor["value"]])
        for mine in (parts[site], answer.payload[0]):
            assert not set(whole(mine, 40, CLIENTS).tolist()) & set(hidden[site].payload.tolist())
        assert np.all(np.abs(opened([hidden[site].payload], [own[int(site)]], 0, 40)[:-2] - parts[site]) > 1.0)
    total = opened([answer.payload for answer in hidden.values()], own, 0, 40)[:-2]
    np.testing.assert_allclose(total, sum(parts.values()), rtol=0, atol=CLIENTS * 2.0**-41 + 1e-15)
    move = -0.1 * sum(2 * s * r.T @ -v / len(r) for s, r, v in zip(shares, ROWS, VALUES))
    np.testing.assert_allclose(result.iterate, move, atol=1e-11)


def test_a_site_that_is_lost_before_its_message_is_left_out(
    problem: hf.Problem, received: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    late = losing(monkeypatch, lambda site, asked: asked["message"] == "Asked" and site == "2" and asked["round"] in (1, 4))
    found = problem.solve(SCAFFOLD(0.05, **LOCAL), runtime=masked(), **SETTINGS)
    monkeypatch.undo()

    def there(r: int) -> list[int]:
        return [client for client in range(CLIENTS) if client != 2 or r not in (1, 4)]

    expected = problem.solve(SCAFFOLD(0.05, **LOCAL, participation=there), **SETTINGS)
    np.testing.assert_allclose(found.trajectory["x"], expected.trajectory["x"], rtol=0, atol=1e-10)
    assert found.history["answered"].tolist() == [6, 5, 6, 6, 5, 6] and found.settings["masks"]["sums"] == 6
    # its late message, with all that others sent for that attempt: masks of their own were told for other attempts alone
    sums = [answer.payload for _, answer in received if isinstance(answer, Answered)]
    keys = [answer.key for _, answer in received if isinstance(answer, Unmasked)]
    given_up, made_again = sums[6:11], sums[11:16]
    told = keys[6:11]  # five sites in round 1, whose first attempt nobody opened
    assert np.abs(opened(made_again, told, 2, 40)).max() < 1e2
    assert np.abs(opened([*given_up, late[0].arrays["payload"]], told, 1, 40)).max() > 1e3
    assert not set(np.concatenate(given_up).tolist()) & set(np.concatenate(made_again).tolist())


@pytest.mark.parametrize("gone", [("2",), ("2", "5")])
def test_a_site_that_is_lost_before_its_mask_costs_the_round_nothing(
    problem: hf.Problem, monkeypatch: pytest.MonkeyPatch, gone: tuple[str, ...]
) -> None:
    """Its message is in the sum, whose mask the others open by their shares of its key: four of six are enough."""
    expected = problem.solve(FedAvg(0.05, **LOCAL), **SETTINGS)
    losing(monkeypatch, lambda site, asked: asked["message"] == "Unmask" and site in gone and asked["attempt"] == 3)
    found = problem.solve(FedAvg(0.05, **LOCAL), runtime=masked(), **SETTINGS)
    np.testing.assert_allclose(found.trajectory["x"], expected.trajectory["x"], rtol=0, atol=1e-10)
    assert found.history["answered"].tolist() == [6] * 6 and found.settings["masks"]["sums"] == 6
    assert [found.settings["sites"][site]["faults_in_all"] for site in gone] == [1] * len(gone)


def test_a_sum_stays_closed_where_too_few_have_shares(
    problem: hf.Problem, received: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    losing(monkeypatch, lambda site, asked: asked["message"] == "Unmask" and site in ("0", "2", "5") and asked["attempt"] == 3)
    found = problem.solve(FedAvg(0.05), runtime=masked(), **SETTINGS)
    assert found.status.startswith("paused: site '0' was lost between its message and its mask, and fewer than 4 of the sum's 6")
    assert found.settings["rounds_done"] == found.settings["masks"]["sums"] == 3
    # nothing that was told opens what was sent for the attempt, with or without the messages of those who have gone
    sums = [answer.payload for _, answer in received if isinstance(answer, Answered)][18:24]
    keys = [answer.key for _, answer in received if isinstance(answer, Unmasked)][18:]
    assert len(keys) == 3
    for some in (sums, [sums[k] for k in (1, 3, 4)], *([part] for part in sums)):
        assert np.abs(opened(some, keys, 3, 40)).min() > 1.0


def test_too_few_sites(problem: hf.Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        hf.SiteError, match=r"PairwiseMasks\(least=7\) sums over as many sites at least, and 6 could be asked"
    ):
        problem.solve(FedAvg(0.05), runtime=masked(7), **SETTINGS)
    losing(monkeypatch, lambda site, asked: asked["message"] == "Asked" and asked["round"] == 2 and site != "4")
    found = problem.solve(FedAvg(0.05), runtime=masked(2), **SETTINGS)
    assert found.status.startswith("paused: ") and found.settings["rounds_done"] == 2


def test_noise_under_masks_is_counted_once_where_a_round_is_made_again(
    problem: hf.Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    losing(monkeypatch, lambda site, asked: asked["message"] == "Asked" and site == "2" and asked["round"] == 1)
    runtime = masked(noise=GaussianNoise(5.0, 1e-3))
    found = problem.solve(FedAvg(0.05, **LOCAL), runtime=runtime, **SETTINGS)
    assert found.settings["privacy"]["released"] == 6 == found.settings["rounds_done"]
    assert np.isnan(found.history["objective"]).all() and found.settings["masks"]["sums"] == 6
    monkeypatch.undo()
    plain = problem.solve(FedAvg(0.05, **LOCAL), **SETTINGS)
    assert 1e-6 < np.abs(found.trajectory["x"][1] - plain.trajectory["x"][1]).max() < 0.05


def test_an_owner_asks_for_masks(problem: hf.Problem) -> None:
    rules, start, declaration = SiteRules(min_sum=4), a_start(), problem.declaration
    assert rules.against(start._replace(masks=MaskOrder(4, 40, "run")), declaration, {}) is None
    assert "the run has none" in str(rules.against(start, declaration, {}))
    assert "those of least=3" in str(rules.against(start._replace(masks=MaskOrder(3, 40, "run")), declaration, {}))
    with pytest.raises(hf.SettingError, match="min_sum=1"):
        SiteRules(min_sum=1)


def test_what_needs_messages_one_by_one_is_refused(problem: hf.Problem) -> None:
    for given, said in (({"least": 1}, "hides nothing"), ({"bits": 0}, "from 1 on"), ({"bits": 60}, "at most 56")):
        with pytest.raises(hf.SettingError, match=said):
            PairwiseMasks(**given)
    for given in ({"asynchronous": True}, {"aggregation": "median"}):
        with pytest.raises(hf.SettingError, match="one by one"):
            masked(**given)
    for solver, said in (
        (ZOHFL(communication="scalars"), "each client's message"),
        (FedRZO(communication="scalars"), "communication='full'"),
    ):
        with pytest.raises(hf.IncompatibleSolverError, match=said):
            problem.solve(solver, runtime=masked(), **SETTINGS)
    with pytest.raises(hf.IncompatibleSolverError, match="with a lower level"):
        common(federation).solve(FedRZO(), runtime=Delayed([1.0] * 4, masks=PairwiseMasks()), rounds=1, progress=False)

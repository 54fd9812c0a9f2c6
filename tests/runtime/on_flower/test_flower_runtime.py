"""Sites behind Flower's messages, without its processes: nothing but named arrays crosses, under noise and masks nothing plain,
orders that a site does not believe are refused, and nobody waits where there are no rounds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hierfl as hf
from hierfl.runtime import GaussianNoise, PairwiseMasks
from hierfl.runtime.sites.letters import Letter, letter_of, reply_of
from hierfl.runtime.sites.parcels import Refusal
from hierfl.runtime.sites.site import SiteRules
from hierfl.runtime.sites.site_reports import Crossing
from hierfl.solvers import FedAvg
from tests.runtime.levels_at_sites import least_squares, personal
from tests.runtime.on_dask.test_dask_runtime import (
    PERSONAL,
    SIZES,
    START,
    clients_alone,
    federation,
    held_words,
    require_named,
    require_unsaid,
    words,
)
from tests.runtime.on_flower.loopback import LoopbackGrid, desks
from tests.runtime.sites.test_letters import Correspondence


def test_nothing_but_named_arrays_and_words_crosses() -> None:
    problem, crossed = personal(federation), list[Crossing]()
    grid = LoopbackGrid(desks(problem))
    runtime = hf.runtime.Flower(grid, minimum=4, watcher=crossed.append, shared_seeds=True)
    result = problem.solve(PERSONAL, runtime=runtime, rounds=3, x0=START, progress=False)
    require_named(crossed, result)
    records = [(type(record).__name__, name) for _, message in grid.crossed for name, record in message.content.items()]
    assert set(records) == {("ArrayRecord", "arrays"), ("ConfigRecord", "words")}
    assert {a.stype for _, message in grid.crossed for a in message.content["arrays"].values()} == {"numpy.ndarray"}
    raw = b"".join(serialised for serialised, _ in grid.crossed)
    require_unsaid(held_words(problem), raw)
    assert abs(len(raw) - sum(c.bytes for c in crossed)) < 700 * len(grid.crossed)  # but for how either is framed


def test_without_rounds_nobody_waits_for_a_slow_node() -> None:
    """Two quick sites and one that takes three seconds: they are heard as often as they answer, and the run ends beside the optimum."""
    truth = np.array([1.0, -2.0])
    problem = least_squares([(rows, rows @ truth) for rows in np.random.default_rng(2).standard_normal((3, 40, 2))])
    grid = LoopbackGrid(desks(problem))
    grid.delays = {102: 3.0}
    solver = FedAvg(step_size=0.05, local_steps=2, batch_size=None)
    given = hf.runtime.Flower(grid, asynchronous=True, buffer=1, staleness=0.5)
    found = problem.solve(solver, runtime=given, rounds=12, seed=0, progress=False)
    heard = {site: told["rounds_answered"] for site, told in found.settings["sites"].items()}
    assert sum(heard.values()) >= 12 and heard["site 2"] < min(heard["site 0"], heard["site 1"])
    assert found.history["staleness"].shape == (12,) and np.isfinite(found.value)
    assert np.linalg.norm(found.iterate - truth) < 0.2 * np.linalg.norm(truth)
    with pytest.raises(hf.SettingError, match="asynchronous=True"):
        problem.solve(solver, runtime=given, rounds=2, checkpoint="nowhere", progress=False)


SOLVER = FedAvg(step_size=0.1, local_steps=1, batch_size=None)
SETTINGS: dict[str, Any] = {"rounds": 4, "x0": START, "seed": 5, "progress": False}
HIDDEN = {
    "masks": {"masks": PairwiseMasks()},
    "noise": {"noise": GaussianNoise(1.0, 3.0)},
    "shared noise": {"noise": GaussianNoise(1.0, 3.0, shared=True), "masks": PairwiseMasks()},
}


@pytest.mark.parametrize("kind", HIDDEN)
def test_nothing_plain_crosses(kind: str) -> None:
    problem = clients_alone()
    grid = LoopbackGrid(
        desks(problem, rules=SiteRules(shared_seeds=True, **({"min_sum": 3} if "masks" in HIDDEN[kind] else {"min_noise": 3.0})))
    )
    found = problem.solve(SOLVER, runtime=hf.runtime.Flower(grid, minimum=4, **HIDDEN[kind], shared_seeds=True), **SETTINGS)
    shares, secret = np.array(SIZES) / sum(SIZES), []
    for share, client in zip(shares, problem.federation.clients):
        rows = next(iter(client.samples.values()))
        move = -0.1 * 2 * rows.T @ (rows @ START - 1) / len(rows)
        secret += words(move) + words(share * move) + words(np.mean((rows @ START - 1) ** 2))
    require_unsaid(secret, b"".join(serialised for serialised, _ in grid.crossed))
    if "noise" in HIDDEN[kind]:
        assert found.settings["privacy"]["released"] == found.settings["privacy"]["releases"] == 4
        assert np.isnan(found.history["objective"]).all()
    else:
        plain = problem.solve(SOLVER, **SETTINGS)
        np.testing.assert_allclose(found.trajectory["x"], plain.trajectory["x"], rtol=0, atol=1e-10)
        np.testing.assert_allclose(found.history["objective"], plain.history["objective"], rtol=0, atol=1e-10)
    assert all(site["faults"] == [] for site in found.settings["sites"].values())


def test_orders_that_are_none_are_refused() -> None:
    desk, sound = Correspondence(SiteRules(min_noise=1.0)), GaussianNoise(1.0, 2.0)
    order = sound.order(desk.problem.compile(), SOLVER.bind(desk.problem.compile(), 10), 10, 5)
    masks = PairwiseMasks(least=2).order(desk.problem.compile(), SOLVER.bind(desk.problem.compile(), 10))
    for noise, masking, said in (
        (order._replace(multiplier=float("nan")), None, "multiplier=nan"),
        (order._replace(clip=float("inf")), None, "clip=inf"),
        (order._replace(releases=-1), None, "releases=-1"),
        (order, masks._replace(least=1), "hides nothing"),
        (order, masks._replace(bits=64), "at most 56"),
    ):
        reply = desk.sent(desk.start._replace(noise=noise, masks=masking))
        assert isinstance(reply, Refusal) and said in reply.reason, reply
    letter = letter_of(desk.start._replace(noise=order))
    words_ = {name: word for name, word in letter.words.items() if name != "noise_clip"}
    reply = reply_of(desk.site.answer(Letter(words_, letter.arrays).as_bytes()), None)
    assert isinstance(reply, Refusal) and "without the word 'noise_clip'" in reply.reason

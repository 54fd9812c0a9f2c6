"""Noise and masks behind Flower's messages: the same runs, nothing plain on the way, and orders that a site does not believe."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hierfl as hf
from hierfl.runtime import GaussianNoise, PairwiseMasks
from hierfl.runtime.privacy.pairwise_masks import Masking
from hierfl.runtime.sites.letters import Letter, letter_of, reply_of
from hierfl.runtime.sites.parcels import Refusal, Unmask
from hierfl.runtime.sites.site import SiteRules
from hierfl.solvers import FedAvg
from tests.runtime.on_dask.test_dask_runtime import SIZES, START, clients_alone, words
from tests.runtime.on_flower.loopback import LoopbackGrid, desks
from tests.runtime.sites.test_letters import Correspondence

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
    raw = b"".join(serialised for serialised, _ in grid.crossed)
    assert words(START)[0] in raw  # what is looked for would be found
    assert not [word for word in secret if word in raw]
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
        (order._replace(multiplier=0.5), None, "asks for noise of multiplier 1 or more"),
        (order._replace(shared=True), None, "the run has none"),
        (order, masks._replace(least=1), "hides nothing"),
        (order, masks._replace(bits=64), "at most 56"),
    ):
        reply = desk.sent(desk.start._replace(noise=noise, masks=masking))
        assert isinstance(reply, Refusal) and said in reply.reason, reply
    letter = letter_of(desk.start._replace(noise=order))
    words_ = {name: word for name, word in letter.words.items() if name != "noise_clip"}
    reply = reply_of(desk.site.answer(Letter(words_, letter.arrays).as_bytes()), None)
    assert isinstance(reply, Refusal) and "without the word 'noise_clip'" in reply.reason


def test_an_owner_bounds_what_is_told_whatever_is_asked() -> None:
    desk = Correspondence(SiteRules(min_noise=2.0, max_rounds=3))
    compiled = desk.problem.compile()
    order = GaussianNoise(1.0, 2.0).order(compiled, SOLVER.bind(compiled, 10), 10, 5)
    expected = (np.zeros(2), {"value": np.zeros(())})
    told = []
    for run in range(2):
        desk.sent(desk.start._replace(noise=order._replace(run=str(run))))
        for turn in range(4):
            told.append(desk.sent(desk.asked(turn=turn, broadcast=START + turn), expected))
    answered = [not isinstance(reply, Refusal) for reply in told]
    assert answered == [True] * 3 + [False] * 5 and "has answered the 3 rounds" in told[3].reason
    assert isinstance(desk.sent(desk.start), Refusal)  # without noise


def test_a_site_under_masks_answers_nothing_that_opens_its_message() -> None:
    desk = Correspondence()
    masks = PairwiseMasks(least=2).order(desk.problem.compile(), SOLVER.bind(desk.problem.compile(), 10))
    welcome = desk.sent(desk.start._replace(masks=masks))
    keys = tuple(sorted((welcome.key, Correspondence().sent(desk.start._replace(masks=masks)).key)))
    for masking, said in (
        (None, "for one without"),
        (Masking(0, (welcome.key,), (1, 2)), "nobody else"),
        (Masking(0, (welcome.key,), (0, 1, 2)), "2 or more"),
        (Masking(0, (bytes(32), bytes(32)), (0, 1, 2)), "over this site and others"),
    ):
        assert said in desk.sent(desk.asked(masking=masking)).reason
    numbers = (np.zeros(5, np.uint64), {})
    masked = desk.sent(desk.asked(masking=Masking(1, keys, (0, 1, 2))), numbers)
    assert masked.payload.dtype == np.uint64 and masked.payload.shape == (5,) and masked.monitor == {}
    assert len(desk.sent(Unmask(1)).key) == 32
    assert "given up" in desk.sent(Unmask(0)).reason
    assert "or again" in desk.sent(desk.asked(masking=Masking(1, keys, (0, 1, 2))), numbers).reason
    assert desk.sent(desk.start).key == b"" and "no masks" in desk.sent(Unmask(1)).reason

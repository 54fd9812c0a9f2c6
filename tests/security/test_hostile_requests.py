"""A server that asks for anything: wrong turns, seeds, clients, shapes, steps, runs and orders. Sites go on, and no row leaves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hierfl as hf
from hierfl.runtime.privacy.pairwise_masks import Masking
from hierfl.runtime.sites.letters import packed, reply_of
from hierfl.runtime.sites.parcels import Answered, Keep, Refusal, Settled, Unmask, Welcome, digest_of, solver_text
from hierfl.runtime.sites.site import SiteRules
from hierfl.solvers import FedAvg, FedRZO
from tests.security.test_curious_server import ROUNDS, STEP, TABLES, asked, problem, site, start

REQUESTS, ALLOWED = 200, 40
STEPS = ("local_steps", "init", "oracle.full_value", "settings.bind", "__init__", "problem.data", "lower", "", "a" * 10_000, "with_tables")
POINTS: list[Any] = [
    np.zeros(2),
    np.ones(2),
    np.full(2, np.nan),
    np.full(2, 1e300),
    np.zeros(3),
    np.zeros((2, 2)),
    np.zeros(0),
    np.zeros(2, "f4"),
    np.zeros(2, int),
    (np.zeros(2), np.zeros(2)),
    None,
]


@pytest.fixture(scope="module")
def declared() -> hf.Problem:
    return problem()


def hostile(rng: np.random.Generator, number: int) -> Any:
    """A message of the right kind with whatever in it, mostly with one thing wrong."""
    message = asked(number, POINTS[int(rng.integers(2))], seed=int(rng.integers(5)))
    changes: dict[str, Any] = {
        "turn": int(rng.choice([-(2**40), -1, 0, 1, number - 1, number + 1])),
        "round": int(rng.choice([-1, 0, 3, number - 1, ROUNDS + 1, 2**60])),
        "place": int(rng.choice([-1, 0, 1, 2**30])),
        "kind": str(rng.choice(["map", "query", "server", ""])),
        "step": str(rng.choice(STEPS)),
        "clients": [np.array([1]), np.array([0, 0]), np.array([], int), np.array([-1]), np.array([2**40])][int(rng.integers(5))],
        "seed": [np.zeros(2, np.uint32), np.zeros(3, np.uint32), np.zeros(0, np.uint32)][int(rng.integers(3))],
        "broadcast": POINTS[int(rng.integers(len(POINTS)))],
        "each": [np.zeros((1, 2)), np.zeros(1), (np.zeros(1),)][int(rng.integers(3))],
        "settled": [None, Settled(-1, True), Settled(2**40, False)][int(rng.integers(3))],
        "masking": Masking(int(rng.integers(-1, 3)), (bytes(32),) * int(rng.integers(4)), (0, 1, 2)),
    }
    wrong = rng.choice(list(changes), size=int(rng.integers(1, 3)), replace=False)
    message = message._replace(**{name: changes[name] for name in wrong})
    others = [Unmask(int(rng.integers(-2, 3)), bytes(32), bytes(82)), Unmask(0), Keep("../../etc", 1, None), Keep("0" * 8, 2**40, None)]
    return others[int(rng.integers(4))] if rng.random() < 0.1 else message


def test_two_hundred_hostile_requests(declared: hf.Problem) -> None:
    rng, own = np.random.default_rng(11), site(declared, SiteRules(min_samples=len(TABLES[0]), max_messages=ALLOWED))
    solver = FedAvg(STEP, local_steps=1, batch_size=None)
    whole = start(declared, solver)._replace(solver=solver_text(solver))
    expected = (np.zeros(2), {"value": np.zeros(())})
    assert isinstance(reply_of(own.answer(packed(whole), "a"), None), Welcome)
    sent = []
    for number in range(REQUESTS):
        server = str(rng.choice(["a", "a", "a", "b", ""]))
        if number % 40 == 7:
            order: Any = whole._replace(rounds=int(rng.choice([-1, 2**40])), queries=str(rng.choice(["raw", "none"])))
            assert isinstance(reply_of(own.answer(packed(order), server), None), Refusal)
        sent.append(own.answer(packed(hostile(rng, number)), server))
    told = [reply_of(reply, expected) for reply in sent]
    answered = [reply for reply in told if isinstance(reply, Answered)]
    assert 0 < own.messages <= ALLOWED and len(answered) < REQUESTS / 2
    for row in TABLES[0]:
        for part in (row.tobytes(), *(number.tobytes() for number in row), *(repr(float(number)).encode() for number in row)):
            assert not any(part in reply for reply in sent)
    last = reply_of(own.answer(packed(whole), "a"), None)
    assert isinstance(last, Welcome if own.messages < ALLOWED else Refusal)
    if own.messages < ALLOWED:
        right = reply_of(own.answer(packed(asked(0, np.zeros(2))), "a"), expected)  # of the run that has just begun
        move = 2 * STEP * TABLES[0][:, :2].T @ TABLES[0][:, 2] / len(TABLES[0])
        np.testing.assert_allclose(right.payload[0], move, atol=1e-12)


def test_masks_bind_settings_that_are_not_printed(declared: hf.Problem) -> None:
    """Of two solvers that print alike, one was told where to begin: sites that were sent one each are in no sum together."""
    plain, started = FedRZO(step_size=STEP), FedRZO(step_size=STEP, starts=((0.0, 0.0),))
    assert repr(plain) == repr(started)
    assert digest_of(plain) != digest_of(started) and digest_of(plain) == digest_of(FedRZO(step_size=STEP))

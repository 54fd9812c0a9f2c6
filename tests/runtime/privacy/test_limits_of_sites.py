"""What a site under noise sends at most, whatever it is asked: sites by themselves, questioned by servers of ours, none of whom has to do with another's run."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.runtime.privacy.gaussian_noise import GaussianNoise, NoiseOrder, orders_of
from hierfl.runtime.privacy.pairwise_masks import Masking, MaskOrder, SiteMasks
from hierfl.runtime.sites.exchange import exchange_for
from hierfl.runtime.sites.parcels import (
    Answered,
    Lost,
    Refusal,
    Start,
    Welcome,
    pickled_solver,
    unpickled_solver,
)
from hierfl.runtime.sites.site import NO_RUN, SERVERS, Site, SiteRules
from hierfl.solvers import SCAFFOLD, FedAvg
from hierfl.solvers.parts.local_steps import CorrectedState
from tests.runtime.sites.questioned import asked, site_of, start_for

CLIENTS, ROUNDS, X0 = 3, 50, np.zeros(2)


@pytest.fixture(scope="module")
def problem() -> hf.Problem:
    x, u = cp.Variable(2, name="x"), hf.Sample(2, name="u")
    clients = [hf.Client({u: rows}) for rows in np.random.default_rng(0).standard_normal((CLIENTS, 4, 2))]
    return hf.Problem(hf.Minimize(clients=hf.E(cp.sum_squares(x - u))), federation=hf.Federation(clients))


def beginning(problem: hf.Problem, noise: NoiseOrder | None = None, masks: MaskOrder | None = None) -> Start:
    return start_for(problem, FedAvg(step_size=0.05, batch_size=None), ROUNDS, noise=noise, masks=masks)


def a_start() -> Start:
    """Of no problem."""
    return Start("", "", "", "FedAvg", None, {}, ROUNDS, "raw", X0, np.inf)


def site(problem: hf.Problem, rules: SiteRules, clients: int = CLIENTS) -> Site:
    return site_of(problem, rules, range(clients), read_solver=unpickled_solver)


def local(problem: hf.Problem, masks: MaskOrder | None = None) -> NoiseOrder:
    compiled = problem.compile()
    algorithm = FedAvg(step_size=0.05, batch_size=None).bind(compiled, ROUNDS)
    order = orders_of(GaussianNoise(1.0, 8.0), None, compiled, algorithm, ROUNDS, 0)[0]
    assert order is not None
    return order


def test_a_message_that_was_drawn_counts_where_its_masks_are_refused(problem: hf.Problem) -> None:
    masks = MaskOrder(2, 40, "run")
    own, other = site(problem, SiteRules(max_rounds=3, min_noise=8.0)), SiteMasks(masks)
    welcome: Any = own.respond(beginning(problem, local(problem), masks))
    keys = tuple(sorted((welcome.key, other.public)))
    answers = []
    for turn in range(10):
        x = X0 + turn
        assert isinstance(own.respond(asked(turn, x)), Refusal)  # without masks
        answers.append(own.respond(asked(turn, x, masking=Masking(turn, keys, (0,)))))
    assert sum(isinstance(answer, Answered) for answer in answers) <= 3
    assert own.rounds == 3


class OneSite:
    """A way to one site, whose process may be another one from some time on."""

    def __init__(self, own: Site) -> None:
        self.site, self.births = own, 1

    def ready(self) -> frozenset[str]:
        return frozenset({"s"})

    def held(self) -> dict[str, tuple[int, ...]]:
        return {"s": (0,)}

    def born(self, name: str) -> int:
        return self.births

    def exchange(self, parcels: dict[str, bytes], timeout: float) -> dict[str, bytes | Lost]:
        return {name: self.site.answer(parcel) for name, parcel in parcels.items()}


def test_a_new_process_is_taken_to_send_a_second_message(problem: hf.Problem) -> None:
    """What it sent before it ended may have been seen, by the scheduler for one, though it never came to the server."""
    links: Any = OneSite(site(problem, SiteRules(), 1))
    begun = beginning(problem, local(problem))
    exchange = exchange_for(problem.compile(), links, begun._replace(solver=pickled_solver(begun.solver)), links.held(), 60.0)
    assert exchange.releases is not None
    counts = []
    for births in (1, 1, 2, 2):
        if births != links.births:
            links.births, links.site = births, site(problem, SiteRules(), 1)
        exchange.begin(["s"])
        assert exchange._without_releases({"s": asked(0, X0)}) == {}
        counts.append(exchange.releases.largest)
    assert counts == [1, 1, 2, 2]


def talk(own: Any, server: str, turn: int) -> np.ndarray:
    message = asked(turn, X0 + turn)
    if server == "control":
        message = message._replace(broadcast=CorrectedState(X0 + turn, X0))
    answer = own.respond(message, server)
    assert isinstance(answer, Answered)
    return np.concatenate([np.ravel(part) for part in (answer.payload if server == "control" else [answer.payload])])


def test_each_gets_what_a_site_of_its_own_would_say(problem: hf.Problem) -> None:
    solvers = {
        "short": FedAvg(0.01, batch_size=None),
        "long": FedAvg(0.2, batch_size=None),
        "control": SCAFFOLD(0.1, local_steps=2, batch_size=None),
    }
    shared = site(problem, SiteRules())
    for server, solver in solvers.items():
        assert isinstance(shared.respond(start_for(problem, solver, 9), server), Welcome)
    together = {(turn, server): talk(shared, server, turn) for turn in range(3) for server in solvers}
    for server, solver in solvers.items():
        alone = site(problem, SiteRules())
        alone.respond(start_for(problem, solver, 9), server)
        for turn in range(3):
            np.testing.assert_array_equal(together[turn, server], talk(alone, server, turn))


def test_a_run_without_noise_takes_it_from_no_other(problem: hf.Problem) -> None:
    own, alone = site(problem, SiteRules()), site(problem, SiteRules())
    own.respond(beginning(problem, local(problem)), "noised")
    for one in (own, alone):
        one.respond(beginning(problem, None), "plain")
    noised: Any = own.respond(asked(0, X0), "noised")
    plain: Any = own.respond(asked(0, X0), "plain")
    np.testing.assert_array_equal(plain.payload, alone.respond(asked(0, X0), "plain").payload)  # type: ignore[union-attr]
    assert np.abs(noised.payload - plain.payload).max() > 1e-3
    assert not noised.monitor["value"].any()


def test_a_server_too_many_ends_the_run_that_was_asked_longest_ago(problem: hf.Problem) -> None:
    own = site(problem, SiteRules())
    servers = [str(n) for n in range(SERVERS)]
    for server in servers:
        own.respond(beginning(problem, None), server)
    assert isinstance(own.respond(asked(0, X0), servers[0]), Answered)
    own.respond(beginning(problem, None), "one more")
    assert own.respond(asked(0, X0), servers[1]) == NO_RUN
    assert isinstance(own.respond(asked(1, X0), servers[0]), Answered)

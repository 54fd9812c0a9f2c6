"""Several servers with a run each at one site: none has to do with another's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import hierfl as hf
from hierfl.jaxtools.precision import computing
from hierfl.runtime.sites.parcels import Answered, Settled, Start, Welcome, starting
from hierfl.runtime.sites.site import NO_RUN, SERVERS, SiteRules
from hierfl.solvers import SCAFFOLD, FedAvg
from hierfl.solvers.parts.local_steps import CorrectedState
from tests.runtime.privacy.test_limits_of_sites import X0, asked, beginning, local, problem, site

__all__ = ["problem"]  # a fixture


def started(problem: hf.Problem, solver: Any) -> Start:
    compiled = problem.compile()
    with computing(double=True):
        return starting(compiled, solver.bind(compiled, 9), 9, X0)


def talk(own: Any, server: str, turn: int) -> np.ndarray:
    message = asked(turn, X0 + turn)._replace(settled=Settled(turn - 1, True))
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
        assert isinstance(shared.respond(started(problem, solver), server), Welcome)
    together = {(turn, server): talk(shared, server, turn) for turn in range(3) for server in solvers}
    for server, solver in solvers.items():
        alone = site(problem, SiteRules())
        alone.respond(started(problem, solver), server)
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


@pytest.mark.parametrize("server", ["", "nobody"])
def test_who_began_nothing_is_told_so(problem: hf.Problem, server: str) -> None:
    own = site(problem, SiteRules())
    own.respond(beginning(problem, None), "somebody")
    assert own.respond(asked(0, X0), server) == NO_RUN

"""Sites by themselves, and what a server says to them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

import hierfl as hf
from hierfl.command.loading import load_solver
from hierfl.jaxtools.keyed_random import fold_in, key_of
from hierfl.jaxtools.precision import computing
from hierfl.runtime.sites.parcels import Asked, Settled, Start, starting
from hierfl.runtime.sites.site import Site, SiteRules


def site_of(problem: hf.Problem, rules: SiteRules | None = None, clients: Iterable[int] | None = None, **given: Any) -> Site:
    """A site that holds these clients of a problem, or all of them."""
    declaration = problem.compile().declaration
    everybody = declaration.federation.clients  # type: ignore[union-attr]
    held = {place: everybody[place] for place in (range(len(everybody)) if clients is None else clients)}
    return Site("here", declaration, held, rules or SiteRules(), **{"read_solver": load_solver} | given)


def start_for(problem: hf.Problem, solver: Any, rounds: int, x0: Any = (0.0, 0.0), /, **given: Any) -> Start:
    """What a server says first."""
    compiled = problem.compile()
    with computing(double=True):
        return starting(compiled, solver.bind(compiled, rounds), rounds, np.asarray(x0), **given)


def asked(turn: int, x: Any, client: int = 0, seed: int = 0, **changes: Any) -> Asked:
    """The question of a turn for a client's local steps from x; the turn before was settled."""
    seeded = np.asarray(jax.random.key_data(fold_in(key_of(seed), max(turn, 0))))
    message = Asked(turn, max(turn, 0), 0, Settled(turn - 1, True), "map", "local_steps", np.array([client]), seeded, x, None)
    return message._replace(**changes)

"""A run at a site as it would be, of which nothing is sent: what would leave, over how many rows, and how long a round takes."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from hierfl.compiler.compiled_problem import compile_problem
from hierfl.errors import SiteError
from hierfl.jaxtools.precision import computing
from hierfl.language.declaration import Declaration
from hierfl.language.federation.client import Client
from hierfl.runtime.privacy.gaussian_noise import GaussianNoise
from hierfl.runtime.sites.letters import by_name, items_of, packed
from hierfl.runtime.sites.owner.site_rules import SiteRules
from hierfl.runtime.sites.parcels import Answered, Asked, Item, Start, starting
from hierfl.runtime.sites.site import Site


class Leaving(NamedTuple):
    """An array that a step sends, so often in a round (``inf`` where data say), over so many rows of a client (None for all)."""

    step: str
    array: Item
    often: float
    rows: int | None


class Rehearsed(NamedTuple):
    """The ``start`` of a run, what would leave, the numbers in a client's message, the fewest rows of a client that a step draws (None for all),
    and the seconds of a round here.
    """

    start: Start
    leaving: list[Leaving]
    numbers: int
    fewest: int | None
    seconds: float


def rehearsed(declaration: Declaration, held: Mapping[int, Client], solver: Any, rounds: int, noise: GaussianNoise | None) -> Rehearsed:
    """Every step of a run, asked for twice, at x = 0: the first time compiles.

    Raises ``SiteError`` if the run cannot begin; also as the solver does for a problem that is not its.
    """
    with computing(double=True):
        problem = compile_problem(declaration)
        algorithm = solver.bind(problem, rounds)
        order = None if noise is None else noise.order(problem, algorithm, rounds, 0)
        start = starting(problem, algorithm, rounds, np.zeros(problem.upper.size), noise=order, shared_seeds=True)
    site = Site("here", declaration, held, SiteRules(shared_seeds=True), compiled=problem)
    begun = site.respond(start)
    if (run := site.run()) is None:
        raise SiteError(f"the run cannot begin here: {getattr(begun, 'reason', begun)}")
    clients, seed = np.array(list(held)), np.zeros(2, np.uint32)
    for turn in range(2):
        leaving, seconds, place = list[Leaving](), 0.0, 0
        for (kind, step), ((broadcast, each), *_) in run.protocol.shapes.items():
            sent = jax.tree.map(lambda one: np.zeros(one.shape, one.dtype), broadcast)
            own = jax.tree.map(lambda one: np.zeros((len(clients), *one.shape[1:]), one.dtype), each)
            began = time.perf_counter()
            reply = site.respond(Asked(turn, turn, place, None, kind, step, clients, seed, sent, own))
            if not isinstance(reply, Answered):  # without noise of a run that has some
                continue
            packed(reply)
            often, rows = run.protocol.often[kind, step], run.fewest_rows((kind, step))
            seconds, place = seconds + (time.perf_counter() - began) * (1.0 if np.isinf(often) else often), place + 1
            leaving += [Leaving(step, item, often, rows) for item in items_of(by_name(payload=reply.payload, monitor=reply.monitor))]
    return Rehearsed(start._replace(shared_seeds=False), leaving, run.protocol.numbers, run.fewest_rows(), seconds)

"""A run at a site as it would be, of which nothing is sent: what would leave, over how many rows, and how long a round takes."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem, compile_problem
from hierfl.errors import SiteError
from hierfl.jaxtools.precision import computing
from hierfl.language.declaration import Declaration
from hierfl.language.federation.client import Client
from hierfl.runtime.privacy.gaussian_noise import GaussianNoise
from hierfl.runtime.sites.exchange import exchange_for
from hierfl.runtime.sites.parcels import Item, Lost, Start, declaration_mark, items_of, starting
from hierfl.runtime.sites.rounds import Attendance, SiteRounds, TooFewError
from hierfl.runtime.sites.site import Site
from hierfl.runtime.sites.site_rules import SiteRules

ROUNDS = 3  # that are made; the first compiles


class Leaving(NamedTuple):
    """An array that a step sends: of all clients here, so often in a round (``inf`` where data say), over so many rows of one at least."""

    step: str
    array: Item
    often: float
    rows: int


class Rehearsed(NamedTuple):
    """What a rehearsal found: the ``start`` of the run, what would leave, the numbers in a client's message, the ``fewest`` rows that a step draws
    (None for all), the seconds of a round at the site.
    """

    start: Start
    leaving: list[Leaving]
    numbers: int
    fewest: int | None
    seconds: float


def rehearsed(declaration: Declaration, held: Mapping[int, Client], solver: Any, rounds: int, noise: GaussianNoise | None) -> Rehearsed:
    """A few rounds of a run, made with this site's clients alone.

    Raises ``SiteError`` if the run cannot begin; also as the solver does for a problem that is not its.
    """
    with computing(double=True):
        problem = compile_problem(declaration)
        algorithm, x0 = solver.bind(problem, rounds), np.zeros(problem.upper.size)
        order = None if noise is None else noise.order(problem, algorithm, rounds, 0)
        start = starting(algorithm, declaration_mark(declaration), "", rounds, x0, noise=order, shared_seeds=True)
        site = Site("here", declaration, held, SiteRules(shared_seeds=True), compiled=problem)
        links = _OneSite(site)
        seconds = _seconds(problem, algorithm, start, links)
    run = site.run()
    assert run is not None  # it has just made some rounds
    counts = [client.num_samples(sample) for client in held.values() for sample in client.samples]
    everything, leaving = min((count for count in counts if count is not None), default=0), []
    for (kind, name), told in run.protocol.told.items():
        if run.noised is not None and (kind, name) != ("map", run.noised.step):
            continue  # it is refused
        stacked = jax.tree.map(lambda one: np.zeros((len(held), *one.shape), one.dtype), {"payload": told[0], "monitor": told[1]})
        rows, often = run.fewest_rows((kind, name)), run.protocol.often[kind, name]
        leaving += [Leaving(name, item, often, everything if rows is None else rows) for item in items_of(stacked)]
    return Rehearsed(start._replace(shared_seeds=False), leaving, run.protocol.numbers, run.fewest_rows(), seconds)


def _seconds(problem: CompiledProblem, algorithm: Any, start: Start, links: _OneSite) -> float:
    """Of the site's own work in a round, once it is compiled."""
    exchange = exchange_for(problem, links, start, links.held(), math.inf)
    making = SiteRounds(problem, algorithm, exchange, Attendance(1, 0.0), 0)
    state, took = algorithm.init(jnp.asarray(start.x0)), []
    for index in range(min(ROUNDS, max(start.rounds, 1))):
        links.seconds = 0.0
        try:
            state, _ = making.round(state, index)
        except TooFewError as error:
            raise SiteError(f"the rehearsal ended: {error}") from error
        took.append(links.seconds)
    return min(took[1:] or took)


class _OneSite:
    """The way to a site in this process, which notes how long it takes."""

    def __init__(self, site: Site) -> None:
        self.site, self.seconds = site, 0.0

    def ready(self) -> frozenset[str]:
        return frozenset({self.site.name})

    def held(self) -> dict[str, tuple[int, ...]]:
        return {self.site.name: tuple(self.site.held)}

    def born(self, site: str) -> int:
        return 1

    def exchange(self, parcels: Mapping[str, bytes], timeout: float) -> dict[str, bytes | Lost]:
        began = time.perf_counter()
        answers: dict[str, bytes | Lost] = {name: self.site.answer(parcel) for name, parcel in parcels.items()}
        self.seconds += time.perf_counter() - began
        return answers

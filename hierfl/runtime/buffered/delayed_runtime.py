"""``hf.runtime.Delayed``: clients of this process whose answers take drawn times on a clock of their own."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import SettingError
from hierfl.jaxtools.disk_cache import ProgramCache
from hierfl.jaxtools.precision import computing
from hierfl.language.federation.client import Client
from hierfl.near_names import suggests_names
from hierfl.runtime.contract import Algorithm
from hierfl.runtime.records import BlockEnd, Outcome
from hierfl.runtime.site_runtime import MessageTreatment
from hierfl.runtime.sites.exchange import exchange_for
from hierfl.runtime.sites.owner.site_rules import SiteRules
from hierfl.runtime.sites.parcels import Lost, pickled_solver, unpickled_solver
from hierfl.runtime.sites.rounds import Attendance
from hierfl.runtime.sites.site import Site

STREAM = 77


@suggests_names
@dataclass(frozen=True)
class Delayed(MessageTreatment):
    """Run in this process, with a clock on which each client takes a drawn time for every answer: ``history["clock"]`` has its seconds.

    In rounds (``asynchronous=False``) every exchange of messages takes as long as the slowest of its clients. Without rounds it is as for
    :class:`hierfl.runtime.Dask`, each client a site. Same seed, same delays, same run.

    Parameters
    ----------
    delays
        The mean seconds that each client takes to answer, ``(m,)``.
    spread
        The standard deviation of the logarithm of a time over its mean: times are log-normal; 0 for times that are all alike.
    asynchronous, buffer, staleness
        As for :class:`hierfl.runtime.Dask`, the buffer in clients.
    aggregation, adversaries, noise, masks
        As for :class:`hierfl.runtime.Dask`.

    Raises
    ------
    SettingError
        For delays that are not positive, or not one for each client, and settings out of range.

    Examples
    --------
    >>> runtime = hf.runtime.Delayed([1.0, 1.0, 10.0], asynchronous=True, buffer=2)
    """

    delays: Sequence[float]
    spread: float = 0.25
    asynchronous: bool = False
    buffer: int = 1
    staleness: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if np.ndim(self.delays) != 1 or not all(0 < delay < np.inf for delay in self.delays) or not 0 <= self.spread < np.inf:
            raise SettingError(
                "Delayed(delays=..., spread=...): positive mean seconds, one for each client, and a spread from 0 on."
            )

    def execute(
        self,
        problem: CompiledProblem,
        algorithm: Algorithm,
        x0: np.ndarray,
        rounds: int,
        seed: int,
        block: int,
        at_end: BlockEnd,
    ) -> Outcome:
        """Run as ``InProcess.execute`` does, in double precision; its clock does not go on from a checkpoint."""
        problem.require_all_here("a simulation of delays")
        if len(self.delays) != problem.num_clients:
            raise SettingError(f"Delayed(delays=...): {len(self.delays)} of them for {problem.num_clients} clients.")
        with computing(double=True):
            links = _DelayedLinks(problem, np.asarray(self.delays, float), self.spread, seed)
            start = self._start(problem, algorithm, x0, rounds, seed, shared_seeds=True, solver=pickled_solver(algorithm.settings))
            exchange = exchange_for(problem, links, start, links.held(), float("inf"))
            making = self._rounds(problem, algorithm, exchange, Attendance(1, 0.0), seed, lambda: links.clock)
            return making.run(x0, rounds, block, at_end, None)


class _DelayedLinks:
    """Sites of one client each, which answer at once, and arrive when their time has passed on the clock."""

    def __init__(self, problem: CompiledProblem, delays: np.ndarray, spread: float, seed: int) -> None:
        declaration = problem.declaration
        clients = dict(enumerate(declaration.federation.clients if declaration.federation else (Client(),)))
        given = declaration, clients, SiteRules(shared_seeds=True), problem, problem.programs.keep("simulated sites", ProgramCache)
        self.sites = {str(i): Site(str(i), *given, own=frozenset({i}), read_solver=unpickled_solver) for i in clients}
        self.delays, self.spread, self.clock = delays, spread, 0.0
        self.draws = [np.random.default_rng([STREAM, seed, i]) for i in range(len(delays))]
        self.waiting: list[tuple[float, str, bytes]] = []
        self._started: set[str] = set()

    def ready(self) -> frozenset[str]:
        return frozenset(self.sites)

    def held(self) -> dict[str, tuple[int, ...]]:
        return {site: (int(site),) for site in self.sites}

    def born(self, site: str) -> int:
        return 1

    def exchange(self, parcels: Mapping[str, bytes], timeout: float) -> dict[str, bytes | Lost]:
        """All answers, when the slowest is there; that a run begins takes no time."""
        answers: dict[str, bytes | Lost] = {site: self.sites[site].answer(parcel) for site, parcel in parcels.items()}
        if not all(site in self._started for site in parcels):
            self._started |= parcels.keys()
            return answers
        self.clock += max(self._delay(site) for site in parcels)
        return answers

    def send(self, site: str, parcel: bytes) -> None:
        heapq.heappush(self.waiting, (self.clock + self._delay(site), site, self.sites[site].answer(parcel)))

    def arrival(self, timeout: float) -> tuple[str, bytes | Lost] | None:
        if not self.waiting:
            return None
        self.clock, site, answer = heapq.heappop(self.waiting)
        return site, answer

    def _delay(self, site: str) -> float:
        place = int(site)
        drawn = self.draws[place].lognormal(-0.5 * self.spread**2, self.spread) if self.spread else 1.0
        return float(self.delays[place] * drawn)

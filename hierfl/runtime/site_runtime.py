"""What runtimes whose clients are at sites have in common: what is done to the messages, and how a run begins and is made."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar
from uuid import uuid4

import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import SettingError, SiteError
from hierfl.jaxtools.disk_cache import ProgramCache
from hierfl.jaxtools.precision import computing
from hierfl.language.federation.client import Client
from hierfl.near_names import suggests_names
from hierfl.runtime.contract import Algorithm
from hierfl.runtime.privacy.gaussian_noise import GaussianNoise, orders_of
from hierfl.runtime.privacy.pairwise_masks import PairwiseMasks
from hierfl.runtime.records import Begun, BlockEnd, Outcome
from hierfl.runtime.sites.aggregation import Aggregation
from hierfl.runtime.sites.exchange import Exchange, exchange_for
from hierfl.runtime.sites.owner.site_rules import SiteRules
from hierfl.runtime.sites.parcels import (
    KeptMark,
    Lost,
    Start,
    pickled_solver,
    require_known,
    solver_text,
    starting,
    unpickled_solver,
)
from hierfl.runtime.sites.rounds import BufferedRounds, SiteRounds, require_begun, scalars_remembered
from hierfl.runtime.sites.site import Site


@dataclass(frozen=True, kw_only=True)
class MessageTreatment:
    """What a runtime does to the messages of a round, beside averaging them.

    Its settings are those of :class:`hierfl.runtime.Dask` by the same names, where they are explained.
    """

    aggregation: str | None = None
    adversaries: float = 0.2
    noise: GaussianNoise | None = None
    masks: PairwiseMasks | None = None
    asynchronous: bool = False
    buffer: int = 1
    staleness: float = 0.5

    def __post_init__(self) -> None:
        """Refuse settings that exclude each other, or out of range. Raises ``SettingError``, naming them."""
        name = type(self).__name__
        _require_count(self, "buffer")
        if not self.staleness >= 0:
            raise SettingError(f"{name}(staleness={self.staleness!r}): at least 0.")
        defaults = {field.name: field.default for field in fields(MessageTreatment)}
        for switch, on, own in (("aggregation", self.rule is not None, ("adversaries",)), ("asynchronous", self.asynchronous, ("buffer", "staleness"))):
            for setting in own:
                if not on and getattr(self, setting) != defaults[setting]:
                    raise SettingError(f"{name}({setting}={getattr(self, setting)!r}): that is for {switch}=..., and is nothing without it.")
        if self.rule is not None and self.asynchronous:
            raise SettingError(
                f"{name}(aggregation=..., asynchronous=True): a robust aggregate is one of a round's messages; choose one of the two."
            )
        if self.masks is not None and (self.asynchronous or self.rule is not None):
            other = "asynchronous=True" if self.asynchronous else f"aggregation={self.aggregation!r}"
            raise SettingError(f"{name}(masks=..., {other}): that needs sites' messages one by one; choose one of the two.")
        if self.noise is not None and self.asynchronous:
            unknown = "without rounds nobody knows beforehand how many messages a client sends, nor epsilon"
            raise SettingError(f"{name}(noise=..., asynchronous=True): {unknown}; choose one of the two.")

    @property
    def rule(self) -> Aggregation | None:
        return None if self.aggregation is None else Aggregation(self.aggregation, self.adversaries)

    def _start(self, problem: CompiledProblem, algorithm: Algorithm, x0: np.ndarray, rounds: int, seed: int, **told: Any) -> Start:
        """What sites are told of a run. Raises ``SettingError`` for one of no rounds, of which no message would be the algorithm's."""
        if rounds < 1:
            raise SettingError(f"rounds={rounds}: {type(self).__name__} asks sites in rounds, of which a run has one at least.")
        noise, masks = orders_of(self.noise, self.masks, problem, algorithm, rounds, seed)
        return starting(problem, algorithm, rounds, x0, noise=noise, masks=masks, **told)

    def _rounds(
        self,
        problem: CompiledProblem,
        algorithm: Algorithm,
        exchange: Exchange,
        minimum: int,
        patience: float,
        seed: int,
        clock: Callable[[], float] | None = None,
    ) -> SiteRounds:
        """What makes the rounds, by its ``run``; of a simulation its clock is recorded."""
        if self.asynchronous:
            return BufferedRounds(problem, algorithm, exchange, self.buffer, self.staleness, patience, seed)
        return SiteRounds(problem, algorithm, exchange, minimum, patience, seed, clock, self.rule)


def _require_count(runtime: Any, setting: str) -> None:
    value = getattr(runtime, setting)
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
        raise SettingError(f"{type(runtime).__name__}({setting}={value!r}): a whole number of at least 1.")


@dataclass(frozen=True, kw_only=True)
class SiteRuntime(MessageTreatment):
    """A runtime whose clients are at sites of others; an engine says how to reach them (``_links``).

    Its settings are those of :class:`hierfl.runtime.Dask` by the same names, where they are explained.
    """

    timeout: float = 120.0
    minimum: int = 1
    patience: float = 30.0
    largest: float = 1e15
    shared_seeds: bool = False
    watcher: Any = field(default=None, repr=False)
    _latest: _LatestRun = field(default_factory=lambda: _LatestRun(), init=False, repr=False, compare=False)
    # how sites are reached
    no_part_of_a_run: ClassVar[tuple[str, ...]] = ("scheduler", "timeout", "minimum", "patience")

    def __post_init__(self) -> None:
        super().__post_init__()
        name = type(self).__name__
        _require_count(self, "minimum")
        if not self.patience >= 0:
            raise SettingError(f"{name}(patience={self.patience!r}): at least 0.")
        for setting in ("timeout", "largest"):
            if not getattr(self, setting) > 0:
                raise SettingError(f"{name}({setting}={getattr(self, setting)!r}): above 0.")

    def execute(
        self,
        problem: CompiledProblem,
        algorithm: Algorithm,
        x0: np.ndarray,
        rounds: int,
        seed: int,
        block: int,
        at_end: BlockEnd,
        begun: Begun | None = None,
    ) -> Outcome:
        """Run as ``InProcess.execute`` does, in double precision; the memories stay at the sites: None here."""
        with computing(double=True):
            links = self._links(problem)
            clients_of = require_known(links.held(), problem.num_clients)
            seeds, solver = self.shared_seeds or self._hands_data, algorithm.settings
            text = pickled_solver(solver) if self._hands_data else solver_text(solver)
            told = {"largest": self.largest, "shared_seeds": seeds, "solver": text}
            start = self._start(problem, algorithm, x0, rounds, seed, **told)
            exchange = exchange_for(problem, links, start, clients_of, self.timeout, self.watcher)
            self._latest.begin(exchange, scalars_remembered(algorithm, x0), begun)
            self._open(problem, exchange, links)
            patience = self.timeout if self.asynchronous else self.patience
            making = self._rounds(problem, algorithm, exchange, self.minimum, patience, seed)
            making.told["wire"] = self._wire
            return making.run(x0, rounds, block, at_end, begun)

    @property
    def resumes(self) -> bool:
        """Whether a run can go on from a checkpoint: without rounds there is no moment at which all have come equally far."""
        return not self.asynchronous

    def memories(self) -> list[np.ndarray]:
        """What finds the clients' memories again, kept at their sites. Raises ``SiteError``, naming one with no place."""
        return self._latest.keep()

    @property
    def _wire(self) -> str:
        """What messages cross, as the result says it."""
        return "between processes of this machine"

    @property
    def _hands_data(self) -> bool:
        """Whether the sites' code and data are this side's own: it may know what rows they draw, and they unpickle a solver."""
        return False

    def _links(self, problem: CompiledProblem) -> Any:
        raise NotImplementedError

    def _open(self, problem: CompiledProblem, exchange: Exchange, links: Any) -> None:
        """Wait for the sites of a run, and require that it can begin."""
        federation = problem.declaration.federation
        names = [client.name for client in federation.clients] if federation else [None]
        try:
            require_begun(exchange, names, self.minimum, self.patience)
        except SiteError as error:
            said = "".join(f"\n{who}: {reason}" for who, reason in links.refusals.items())
            raise SiteError(f"{error}{said}") from None


class _LatestRun:
    """The latest run, whose clients remember so many numbers each, and where their sites last kept them."""

    def begin(self, exchange: Exchange, remembered: int, begun: Begun | None) -> None:
        """Take a run; one that goes on has its sites begin with what they kept."""
        self.exchange, self.remembered, self.run, self.number = exchange, remembered, uuid4().hex, 0
        exchange.remembers = bool(remembered)
        if begun is not None and remembered:
            run, names, numbers, *rest = begun.memory
            contents, clients = rest[: len(names)], rest[len(names) :]
            self.run, self.number = str(run), int(np.max(np.abs(numbers), initial=0))
            for name, number, content in zip(names.tolist(), numbers.tolist(), contents):
                if number:
                    exchange.kept[name] = KeptMark(self.run, abs(number), content.tobytes())
                if number <= 0:
                    exchange.changed.add(name)
            for name, own in zip(names.tolist(), clients):
                exchange.kept_by |= dict.fromkeys(own.tolist(), name)

    def keep(self) -> list[np.ndarray]:
        """Have them kept: the run's mark, the sites by name, their numbers, what each handed back, and the clients of each.

        A number is negative where that is not all that the site's clients remember, and 0 where it has kept nothing of it.
        """
        if not self.remembered:
            return []
        self.number += 1
        self.exchange.keep(self.run, self.number)
        kept, changed, nothing = self.exchange.kept, self.exchange.changed, KeptMark(self.run, 0)
        names = list(kept | dict.fromkeys(changed))
        marks = [kept.get(name, nothing) for name in names]
        numbers = [-mark.number if name in changed else mark.number for name, mark in zip(names, marks)]
        contents = [np.frombuffer(mark.content, np.uint8) for mark in marks]
        clients = [np.array(self.exchange.clients_of[name], int) for name in names]
        return [np.array(self.run), np.array(names, str), np.array(numbers, int), *contents, *clients]


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

    def __post_init__(self) -> None:
        super().__post_init__()
        if np.ndim(self.delays) != 1 or not all(0 < delay < np.inf for delay in self.delays) or not 0 <= self.spread < np.inf:
            raise SettingError("Delayed(delays=..., spread=...): positive mean seconds of each client, and a spread from 0 on.")

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
            making = self._rounds(problem, algorithm, exchange, 1, 0.0, seed, lambda: links.clock)
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

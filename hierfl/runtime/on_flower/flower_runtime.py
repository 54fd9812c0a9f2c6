"""``hf.runtime.Flower``: runs whose clients are at the SuperNodes of Flower, inside a ServerApp."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import MissingPackageError, SettingError, SiteError
from hierfl.jaxtools.precision import computing
from hierfl.near_names import suggests_names
from hierfl.runtime.buffered.buffered_rounds import require_rounds
from hierfl.runtime.contract import Algorithm
from hierfl.runtime.on_flower.letters import Letters
from hierfl.runtime.on_flower.solver_text import solver_text
from hierfl.runtime.privacy.gaussian_noise import GaussianNoise
from hierfl.runtime.privacy.pairwise_masks import PairwiseMasks
from hierfl.runtime.privacy.shared_noise import orders_of
from hierfl.runtime.records import Begun, BlockEnd, Outcome
from hierfl.runtime.sites.aggregation import Aggregation
from hierfl.runtime.sites.declaration_mark import declaration_mark, declared_text
from hierfl.runtime.sites.exchange import require_known
from hierfl.runtime.sites.masked_exchange import exchange_for
from hierfl.runtime.sites.parcels import starting
from hierfl.runtime.sites.rounds import Attendance, SiteRounds, opened, require_no_memories, scalars_remembered
from hierfl.version import VERSION


@suggests_names
@dataclass(frozen=True)
class Flower:
    """Run with clients at the SuperNodes of Flower, each with its own data, reached by messages of named arrays; nothing is pickled.

    It is made inside a ServerApp, such as ``hierfl flower new`` writes. Same seed, same iterates as in process: keys are folded from
    (round, client, step). Flower starts a process for each message at each node, so that a round takes seconds
    (docs/real_federations.md).

    Parameters
    ----------
    grid
        The ``flwr.serverapp.Grid`` that a ServerApp is given.
    timeout
        Seconds that a site may take to answer. One that takes longer is left out until it has answered.
    minimum
        The fewest clients that a round is made with (of those drawn for it). With fewer the run ends, as ``"paused: ..."``.
    patience
        Seconds to wait at the start for everybody, and at the beginning of a round for that many to be there.
    largest
        The largest entry of a message that is believed.
    watcher
        Called with a ``hierfl.runtime.sites.site_reports.Crossing`` for everything that is sent and received.
    aggregation, adversaries
        A robust aggregate in place of the weighted mean of what clients send, as in ``hf.runtime.Dask``.
    noise, masks
        A :class:`GaussianNoise`, and :class:`PairwiseMasks`, as in ``hf.runtime.Dask``; masks take a second exchange in every round.

    Raises
    ------
    SettingError
        For settings out of range; when a run begins, for a solver that cannot be written as text, such as one with a function.
    MissingPackageError
        If ``flwr`` is not installed.
    SiteError
        When a run begins, if sites are missing or refuse.
    """

    grid: Any = field(repr=False)
    timeout: float = 600.0
    minimum: int = 1
    patience: float = 120.0
    largest: float = 1e15
    watcher: Any = field(default=None, repr=False)
    aggregation: str | None = None
    adversaries: float = 0.2
    noise: GaussianNoise | None = None
    masks: PairwiseMasks | None = None
    _session: _GridSession = field(default_factory=lambda: _GridSession(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name, least in (("minimum", 1), ("patience", 0)):
            if getattr(self, name) < least:
                raise SettingError(f"Flower({name}={getattr(self, name)!r}): at least {least}.")
        for name in ("timeout", "largest"):
            if not getattr(self, name) > 0:
                raise SettingError(f"Flower({name}={getattr(self, name)!r}): above 0.")
        if not hasattr(self.grid, "push_messages"):
            raise SettingError(
                f"Flower(grid={type(self.grid).__name__}): the Grid that a ServerApp's main function is given; "
                f"hierfl flower new writes such an app."
            )
        require_rounds(self)

    @property
    def rule(self) -> Aggregation | None:
        """The robust aggregate, if one was asked for."""
        return None if self.aggregation is None else Aggregation(self.aggregation, self.adversaries)

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
            self._session.remembers = scalars_remembered(algorithm, x0)
            if begun is not None:
                self.memories()  # refuses
            links = self._session.links(self)
            clients_of = require_known(links.held(), problem.num_clients)
            mark, text = declaration_mark(problem.declaration), declared_text(problem.declaration)
            orders = orders_of(self.noise, self.masks, problem, algorithm, rounds, seed)
            start = starting(algorithm, mark, text, rounds, x0, VERSION, self.largest, *orders, solver_as=solver_text)
            exchange = exchange_for(problem, links, start, clients_of, self.timeout, self.watcher, Letters())
            federation = problem.declaration.federation
            names = [client.name for client in federation.clients] if federation else [None]
            attendance = Attendance(self.minimum, self.patience)
            try:
                opened(exchange, problem.num_clients, names, attendance)
            except SiteError as error:
                said = "".join(f"\nnode {node}: {reason}" for node, reason in links.refusals.items())
                raise SiteError(f"{error}{said}") from None
            making = SiteRounds(problem, algorithm, exchange, attendance, seed, aggregation=self.rule)
            return making.run(x0, rounds, block, at_end, begun)

    def memories(self) -> list[np.ndarray]:
        """What a checkpoint keeps of the clients' memories: nothing, where they have none.

        Raises
        ------
        SettingError
            Where clients remember something, which stays with them.
        """
        require_no_memories(self._session.remembers, "Flower")
        return []


class _GridSession:
    """What is known of the nodes, kept from run to run."""

    def __init__(self) -> None:
        self.remembers = 0
        self._links: Any = None

    def links(self, runtime: Flower) -> Any:
        """The ways to the sites."""
        if self._links is None:
            try:
                from hierfl.runtime.on_flower.grid_links import GridLinks
            except ImportError as error:
                raise MissingPackageError(
                    "hf.runtime.Flower needs the package flwr: pip install 'hierfl[flower]'."
                ) from error
            self._links = GridLinks(runtime.grid, runtime.timeout)
        self._links.look()
        return self._links

"""``hf.runtime.Flower``: runs whose clients are at the SuperNodes of Flower, inside a ServerApp.

Nothing is pickled: a solver travels as it is written in Python.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import MissingPackageError, SettingError, SiteError
from hierfl.near_names import suggests_names
from hierfl.runtime.site_runtime import SiteRuntime
from hierfl.runtime.sites.exchange import Exchange
from hierfl.runtime.sites.letters import Letters
from hierfl.runtime.sites.parcels import Packing
from hierfl.runtime.sites.rounds import Attendance
from hierfl.runtime.sites.solver_text import solver_text


@suggests_names
@dataclass(frozen=True)
class Flower(SiteRuntime):
    """Run with clients at the SuperNodes of Flower, each with its own data, reached by messages of named arrays; nothing is pickled.

    It is made inside a ServerApp, such as ``hierfl flower new`` writes. Same seed, same iterates as in process, where rows are not drawn at
    random or ``shared_seeds``: keys are folded from (round, client, step). Flower starts a process for each message at each node, so that a
    round takes seconds (docs/real_federations.md).

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
    shared_seeds
        Whether sites draw minibatches by the run's seed, as a run in process does, so that iterates are the same; their owners have to
        allow it (``hierfl site --shared-seeds``), since the server then knows which rows are behind every number. Else every site draws under
        a secret of its own.
    watcher
        Called with a ``hierfl.runtime.sites.site_reports.Crossing`` for everything that is sent and received.
    asynchronous, buffer, staleness
        Without rounds, as in ``hf.runtime.Dask``.
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

    Examples
    --------
    >>> runtime = hf.runtime.Flower(grid, timeout=600, minimum=2)  # doctest: +SKIP
    """

    grid: Any = field(repr=False)
    timeout: float = field(default=600.0, kw_only=True)
    patience: float = field(default=120.0, kw_only=True)
    _session: _GridSession = field(default_factory=lambda: _GridSession(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not hasattr(self.grid, "push_messages"):
            raise SettingError(
                f"Flower(grid={type(self.grid).__name__}): the Grid that a ServerApp's main function is given; "
                f"hierfl flower new writes such an app."
            )

    @property
    def _wire(self) -> str:
        return "Flower's, as its SuperLink was started"

    @property
    def packing(self) -> Packing:
        """Messages are letters."""
        return Letters()

    def _links(self, problem: CompiledProblem) -> Any:
        return self._session.links(self)

    def _sent_solver(self, settings: Any) -> Any:
        return solver_text(settings)

    def _open(self, problem: CompiledProblem, exchange: Exchange, links: Any, attendance: Attendance) -> None:
        try:
            super()._open(problem, exchange, links, attendance)
        except SiteError as error:
            said = "".join(f"\nnode {node}: {reason}" for node, reason in links.refusals.items())
            raise SiteError(f"{error}{said}") from None


class _GridSession:
    """What is known of the nodes, kept from run to run."""

    def __init__(self) -> None:
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

"""``hf.runtime.Flower``: runs whose clients are at the SuperNodes of Flower, inside a ServerApp.

Nothing is pickled: a solver travels as it is written in Python.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from numbers import Integral, Real
from typing import Any, ClassVar

import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import MissingPackageError, SettingError, SiteError
from hierfl.near_names import suggests_names
from hierfl.runtime.on_flower.letters import Letters
from hierfl.runtime.site_runtime import SiteRuntime
from hierfl.runtime.sites.exchange import Exchange
from hierfl.runtime.sites.parcels import Packing
from hierfl.runtime.sites.rounds import Attendance


@suggests_names
@dataclass(frozen=True)
class Flower(SiteRuntime):
    """Run with clients at the SuperNodes of Flower, each with its own data, reached by messages of named arrays; nothing is pickled.

    It is made inside a ServerApp, such as ``hierfl flower new`` writes. Same seed, same iterates as in process, where rows are not drawn at
    random or ``shared_seeds``: keys are folded from (round, client, step). Flower starts a process for each message at each node, so that a round takes seconds
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
    shared_seeds
        Whether sites draw minibatches by the run's seed, as a run in process does, so that iterates are the same; their owners have to
        allow it (``hierfl site --shared-seeds``), since the server then knows which rows are behind every number. Else every site draws under
        a secret of its own.
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
    timeout: float = field(default=600.0, kw_only=True)
    patience: float = field(default=120.0, kw_only=True)
    packing: ClassVar[Packing] = Letters()
    _session: _GridSession = field(default_factory=lambda: _GridSession(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not hasattr(self.grid, "push_messages"):
            raise SettingError(
                f"Flower(grid={type(self.grid).__name__}): the Grid that a ServerApp's main function is given; "
                f"hierfl flower new writes such an app."
            )

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


def solver_text(solver: Any) -> str:
    """The call that makes this solver, such as ``FedAvg(step_size=0.05)``; settings that have their default are left out.

    Raises ``SettingError`` for a setting that is neither a number, a word, a list of these, nor one of hierfl's own
    schedules and solvers.
    """
    given = []
    for setting in fields(solver):
        if not setting.init:
            continue
        value = getattr(solver, setting.name)
        default = setting.default if setting.default_factory is MISSING else setting.default_factory()
        if not (value is default or (np.isscalar(value) and np.isscalar(default) and value == default)):
            given.append(f"{setting.name}={_written(value, f'{type(solver).__name__}({setting.name}=...)')}")
    return f"{type(solver).__name__}({', '.join(given)})"


def _written(value: Any, what: str) -> str:
    if is_dataclass(value) and not isinstance(value, type):
        return solver_text(value)
    if value is None or isinstance(value, bool | np.bool_ | str):
        return repr(value.item() if isinstance(value, np.bool_) else value)
    if isinstance(value, Integral):
        return repr(int(value))
    if isinstance(value, Real) and np.isfinite(float(value)):
        return repr(float(value))
    if isinstance(value, np.ndarray):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return f"[{', '.join(_written(item, what) for item in value)}]"
    raise SettingError(
        f"{what} is {type(value).__name__}: on Flower a solver is sent as text, so write a number, a list of numbers, or a schedule of "
        f"hierfl's own such as Decay(0.1, 0.5)."
    )

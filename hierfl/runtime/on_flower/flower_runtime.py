"""``hf.runtime.Flower``: runs whose clients are at the SuperNodes of Flower, inside a ServerApp.

Nothing is pickled: a solver travels as it is written in Python.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import SettingError, needing
from hierfl.near_names import suggests_names
from hierfl.runtime.site_runtime import SiteRuntime


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
    timeout, minimum, patience, largest, shared_seeds, watcher
        As in ``hf.runtime.Dask``, where a site has ten minutes to answer, and two are waited for those that are missing (seconds).
    asynchronous, buffer, staleness, aggregation, adversaries
        Without rounds, and a robust aggregate in place of the weighted mean, as in ``hf.runtime.Dask``.
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
    _kept: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)  # what is known of the nodes, from run to run

    def __post_init__(self) -> None:
        super().__post_init__()
        if not hasattr(self.grid, "push_messages"):
            said = f"Flower(grid={type(self.grid).__name__}): the Grid that a ServerApp's main function is given"
            raise SettingError(f"{said}; hierfl flower new writes such an app.")

    @property
    def _wire(self) -> str:
        return "Flower's, as its SuperLink was started"

    def _links(self, problem: CompiledProblem) -> Any:
        if not self._kept:
            with needing("hf.runtime.Flower needs the package flwr: pip install 'hierfl[flower]'."):
                from hierfl.runtime.on_flower.grid_links import GridLinks
            self._kept.append(GridLinks(self.grid, self.timeout))
        self._kept[0].look()
        return self._kept[0]

"""The runtime: sites of one client each, reached by the pipes to their processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.jaxtools.interruption import CutShort
from hierfl.near_names import suggests_names
from hierfl.runtime.processes.process_pool import ProcessPool
from hierfl.runtime.site_runtime import SiteRuntime
from hierfl.runtime.sites.links import Lost

EVERYBODY = 2**31 - 1


@suggests_names
@dataclass(frozen=True)
class Processes(SiteRuntime):
    """The runtime for the problem and the solver that ``address`` (``module:function``) declares as ``case``.

    Parameters
    ----------
    pool
        A process for every client.
    address, case
        What each process declares for itself: see :func:`hierfl.runtime.processes.process_pool.declared`.
    """

    pool: ProcessPool
    address: str
    case: str
    minimum: int = field(default=EVERYBODY, kw_only=True)

    def _links(self, problem: CompiledProblem) -> Any:
        self.pool.ask("declare", dict.fromkeys(range(problem.num_clients), (self.address, self.case)))
        return PipeLinks(self.pool)


class PipeLinks:
    """The ways to the clients' processes; none of them comes later or leaves."""

    def __init__(self, pool: ProcessPool) -> None:
        self.pool = pool

    def ready(self) -> frozenset[str]:
        """All of them."""
        return frozenset(self.held())

    def held(self) -> dict[str, tuple[int, ...]]:
        """Each its own client's data."""
        return {str(place): (place,) for place in range(self.pool.size)}

    def born(self, site: str) -> int:
        """There is one process for each."""
        return 1

    def exchange(self, parcels: Mapping[str, bytes], timeout: float) -> dict[str, bytes | Lost]:
        """Ask them all at once."""
        try:
            return dict(zip(parcels, self.pool.ask("answer", {int(site): (sent,) for site, sent in parcels.items()})))
        except CutShort:
            return dict.fromkeys(parcels, Lost("no answer before the run had to end"))

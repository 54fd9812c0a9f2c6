"""One round in which every client says what standard errors need of its rows, at a given x: :meth:`hierfl.Result.inference` where data are at sites.

A client sends sums over its rows: gradient, Hessian, outer products of the rows' influences, their sum, and the loss
(:mod:`hierfl.compiler.row_sums`). What the server makes of them is in :mod:`hierfl.inspect.inference`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Party
from hierfl.compiler.row_sums import RowLoss, RowSums
from hierfl.errors import SiteError
from hierfl.near_names import suggests_names
from hierfl.runtime.contract import Clients, Message, Received
from hierfl.solvers.newton import require_smooth
from hierfl.solvers.parts.bound import Bound
from hierfl.solvers.parts.client_oracle import ClientOracle
from hierfl.solvers.parts.participation import DrawnCohorts
from hierfl.solvers.parts.requirements import require_gradients, require_single_level
from hierfl.solvers.parts.round_monitor import LocalMonitor, RoundMonitor


@suggests_names
@dataclass(frozen=True)
class StandardErrors:
    """The round of :meth:`hierfl.Result.inference`; it moves nothing. Site rules name it where they list algorithms.

    Raises
    ------
    IncompatibleSolverError
        When bound to a problem with a lower level, a black box, constraints on x, or kinks.

    Examples
    --------
    >>> from hierfl.runtime.sites.owner.site_rules import SiteRules
    >>> SiteRules(algorithms=("Newton", "StandardErrors")).algorithms
    ('Newton', 'StandardErrors')
    """

    def bind(self, problem: CompiledProblem, rounds: int, queries: str = "projected") -> BoundStandardErrors:
        require_single_level(self, problem)
        require_gradients(self, problem)
        require_smooth(self, problem)
        oracle = ClientOracle(problem, None, None, queries, alone=False)
        everybody = DrawnCohorts(problem.num_clients, problem.num_clients)
        return BoundStandardErrors(problem, self, oracle, cohorts=everybody)


class RowsTold(NamedTuple):
    """The server's state: x, what each participant said, and who they were."""

    x: Array
    sums: RowSums
    participants: Array
    present: Array


@dataclass(frozen=True, eq=False)
class BoundStandardErrors(Bound):
    """The round on one problem."""

    absent: ClassVar[str] = "zero"

    def init(self, x0: Array) -> RowsTold:
        m, p = self.problem.num_clients, self.problem.upper.size
        shapes = RowSums((p,), (p, p), (p, p), (p,), (), (p,), (2,))
        nothing = RowSums(*(jnp.zeros((m, *shape)) for shape in shapes))
        return RowsTold(x0, nothing, jnp.zeros(m, int), jnp.zeros(m, bool))

    def round(self, clients: Clients, state: RowsTold, key: Array) -> tuple[RowsTold, dict[str, Array]]:
        messages = clients.map(self.client_sums, state.x)
        finite = jnp.stack([jnp.isfinite(leaf).reshape(len(leaf), -1).all(axis=1) for leaf in messages.payload]).all(axis=0)
        monitor = RoundMonitor.quiet(state.x).with_clients(clients, finite, messages.monitor)
        zero = jnp.zeros_like(state.x)
        record = monitor.record(self.problem.sign, zero[0], jnp.linalg.norm(clients.mean(messages.payload.gradient)))
        return RowsTold(state.x, messages.payload, clients.participants, clients.present), record

    def client_sums(self, party: Party, memory: Array, received: Received, key: Array) -> tuple[Array, Message]:
        found, nothing = RowLoss.above(self.problem).sums(party, received.broadcast, received.broadcast), jnp.zeros(())
        return memory, Message(found, LocalMonitor.told(found.loss, nothing, nothing - 1.0))


def sums_at(problem: CompiledProblem, x: np.ndarray, runtime: Any) -> RowSums:
    """What all clients say of their rows at x, asked of them where they are. Raises ``SiteError``, naming clients that did not answer."""
    algorithm = StandardErrors().bind(problem, 1)
    told = runtime.execute(problem, algorithm, x, 1, 0, 1, lambda *_: None).state
    missing = np.setdiff1d(np.arange(problem.num_clients), np.asarray(told.participants)[np.asarray(told.present)])
    if missing.size:
        who = ", ".join(problem.declaration.client_called(int(client)) for client in missing[:8])
        raise SiteError(f"inference: {who} did not answer, and standard errors are of all rows: ask again when they are there.")
    order = np.argsort(np.asarray(told.participants))
    return RowSums(*(np.asarray(part)[order] for part in jax.tree.leaves(told.sums)))

"""Local SGDA for minimax problems: local stochastic gradient descent ascent (Deng and Mahdavi, 2021, Algorithm 1).

For min over x of max over y of sum_i w_i f_i(x, y): every participant starts at the round's (x, y) and takes H steps

    x_i  <-  x_i - gamma grad_x f_i(x_i, y_i),      y_i  <-  P_{Y(x_i)} [ y_i + gamma_y grad_y f_i(x_i, y_i) ],

both gradients at the same point and for the same samples; the server averages both, and projects x on X and y on Y(x).

The derivative of f misses how Y depends on x. On a set that does not move this is the source's algorithm; on one that
does, it converges, if at all, to points that need not be stationary: min over x of max over y <= -x of x^2 + y has its
solution at 1/2, and local SGDA goes to 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Party
from hierfl.compiler.expressions.program import Rows
from hierfl.errors import IncompatibleSolverError
from hierfl.language.printing.text import expression_text
from hierfl.near_names import suggests_names
from hierfl.runtime.contract import Clients, Message, Received
from hierfl.solvers.fedavg import BoundFedAvg, FedAvg
from hierfl.solvers.parts.bound import Bound, SharedState
from hierfl.solvers.parts.requirements import is_opposed, require_gradients, require_public_set
from hierfl.solvers.parts.round_monitor import RoundMonitor, first_fault, first_flagged, move_rate
from hierfl.solvers.parts.step_schedules import Schedule, row, steps_of, tabulate


def _require_minimax(solver: object, problem: CompiledProblem) -> None:
    """Check that y maximises what x minimises, and that all clients share it."""
    if problem.scope is None:
        raise IncompatibleSolverError(
            "LocalSGDA needs a minimax problem, but this one has no lower level: use FedAvg, or declare lower=hf.ArgMax(...)."
        )
    if problem.scope != "federation":
        raise IncompatibleSolverError(
            f"LocalSGDA needs one y that all clients share, but the lower level has {problem.scope} scope: use ZOHFL or "
            f"FedRZO. (scope='federation' would be another problem, with one y that answers all clients together.)"
        )
    server, lower_ids = problem.declaration.objective.server, {v.id for v in problem.lower.variables}
    if server is not None and any(v.id in lower_ids for v in server.variables()):
        raise IncompatibleSolverError(
            "LocalSGDA needs y in the clients' terms alone, but the server term mentions it, and the lower level does not hold "
            "that term: use FedRZO, or give the term to the clients."
        )
    if problem.client_program is None or not is_opposed(problem):
        raise IncompatibleSolverError(
            "LocalSGDA needs a minimax problem, in which y maximises what x minimises, but the lower level and the clients' "
            "terms have different objectives in y: use FedRZO or ImplicitGradient for bilevel problems."
        )


@dataclass(frozen=True, eq=False)
class BoundLocalSGDA(BoundFedAvg):
    """Local SGDA on one problem: the algorithm of the runtime contract. ``ascents`` (rounds,): gamma_y."""

    ascents: np.ndarray
    averages_gradients: ClassVar[bool] = False
    tabulated: ClassVar[tuple[str, ...]] = (*BoundFedAvg.tabulated, "ascent_step")
    advice: ClassVar[str] = "Take more rounds, or a larger ascent_step."

    def caveat(self, rounds: int) -> str | None:
        """The method ignores how Y moves with x: a constraint by which it does is named."""
        upper, level = {v.id for v in self.problem.upper.variables}, self.problem.declaration.lower_level
        for constraint in level.constraints if level is not None else ():
            if upper & {v.id for v in constraint.variables()}:
                return (
                    f"{expression_text(constraint)} moves with x, which the method ignores: it may end where f is not stationary "
                    f"(compare result.gap or problem.implicit.stationarity). FedRZO and ImplicitGradient see it."
                )
        return None

    def init(self, x0: Array) -> SharedState:
        """The server begins at x0, and at y = 0 until the first round projects it on Y(x)."""
        return SharedState(*Bound.init(self, x0))

    def round(self, clients: Clients, state: SharedState, key: Array) -> tuple[SharedState, dict[str, Array]]:  # type: ignore[override]
        problem, public, weight = self.problem, clients.public, self.problem.total_weight
        state = SharedState(state.x, problem.project_lower(state.x, state.y, public))
        messages = clients.map(self.local_steps, state)
        moves, monitor = clients.mean((messages.payload, messages.monitor))
        move, value, rise = moves.x / weight, monitor["value"], moves.y / weight
        if problem.server_program is not None:
            server_move, server_value = clients.server(self.server_steps, state.x)
            move, value = (moves.x + server_move) / (weight + 1), value + server_value
        x = problem.project_upper(state.x + move, public)
        y = problem.project_lower(x, state.y + rise, public)
        nearest = problem.project_lower(state.x, state.y + monitor["ascent"], public)
        size, gap = self.size(clients.round), problem.lower_gap(state.x, public)
        fault, everyone = first_fault(clients, messages), jnp.broadcast_to(~(gap <= 0), clients.participants.shape)
        empty = first_flagged(clients.participants, everyone)
        watched = RoundMonitor(value, jnp.linalg.norm(state.y - nearest), gap, fault, empty)
        steps = self.made(clients)
        bounded = problem.lower_set.kind != "free"
        own = {"lower_gradients": steps, "projections": self.above(1) + bounded * (steps + 3)}
        if problem.server_program is not None:
            steps = steps + jnp.maximum(self.server_count(clients.round), 1)
        own["gradients"] = steps
        return SharedState(x, y), watched.record(problem.sign, size, move_rate(move, size), **own)

    def local_steps(self, party: Party, memory: Array, received: Received, key: Array) -> tuple[Array, Message]:
        """A participant's H simultaneous steps in x and y; it sends both moves."""
        problem, start, r = self.problem, received.broadcast, received.round
        size, ascent_size = self.size(r), row(self.ascents, r)

        def step(t: Array, own: tuple[SharedState, Array, Array]) -> tuple[SharedState, Array, Array]:
            (x, y), first, first_ascent = own

            def slopes(rows: Rows) -> tuple[Array, tuple[Array, Array]]:
                return jax.value_and_grad(self.client_term.value, argnums=(0, 1))(x, y, party.environment, rows)

            value, (descent, ascent) = party.estimate(slopes, samples, key, self.settings.batch_size, t)
            y = problem.project_lower(x, y + ascent_size * ascent, party.environment)
            now = jax.tree.map(
                lambda new, old: jnp.where(t < count, new, old), SharedState(x - size * descent, y), own[0]
            )
            return now, jnp.where(t == 0, value, first), jnp.where(t == 0, ascent, first_ascent)

        count = steps_of(self.counts, r, party.index)
        none = jnp.zeros((), start.x.dtype), jnp.zeros_like(start.y)
        first, samples = (start, *none), self.client_term.samples
        end, value, ascent = jax.lax.fori_loop(0, jnp.maximum(count, 1), step, first)
        return memory, Message(jax.tree.map(jnp.subtract, end, start), {"value": value, "ascent": ascent})


@suggests_names
@dataclass(frozen=True)
class LocalSGDA(FedAvg):
    """Settings of local SGDA: those of :class:`FedAvg`, and

    Parameters
    ----------
    ascent_step
        gamma_y: a number, ``Decay(c, p)`` or callable of the round.

    Warnings
    --------
    How Y(x) moves with x is ignored, as in all primal-dual gradient methods: the result is wrong where the set's dependence
    on x matters. Use FedRZO or ImplicitGradient there.

    Raises
    ------
    IncompatibleSolverError
        When bound to anything but a minimax problem of federation scope: an ``ArgMax`` over y of the objective that x
        minimises (up to terms without y).

    Examples
    --------
    >>> from hierfl.solvers import LocalSGDA
    >>> h = x @ y + cp.sum_squares(x - 1) - cp.sum_squares(y)
    >>> saddle = hf.Problem(hf.Minimize(clients=h), hf.ArgMax(y, h))
    >>> saddle.solve(LocalSGDA(step_size=0.05, ascent_step=0.05), rounds=100, progress=False).x.round(1)
    array([0.8, 0.8])
    """

    ascent_step: Schedule = 0.01
    takes_epochs: ClassVar[bool] = False
    _requirements = (require_gradients, require_public_set, _require_minimax)
    _algorithm = BoundLocalSGDA

    def _tables(self, problem: CompiledProblem, rounds: int) -> dict[str, Any]:
        return {"ascents": tabulate(self.ascent_step, rounds, "ascent_step")}

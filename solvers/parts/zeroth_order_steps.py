"""What the three algorithms of FedRZO share: rounds of zeroth-order local steps, averaged by the server.

An algorithm says in ``round`` what the server draws, asks for and broadcasts, and in ``local_steps`` how a participant
evaluates f_i at the points around its x_i. Here are the lines that all of them have in common:

* the local update x_i  <-  x_i - gamma ( g + (x_i - P_{X_i}(x_i)) / eta ), repeated (``descend``);
* the server's mean of the participants' moves (``averaged``), to which its own local steps on f_1 are added, where the problem
  has such a term: the server is then one more client.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from hierfl.compiler.data.tables import Party
from hierfl.compiler.expressions.program import Environment, Rows
from hierfl.runtime.contract import Clients, Message, Received
from hierfl.solvers.lower.lower_solver import Clock
from hierfl.solvers.parts.bound import Bound
from hierfl.solvers.parts.client_oracle import Evaluated
from hierfl.solvers.parts.directions import Directions, average_along, central_value, estimate, shifts_of, slopes
from hierfl.solvers.parts.round_monitor import LocalMonitor, RoundMonitor, move_rate
from hierfl.solvers.parts.step_schedules import row, rows
from hierfl.solvers.parts.uplink import Ledger, MoveUplink, SeededSteps, SlopeUplink, arrived

Value = TypeVar("Value")


class FedRZOState(NamedTuple):
    """x, the federation's latest y (empty in other scopes), and what clients have seen of the scalars sent."""

    x: Float[Array, " n"]
    y: Float[Array, " size"]
    ledger: Ledger


class FedRZOMemory(NamedTuple):
    """A client's latest y (client scope) and its control variate; each empty where it is not kept."""

    y: Float[Array, " size"]
    control: Float[Array, " n"]


class LocalGradient(NamedTuple):
    """One step's g, the slopes behind it, the client's memory after it, and what it saw of f_i and of its lower level."""

    gradient: Float[Array, " n"]
    slopes: Float[Array, " q"]
    memory: FedRZOMemory
    seen: LocalMonitor


class LocalIterate(NamedTuple):
    """Where a client is in its local steps: x_i, its memory, the slopes that it keeps for its message, and its monitor."""

    x: Float[Array, " n"]
    memory: FedRZOMemory
    slopes: Array
    monitor: LocalMonitor


@dataclass(frozen=True, eq=False)
class ZerothOrderSteps(Bound):
    """An algorithm of FedRZO on one problem: the settings are those of ``FedRZO``."""

    steps: SeededSteps
    uplink: MoveUplink | SlopeUplink
    stays_in_upper_set: ClassVar[bool] = False
    tabulated: ClassVar[tuple[str, ...]] = ("step_size", "local_steps", "smoothing", "accuracy")

    def cut_short(self, last: int, steps: int) -> Self:
        return replace(self, steps=self.steps.cut_short(last, steps))

    def gradient_steps(self, first: int, last: int) -> np.ndarray | None:
        """H, where every client makes as many."""
        counts, even = rows(self.steps.counts, first, last), super().gradient_steps(first, last)
        return None if even is None or np.any(counts != counts[:, :1]) else np.asarray(even * counts[:, 0])

    def init(self, x0: Float[Array, " n"]) -> FedRZOState:
        """The server begins at x0; clients know it."""
        start = super().init(x0)
        return FedRZOState(start.x, start.y, Ledger.new(self.problem))

    def memory(self, x0: Float[Array, " n"]) -> FedRZOMemory:
        """A client remembers its y in client scope, and its control variate, where it keeps one."""
        control = jnp.zeros(x0.size if self.settings.control_variate else 0, x0.dtype)
        return FedRZOMemory(super().memory(x0), control)

    def clock(self, r: Array) -> Clock:
        return self.steps.clock(r)

    # --- a participant ---------------------------------------------------------------------------------------------

    def local_steps(
        self, party: Party, memory: FedRZOMemory, received: Received, key: Array
    ) -> tuple[FedRZOMemory, Message]:
        """A participant's H local steps: the algorithm says how it evaluates f_i in each."""
        raise NotImplementedError

    def around(
        self,
        x: Float[Array, " n"],
        v: Directions,
        own: Environment,
        evaluate: Callable[[Array, Array], Value],
        each: Array | None = None,
    ) -> Value:
        """``evaluate(z, own)`` at the estimator's points z around x, stacked; ``each`` holds something for each point, by default its place."""
        numbers, lengths = shifts_of(v.count, self.steps.smoothing, self.settings.estimator)
        given = jnp.arange(len(numbers)) if each is None else each

        def at(direction: Array, length: Array, given: Array) -> Value:
            return evaluate(self.oracle.query(x + length * direction, own), given)

        return v.each(at, numbers, lengths, given, one_by_one=self.oracle.one_by_one)

    def estimated(self, v: Directions, evaluated: Evaluated, memory: FedRZOMemory) -> LocalGradient:
        """g from a client's values ``around`` its x_i; the control variate in its memory is used, and moved."""
        settings, values = self.settings, evaluated.value
        measured = slopes(values, self.steps.smoothing, settings.estimator)
        gradient, control = estimate(v, measured, memory.control, settings.direction_kind)
        value = central_value(values, settings.estimator)
        counted = jnp.sum(evaluated.solves), jnp.sum(evaluated.evaluations)
        seen = LocalMonitor(value, jnp.max(evaluated.residual), jnp.max(evaluated.gap), *counted)
        return LocalGradient(gradient, measured, memory._replace(control=control), seen)

    def descend(
        self,
        party: Party,
        start: Float[Array, " n"],
        memory: FedRZOMemory,
        received: Received,
        key: Array,
        local_gradient: Callable[[Array, FedRZOMemory, Clock, Array], LocalGradient],
    ) -> tuple[FedRZOMemory, Message]:
        """The local updates from ``start``, H times, and the participant's message.

        ``local_gradient(x, memory, clock, keys)`` is g at x_i; of its two keys the first is for directions, the second for samples.
        A client without steps of its own still tells f_i.
        """
        steps, r = self.steps, received.round
        size, count, keys = steps.size(r), steps.count(r, party.index), steps.keys(key)

        def step(t: Array, own: LocalIterate) -> LocalIterate:
            local = local_gradient(own.x, own.memory, steps.clock(r, t), keys[t])
            x = steps.update(own.x, local.gradient, size, lambda z: self._project_own(z, party))
            monitor = own.monitor.after(t, local.seen)
            moved = LocalIterate(x, local.memory, self.uplink.noted(own.slopes, t, local.slopes), monitor)
            return jax.tree.map(lambda new, old: jnp.where(t < count, new, old), moved, own._replace(monitor=monitor))

        slopes_kept = self.uplink.first_slopes(steps, start)
        first = LocalIterate(start, memory, slopes_kept, LocalMonitor.before_steps(start))
        end = jax.lax.fori_loop(0, jnp.maximum(count, 1), step, first)
        return end.memory, Message(self.uplink.payload(end.x - start, end.slopes), end.monitor._asdict())

    def _project_own(self, x: Float[Array, " n"], party: Party) -> Float[Array, " n"]:
        """P_{X_i}, private constraints included."""
        problem = self.problem
        if problem.private_set is None:
            return problem.project_upper(x, party.environment)
        return problem.client_upper_set.project(x, party.environment)

    # --- the server ------------------------------------------------------------------------------------------------

    def averaged(
        self,
        clients: Clients,
        x: Float[Array, " n"],
        broadcast: object,
        monitor: RoundMonitor,
        v: Directions | None = None,
        y: Array | None = None,
    ) -> tuple[Float[Array, " n"], dict[str, Array]]:
        """The new x, after everybody's local steps from x, and the round's record; ``v`` are the round's directions, if it has some, and y is the federation's."""
        problem, move, size = self.problem, jnp.zeros_like(x), self.steps.size(clients.round)
        counts, steps = self.steps.count(clients.round, clients.participants), jnp.zeros((), int)
        if problem.client_program is not None:
            messages = clients.map(self.local_steps, self.with_prices(clients, x, y, broadcast))
            moves, told = self.uplink.moves(clients, self.steps, x, messages.payload, v), messages.monitor
            move = clients.mean(moves)
            finite = jnp.isfinite(moves).all(axis=1) & jnp.isfinite(told["value"])
            monitor = monitor.with_clients(clients, finite, told)
            steps = self.of_present(clients, jnp.maximum(counts, 1))
        if problem.server_program is not None:
            server_move, value = clients.server(self.server_steps, broadcast)
            move, monitor = move + server_move, monitor.with_server(value)
            steps = steps + jnp.maximum(jnp.max(row(self.steps.counts, clients.round)), 1)
        values = steps * len(shifts_of(self.steps.directions, self.steps.smoothing, self.settings.estimator)[0])
        projections = self.above(steps, values) + self.below(monitor)
        return x + move, monitor.record(problem.sign, size, move_rate(move, size), values=values, projections=projections)

    def server_steps(self, party: Party, received: Received, key: Array) -> tuple[Array, Array]:
        """The server's own local steps on f_1, directions of its own in each; (its move, f_1 at x)."""
        return self.server_descent(party, arrived(received.broadcast), received, key, self.steps.draw, None)

    def server_descent(
        self,
        party: Party,
        x: Float[Array, " n"],
        received: Received,
        key: Array,
        draw: Callable[[Array], Directions],
        y: Float[Array, "points size"] | None,
    ) -> tuple[Array, Array]:
        """Local steps on f_1 from x, as many as the busiest client's; ``y`` are the federation's answers, where f_1 may depend on them."""
        settings, problem, steps, r = self.settings, self.problem, self.steps, received.round
        count, keys, size = jnp.max(row(steps.counts, r)), steps.keys(key), steps.size(r)

        def project(z: Array) -> Array:  # X is the clients' affair where there are clients' terms
            return z if problem.client_program is not None else problem.project_upper(z, party.environment)

        def step(t: Array, own: tuple[Array, Array]) -> tuple[Array, Array]:
            (point, first), (v_key, sample_key) = own, keys[t]
            v = draw(v_key)

            def evaluate(z: Array, answer: Array) -> Array:
                def value(rows: Rows) -> Array:
                    return problem.server_value(z, None if y is None else answer, party.environment, rows)

                return party.estimate(value, problem.server_samples, sample_key, settings.batch_size)

            values = self.around(point, v, party.environment, evaluate, y)
            gradient = average_along(v, slopes(values, steps.smoothing, settings.estimator))
            moved = steps.update(point, gradient, size, project)
            value = jnp.where(t == 0, central_value(values, settings.estimator), first)
            return jnp.where(t < count, moved, point), value

        end, value = jax.lax.fori_loop(0, jnp.maximum(count, 1), step, (x, jnp.zeros((), x.dtype)))
        return end - x, value

"""FedBiO (Li, Huang and Huang, 2023), with a lower level that all clients share: bilevel problems by local steps on x, y and u.

u solves the quadratic problem min over u of sum_i w_i (u' grad_yy g_i u / 2 - u' grad_y f_i), whose solution gives the gradient of f. All
three problems are federated, and solved together: in a round a client begins at the server's (x, y, u) and makes H steps, of all three at once,

    y_i  <-  y_i - gamma grad_y g_i              x_i  <-  x_i - eta (grad_x f_i - grad_xy g_i u_i)
    u_i  <-  u_i - tau (grad_yy g_i u_i - grad_y f_i)

at its own (x_i, y_i); each of the five terms has a minibatch of its own. Then x, y and u are the means of the clients' ends. The source's
H is its I, steps between two averages.

The source's full text was not at hand when this was written; compare it before citing numbers as its. As it is read here: all three steps are from the same point (x does not wait for the new y); the source's variant for lower levels of the
clients' own, and the momentum of its FedBiOAcc, are not here. Clients that differ end beside the optimum when they make several local steps
with steps that do not shrink.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Party
from hierfl.jaxtools.keyed_random import split
from hierfl.near_names import suggests_names
from hierfl.runtime.contract import Clients, Message, Received
from hierfl.solvers.parts.nested import BoundNested, NestedPoint, NestedSettings, tabulate_lower_step
from hierfl.solvers.parts.participation import Participation
from hierfl.solvers.parts.step_schedules import Schedule, StepCounts, constant, in_phases, row, steps_of, tabulate_steps


@dataclass(frozen=True, eq=False)
class BoundFedBiO(BoundNested):
    """FedBiO on one problem: the algorithm of the runtime contract.

    ``linear_sizes`` (rounds,): tau; ``counts`` (rounds or 1, clients or 1): H. The state is a ``NestedPoint``.
    """

    linear_sizes: np.ndarray
    counts: np.ndarray
    tabulated: ClassVar[tuple[str, ...]] = ("step_size", "inner_step", "linear_step", "local_steps")

    @classmethod
    def of(cls, settings: Any, problem: CompiledProblem, rounds: int, queries: str, **own: Any) -> Self:
        counts = tabulate_steps(in_phases(settings.local_steps, rounds), rounds, problem.num_clients)
        linear = tabulate_lower_step(settings, problem, rounds, "linear_step")
        return super().of(settings, problem, rounds, queries, **own, linear_sizes=linear, counts=constant(counts))

    def init(self, x0: Array) -> NestedPoint:
        """The server begins at x0, y = 0 and u = 0."""
        nothing = jnp.zeros(self.problem.lower.size, x0.dtype)
        return NestedPoint(x0, nothing, nothing)

    def round(self, clients: Clients, state: NestedPoint, key: Array) -> tuple[NestedPoint, dict[str, Array]]:
        messages = clients.map(self.local_steps, state)
        x, y, u = jax.tree.map(jnp.add, state, self.move(clients, messages.payload))
        after = NestedPoint(self.problem.project_upper(x, clients.public), y, u)
        steps = self.of_present(clients, jnp.maximum(steps_of(self.counts, clients.round, clients.participants), 1))
        return after, self.record(clients, x - state.x, messages, gradients=2 * steps, products=2 * steps, lower_gradients=steps)

    def move(self, clients: Clients, moves: NestedPoint) -> NestedPoint:
        return self.mean(clients, moves)

    def local_steps(self, party: Party, memory: Array, received: Received, key: Array) -> tuple[Array, Message]:
        """A participant's H simultaneous steps; it sends its three moves."""
        start, r = received.broadcast, received.round
        count, sizes = steps_of(self.counts, r, party.index), (self.sizes, self.inner_sizes, self.linear_sizes)
        steps = NestedPoint(*(row(table, r) for table in sizes))
        y_key, x_key, hessian_key, slope_key = split(key, 4)

        def step(t: Array, own: tuple[NestedPoint, dict[str, Array]]) -> tuple[NestedPoint, dict[str, Array]]:
            at, first = own
            value, in_x = self.hypergradient(at, party, x_key, t)
            in_y = self.lower_gradient(at.x, at.y, party, y_key, t)
            in_u = self.hessian_product(*at, party, hessian_key, t) - self.upper_gradient_in_y(at.x, at.y, party, slope_key, t)
            after = jax.tree.map(
                lambda z, size, slope: jnp.where(t < count, z - size * slope, z), at, steps, NestedPoint(in_x, in_y, in_u)
            )
            told = {"value": value, "slope": in_y}
            return after, jax.tree.map(lambda now, then: jnp.where(t == 0, now, then), told, first)

        nothing = {"value": jnp.zeros((), start.x.dtype), "slope": jnp.zeros_like(start.y)}
        end, told = jax.lax.fori_loop(0, jnp.maximum(count, 1), step, (start, nothing))  # without steps it still tells
        return memory, Message(jax.tree.map(jnp.subtract, end, start), told)


@suggests_names
@dataclass(frozen=True)
class FedBiO(NestedSettings):
    """Settings of FedBiO.

    The means are over the round's participants, with the clients' weights made to sum to one. x is projected on X by the server, which
    the source, without constraints, does not treat.

    Parameters
    ----------
    step_size
        eta of a step on x: a number, ``Decay(c, p)``, a callable of the round, or ``"auto"``, a step that short trial runs find.
    inner_step
        gamma of a step on y: a number or schedule; None is 1 / l, for an l that is certified to be at least the Lipschitz constant of every
        grad_y g_i in y, or, where none can be, for twice the largest curvature at the start, which a warning tells.
    linear_step
        tau of a step on u, likewise; None is the step on y, for the same l bounds both.
    local_steps
        H: number, schedule, or one per client. ``"auto"``: 5, and 1 in the last quarter of the rounds, from round 200 on at the latest.
    participation
        Who takes part in a round: a fraction of the clients, a callable of the round, or an array (rounds, clients).
    batch_size
        Rows of every minibatch, each drawn anew; None uses all. ``"auto"``: all, where no client has more than 10,000, else 32.

    Raises
    ------
    SettingError
        For a setting out of range, or a step on y that is left to be certified and cannot be.
    IncompatibleSolverError
        When bound to a lower level of another scope or with constraints on y, an equilibrium, a server term, a black box, or private
        constraints on x.

    Examples
    --------
    >>> from hierfl.solvers import FedBiO
    >>> free = hf.Problem(hf.Minimize(clients=cp.sum_squares(x + y - 2)), hf.ArgMin(y, cp.sum_squares(y - x)))
    >>> free.solve(FedBiO(step_size=0.05), rounds=50, progress=False).x.round(1)
    array([1., 1.])
    """

    step_size: Schedule = "auto"
    inner_step: Schedule | None = None
    linear_step: Schedule | None = None
    local_steps: StepCounts | Literal["auto"] = "auto"
    participation: Participation = 1.0
    batch_size: int | Literal["auto"] | None = "auto"
    _algorithm: ClassVar[type[BoundFedBiO]] = BoundFedBiO

"""Implicit gradients in a federation: x  <-  P_X [ x - gamma sum_i w_i grad f_i(x, y_i(x)) ] by implicit differentiation.

Where the lower level is smooth and its set has a differentiable projection, one exact gradient replaces the n and more
evaluations that a zeroth-order method needs to see as much (Grazzi et al., 2020, for unconstrained lower levels; the
formulas for sets, moving ones included, are in ``hierfl.compiler.implicit_differentiation``). A client solves its lower level and the
adjoint system by itself and sends one vector. In federation scope the lower level and the adjoint system are solved by the
simulation: they are counted as the data that they are made of, sent once. At kinks of f the gradient is a heuristic.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Party
from hierfl.compiler.expressions.program import Rows
from hierfl.compiler.implicit_differentiation import Hypergradient, LowerMap
from hierfl.jaxtools.keyed_random import split
from hierfl.near_names import suggests_names
from hierfl.runtime.contract import Clients, Known, Message, Received
from hierfl.solvers.lower import Exact
from hierfl.solvers.lower.exact import BoundExact
from hierfl.solvers.lower.lower_solver import LowerSolver, bind_lower, require_federated
from hierfl.solvers.parts.bound import Bound, SharedState
from hierfl.solvers.parts.client_oracle import ClientOracle
from hierfl.solvers.parts.common_settings import require_common
from hierfl.solvers.parts.participation import Participation, cohorts_of
from hierfl.solvers.parts.requirements import require_gradients, require_lower, require_public_set
from hierfl.solvers.parts.round_monitor import LocalMonitor, RoundMonitor
from hierfl.solvers.parts.step_schedules import Schedule, row, tabulate

EXACT = Exact()
Value = TypeVar("Value")


@suggests_names
@dataclass(frozen=True)
class ImplicitGradient:
    """Settings of the implicit gradient method.

    Parameters
    ----------
    step_size
        gamma: a number, ``Decay(c, p)``, a callable of the round, or ``"auto"``, a step that short trial runs find.
    lower
        A lower-level solver; default ``Exact()``. With an inexact one the gradient is that of the formula at its y.
    participation
        Who takes part in a round, as for :class:`FedAvg`.
    absent
        How the absent count: ``"unbiased"``, ``"renormalise"``, ``"zero"``.
    batch_size
        Rows of the upper-level minibatches; None uses all. Lower levels are differentiated on all their data.

    Raises
    ------
    SettingError
        For a setting out of range.
    IncompatibleSolverError
        When bound to a problem without derivatives: a nonsmooth lower level, a BlackBox, a set that goes to CVXPY.

    Examples
    --------
    >>> from hierfl.solvers import ImplicitGradient
    >>> problem.solve(ImplicitGradient(step_size=0.1), rounds=100, progress=False).x.round(1)
    array([-1., -1.])
    """

    step_size: Schedule = 0.1
    lower: LowerSolver = EXACT
    participation: Participation = 1.0
    absent: str = "unbiased"
    batch_size: int | None = None
    prices_means: ClassVar[bool] = True  # those that upper constraints are on, by a question in every round

    def __post_init__(self) -> None:
        require_common(self)
        require_lower(self.lower)

    def bind(self, problem: CompiledProblem, rounds: int, queries: str = "projected") -> BoundImplicitGradient:
        """The algorithm for one problem, schedules tabulated."""
        require_gradients(self, problem)
        require_public_set(self, problem)
        hyper = Hypergradient.of(problem, in_rounds=True)
        sizes = tabulate(self.step_size, rounds, "step_size")
        lower = bind_lower(self.lower, problem, rounds, rounds)
        if problem.scope == "federation":
            require_federated(lower, self)
        oracle = ClientOracle(problem, lower, self.batch_size, queries, problem.scope == "client")
        cohorts = cohorts_of(self, problem, rounds)
        return BoundImplicitGradient(problem, self, oracle, sizes, hyper, cohorts=cohorts)


@dataclass(frozen=True, eq=False)
class BoundImplicitGradient(Bound):
    """The method on one problem. A client's memory is its y; ``sizes`` (rounds,): gamma."""

    settings: ImplicitGradient
    sizes: np.ndarray
    hyper: Hypergradient
    tabulated: ClassVar[tuple[str, ...]] = ("step_size",)

    def round(self, clients: Clients, state: SharedState, key: Array) -> tuple[SharedState, dict[str, Array]]:
        problem, (x, y), size = self.problem, state, row(self.sizes, clients.round)
        at, monitor = self.oracle.query(x, clients.public), RoundMonitor.quiet(x, self.lower)
        in_x, in_y = jnp.zeros_like(x), jnp.zeros_like(y)  # gradients of the terms, in the federation's y too
        if self.federated:
            if isinstance(self.lower, BoundExact) or not self.hyper.envelope:
                self.charge_pooled(clients)
            answer = self.lower.federation(clients.everyone, Known(at[None]), y, self.clock(clients.round), key)
            y, monitor = answer.y[0], monitor.with_federation(answer, self.lower, self.clock(clients.round))
        if problem.client_program is not None:
            messages = clients.map(self.client_gradient, self.with_prices(clients, at, y, (at, y)))
            in_x, in_y = clients.mean(messages.payload)
            finite = jnp.isfinite(messages.monitor["value"]) & jnp.isfinite(messages.payload[0]).all(axis=1)
            monitor = monitor.with_clients(clients, finite, messages.monitor)
        if problem.server_program is not None:
            value, server_in_x, server_in_y = clients.server(self.server_gradient, (at, y))
            in_x, monitor = in_x + server_in_x, monitor.with_server(value)
            in_y = in_y + server_in_y if self.federated else in_y
        gradient = in_x
        if self.federated:
            gradient = self._federated(clients.everyone, at, in_x, in_y, y)
        sides = problem.terms_of(clients.count)
        own = {"gradients": sides, "projections": self.above(1, 1 + sides) + self.below(monitor)}
        record = monitor.record(problem.sign, size, jnp.linalg.norm(gradient), **own)
        return SharedState(problem.project_upper(x - size * gradient, clients.public), y), record

    def client_gradient(self, party: Party, memory: Array, received: Received, key: Array) -> tuple[Array, Message]:
        """One client's gradient in x, and in federation scope in y."""
        party, received = self.oracle.at_prices(party, memory, received, key)
        problem, (x, y) = self.problem, received.broadcast
        lower_key, upper_key = split(key)
        clock = self.clock(received.round)
        residual, gap, in_y, solves = (
            jnp.zeros(()),
            jnp.zeros(()),
            jnp.zeros_like(y),
            jnp.full((), int(self.oracle.alone)),
        )

        def mean(function: Callable[[Rows], Value]) -> Value:
            return party.estimate(function, problem.upper_samples, upper_key, self.settings.batch_size)

        if problem.scope == "sample":
            zero = jnp.zeros(problem.lower.size, x.dtype)

            def answered(rows: Rows) -> tuple[Array, Array, Array]:
                found = self.hyper.rows(x, party, rows, lambda row: self.lower.sample(x, party, row, zero, clock)[0])
                return *found, self.oracle.answers_of(rows)

            value, gradient, solves = mean(answered)
        elif self.federated:
            value, gradient, in_y = self.hyper.partials(x, y, party, mean)
        else:
            if self.oracle.alone:
                memory, residual = self.lower.client(x, party, memory, clock, lower_key)
                gap = problem.lower_gap(x, party.environment)
            value, gradient = self.hyper.client(x, memory, party, mean)
        return memory, Message((gradient, in_y), LocalMonitor.told(value, residual, gap, *self.oracle.worked(solves, party, clock)))

    def server_gradient(self, party: Party, received: Received, key: Array) -> tuple[Array, Array, Array]:
        """(value, gradient in x, gradient in the federation's y) of the server's term."""
        problem, (x, y) = self.problem, received.broadcast

        def at(rows: Rows) -> tuple[Array, tuple[Array, Array]]:
            def value(v: Array, z: Array) -> Array:
                return problem.server_value(v, z if self.federated else None, party.environment, rows)

            return jax.value_and_grad(value, argnums=(0, 1))(x, y)

        value, (in_x, in_y) = party.estimate(at, problem.server_samples, key, self.settings.batch_size)
        return value, in_x, in_y

    def _federated(self, clients: Clients, x: Array, in_x: Array, in_y: Array, y: Array) -> Array:
        """The gradient by answers of the clients; where y is one of several solutions by the method, which knows them all."""
        method = self.hyper.exact.method
        if self.problem.several and isinstance(self.lower, BoundExact) and method is not None:
            return in_x + method.pull(x, self.lower.owner(clients, x), y, in_y)
        asked = self.hyper.adjoint(x, in_x, in_y, self._mean_map(clients, x, y), y)
        if not isinstance(self.lower, BoundExact) or method is None or not method.responds or method.structure.strict:
            return asked
        known = in_x + method.pull(x, self.lower.owner(clients, x), y, in_y)
        return jnp.where(jnp.isnan(known).any(), asked, known)

    def _mean_map(self, clients: Clients, x: Array, y: Array) -> LowerMap:
        """The federation's lower level, asked of the clients."""
        public = clients.public
        return LowerMap(
            clients.mean(clients.query(self.force, (x, y))),
            lambda v: clients.mean(clients.query(self.hessian, (x, y, v))),
            lambda v: clients.mean(clients.query(self.cross, (x, y, v))),
            lambda v, z: self.problem.project_lower(v, z, public),
        )

    def force(self, party: Party, asked: tuple[Array, Array]) -> Array:
        """A client's F(x, y), or its gradient in y."""
        return self.hyper.lower_map(*asked, party).force

    def hessian(self, party: Party, asked: tuple[Array, Array, Array]) -> Array:
        """A client's product with the transpose of D_y F."""
        x, y, v = asked
        return self.hyper.lower_map(x, y, party).hessian(v)

    def cross(self, party: Party, asked: tuple[Array, Array, Array]) -> Array:
        """A client's product with the transpose of D_x F."""
        x, y, v = asked
        return self.hyper.lower_map(x, y, party).cross(v)

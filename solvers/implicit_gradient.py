"""Implicit gradients in a federation: x  <-  P_X [ x - gamma sum_i w_i grad f_i(x, y_i(x)) ] by implicit differentiation.

Where the lower level is smooth and its set has a differentiable projection, one exact gradient replaces the n and more
evaluations that a zeroth-order method needs to see as much (Grazzi et al., 2020, for unconstrained lower levels; the
formulas for sets, moving ones included, are in ``hierfl.compiler.implicit_differentiation.adjoint``). A client solves its lower level and the
adjoint system by itself and sends one vector. In federation scope the lower level and the adjoint system are solved by the
simulation, whose questions to the clients are not counted. At kinks of f the gradient is a heuristic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Party
from hierfl.compiler.expressions.program import Array, Rows
from hierfl.compiler.implicit_differentiation.adjoint import Hypergradient, LowerMap
from hierfl.errors import IncompatibleSolverError
from hierfl.jaxtools.keyed_random import split
from hierfl.language.function import uses_black_box
from hierfl.runtime.contract import Clients, Known, Message, Received
from hierfl.solvers.lower import Exact
from hierfl.solvers.lower.lower_solver import Clock, bind_lower, require_federated
from hierfl.solvers.parts.bound import ABSENT, Bound
from hierfl.solvers.parts.client_oracle import ClientOracle
from hierfl.solvers.parts.requirements import (
    require_choice,
    require_count,
    require_lower,
    require_number,
    require_public_set,
)
from hierfl.solvers.parts.round_monitor import first_flagged
from hierfl.solvers.parts.step_schedules import Schedule, tabulate
from hierfl.solvers.parts.step_tables import row

EXACT = Exact()


@dataclass(frozen=True)
class ImplicitGradient:
    """Settings of the implicit gradient method.

    Parameters
    ----------
    step_size
        gamma: a number, ``Decay(c, p)`` or callable of the round.
    lower
        A lower-level solver; default ``Exact()``. With an inexact one the gradient is that of the formula at its y.
    participation
        Fraction of the clients in a round; the subset has ceil(fraction * m) members.
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
    """

    step_size: Schedule = 0.1
    lower: Any = EXACT
    participation: float = 1.0
    absent: str = "unbiased"
    batch_size: int | None = None

    def __post_init__(self) -> None:
        require_number(self.participation, "participation", 0, 1)
        require_choice(self.absent, "absent", ABSENT)
        require_count(self.batch_size, "batch_size", or_none=True)
        require_lower(self.lower)

    def bind(self, problem: CompiledProblem, rounds: int, queries: str = "projected") -> BoundImplicitGradient:
        """The algorithm for one problem, schedules tabulated."""
        terms = [term for term in problem.declaration.objective.terms if term is not None]
        box = uses_black_box(terms)
        if box is not None:
            raise IncompatibleSolverError(
                f"ImplicitGradient differentiates the upper terms, but {box.name()} is a BlackBox (values only): use FedRZO or ZOHFL, "
                f"or write it as a hf.Function."
            )
        require_public_set(self, problem)
        hyper = Hypergradient.of(problem)
        sizes = tabulate(self.step_size, rounds, "step_size")
        lower = bind_lower(self.lower, problem, rounds, rounds)
        if problem.scope == "federation":
            require_federated(lower, self)
        oracle = ClientOracle(problem, lower, self.batch_size, queries, problem.scope == "client")
        return BoundImplicitGradient(problem, self, oracle, sizes, hyper)


@dataclass(frozen=True, eq=False)
class BoundImplicitGradient(Bound):
    """The method on one problem. The state is (x, the federation's y); a client's memory is its y."""

    settings: ImplicitGradient
    sizes: np.ndarray
    hyper: Hypergradient
    tabulated: ClassVar[tuple[str, ...]] = ("step_size",)

    def init(self, x0: Array) -> tuple[Array, Array]:
        """x0, and 0 for the federation's y."""
        return x0, jnp.zeros(self.problem.lower.size if self.federated else 0, x0.dtype)

    def memory(self, x0: Array) -> Array:
        """A client remembers its last y, for a warm start."""
        return self.oracle.first_answer(x0)

    def decision(self, state: tuple[Array, Array]) -> Array:
        """x."""
        return state[0]

    def response(self, state: tuple[Array, Array], memory: Array) -> Array | None:
        """The latest y."""
        if self.federated:
            return state[1][None]
        return memory if self.oracle.alone else None

    def own_value(self, clients: Clients, state: tuple[Array, Array], x: Array, key: Array) -> Array:
        """All terms at x with y by this run's lower solver."""
        clock, y = _clock(clients.round), None
        if self.federated:
            y = self.oracle.lower.federation(clients, Known(x[None]), state[1], clock, key).y[0]
        return self.oracle.own_value(clients, x, y, clock, key)

    def round(self, clients: Clients, state: tuple[Array, Array], key: Array) -> tuple[Any, dict[str, Array]]:
        """One gradient step."""
        problem, (x, y) = self.problem, state
        at = self.oracle.query(x, clients.public)
        gradient, seed, value = jnp.zeros_like(x), jnp.zeros_like(y), jnp.zeros((), x.dtype)
        residual = gap = jnp.zeros(())
        fault = empty = jnp.full((), -1)
        if self.federated:
            found = self.oracle.lower.federation(clients.everyone, Known(at[None]), y, _clock(clients.round), key)
            y, residual, gap = found.y[0], found.residual[0], found.gap[0]
        if problem.client_program is not None:
            messages = clients.map(self.client_gradient, (at, y))
            gradient, seed = clients.mean(messages.payload)
            monitor = messages.monitor
            value, residual = clients.mean(monitor["value"]), jnp.maximum(residual, jnp.max(monitor["residual"]))
            finite = jnp.isfinite(monitor["value"]) & jnp.isfinite(messages.payload[0]).all(axis=1)
            fault = first_flagged(clients.participants, ~finite)
            empty = first_flagged(clients.participants, ~(jnp.maximum(monitor["gap"], gap) <= 0))
        if problem.server_program is not None:
            server_value, in_x, in_y = clients.server(self.server_gradient, (at, y))
            value, gradient = value + server_value, gradient + in_x
            empty = jnp.where(gap > 0, jnp.maximum(empty, 0), empty)
            seed = seed + in_y if self.federated else seed
        if self.federated:
            gradient = self.hyper.adjoint(at, gradient, seed, self._mean_map(clients.everyone, at, y), y)
        size = row(self.sizes, clients.round)
        record = {
            "objective": problem.sign * value,
            "gradient_norm": jnp.linalg.norm(gradient),
            "step_size": size,
            "lower_residual": residual,
            "fault": fault,
            "empty": empty,
        }
        return (problem.project_upper(x - size * gradient, clients.public), y), record

    def client_gradient(self, party: Party, memory: Array, received: Received, key: Array) -> tuple[Array, Message]:
        """One client's gradient in x, and in federation scope in y."""
        problem, oracle, (x, y) = self.problem, self.oracle, received.broadcast
        lower_key, upper_key = split(key)
        clock = _clock(received.round)
        residual, gap, seed = jnp.zeros(()), jnp.zeros(()), jnp.zeros_like(y)

        def mean(function: Any) -> Any:
            return party.estimate(function, problem.upper_samples, upper_key, self.settings.batch_size)

        if problem.scope == "sample":
            zero = jnp.zeros(problem.lower.size, x.dtype)

            def answered(rows: Rows) -> tuple[Array, Array]:
                return self.hyper.rows(x, party, rows, lambda row: oracle.lower.sample(x, party, row, zero, clock)[0])

            value, gradient = mean(answered)
        elif self.federated:
            value, gradient, seed = self.hyper.partials(x, y, party, mean)
        else:
            if oracle.alone:
                memory, residual = oracle.lower.client(x, party, memory, clock, lower_key)
                gap = problem.lower_gap(x, party.environment)
            value, gradient = self.hyper.client(x, memory, party, mean)
        return memory, Message((gradient, seed), {"value": value, "residual": residual, "gap": gap})

    def server_gradient(self, party: Party, received: Received, key: Array) -> tuple[Array, Array, Array]:
        """(value, gradient in x, gradient in the federation's y) of the server's term."""
        problem, (x, y) = self.problem, received.broadcast

        def at(rows: Rows) -> tuple[Array, tuple[Array, Array]]:
            def value(v: Array, z: Array) -> Array:
                return problem.server_value(v, z if self.federated else None, party.environment, rows)

            return jax.value_and_grad(value, argnums=(0, 1))(x, y)

        value, (in_x, in_y) = party.estimate(at, problem.server_samples, key, self.settings.batch_size)
        return value, in_x, in_y

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
        """A client's F."""
        return self.hyper.lower_map(*asked, party).force

    def hessian(self, party: Party, asked: tuple[Array, Array, Array]) -> Array:
        """A client's product with the transpose of D_y F."""
        x, y, v = asked
        return self.hyper.lower_map(x, y, party).hessian(v)

    def cross(self, party: Party, asked: tuple[Array, Array, Array]) -> Array:
        """A client's product with the transpose of D_x F."""
        x, y, v = asked
        return self.hyper.lower_map(x, y, party).cross(v)


def _clock(round_index: Array) -> Clock:
    """One answer a round."""
    return Clock(round_index, round_index)

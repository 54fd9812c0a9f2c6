"""Newton's method on a sum of the clients' terms: one message of a gradient and a Hessian each, no step sizes (Boyd and Vandenberghe, 2004, 9.5).

Round r: the server broadcasts a trial z; every client sends f_i(z), grad f_i(z) and the upper triangle of its Hessian, sums over its rows
as for any model that is fitted to pooled rows (Wu, Jiang, Kim and Ohno-Machado, 2012, for logistic regression). With f, g and H their
weighted sums, z becomes x if f(z) <= f(x) - c t lambda^2 and no derivative of a client is far larger than they were at x, and then

    d = - H^+ g,   lambda^2 = g' H^+ g,   t = 1;   else t is divided by 4;   the next trial is x + t d.

H^+ takes absolute eigenvalues, in units in which H has a unit diagonal: d descends where f is not convex too, and units of the variables
are no matter. Nor are they to the messages: clients say how large their curvature is first, in a round of its own, and send derivatives in the
powers of two that it makes, which sums under masks can carry as well. The method is at rest where half the squared decrement lambda^2, what a quadratic model still gains, is nothing beside f.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float

from hierfl.analysis.enclosure import Enclosure
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Party
from hierfl.compiler.expressions.program import Rows
from hierfl.compiler.lower_level.structure import nonsmooth_atom
from hierfl.compiler.oracles import upper_constraints
from hierfl.errors import IncompatibleSolverError, SettingError
from hierfl.jaxtools.columns import by_columns
from hierfl.language.printing.text import expression_text
from hierfl.near_names import suggests_names
from hierfl.runtime.contract import Clients, Message, Received
from hierfl.runtime.records import History
from hierfl.solvers.parts.bound import Bound
from hierfl.solvers.parts.client_oracle import ClientOracle
from hierfl.solvers.parts.local_steps import Term
from hierfl.solvers.parts.participation import DrawnCohorts
from hierfl.solvers.parts.requirements import require_gradients, require_number, require_single_level
from hierfl.solvers.parts.round_monitor import LocalMonitor, RoundMonitor

DESCENT = 1e-4  # of the slope times the step, by which a trial is to descend
SHORTER = 0.25  # a step after one that did not
SHORTEST = 1e-7  # a step, after which the values that it was compared with are asked for anew: others may have taken part then
FLAT = 1e-10  # of the largest eigenvalue of H in units of its diagonal: the least that is divided by
ROUNDING = 1e-13  # of |f|, which two values may differ by
NEARLY = 1e-12  # of |f| and its fall: a gain that rounding may hold up
LARGEST = 1e12  # what a client's first derivatives may be, in units of all clients' curvature
FAR = 1e5  # of the largest derivative at x, in these units: a trial where a client's are larger is none
ROOT = 0.25  # the power of a curvature that clients send: 1e-40 to 1e40 are then numbers which any sum can carry
MOST = 500  # variables, whose Hessian is sent and factorised


@suggests_names
@dataclass(frozen=True)
class Newton:
    """Settings of Newton's method.

    Every client sends its value, gradient and Hessian at a point: n (n + 5) / 2 + 2 numbers in a round, sums over its rows. All clients take part.

    Parameters
    ----------
    accuracy
        The run is at rest when half the squared Newton decrement is no more than this, relative to |f| and to its fall; or near it, when
        rounding keeps the decrement from falling further.

    Raises
    ------
    SettingError
        For a setting out of range.
    IncompatibleSolverError
        When bound to a problem with a lower level, a black box, constraints on x, kinks, or more than 500 variables.

    Examples
    --------
    >>> from hierfl.solvers import Newton
    >>> smooth = hf.Problem(hf.Minimize(clients=cp.sum_squares(x - 1)))
    >>> smooth.solve(Newton(), rounds=10, progress=False).x.round(1)
    array([1., 1.])
    """

    accuracy: float = 1e-18

    def __post_init__(self) -> None:
        require_number(self.accuracy, "accuracy", 0, 1)

    def bind(self, problem: CompiledProblem, rounds: int, queries: str = "projected") -> BoundNewton:
        """The algorithm for one problem. Raises ``IncompatibleSolverError``, naming what the solver needs and what the problem has."""
        if queries != "projected":
            raise SettingError(f"queries={queries!r}: Newton asks for its trials only; leave it out.")
        require_single_level(self, problem)
        require_gradients(self, problem)
        require_smooth(self, problem)
        oracle = ClientOracle(problem, None, None, queries, alone=False)
        everybody = DrawnCohorts(problem.num_clients, problem.num_clients)
        return BoundNewton(problem, self, oracle, cohorts=everybody)


def require_smooth(solver: object, problem: CompiledProblem) -> None:
    """Check that x is free, few, and that f has no kinks in it. Raises ``IncompatibleSolverError``, naming what is in the way."""
    name, declaration, n = type(solver).__name__, problem.declaration, problem.upper.size
    if n > MOST:
        raise IncompatibleSolverError(f"{name} sends a Hessian, and x has {n:,} scalars, more than {MOST}: use ImplicitBundle, SCAFFOLD or FedAvg.")
    if upper_constraints(declaration):
        raise IncompatibleSolverError(f"{name} takes steps in the whole space, but there are constraints on x: use ImplicitBundle, SCAFFOLD or FedAvg.")
    rough = nonsmooth_atom(declaration.objective.terms, {v.id for v in problem.upper.variables}, Enclosure(declaration.known_bounds))
    if rough is not None:
        raise IncompatibleSolverError(f"{name} needs second derivatives, but {expression_text(rough)} has kinks: use ImplicitBundle.")


class NewtonState(NamedTuple):
    """The best point and f there, the step that is tried from it, and how far the method is from rest."""

    x: Float[Array, " n"]
    value: Float[Array, ""]
    direction: Float[Array, " n"]
    decrement: Float[Array, ""]  # squared, lambda^2
    before: Float[Array, ""]  # lambda^2 at the point before
    step: Float[Array, ""]  # t
    first: Float[Array, ""]  # f at the start
    complete: Bool[Array, ""]  # whether all clients took part in what the state knows
    units: Float[Array, " n"]  # in which derivatives are sent; 0 before they are known
    limit: Float[Array, ""]  # of these


class Trial(NamedTuple):
    """What clients are asked: derivatives at a trial, in these units, none beyond the limit."""

    x: Float[Array, " n"]
    units: Float[Array, " n"]
    limit: Float[Array, ""]


class Derivatives(NamedTuple):
    """A term at a trial, of one party or of all: value, gradient and upper triangle of the Hessian in units, sizes of the Hessian's diagonal, and
    whether any of them was too large."""

    value: Float[Array, ""]
    gradient: Float[Array, " n"]
    triangle: Float[Array, " n_n_1_2"]
    sizes: Float[Array, " n"]
    too_large: Float[Array, ""]


@dataclass(frozen=True, eq=False)
class BoundNewton(Bound):
    """Newton's method on one problem."""

    settings: Newton
    absent: ClassVar[str] = "renormalise"
    slope_of: ClassVar[str] = "of f at the last trial"

    def init(self, x0: Array) -> NewtonState:
        nothing = jnp.zeros((), x0.dtype)
        infinite, none = nothing + jnp.inf, jnp.zeros_like(x0)
        return NewtonState(x0, infinite, none, nothing, infinite, nothing, infinite, jnp.zeros((), bool), none, infinite)

    def rests(self, state: NewtonState) -> bool:
        """Whether the quadratic model at x promises nothing, by the word of all clients."""
        fall = abs(float(state.first - state.value))
        size = max(abs(float(state.value)), fall if fall < float("inf") else 0.0)
        gain, last = 0.5 * float(state.decrement), 0.5 * float(state.before)
        stuck = gain <= NEARLY * size and not gain < last
        return bool(state.complete) and (gain <= self.settings.accuracy * size or stuck)

    def gradient_steps(self, first: int, last: int) -> None:
        return None

    def descends(self, rounds: int) -> bool:
        return True

    def gradient_at_most(self, before: Any, after: Any, history: History, first: int) -> float:
        """The length of f's gradient at the last trial; no estimate."""
        return float(history["gradient_norm"][-1])

    def round(self, clients: Clients, state: NewtonState, key: Array) -> tuple[NewtonState, dict[str, Array]]:
        problem = self.problem
        trial = Trial(state.x + state.step * state.direction, state.units, state.limit)
        parts, monitor = [], RoundMonitor.quiet(trial.x)
        if problem.client_program is not None:
            messages = clients.map(self.client_curvature, trial)
            parts.append(clients.mean(messages.payload))
            monitor = monitor.with_clients(clients, messages.payload.too_large == 0, messages.monitor)
        if problem.server_program is not None:
            own = clients.server(self.server_curvature, trial)
            parts.append(own)
            monitor = monitor.with_server(own.value)
        found = jax.tree.map(lambda *each: sum(each), *parts)
        begins, known = ~jnp.isfinite(state.value), jnp.all(state.units > 0)  # whatever f is at the start, it is where the run stands
        slack = jnp.where(begins, 0.0, ROUNDING * jnp.abs(state.value))
        descends = found.value <= state.value - DESCENT * state.step * state.decrement + slack
        taken = known & (found.too_large == 0) & (descends | begins)
        curvature = jnp.where(found.sizes > 0, found.sizes, 1.0) ** (1 / ROOT)
        units = 2.0 ** jnp.round(0.5 * jnp.log2(curvature))
        direction, decrement = self._direction(found, state.units)
        shorter = SHORTER * state.step
        anew = shorter < SHORTEST
        kept = state._replace(
            step=jnp.where(anew, 0.0, shorter),
            value=jnp.where(anew, jnp.inf, state.value),
            units=jnp.where(known, state.units, units),
            limit=jnp.where(known, state.limit, LARGEST),
        )
        whole = jnp.sum(clients.present) == problem.num_clients
        first = jnp.where(jnp.isfinite(state.first), state.first, found.value)
        ratio = state.units / units
        largest = jnp.maximum(jnp.max(jnp.abs(found.gradient) * ratio), jnp.max(jnp.abs(found.triangle) * triangle_of(ratio)))
        limit = FAR * jnp.maximum(1.0, largest)
        moved = NewtonState(
            trial.x, found.value, direction, decrement, state.decrement, jnp.ones_like(state.step), first, whole, units, limit
        )
        after: NewtonState = jax.tree.map(lambda new, old: jnp.where(taken, new, old), moved, kept)
        # a trial that leaves the domain is no fault, a start or a point that was there before is
        monitor = monitor._replace(value=jnp.where(begins, monitor.value, jnp.minimum(monitor.value, state.value)), fault=jnp.where(begins, monitor.fault, -1))
        sides = problem.terms_of(clients.count)
        own = {"gradients": sides, "products": sides * trial.x.size}
        return after, monitor.record(problem.sign, state.step, jnp.linalg.norm(found.gradient * state.units), **own)

    def client_curvature(self, party: Party, memory: Array, received: Received, key: Array) -> tuple[Array, Message]:
        """What a client sends of its term at the trial."""
        found = self._curvature(Term(self.problem.client_value, self.problem.upper_samples), party, received.broadcast)
        nothing = jnp.zeros(())
        return memory, Message(found, LocalMonitor.told(found.value, nothing, nothing - 1.0))

    def server_curvature(self, party: Party, received: Received, key: Array) -> Derivatives:
        """The server's term at the trial."""
        return self._curvature(Term(self.problem.server_value, self.problem.server_samples), party, received.broadcast)

    def _curvature(self, term: Term, party: Party, trial: Trial) -> Derivatives:
        x = trial.x

        def of_rows(rows: Rows) -> tuple[Array, Array, Array]:
            def value(z: Array) -> Array:
                return term.value(z, None, party.environment, rows)

            (found, gradient), moved = jax.linearize(jax.value_and_grad(value), x)
            return found, gradient, by_columns(lambda direction: moved(direction)[1], x)

        value, gradient, hessian = party.mean(of_rows, term.samples)
        inverse = jnp.where(trial.units > 0, 1.0 / trial.units, 0.0)
        sent = value, gradient * inverse, hessian[jnp.triu_indices(x.size)] * triangle_of(inverse)
        fits = [jnp.isfinite(part).all() for part in (value, gradient, hessian)] + [(jnp.abs(part) <= trial.limit).all() for part in sent[1:]]
        too_large = ~jnp.stack(fits).all()
        sizes = jnp.abs(jnp.diag(hessian)) ** ROOT
        value, gradient, triangle, sizes = (jnp.where(too_large, 0.0, part) for part in (*sent, sizes))
        return Derivatives(value, gradient, triangle, sizes, too_large.astype(x.dtype))

    def _direction(self, found: Derivatives, units: Array) -> tuple[Array, Array]:
        """The Newton step and the squared decrement, in units of H's diagonal."""
        n = found.gradient.size
        upper = jnp.zeros((n, n), found.gradient.dtype).at[jnp.triu_indices(n)].set(found.triangle)
        hessian = upper + jnp.triu(upper, 1).T
        size = jnp.sqrt(jnp.abs(jnp.diag(hessian)))
        size = jnp.where(size > 0, size, 1.0)
        values, vectors = jnp.linalg.eigh(hessian / size / size[:, None])
        bent = jnp.abs(values)
        along = vectors.T @ (found.gradient / size)
        bent = jnp.maximum(bent, FLAT * jnp.max(bent))
        scaled = along / jnp.where(bent > 0, bent, 1.0)
        return -(vectors @ scaled) / size / jnp.where(units > 0, units, 1.0), along @ scaled


def triangle_of(sizes: Array) -> Array:
    """The upper triangle of the products of a vector's entries."""
    return jnp.outer(sizes, sizes)[jnp.triu_indices(sizes.size)]

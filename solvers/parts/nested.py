"""Nested smooth problems: what methods share that differentiate y(x) by products with second derivatives.

For min over x of sum_i w_i f_i(x, y(x)) with y(x) = argmin over y of sum_i w_i g_i(x, y), no constraints on y,

    grad f(x) = grad_x f - grad_xy g u(x),      u(x) = [grad_yy g]^-1 grad_y f = argmin over u of u' grad_yy g u / 2 - u' grad_y f,

all at (x, y(x)) and as means over clients. A client needs its own gradients, and its Hessian and Jacobian of g_i times a vector.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Party, Population
from hierfl.compiler.expressions.program import Rows
from hierfl.errors import IncompatibleSolverError, SettingError, TheoryWarning, warn
from hierfl.jaxtools.cheap_jit import quick_jit
from hierfl.jaxtools.keyed_random import split
from hierfl.runtime.contract import Clients, Message
from hierfl.solvers.papers.theory import lower_constants
from hierfl.solvers.parts.bound import Bound, batches_of_small_tables
from hierfl.solvers.parts.client_oracle import ClientOracle
from hierfl.solvers.parts.common_settings import FederatedSettings
from hierfl.solvers.parts.participation import cohorts_of
from hierfl.solvers.parts.requirements import require_gradients, require_public_set
from hierfl.solvers.parts.round_monitor import RoundMonitor, first_fault, move_rate
from hierfl.solvers.parts.step_schedules import Schedule, row, tabulate

POWER = 40  # products with a Hessian that its largest eigenvalue is found by


class NestedPoint(NamedTuple):
    """x, y, and a vector that goes with them: u, which estimates [grad_yy g]^-1 grad_y f, or a direction; empty where there is none."""

    x: Float[Array, " n"]
    y: Float[Array, " size"]
    u: Array


def require_nested(solver: object, problem: CompiledProblem) -> None:
    """Check for one y of all clients, which minimises without constraints, differentiable terms of the clients alone, and a public X.

    Raises ``IncompatibleSolverError``, naming what is in the way and the solvers that fit.
    """
    level, name = problem.declaration.lower_level, type(solver).__name__
    if level is None or problem.scope != "federation":
        has = "no lower level" if level is None else f"one of {problem.scope} scope"
        nested = "FedRZO" if problem.scope == "sample" else "ZOHFL"
        instead = "FedAvg or SCAFFOLD" if level is None else f"{nested} or ImplicitGradient"
        raise IncompatibleSolverError(
            f"{name} needs a lower level of federation scope, whose y all clients share, but this problem has {has}: use {instead}."
        )
    if level.kind == "equilibrium":
        raise IncompatibleSolverError(
            f"{name} needs a lower level that minimises or maximises, but this one is an equilibrium: use FedRZO or ImplicitGradient."
        )
    if problem.lower_set.kind != "free":
        raise IncompatibleSolverError(
            f"{name} differentiates y(x) as that of a lower level without constraints, but y has some: use FedRZO or ImplicitGradient, "
            f"which see them."
        )
    if problem.client_program is None or problem.server_program is not None:
        raise IncompatibleSolverError(
            f"{name} has terms of the clients alone: use FedRZO or ImplicitGradient, or give the server's data to a client."
        )
    require_gradients(solver, problem)
    require_public_set(solver, problem)


def certified_smoothness(solver: object, problem: CompiledProblem, setting: str = "lipschitz") -> float:
    """l of every client: the Lipschitz constant of grad_y g_i in y, g_i strongly convex.

    Raises ``SettingError`` where it could not be proved, naming the ``setting`` to give instead.
    """
    name = type(solver).__name__
    try:
        return lower_constants(problem, name, of_each=True, give=f"{setting}=...")[1]
    except SettingError as error:
        if problem.elsewhere:
            raise
        raise SettingError(
            f"{name} needs l, at least the Lipschitz constant of grad_y g_i in y, of a strongly convex lower level, and it could not be "
            f"proved: give {setting}=..., if the lower level is smooth and strongly convex, bound X where its curvature grows with x, or use "
            f"FedRZO."
        ) from error


def measured_smoothness(problem: CompiledProblem, starts: np.ndarray) -> float:
    """The largest curvature of a client's g_i in y that is seen at the starts ``(k, n)`` and y = 0, by power iteration."""

    def largest(clients: Population, index: Array, x: Array) -> Array:
        party, zero = clients.party(index), jnp.zeros(problem.lower.size, x.dtype)

        def product(rows: Rows, p: Array) -> Array:
            return jax.jvp(lambda y: problem.operator(x, y, party.environment, rows), (zero,), (p,))[1]

        def step(_: Any, own: tuple[Array, Array]) -> tuple[Array, Array]:
            p, _ = own
            q = party.estimate(lambda rows: product(rows, p), problem.lower_samples, jax.random.key(0), None)
            length = jnp.linalg.norm(q)
            return q / jnp.where(length > 0, length, 1.0), length

        first = jax.random.normal(jax.random.key(0), zero.shape, zero.dtype)
        return jax.lax.fori_loop(0, POWER, step, (first / jnp.linalg.norm(first), jnp.zeros((), x.dtype)))[1]

    program = problem.programs.keep("largest curvature below", lambda: quick_jit(jax.vmap(largest, (None, 0, None))))
    every = jnp.arange(problem.num_clients)
    return max(float(np.max(program(problem.laid_out().clients, every, x))) for x in np.unique(starts, axis=0))


class NestedSettings(FederatedSettings):
    """What settings of nested methods have in common: numbers that they leave to the run."""

    _requirements = (require_nested,)

    def settled(self, problem: CompiledProblem, starts: np.ndarray) -> Self:
        """The settings with numbers in place of None: by l, certified, or else half as long as what is measured at the run's starts allows.

        Raises ``IncompatibleSolverError`` as ``bind`` does.
        """
        require_nested(self, problem)
        left = [name for name in ("inner_step", "lipschitz") if getattr(self, name, 0.0) is None]
        if not left or problem.elsewhere:  # of data that are elsewhere nothing is known: bind says what to give
            return self
        name = type(self).__name__
        try:
            smooth = lower_constants(problem, name, of_each=True)[1]
        except SettingError:
            smooth = 2.0 * measured_smoothness(problem, starts)
            if not 0 < smooth < np.inf:
                return self
            taken = f"it is taken to be {smooth:.3g}, twice the largest curvature at the start"
            advice = f"Give {' and '.join(f'{one}=...' for one in left)} where it grows along the run."
            warn(TheoryWarning(f"{name}: l, the Lipschitz constant of grad_y g_i in y, is not proved; {taken}. {advice}"))
        given: Any = {one: smooth if one == "lipschitz" else 1.0 / smooth for one in left}
        return replace(self, **given)  # type: ignore[type-var]


def tabulate_lower_step(solver: Any, problem: CompiledProblem, rounds: int, name: str = "inner_step") -> np.ndarray:
    """``inner_step`` by round, ``(rounds,)``, or another step that is the same where it is None; None stands for 1 / l, l certified.

    Raises ``SettingError`` for a schedule that is none, or an l that could not be proved.
    """
    given: Schedule | None = getattr(solver, name)
    if given is None:
        name, given = "inner_step", solver.inner_step
    if given is None:
        given = 1.0 / certified_smoothness(solver, problem, "inner_step")
    return tabulate(given, rounds, name)


def too_small(lipschitz: float, certified: float) -> str | None:
    """What is wrong with a Neumann series by l = ``lipschitz``, if anything."""
    if lipschitz >= certified:
        return None
    return f"lipschitz={lipschitz:g} is less than the certified {certified:.3g}: the Neumann series may diverge."


@dataclass(frozen=True, eq=False)
class BoundNested(Bound):
    """A method of x and y, and what it asks of a client: every function below draws its minibatch by ``key`` and ``step``.

    ``sizes``, ``inner_sizes`` (rounds,): the steps on x and on y. The server's state has x and y by these names.
    """

    sizes: np.ndarray
    inner_sizes: np.ndarray
    absent = "renormalise"
    advice: ClassVar[str] = "Take more steps on y in a round, or a larger inner_step."

    @classmethod
    def of(cls, settings: Any, problem: CompiledProblem, rounds: int, queries: str, **own: Any) -> Self:
        """The method with its schedules tabulated, for settings that have FedBiO's names; ``own`` are the fields that a subclass adds."""
        if settings.batch_size == "auto":
            samples = {*problem.upper_samples, *problem.lower_samples}
            settings = replace(settings, batch_size=batches_of_small_tables(problem, samples))
        oracle = ClientOracle(problem, None, settings.batch_size, queries, alone=False)
        sizes, inner_sizes = tabulate(settings.step_size, rounds, "step_size"), tabulate_lower_step(settings, problem, rounds)
        return cls(problem, settings, oracle, sizes, inner_sizes, **own, cohorts=cohorts_of(settings, problem, rounds))

    def caveat(self, rounds: int) -> str | None:
        """The methods, and their theorems, are about a smooth and strongly convex lower level."""
        if self.problem.elsewhere:
            return "whether the lower level is smooth and strongly convex for every client was not looked at: their data are elsewhere."
        try:
            _, smooth = lower_constants(self.problem, type(self.settings).__name__, of_each=True)
        except SettingError:
            return (
                "the lower level is not proved smooth and strongly convex for every client; where it is not, neither the theorems hold nor is "
                "the move of x a step along the gradient of f (compare result.gap or problem.implicit.gradient)."
            )
        return self.beyond(smooth)

    def beyond(self, smooth: float) -> str | None:
        """What settings ask of a lower level that is certified to be this smooth, and does not give."""
        return None

    def gradient_steps(self, first: int, last: int) -> np.ndarray | None:
        """Steps at a y that is not y(x) are in general no step along -grad f."""
        return None

    def mean(self, clients: Clients, values: Any) -> Any:
        """The weighted mean over the round's participants: their weights sum to one."""
        return jax.tree.map(lambda value: value / self.problem.total_weight, clients.mean(values))

    def record(self, clients: Clients, move: Array, told: Message, last: Message | None = None, **work: Any) -> dict[str, Array]:
        """The round's record, of x's move and of what the clients' messages tell: ``value`` f_i, and ``slope`` grad_y g_i. ``work`` counts what the
        clients below evaluated, by the names of the history: gradients of f_i in x or in y, products, lower_gradients.
        """
        if not {"value", "slope"} <= told.monitor.keys():
            raise TypeError(f'{type(self).__name__}.record() needs messages Message(payload, {{"value": f_i, "slope": grad_y g_i}}), not {sorted(told.monitor)}')
        size, nobody = row(self.sizes, clients.round), jnp.full((), -1)
        slope = jnp.linalg.norm(self.mean(clients, told.monitor["slope"]))
        fault = first_fault(clients, told if last is None else last)
        watched = RoundMonitor(clients.mean(told.monitor["value"]), slope, jnp.zeros(()), fault, nobody)
        return watched.record(self.problem.sign, size, move_rate(move, size), projections=self.above(1), **work)

    # --- a client's derivatives, on a minibatch or on all rows ---------------------------------------------------------

    def lower_gradient(self, x: Array, y: Array, party: Party, key: Array, step: Any = 0) -> Array:
        """grad_y g_i(x, y), ``(size,)``."""
        return self._below(lambda rows: self.problem.operator(x, y, party.environment, rows), party, key, step)

    def hessian_product(self, x: Array, y: Array, u: Array, party: Party, key: Array, step: Any = 0) -> Array:
        """grad_yy g_i(x, y) u, ``(size,)``."""

        def product(rows: Rows) -> Array:
            return jax.jvp(lambda v: self.problem.operator(x, v, party.environment, rows), (y,), (u,))[1]

        return self._below(product, party, key, step)

    def jacobian_product(self, x: Array, y: Array, u: Array, party: Party, key: Array, step: Any = 0) -> Array:
        """grad_xy g_i(x, y) u, ``(n,)``."""

        def product(rows: Rows) -> Array:
            return jax.grad(lambda z: self.problem.operator(z, y, party.environment, rows) @ u)(x)

        return self._below(product, party, key, step)

    def upper_gradient(self, x: Array, y: Array, party: Party, key: Array, step: Any = 0) -> tuple[Array, Array]:
        """f_i(x, y) and grad_x f_i(x, y), ``(n,)``."""

        def value(rows: Rows) -> tuple[Array, Array]:
            return jax.value_and_grad(lambda z: self.problem.client_value(z, y, party.environment, rows))(x)

        return self._above(value, party, key, step)

    def upper_gradient_in_y(self, x: Array, y: Array, party: Party, key: Array, step: Any = 0) -> Array:
        """grad_y f_i(x, y), ``(size,)``."""
        return self._above(
            lambda rows: jax.grad(lambda v: self.problem.client_value(x, v, party.environment, rows))(y), party, key, step
        )

    def hypergradient(self, at: NestedPoint, party: Party, key: Array, step: Any = 0) -> tuple[Array, Array]:
        """f_i(x, y), and the client's part of the gradient of f by u, grad_x f_i - grad_xy g_i u, ``(n,)``; two minibatches."""
        upper_key, lower_key = split(key)
        value, gradient = self.upper_gradient(at.x, at.y, party, upper_key, step)
        return value, gradient - self.jacobian_product(*at, party, lower_key, step)

    def _above(self, function: Callable[[Rows], Any], party: Party, key: Array, step: Any) -> Any:
        return party.estimate(function, self.problem.upper_samples, key, self.settings.batch_size, step)

    def _below(self, function: Callable[[Rows], Any], party: Party, key: Array, step: Any) -> Any:
        return party.estimate(function, self.problem.lower_samples, key, self.settings.batch_size, step)

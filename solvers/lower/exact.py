"""The lower level solved to a certified residual inside every round."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.storage import any_elsewhere
from hierfl.compiler.data.tables import Data, Party
from hierfl.compiler.lower_level.certificate import TOLERANCE, LowerSolution
from hierfl.compiler.lower_level.choice import METHODS
from hierfl.compiler.lower_level.exact_lower import ExactLower
from hierfl.compiler.lower_level.methods.in_sequence import InSequence
from hierfl.compiler.lower_level.methods.parametric_program import ParametricProgram
from hierfl.compiler.lower_level.owner import Owner
from hierfl.errors import IncompatibleSolverError
from hierfl.near_names import suggests_names
from hierfl.runtime.contract import Clients, Known, Question
from hierfl.solvers.lower.lower_solver import Clock, LowerAnswer, beyond_steps
from hierfl.solvers.parts.requirements import require_choice, require_number
from hierfl.solvers.parts.step_schedules import Tabulated


@suggests_names
@dataclass(frozen=True)
class Exact:
    """Exact lower level, by the compiler's method, warm-started.

    Parameters
    ----------
    method
        One of ``"closed form"``, ``"projection"``, ``"diagonal plus rank one"``, ``"linear system"``, ``"parametric program"``,
        ``"semismooth Newton"``, ``"accelerated gradient"``, ``"batched interior points"``; by default the compiler's choice, which ``problem.explain()`` shows.
    tolerance
        Relative error of y that is asked for, where the modulus of strong monotonicity is known.

    Raises
    ------
    IncompatibleSolverError
        When bound to a problem that the method cannot treat; names those that can.

    Examples
    --------
    >>> from hierfl.solvers import Exact, FedRZO
    >>> solver = FedRZO(lower=Exact(tolerance=1e-10))
    """

    method: str | None = None
    tolerance: float = TOLERANCE

    def __post_init__(self) -> None:
        if self.method is not None:
            require_choice(self.method, "method of Exact", tuple(METHODS))
        require_number(self.tolerance, "tolerance of Exact", 0, 1)

    def bind(self, problem: CompiledProblem, rounds: int, steps: int) -> BoundExact:
        return BoundExact(problem, problem.exact.by(self.method), self)

    def __str__(self) -> str:
        method = "" if self.method is None else f"method={self.method!r}, "
        return f"Exact({method}tolerance={self.tolerance:g})"


@dataclass(frozen=True, eq=False)
class BoundExact(Tabulated):
    """The solver on one problem; pure functions for traced code."""

    problem: CompiledProblem
    exact: ExactLower
    settings: Exact

    def require_reachable(self) -> None:
        """Require, of who runs the rounds, that the method sees the data that it needs.

        Raises ``IncompatibleSolverError``, naming the client whose data are elsewhere, and the lower solvers that ask
        for no data.
        """
        problem, method = self.problem, self.exact.method_in_rounds
        if not problem.elsewhere or problem.scope != "federation":
            return
        if isinstance(method, InSequence):
            raise IncompatibleSolverError(
                "several lower levels in sequence that all clients share are solved where all data are, and some are elsewhere (hf.Elsewhere)."
            )
        level, asked = problem.declaration.lower_level, beyond_steps(problem)
        public = not problem.lower_is_private and (not asked or (level is not None and level.prices))  # a selection is by what is above, too
        if public or not (asked or isinstance(method, ParametricProgram)):
            return
        away = next(k for k, client in enumerate(problem.declaration.parties) if any_elsewhere([client]))
        raise IncompatibleSolverError(
            f"lower={self.settings} solves for the y that all clients share from everybody's data in one place, "
            f"and those of {problem.declaration.client_called(away)} are elsewhere (hf.Elsewhere): "
            + (f"nothing else tells {asked}" if asked else "write lower=LocalSGD(...), FedAC(...) or LFD(...), by which clients answer for their own data")
            + "."
        )

    def client(self, x: Array, party: Party, start: Array, clock: Clock, key: Array) -> tuple[Array, Array]:
        exact = self.exact
        return self._checked(exact.solve(x, exact.client_owner(x, party), start, self.settings.tolerance))

    def sample(self, x: Array, party: Party, row: dict[int, Array], start: Array, clock: Clock) -> tuple[Array, Array]:
        exact = self.exact
        owner = exact.sample_owner(x, {**party.environment, **row})
        return self._checked(exact.solve(x, owner, start, self.settings.tolerance))

    def federation(
        self, clients: Clients, points: Known, start: Array, clock: Clock, key: Array, calls: Array | None = None
    ) -> LowerAnswer:
        """The federation's y at each point. An oracle of the simulation: its questions to the clients are not counted."""

        def one(x: Array) -> tuple[Array, Array, Array]:
            y, residual = self._checked(self.exact.solve(x, self.owner(clients, x), start, self.settings.tolerance))
            return y, residual, self.problem.lower_gap(x, clients.public)

        return LowerAnswer(*jax.lax.map(one, points.values))

    def owner(self, clients: Clients, x: Array) -> Owner:
        public, data = clients.public, self._data()
        everyone = replace(data.clients, public=public)

        def ask(question: Question) -> Callable[[Array], Array]:
            return lambda y: clients.mean(clients.query(question, (x, y)))

        force = jax.custom_jvp(ask(self.force))
        bound, asked = weakref.ref(self), weakref.ref(clients)  # JAX keeps derivatives longer than problems live

        @force.defjvp
        def _(at: tuple[Array], along: tuple[Array]) -> tuple[Array, Array]:
            lower, all_of = bound(), asked()
            assert lower is not None and all_of is not None, "a derivative is traced while its round is"
            return tuple(
                all_of.mean(all_of.query(question, (x, at[0], *more)))
                for question, more in ((lower.force, ()), (lower.slope, along))
            )

        return Owner(
            force,
            lambda z: self.problem.project_lower(x, z, public),
            ask(self.product),
            lambda: self.problem.lower_limits(x, public),
            lambda: self.problem.lower_condition(x, public),
            public,
            lambda group: (data.server_party if group.server else everyone).gathered(group),
            lambda y: self.problem.federation_value(x, y, everyone),
            lambda x, y: self.exact.federation_owner(x, everyone).operator(y),
            lambda stage, x: stage.federation_owner(x, everyone),
        )

    def _data(self) -> Data:
        """Everybody's data; where some are elsewhere, a site that sees what it will be asked needs their shapes, and nobody their numbers."""
        if not self.problem.elsewhere:
            return self.problem.data()
        return jax.tree.map(lambda a: jnp.full(a.shape, jnp.nan) if a.dtype.kind == "f" else a, self.problem.laid_out())

    def force(self, party: Party, asked: tuple[Array, Array]) -> Array:
        """One client's F(x, y) on all its data."""
        x, y = asked
        return self.exact.client_owner(x, party).operator(y)

    def slope(self, party: Party, asked: tuple[Array, Array, Array]) -> Array:
        """One client's derivative of F(x, y) along a direction of y, which no message has by itself."""
        x, y, v = asked
        return jax.jvp(self.exact.client_owner(x, party).operator, (y,), (v,))[1]

    def product(self, party: Party, asked: tuple[Array, Array]) -> Array:
        """One client's product with the Jacobian of the quadratic part of F."""
        x, v = asked
        return self.exact.client_owner(x, party).multiply(v)

    @staticmethod
    def _checked(solution: LowerSolution) -> tuple[Array, Array]:
        """An unsolved lower level becomes NaN, which the run reports as an error, never as a value."""
        return jnp.where(solution.converged, solution.y, jnp.nan), solution.residual

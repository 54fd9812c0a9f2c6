"""The lower level solved to a certified residual inside every round."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp

from hierfl.compiler.compiled import CompiledProblem
from hierfl.compiler.data import Party
from hierfl.compiler.exact import TOLERANCE, ExactLower
from hierfl.compiler.plan import METHODS
from hierfl.compiler.program import Array
from hierfl.solvers.checks import require_choice, require_number


@dataclass(frozen=True)
class Exact:
    """Exact lower level, by the compiler's method, warm-started.

    Parameters
    ----------
    method
        One of ``"closed form"``, ``"diagonal plus low rank"``, ``"linear system"``, ``"semismooth Newton"``,
        ``"accelerated gradient"``, ``"extragradient"``, ``"cvxpy"``; by default the compiler's choice, which
        ``problem.explain()`` shows.
    tolerance
        Relative error of y that is asked for, where the modulus of strong monotonicity is known.

    Raises
    ------
    IncompatibleSolverError
        When bound to a problem that the method cannot treat; names those that can.
    """

    method: str | None = None
    tolerance: float = TOLERANCE

    def __post_init__(self) -> None:
        if self.method is not None:
            require_choice(self.method, "method of Exact", tuple(METHODS))
        require_number(self.tolerance, "tolerance of Exact", 0, 1)

    def bind(self, problem: CompiledProblem, rounds: int) -> BoundExact:
        """The solver for one problem."""
        exact = problem.exact.by(self.method)
        _ = exact.plan  # refuses what the method cannot treat
        return BoundExact(problem, exact, self)

    def __str__(self) -> str:
        method = "" if self.method is None else f"method={self.method!r}, "
        return f"Exact({method}tolerance={self.tolerance:g})"


@dataclass(frozen=True, eq=False)
class BoundExact:
    """The solver on one problem; pure functions for traced code."""

    problem: CompiledProblem
    exact: ExactLower
    settings: Exact

    def client(self, x: Array, party: Party, start: Array, round_index: Array, key: Array) -> tuple[Array, Array]:
        """(y, natural residual) of a client-scope y."""
        exact = self.exact
        return self._checked(exact.solve(x, exact.client_owner(x, party), start, self.settings.tolerance))

    def sample(
        self, x: Array, party: Party, row: dict[int, Array], start: Array, round_index: Array
    ) -> tuple[Array, Array]:
        """(y, natural residual) of one sample's y."""
        exact = self.exact
        owner = exact.sample_owner(x, {**party.environment, **row})
        return self._checked(exact.solve(x, owner, start, self.settings.tolerance))

    @staticmethod
    def _checked(solution: object) -> tuple[Array, Array]:
        """An unsolved lower level becomes NaN, which the run reports as an error, never as a value."""
        y, residual, converged = solution.y, solution.residual, solution.converged  # type: ignore[attr-defined]
        return jnp.where(converged, y, jnp.nan), residual

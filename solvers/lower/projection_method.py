"""Projected steps of one owner on its own lower level: F is the gradient of the lower objective (negated for an argmax) or the mapping.

ProjectedSGD:      y  <-  P_Y(x) [ y - alpha_t F(x, y; minibatch_t) ],   t = 0, ..., H - 1                     ([HFL] Algorithm 2)
ProjectionMethod:  y  <-  P_Y(x) [ y - alpha F(x, y) ]                                                       ([2S] Algorithm 5)
Extragradient:     z   =  P_Y(x) [ y - alpha F(x, y) ],   y  <-  P_Y(x) [ y - alpha F(x, z) ]                  (Korpelevich 1976)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.analysis.theorems import contraction_growth
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Party
from hierfl.compiler.expressions.program import NO_ROWS, Environment, Rows
from hierfl.errors import SettingError
from hierfl.near_names import suggests_names
from hierfl.solvers.lower.lower_solver import Clock, require_scope
from hierfl.solvers.papers.theory import SCHEDULES, lower_constants, require_left_out
from hierfl.solvers.parts.requirements import require_choice, require_count, require_number
from hierfl.solvers.parts.step_schedules import (
    Decay,
    LogGrowth,
    Schedule,
    StepCounts,
    Tabulated,
    constant,
    require_schedule,
    row,
    steps_of,
    tabulate,
    tabulate_steps,
    whole,
)

PAPER_STEP = Decay(0.1, 1.0)
Value = TypeVar("Value")


@suggests_names
@dataclass(frozen=True)
class ProjectedSGD:
    """Projected SGD, H local steps.

    Parameters
    ----------
    steps
        H: a number, a schedule of the round, or one of these per client; fractions are rounded up. 0 makes a straggler.
    step_size
        A number or schedule of the local step t, which restarts at every call; default 0.1 / (t + 1).
    schedule
        ``"theory"`` takes the step sizes of [HFL] Proposition 1, (2/mu) / (t + 4 (L/mu)^2) with certified mu and L.
    batch_size
        Rows of a minibatch; None uses all rows in every step.
    start
        ``"warm"``: from the client's previous y (at first from x0 where y has x's shape, else from 0); ``"query"``: from the queried x (the paper's; y must be of x's size).

    Examples
    --------
    >>> from hierfl.solvers import ProjectedSGD, FedRZO
    >>> solver = FedRZO(lower=ProjectedSGD(steps=20))
    """

    steps: StepCounts = 20
    step_size: Schedule = PAPER_STEP
    batch_size: int | None = 32
    start: str = "warm"
    schedule: str = "practical"

    def __post_init__(self) -> None:
        require_schedule(self.step_size, "step_size of ProjectedSGD")
        require_count(self.batch_size, "batch_size of ProjectedSGD", or_none=True)
        require_choice(self.start, "start of ProjectedSGD", ("warm", "query"))
        require_choice(self.schedule, "schedule of ProjectedSGD", SCHEDULES)
        require_left_out(self, "step_size")

    def bind(self, problem: CompiledProblem, rounds: int, steps: int) -> BoundProjectedSGD:
        """Tabulate the schedules and check the settings; ``steps`` local steps are made over all rounds.

        Raises ``SettingError`` or ``IncompatibleSolverError``, naming the setting, or the scope.
        """
        require_scope(self, ("client", "sample"), problem)
        if self.start == "query" and problem.lower.size != problem.upper.size:
            raise SettingError(
                f"start='query' begins at the queried x, but x has {problem.upper.size} scalars and y has {problem.lower.size}."
            )
        counts = tabulate_steps(self.steps, rounds, problem.num_clients, "steps of ProjectedSGD")
        longest = max(1, int(counts.max(initial=0)))
        if self.schedule == "theory":
            mu, smooth = lower_constants(problem, "ProjectedSGD")
            sizes = (2 / mu) / (np.arange(longest) + 4 * (smooth / mu) ** 2)
        else:
            sizes = tabulate(self.step_size, longest, "step_size of ProjectedSGD")
        return BoundProjectedSGD(problem, self, constant(counts), sizes)

    def __str__(self) -> str:
        size = "by theory" if self.schedule == "theory" else self.step_size
        return f"ProjectedSGD(steps={self.steps}, step_size={size}, batch_size={self.batch_size})"


@dataclass(frozen=True, eq=False)
class BoundProjectedSGD(Tabulated):
    """The solver on one problem; pure functions for traced code. ``counts`` (rounds or 1, clients or 1), ``sizes`` (steps,)."""

    problem: CompiledProblem
    settings: ProjectedSGD
    counts: np.ndarray
    sizes: np.ndarray
    tabulated: ClassVar[tuple[str, ...]] = ("steps", "step_size")

    def client(self, x: Array, party: Party, start: Array, clock: Clock, key: Array) -> tuple[Array, Array]:
        """(y, natural residual on the last minibatch) of a client-scope y."""
        problem, own, batch_size = self.problem, party.environment, self.settings.batch_size
        sizes, count = jnp.asarray(self.sizes, x.dtype), steps_of(self.counts, clock.round, party.index)

        def estimate(function: Callable[[Rows], Value], t: Array) -> Value:
            return party.estimate(function, problem.lower_samples, key, batch_size, t)

        def step(t: Array, y: dict[int, Array]) -> dict[int, Array]:
            force = estimate(lambda rows: problem.operator_parts(x, y, own, rows), t)
            return problem.project_lower_parts(x, jax.tree.map(lambda z, f: z - sizes[t] * f, y, force), own)

        first = problem.lower.split(self._first(x, start, own))
        y = problem.lower.joined(jax.lax.fori_loop(0, count, step, first))
        last = estimate(lambda rows: problem.operator(x, y, own, rows), count)
        return y, jnp.linalg.norm(y - problem.project_lower(x, y - last, own))

    def sample(self, x: Array, party: Party, row: dict[int, Array], start: Array, clock: Clock) -> tuple[Array, Array]:
        problem, own = self.problem, {**party.environment, **row}
        sizes, count = jnp.asarray(self.sizes, x.dtype), steps_of(self.counts, clock.round, party.index)

        def moved(y: Array, size: Array | float) -> Array:
            return problem.project_lower(x, y - size * problem.operator(x, y, own, NO_ROWS), own)

        y = jax.lax.fori_loop(0, count, lambda t, y: moved(y, sizes[t]), self._first(x, start, own))
        return y, jnp.linalg.norm(y - moved(y, 1.0))

    def evaluations(self, clock: Clock, client: Array | int) -> Array:
        """Of F by a client: in every step, and once for the residual."""
        return steps_of(self.counts, clock.round, client) + 1

    def _first(self, x: Array, start: Array, own: Environment) -> Array:
        """Where the steps begin, in Y(x)."""
        return self.problem.project_lower(x, x if self.settings.start == "query" else start, own)


Mapping = Callable[[Array], Array]


@suggests_names
@dataclass(frozen=True)
class ProjectionMethod:
    """Projected steps on F.

    Parameters
    ----------
    steps
        Number, or schedule of the local step k = 0, 1, ... counted over all rounds, such as ``LogGrowth(tau)``; ``"theory"`` is that with
        the least tau of [2S] Theorem 2 (iii), -1 / ln(1 - 1 / kappa^2) for certified kappa = L / mu, for the step ``"theory"``.
    step_size
        alpha; ``"theory"`` is mu / L^2 with certified constants.
    start
        ``"warm"`` from the client's previous y (client scope), ``"zero"`` from 0 at every call, as in the paper's runs.

    Raises
    ------
    SettingError
        For settings out of range, or a constant that ``"theory"`` needs and that could not be proved.

    Examples
    --------
    >>> from hierfl.solvers import ProjectionMethod, FedRZO
    >>> solver = FedRZO(lower=ProjectionMethod(steps=20))
    """

    steps: Schedule | str = 50
    step_size: float | str = "theory"
    start: str = "warm"
    evaluations: ClassVar[int] = 1  # of F in a step, each with a projection

    def __post_init__(self) -> None:
        if isinstance(self.steps, str):
            self._require_tau()
        else:
            require_schedule(self.steps, f"steps of {type(self).__name__}", counts=True)
        require_choice(self.start, f"start of {type(self).__name__}", ("warm", "zero"))
        if self.step_size != "theory":
            require_number(self.step_size, f"step_size of {type(self).__name__}", 0, np.inf)

    def _require_tau(self) -> None:
        """By theory tau belongs to the step mu / L^2 of Algorithm 5."""
        name = type(self).__name__
        require_choice(self.steps, f"steps of {name}", ("theory",))
        if type(self) is not ProjectionMethod or self.step_size != "theory":
            raise SettingError(
                f"steps='theory' of {name} with step_size={self.step_size!r}: tau is that of ProjectionMethod with the step mu / L^2. Write "
                f"ProjectionMethod(steps='theory'), or give steps=LogGrowth(tau)."
            )

    def bind(self, problem: CompiledProblem, rounds: int, steps: int) -> BoundProjections:
        """The solver for one problem; ``steps`` local steps are made over all rounds."""
        require_scope(self, ("client", "sample"), problem)
        name = type(self).__name__
        alpha = self.step_size
        if alpha == "theory":
            mu, size = lower_constants(problem, name)
            alpha = self._safe_step(mu, size)
        number = self.steps
        if isinstance(number, str):  # by theory; one step where kappa = 1, which then ends at the solution
            tau = contraction_growth(*lower_constants(problem, "ProjectionMethod(steps='theory')"))
            number = LogGrowth(tau) if tau > 0 else 1
        counts = whole(tabulate(number, max(1, steps), f"steps of {name}"), f"steps of {name}")
        if not counts.any():
            raise SettingError(f"steps of {name} are 0 at every local step: nobody would ever answer.")
        return BoundProjections(problem, self, np.array(alpha, float), constant(counts))

    @staticmethod
    def _safe_step(mu: float, size: float) -> float:
        return mu / size**2

    @staticmethod
    def advance(y: Array, force: Mapping, project: Mapping, alpha: Array) -> Array:
        """One projected step along -F."""
        return project(y - alpha * force(y))


@suggests_names
@dataclass(frozen=True)
class Extragradient(ProjectionMethod):
    """Extragradient steps on F; parameters as for :class:`ProjectionMethod`, ``"theory"`` is 1 / (2 L).

    Examples
    --------
    >>> from hierfl.solvers import Extragradient, FedRZO
    >>> solver = FedRZO(lower=Extragradient(steps=20))
    """

    evaluations: ClassVar[int] = 2

    @staticmethod
    def _safe_step(mu: float, size: float) -> float:
        return 0.5 / size

    @staticmethod
    def advance(y: Array, force: Mapping, project: Mapping, alpha: Array) -> Array:
        """One step: two evaluations of F and two projections."""
        return project(y - alpha * force(project(y - alpha * force(y))))


@dataclass(frozen=True, eq=False)
class BoundProjections(Tabulated):
    """The solver on one problem. ``alpha`` () is the step; ``counts`` (local steps over all rounds, or 1): t_k."""

    problem: CompiledProblem
    settings: ProjectionMethod
    alpha: np.ndarray
    counts: np.ndarray
    tabulated: ClassVar[tuple[str, ...]] = ("steps", "step_size")

    def client(self, x: Array, party: Party, start: Array, clock: Clock, key: Array) -> tuple[Array, Array]:
        """(y, natural residual) of a client-scope y, on all the client's data."""
        problem = self.problem

        def force(y: Array) -> Array:
            return party.mean(
                lambda rows: problem.operator(x, y, party.environment, rows), problem.lower_samples
            )

        return self._advance(x, party.environment, force, start, clock)

    def sample(self, x: Array, party: Party, row: dict[int, Array], start: Array, clock: Clock) -> tuple[Array, Array]:
        own = {**party.environment, **row}
        return self._advance(x, own, lambda y: self.problem.operator(x, y, own, NO_ROWS), start, clock)

    def evaluations(self, clock: Clock, client: Array | int) -> Array:
        """Of F: in every step, and once for the residual."""
        return row(self.counts, clock.step) * self.settings.evaluations + 1

    def _advance(self, x: Array, own: Environment, force: Mapping, start: Array, clock: Clock) -> tuple[Array, Array]:
        def project(z: Array) -> Array:
            return self.problem.project_lower(x, z, own)

        first = project(jnp.zeros_like(start) if self.settings.start == "zero" else start)
        count, alpha = row(self.counts, clock.step), jnp.asarray(self.alpha, start.dtype)
        y = jax.lax.fori_loop(0, count, lambda _, y: self.settings.advance(y, force, project, alpha), first)
        return y, jnp.linalg.norm(y - project(y - force(y)))

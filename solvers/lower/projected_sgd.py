"""Projected stochastic gradient steps on one owner's lower level: Algorithm 2 of ZO-HFL ([HFL]).

    y_{t+1} = P_Y(x) [ y_t - step_t * F(x, y_t; minibatch_t) ],   t = 0, ..., H - 1

F is the gradient of the lower objective (negated for an argmax) or the mapping of an equilibrium.
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
from hierfl.compiler.expressions.program import NO_ROWS, Environment, Rows
from hierfl.errors import SettingError
from hierfl.near_names import suggests_names
from hierfl.solvers.lower.lower_solver import Clock, Effort, require_scope
from hierfl.solvers.papers.theory import SCHEDULES, lower_constants, require_left_out
from hierfl.solvers.parts.requirements import require_choice, require_count
from hierfl.solvers.parts.step_schedules import (
    Decay,
    Schedule,
    StepCounts,
    require_schedule,
    steps_of,
    tabulate,
    tabulate_steps,
)
from hierfl.solvers.parts.step_tables import Tabulated, constant, rows

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

        Raises
        ------
        SettingError, IncompatibleSolverError
            Naming the setting, or the scope.
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
            value: Value = party.estimate(function, problem.lower_samples, key, batch_size, t)
            return value

        def step(t: Array, y: dict[int, Array]) -> dict[int, Array]:
            force = estimate(lambda rows: problem.operator_parts(x, y, own, rows), t)
            return problem.project_lower_parts(x, jax.tree.map(lambda z, f: z - sizes[t] * f, y, force), own)

        first = problem.lower.split(self._first(x, start, own))
        y = problem.lower.joined(jax.lax.fori_loop(0, count, step, first))
        last = estimate(lambda rows: problem.operator(x, y, own, rows), count)
        return y, jnp.linalg.norm(y - problem.project_lower(x, y - last, own))

    def sample(self, x: Array, party: Party, row: dict[int, Array], start: Array, clock: Clock) -> tuple[Array, Array]:
        """(y, natural residual) of one sample's y."""
        problem, own = self.problem, {**party.environment, **row}
        sizes, count = jnp.asarray(self.sizes, x.dtype), steps_of(self.counts, clock.round, party.index)

        def moved(y: Array, size: Array | float) -> Array:
            return problem.project_lower(x, y - size * problem.operator(x, y, own, NO_ROWS), own)

        y = jax.lax.fori_loop(0, count, lambda t, y: moved(y, sizes[t]), self._first(x, start, own))
        return y, jnp.linalg.norm(y - moved(y, 1.0))

    def effort(self, r: int, k: int, client: int) -> Effort:
        """A call's of one client in round r."""
        own = rows(self.counts, r, r + 1)[0]
        steps = int(own[0] if own.shape == (1,) else own[client])
        return Effort(steps + 1, steps + 2)

    def _first(self, x: Array, start: Array, own: Environment) -> Array:
        """Where the steps begin, in Y(x)."""
        return self.problem.project_lower(x, x if self.settings.start == "query" else start, own)

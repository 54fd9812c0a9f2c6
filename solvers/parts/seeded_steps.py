"""A client's zeroth-order local steps as anybody can redo them who knows its key and the slopes that it saw.

    x_i  <-  x_i - gamma ( n/q sum_j D_j v_j + (x_i - P_X(x_i)) / eta )

The directions v_j follow from the step's key, or are the round's; only the slopes D_j depend on a client's data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.jaxtools.keyed_random import fold_in, split
from hierfl.runtime.contract import Clients
from hierfl.solvers.lower.lower_solver import Clock
from hierfl.solvers.parts.directions import Directions
from hierfl.solvers.parts.estimators import average_along
from hierfl.solvers.parts.step_schedules import Schedule, StepCounts, steps_of, tabulate, tabulate_steps
from hierfl.solvers.parts.step_tables import Tabulated, constant, row


@dataclass(frozen=True, eq=False)
class SeededSteps(Tabulated):
    """The tables and settings of local steps.

    ``sizes`` (rounds,): gamma; ``counts`` (rounds or 1, clients or 1): H, at most ``most``; ``first_steps`` (rounds,): local steps
    made before each round, since k counts them over all rounds; ``smoothing`` (): eta; ``directions``: q, of one step.
    """

    problem: CompiledProblem
    sizes: np.ndarray
    counts: np.ndarray
    first_steps: np.ndarray
    smoothing: np.ndarray
    most: int
    directions: int
    direction_kind: str

    @classmethod
    def of(
        cls,
        problem: CompiledProblem,
        rounds: int,
        step_size: Schedule,
        local_steps: StepCounts,
        smoothing: float,
        directions: int,
        direction_kind: str,
    ) -> SeededSteps:
        """Schedules tabulated.

        Raises ``SettingError`` for a schedule that is none; names it and the round.
        """
        sizes = tabulate(step_size, rounds, "step_size")
        counts = tabulate_steps(local_steps, rounds, problem.num_clients)
        done = np.cumsum(counts.max(axis=1, initial=0))
        first_steps = np.concatenate([[0], done[:-1]]).astype(int)
        most, eta = max(1, int(counts.max(initial=1))), np.array(smoothing, float)
        return cls(problem, sizes, constant(counts), first_steps, eta, most, directions, direction_kind)

    @property
    def total(self) -> int:
        """Local steps over all rounds, of a client that makes the most in each."""
        return int(self.first_steps[-1] + self.counts[-1].max()) if len(self.counts) else 0

    def cut_short(self, last: int, steps: int) -> SeededSteps:
        """The same tables with so many local steps in round ``last``."""
        counts = np.repeat(self.counts, len(self.sizes), axis=0) if len(self.counts) == 1 else self.counts.copy()
        counts[last] = steps
        return replace(self, counts=counts)

    def size(self, r: Int[Array, ""]) -> Float[Array, ""]:
        """The step size gamma of a round."""
        return row(self.sizes, r)

    def count(self, r: Int[Array, ""], clients: Int[Array, ...]) -> Int[Array, ...]:
        """The local steps H of a client in a round, or of several clients."""
        return steps_of(self.counts, r, clients)

    def clock(self, r: Int[Array, ""], t: Int[Array, ""] | int = 0) -> Clock:
        """The time k of a round's local step t."""
        return Clock(r, row(self.first_steps, r) + t)

    def keys(self, key: Array) -> Array:
        """(most, 2) keys, for the directions and the samples of every local step; one by one they would cost more."""
        return jax.vmap(lambda t: split(fold_in(key, t)))(jnp.arange(self.most))

    def draw(self, key: Array) -> Directions:
        """The directions v_j of one step."""
        return Directions.draw(key, self.directions, self.problem.upper.size, self.direction_kind)

    def update(
        self,
        x: Float[Array, " n"],
        gradient: Float[Array, " n"],
        size: Float[Array, ""],
        project: Callable[[Array], Array],
    ) -> Float[Array, " n"]:
        """One local step: x - gamma (g + (x - P_{X_i}(x)) / eta)."""
        return x - size * (gradient + (x - project(x)) / self.smoothing)

    def replayed(
        self,
        clients: Clients,
        x: Float[Array, " n"],
        client: Int[Array, ""],
        slopes: Float[Array, "most q"],
        v: Directions | None,
    ) -> Float[Array, " n"]:
        """A client's move of the round from x, rebuilt from its slopes; ``v`` where the round's directions serve all steps."""
        size, keys = self.size(clients.round), self.keys(fold_in(clients.key, client))

        def step(t: Array, own: Array) -> Array:
            directions = self.draw(keys[t, 0]) if v is None else v
            gradient = average_along(directions, slopes[t])
            return self.update(own, gradient, size, lambda z: self.problem.project_upper(z, clients.public))

        return jax.lax.fori_loop(0, self.count(clients.round, client), step, x) - x

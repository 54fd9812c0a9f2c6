"""A client's zeroth-order local steps as anybody can redo them who knows its key and the slopes that it saw.

    x_i  <-  x_i - gamma ( n/q sum_j D_j v_j + (x_i - P_X(x_i)) / eta )

The directions v_j follow from the step's key, or are the round's; only the slopes D_j depend on a client's data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import SettingError
from hierfl.jaxtools.keyed_random import fold_in, split
from hierfl.runtime.contract import Clients, Known
from hierfl.solvers.lower.lower_solver import Clock
from hierfl.solvers.parts.directions import Directions, average_along
from hierfl.solvers.parts.step_schedules import (
    Schedule,
    StepCounts,
    Tabulated,
    constant,
    row,
    steps_of,
    tabulate,
    tabulate_steps,
)


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
        """Schedules tabulated. Raises ``SettingError`` for a schedule that is none; names it and the round."""
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
        return row(self.sizes, r)

    def count(self, r: Int[Array, ""], clients: Int[Array, ...]) -> Int[Array, ...]:
        return steps_of(self.counts, r, clients)

    def clock(self, r: Int[Array, ""], t: Int[Array, ""] | int = 0) -> Clock:
        """The time k of a round's local step t."""
        return Clock(r, row(self.first_steps, r) + t)

    def keys(self, key: Array) -> Array:
        """(most, 2) keys, for the directions and the samples of every local step; one by one they would cost more."""
        return jax.vmap(lambda t: split(fold_in(key, t)))(jnp.arange(self.most))

    def draw(self, key: Array) -> Directions:
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


COMMUNICATIONS = ("full", "scalars")


def require_rebuildable(problem: CompiledProblem, solver: str) -> None:
    """Check that the clients can rebuild x from scalars: nothing dense enters it. Raises ``SettingError``, naming what is dense."""
    if problem.server_program is not None:
        raise SettingError(
            f"communication='scalars' of {solver}: the server's own term moves x by a vector that clients cannot rebuild from scalars. "
            f"Write communication='full'."
        )


class Ledger(NamedTuple):
    """All scalars sent up so far, and how many of them each client has seen."""

    total: Int[Array, ""]
    seen: Int[Array, " clients"]

    @classmethod
    def new(cls, problem: CompiledProblem) -> Ledger:
        """Before the first round everybody knows x0."""
        return cls(jnp.zeros((), int), jnp.zeros(problem.num_clients, int))

    def charge(self, clients: Clients, sent: Array | int) -> Ledger:
        """Count the catch-up of a round's participants, who then send ``sent`` scalars together."""
        who, missed = clients.participants, self.total - self.seen[clients.participants]
        clients.charge("down", jnp.sum(jnp.where(clients.present, missed, 0)))
        return Ledger(self.total + sent, self.seen.at[who].set(self.total))


@dataclass(frozen=True)
class VectorUplink:
    """``communication="full"``: x and the directions travel down, vectors travel up."""

    vectors: ClassVar[bool] = True

    def announced(self, x: Float[Array, " n"]) -> Array | Known:
        return x

    def send_directions(self, clients: Clients, scalars: Array | int) -> None:
        """Count the directions that the server sends."""
        clients.charge("down", scalars)


@dataclass(frozen=True)
class ScalarUplink:
    """``communication="scalars"``: participants catch up by scalars, and derive the directions from shared seeds."""

    vectors: ClassVar[bool] = False

    def announced(self, x: Float[Array, " n"]) -> Array | Known:
        return Known(x)

    def send_directions(self, clients: Clients, scalars: Array | int) -> None:
        """Directions follow from the seeds."""


def arrived(x: Array | Known) -> Float[Array, " n"]:
    """x as a participant has it, from what ``announced`` made of it."""
    return x.values if isinstance(x, Known) else x


# --- what a client sends of its local steps -----------------------------------------------------------------------------


class MoveUplink(VectorUplink):
    """A participant sends its move."""

    def first_slopes(self, steps: SeededSteps, x: Float[Array, " n"]) -> Array:
        """No slopes are kept."""
        return jnp.zeros(0, x.dtype)

    def noted(self, kept: Array, t: Int[Array, ""], slopes: Float[Array, " q"]) -> Array:
        """The slopes kept after local step t."""
        return kept

    def payload(self, move: Float[Array, " n"], kept: Array) -> Array | Known:
        return move

    def charge(self, clients: Clients, ledger: Ledger, steps: SeededSteps) -> Ledger:
        """The messages themselves are what is counted."""
        return ledger

    def moves(
        self, clients: Clients, steps: SeededSteps, x: Array, payload: Array | Known, v: Directions | None
    ) -> Float[Array, "participants n"]:
        """Rebuild every participant's move from what it sent."""
        return arrived(payload)


class SlopeUplink(ScalarUplink):
    """A participant sends the slopes of all its local steps, from which anybody with the round's key replays them."""

    def first_slopes(self, steps: SeededSteps, x: Float[Array, " n"]) -> Float[Array, "most q"]:
        return jnp.zeros((steps.most, steps.directions), x.dtype)

    def noted(self, kept: Float[Array, "most q"], t: Int[Array, ""], slopes: Float[Array, " q"]) -> Array:
        return kept.at[t].set(slopes)

    def payload(self, move: Float[Array, " n"], kept: Float[Array, "most q"]) -> Array | Known:
        """What the client sends; ``charge`` counts it, since only the slopes of steps that were made would travel."""
        return Known(kept)

    def charge(self, clients: Clients, ledger: Ledger, steps: SeededSteps) -> Ledger:
        """Count the catch-up of the participants, and the slopes that they send: q for every step, or for all together."""
        counts = steps.count(clients.round, clients.participants)
        sent = steps.directions * jnp.sum(jnp.where(clients.present, self.sendings(counts), 0))
        clients.charge("up", sent)
        return ledger.charge(clients, sent)

    def sendings(self, counts: Int[Array, " participants"]) -> Int[Array, " participants"]:
        """How many times a participant of so many local steps sends q slopes."""
        return counts

    def moves(
        self, clients: Clients, steps: SeededSteps, x: Array, payload: Array | Known, v: Directions | None
    ) -> Float[Array, "participants n"]:
        def replayed(job: tuple[Array, Array]) -> Array:
            client, slopes = job
            return steps.replayed(clients, x, client, slopes, v)

        return jax.lax.map(replayed, (clients.participants, arrived(payload)))


class SlopeSumUplink(SlopeUplink):
    """All local steps run along the round's directions and nothing else moves x: the sums of their slopes say it all."""

    def payload(self, move: Float[Array, " n"], kept: Float[Array, "most q"]) -> Array | Known:
        return Known(jnp.sum(kept, axis=0))

    def sendings(self, counts: Int[Array, " participants"]) -> Int[Array, " participants"]:
        """A participant sends once, if it makes a step at all."""
        return jnp.minimum(counts, 1)

    def moves(
        self, clients: Clients, steps: SeededSteps, x: Array, payload: Array | Known, v: Directions | None
    ) -> Float[Array, "participants n"]:
        assert v is not None
        return -steps.size(clients.round) * x.size / v.count * jax.vmap(v.combination)(arrived(payload))

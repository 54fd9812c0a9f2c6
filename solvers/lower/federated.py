"""One y computed by all clients together: local steps at the clients, averaged by the server, for several lower rounds.

The algorithms differ in their *rule* (which sequences a client carries, where it takes the gradient, how it steps). The
answers at all queried points are computed side by side with common random numbers: the noise of their difference is what
a zeroth-order method sees. With an x-dependent Y(x) every local step is projected on it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Party
from hierfl.compiler.expressions.program import Environment
from hierfl.errors import SettingError
from hierfl.jaxtools.keyed_random import fold_in
from hierfl.runtime.contract import Clients, Known, Message, Received
from hierfl.solvers.lower.lower_solver import Clock, Effort, LowerAnswer
from hierfl.solvers.parts.step_schedules import MOST, Schedule, tabulate, whole
from hierfl.solvers.parts.step_tables import Tabulated, row, rows

STARTS = ("warm", "zero")
Sequences = tuple[Array, ...]
Memory = TypeVar("Memory")  # of the algorithm above, which stays as it is


class Rule(NamedTuple):
    """``start(y)`` gives the sequences, ``point(sequences, sizes)`` says where to take g, ``step(sequences, g, t, sizes)``
    moves them, ``answer(sequences)`` is y.

    ``sizes``: the table of step sizes; where they change with the round and not with t, the round's. ``sequences``: how many.
    """

    start: Callable[[Array], Sequences]
    point: Callable[[Sequences, Array], Array]
    step: Callable[[Sequences, Array, Array, Array], Sequences]
    answer: Callable[[Sequences], Array]
    by_round: bool
    sequences: int = 1


@dataclass(frozen=True, eq=False)
class BoundFederated(Tabulated):
    """A federated lower solver on one problem.

    ``lower_rounds``, ``local_steps``: per upper round, (rounds or 1,); ``sizes``: the rule's step sizes, per local step or round.
    """

    problem: CompiledProblem
    settings: Any
    rule: Rule
    lower_rounds: np.ndarray
    local_steps: np.ndarray
    sizes: np.ndarray
    tabulated: ClassVar[tuple[str, ...]] = ("rounds", "steps", "step_size", "strong_convexity")

    def federation(
        self, clients: Clients, points: Known, start: Array, clock: Clock, key: Array, calls: Array | None = None
    ) -> LowerAnswer:
        """The answers at all points, from one start."""
        xs, public = points.values, clients.public
        begin = start if self.settings.start == "warm" else jnp.zeros_like(start)
        first = jax.vmap(lambda x: self.problem.project_lower(x, begin, public))(xs)

        def body(index: Array, sequences: Sequences) -> Sequences:
            broadcast = (points, sequences, Known((index, clock, calls)))
            moves = clients.map(self.local_round, broadcast, key=fold_in(key, index)).payload
            return jax.tree.map(lambda own, move: own + move / weight, sequences, clients.mean(moves))

        weight = self.problem.total_weight  # the mean's minimiser needs no more
        count = row(self.lower_rounds, clock.round)
        y = jax.vmap(self.rule.answer)(clients.loop(count, body, jax.vmap(self.rule.start)(first)))
        return LowerAnswer(y, self._residuals(clients, points, y, key, count), self._gaps(xs, public))

    def effort(self, r: int, k: int = 0, client: int = 0) -> Effort:
        """A call's in round r of the upper level, by the tables: every local step projects each sequence that a client carries."""
        m, rounds = self.problem.num_clients, int(rows(self.lower_rounds, r, r + 1)[0])
        steps = m * rounds * int(rows(self.local_steps, r, r + 1)[0])
        return Effort(steps + m, steps * self.rule.sequences + 2, rounds)

    def rounds_of(self, scalars_up: int, points: int) -> int:
        """The lower rounds in which all clients sent so many scalars up, for y at so many points."""
        return scalars_up // (self.problem.num_clients * self.rule.sequences * points * self.problem.lower.size)

    def local_round(self, party: Party, memory: Memory, received: Received, key: Array) -> tuple[Memory, Message]:
        """H local steps of one client at every point, with the same minibatches, or those of each call."""
        points, sequences, known = received.broadcast
        index, clock, calls = known.values
        steps, samples = row(self.local_steps, clock.round), self.problem.lower_samples

        sizes = row(self.sizes, clock.round) if self.rule.by_round else jnp.asarray(self.sizes, float)
        batch_size = self.settings.batch_size

        def one(x: Array, start: Sequences, call: Array | None) -> Sequences:
            own_key = key if call is None else fold_in(key, call)

            def advance(t: Array, own: Sequences) -> Sequences:
                y = self.rule.point(own, sizes)
                g = party.estimate(
                    lambda rows: self.problem.operator(x, y, party.environment, rows), samples, own_key, batch_size, t
                )
                moved = self.rule.step(own, g, index * steps + t, sizes)
                return tuple(self.problem.project_lower(x, part, party.environment) for part in moved)

            end: Sequences = jax.lax.fori_loop(0, steps, advance, start)
            return end

        moved = jax.vmap(one)(points.values, sequences, calls)
        return memory, Message(jax.tree.map(jnp.subtract, moved, sequences), {})

    def force(self, party: Party, memory: Memory, received: Received, key: Array) -> tuple[Memory, Message]:
        """F(x, y) of one client at every point, on a minibatch."""
        points, y = received.broadcast
        force = jax.vmap(lambda x, own: self._force(x, own, party, key))(points.values, y.values)
        return memory, Message(None, {"force": force})

    def _force(self, x: Array, y: Array, party: Party, key: Array) -> Array:
        problem, batch_size = self.problem, self.settings.batch_size
        force: Array = party.estimate(
            lambda rows: problem.operator(x, y, party.environment, rows), problem.lower_samples, key, batch_size
        )
        return force

    def _residuals(self, clients: Clients, points: Known, y: Array, key: Array, index: Array) -> Array:
        """||y - P(y - F)|| with F on minibatches, for the history; asked of the clients as monitor numbers."""
        key = fold_in(key, index)
        force = clients.mean(clients.map(self.force, (points, Known(y)), key=key).monitor["force"])
        nearest = jax.vmap(lambda x, z: self.problem.project_lower(x, z, clients.public))(points.values, y - force)
        return jnp.linalg.norm(y - nearest, axis=1)

    def _gaps(self, xs: Float[Array, "points n"], public: Environment) -> Float[Array, " points"]:
        return jax.vmap(lambda x: self.problem.lower_gap(x, public))(xs)


def tabulate_counts(schedule: Schedule, rounds: int, what: str) -> np.ndarray:
    """Whole numbers of at least 1, ``(rounds,)``, of a number or schedule of the round; fractions are rounded up.

    Raises ``SettingError``, naming the setting and the round.
    """
    table = whole(tabulate(schedule, rounds, what), what)
    bad = np.flatnonzero(table < 1)
    if bad.size:
        raise SettingError(f"{what} is {table[bad[0]]} at round {bad[0]}: a whole number in 1, ..., {MOST:,}.")
    return table

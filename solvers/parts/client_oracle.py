"""f_i at a point, as one client evaluates it: minibatches, its own lower-level solver, and queries on X.

Every algorithm of the family evaluates the clients' terms through this one oracle; they differ in where they query it
and in what they make of the values.

Upper constraints on means of the answers, in rounds: what is violated has a price, which is broadcast, or which a client knows.
The penalty of a mean is no sum over those that it is over, so that no client can evaluate its part. But rho max(0, mean) has the slope rho where
the mean is violated, and 0 where it is not: at that price the mean itself, which is a sum, has the penalty's gradient. A round begins with
a question to all clients for their part in each mean over clients; the server adds the parts up, and broadcasts the slopes beside x. Of a mean
over a client's own rows that client alone sets the price.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float, Int

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.coupled_conditions import slope_of
from hierfl.compiler.data.tables import Party
from hierfl.compiler.expressions.program import Environment, Program, Rows
from hierfl.compiler.lower_level.certificate import Judgement
from hierfl.compiler.lower_level.exact_lower import LARGE
from hierfl.jaxtools.keyed_random import fold_in, split
from hierfl.language.coupled import CLIENTS_MEAN, CoupledCondition, Penalty
from hierfl.language.sample import Sample
from hierfl.runtime.contract import PRICE_STREAM, Clients, Known, Message, OwnValue, Received
from hierfl.solvers.lower.lower_solver import Clock
from hierfl.solvers.parts.step_schedules import Tabulated

Jobs = TypeVar("Jobs")
Memory = TypeVar("Memory")
Value = TypeVar("Value")
Answers = tuple[Array, Array, Array] | tuple[None, None, None]


class AtPrices(NamedTuple):
    """What else is ``told``, the slopes of the penalties of means over clients, and where they are those: x, and the federation's y."""

    told: Any
    slopes: tuple[Array, ...]
    at: Known


class Evaluated(NamedTuple):
    """A client's answer y (empty where it keeps none), its value, how well the lower level was solved, how often by the client, and with how many
    evaluations of F."""

    y: Float[Array, " size"]
    value: Float[Array, ""]
    residual: Float[Array, ""]
    gap: Float[Array, ""]
    solves: Int[Array, ""]
    evaluations: Int[Array, ""]


@dataclass(frozen=True, eq=False)
class ClientOracle(Tabulated):
    """f_i(x, y_i(x)) on minibatches.

    ``lower`` is a bound lower-level solver or None; ``alone`` says that each client answers by itself (client scope, or
    the only client of a federation), so that it keeps a y of its own.
    """

    problem: CompiledProblem
    lower: Any
    batch_size: int | None
    queries: str
    alone: bool

    def query(self, point: Array, own: Environment) -> Array:
        """The point itself, or its projection on the public part of X (``queries='projected'``)."""
        return point if self.queries == "raw" else self.problem.project_upper(point, own)

    def first_answer(self, x0: Float[Array, " n"]) -> Float[Array, " size"]:
        """A client's warm start at round 0: x0 where y has x's shapes, else 0; empty where clients keep no y."""
        problem = self.problem
        if not self.alone:
            return jnp.zeros(0, x0.dtype)
        alike = [v.shape for v in problem.upper.variables] == [v.shape for v in problem.lower.variables]
        return x0 if alike else jnp.zeros(problem.lower.size, x0.dtype)

    def at(
        self,
        x: Float[Array, " n"],
        party: Party,
        start: Float[Array, " size"],
        clock: Clock,
        key: Array,
        y: Float[Array, " size"] | None = None,
        call: Array | None = None,
    ) -> Evaluated:
        """f_i at x on a minibatch drawn by ``key``; a federation-scope y is given.

        The same key at two points means common random numbers, in the upper level and in the lower-level solver; calls of the
        latter that are numbered draw samples of their own.
        """
        problem = self.problem
        lower_key, upper_key = split(key)
        lower_key = lower_key if call is None else fold_in(lower_key, call)
        if problem.scope == "sample":
            value, residual, gap, solves = party.estimate(
                lambda rows: (*self._answered(x, party, clock, rows), self.answers_of(rows)),
                problem.upper_samples,
                upper_key,
                self.batch_size,
            )
            return Evaluated(jnp.zeros(0), value, residual, gap, *self.worked(solves, party, clock))
        kept, residual, gap = jnp.zeros(0), jnp.zeros(()), jnp.zeros(())
        if self.alone:
            kept, residual = self.lower.client(x, party, start, clock, lower_key)
            gap, y = problem.lower_gap(x, party.environment), kept
        value = party.estimate(
            lambda rows: problem.client_value(x, y, party.environment, rows),
            problem.upper_samples,
            upper_key,
            self.batch_size,
        )
        return Evaluated(kept, value, residual, gap, *self.worked(jnp.full((), int(self.alone)), party, clock))

    def worked(self, solves: Array, party: Party, clock: Clock) -> tuple[Array, Array]:
        """(lower levels solved, evaluations of F in them), 0 where nobody knows."""
        each = getattr(self.lower, "evaluations", lambda *_: 0)
        return solves, solves * each(clock, party.index)

    def answers_of(self, rows: Rows) -> Int[Array, ""]:
        """How many y(x, sample) rows ask for: one each, where they are of the lower level's table; what fills up a piece has no weight."""
        table = self.problem.row_samples
        if not set(table) & set(rows.values):
            return jnp.zeros((), int)
        return jnp.sum(rows.weights[table[0]] != 0, dtype=int)

    def _answered(self, x: Array, party: Party, clock: Clock, rows: Rows) -> tuple[Array, Array, Array]:
        """(value, weighted residual, weighted gap) of rows with their answers."""
        y, residuals, gaps = self.answers(x, party, clock, rows)
        value = self.problem.client_value(x, y, party.environment, rows)
        if y is None or residuals is None or gaps is None:
            return value, jnp.zeros(()), jnp.zeros(())
        weight = rows.weights[self.problem.row_samples[0]]
        return value, weight @ residuals, weight @ jnp.maximum(gaps, 0.0)

    def answers(self, x: Array, party: Party, clock: Clock, rows: Rows) -> Answers:
        """(y, natural residual, gap) of each row; None where the rows are not those of the lower level's table."""
        problem = self.problem
        table, zero = problem.row_samples, jnp.zeros(problem.lower.size, x.dtype)
        if not set(table) & set(rows.values):
            return None, None, None

        def one(row: dict[int, Array]) -> tuple[Array, Array, Array]:
            y, residual = self.lower.sample(x, party, row, zero, clock)
            return y, residual, problem.lower_gap(x, {**party.environment, **row})

        return self.each(one, {leaf: rows.values[leaf] for leaf in table})

    @property
    def one_by_one(self) -> bool:
        """Whether points or samples are answered one after another: on a CPU, where the y of a sample is large."""
        large = self.problem.scope == "sample" and self.problem.lower.size >= LARGE
        return large and jax.default_backend() == "cpu"

    def each(self, function: Callable[[Jobs], Value], jobs: Jobs) -> Value:
        """A function of y at each of some samples: side by side, or one after another."""
        return jax.lax.map(function, jobs) if self.one_by_one else jax.vmap(function)(jobs)

    # --- prices of means: a question for rounds to ask, and prices for other steps ---------------------------------

    def with_prices(self, clients: Clients, x: Array, y: Array | None, clock: Clock, told: Any, key: Array) -> Any:
        """A broadcast with the prices at x and the federation's y; itself where no upper constraint is on a mean."""
        problem, slopes = self.problem, tuple[Array, ...]()
        if not problem.means:
            return told
        x = self.query(x, clients.public)
        if problem.asks_all:
            messages = clients.everyone.map(self.parts, (x, y, clock), key=fold_in(key, PRICE_STREAM))
            means, rho = clients.everyone.mean(messages.payload), clients.public[self._penalty.rho.id]
            slopes = tuple(rho * slope_of(one, mean) for (one, _), mean in zip(self._over_clients(), means))
        return AtPrices(told, slopes, Known((x, y, clock)))

    def parts(self, party: Party, memory: Memory, received: Received, key: Array) -> tuple[Memory, Message]:
        """A client's part in every mean over clients."""
        x, y, clock = received.broadcast
        y = self._own_y(x, y, party, memory, clock, key)
        own = tuple(self._share(one, party) * self._excess(one, p, x, y, party, clock) for one, p in self._over_clients())
        return memory, Message(own, {})

    def at_prices(self, party: Party, memory: Any, received: Received, key: Array) -> tuple[Party, Received]:
        """The party with the prices among its constants, and what was told beside them; the same where there are none."""
        if not isinstance(received.broadcast, AtPrices):
            return party, received
        told, slopes, known = received.broadcast
        x, y, clock = known.values
        prices = {one: self._share(one, party) * slope for (one, _), slope in zip(self._over_clients(), slopes)}
        own = [(one, program) for one, program in self.problem.means if one not in prices]
        if own:
            y, rho = self._own_y(x, y, party, memory, clock, key), party.environment[self._penalty.rho.id]
            prices |= {one: rho * slope_of(one, self._excess(one, p, x, y, party, clock)) for one, p in own}
        leaves = {self._penalty.prices[one].id: price for one, price in prices.items()}
        return replace(party, environment={**party.environment, **leaves}), received._replace(broadcast=told)

    @property
    def _penalty(self) -> Penalty:
        penalty = self.problem.declaration.penalty
        assert penalty is not None, "prices without means"
        return penalty

    def _over_clients(self) -> Iterator[tuple[CoupledCondition, Program]]:
        return ((one, program) for one, program in self.problem.means if one.kind == CLIENTS_MEAN)

    def _share(self, one: CoupledCondition, party: Party) -> Array:
        """What a client counts in a mean over all, in its weight."""
        problem = self.problem
        return 1.0 / (problem.num_clients * party.weight) if one.summed else jnp.asarray(1.0 / problem.total_weight)

    def _own_y(self, x: Array, y: Array | None, party: Party, memory: Any, clock: Clock, key: Array) -> Array | None:
        """The federation's y, or the client's; None where each row has one."""
        if not self.alone:
            return None if self.problem.scope == "sample" else y
        start = memory[0] if isinstance(memory, tuple) else memory
        return self.lower.client(x, party, start, clock, split(key)[0])[0]

    def _excess(
        self, one: CoupledCondition, program: Program, x: Array, y: Array | None, party: Party, clock: Clock
    ) -> Array:
        """What left exceeds right by, on all rows of a client."""
        problem = self.problem
        samples = {p.id for p in one.constraint.parameters() if isinstance(p, Sample)}
        samples |= set(problem.row_samples) if problem.scope == "sample" else set()

        def excess(rows: Rows) -> Array:
            answers = self.answers(x, party, clock, rows)[0] if problem.scope == "sample" else y
            left, right = program(*problem.answered(x, answers, party.environment, rows))
            return left - right

        return party.mean(excess, tuple(samples))

    # --- the run's own value: all data, y as this lower solver gives it ------------------------------------------

    def own_value(self, clients: Clients, x: Array, y: Array | None, clock: Clock, key: Array) -> OwnValue:
        """Sum of all terms at x; ``y`` is a federation-scope answer, else clients answer from their last one.

        Whoever holds the data judges y by them anew: each client its own, all together the one that they share, of which they send F.
        """
        messages = clients.map(self.full_value, self.with_prices(clients, x, y, clock, (x, y, clock), key), key=key)
        shared = y is not None and not self.problem.several
        values, forces = messages.payload if shared else (messages.payload, None)
        total = clients.mean(values)
        if self.problem.server_program is not None:
            total = total + clients.server(self.server_value, (x, y))
        if not self.problem.lower.size:
            return OwnValue(total, jnp.zeros(()), jnp.zeros(()), jnp.full((), -1))
        if y is not None and not shared:  # no one mapping, whose mean would tell
            return OwnValue(total, jnp.full((), jnp.nan), jnp.full((), jnp.inf), jnp.full((), -1))
        if y is not None:
            found = self.problem.exact.shared_conditions(x, y, clients.mean(forces), clients.public)
            return OwnValue(total, *found, jnp.full((), -1))
        told = Judgement(**messages.monitor)
        return OwnValue(
            total, jnp.max(told.residual), jnp.max(told.error_bound), clients.participants[jnp.argmax(told.residual)]
        )

    def full_value(self, party: Party, memory: Memory, received: Received, key: Array) -> tuple[Memory, Message]:
        """One client's term on all its data, and what these say of y; a client that keeps a y has it as its memory, or first in it."""
        party, received = self.at_prices(party, memory, received, key)
        x, y, clock = received.broadcast
        problem, force, found = self.problem, None, {}
        if problem.scope == "sample":
            value, squares = party.mean(lambda rows: self._judged(x, party, clock, rows), problem.upper_samples)
            return memory, Message(value, jax.tree.map(jnp.sqrt, squares)._asdict())
        if self.alone:
            start = memory[0] if isinstance(memory, tuple) else memory
            y = self.lower.client(x, party, start, clock, split(key)[0])[0]
            found = problem.exact.conditions(x, problem.exact.client_owner(x, party), y)._asdict()
        elif y is not None and not problem.several:
            force = problem.exact.client_owner(x, party).operator(y)
        value = party.estimate(
            lambda rows: problem.client_value(x, y, party.environment, rows), problem.upper_samples, key, None
        )
        return memory, Message(value if force is None else (value, force), found)

    def _judged(self, x: Array, party: Party, clock: Clock, rows: Rows) -> tuple[Array, Judgement]:
        """The value of rows with their answers, and the squares of these answers' residuals and error bounds, summed: the largest would be one row's."""
        y, exact, table = self.answers(x, party, clock, rows)[0], self.problem.exact, self.problem.row_samples
        value = self.problem.client_value(x, y, party.environment, rows)
        if y is None:
            return value, Judgement(jnp.zeros(()), jnp.zeros(()))

        def one(job: tuple[dict[int, Array], Array]) -> Judgement:
            row, answer = job
            return exact.conditions(x, exact.sample_owner(x, {**party.environment, **row}), answer)

        found = self.each(one, ({leaf: rows.values[leaf] for leaf in table}, y))
        counts = rows.weights[table[0]] != 0  # what fills up a piece is nobody's
        return value, jax.tree.map(lambda of_rows: jnp.sum(jnp.where(counts, of_rows**2, 0.0)), found)

    def server_value(self, party: Party, received: Received, key: Array) -> Array:
        x, y = received.broadcast
        return party.mean(lambda rows: self.problem.server_value(x, y, party.environment, rows))

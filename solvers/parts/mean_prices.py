"""Upper constraints on means of the answers, in rounds: what is violated has a price, which is broadcast, or which a client knows.

The penalty of a mean is no sum over those that it is over, so that no client can evaluate its part. But rho max(0, mean) has the slope rho where
the mean is violated, and 0 where it is not: at that price the mean itself, which is a sum, has the penalty's gradient. A round begins with
a question to all clients for their part in each mean over clients; the server adds the parts up, and broadcasts the slopes beside x. Of a mean
over a client's own rows that client alone sets the price.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import jax.numpy as jnp
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.coupled_conditions import PricedMeans, slope_of
from hierfl.compiler.data.tables import Party
from hierfl.compiler.expressions.program import Environment, Program, Rows
from hierfl.jaxtools.keyed_random import fold_in, split
from hierfl.language.coupled import CLIENTS_MEAN, CoupledCondition
from hierfl.language.sample import Sample
from hierfl.runtime.contract import PRICE_STREAM, Clients, Known, Message, Received
from hierfl.solvers.lower.lower_solver import Clock
from hierfl.solvers.parts.step_schedules import Tabulated

Memory = TypeVar("Memory")
Answers = tuple[Array, Array, Array] | tuple[None, None, None]


class AtPrices(NamedTuple):
    """What else is ``told``, the slopes of the penalties of means over clients, and where they are those: x, and the federation's y."""

    told: Any
    slopes: tuple[Array, ...]
    at: Known


@dataclass(frozen=True, eq=False)
class MeanPrices(Tabulated):
    """What a client's oracle has to do with means: a question for rounds to ask, and prices for other steps."""

    problem: CompiledProblem
    lower: Any
    batch_size: int | None
    queries: str
    alone: bool

    def query(self, point: Array, own: Environment) -> Array:
        """The point itself, or its projection on the public part of X (``queries='projected'``)."""
        return point if self.queries == "raw" else self.problem.project_upper(point, own)

    def answers(self, x: Array, party: Party, clock: Clock, rows: Rows) -> Answers:
        """(y, natural residual, gap) of each row, in sample scope."""
        raise NotImplementedError

    def with_prices(
        self, clients: Clients, x: Array, y: Array | None, clock: Clock, told: Any, key: Array
    ) -> Any:
        """A broadcast with the prices at x and the federation's y; itself where no upper constraint is on a mean."""
        problem, slopes = self.problem, tuple[Array, ...]()
        if not problem.means:
            return told
        x = self.query(x, clients.public)
        if problem.asks_all:
            messages = clients.everyone.map(self.parts, (x, y, clock), key=fold_in(key, PRICE_STREAM))
            means, rho = clients.everyone.mean(messages.payload), clients.public[self._means.rho]
            slopes = tuple(rho * slope_of(one, mean) for (one, _), mean in zip(self._over_clients(), means))
        return AtPrices(told, slopes, Known((x, y, clock)))

    def parts(
        self, party: Party, memory: Memory, received: Received, key: Array
    ) -> tuple[Memory, Message]:
        """A client's part in every mean over clients."""
        x, y, clock = received.broadcast
        y = self._own_y(x, y, party, memory, clock, key)
        own = tuple(self._share(one, party) * self._excess(one, p, x, y, party, clock) for one, p in self._over_clients())
        return memory, Message(own, {})

    def at_prices(
        self, party: Party, memory: Any, received: Received, key: Array
    ) -> tuple[Party, Received]:
        """The party with the prices among its constants, and what was told beside them; the same where there are none."""
        if not isinstance(received.broadcast, AtPrices):
            return party, received
        told, slopes, known = received.broadcast
        x, y, clock = known.values
        prices = {one: self._share(one, party) * slope for (one, _), slope in zip(self._over_clients(), slopes)}
        own = [(one, program) for one, program in self._means.programs if one not in prices]
        if own:
            y, rho = self._own_y(x, y, party, memory, clock, key), party.environment[self._means.rho]
            prices |= {one: rho * slope_of(one, self._excess(one, p, x, y, party, clock)) for one, p in own}
        leaves = {self._means.leaves[one]: price for one, price in prices.items()}
        return replace(party, environment={**party.environment, **leaves}), received._replace(broadcast=told)

    @property
    def _means(self) -> PricedMeans:
        means = self.problem.means
        assert means is not None, "prices without means"
        return means

    def _over_clients(self) -> Iterator[tuple[CoupledCondition, Program]]:
        return ((one, program) for one, program in self._means.programs if one.kind == CLIENTS_MEAN)

    def _share(self, one: CoupledCondition, party: Party) -> Array:
        """What a client counts in a mean over all, in its weight."""
        problem = self.problem
        return 1.0 / (problem.num_clients * party.weight) if one.summed else jnp.asarray(1.0 / problem.total_weight)

    def _own_y(
        self, x: Array, y: Array | None, party: Party, memory: Any, clock: Clock, key: Array
    ) -> Array | None:
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

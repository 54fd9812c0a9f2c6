"""Conditions on the answers in numbers: both sides of each, of all its owners, at x and their y; and the prices of violated means.

With the price rho on a mean that is violated, and 0 on others, a term that is affine in the mean has the value and the gradient of the
penalty rho max(0, mean): so means over rows, and over clients, are terms of the clients like any, as long as somebody knows all means.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from hierfl.compiler.data.tables import Data, Population
from hierfl.compiler.expressions.program import Program
from hierfl.language.coupled import CLIENTS_MEAN, FEDERATION, ROW, CoupledCondition, Penalty
from hierfl.language.sample import Sample

if TYPE_CHECKING:
    from hierfl.compiler.oracles import Oracles


class BothSides(NamedTuple):
    """Left and right of a condition, alike in shape, leading axis the owners."""

    left: Array
    right: Array

    @property
    def excess(self) -> Array:
        """What is positive, or not zero, where it is violated."""
        return self.left - self.right


@dataclass(frozen=True, eq=False)
class CoupledPrograms:
    """Programs for both sides of conditions."""

    conditions: tuple[CoupledCondition, ...]
    programs: tuple[Program, ...]

    @classmethod
    def of(cls, conditions: Sequence[CoupledCondition]) -> CoupledPrograms:
        """Raises ``UnsupportedAtomError`` for an atom that hierfl does not compile."""
        return cls(tuple(conditions), tuple(Program([one.left, one.right]) for one in conditions))

    def sides(self, oracles: Oracles, x: Array, answers: Array, data: Data) -> list[BothSides]:
        """Both sides of every condition at the owners' y (leading axis as from ``solve_all``); traceable."""
        at = _At(oracles, x, answers, data.clients)
        return [_met(at.of_owners(*pair), pair[0], at.clients) for pair in zip(self.conditions, self.programs)]

    @staticmethod
    def table_of(one: CoupledCondition, oracles: Oracles) -> int:
        """Place of the table whose rows are the owners of a condition."""
        clients, samples = oracles.static_data.clients, {p.id for p in one.constraint.parameters() if isinstance(p, Sample)}
        if oracles.scope == "sample":
            return oracles.row_table(clients)
        return next(place for place, table in enumerate(clients.tables) if samples & set(table.samples))

    @staticmethod
    def shares(one: CoupledCondition, clients: Population) -> Array:
        """What each client counts in a mean over them: its weight, or the same as all others where the total is meant."""
        weights = jnp.asarray(clients.weights)
        return jnp.full(weights.shape, 1.0 / clients.size) if one.summed else weights / jnp.sum(weights)

    def prices(self, oracles: Oracles, x: Array, answers: Array, data: Data, penalty: Penalty) -> dict[int, Array]:
        """The prices of all means there by leaf: (clients, *shape) each."""
        at, rho, prices = _At(oracles, x, answers, data.clients), data.clients.public[penalty.rho.id], {}
        for one, program in oracles.means:
            slope = rho * slope_of(one, _met(at.of_owners(one, program), one, at.clients).excess)
            if one.kind == CLIENTS_MEAN:
                weights = jnp.asarray(at.clients.weights)
                share = self.shares(one, at.clients) / weights
                slope = share.reshape(-1, *(1,) * (slope.ndim - 1)) * slope
            prices[penalty.prices[one].id] = slope
        return prices


def slope_of(one: CoupledCondition, excess: Array) -> Array:
    """The slope of what is violated, by what left exceeds right by."""
    return jnp.sign(excess) if one.equality else jnp.where(excess > 0, 1.0, 0.0)


class _At(NamedTuple):
    """Where conditions are looked at."""

    oracles: Oracles
    x: Array
    answers: Array
    population: Population

    @property
    def clients(self) -> Population:
        """The clients, in sample scope with the answers as further columns."""
        oracles = self.oracles
        return oracles.with_answers(self.population, self.answers) if oracles.scope == "sample" else self.population

    def of_owners(self, one: CoupledCondition, program: Program) -> BothSides:
        """Both sides of each who has its own: of a mean over clients these."""
        if one.kind == ROW:
            return self._of_rows(one, program)
        clients, oracles = self.clients, self.oracles
        if one.kind == FEDERATION:
            public = oracles.environment(self.x, self.answers[0], clients.public)
            return _alike(*(side[None] for side in program(public)))
        samples = [p.id for p in one.constraint.parameters() if isinstance(p, Sample)]
        samples += [y.id for y in oracles.lower.variables] if oracles.scope == "sample" else []

        def of_client(place: Array) -> BothSides:
            party = clients.party(place)
            at = oracles.environment(self.x, oracles.own_answer(self.answers, place), party.environment)
            return party.mean(lambda rows: _alike(*program(at, rows)), samples)

        return clients.one_by_one(of_client)

    def _of_rows(self, one: CoupledCondition, program: Program) -> BothSides:
        clients, oracles = self.clients, self.oracles
        table = clients.tables[oracles.coupled.table_of(one, oracles)]
        numbers = jnp.arange(table.size)
        holder = jnp.searchsorted(jnp.asarray(table.offsets), numbers, side="right") - 1

        def of_row(job: tuple[Array, Array]) -> BothSides:
            number, client = job
            y = oracles.own_answer(self.answers, client)
            own = oracles.environment(self.x, y, clients.party(client).environment)
            return _alike(*program({**own, **table.rows(number)}))

        return jax.vmap(of_row)((numbers, holder))


def _alike(left: Array, right: Array) -> BothSides:
    shape = jnp.broadcast_shapes(left.shape, right.shape)
    return BothSides(jnp.broadcast_to(left, shape), jnp.broadcast_to(right, shape))


def _met(own: BothSides, one: CoupledCondition, clients: Population) -> BothSides:
    """What is compared: of a mean over clients that, with one owner."""
    if one.kind != CLIENTS_MEAN:
        return own
    return BothSides(*(jnp.tensordot(CoupledPrograms.shares(one, clients), side, axes=1)[None] for side in own))

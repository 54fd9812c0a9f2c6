"""Who holds a copy of a function: each client, or each of its samples; and what is known of the leaves there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from hierfl.analysis.enclosure import Known
from hierfl.analysis.variable_attributes import attribute_constraints
from hierfl.analysis.variable_bounds import bounds_of
from hierfl.atoms.intervals import Interval
from hierfl.compiler.data.tables import Data, Population
from hierfl.language.expectation import total

if TYPE_CHECKING:
    from hierfl.compiler.compiled_problem import CompiledProblem

GROUPS = 64
SAMPLE_LIMIT = 64


@dataclass(frozen=True, eq=False)
class Holder:
    """A client (``population`` and ``index``) or one sample of a client (``population`` is None, its values in ``own``).

    ``known`` bounds every leaf: x on X, y on the box around all Y(x), parameters at their values, samples on their range.
    ``rows`` counts the samples behind a mean.
    """

    label: str
    index: int
    population: Population | None
    own: dict[int, Any]
    known: Known
    rows: int

    def count(self, average: total) -> int:
        """The number of rows of the table that a total adds up."""
        assert self.population is not None
        samples = {p.id for p in average.parameters()}
        return next(int(t.counts[self.index]) for t in self.population.tables if samples & set(t.samples))


def known_of_all(holders: Sequence[Holder]) -> Known:
    """What is known of the leaves for each of several holders."""
    every = [holder.known for holder in holders]
    return {
        leaf: Interval(np.min([one[leaf].lo for one in every], axis=0), np.max([one[leaf].hi for one in every], axis=0))
        for leaf in every[0]
        if all(leaf in one for one in every)
    }


@dataclass(frozen=True, eq=False)
class Holders:
    """The holders of one compiled problem's data."""

    compiled: CompiledProblem

    @cached_property
    def data(self) -> Data:
        """The federation's data with the present values of parameters."""
        return self.compiled.data()

    @cached_property
    def clients(self) -> tuple[Holder, ...]:
        name = self.compiled.declaration.client_called
        return tuple(self._client(self.data.clients, i, name(i)) for i in range(self.compiled.num_clients))

    @cached_property
    def server(self) -> Holder | None:
        """The server as a holder; None where it has no term."""
        return None if self.data.server is None else self._client(self.data.server, 0, "the server")

    @cached_property
    def samples(self) -> tuple[Holder, ...]:
        """Samples of a sample-scope level as holders, at most ``SAMPLE_LIMIT`` of each client (evenly spread)."""
        place = self.compiled.row_table(self.data.clients)
        table = self.data.clients.tables[place]
        holders = []
        for client in self.clients:
            start, count = int(table.offsets[client.index]), int(table.counts[client.index])
            for row in np.unique(np.linspace(0, count - 1, min(count, SAMPLE_LIMIT)).astype(int)):
                values = {leaf: np.asarray(v) for leaf, v in table.rows(start + row).items()}
                known: Known = {**client.known, **{leaf: Interval.of(v) for leaf, v in values.items()}}
                known = self._with_lower(dict(known)) if self._sets_depend_on(table.samples) else known
                own = {**client.own, **{leaf: jnp.asarray(v) for leaf, v in values.items()}}
                holders.append(Holder(f"{client.label}, sample {row}", client.index, None, own, known, 1))
        return tuple(holders)

    @property
    def every_sample(self) -> bool:
        """Whether :attr:`samples` leaves none out, and none stands for a distribution."""
        table = self.data.clients.tables[self.compiled.row_table(self.data.clients)]
        return table.quantiles is None and int(np.max(table.counts)) <= SAMPLE_LIMIT

    def groups(self, holder: Holder, samples: tuple[int, ...]) -> list[tuple[float, Known]]:
        """(share of the rows, what is known of the leaves in that group) for up to ``GROUPS`` groups of rows.

        The rows are those of the table that holds ``samples``; if they come from several tables or none, all are one group.
        """
        assert holder.population is not None
        tables = [(k, t) for k, t in enumerate(holder.population.tables) if set(samples) & set(t.samples)]
        if len(tables) != 1 or tables[0][1].quantiles is not None:
            return [(1.0, holder.known)]
        _, table = tables[0]
        start, count = int(table.offsets[holder.index]), int(table.counts[holder.index])
        parts = np.array_split(np.arange(start, start + count), min(count, GROUPS))
        return [
            (
                len(part) / count,
                {**holder.known, **{leaf: Interval.hull(np.asarray(v)) for leaf, v in table.rows(part).items()}},
            )
            for part in parts
        ]

    def _client(self, population: Population, index: int, label: str) -> Holder:
        party = population.party(index)
        own = dict(party.environment)
        known: dict[int, Interval] = {**self.compiled.declaration.known_bounds}
        known |= {leaf: Interval.of(np.asarray(value)) for leaf, value in own.items()}
        rows = 1
        for table in population.tables:
            start, count = int(table.offsets[index]), int(table.counts[index])
            rows = max(rows, count)
            if table.quantiles is None:
                own_rows = table.rows(np.arange(start, start + count))
                known |= {leaf: Interval.hull(np.asarray(v)) for leaf, v in own_rows.items()}
            else:
                known |= self._supports(population, index, table.samples)
        return Holder(label, index, population, own, self._with_lower(known), rows)

    @cached_property
    def distributed(self) -> frozenset[int]:
        """Which samples are held as distributions: means over them are computed on nodes."""
        sides = [self.data.clients, *([] if self.data.server is None else [self.data.server])]
        return frozenset(s for side in sides for t in side.tables if t.quantiles is not None for s in t.samples)

    def _sets_depend_on(self, samples: tuple[int, ...]) -> bool:
        lower_set = self.compiled.lower_set
        return lower_set is not None and bool(lower_set.depends_on & set(samples))

    def _supports(self, population: Population, index: int, samples: tuple[int, ...]) -> dict[int, Interval]:
        """Bounds on a party's samples that are held as distributions: the supports of these."""
        federation = self.compiled.declaration.federation
        assert federation is not None
        party = federation.clients[index] if population is self.data.clients else federation.server
        assert party is not None
        supports = {}
        for sample, law in party.samples.items():
            if sample.id in samples:
                low, high = law.support() if hasattr(law, "support") else (-np.inf, np.inf)
                supports[sample.id] = Interval(
                    *(np.broadcast_to(np.asarray(e, float), sample.shape) for e in (low, high))
                )
        return supports

    def _with_lower(self, known: dict[int, Interval]) -> Known:
        level = self.compiled.declaration.lower_level
        if level is None:
            return known
        constraints = [*level.constraints, *attribute_constraints(level.variables)]
        return {**known, **bounds_of(constraints, level.variables, known)}

"""The parties' data as the oracles see them: flat tables with offsets, never padded.

Rows of all clients lie one after another in one array per sample (or in memory-mapped files); a client is an offset and a
count, so that one traced program serves ragged clients. Algorithms see data only through ``Party.batch`` (a keyed minibatch) and
``Party.mean`` (a streamed full pass). A distribution is represented twice: by quantile draws for minibatches, and by weighted
nodes for full passes, always the same ones, so that exact values are repeatable.

A cohort is the data of a round's participants, looked up once a round whatever they do with it afterwards: every look at one of a million clients waits for memory. A client of a few rows is therefore brought whole, in one piece; of a
larger one only where its rows are and how many, its parameters, and its weight.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.compiler.data.evaluation_nodes import (
    QUADRATURE,
    RULES,
    SUM,
    EvaluationNodes,
    NodeRoles,
    Quantiles,
    evaluation_nodes,
)
from hierfl.compiler.data.storage import ByIdentity, Stored, column_elsewhere, gathered, parameters_of, stacked
from hierfl.compiler.expressions.law_kinks import LawIntegrals, has_density
from hierfl.compiler.expressions.program import NO_ROWS, Rows
from hierfl.errors import DataError, IncompatibleSolverError
from hierfl.jaxtools.keyed_random import fold_in, keyed_permutation, row_numbers
from hierfl.language.expectation import RowAggregate, SampleAverage
from hierfl.language.federation.client import Client, mixed_kinds, require_paired
from hierfl.language.federation.sample_values import Elsewhere
from hierfl.language.printing.text import expression_text
from hierfl.language.sample import ClientParameter, Sample

Numbers = Any  # NumPy arrays outside compiled programs, JAX arrays inside
CHUNK_SCALARS = 2_000_000
FEW_SCALARS, EVEN = 16_384, 1.25  # of a party's rows, and the most rows beside the mean, up to which they are one piece


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Table:
    """One table of all clients (or of the server): ``values[sample id]`` (rows, *shape), a slice per party.

    ``typical`` is the number of rows that a party has on average, ``longest`` that of the party with most. Rows that stand for
    distributions have ``weights`` (rows,), each party's summing to one, and ``roles``; others count alike. ``integrals`` are those of
    laws of one scalar. ``whole`` is what is of all rows at once, so that they are no batches, or pieces; empty where nothing is.
    """

    values: dict[int, Numbers]
    offsets: Numbers
    counts: Numbers
    quantiles: Quantiles | None
    typical: int = field(metadata={"static": True})
    longest: int = field(metadata={"static": True})
    weights: Numbers | None = None
    roles: NodeRoles | None = field(default=None, metadata={"static": True})
    integrals: LawIntegrals | None = None
    whole: str = field(default="", metadata={"static": True})

    @property
    def samples(self) -> tuple[int, ...]:
        """Leaf ids of the samples, sorted."""
        return tuple(sorted(self.values))

    @property
    def size(self) -> int:
        """Rows of all parties together."""
        return int(next(iter(self.values.values())).shape[0])

    @property
    def has_nodes(self) -> bool:
        """Whether rows stand for laws of more values than they are: a law of few values is its rows."""
        return self.roles is not None and bool((self.roles.rule != RULES.index(SUM)).any())

    def require_whole(self) -> None:
        for column in self.values.values():
            if isinstance(column, Stored):
                column.require_whole()

    def rows(self, chosen: Any) -> dict[int, Any]:
        """Some rows, by index over all parties, as floating-point numbers: ``{sample id: (*chosen.shape, *shape)}``."""
        return {sample: gathered(column, chosen) for sample, column in self.values.items()}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Population:
    """Parties of one side: their tables, parameters ``(m, *shape)``, weights ``(m,)``, and the constants that all know.

    ``indices`` says which they are of all parties, if they are only some of them.
    """

    tables: tuple[Table, ...]
    parameters: dict[int, Numbers]
    weights: Numbers
    public: dict[int, Numbers] = field(default_factory=dict)
    indices: Numbers | None = None

    @property
    def size(self) -> int:
        return self.weights.shape[0]

    @property
    def scalar_laws(self) -> frozenset[int]:
        """The ids of samples that are one scalar with a density, at every party: their kinks are smooth on average."""
        return frozenset(table.samples[0] for table in self.tables if table.integrals is not None)

    def party(self, place: Any) -> Party:
        """The view of one party; ``place`` among these may be traced."""
        own: Any = place if isinstance(place, jax.Array) else np.asarray(place, int)  # outside of programs JAX would compile what makes its own
        return Party(
            index=own if self.indices is None else self.indices[place],
            tables=self.tables,
            offsets=tuple(table.offsets[place] for table in self.tables),
            counts=tuple(table.counts[place] for table in self.tables),
            environment={**self.public, **{leaf: values[place] for leaf, values in self.parameters.items()}},
            weight=self.weights[place],
        )

    def some_rows(self, place: int, count: int, samples: Sequence[int]) -> Rows:
        """Rows of a party that NumPy draws, with replacement, from each table that holds ``samples``: to look at, outside of programs.

        Of a distribution they are some of its nodes.
        """
        rng = np.random.default_rng(place)
        drawn = NO_ROWS
        for _, table in _holding(self.tables, samples):
            own = table.counts[place]
            rows = table.rows(table.offsets[place] + rng.integers(own, size=count))
            drawn = _with_table(drawn, table, rows, np.full(count, 1.0 / count), own)
        return drawn

    def one_by_one(self, function: Callable[[Array], Any]) -> Any:
        """A function of each party's place, stacked; of a single party without a loop, which would have to be traced and compiled."""
        if self.size == 1:
            return jax.tree.map(lambda value: jnp.asarray(value)[None], function(jnp.zeros((), int)))
        return jax.lax.map(function, jnp.arange(self.size))

    def gathered(self, group: Any) -> tuple[dict[int, Array], Array]:
        """What differs between the rows of all parties, or between the parties, by leaf, and what each weighs.

        ``group`` has the place of a ``table`` (None: parties' constants alone), and says whether rows are ``summed``, not averaged.
        """
        weights = jnp.asarray(self.weights)
        if group.table is None:
            return {leaf: jnp.asarray(values) for leaf, values in self.parameters.items()}, weights
        table = self.tables[group.table]
        numbers = jnp.arange(table.size)
        starts, order = jnp.asarray(table.offsets), jnp.argsort(jnp.asarray(table.offsets))  # in whatever order they are
        holder = order[jnp.searchsorted(starts[order], numbers, side="right") - 1]
        share = 1.0 / jnp.asarray(table.counts)[holder] if table.weights is None else jnp.asarray(table.weights)
        own = {leaf: jnp.asarray(values)[holder] for leaf, values in self.parameters.items()}
        return {**own, **table.rows(numbers)}, weights[holder] * (1.0 if group.summed else share)

    def weighted(self, function: Callable[[Party], Array], like: Array) -> Array:
        """The sum over the parties of what a function says of each, times its weight."""

        def add(place: Any, carry: Array) -> Array:
            party = self.party(place)
            return carry + party.weight * function(party)

        zero = jnp.zeros_like(like)
        return add(jnp.zeros((), int), zero) if self.size == 1 else jax.lax.fori_loop(0, self.size, add, zero)


class Drawn(NamedTuple):
    """How many rows of a table were drawn at once, or as one batch of a pass over all of them."""

    size: int
    table: int
    passing: bool

    def least(self, count: int) -> int:
        """The fewest rows in a batch of a holder of so many, or out of it: the last of a pass has what is left, and all but a few tell of these."""
        if self.size >= count:
            return count
        last = (count % self.size or self.size) if self.passing else self.size
        return min(last, count - self.size)


@dataclass(frozen=True)
class Party:
    """What one party knows: its rows and its parameters. Pure; lives inside traced code.

    With a ``secret``, two words of 32 bits, nobody else can tell which rows are drawn under a key; what is drawn is noted in ``drawn``.
    """

    index: Array
    tables: tuple[Table, ...]
    offsets: tuple[Array, ...]
    counts: tuple[Array, ...]
    environment: dict[int, Array]
    weight: Array
    secret: Array | None = None
    drawn: list[Drawn] | None = None

    def _key_of_rows(self, key: Array, drawn: Drawn) -> Array:
        """What rows are drawn under in place of a key."""
        if self.drawn is not None:
            self.drawn.append(drawn)
        return key if self.secret is None else jax.random.wrap_key_data(jax.random.key_data(key) ^ self.secret)

    def batch(self, key: Array, size: int, samples: Sequence[int] | None = None, step: Any = 0) -> Rows:
        """``size`` rows of each table (those that hold ``samples``), drawn with replacement; by the key and the step alone.

        With a secret they are drawn without, and are all rows where there are no more.
        """
        drawn, even = NO_ROWS, jnp.full((size,), 1.0 / size)
        for place, table in _holding(self.tables, samples):
            _require_no_batch(table)
            count, weights = self.counts[place], even
            if table.quantiles is not None:
                rows = table.quantiles.draw(key, place, step, size, self.index)
            elif self.secret is None:
                own = self._key_of_rows(key, Drawn(size, place, passing=False))
                rows = table.rows(self.offsets[place] + row_numbers(own, place, step, size, count))
            else:  # no row twice: a mean over all rows and one once more would tell that one
                shuffle = fold_in(fold_in(self._key_of_rows(key, Drawn(size, place, passing=False)), step), place)
                places = jnp.arange(size)
                rows = table.rows(self.offsets[place] + keyed_permutation(shuffle, jnp.minimum(places, count - 1), count))
                weights = (places < count) / jnp.minimum(size, count)
            drawn = _with_table(drawn, table, rows, weights, count)
        return drawn

    def passing(self, key: Array, size: int, samples: Sequence[int] | None = None, step: Any = 0) -> Rows:
        """The ``step``-th batch of passes over the rows of each table: ``size`` rows of a fresh shuffle each, the last with what is left.

        A pass has ceil(N / size) batches; no row is in two of them.
        """
        drawn = NO_ROWS
        for place, table in _holding(self.tables, samples):
            _require_no_batch(table)
            count = self.counts[place]
            batches = -(-count // size)
            places = (step % batches) * size + jnp.arange(size)
            inside = places < count
            own = self._key_of_rows(key, Drawn(size, place, passing=True))
            shuffle = fold_in(fold_in(own, step // batches), place)
            shuffled = keyed_permutation(shuffle, jnp.minimum(places, count - 1), count)
            rows = table.rows(self.offsets[place] + shuffled)
            drawn = _with_table(drawn, table, rows, inside / jnp.sum(inside), count)
        return drawn

    def mean(self, function: Callable[[Rows], Any], samples: Sequence[int] | None = None) -> Any:
        """Full-data value of anything affine in the means over rows (a value, a gradient, a mapping), streamed.

        ``function(rows)`` is evaluated on pieces of each table whose weights sum to the piece's share, and the pieces' deviations from
        ``function(no rows)`` are added up: memory stays that of one piece. What is one piece for all needs no loop.
        """
        holding = [(place, table, chunk_size(table)) for place, table in _holding(self.tables, samples)]
        if len(holding) == 1 and holding[0][2] >= holding[0][1].longest:
            return function(self.chunk(holding[0][0], 0, holding[0][2]))
        result = base = function(NO_ROWS)
        for place, table, size in holding:

            def add(piece: Any, carry: Any, place: int = place, size: int = size) -> Any:
                return jax.tree.map(lambda c, v, b: c + (v - b), carry, function(self.chunk(place, piece, size)), base)

            if size >= table.longest:
                result = add(0, result)
                continue
            pieces = -(-self.counts[place] // size)
            result = jax.lax.fori_loop(0, pieces, add, result)
        return result

    def gathered(self, group: Any) -> tuple[dict[int, Array], Array]:
        """The rows of a table, by leaf, and what each weighs: 0 past the party's end; ``group`` as for a population."""
        table = self.tables[group.table]
        rows = self.chunk(group.table, 0, table.longest)
        sample = table.samples[0]
        return rows.values, rows.weights[sample] * (rows.counts[sample] if group.summed else 1.0)

    def estimate(
        self, function: Callable[[Rows], Any], samples: Sequence[int], key: Array, batch_size: int | None, step: Any = 0
    ) -> Any:
        """``mean`` on a minibatch of ``batch_size`` rows drawn by the key and the step, or on all rows (None)."""
        if not samples:
            return function(NO_ROWS)
        if batch_size is None:
            return self.mean(function, samples)
        return function(self.batch(key, batch_size, samples, step))

    def chunk(self, place: int, piece: Any, size: int) -> Rows:
        """The ``piece``-th ``size`` rows of a table, with their weights (1/N for data), and 0 past its end."""
        table = self.tables[place]
        count = self.counts[place]
        local = piece * size + jnp.arange(size)
        inside = local < count
        rows = self.offsets[place] + jnp.minimum(local, count - 1)
        weight = jnp.where(inside, 1.0 / count if table.weights is None else table.weights[rows], 0.0)
        laws = None if table.integrals is None else {table.samples[0]: table.integrals.table[rows]}
        return _with_table(NO_ROWS, table, table.rows(rows), weight, count)._replace(laws=laws)


def _holding(tables: Sequence[Table], samples: Sequence[int] | None) -> list[tuple[int, Table]]:
    """The tables that hold some of the samples (None: all), with their places."""
    wanted = None if samples is None else set(samples)
    return [(k, table) for k, table in enumerate(tables) if wanted is None or wanted & set(table.samples)]


def _with_table(so_far: Rows, table: Table, rows: dict[int, Any], weights: Any, count: Any) -> Rows:
    """Rows with those of one more table, which weigh as given, of a holder of so many."""
    samples = table.samples
    values = {**so_far.values, **{sample: rows[sample] for sample in samples}}
    return Rows(
        values,
        {**so_far.weights, **dict.fromkeys(samples, weights)},
        {**so_far.counts, **dict.fromkeys(samples, count)},
    )


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Data:
    """Everything private, as one argument of the compiled programs."""

    clients: Population
    server: Population | None

    @property
    def server_party(self) -> Party:
        if self.server is None:
            raise DataError("the problem has no server term, so the server holds nothing.")
        return self.server.party(0)


def _require_no_batch(table: Table) -> None:
    if table.whole:
        raise IncompatibleSolverError(
            f"{table.whole} is of all rows of a client at once, and a minibatch says nothing of it: take batch_size=None, also in lower=..."
        )


def chunk_size(table: Table) -> int:
    """Rows in one piece of a streamed pass: all of any client's where they are few, even or needed at once, else the mean client's, bounded by memory."""
    if table.whole:
        return max(1, table.longest)
    scalars = max(1, sum(int(np.prod(array.shape[1:], dtype=int)) for array in table.values.values()))
    whole = table.longest * scalars <= FEW_SCALARS or table.longest <= EVEN * table.typical
    return max(1, min(table.longest if whole else table.typical, CHUNK_SCALARS // scalars))


def population(
    parties: Sequence[Client],
    tables: Sequence[Sequence[Sample]],
    parameters: Sequence[ClientParameter],
    weights: Sequence[float] | np.ndarray,
    label: Callable[[int], str],
    points: int,
    aggregates: Sequence[RowAggregate | SampleAverage] = (),
) -> Population:
    """Lay out the data of one side; up to ``points`` nodes stand for the distributions of a table. ``aggregates`` are of its rows.

    Raises ``DataError`` if the samples of one table differ in length, or mix arrays with distributions, for a party; what an aggregate of
    the rows says of theirs.
    """
    return Population(
        tables=tuple(
            _table(parties, samples, label, points, place, [one for one in aggregates if {p.id for p in one.parameters()} & {s.id for s in samples}])
            for place, samples in enumerate(tables)
        ),
        parameters={p.id: parameters_of(p, parties) for p in parameters},
        weights=np.asarray(weights, dtype=float),
    )


def _table(
    parties: Sequence[Client],
    samples: Sequence[Sample],
    label: Callable[[int], str],
    points: int,
    place: int,
    aggregates: Sequence[RowAggregate | SampleAverage],
) -> Table:
    distributed = [party.is_distribution(sample) for party in parties for sample in samples]
    if any(distributed) and not all(distributed):
        raise DataError(mixed_kinds(parties, samples, label))
    if any(distributed):
        laws = [{sample: party.samples[sample] for sample in samples} for party in parties]
        nodes = [evaluation_nodes(law, points, label(index), place) for index, law in enumerate(laws)]
        blocks = [one.values for one in nodes]
        quantiles, weights = Quantiles(ByIdentity(laws)), np.concatenate([one.weights for one in nodes])
        roles, integrals = NodeRoles.of(nodes), _integrals(laws, nodes)
    else:
        for index, party in enumerate(parties):
            require_paired(party, samples, label(index))
        blocks = [{sample.id: party.samples[sample] for sample in samples} for party in parties]
        quantiles, weights, roles, integrals = None, None, None, None
        for one in aggregates:
            for index, party in enumerate(parties):
                held = [party.samples[sample] for sample in one.judged]
                if not any(isinstance(column, Elsewhere) for column in held):
                    one.require_rows([np.asarray(column) for column in held], label(index))
    counts = np.array([len(next(iter(block.values()))) for block in blocks])
    values: dict[int, Numbers] = {}
    for sample in samples:
        away = column_elsewhere(sample, parties)
        values[sample.id] = stacked([b[sample.id] for b in blocks], sample.name()) if away is None else away
    typical, longest = -(-int(counts.sum()) // counts.size), int(counts.max())
    offsets = np.concatenate([[0], np.cumsum(counts)[:-1]])
    whole = next((expression_text(one) for one in aggregates if isinstance(one, RowAggregate)), "")
    return Table(values, offsets, counts, quantiles, typical, longest, weights, roles, integrals, whole)


def _integrals(laws: Sequence[Mapping[Sample, Any]], nodes: Sequence[EvaluationNodes]) -> LawIntegrals | None:
    """Those of all parties, where a table's only sample is one scalar with a density everywhere."""
    if any(len(law) > 1 for law in laws) or any(one.rule != QUADRATURE for one in nodes):
        return None
    scalars = [next(iter(law.values())) for law in laws]
    if not all(map(has_density, scalars)):
        return None
    return LawIntegrals.joined(
        [LawIntegrals.of(law, np.ravel(next(iter(one.values.values()))), one.jump) for law, one in zip(scalars, nodes)]
    )


# of a client's rows: one piece of these takes memory about as long as two or three rows here and there
FEW_BYTES = 2048
COUNTABLE = 2**31 - 1  # scalars of a column that single precision's integers can tell apart


@dataclass(frozen=True)
class Extent:
    """What is known of a table before a program runs: the rows to bring of a client (0: none), and whether all have as many."""

    width: int
    regular: bool

    @classmethod
    def of(cls, table: Table) -> Extent:
        width, columns = max(1, int(np.max(table.counts))), table.values.values()
        row = sum(column.nbytes // column.shape[0] for column in columns)
        countable = all(np.prod(column.shape, dtype=float) <= COUNTABLE for column in columns)
        few = table.quantiles is None and width * row <= FEW_BYTES and countable
        return cls(width if few else 0, bool((table.counts == width).all()))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Pieces:
    """A column of some clients' rows, ``(clients, scalars of a client)``, used as one of ``shape`` (rows, *sample shape).

    It takes its shape where rows are asked for: the compiler copies whole pieces as fast as memory gives them, and rows of them
    at half that speed.
    """

    flat: Array
    shape: tuple[int, ...] = field(metadata={"static": True})

    def __getitem__(self, rows: Array) -> Array:
        return self.flat.reshape(self.shape)[rows]


def gathered_clients(clients: Population, members: Array, extents: tuple[Extent, ...]) -> Population:
    """Some of the clients, in this order; an extent for each table."""
    return replace(
        clients,
        tables=tuple(_of_members(table, extent, members) for table, extent in zip(clients.tables, extents)),
        parameters={leaf: values[members] for leaf, values in clients.parameters.items()},
        weights=clients.weights[members],
        indices=members,
    )


def _of_members(table: Table, extent: Extent, members: Array) -> Table:
    width, size = extent.width, members.shape[0]
    if not width:
        return replace(table, offsets=table.offsets[members], counts=table.counts[members])
    if extent.regular:  # no look is needed at where whose rows are
        offsets = first = width * members
        counts = jnp.full(size, width)
    else:
        offsets, counts = table.offsets[members], table.counts[members]
        first = jnp.minimum(offsets, table.size - width)  # the last clients' pieces begin early, to end within the table
    values = {sample: _pieces(column, first, width) for sample, column in table.values.items()}
    return replace(table, values=values, offsets=width * jnp.arange(size) + offsets - first, counts=counts, typical=width)


def _pieces(column: Any, first: Array, width: int) -> Pieces:
    """``width`` rows from each first row on."""
    shape, scalars = (first.shape[0] * width, *column.shape[1:]), int(np.prod(column.shape[1:], dtype=int))
    if isinstance(column, Stored):
        windows = column[first[:, None] + jnp.arange(width)]
        return Pieces(windows.reshape(first.shape[0], width * scalars), shape)
    all_ = jnp.ravel(column)
    return Pieces(
        jax.vmap(lambda start: jax.lax.dynamic_slice(all_, (start,), (width * scalars,)))(scalars * first), shape
    )

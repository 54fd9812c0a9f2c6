"""The data of a round's participants, looked up once a round whatever they do with it afterwards.

Every look at one of a million clients waits for memory. A client of a few rows is therefore brought whole, in one piece; of a
larger one only where its rows are and how many, its parameters, and its weight.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.compiler.data.storage import Stored
from hierfl.compiler.data.tables import Population, Table

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
        """The extent of a table of NumPy arrays."""
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
        """The rows of these indices."""
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
    own = width * jnp.arange(size)
    if extent.regular:
        values = {sample: _pieces(column, members, width) for sample, column in table.values.items()}
        return replace(table, values=values, offsets=own, counts=jnp.full(size, width), typical=width)
    offsets, counts = table.offsets[members], table.counts[members]
    first = jnp.minimum(offsets, table.size - width)  # the last clients' pieces begin early, to end within the table
    values = {sample: _uneven_pieces(column, first, width) for sample, column in table.values.items()}
    return replace(table, values=values, offsets=own + offsets - first, counts=counts, typical=width)


def _pieces(column: Any, members: Array, width: int) -> Pieces:
    """The rows of clients that all have ``width`` of them, in pieces."""
    if isinstance(column, Stored):
        return _uneven_pieces(column, width * members, width)
    flat = jnp.reshape(column, (column.shape[0] // width, -1))[members]
    return Pieces(flat, (members.shape[0] * width, *column.shape[1:]))


def _uneven_pieces(column: Any, first: Array, width: int) -> Pieces:
    """``width`` rows from each first row on."""
    shape, scalars = (first.shape[0] * width, *column.shape[1:]), int(np.prod(column.shape[1:], dtype=int))
    if isinstance(column, Stored):
        windows = column[first[:, None] + jnp.arange(width)]
        return Pieces(windows.reshape(first.shape[0], width * scalars), shape)
    all_ = jnp.ravel(column)
    return Pieces(
        jax.vmap(lambda start: jax.lax.dynamic_slice(all_, (start,), (width * scalars,)))(scalars * first), shape
    )

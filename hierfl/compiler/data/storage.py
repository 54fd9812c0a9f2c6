"""How rows are kept: as given (bytes stay bytes), aligned so that JAX uses them where they are, or on disk.

Rows become floating-point numbers when they are gathered; the precision is that of the running program.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hierfl.jaxtools.host_callback import call_on_host
from hierfl.language.federation.given_arrays import MappedRows, require_whole

ALIGNMENT = 64
NARROW = ("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "float16", "float32", "float64")


def stacked(blocks: Sequence[np.ndarray], name: str) -> np.ndarray | Stored:
    """All parties' rows of one sample, one after another: a copy in memory, or where they are if all are memory-mapped."""
    if all(isinstance(block, np.memmap | MappedRows) for block in blocks):
        return Stored(ByIdentity(blocks), name)
    require_whole(blocks, name)
    dtype = np.result_type(*{block.dtype for block in blocks})
    dtype = dtype if dtype.name in NARROW else np.dtype(float)
    rows = sum(len(block) for block in blocks)
    whole = aligned((rows, *blocks[0].shape[1:]), dtype)
    np.concatenate(blocks, out=whole, casting="unsafe")
    return whole


def aligned(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """An empty array that JAX can use without a copy."""
    size = int(np.prod(shape, dtype=int)) * dtype.itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    first = -raw.ctypes.data % ALIGNMENT
    return raw[first : first + size].view(dtype).reshape(shape)


def gathered(column: Any, rows: Any) -> Any:
    """Some rows of a column as floating-point numbers: NumPy's outside compiled programs, JAX's inside."""
    if isinstance(column, jax.Array) and not isinstance(column, jax.core.Tracer) and not isinstance(rows, jax.core.Tracer):
        chosen = jnp.asarray(np.asarray(column)[rows])  # JAX would compile a program for every number of rows
    else:
        chosen = column[rows]
    return chosen.astype(float) if isinstance(chosen, jax.Array) else np.asarray(chosen, dtype=float)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Stored:
    """Rows in memory-mapped files, read when a program asks for them.

    Raises
    ------
    DataError
        When a file has become shorter than it was.
    """

    blocks: tuple[np.memmap | MappedRows, ...] = field(metadata={"static": True}, repr=False)
    name: str = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole column, ``(rows, *sample shape)``."""
        return (sum(len(block) for block in self.blocks), *self.blocks[0].shape[1:])

    @property
    def nbytes(self) -> int:
        """How many bytes lie on disk."""
        return sum(block.nbytes for block in self.blocks)

    def __getitem__(self, rows: Any) -> Any:
        """Rows by index: an array, or a traced one."""
        if not isinstance(rows, jax.core.Tracer):
            return self.read(np.asarray(rows))
        return call_on_host(self.read, (*jnp.shape(rows), *self.shape[1:]), jnp.result_type(float), rows)

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Rows by index, from disk."""
        self.require_whole()
        wanted = np.atleast_1d(rows)
        gathered_rows = np.empty((*wanted.shape, *self.shape[1:]))
        ends = np.cumsum([len(block) for block in self.blocks])
        holder = np.searchsorted(ends, wanted, side="right")
        for place in np.unique(holder):
            own = holder == place
            first = ends[place] - len(self.blocks[place])
            gathered_rows[own] = self.blocks[place][wanted[own] - first]
        return gathered_rows.reshape(*rows.shape, *self.shape[1:])

    def require_whole(self) -> None:
        """No file has shrunk since it was mapped."""
        require_whole(self.blocks, self.name)


class ByIdentity(tuple):
    """Compared by identity: what is static data of a compiled program, and may be large."""

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

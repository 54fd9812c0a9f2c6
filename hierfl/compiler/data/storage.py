"""How rows are kept: as given (bytes stay bytes), aligned so that JAX uses them where they are, or on disk.

Rows become floating-point numbers when they are gathered; the precision is that of the running program.
For rows that are held elsewhere a few invented ones stand in the tables, over and over, as the compiler's looks need them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hierfl.errors import DataError
from hierfl.jaxtools.host_callback import call_on_host
from hierfl.language.federation.client import Client
from hierfl.language.federation.given_arrays import MappedRows, require_whole
from hierfl.language.federation.sample_values import TILE, Elsewhere, stand_ins
from hierfl.language.sample import ClientParameter, Sample

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

    Raises ``DataError`` when a file has become shorter than it was.
    """

    blocks: tuple[np.memmap | MappedRows, ...] = field(metadata={"static": True}, repr=False)
    name: str = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the whole column, ``(rows, *sample shape)``."""
        return (sum(len(block) for block in self.blocks), *self.blocks[0].shape[1:])

    @property
    def nbytes(self) -> int:
        return sum(block.nbytes for block in self.blocks)

    def __getitem__(self, rows: Any) -> Any:
        """Rows by index: an array, or a traced one."""
        if not isinstance(rows, jax.core.Tracer):
            return self.read(np.asarray(rows))
        return call_on_host(self.read, (*jnp.shape(rows), *self.shape[1:]), jnp.result_type(float), rows)

    def read(self, rows: np.ndarray) -> np.ndarray:
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


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StandIns:
    """A column of so many ``rows`` that has a few only, and repeats them."""

    tile: Any
    rows: int = field(metadata={"static": True})

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.rows, *self.tile.shape[1:])

    @property
    def nbytes(self) -> int:
        return int(self.tile.nbytes)

    def __getitem__(self, rows: Any) -> Any:
        if isinstance(rows, jax.core.Tracer) or isinstance(self.tile, jax.core.Tracer):
            return jnp.asarray(self.tile)[jnp.asarray(rows) % self.tile.shape[0]]
        return np.asarray(self.tile)[np.asarray(rows) % self.tile.shape[0]]


def any_elsewhere(parties: Sequence[Client]) -> bool:
    """Whether a party's samples or parameters are held elsewhere."""
    values = (value for party in parties for held in (party.samples, party.parameters) for value in held.values())
    return any(isinstance(value, Elsewhere) for value in values)


def column_elsewhere(sample: Sample, parties: Sequence[Client]) -> StandIns | None:
    """What stands for a sample's rows of all parties; None where all of them are here."""
    if not any(isinstance(party.samples[sample], Elsewhere) for party in parties):
        return None
    return StandIns(stand_ins(sample, TILE), sum(len(party.samples[sample]) for party in parties))


def parameters_of(parameter: ClientParameter, parties: Sequence[Client]) -> np.ndarray:
    """A parameter's values of all parties ``(m, *shape)``; invented ones where some are held elsewhere."""
    held = [party.parameters[parameter] for party in parties]
    if any(isinstance(value, Elsewhere) for value in held):
        return stand_ins(parameter, len(held))
    return np.stack([np.asarray(value, dtype=float) for value in held])


def require_all_here(parties: Sequence[Client], what: str) -> None:
    """Require that nobody's data are elsewhere.

    Raises ``DataError``, naming the first client whose data are, and what can be done without them.
    """
    for place, party in enumerate(parties):
        if any_elsewhere([party]):
            raise DataError(
                f"{what} needs everybody's data in this process, and those of {party.called(place)} are elsewhere (hf.Elsewhere): only a run on a "
                f"runtime whose processes hold them, problem.solve(solver, runtime=...), reaches them, by messages."
            )


def require_as_declared(place: int, declared: Client, held: Client) -> None:
    """Require that a client holds what was declared of it: the same samples and constants, as many rows, and all of it here.

    Raises ``DataError``, naming the client and what differs.
    """
    who = declared.called(place)
    if any_elsewhere([held]):
        raise DataError(f"{who} is to hold its data here, and says of some that they are elsewhere: give the arrays.")
    for kind, mine, theirs in (
        ("sample", held.samples, declared.samples),
        ("client parameter", held.parameters, declared.parameters),
    ):
        names, wanted = ({leaf.name() for leaf in side} for side in (mine, theirs))
        if set(mine) != set(theirs):
            raise DataError(
                f"{who} holds the {kind}s {', '.join(sorted(names)) or 'none'}, but {', '.join(sorted(wanted)) or 'none'} were declared of it."
            )
    for sample in declared.samples:
        said, has = declared.num_samples(sample), held.num_samples(sample)
        if said != has:
            raise DataError(
                f"{who} holds {has} rows of sample {sample.name()!r}, but {said} were declared: the weights and the steps go by that number; "
                f"declare hf.Elsewhere({has})."
            )

"""What a party holds, as it is pickled: rows on disk stay there and are found again by their file."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.array_utils import byte_bounds

from hierfl.language.federation.mapped_rows import MappedRows


class OnDisk(NamedTuple):
    """A memory-mapped array by its file, and which of its rows, None for all."""

    file: str
    offset: int
    dtype: str
    shape: tuple[int, ...]
    rows: np.ndarray | None

    def mapped(self) -> np.memmap | MappedRows:
        """The array, mapped again."""
        array = np.memmap(self.file, np.dtype(self.dtype), "r", self.offset, self.shape)
        return array if self.rows is None else MappedRows(array, self.rows)


def pickled(held: Mapping[Any, Any]) -> dict[Any, Any]:
    """What is pickled in place of a mapping."""
    return {leaf: _by_file(value) for leaf, value in held.items()}


def unpickled(stored: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """The mapping again, with arrays in memory that nobody changes."""
    held = {leaf: value.mapped() if isinstance(value, OnDisk) else value for leaf, value in stored.items()}
    for value in held.values():
        if type(value) is np.ndarray:
            value.flags.writeable = False
    return MappingProxyType(held)


def _by_file(value: Any) -> Any:
    """A memory-mapped array in one piece by its file; of others the rows themselves."""
    if isinstance(value, MappedRows):
        array = _by_file(value.array)
        return array._replace(rows=value.rows) if isinstance(array, OnDisk) else np.asarray(value)
    if not isinstance(value, np.memmap):
        return value
    root: Any = value
    while isinstance(root.base, np.memmap):
        root = root.base
    if root.filename is None or not value.flags.c_contiguous:
        return np.array(value)
    offset = int(root.offset) + byte_bounds(value)[0] - byte_bounds(root)[0]
    return OnDisk(str(root.filename), offset, value.dtype.str, value.shape, None)

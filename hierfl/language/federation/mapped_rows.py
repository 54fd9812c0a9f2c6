"""Memory-mapped arrays: some of their rows, left on disk, and whether their files are still whole."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.lib.mixins import NDArrayOperatorsMixin

from hierfl.errors import DataError


class MappedRows(NDArrayOperatorsMixin):
    """Rows of a memory-mapped array by number, read when they are asked for; NumPy's functions take it as an array.

    ``np.asarray(rows)`` and arithmetic read all of them, ``rows[index]`` those of the index.
    """

    def __init__(self, array: np.memmap, rows: np.ndarray) -> None:
        self.array, self.rows = array, rows

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.rows), *self.array.shape[1:])

    @property
    def ndim(self) -> int:
        return self.array.ndim

    @property
    def dtype(self) -> np.dtype:
        return self.array.dtype

    @property
    def nbytes(self) -> int:
        """The bytes that these rows take on disk."""
        return int(np.prod(self.shape, dtype=int)) * self.dtype.itemsize

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: Any) -> np.ndarray:
        first, *rest = index if isinstance(index, tuple) else (index,)
        return np.asarray(self.array[(self.rows[first], *rest)])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        if copy is False:
            raise ValueError("rows on disk are read into a new array: copy=False cannot be had.")
        return np.asarray(self.array[self.rows], dtype=dtype)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        read = [np.asarray(value) if isinstance(value, MappedRows) else value for value in inputs]
        return getattr(ufunc, method)(*read, **options)

    def __repr__(self) -> str:
        return f"MappedRows({len(self):,} of {len(self.array):,} rows of {self.array.filename})"


def rows_of(array: Any, rows: np.ndarray) -> Any:
    """Some rows of an array: on disk if the array is, else a copy."""
    if isinstance(array, MappedRows):
        return MappedRows(array.array, array.rows[rows])
    return MappedRows(array, rows) if isinstance(array, np.memmap) else array[rows]


def require_whole(arrays: Sequence[Any], name: str) -> None:
    """Refuse a file behind the sample's arrays that shrank since it was mapped: reading beyond its end would kill the process.

    Raises ``DataError``, naming the file.
    """
    mapped = [a.array if isinstance(a, MappedRows) else a for a in arrays if isinstance(a, np.memmap | MappedRows)]
    for file, size in _extents(mapped).items():
        present = os.path.getsize(file) if os.path.exists(file) else size  # a file without a name is still there
        if present < size:
            raise DataError(
                f"sample {name!r} is memory-mapped from {file}, which has {present:,} bytes now and had at least {size:,} when "
                f"it was mapped: restore the file, and load it again."
            )


def _extents(arrays: Sequence[np.memmap]) -> dict[str, int]:
    """The bytes that each file must have at least: a slice of a mapped array knows its file but not its place in it."""
    extents: dict[str, int] = {}
    for array in arrays:
        root: Any = array
        while isinstance(root.base, np.memmap):
            root = root.base
        last = int(root.offset) + byte_bounds(array)[1] - byte_bounds(root)[0]
        extents[str(root.filename)] = max(extents.get(str(root.filename), 0), last)
    return extents

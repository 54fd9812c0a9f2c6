"""The border for users' arrays: what is given as numbers becomes an array of NumPy's here, and the labels that it had are kept.

``np.asarray`` forgets what is masked, missing, named or indexed, and reads ``"0.3"`` as 0.3. So nothing else of hierfl calls it on
what a user gave. Tables and columns come in through the one door of ``frames.py``.

Memory-mapped arrays: some of their rows are left on disk, and it is checked that their files are still whole.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import narwhals as nw
import numpy as np
from numpy.lib.array_utils import byte_bounds
from numpy.lib.mixins import NDArrayOperatorsMixin
from scipy.sparse import issparse

from hierfl.errors import DataError
from hierfl.language.federation.frames import as_frame, numbers_as_given, require_real


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
    """Refuse a mapped file that shrank: reading beyond its end would kill the process. Raises ``DataError``."""
    mapped = [a.array if isinstance(a, MappedRows) else a for a in arrays if isinstance(a, np.memmap | MappedRows)]
    for file, size in _extents(mapped).items():
        present = os.path.getsize(file) if os.path.exists(file) else size  # a file without a name is still there
        if present < size:
            said = f"sample {name!r} is memory-mapped from {file}, of {present:,} bytes now and {size:,} when it was mapped"
            raise DataError(f"{said}: restore the file, and load it again.")


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


SHOWN = 4


@dataclass(frozen=True)
class GivenArray:
    """An array, with the labels of its axes, ``None`` for an axis that has none; ``own`` where nobody else can change it."""

    array: Any
    labels: tuple[np.ndarray | None, ...]
    own: bool = False

    def taken(self, order: np.ndarray | None, axis: int = 0) -> GivenArray:
        """The entries along an axis in another order; None for the order that they have."""
        if order is None:
            return self
        own = self.labels[axis]
        labels = (*self.labels[:axis], None if own is None else own[order], *self.labels[axis + 1 :])
        return GivenArray(np.take(self.array, order, axis), labels, own=True)

    def kept(self) -> GivenArray:
        """With an array that later changes do not reach: a read-only copy, unless it is on disk or nobody can change it anyway."""
        array = self.array
        if isinstance(array, MappedRows) or _is_mapped(array) or _is_read_only(array):
            return self
        array = array if self.own else array.copy()
        array.flags.writeable = False
        return GivenArray(array, self.labels, own=True)


def given_array(value: Any, what: str, instead: str = "") -> GivenArray:
    """What a user gave as real numbers; ``what`` names it in messages, which say what may be given ``instead`` of an array.

    Raises ``DataError`` for masked or missing entries, names that occur twice, a sparse matrix, and what is no array of
    real numbers; names the column.
    """
    if isinstance(value, GivenArray):
        return value
    if isinstance(value, MappedRows):
        return GivenArray(value, (None,) * value.ndim)
    require_unmasked(value, what)
    if issparse(value):
        raise DataError(f"{what} is a sparse matrix ({type(value).__name__}); give an array, value.toarray().")
    frame = as_frame(value, what)
    if isinstance(frame, nw.DataFrame):
        named = zip(frame.columns, frame.iter_columns())
        columns = [numbers_as_given(column, f"column {name!r} of {what}") for name, column in named]
        table = np.stack(columns, axis=1) if columns else np.zeros((len(frame), 0))
        return GivenArray(table, (row_labels(value), names_of_columns(frame.columns)), own=True)
    if frame is not None:
        return GivenArray(numbers_as_given(frame, what), (row_labels(value),))
    if isinstance(value, (list, tuple)) and any(as_frame(entry, what) is not None for entry in value):
        return _of_several(value, what)
    if getattr(value, "requires_grad", False):
        raise DataError(f"{what} is a {type(value).__name__} that requires grad, and hierfl takes numbers: give value.detach().numpy().")
    try:
        array = value if isinstance(value, np.memmap) else np.asarray(value)
    except (TypeError, ValueError, RuntimeError) as error:  # RuntimeError: tensors on a device
        raise DataError(f"{what} is not an array: {str(error).rstrip('.')}.") from error
    if array.ndim == 0 and array.dtype == object:
        raise DataError(f"{what} is a {type(value).__name__}; give an array{instead}.")
    require_real(array, what)
    return GivenArray(array, (None,) * array.ndim, own=isinstance(value, (list, tuple, int, float)))


def in_given_order(value: Any, what: str) -> np.ndarray:
    """An array whose entries are told apart by their places alone. Raises ``DataError`` for what is none."""
    require_numbered_in_order(value, what)
    return np.asarray(given_array(value, what).array)


def require_numbered_in_order(value: Any, what: str) -> None:
    """Refuse an index that numbers entries in another order than they have. Raises ``DataError``, saying what to write."""
    labels = row_labels(value)
    if labels is not None and _numbers_otherwise(labels):
        said = f"{what} has an index that numbers its entries in another order, {_shown(labels)}, and places tell them apart"
        raise DataError(f"{said}: write .sort_index().to_numpy() or .to_numpy(), whichever is meant.")


def require_unmasked(value: Any, what: str) -> None:
    """Refuse masked entries, in lists too: NumPy would read what lies under a mask. Raises ``DataError``."""
    if isinstance(value, np.ma.MaskedArray):
        masked = int(np.ma.count_masked(value))
        if masked:
            raise DataError(
                f"{what}: {masked} of {value.size} entries are masked, and what lies under a mask is no data. Write .filled(value) for "
                f"numbers in their place, or leave those rows out of all paired arrays, as .compressed() does of one."
            )
    elif isinstance(value, (list, tuple)):
        for entry in value:
            if isinstance(entry, (np.ma.MaskedArray, list, tuple)):
                require_unmasked(entry, what)


def row_labels(value: Any) -> np.ndarray | None:
    """The index of a table or a column, with None for missing labels, which equal themselves alike; None where there is none."""
    if isinstance(value, GivenArray):
        return value.labels[0] if value.labels else None
    frame = as_frame(value, "the table")
    index = None if frame is None else nw.maybe_get_index(frame)
    if index is None:
        return None
    levels = index.to_frame(index=False)
    if not (there := levels.notna()).all(axis=None):
        return names_of_columns([*levels.astype(object).where(there, None).itertuples(index=False, name=None)])
    return np.asarray(index)


def common_order(labels: Any, others: Any) -> np.ndarray | None:
    """The order in which rows with these labels are those with the others; None where they are already, or have other labels."""
    return None if labels is None or others is None or _same(labels, others) else _places(others, labels)


def require_same_rows(rows: Mapping[str, Any], who: str) -> None:
    """Require that samples, by name with the index of their rows or None, may be paired by position.

    Equal indexes may, and rows without an index, unless the other's index numbers its rows in another order: either could be meant.

    Raises ``DataError``, naming two samples, and saying which labels differ or that some occur twice.
    """
    indexed = {name: labels for name, labels in rows.items() if labels is not None}
    plain = next((name for name, labels in rows.items() if labels is None), None)
    for name, labels in indexed.items():
        if plain is not None and _numbers_otherwise(labels):
            raise DataError(
                f"samples {plain!r} and {name!r} of {who} are paired rows, {plain!r} has no index, and that of {name!r} numbers its rows in "
                f"another order, {_shown(labels)}: by index or by position? Write .sort_index().to_numpy() or .to_numpy() for {name!r}."
            )
        first, others = next(iter(indexed.items()))
        if _same(labels, others):
            continue
        mine, theirs = _difference(labels, others)
        told = [  # by their places: labels of rows may be names of people
            f"{len(of)} labels of {one!r} alone (at places {_shown([*map(among.tolist().index, of[: SHOWN + 1])])})"
            for one, of, among in ((first, theirs, others), (name, mine, labels))
            if of
        ]
        raise DataError(
            f"samples {first!r} and {name!r} of {who} are paired rows, but their indexes differ: "
            f"{'; '.join(told) or 'labels occur twice, in another order'}. Select the same rows of both, or write .to_numpy() for both "
            f"where they are paired by position."
        )


def names_of_columns(names: Sequence[Any]) -> np.ndarray:
    """Names, which may be tuples, as labels."""
    labels = np.empty(len(names), object)
    labels[:] = names
    return labels


def has_names(labels: np.ndarray | None) -> bool:
    """Whether columns have names of their own, and not their numbers alone."""
    return labels is not None and not _same(labels, np.arange(len(labels)))


def name_order(labels: Any, others: Any, what: str, at: str) -> np.ndarray | None:
    """The order in which the columns of ``what`` are those that ``at`` has; None where they are already, or neither has names.

    Raises ``DataError``, saying which names differ, or that one of both has none.
    """
    mine, theirs = (own if has_names(own) else None for own in (labels, others))
    if mine is None and theirs is None:
        return None
    if mine is None or theirs is None:
        named, known = (at, theirs) if mine is None else ("it", mine)
        assert known is not None
        raise DataError(
            f"{what}: {named} has columns with names ({_shown(known)}), and {'it' if mine is None else at} has none, so that nobody can tell "
            f"whether the columns are in one order. Give a table with names everywhere, or .to_numpy() everywhere."
        )
    if _same(mine, theirs):
        return None
    order = _places(theirs, mine)
    if order is None:
        extra, missing = _difference(mine, theirs)
        lacks = [f"lacks {_shown(missing)}"] if missing else []
        has = [f"has {_shown(extra)} besides" if missing else f"has {_shown(extra)} more"] if extra else []
        said = f"{what} {' and '.join([*lacks, *has])}, by the columns of {at} ({_shown(theirs)})"
        raise DataError(f"{said}: columns are known by their names, which have to be the same.")
    return order


def _of_several(parts: Sequence[Any], what: str) -> GivenArray:
    """A list of columns or tables, stacked along a new first axis; their labels have to be the same."""
    each = [given_array(part, f"entry {place} of {what}") for place, part in enumerate(parts)]
    first = each[0]
    for place, other in enumerate(each):
        if other.array.shape != first.array.shape:
            shapes = f"{first.array.shape} and {other.array.shape}"
            raise DataError(f"{what} is a list whose entries 0 and {place} have shapes {shapes}.")
        if not all(map(_alike, first.labels, other.labels)):
            raise DataError(f"{what} is a list whose entries 0 and {place} have different labels: give a table, or arrays.")
    return GivenArray(np.stack([one.array for one in each]), (None, *first.labels), own=True)


def _is_mapped(array: Any) -> bool:
    """Whether an array is memory-mapped, or a view of one that is."""
    while isinstance(array, np.ndarray) and not isinstance(array, np.memmap):
        array = array.base
    return isinstance(array, np.memmap)


def _is_read_only(array: Any) -> bool:
    """Whether nobody can write into an array: neither it nor what it is a view of."""
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return False
        array = array.base
    return array is None or isinstance(array, bytes) or type(array).__module__.startswith("jax")


def _alike(labels: np.ndarray | None, others: np.ndarray | None) -> bool:
    return labels is others if labels is None or others is None else _same(labels, others)


def _same(labels: np.ndarray, others: np.ndarray) -> bool:
    if labels.shape != others.shape:
        return False
    if labels.dtype.kind != others.dtype.kind:
        labels, others = labels.astype(object), others.astype(object)
    return bool(np.all(labels == others))


def _places(wanted: np.ndarray, among: np.ndarray) -> np.ndarray | None:
    """Where each of some labels stands among others; None unless both are the same labels, each once."""
    if len(wanted) != len(among):
        return None
    if wanted.dtype == among.dtype != object:  # many rows are sorted faster than looked up
        first, second = np.argsort(wanted), np.argsort(among)
        in_order = wanted[first]
        if not _same(in_order, among[second]) or (in_order[1:] == in_order[:-1]).any():
            return None
        places = np.empty(len(wanted), int)
        places[first] = second
        return places
    where = {label: place for place, label in enumerate(among.tolist())}
    if len(where) != len(among):
        return None
    found = [where.pop(label, -1) for label in wanted.tolist()]
    return None if -1 in found else np.array(found, int)


def _difference(labels: np.ndarray, others: np.ndarray) -> tuple[list[Any], list[Any]]:
    """The labels of the first alone, and those of the second alone."""
    mine, theirs = dict.fromkeys(labels.tolist()), dict.fromkeys(others.tolist())
    return [one for one in mine if one not in theirs], [one for one in theirs if one not in mine]


def _numbers_otherwise(labels: np.ndarray) -> bool:
    """Whether labels are the numbers 0, 1, ... of the entries, in another order."""
    if labels.dtype.kind not in "iu":
        return False
    inside = (labels >= 0) & (labels < len(labels))
    return bool(inside.all()) and not _same(labels, np.arange(len(labels))) and len(np.unique(labels)) == len(labels)


def _shown(labels: Any) -> str:
    told = [str(one) for one in (labels.tolist() if isinstance(labels, np.ndarray) else labels)[: SHOWN + 1]]
    return ", ".join(told if len(told) <= SHOWN else [*told[:SHOWN], "..."])

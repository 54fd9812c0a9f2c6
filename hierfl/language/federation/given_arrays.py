"""The border for users' arrays: what is given as numbers becomes an array of NumPy's here, and the labels that it had are kept.

``np.asarray`` forgets what is masked, missing, named or indexed, and reads ``"0.3"`` as 0.3. So nothing else of hierfl calls it on
what a user gave. Tables and columns of pandas, Polars, Arrow and whatever else narwhals reads come in through one door, Parquet files by their
path: columns are asked for by name, and what is missing (None, NaN, NaT, NA, null) is told apart from what is there before any number is made.

Memory-mapped arrays: some of their rows are left on disk, and it is checked that their files are still whole.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from importlib.util import find_spec
from itertools import repeat
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import narwhals as nw
import numpy as np
from narwhals.exceptions import DuplicateError
from numpy.lib.array_utils import byte_bounds
from numpy.lib.mixins import NDArrayOperatorsMixin
from scipy.sparse import issparse

from hierfl.errors import DataError, MissingPackageError
from hierfl.near_names import near_names

PARQUET = (".parquet", ".pq")
READERS: tuple[Literal["polars", "pyarrow"], ...] = ("polars", "pyarrow")  # of Parquet, in the order of asking
SHOWN = 4
NO_NUMBERS = {
    nw.String: "holds text, which is no number: write .astype(float) if it spells numbers",
    **dict.fromkeys((nw.Datetime, nw.Date), "holds dates: write what number stands for a date, such as days since the first"),
    nw.Duration: "holds durations: write a number of units, such as value / np.timedelta64(1, 'D')",
    **dict.fromkeys((nw.Categorical, nw.Enum), "holds categories: their numbers would be an accident of the file"),
}


def as_frame(value: Any, what: str) -> nw.DataFrame[Any] | nw.Series[Any] | None:
    """A table or a column as narwhals has it, None for others. Raises ``DataError`` for columns of one name."""
    if isinstance(value, (np.ndarray, list, tuple, int, float)):
        return None
    try:
        given = nw.from_native(value, pass_through=True, allow_series=True)
        given = given.collect() if isinstance(given, nw.LazyFrame) else given
    except DuplicateError:
        twice = next(name for name, count in Counter(value.columns).items() if count > 1)
        raise DataError(f"{what} has several columns named {twice!r}: columns are known by their names.") from None
    return given if isinstance(given, (nw.DataFrame, nw.Series)) else None


def read_columns(frame: Any, columns: Sequence[str], who: str) -> dict[str, nw.Series[Any]]:
    """The named columns of a table, of whatever kind; others are not read.

    Raises ``DataError`` for what is no table, columns that it does not have, with the nearest that it has, and files that are no Parquet;
    ``MissingPackageError`` where nothing reads Parquet.
    """
    if isinstance(frame, (str, os.PathLike)):
        given: Any = _of_file(Path(frame), who)
    else:
        try:
            given = nw.from_native(frame, pass_through=True)
        except DuplicateError:
            given = as_frame(frame, f"the table of {who}")
    if not isinstance(given, (nw.DataFrame, nw.LazyFrame)):
        said = f"{who}: a table is a data frame of pandas or Polars"
        raise DataError(f"{said}, an Arrow table or the path of a Parquet file, not {type(frame).__name__}.")
    names = given.columns if isinstance(given, nw.DataFrame) else given.collect_schema().names()
    known = [str(name) for name in names]  # numbers, where a file had no header
    if absent := [column for column in columns if column not in known]:
        told = "; ".join(f"{column!r} ({near_names(column, known).rstrip('.') or 'it has none'})" for column in absent)
        raise DataError(f"the table of {who} has no column {told}. Columns are known by their names.")
    chosen = given.select(*(nw.nth(known.index(column)) for column in columns))
    table = chosen.collect() if isinstance(chosen, nw.LazyFrame) else chosen
    return dict(zip(columns, table.iter_columns()))


def _of_file(path: Path, who: str) -> nw.LazyFrame[Any]:
    """A Parquet file, whose columns are read when they are asked for."""
    if path.suffix.lower() not in PARQUET:
        said = f"{who}: {path} is not named as a Parquet file (.parquet)"
        raise DataError(f"{said}; read others with pandas or Polars, which know their types, and give the table.")
    if not path.exists():
        raise DataError(f"{who}: there is no file {path}.")
    reader = next((name for name in READERS if find_spec(name) is not None), None)
    if reader is None:
        said = f"{who}: reading {path} takes polars or pyarrow"
        raise MissingPackageError(f"{said}: pip install polars (or pip install 'hierfl[parquet]').")
    return nw.scan_parquet(str(path), backend=reader)


def numbers_as_given(column: nw.Series[Any], what: str) -> np.ndarray:
    """A column as an array of its own dtype. Raises ``DataError`` for missing entries, and what is no real number."""
    if missing := column.null_count():
        raise DataError(f"{what}: {missing} of {len(column)} entries are missing; fill them in, or leave those rows out.")
    if isinstance(column.dtype, (nw.Categorical, nw.Enum)):
        said = f"{what} holds categories; read the table by a hf.Schema(categorical=...)"
        raise DataError(f"{said}, which gives each a column, or write .cat.codes if their numbers are meant.")
    array = column.to_numpy()
    require_real(array, what, _named(column))
    return array


def _named(column: nw.Series[Any]) -> str:
    """A column's dtype, as its own library calls it."""
    native = column.to_native()
    return str(getattr(native, "dtype", None) or native.type)


def require_real(array: np.ndarray, what: str, dtype: str = "") -> None:
    """Refuse an array of anything but real numbers, of this dtype where it came from. Raises ``DataError``."""
    if array.dtype.kind in "fiub":
        return
    told = dtype or str(array.dtype)
    hint = {
        "O": ": write .astype(float) if all of it are numbers",
        "U": ": text is no number; write .astype(float) if it spells numbers",
        "c": "; hierfl treats real problems only",
        "M": ": write what number stands for a date, such as days since the first",
        "m": ": write a number of units, such as value / np.timedelta64(1, 'D')",
    }.get(array.dtype.kind, "")
    raise DataError(f"{what} has dtype {told}; expected real numbers{hint}.")


def numbers_of(column: nw.Series[Any], what: str) -> tuple[np.ndarray, np.ndarray]:
    """A column as numbers in double precision, NaN where one is missing, and which are missing; true and false are 1 and 0.

    Raises ``DataError`` for text, dates, categories, infinity and whatever is no real number.
    """
    dtype = column.dtype
    if dtype.is_numeric() or dtype == nw.Boolean:
        plain = dtype.is_numeric() and dtype != nw.Decimal
        values = np.asarray((column if plain else column.cast(nw.Float64)).to_numpy(), float)
    else:
        there = ~np.asarray(column.is_null().to_numpy(), bool)
        values = np.full(len(there), np.nan)
        if there.any():
            _require_numbers(column, what)
            values[there] = np.asarray(column.drop_nulls().to_numpy(), float)
    if infinite := int(np.isinf(values).sum()):
        raise DataError(f"{what} is infinite in {infinite} of {len(values)} rows; expected finite numbers.")
    return values, np.isnan(values)


def _require_numbers(column: nw.Series[Any], what: str) -> None:
    """Refuse a column that is not of numbers by its dtype, unless all of its entries are."""
    dtype = column.dtype
    if dtype == nw.Object:
        kinds = Counter(type(one).__name__ for one in column.drop_nulls().to_list() if not isinstance(one, (Real, Decimal, np.bool_)))
        if not kinds:
            return
        told = ", ".join(f"{count} of type {kind}" for kind, count in kinds.most_common(SHOWN))
        raise DataError(f"{what} holds, of {len(column)} entries, {told}, which are no numbers.")
    reason = next((reason for kind, reason in NO_NUMBERS.items() if dtype == kind), f"has dtype {_named(column)}, which is no number")
    raise DataError(f"{what} {reason}; categories are named in hf.Schema(categorical=...).")


def places_of(column: nw.Series[Any], categories: Sequence[Any], what: str) -> np.ndarray:
    """For each entry of a column its place among the categories; -1 where it is missing.

    Raises ``DataError`` for entries that are no category, naming them and how many there are.
    """
    missing = np.asarray(column.is_null().to_numpy(), bool)
    known = {category: place for place, category in enumerate(categories)}
    entries = column.to_list()
    places = np.fromiter(map(known.get, entries, repeat(-1)), int, len(entries))
    others = Counter(entries[row] for row in np.flatnonzero((places < 0) & ~missing) if entries[row] == entries[row])
    if others:
        told = [f"{count} {'entry' if count == 1 else 'entries'} {value!r}" for value, count in others.most_common(SHOWN)]
        told += [f"{len(others) - SHOWN} other values"] if len(others) > SHOWN else []
        value = others.most_common(1)[0][0]
        raise DataError(f"{what} has {', '.join(told)}, which is no category of it: {_nearest(value, categories)} All sites agree on the categories.")
    return places


def _nearest(value: Any, categories: Sequence[Any]) -> str:
    """What may be meant by a value that is no category."""
    same = [one for one in categories if str(one) == str(value)]
    if same:
        return f"{same[0]!r} is one, of type {type(same[0]).__name__}, and this is of type {type(value).__name__}."
    return near_names(value, [str(one) for one in categories])


def counted(missing: Mapping[str, np.ndarray], rows: int) -> str:
    """How many entries of which columns are missing, in words."""
    return ", ".join(f"{int(gone.sum())} of {rows} entries of {column!r}" for column, gone in missing.items())


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
    extents = dict[str, int]()
    for file, _, end in map(place_in_file, mapped):
        extents[str(file)] = max(extents.get(str(file), 0), end)
    for file, size in extents.items():
        present = os.path.getsize(file) if os.path.exists(file) else size  # a file without a name is still there
        if present < size:
            raise DataError(
                f"sample {name!r} is memory-mapped from {file}, which has {present:,} bytes now and had at least {size:,} when "
                f"it was mapped: restore the file, and load it again."
            )


def place_in_file(array: np.memmap) -> tuple[Any, int, int]:
    """The file of a mapped array, and where in it this begins and ends: a slice knows its file but not its place in it."""
    root: Any = array
    while isinstance(root.base, np.memmap):
        root = root.base
    begin, end = (int(root.offset) + edge - byte_bounds(root)[0] for edge in byte_bounds(array))
    return root.filename, begin, end


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
        raise DataError(
            f"{what} {' and '.join([*lacks, *has])}, by the columns of {at} ({_shown(theirs)}): columns are known by their names, "
            f"which have to be the same."
        )
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

"""The one door for tables: pandas, Polars, Arrow and whatever else narwhals reads, and Parquet files by their path.

Columns are asked for by name. What is missing (None, NaN, NaT, NA, null) is told apart from what is there before any number is made.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from decimal import Decimal
from importlib.util import find_spec
from itertools import repeat
from numbers import Real
from pathlib import Path
from typing import Any, Literal

import narwhals as nw
import numpy as np
from narwhals.exceptions import DuplicateError

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

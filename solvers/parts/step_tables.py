"""Schedules as tables that a program takes as arguments, and settings as its key: equal settings have equal keys, arrays included.

Another step size, decay, number of rounds or radius of smoothing is another table and not another program. Numbers of local steps
that never change stay constants of the program, which is then compiled for loops of that length.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Self, TypeGuard

import jax.numpy as jnp
import numpy as np
from jax import Array


def settings_key(value: Any) -> Hashable:
    """Make a key of a solver, or of one of its settings, by value: what is compiled for it is kept, and found again."""
    if isinstance(value, np.generic):
        return (type(value), value.item())
    if isinstance(value, np.ndarray):
        return (np.ndarray, value.shape, value.dtype.str, value.tobytes())
    if isinstance(value, list | tuple):
        return (type(value), *map(settings_key, value))
    if isinstance(value, Mapping):
        return (type(value), *((name, settings_key(part)) for name, part in value.items()))
    if is_dataclass(value) and not isinstance(value, type) and type(value).__eq__ is not object.__eq__:
        return (type(value), *(settings_key(getattr(value, field.name)) for field in fields(value)))
    itself: Hashable = value
    return itself


LEAST = 64  # entries of a table as a program sees it; longer ones double, so that few lengths are compiled for
PADDED = 1_000_000  # scalars of a table that is brought to such a length


def constant(table: np.ndarray) -> np.ndarray:
    """A table of whole numbers, by its first row alone where all rows are the same."""
    return table[:1] if len(table) and (table == table[:1]).all() else table


def row(table: np.ndarray | Array, r: Array | int) -> Array:
    """A table's entry at a round (or local step); a table of one row has the same at all. Traceable."""
    return jnp.asarray(table, float if table.dtype.kind == "f" else int)[0 if len(table) == 1 else r]


def rows(table: np.ndarray, first: int, last: int) -> np.ndarray:
    """The entries at first, ..., last - 1."""
    return np.broadcast_to(table, (last - first, *table.shape[1:])) if len(table) == 1 else table[first:last]


class Tabulated:
    """A dataclass whose array fields are tables: it runs on any others in a program that was traced for it.

    ``tabulated`` names the settings that traced code knows by these tables alone. Whatever else the fields hold is a constant of
    the program, and part of its key.
    """

    tabulated: ClassVar[tuple[str, ...]] = ()

    @property
    def tables(self) -> dict[str, Any]:
        """The tables that are arguments of a program, by field: all but whole numbers that never change."""
        tables: dict[str, Any] = {}
        for name, value in self._own():
            if isinstance(value, Tabulated):
                tables[name] = value.tables
            elif _is_argument(value):
                tables[name] = _padded(value)
        return tables

    def with_tables(self, given: dict[str, Any]) -> Self:
        """The same on other tables, or on traced ones."""
        new = {
            name: getattr(self, name).with_tables(table) if isinstance(getattr(self, name), Tabulated) else table
            for name, table in given.items()
        }
        return replace(self, **new) if new else self  # type: ignore[type-var]

    @cached_property
    def program_key(self) -> Hashable:
        """All that a traced program depends on beside the problem and the tables."""
        return (type(self), *((name, self._part(name, value)) for name, value in self._own() if name != "problem"))

    @property
    def known_by_tables(self) -> tuple[str, ...]:
        """Settings that are no part of the key."""
        return self.tabulated

    def _part(self, name: str, value: Any) -> Hashable:
        if isinstance(value, Tabulated):
            return value.program_key
        if _is_argument(value):
            return _padded(value).shape
        if name == "settings":
            left = [f.name for f in fields(value) if f.name not in self.known_by_tables]
            return (type(value), *((each, settings_key(getattr(value, each))) for each in left))
        return settings_key(value)

    def _own(self) -> list[tuple[str, Any]]:
        return [(f.name, getattr(self, f.name)) for f in fields(self)]  # type: ignore[arg-type]


def _is_argument(value: object) -> TypeGuard[np.ndarray]:
    """Whether a field is a table that programs take as an argument."""
    return isinstance(value, np.ndarray) and (value.dtype.kind == "f" or len(value) > 1)


def _padded(table: np.ndarray) -> np.ndarray:
    """Its last entry repeated, up to a length that few tables differ in."""
    if table.ndim == 0:
        return table
    length = max(LEAST, 1 << (len(table) - 1).bit_length()) if len(table) else 0
    if length * table[:1].size > PADDED:
        return table
    return np.concatenate([table, np.broadcast_to(table[-1:], (length - len(table), *table.shape[1:]))])

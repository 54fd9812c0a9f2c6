"""Schedules as tables, and what has some: a program takes the tables that it runs on as arguments.

Another step size, decay, number of rounds or radius of smoothing is another table and not another program. Numbers of local steps that never change
stay constants of the program, which is then compiled for loops of that length.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import fields, replace
from functools import cached_property
from typing import Any, ClassVar, Self

import jax.numpy as jnp
import numpy as np

from hierfl.compiler.program import Array
from hierfl.runtime.settings_key import settings_key

LEAST = 64  # entries of a table; longer ones double, so that few lengths are compiled for
PADDED = 1_000_000  # scalars of a table that is brought to such a length


def constant(table: np.ndarray) -> np.ndarray:
    """One row of a table of whole numbers whose rows are all the same; other tables as they are."""
    return table[:1] if len(table) and (table == table[:1]).all() else table


def row(table: Any, r: Any) -> Array:
    """A table's entry at a round (or local step); a table of one row has the same at all. Traceable."""
    found: Array = jnp.asarray(table, float if table.dtype.kind == "f" else int)[0 if len(table) == 1 else r]
    return found


def rows(table: np.ndarray, first: int, last: int) -> np.ndarray:
    """The entries at first, ..., last - 1."""
    return np.broadcast_to(table, (last - first, *table.shape[1:])) if len(table) == 1 else table[first:last]


class Tabulated:
    """A dataclass whose array fields are tables.

    Two with the same ``program_key`` are the same to a traced program, given the tables. Beside arrays, settings, numbers and
    other ``Tabulated`` a field may hold what follows from these and from the problem.
    """

    tabulated: ClassVar[tuple[str, ...]] = (
        "step_size",
        "local_steps",
        "steps",
        "smoothing",
    )  # settings that only tables know

    @property
    def tables(self) -> dict[str, Any]:
        """What changes with the round or is no whole number, by field."""
        found: dict[str, Any] = {}
        for name, value in self._own():
            if isinstance(value, Tabulated):
                found[name] = value.tables
            elif _is_argument(value):
                found[name] = _padded(value)
        return found

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
        parts: list[Any] = [type(self)]
        for name, value in self._own():
            if isinstance(value, Tabulated):
                parts.append((name, value.program_key))
            elif name == "settings":
                parts.append(self._settings_key(value))
            elif _is_argument(value):
                parts.append((name, _padded(value).shape))
            elif value is None or isinstance(value, np.ndarray | bool | int | float | str):
                parts.append((name, settings_key(value)))
        return tuple(parts)

    def _settings_key(self, settings: Any) -> Hashable:
        known = (
            self.tabulated if not isinstance(getattr(self, "lower", None), Tabulated) else (*self.tabulated, "lower")
        )
        left = [f.name for f in fields(settings) if f.name not in known]
        return (type(settings), *((name, settings_key(getattr(settings, name))) for name in left))

    def _own(self) -> list[tuple[str, Any]]:
        return [(f.name, getattr(self, f.name)) for f in fields(self)]  # type: ignore[arg-type]


def _is_argument(value: Any) -> bool:
    return isinstance(value, np.ndarray) and (value.dtype.kind == "f" or len(value) > 1)


def _padded(table: np.ndarray) -> np.ndarray:
    """Its last entry repeated, up to a length that few tables differ in."""
    if table.ndim == 0:
        return table
    length = max(LEAST, 1 << (len(table) - 1).bit_length()) if len(table) else 0
    if length * table[:1].size > PADDED:
        return table
    return np.concatenate([table, np.broadcast_to(table[-1:], (length - len(table), *table.shape[1:]))])

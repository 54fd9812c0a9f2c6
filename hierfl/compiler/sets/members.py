"""The members of a set, compiled: bounds of single entries, bands ``low <= a'y <= high``, and memberships in families."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from hierfl.compiler.expressions.program import Array
from hierfl.compiler.sets.families import Family
from hierfl.compiler.sets.rows import AffineMap, Rows, Values, merged
from hierfl.language.printing.text import expression_text
from hierfl.projections.emptiness import beyond


@dataclass(frozen=True, eq=False)
class Origin:
    """Where a member comes from: the user's constraint and its hoisted copy."""

    written: Any
    hoisted: Any


def names(origins: Iterable[Origin]) -> str:
    """The constraints, each once, as text."""
    return ", ".join(dict.fromkeys(expression_text(origin.written) for origin in origins))


@dataclass(frozen=True, eq=False)
class Bounds:
    """Rows of one entry each, ``a y_j + b <= 0`` (or ``== 0``)."""

    origin: Origin
    rows: Rows
    equality: bool

    @cached_property
    def columns(self) -> np.ndarray:
        """The entry of each row."""
        return self.rows.pattern.indices

    @cached_property
    def fixed(self) -> tuple[np.ndarray, np.ndarray] | None:
        """(low, high) of each row, computed once; None where parameters enter."""
        if not self.rows.constant or self.rows.source.fixed is None:
            return None
        slope, offset = self.rows.pattern.data, self.rows.source.fixed[self.rows.index]
        with np.errstate(over="ignore"):
            limit = -offset / np.where(slope == 0, 1.0, slope) + 0.0  # never -0
        low, high = _one_sided(np, slope, limit, self.equality)
        return low, high

    def on(self, entries: np.ndarray) -> Bounds | None:
        """Those that bound one of the entries; None if there are none."""
        inside = np.flatnonzero(np.isin(self.columns, entries))
        return (
            Bounds(self.origin, Rows(self.rows.source, self.rows.index[inside]), self.equality) if inside.size else None
        )

    @classmethod
    def together(cls, parts: Sequence[Bounds]) -> Bounds:
        """The bounds of one source and kind as one."""
        source, index = parts[0].rows.source, np.concatenate([part.rows.index for part in parts])
        return cls(parts[0].origin, Rows(source, index), parts[0].equality)


def limits(bounds: Sequence[Bounds], entries: np.ndarray, values: Values) -> tuple[Array, Array, Array]:
    """(lower, upper) of the sorted entries (-inf, inf where free), and the violation of rows whose coefficient vanishes."""
    lowest, highest = np.full(len(entries), -np.inf), np.full(len(entries), np.inf)
    places = [np.searchsorted(entries, bound.columns).astype(np.int32) for bound in bounds]
    for bound, where in zip(bounds, places):
        if bound.fixed is not None:
            np.maximum.at(lowest, where, bound.fixed[0])
            np.minimum.at(highest, where, bound.fixed[1])
    lower, upper, broken = jnp.asarray(lowest, float), jnp.asarray(highest, float), jnp.asarray(-jnp.inf)
    for bound, where in zip(bounds, places):
        if bound.fixed is None:
            a = jnp.asarray(bound.rows.pattern.data, float) if bound.rows.constant else bound.rows.sums(values)
            low, high, violation = interval(a, bound.rows.offsets(values), bound.equality)
            lower, upper = lower.at[where].max(low), upper.at[where].min(high)
            if not bound.rows.constant:
                broken = jnp.maximum(broken, beyond(jnp.max(violation)))
    return lower, upper, broken


def interval(a: Array, b: Array, equality: bool) -> tuple[Array, Array, Array]:
    """The interval of t that ``a t + b <= 0`` (or ``== 0``) allows, and the violation where a = 0 (else -inf)."""
    limit = -b / jnp.where(a == 0, 1.0, a)
    limit = limit - jax.lax.stop_gradient(jnp.where(limit == 0, limit, 0.0))  # never -0, and its derivative kept
    return *_one_sided(jnp, a, limit, equality), jnp.where(a == 0, jnp.abs(b) if equality else b, -jnp.inf)


def _one_sided(xp: Any, a: Any, limit: Any, equality: bool) -> tuple[Any, Any]:
    """(low, high): the limit where the slope bounds that side."""
    bounded_above = (a != 0) if equality else (a > 0)
    bounded_below = (a != 0) if equality else (a < 0)
    return xp.where(bounded_below, limit, -np.inf), xp.where(bounded_above, limit, np.inf)


@dataclass(frozen=True, eq=False)
class Side:
    """One row ``factor * a'y + b <= 0`` (or ``== 0``) of a band with normal a."""

    origin: Origin
    row: Rows
    factor: float
    equality: bool


@dataclass(frozen=True, eq=False)
class Band:
    """Parallel rows together: ``low <= a'y <= high`` with the first side's row as the normal a."""

    sides: tuple[Side, ...]

    @property
    def pattern(self) -> sp.csr_array:
        """The normal's coefficients."""
        return self.normal.pattern

    @property
    def normal(self) -> Rows:
        """The row a."""
        return self.sides[0].row

    @property
    def support(self) -> np.ndarray:
        """Entries with a coefficient, sorted."""
        return self.normal.pattern.indices

    @property
    def constant(self) -> bool:
        """Whether the normal is the same everywhere."""
        return self.normal.constant

    @property
    def equality(self) -> bool:
        """Whether it is one equation."""
        return any(side.equality for side in self.sides)

    @property
    def one_sided(self) -> bool:
        """Whether it is a halfspace."""
        return not self.equality and len({np.sign(side.factor) for side in self.sides}) == 1


@dataclass(frozen=True, eq=False)
class Bands:
    """Several bands as arrays; ``low`` and ``high`` (k,) bound ``A y`` without offsets."""

    members: tuple[Band, ...]

    @cached_property
    def _normals(self) -> tuple[tuple[Rows, ...], np.ndarray]:
        """Normals by source, and the place of each band among them."""
        rows = merged(band.normal for band in self.members)
        order: dict[int, list[int]] = {}
        for place, band in enumerate(self.members):
            order.setdefault(id(band.normal.source), []).append(place)
        return rows, np.argsort(np.concatenate([order[id(r.source)] for r in rows]))

    @cached_property
    def _sides(self) -> list[tuple[Rows, np.ndarray, np.ndarray, bool]]:
        """(rows, factors, bands, equality) by source and kind."""
        alike: dict[tuple[int, bool], list[tuple[int, Side]]] = {}
        for place, band in enumerate(self.members):
            for side in band.sides:
                alike.setdefault((id(side.row.source), side.equality), []).append((place, side))
        return [
            (
                Rows(same[0][1].row.source, np.concatenate([side.row.index for _, side in same])),
                np.array([side.factor for _, side in same]),
                np.array([place for place, _ in same]),
                equality,
            )
            for (_, equality), same in alike.items()
        ]

    def interval(self, values: Values) -> tuple[Array, Array]:
        """(low, high) of each band."""
        low = jnp.full(len(self.members), -jnp.inf)
        high = jnp.full(len(self.members), jnp.inf)
        for rows, factors, places, equality in self._sides:
            below, above, _ = interval(jnp.asarray(factors, float), rows.offsets(values), equality)
            narrow = places.astype(np.int32)  # 64-bit indices fail in single precision
            low, high = low.at[narrow].max(below), high.at[narrow].min(above)
        return low, high

    def dense(self, values: Values, entries: np.ndarray) -> Array:
        """The normals (k, number of entries)."""
        rows, order = self._normals
        return jnp.concatenate([r.dense(values, entries) for r in rows])[order]

    def constant_matrix(self, entries: np.ndarray) -> np.ndarray:
        """The same for constant normals, as NumPy."""
        rows, order = self._normals
        return np.asarray(sp.vstack([r.pattern[:, entries] for r in rows]).toarray())[order]

    def triples(self, values: Values) -> tuple[np.ndarray, np.ndarray, Array]:
        """The normals as coordinate triples (band, entry of y, weight), for disjoint supports or constant normals."""
        rows, order = self._normals
        counts = np.concatenate([np.diff(r.pattern.indptr) for r in rows])
        bands = np.repeat(np.argsort(order), counts)
        columns = np.concatenate([r.pattern.indices for r in rows])
        return bands, columns, jnp.concatenate([r.coefficients(values) for r in rows])

    @property
    def origins(self) -> list[Origin]:
        """The constraints behind the sides."""
        return [side.origin for band in self.members for side in band.sides]

    @property
    def constant(self) -> bool:
        """Whether all normals are the same everywhere."""
        return all(band.constant for band in self.members)


@dataclass(frozen=True, eq=False)
class CompiledMembership:
    """``A y + b in C_r`` for one group of rows; ``radius(values)`` (G,) bounds all groups of its constraint; None for a cone."""

    origin: Origin
    family: Family
    rows: Rows
    radius: Callable[[Values], Array] | None
    group: int
    squared: bool

    @cached_property
    def support(self) -> np.ndarray:
        """Entries of y that take part, sorted."""
        return np.unique(self.rows.pattern.indices)

    @property
    def pattern(self) -> sp.csr_array:
        """The rows' coefficients."""
        return self.rows.pattern

    @property
    def constant(self) -> bool:
        """Whether they are the same everywhere."""
        return self.rows.constant

    @property
    def source(self) -> AffineMap:
        """The affine map, shared by the groups of one constraint."""
        return self.rows.source


@dataclass(frozen=True, eq=False)
class Opaque:
    """A constraint without a closed form, on these entries of y."""

    origin: Origin
    reason: str
    pattern: sp.csr_array
    constant: bool = False

    @classmethod
    def on(cls, origin: Origin, reason: str, support: np.ndarray, size: int) -> Opaque:
        """The member; its pattern is a row per entry."""
        ones, rows = np.ones(len(support)), np.arange(len(support))
        return cls(origin, reason, sp.csr_array((ones, (rows, support)), shape=(len(support), size)))

    @property
    def support(self) -> np.ndarray:
        """Entries of y."""
        return self.pattern.indices

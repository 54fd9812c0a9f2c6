"""Bands ``low <= a'y <= high``: parallel rows of a set taken together."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jaxtyping import Array, Float, Int

from hierfl.compiler.sets.members.affine_map import CompiledRows, Values, merged
from hierfl.compiler.sets.members.entry_bounds import interval
from hierfl.compiler.sets.members.origin import Origin


@dataclass(frozen=True, eq=False)
class Side:
    """One row ``factor * a'y + b <= 0`` (or ``== 0``) of a band with normal a."""

    origin: Origin
    row: CompiledRows
    factor: float
    equality: bool


@dataclass(frozen=True, eq=False)
class Band:
    """Parallel rows together: ``low <= a'y <= high`` with the first side's row as the normal a."""

    sides: tuple[Side, ...]

    @property
    def pattern(self) -> sp.csr_array:
        """The coefficients of the normal."""
        return self.normal.pattern

    @property
    def normal(self) -> CompiledRows:
        """The row a."""
        return self.sides[0].row

    @property
    def support(self) -> Int[np.ndarray, " n"]:
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

    @property
    def origins(self) -> list[Origin]:
        """The constraint behind each side."""
        return [side.origin for side in self.sides]


@dataclass(frozen=True, eq=False)
class Bands:
    """Several bands as arrays; ``low`` and ``high`` (k,) bound ``A y`` without offsets."""

    members: tuple[Band, ...]

    @cached_property
    def _normals(self) -> tuple[tuple[CompiledRows, ...], Int[np.ndarray, " k"]]:
        """Normals by source, and the place of each band among them."""
        rows = merged(band.normal for band in self.members)
        order: dict[int, list[int]] = {}
        for place, band in enumerate(self.members):
            order.setdefault(id(band.normal.source), []).append(place)
        places = np.argsort(np.concatenate([order[id(r.source)] for r in rows]))
        return rows, places.astype(np.int32)  # 64-bit indices fail in single precision

    @cached_property
    def _sides(self) -> list[tuple[CompiledRows, np.ndarray, np.ndarray, bool]]:
        """(rows, factors, bands, equality) by source and kind."""
        alike: dict[tuple[int, bool], list[tuple[int, Side]]] = {}
        for place, band in enumerate(self.members):
            for side in band.sides:
                alike.setdefault((id(side.row.source), side.equality), []).append((place, side))
        return [
            (
                CompiledRows(same[0][1].row.source, np.concatenate([side.row.index for _, side in same])),
                np.array([side.factor for _, side in same]),
                np.array([place for place, _ in same]),
                equality,
            )
            for (_, equality), same in alike.items()
        ]

    def interval(self, values: Values) -> tuple[Float[Array, " k"], Float[Array, " k"]]:
        """(low, high) of each band."""
        low = jnp.full(len(self.members), -jnp.inf)
        high = jnp.full(len(self.members), jnp.inf)
        for rows, factors, places, equality in self._sides:
            below, above, _ = interval(jnp.asarray(factors, float), rows.offsets(values), equality)
            narrow = places.astype(np.int32)  # 64-bit indices fail in single precision
            low, high = low.at[narrow].max(below), high.at[narrow].min(above)
        return low, high

    def dense(self, values: Values, entries: Int[np.ndarray, " n"]) -> Float[Array, "k n"]:
        """The normals as a matrix on ``entries``."""
        rows, order = self._normals
        return jnp.concatenate([r.dense(values, entries) for r in rows])[order]

    def constant_matrix(self, entries: Int[np.ndarray, " n"]) -> Float[np.ndarray, "k n"]:
        """The same for constant normals, as NumPy."""
        rows, order = self._normals
        return np.asarray(sp.vstack([r.pattern[:, entries] for r in rows]).toarray())[order]

    def triples(self, values: Values) -> tuple[np.ndarray, np.ndarray, Float[Array, " nonzeros"]]:
        """The normals as coordinate triples (band, entry of y, weight), for disjoint supports or constant normals."""
        rows, order = self._normals
        counts = np.concatenate([np.diff(r.pattern.indptr) for r in rows])
        bands = np.repeat(np.argsort(order), counts)
        columns = np.concatenate([r.pattern.indices for r in rows])
        return bands, columns, jnp.concatenate([r.coefficients(values) for r in rows])

    @property
    def origins(self) -> list[Origin]:
        """The constraints behind the sides."""
        return [origin for band in self.members for origin in band.origins]

    @property
    def constant(self) -> bool:
        """Whether all normals are the same everywhere."""
        return all(band.constant for band in self.members)

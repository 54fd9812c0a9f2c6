"""Bounds of single entries, ``a y_j + b <= 0`` or ``== 0``, and the interval that such a row leaves to its entry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hierfl.compiler.sets.members.affine_map import CompiledRows, Values
from hierfl.compiler.sets.members.origin import Origin
from hierfl.projections.emptiness import beyond


@dataclass(frozen=True, eq=False)
class EntryBounds:
    """Rows of one entry each, ``a y_j + b <= 0`` (or ``== 0``)."""

    origin: Origin
    rows: CompiledRows
    equality: bool

    @cached_property
    def columns(self) -> Int[np.ndarray, " rows"]:
        """The entry of each row."""
        return self.rows.pattern.indices

    @cached_property
    def fixed(self) -> tuple[Float[np.ndarray, " rows"], Float[np.ndarray, " rows"]] | None:
        """(low, high) of each row, computed once; None where parameters enter."""
        if not self.rows.constant or self.rows.source.fixed is None:
            return None
        slope, offset = self.rows.pattern.data, self.rows.source.fixed[self.rows.index]
        with np.errstate(over="ignore"):
            limit = -offset / np.where(slope == 0, 1.0, slope) + 0.0  # never -0
        low, high = _one_sided(np, slope, limit, self.equality)
        return low, high

    def on(self, entries: Int[np.ndarray, " n"]) -> EntryBounds | None:
        """Those that bound one of the entries; None if there are none."""
        inside = np.flatnonzero(np.isin(self.columns, entries))
        if not inside.size:
            return None
        return EntryBounds(self.origin, CompiledRows(self.rows.source, self.rows.index[inside]), self.equality)

    @classmethod
    def joined(cls, bounds: Sequence[EntryBounds]) -> tuple[EntryBounds, ...]:
        """The same bounds with those of one source and kind together."""
        alike: dict[tuple[int, bool], list[EntryBounds]] = {}
        for bound in bounds:
            alike.setdefault((id(bound.rows.source), bound.equality), []).append(bound)
        return tuple(
            cls(
                same[0].origin,
                CompiledRows(same[0].rows.source, np.concatenate([part.rows.index for part in same])),
                same[0].equality,
            )
            for same in alike.values()
        )


def limits(
    bounds: Sequence[EntryBounds], entries: Int[np.ndarray, " n"], values: Values
) -> tuple[Float[Array, " n"], Float[Array, " n"], Float[Array, ""]]:
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


def interval(
    a: Float[Array, " rows"], b: Float[Array, " rows"], equality: bool
) -> tuple[Float[Array, " rows"], Float[Array, " rows"], Float[Array, " rows"]]:
    """The interval of t that ``a t + b <= 0`` (or ``== 0``) allows, and the violation where a = 0 (else -inf)."""
    limit = -b / jnp.where(a == 0, 1.0, a)
    limit = limit - jax.lax.stop_gradient(jnp.where(limit == 0, limit, 0.0))  # never -0, and its derivative kept
    return *_one_sided(jnp, a, limit, equality), jnp.where(a == 0, jnp.abs(b) if equality else b, -jnp.inf)


def _one_sided(xp: Any, a: Any, limit: Any, equality: bool) -> tuple[Any, Any]:
    """(low, high): the limit where the slope bounds that side; ``xp`` is NumPy or its namesake in JAX."""
    bounded_above = (a != 0) if equality else (a > 0)
    bounded_below = (a != 0) if equality else (a < 0)
    return xp.where(bounded_below, limit, -np.inf), xp.where(bounded_above, limit, np.inf)

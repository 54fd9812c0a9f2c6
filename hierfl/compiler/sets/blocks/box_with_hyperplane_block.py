"""A box with one band: simplices, capped simplices, budgets, and boxes cut by a hyperplane, halfspace or slab."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hierfl.compiler.sets.components import Component
from hierfl.compiler.sets.members.affine_map import Values
from hierfl.compiler.sets.members.bands import Bands
from hierfl.compiler.sets.members.entry_bounds import EntryBounds, limits
from hierfl.compiler.sets.members.origin import constraints_text
from hierfl.projections import box, box_with_hyperplane, simplex


@dataclass(frozen=True, eq=False)
class BoxWithHyperplaneBlock:
    """Boxes of one size side by side: band g acts on ``groups[g]``, (number of boxes, size)."""

    groups: Int[np.ndarray, "groups size"]
    bands: Bands
    bounds: tuple[EntryBounds, ...]
    weights: Float[np.ndarray, "groups size"] | None  # None where the normals move
    is_simplex: bool  # y >= 0 and a uniform sum given
    exact: bool = True
    cost: str = box_with_hyperplane.COST
    advice: str = ""

    @staticmethod
    def alike(part: Component) -> Hashable | None:
        """Components of a band and bounds are alike if they have the same number of entries."""
        return len(part.entries) if part.lone_band is not None and part.bounds else None

    @classmethod
    def of(cls, parts: Sequence[Component]) -> BoxWithHyperplaneBlock:
        """One block for components of one band each, all of the same size."""
        groups = np.stack([part.entries for part in parts])
        bands = Bands(tuple(part.bands[0] for part in parts))
        bounds = EntryBounds.joined([bound for part in parts for bound in part.bounds])
        weights = None
        if bands.constant:
            weights = np.stack([p.bands[0].normal.pattern[:, p.entries].toarray()[0] for p in parts])
        return cls(groups, bands, bounds, weights, _is_simplex(groups, bands, bounds, weights))

    @property
    def entries(self) -> Int[np.ndarray, " n"]:
        """All groups, one after another."""
        return self.groups.ravel()

    @property
    def kind(self) -> str:
        """``"simplex"`` for y >= 0 with a uniform sum given, else ``"strip"``."""
        return "simplex" if self.is_simplex else "strip"

    def _limits(
        self, values: Values
    ) -> tuple[Float[Array, "groups size"], Float[Array, "groups size"], Float[Array, ""]]:
        order = np.argsort(self.entries)
        lower, upper, broken = limits(self.bounds, self.entries[order], values)
        back = np.argsort(order)
        return lower[back].reshape(self.groups.shape), upper[back].reshape(self.groups.shape), broken

    def _normals(self, values: Values) -> Float[Array, "groups size"]:
        if self.weights is not None:
            return jnp.asarray(self.weights, float)
        order = np.argsort(self.entries)
        _, columns, weights = self.bands.triples(values)
        places = order[np.searchsorted(self.entries[order], columns)]
        return jnp.zeros(self.entries.size).at[places].set(weights).reshape(self.groups.shape)

    def project(self, z: Float[Array, " n"], values: Values) -> Float[Array, " n"]:
        """Find the multiplier of each band."""
        grouped, (low, high) = z.reshape(self.groups.shape), self.bands.interval(values)
        if self.is_simplex:
            assert self.weights is not None
            return jax.vmap(simplex.project)(grouped, low / self.weights[:, 0]).ravel()
        lower, upper, _ = self._limits(values)
        return jax.vmap(box_with_hyperplane.project)(grouped, self._normals(values), low, high, lower, upper).ravel()

    def gap(self, values: Values) -> Float[Array, ""]:
        """Positive when a box is empty or its band misses it."""
        low, high = self.bands.interval(values)
        if self.is_simplex:
            assert self.weights is not None
            return jnp.maximum(jnp.max(simplex.gap(low / self.weights[:, 0])), box.gap(low, high))
        lower, upper, broken = self._limits(values)
        missed = jax.vmap(box_with_hyperplane.gap)(self._normals(values), low, high, lower, upper)
        return jnp.maximum(jnp.max(missed), jnp.maximum(broken, jnp.maximum(box.gap(lower, upper), box.gap(low, high))))

    def explain(self) -> str:
        """Name the band and the bounds."""
        count = len(self.groups)
        constraints = constraints_text([*self.bands.origins, *(b.origin for b in self.bounds)])
        if self.is_simplex:
            return f"{'simplex' if count == 1 else f'{count} simplices'}, {box_with_hyperplane.METHOD}: {constraints}"
        return f"{'box with one band' if count == 1 else f'{count} boxes with one band each'}, {box_with_hyperplane.METHOD}: {constraints}"


def _is_simplex(
    groups: Int[np.ndarray, "groups size"],
    bands: Bands,
    bounds: Sequence[EntryBounds],
    weights: Float[np.ndarray, "groups size"] | None,
) -> bool:
    """Whether all weights of a band are equal, all bands are equations, and the bounds are exactly y >= 0 everywhere."""
    if weights is None or not all(band.equality for band in bands.members):
        return False
    if (np.ptp(weights, axis=1) > 1e-14 * np.abs(weights).max(axis=1)).any():
        return False
    if any(b.equality or not b.rows.constant or b.rows.source.fixed is None for b in bounds):
        return False
    lower, upper, _ = limits(bounds, np.sort(groups.ravel()), {})
    return bool((np.asarray(lower) == 0).all() and np.isposinf(np.asarray(upper)).all())

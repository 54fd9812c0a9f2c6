"""A box with one band: simplices, capped simplices, budgets, halfspaces, slabs, and boxes cut by one of these."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hierfl.compiler.sets.blocks.affine_block import AffineBlock
from hierfl.compiler.sets.blocks.block import Block
from hierfl.compiler.sets.blocks.polyhedron_block import PolyhedronBlock
from hierfl.compiler.sets.components import Component
from hierfl.compiler.sets.members.affine_map import Values
from hierfl.compiler.sets.members.bands import Bands
from hierfl.compiler.sets.members.entry_bounds import EntryBounds, limits
from hierfl.compiler.sets.members.origin import constraints_text
from hierfl.projections import box_with_hyperplane

KINDS = {"affine": "hyperplane", "halfspace": "halfspace", "slab": "slab"}  # of bands alone


@dataclass(frozen=True, eq=False)
class BoxWithBandBlock:
    """Boxes of one size side by side: band g acts on ``groups[g]``, (number of boxes, size)."""

    groups: Int[np.ndarray, "groups size"]
    bands: Bands
    bounds: tuple[EntryBounds, ...]
    weights: Float[np.ndarray, "groups size"] | None  # None where the normals move
    kind: str
    exact: bool = True
    advice: str = ""

    @staticmethod
    def alike(part: Component) -> Hashable | None:
        """Components of a band and bounds are alike if they have the same number of entries, those without if their bands are as well."""
        band = part.lone_band
        if band is None:
            return None
        return len(part.entries), True if part.bounds else (band.equality, band.one_sided)

    @classmethod
    def of(cls, parts: Sequence[Component]) -> Block | None:
        """One block for components of one band each, all of the same size; a more general one where they share entries."""
        groups = np.stack([part.entries for part in parts])
        if len(np.unique(groups)) < groups.size:
            whole = Component.joined(parts)
            return next((kind.of([whole]) for kind in (AffineBlock, PolyhedronBlock) if kind.alike(whole)), None)
        bands = Bands(tuple(part.bands[0] for part in parts))
        bounds = EntryBounds.joined([bound for part in parts for bound in part.bounds])
        weights = None
        if bands.constant:
            weights = np.stack([p.bands[0].normal.pattern[:, p.entries].toarray()[0] for p in parts])
        if bounds:
            kind = "simplex" if _is_simplex(groups, bands, bounds, weights) else "strip"
        else:
            band = bands.members[0]
            kind = "affine" if band.equality else "halfspace" if band.one_sided else "slab"
        return cls(groups, bands, bounds, weights, kind)

    @property
    def entries(self) -> Int[np.ndarray, " n"]:
        """All groups, one after another."""
        return self.groups.ravel()

    @property
    def cost(self) -> str:
        """A search for the multiplier, which bands alone have by a formula."""
        return box_with_hyperplane.COST if self.bounds else "O(n)"

    def _limits(
        self, values: Values
    ) -> tuple[Float[Array, "groups size"], Float[Array, "groups size"], Float[Array, ""]]:
        order = np.argsort(self.entries)
        lower, upper, broken = limits(self.bounds, self.entries[order], values)
        back = np.argsort(order).astype(np.int32)  # 64-bit indices fail in single precision
        return lower[back].reshape(self.groups.shape), upper[back].reshape(self.groups.shape), broken

    def _normals(self, values: Values) -> Float[Array, "groups size"]:
        if self.weights is not None:
            return jnp.asarray(self.weights, float)
        order = np.argsort(self.entries)
        _, columns, weights = self.bands.triples(values)
        places = order[np.searchsorted(self.entries[order], columns)].astype(np.int32)
        return jnp.zeros(self.entries.size).at[places].set(weights).reshape(self.groups.shape)

    def project(self, z: Float[Array, " n"], values: Values) -> Float[Array, " n"]:
        """Find the multiplier of each band."""
        (low, high), (lower, upper, _) = self.bands.interval(values), self._limits(values)
        grouped, normals = z.reshape(self.groups.shape), self._normals(values)
        return jax.vmap(box_with_hyperplane.project)(grouped, normals, low, high, lower, upper).ravel()

    def gap(self, values: Values) -> Float[Array, ""]:
        """Positive when a box is empty or its band misses it."""
        (low, high), (lower, upper, broken) = self.bands.interval(values), self._limits(values)
        missed = jax.vmap(box_with_hyperplane.gap)(self._normals(values), low, high, lower, upper)
        return jnp.maximum(jnp.max(missed), broken)

    def explain(self) -> str:
        """Name the band and the bounds."""
        count = len(self.groups)
        constraints = constraints_text([*self.bands.origins, *(b.origin for b in self.bounds)])
        if not self.bounds:
            what = KINDS[self.kind]
            return f"{what if count == 1 else f'{count} {what}s'}: {constraints}"
        if self.kind == "simplex":
            what = "simplex" if count == 1 else f"{count} simplices"
        else:
            what = "box with one band" if count == 1 else f"{count} boxes with one band each"
        return f"{what}, {box_with_hyperplane.METHOD}: {constraints}"


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

"""Halfspaces, hyperplanes and slabs with mutually orthogonal normals, all at once."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Array, Float, Int

from hierfl.compiler.sets.components import Component
from hierfl.compiler.sets.members.affine_map import Values
from hierfl.compiler.sets.members.bands import Bands
from hierfl.compiler.sets.members.origin import constraints_text
from hierfl.projections import slab


@dataclass(frozen=True, eq=False)
class BandBlock:
    """Lone bands without bounds on their entries."""

    entries: Int[np.ndarray, " n"]
    bands: Bands
    exact: bool = True
    cost: str = "O(n)"
    advice: str = ""

    @staticmethod
    def alike(part: Component) -> Hashable | None:
        """Hyperplanes go together, halfspaces and slabs."""
        if part.lone_band is None or part.bounds:
            return None
        return part.lone_band.equality, part.lone_band.one_sided

    @classmethod
    def of(cls, parts: Sequence[Component]) -> BandBlock:
        """One block for components of one band each."""
        entries = np.unique(np.concatenate([part.entries for part in parts]))
        return cls(entries, Bands(tuple(part.bands[0] for part in parts)))

    @property
    def kind(self) -> str:
        """``"affine"`` for hyperplanes, ``"halfspace"``, else ``"slab"``."""
        if all(band.equality for band in self.bands.members):
            return "affine"
        return "halfspace" if all(band.one_sided for band in self.bands.members) else "slab"

    def project(self, z: Float[Array, " n"], values: Values) -> Float[Array, " n"]:
        """Take one step along each normal."""
        bands, columns, weights = self._normals(values)
        return slab.project(z, bands, columns, weights, *self.bands.interval(values))

    def gap(self, values: Values) -> Float[Array, ""]:
        """Positive when an interval is empty, or a normal vanishes and 0 is outside its interval."""
        bands, _, weights = self._normals(values)
        return slab.gap(bands, weights, *self.bands.interval(values))

    def _normals(self, values: Values) -> tuple[np.ndarray, np.ndarray, Float[Array, " nonzeros"]]:
        bands, columns, weights = self.bands.triples(values)
        return bands, np.searchsorted(self.entries, columns), weights

    def explain(self) -> str:
        """Name the constraints behind the bands."""
        what = {"affine": "hyperplane", "halfspace": "halfspace", "slab": "slab"}[self.kind]
        count = len(self.bands.members)
        return f"{what if count == 1 else f'{count} orthogonal {what}s'}: {constraints_text(self.bands.origins)}"

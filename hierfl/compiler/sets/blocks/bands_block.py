"""Halfspaces, hyperplanes and slabs with mutually orthogonal normals, all at once."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hierfl.compiler.expressions.program import Array
from hierfl.compiler.sets.members import Bands, names
from hierfl.compiler.sets.rows import Values
from hierfl.projections import slab


@dataclass(frozen=True, eq=False)
class BandBlock:
    """Lone bands without bounds on their entries."""

    entries: np.ndarray
    bands: Bands
    exact: bool = True
    cost: str = "O(n)"

    @property
    def kind(self) -> str:
        """``"affine"`` for hyperplanes, ``"halfspace"``, else ``"slab"``."""
        if all(band.equality for band in self.bands.members):
            return "affine"
        return "halfspace" if all(band.one_sided for band in self.bands.members) else "slab"

    def project(self, z: Array, values: Values) -> Array:
        """One step along each normal."""
        bands, columns, weights = self._normals(values)
        return slab.project(z, bands, columns, weights, *self.bands.interval(values))

    def gap(self, values: Values) -> Array:
        """Positive when an interval is empty, or a normal vanishes and 0 is outside its interval."""
        bands, _, weights = self._normals(values)
        return slab.gap(bands, weights, *self.bands.interval(values))

    def _normals(self, values: Values) -> tuple[np.ndarray, np.ndarray, Array]:
        bands, columns, weights = self.bands.triples(values)
        return bands, np.searchsorted(self.entries, columns), weights

    def explain(self) -> str:
        """The constraints behind the bands."""
        what = {"affine": "hyperplane", "halfspace": "halfspace", "slab": "slab"}[self.kind]
        count = len(self.bands.members)
        return f"{what if count == 1 else f'{count} orthogonal {what}s'}: {names(self.bands.origins)}"

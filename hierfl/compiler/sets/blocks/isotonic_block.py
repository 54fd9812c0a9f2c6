"""Chains y_1 <= y_2 + s_1, y_2 <= y_3 + s_2, ...: the monotone cone, shifted."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from hierfl.compiler.expressions.program import Array
from hierfl.compiler.sets.components import Component
from hierfl.compiler.sets.members import Bands, names
from hierfl.compiler.sets.rows import Values
from hierfl.projections import isotonic


@dataclass(frozen=True, eq=False)
class IsotonicBlock:
    """``entries`` lists the chain from the smallest on; link k bounds ``y[k] - y[k + 1]`` from above."""

    entries: np.ndarray
    links: Bands
    scales: np.ndarray  # of each link: its normal is scale * (e_k - e_{k+1})
    kind: str = "monotone cone"
    exact: bool = True
    cost: str = "O(n)"

    @classmethod
    def of(cls, part: Component) -> IsotonicBlock | None:
        """The block, or None if the component is no chain."""
        if part.bounds or part.memberships or len(part.members) + 1 != len(part.entries):
            return None
        following: dict[int, tuple[int, int, float]] = {}
        for place, band in enumerate(part.bands):
            data, support = band.normal.pattern.data, band.support
            if not band.constant or not band.one_sided or len(data) != 2 or abs(data.sum()) > 1e-12 * abs(data[0]):
                return None
            upward = np.sign(band.sides[0].factor) * data  # sides read factor * a'y + b <= 0
            low, high = (support[0], support[1]) if upward[0] > 0 else (support[1], support[0])
            if int(low) in following:
                return None
            following[int(low)] = (int(high), place, float(np.abs(data[0]) * np.sign(band.sides[0].factor)))
        first = set(following) - {high for high, _, _ in following.values()}
        if len(first) != 1:
            return None
        chain, links = [first.pop()], []
        while chain[-1] in following:
            high, place, _ = following[chain[-1]]
            chain.append(high)
            links.append(place)
        if len(chain) != len(part.entries):
            return None
        ordered = tuple(part.bands[place] for place in links)
        scales = np.array([following[low][2] for low in chain[:-1]])
        return cls(np.array(chain), Bands(ordered), scales)

    def _shifts(self, values: Values) -> Array:
        """Offsets o with y - o nondecreasing: o_1 = 0, o_{k+1} = o_k - s_k."""
        low, high = self.links.interval(values)
        scales = jnp.asarray(self.scales, float)
        slack = jnp.where(scales > 0, high / scales, low / scales)
        return jnp.concatenate([jnp.zeros(1), -jnp.cumsum(slack)])

    def project(self, z: Array, values: Values) -> Array:
        """Isotonic regression."""
        shifts = self._shifts(values)
        return isotonic.project(z - shifts) + shifts

    def gap(self, values: Values) -> Array:
        """Never empty."""
        return jnp.asarray(-jnp.inf)

    def explain(self) -> str:
        """The constraints behind the chain."""
        return f"monotone cone, by isotonic regression: {names(self.links.origins)}"

"""Chains y_1 <= y_2 + s_1, y_2 <= y_3 + s_2, ...: the monotone cone, shifted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from hierfl.compiler.sets.blocks.nested import Nested
from hierfl.compiler.sets.components import Component
from hierfl.compiler.sets.members.affine_map import Values
from hierfl.compiler.sets.members.bands import Band, Bands
from hierfl.compiler.sets.members.origin import constraints_text
from hierfl.projections import isotonic


@dataclass(frozen=True, eq=False)
class IsotonicBlock:
    """``entries`` lists the chain from the smallest on; link k bounds ``y[k] - y[k + 1]`` from above."""

    entries: Int[np.ndarray, " n"]
    links: Bands
    scales: Float[np.ndarray, " links"]  # of each link: its normal is scale * (e_k - e_{k+1})
    kind: str = "monotone cone"
    exact: bool = True
    cost: str = isotonic.COST
    advice: str = ""

    @classmethod
    def of(cls, part: Component, nested: Nested) -> IsotonicBlock | None:
        """The block, or None if the component is no chain."""
        if part.bounds or part.memberships or len(part.members) + 1 != len(part.entries):
            return None
        following = _links(part.bands)
        if following is None:
            return None
        first = set(following) - {link.high for link in following.values()}
        if len(first) != 1:
            return None
        chain, links = [first.pop()], []
        while chain[-1] in following:
            links.append(following[chain[-1]])
            chain.append(links[-1].high)
        if len(chain) != len(part.entries):
            return None
        return cls(np.array(chain), Bands(tuple(link.band for link in links)), np.array([link.scale for link in links]))

    def _shifts(self, values: Values) -> Float[Array, " n"]:
        """Offsets o with y - o nondecreasing: o_1 = 0, o_{k+1} = o_k - s_k."""
        low, high = self.links.interval(values)
        scales = jnp.asarray(self.scales, float)
        slack = jnp.where(scales > 0, high / scales, low / scales)
        return jnp.concatenate([jnp.zeros(1), -jnp.cumsum(slack)])

    def project(self, z: Float[Array, " n"], values: Values) -> Float[Array, " n"]:
        """Regress isotonically."""
        shifts = self._shifts(values)
        return isotonic.project(z - shifts) + shifts

    def gap(self, values: Values) -> Float[Array, ""]:
        """Such a cone is never empty."""
        return jnp.asarray(-jnp.inf)

    def explain(self) -> str:
        """Name the constraints behind the chain."""
        return f"monotone cone, {isotonic.METHOD}: {constraints_text(self.links.origins)}"


@dataclass(frozen=True)
class _Link:
    """``y[low] - y[high]`` bounded from above by a band with normal ``scale * (e_low - e_high)``."""

    high: int
    band: Band
    scale: float


def _links(bands: Sequence[Band]) -> dict[int, _Link] | None:
    """The link of each lower entry; None where a band is no such link, or two start at one entry."""
    following: dict[int, _Link] = {}
    for band in bands:
        data, support = band.normal.pattern.data, band.support
        if not band.constant or not band.one_sided or len(data) != 2 or abs(data.sum()) > 1e-12 * abs(data[0]):
            return None
        sign = np.sign(band.sides[0].factor)  # sides read factor * a'y + b <= 0
        low, high = (support[0], support[1]) if sign * data[0] > 0 else (support[1], support[0])
        if int(low) in following:
            return None
        following[int(low)] = _Link(int(high), band, float(np.abs(data[0]) * sign))
    return following

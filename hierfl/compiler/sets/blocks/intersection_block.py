"""An exactly projectable set cut by one ball or one band: a one-dimensional root search over its projections."""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

from hierfl.compiler.expressions.program import Array
from hierfl.compiler.sets.blocks.block import Product, checked
from hierfl.compiler.sets.blocks.image_block import ImageBlock
from hierfl.compiler.sets.members import Bands, names
from hierfl.compiler.sets.rows import Values
from hierfl.projections import box, intersection
from hierfl.projections.emptiness import beyond


@dataclass(frozen=True, eq=False)
class CutByBand:
    """The inner set with ``low <= a'y <= high``."""

    entries: np.ndarray
    inner: Product
    band: Bands
    exact: bool = True

    @property
    def kind(self) -> str:
        """The inner kinds and a band."""
        return f"{_kinds(self.inner)} with a band"

    @property
    def cost(self) -> str:
        """Some tens of inner projections."""
        return f"some tens of projections of {_costs(self.inner)}"

    def project(self, z: Array, values: Values) -> Array:
        """NaN where the root was not found."""
        a = self.band.dense(values, self.entries)[0]
        low, high = self.band.interval(values)
        return checked(*intersection.with_strip(lambda p: self.inner.project(p, values), z, a, low[0], high[0]))

    def gap(self, values: Values) -> Array:
        """The inner gap, or how far the band is out of the inner set's reach."""
        a = self.band.dense(values, self.entries)[0]
        low, high = self.band.interval(values)
        zero = jnp.zeros(len(self.entries), a.dtype)
        _, residual = intersection.with_strip(lambda p: self.inner.project(p, values), zero, a, low[0], high[0])
        return jnp.maximum(jnp.maximum(self.inner.gap(values), box.gap(low, high)), beyond(residual))

    def explain(self) -> str:
        """The inner blocks and the band."""
        return (
            f"{_explained(self.inner)}; cut by a band, by a root search for its multiplier: {names(self.band.origins)}"
        )


@dataclass(frozen=True, eq=False)
class CutByBall:
    """The inner set with a Euclidean ball in all of its entries."""

    entries: np.ndarray
    inner: Product
    ball: ImageBlock
    exact: bool = True

    @property
    def kind(self) -> str:
        """The inner kinds and a ball."""
        return f"{_kinds(self.inner)} with a ball"

    @property
    def cost(self) -> str:
        """Some tens of inner projections."""
        return f"some tens of projections of {_costs(self.inner)}"

    def _solve(self, z: Array, values: Values) -> tuple[Array, Array]:
        centre, radius = self.ball.centre_radius(values)
        centre = jnp.zeros_like(centre).at[np.searchsorted(self.entries, self.ball.entries)].set(centre)
        return intersection.with_ball(lambda p: self.inner.project(p, values), z, centre, radius)

    def project(self, z: Array, values: Values) -> Array:
        """NaN where the root was not found."""
        return checked(*self._solve(z, values))

    def gap(self, values: Values) -> Array:
        """The gaps of both, or how far they are apart."""
        _, residual = self._solve(self.ball.centre_radius(values)[0], values)
        return jnp.maximum(jnp.maximum(self.inner.gap(values), self.ball.gap(values)), beyond(residual))

    def explain(self) -> str:
        """The inner blocks and the ball."""
        return f"{_explained(self.inner)}; cut by a ball, by a root search for its multiplier: {names([self.ball.membership.origin])}"


def _kinds(inner: Product) -> str:
    return " and ".join(dict.fromkeys(block.kind for block in inner.blocks)) or "whole space"


def _costs(inner: Product) -> str:
    return ", ".join(dict.fromkeys(block.cost for block in inner.blocks)) or "O(n)"


def _explained(inner: Product) -> str:
    return "; ".join(block.explain() for block in inner.blocks)

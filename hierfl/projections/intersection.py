"""A set D with an exact projection, cut by a strip or by a ball: a search for the one multiplier of the cut.

Both return the point and a residual, the distance to the cut relative to 1 + ||z||, which is rounding unless the intersection
is empty. ``project`` may close over anything that is differentiated. Where the boundaries cross, the point is accurate to
rounding; where they only touch (a single point, no Slater point), the multiplier is infinite: see each function.

The projection is called at one place, in the loop of the search. Derivatives follow from its derivative at the search's end and
from the equation of the cut, which determines the change of the multiplier.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from hierfl.projections.emptiness import not_below_zero
from hierfl.projections.norm import norm
from hierfl.projections.projection import Projection
from hierfl.projections.root import Zero, found_zero

Point: TypeAlias = Float[Array, "*shape"]
Number: TypeAlias = Float[Array, ""]
Inner: TypeAlias = Callable[..., Point]  # a point and what the projection closed over -> the nearest point of D

GROWTH = 4.0


class Look(NamedTuple):
    """A point of D, what the cut measures there (<a, y>, or the distance to the centre), and what its derivative is made of."""

    point: Point
    measure: Number
    slope: list[Array]


@dataclass
class Nearest:
    """The projection on D as a search calls it; ``differentiated``, it gives its derivative too, as arrays that a loop may carry."""

    inner: Inner
    closed_over: list[Array]
    differentiated: bool = False

    def look(self, point: Point, measure: Callable[[Point], Number]) -> Look:
        """The nearest point of D, and what is to be known of it."""
        if not self.differentiated:
            nearest = self.inner(point, *self.closed_over)
            return Look(nearest, measure(nearest), [])
        nearest, linear = jax.linearize(self.inner, point, *self.closed_over)
        slope, self.structure = jax.tree.flatten(linear)
        return Look(nearest, measure(nearest), slope)

    def derivative(self, look: Look) -> Callable[..., Point]:
        """The derivative at a look: linear in a motion of the point, and of what the projection closed over."""
        linear: Callable[..., Point] = jax.tree.unflatten(self.structure, look.slope)
        return linear


def with_strip(project: Projection, z: Point, a: Point, low: Number, high: Number) -> tuple[Point, Number]:
    """The projection of ``z`` on {y in D : low <= <a, y> <= high}, whose bounds may be infinite or equal.

    y(t) = project(z - t a) and <a, y(t)> is nonincreasing (Bauschke and Combettes, 2017, section 29.1). Where a hyperplane
    touches a round D, <a, y(t)> meets it as 1 / t^2: the residual is rounding eps, the point sqrt(eps) accurate at best.
    """
    size = jax.lax.stop_gradient(norm(a))
    size = jnp.where(size > 0, size, 1.0)
    inner, closed_over = jax.closure_convert(project, z)
    a, low, high = a / size, low / size, high / size
    p, measure = _cut_by_strip(inner, z, a, low, high, closed_over)
    return p, _relative(jnp.maximum(measure - high, low - measure), z)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _cut_by_strip(
    inner: Inner, z: Point, a: Point, low: Number, high: Number, closed_over: list[Array]
) -> tuple[Point, Number]:
    look: Look = _strip_search(Nearest(inner, closed_over), z, a, low, high).seen
    return look.point, look.measure


@_cut_by_strip.defjvp
def _cut_by_strip_jvp(inner: Inner, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """<a, p> stays at the bound: dp = D'(dz - t da) - D'a dt, which the change of the bound determines."""
    z, a, low, high, closed_over = primals
    dz, da, dlow, dhigh, moved = tangents
    nearest = Nearest(inner, closed_over, differentiated=True)
    t, _, end = _strip_search(nearest, z, a, low, high)
    derivative = nearest.derivative(end)
    without, along = derivative(dz - t * da, *moved), derivative(a, *map(jnp.zeros_like, closed_over))
    turned, binds = jnp.sum(da * end.point), (t != 0) | (low == high)
    change = _quotient(turned + jnp.sum(a * without) - jnp.where(t < 0, dlow, dhigh), jnp.sum(a * along))
    dp = without - jnp.where(binds, change, 0.0) * along
    return (end.point, end.measure), (dp, turned + jnp.sum(a * dp))


def _strip_search(nearest: Nearest, z: Point, a: Point, low: Number, high: Number) -> Zero:
    """The t at which <a, y(t)> comes to the strip: positive if it is above at 0, negative if it is below."""

    def look(t: Number) -> Look:
        return nearest.look(z - t * a, lambda y: jnp.sum(a * y))

    def beyond(now: Look, at_first: Look) -> Number:
        first = at_first.measure
        target = jnp.where((first > high) | (low == high), high, jnp.where(first < low, low, first))
        rounding = 4 * jnp.finfo(z.dtype).eps * (jnp.sum(jnp.abs(a * now.point)) + jnp.abs(target))
        excess = now.measure - target
        return jnp.where(jnp.abs(excess) <= rounding, 0.0, excess)

    # y(t) moves by at most t: the root is not nearer than the excess
    return found_zero(look, beyond, jnp.zeros((), z.dtype), lambda at_first: beyond(at_first, at_first), GROWTH)


def with_ball(project: Projection, z: Point, centre: Point, radius: Number) -> tuple[Point, Number]:
    """The projection of ``z`` on {y in D : ||y - centre|| <= radius}, radius 0 and infinity included.

    y(s) = project(centre + s (z - centre)) for s = 1 / (1 + multiplier) in [0, 1], ||y(s) - centre|| nondecreasing. s = 0 is
    the point of D nearest to the centre, so that a ball which only touches D is met there; near it the point is good to
    sqrt(eps) of its scale.
    """
    inner, closed_over = jax.closure_convert(project, z)
    p, distance = _cut_by_ball(inner, z, centre, not_below_zero(radius), closed_over)
    return p, _relative(distance - radius, z)


@partial(jax.custom_jvp, nondiff_argnums=(0,))
def _cut_by_ball(
    inner: Inner, z: Point, centre: Point, radius: Number, closed_over: list[Array]
) -> tuple[Point, Number]:
    look: Look = _ball_search(Nearest(inner, closed_over), z, centre, radius).seen
    return look.point, look.measure


@_cut_by_ball.defjvp
def _cut_by_ball_jvp(inner: Inner, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    """||p - c|| stays r: dp = D'(s dz + (1 - s) dc) + D'(z - c) ds, where <p - c, dp - dc> = r dr."""
    z, centre, radius, closed_over = primals
    dz, dcentre, dradius, moved = tangents
    nearest = Nearest(inner, closed_over, differentiated=True)
    s, _, end = _ball_search(nearest, z, centre, radius)
    derivative, arm = nearest.derivative(end), end.point - centre
    without = derivative(s * dz + (1 - s) * dcentre, *moved)
    along = derivative(z - centre, *map(jnp.zeros_like, closed_over))
    lacking = radius * dradius - jnp.sum(arm * (without - dcentre))
    dp = without + jnp.where(s < 1, _quotient(lacking, jnp.sum(arm * along)), 0.0) * along
    return (end.point, end.measure), (dp, _quotient(jnp.sum(arm * (dp - dcentre)), end.measure))


def _ball_search(nearest: Nearest, z: Point, centre: Point, radius: Number) -> Zero:
    """The s at which y(s) comes to the ball, 1 if y(1) is inside."""

    def look(s: Number) -> Look:
        return nearest.look(centre + s * (z - centre), lambda y: norm(y - centre))

    def lacking(now: Look, at_first: Look) -> Number:
        return jnp.where(at_first.measure <= radius, 0.0, radius - now.measure)

    return found_zero(look, lacking, jnp.ones((), z.dtype), lambda _: jnp.zeros((), z.dtype))


def _quotient(above: Number, below: Number) -> Number:
    """above / below, and 0 where that is undetermined."""
    return jnp.where(below != 0, above / jnp.where(below != 0, below, 1.0), 0.0)


def _relative(violation: Number, z: Point) -> Number:
    """The violation of a cut as a residual; it carries no derivatives, which are for the point."""
    return jax.lax.stop_gradient(jnp.maximum(violation, 0.0) / (1.0 + norm(z)))

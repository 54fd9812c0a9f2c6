"""A set D with an exact projection, cut by a strip or by a ball: a root search for the one multiplier of the cut.

Both return the point and a residual, the distance to the cut relative to 1 + ||z||, which is rounding unless the intersection
is empty. ``project`` may close over anything that is differentiated. Where the boundaries cross, the point is accurate to
rounding; where they only touch (a single point, no Slater point), the multiplier is infinite: see each function.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from hierfl.projections.norm import norm
from hierfl.projections.projection import Projection
from hierfl.projections.root import bracket, decreasing_root


def with_strip(
    project: Projection,
    z: Float[Array, "*shape"],
    a: Float[Array, "*shape"],
    low: Float[Array, ""],
    high: Float[Array, ""],
) -> tuple[Float[Array, "*shape"], Float[Array, ""]]:
    """The projection of ``z`` on {y in D : low <= <a, y> <= high}, whose bounds may be infinite or equal.

    y(t) = project(z - t a) and <a, y(t)> is nonincreasing (Bauschke and Combettes, 2017, section 29.1). Where a hyperplane
    touches a round D, <a, y(t)> meets it as 1 / t^2: the residual is rounding eps, the point sqrt(eps) accurate at best.
    """
    size = jax.lax.stop_gradient(norm(a))
    size = jnp.where(size > 0, size, 1.0)
    a, low, high = a / size, low / size, high / size
    first = project(z)
    product = jnp.sum(a * first)
    target = jnp.where((product > high) | (low == high), high, jnp.where(product < low, low, product))
    sign = jnp.where(product < target, -1.0, 1.0)

    def excess(t: Float[Array, ""]) -> Float[Array, ""]:
        return sign * (jnp.sum(a * project(z - t * (sign * a))) - target)

    def beyond_rounding(t: Float[Array, ""]) -> Float[Array, ""]:
        return excess(t) - rounding

    apart = jax.lax.stop_gradient(jnp.abs(product - target))
    rounding = 4 * jnp.finfo(z.dtype).eps * jax.lax.stop_gradient(jnp.sum(jnp.abs(a * first)) + jnp.abs(target))
    # y(t) moves by at most t: the root is not below `apart`
    _, end = bracket(beyond_rounding, jnp.where(apart > 0, apart, 1.0))
    t = decreasing_root(excess, jnp.where(apart > 0, apart * (1 - 1e-3), 0.0), jnp.where(apart > 0, end, 0.0))
    cut = (product > high) | (product < low) | (low == high)
    p = jnp.where(cut, project(z - jnp.where(cut, t, 0.0) * (sign * a)), first)
    return p, _relative(jnp.maximum(jnp.sum(a * p) - high, low - jnp.sum(a * p)), z)


def with_ball(
    project: Projection, z: Float[Array, "*shape"], centre: Float[Array, "*shape"], radius: Float[Array, ""]
) -> tuple[Float[Array, "*shape"], Float[Array, ""]]:
    """The projection of ``z`` on {y in D : ||y - centre|| <= radius}, radius 0 and infinity included.

    y(s) = project(centre + s (z - centre)) for s = 1 / (1 + multiplier) in [0, 1], ||y(s) - centre|| nondecreasing. s = 0 is
    the point of D nearest to the centre, so that a ball which only touches D is met there; near it the point is good to
    sqrt(eps) of its scale.
    """
    radius = jnp.maximum(radius, 0.0)
    first = project(z)
    outside = norm(first - centre) > radius
    reach = jnp.where(outside, radius, jax.lax.stop_gradient(norm(first - centre)))

    def at(s: Float[Array, ""]) -> Float[Array, "*shape"]:
        return project(centre + s * (z - centre))

    s = decreasing_root(lambda s: reach - norm(at(s) - centre), jnp.zeros_like(reach), jnp.ones_like(reach))
    p = jnp.where(outside, at(s), first)
    return p, _relative(norm(p - centre) - radius, z)


def _relative(violation: Float[Array, ""], z: Float[Array, "*shape"]) -> Float[Array, ""]:
    """The violation of a cut as a residual; it carries no derivatives, which are for the point."""
    return jax.lax.stop_gradient(jnp.maximum(violation, 0.0) / (1.0 + norm(z)))

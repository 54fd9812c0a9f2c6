"""A box cut by one strip, {y : lower <= y <= upper, low <= a'y <= high}: simplices, budgets, a box with a hyperplane.

The projection is clip(z - t a) with the multiplier t of the strip, a root of the piecewise linear monotone function
a' clip(z - t a) - target (the continuous quadratic knapsack problem). Newton's method with a bracket finds the piece in a few
steps, each O(n), where sorting the breakpoints would cost twenty times as much; one more Newton step on that piece, in terms
of y, makes the point exact and carries the derivatives.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, Int8

from hierfl.projections import box
from hierfl.projections.emptiness import beyond

LIMIT = 300

Stages: TypeAlias = Int8[Array, " n"]  # of the entries along a line: 0 not yet moving, 1 moving, 2 at its end


def project(
    z: Float[Array, " n"],
    a: Float[Array, " n"],
    low: Float[Array, ""],
    high: Float[Array, ""],
    lower: Float[Array, " n"],
    upper: Float[Array, " n"],
) -> Float[Array, " n"]:
    """The nearest point to ``z`` for a normal ``a``, ``low <= high`` and bounds, any of them infinite.

    Newton's method for the knapsack problem: Cominetti, Mascarenhas and Silva (2014). ``low == high`` is a hyperplane. If the
    set is empty (see :func:`gap`) the result is the point of the box nearest to the strip, or a point between crossed bounds.
    """
    size = jax.lax.stop_gradient(jnp.max(jnp.abs(a), initial=0.0))
    size = jnp.where(size > 0, size, 1.0)
    a, low, high = a / size, low / size, high / size
    boxed = box.project(z, lower, upper)
    product = jnp.sum(a * boxed)
    # the strip's bound in play, chosen without minima: their derivatives are split where bounds coincide
    target = jnp.where((product > high) | (low == high), high, jnp.where(product < low, low, product))
    outside = (product > high) | (product < low) | (low == high)

    sign = jnp.where(product < target, -1.0, 1.0)
    normal = sign * a
    line = ClippedLine(*map(jax.lax.stop_gradient, (z, normal, lower, upper)))
    t, free = line.search(jax.lax.stop_gradient(sign * target))

    p = box.project(z - t * normal, lower, upper)
    square = jnp.sum(jnp.where(free, jax.lax.stop_gradient(a * a), 0.0))
    step = (jnp.sum(a * p) - target) / jnp.where(square > 0, square, 1.0)
    corrected = box.project(p - jnp.where(free & (square > 0), step, 0.0) * a, lower, upper)
    return jnp.where(outside, corrected, boxed)


def gap(
    a: Float[Array, " n"],
    low: Float[Array, ""],
    high: Float[Array, ""],
    lower: Float[Array, " n"],
    upper: Float[Array, " n"],
) -> Float[Array, ""]:
    """The amount by which bounds cross, or the values of a'y on the box miss the strip, beyond rounding: positive when empty."""
    one, other = a * jnp.where(a == 0, 0.0, lower), a * jnp.where(a == 0, 0.0, upper)
    least, most = jnp.sum(jnp.minimum(one, other)), jnp.sum(jnp.maximum(one, other))
    scale = 10 * a.shape[0] * float(jnp.finfo(a.dtype).eps)
    missed = jnp.maximum(_beyond(least, high, scale), _beyond(low, most, scale))
    return jnp.maximum(missed, jnp.maximum(box.gap(low, high), box.gap(lower, upper)))


class ClippedLine(NamedTuple):
    """The path t -> clip(z - t normal, lower, upper), t >= 0, along which normal'y does not increase."""

    z: Float[Array, " n"]
    normal: Float[Array, " n"]
    lower: Float[Array, " n"]
    upper: Float[Array, " n"]

    def search(self, target: Float[Array, ""], share: float = 0.0) -> tuple[Float[Array, ""], Bool[Array, " n"]]:
        """The t with normal'y(t) = target, up to its rounding, and which entries move there.

        Newton's method from t = 0 where nothing brackets the root from above, inside the bracket afterwards, with a bisection
        every third step against cycles; where no entry moves, on to the next breakpoint. Without a root t is the last one.
        The search may end where the difference has fallen to ``share`` of that at t = 0.
        """
        z, normal, lower, upper = self
        divisor = jnp.where(normal == 0, 1.0, normal)
        first, last = (z - lower) / divisor, (z - upper) / divisor
        start = jnp.where(normal == 0, jnp.inf, jnp.minimum(first, last))  # where an entry begins to move, and ends
        end = jnp.where(normal == 0, jnp.inf, jnp.maximum(first, last))
        square = normal * normal
        rounding = 4 * jnp.finfo(z.dtype).eps

        def at(t: Float[Array, ""]) -> tuple[Float[Array, ""], Stages]:
            """The difference normal'y(t) - target, and each entry's stage from t towards the root."""
            terms = normal * box.project(z - t * normal, lower, upper)
            excess = jnp.sum(terms) - target
            excess = jnp.where(jnp.abs(excess) <= rounding * jnp.sum(jnp.abs(terms)), 0.0, excess)
            right, left = (start <= t).astype(jnp.int8) + (end <= t), (start < t).astype(jnp.int8) + (end < t)
            return excess, jnp.where(excess > 0, right, left)

        def unfinished(search: _LineSearch) -> Bool[Array, ""]:
            return ~search.done & (search.steps < LIMIT)

        def advance(search: _LineSearch) -> _LineSearch:
            t, left, right, piece, enough, steps, _ = search
            excess, stages = at(t)
            enough = jnp.where(steps == 0, share * jnp.abs(excess), enough)
            left, right = jnp.where(excess > 0, t, left), jnp.where(excess > 0, right, t)
            slope = jnp.sum(jnp.where(stages == 1, square, 0.0))
            side = jnp.where(excess > 0, 1.0, -1.0)
            ahead = jnp.where(excess > 0, start, -end)
            breakpoint_ = side * jnp.min(jnp.where(ahead > side * t, ahead, jnp.inf), initial=jnp.inf)
            new = jnp.where(slope > 0, t + excess / jnp.where(slope > 0, slope, 1.0), breakpoint_)
            # a step of Newton's from one piece to the same piece was exact
            done = (jnp.abs(excess) <= enough) | (new == t) | ~jnp.isfinite(new) | jnp.all(stages == piece)
            cut = jnp.isfinite(right) & ((new <= left) | (new >= right) | (steps % 3 == 2))
            new = jnp.where(done, t, jnp.where(cut, 0.5 * (left + right), new))
            piece = jnp.where(cut | (slope == 0), jnp.int8(-1), stages)
            return _LineSearch(new, left, right, piece, enough, steps + 1, done)

        zero, none = jnp.zeros((), z.dtype), jnp.full(square.shape, -1, jnp.int8)
        infinite = jnp.full_like(zero, jnp.inf)
        begin = _LineSearch(zero, zero, infinite, none, zero, jnp.zeros((), int), jnp.zeros((), bool))
        t = jax.lax.while_loop(unfinished, advance, begin).t
        return t, at(t)[1] == 1


class _LineSearch(NamedTuple):
    """Where a search along a clipped line stands: the piece of its last Newton step, and the difference that ends it."""

    t: Float[Array, ""]
    left: Float[Array, ""]
    right: Float[Array, ""]
    piece: Stages
    enough: Float[Array, ""]
    steps: Int[Array, ""]
    done: Bool[Array, ""]


def _beyond(larger: Float[Array, ""], smaller: Float[Array, ""], scale: float) -> Float[Array, ""]:
    """The difference larger - smaller, not positive when that is rounding."""
    excess = larger - smaller
    rounding = scale * (jnp.abs(larger) + jnp.abs(smaller))
    excess = jnp.where(excess > rounding, excess, jnp.minimum(excess, 0.0))
    return beyond(excess, jnp.maximum(jnp.abs(larger), jnp.abs(smaller)))

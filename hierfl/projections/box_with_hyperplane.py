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

METHOD, COST = "by Newton's method on the multiplier", "O(n) a step of Newton's method, few steps"

LIMIT = 300
ROUNDING = 16  # units of it within which an entry is at its bound

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
    line = ClippedLine(*map(jax.lax.stop_gradient, (z, sign * a, lower, upper)))
    end = line.search(jax.lax.stop_gradient(sign * target))
    t = sign * end.t

    # the value meets the target exactly, on the piece where the search has ended; entries at a bound up to rounding move with it
    raw = z - t * a
    rounding = ROUNDING * jnp.finfo(z.dtype).eps * (jnp.abs(z) + jnp.abs(t * a))
    held, moving = box.held(raw, lower, upper, jax.lax.stop_gradient(rounding))
    moving = _on_plane(moving, a, target, ~held)
    value = _on_plane(box.project(raw, lower, upper), a, target, end.stages == 1)
    value = jax.lax.stop_gradient(box.project(value, lower, upper)) + (moving - jax.lax.stop_gradient(moving))
    return jnp.where(outside, value, boxed)


def _on_plane(
    y: Float[Array, " n"], a: Float[Array, " n"], target: Float[Array, ""], free: Bool[Array, " n"]
) -> Float[Array, " n"]:
    """The nearest point to y with a'y = target when only free entries move; y itself if none do."""
    face = jnp.where(free, jax.lax.stop_gradient(a), 0.0)
    square = jnp.sum(face * face)
    missed = jnp.sum(a * y) - target
    return y - jnp.where(square > 0, missed / jnp.where(square > 0, square, 1.0), 0.0) * face


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

    def search(self, target: Float[Array, ""]) -> LineSearch:
        """The t with normal'y(t) = target, up to its rounding, and each entry's stage there.

        Newton's method from t = 0 where nothing brackets the root from above, inside the bracket afterwards, with a bisection
        every third step against cycles; where no entry moves, on to the next breakpoint. Without a root t is the last one.
        """
        z, normal, lower, upper = self
        level = normal == 0
        divisor = jnp.where(level, 1.0, normal)
        first, last = (z - lower) / divisor, (z - upper) / divisor
        start = jnp.where(level, jnp.inf, jnp.minimum(first, last))  # where an entry begins to move, and ends
        end = jnp.where(level, jnp.inf, jnp.maximum(first, last))
        square = normal * normal
        rounding = 4 * jnp.finfo(z.dtype).eps

        def unfinished(search: LineSearch) -> Bool[Array, ""]:
            return ~search.done & (search.steps < LIMIT)

        def advance(search: LineSearch) -> LineSearch:
            t, _, left, right, piece, steps, _ = search
            terms = normal * box.project(z - t * normal, lower, upper)
            excess = jnp.sum(terms) - target
            excess = jnp.where(jnp.abs(excess) <= rounding * jnp.sum(jnp.abs(terms)), 0.0, excess)
            above = excess > 0
            # each entry's stage from t towards the root: a breakpoint at t is behind on the left, ahead on the right
            begun, ended = (jnp.where(above, ends <= t, ends < t) for ends in (start, end))
            stages = begun.astype(jnp.int8) + ended
            left, right = jnp.where(above, t, left), jnp.where(above, right, t)
            slope = jnp.sum(jnp.where(stages == 1, square, 0.0))
            side = jnp.where(above, 1.0, -1.0)
            ahead = jnp.where(above, start, -end)
            breakpoint_ = side * jnp.min(jnp.where(ahead > side * t, ahead, jnp.inf), initial=jnp.inf)
            new = jnp.where(slope > 0, t + excess / jnp.where(slope > 0, slope, 1.0), breakpoint_)
            # a step of Newton's from one piece to the same piece was exact
            done = (excess == 0) | (new == t) | ~jnp.isfinite(new) | jnp.all(stages == piece)
            cut = jnp.isfinite(right) & ((new <= left) | (new >= right) | (steps % 3 == 2))
            new = jnp.where(done, t, jnp.where(cut, 0.5 * (left + right), new))
            piece = jnp.where(cut | (slope == 0), jnp.int8(-1), stages)
            return LineSearch(new, stages, left, right, piece, steps + 1, done)

        zero, none = jnp.zeros((), z.dtype), jnp.full(square.shape, -1, jnp.int8)
        infinite = jnp.full_like(zero, jnp.inf)
        begin = LineSearch(zero, none, zero, infinite, none, jnp.zeros((), int), jnp.zeros((), bool))
        return jax.lax.while_loop(unfinished, advance, begin)


class LineSearch(NamedTuple):
    """Where a search along a clipped line stands, the stages at its last look, and the piece of its last Newton step."""

    t: Float[Array, ""]
    stages: Stages
    left: Float[Array, ""]
    right: Float[Array, ""]
    piece: Stages
    steps: Int[Array, ""]
    done: Bool[Array, ""]


def _beyond(larger: Float[Array, ""], smaller: Float[Array, ""], scale: float) -> Float[Array, ""]:
    """The difference larger - smaller, not positive when that is rounding."""
    excess = larger - smaller
    rounding = scale * (jnp.abs(larger) + jnp.abs(smaller))
    excess = jnp.where(excess > rounding, excess, jnp.minimum(excess, 0.0))
    return beyond(excess, jnp.maximum(jnp.abs(larger), jnp.abs(smaller)))

"""The zero of a monotone function of one number, by a search that calls the function at one place of the program.

Bracketing with inverse quadratic interpolation, which needs no derivative and never leaves the bracket, so that kinks, plateaus
and jumps of the function cost bisections but cannot break it (Chandrupatla, 1997, "A new hybrid quadratic/bisection algorithm
for finding the zero of a nonlinear function"). The ends are looked at in the loop as well: the function may be a long program.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from hierfl.projections.one_of_two import one_of_two

LIMIT = 250  # bisections alone need at most 210 in double precision
GROWTHS = 30

T = TypeVar("T")
Number: TypeAlias = Float[Array, ""]
Scalar: TypeAlias = Callable[[Number], Number]  # a function of one number


def decreasing_root(g: Scalar, low: Number, high: Number) -> Number:
    """The t in [low, high] with g(t) = 0 to machine precision, for a continuous nonincreasing scalar ``g`` of a scalar.

    Without a change of sign it is the end where |g| is smaller. Derivatives with respect to everything that ``g`` closes over
    follow from the implicit function theorem; where g' vanishes they are 0. None go to ``low`` and ``high``.
    """
    low, high = jnp.broadcast_arrays(jnp.asarray(low), jnp.asarray(high))

    def solve(function: Scalar, _: Number) -> Number:
        return found_zero(function, lambda value, _: value, low, lambda _: high).t

    root: Number = jax.lax.custom_root(g, low, solve, _divide)
    return root


def _divide(linear: Scalar, right: Number) -> Number:
    """Solve slope * t = right, with 0 where the slope vanishes."""
    slope = linear(jnp.ones_like(right))
    return jnp.where(slope != 0, right / jnp.where(slope != 0, slope, 1.0), 0.0)


class Zero(NamedTuple):
    """The best t that a search has met, with |value| there and what was seen."""

    t: Number
    size: Number
    seen: Any


def found_zero(
    look: Callable[[Number], T],
    value: Callable[[T, T], Number],
    first: Number,
    second: Callable[[T], Number],
    growth: float = 1.0,
) -> Zero:
    """Where the ``value`` of what a ``look`` at t shows vanishes, to machine precision; no derivatives.

    The value, monotone in t, may depend on what was seen at ``first`` as well, its second argument. ``second`` tells from that
    where to look next; if the sign does not change there, t is multiplied by ``growth`` until it does, up to 30 times. Without
    a change of sign t is where the value is nearest to 0.
    """
    shapes = jax.eval_shape(look, first)
    blank: T = jax.tree.map(lambda shape: jnp.zeros(shape.shape, shape.dtype), shapes)

    def unfinished(search: _Search) -> Bool[Array, ""]:
        return ~search.done & (search.looks < LIMIT)

    def advance(search: _Search) -> _Search:
        t, old, other, third, bracketed, largest, best, origin, looks, _ = search
        seen = look(t)
        origin = one_of_two(looks == 0, seen, origin)
        new = _End(t, value(seen, origin))
        size = jnp.abs(new.value)
        best = one_of_two(~(size > best.size), Zero(t, size, seen), best)

        same = (jnp.sign(new.value) == jnp.sign(old.value)) | (looks == 0)
        third, other = one_of_two(same, old, other), one_of_two(same, other, old)
        largest = jnp.maximum(largest, jnp.abs(t))
        share, width = _share(new, other, third, bracketed, largest)
        bracketed = bracketed | ~same
        further = jnp.where(looks == 0, second(origin), growth * t)
        ahead = jnp.where(bracketed, t + share * (other.t - t), further)
        spent = ~bracketed & (looks > 0) & ((further == t) | (looks > GROWTHS))
        done = ~(size > 0) | spent | (bracketed & (width >= 0.5))
        return _Search(ahead, new, other, third, bracketed, largest, best, origin, looks + 1, done)

    infinite, zero = jnp.full_like(first, jnp.inf), jnp.zeros_like(first)
    end, no = _End(first, infinite), jnp.zeros((), bool)
    start = _Search(first, end, end, end, no, zero, Zero(first, infinite, blank), blank, jnp.zeros((), int), no)
    return jax.lax.while_loop(unfinished, advance, start).best


class _End(NamedTuple):
    """A t that was looked at, and the value there."""

    t: Number
    value: Number


class _Search(NamedTuple):
    """Where a search stands: the next t, the last one, the other end of the bracket, the end before it, the largest |t| so far."""

    ahead: Number
    last: _End
    other: _End
    third: _End
    bracketed: Bool[Array, ""]
    largest: Number
    best: Zero
    origin: Any
    looks: Int[Array, ""]
    done: Bool[Array, ""]


def _share(one: _End, two: _End, three: _End, trusted: Bool[Array, ""], largest: Number) -> tuple[Number, Number]:
    """(how far from ``one`` to ``two`` to look next, what of that is rounding); bisection unless interpolation is ``trusted``."""
    (x1, f1), (x2, f2), (x3, f3) = one, two, three
    eps = jnp.finfo(x1.dtype).eps
    tiny = eps**4 * largest  # a zero at 0 cannot be approached to a relative accuracy
    best = jnp.where(jnp.abs(f1) < jnp.abs(f2), x1, x2)
    width = (2 * eps * jnp.abs(best) + tiny) / jnp.abs(jnp.where(x1 == x2, tiny, x2 - x1))
    xi, phi = (x1 - x2) / (x3 - x2), (f1 - f2) / (f3 - f2)
    trusted = trusted & (phi * phi < xi) & ((1 - phi) ** 2 < 1 - xi)
    quadratic = f1 / (f2 - f1) * f3 / (f2 - f3) + (x3 - x1) / (x2 - x1) * f1 / (f3 - f1) * f2 / (f3 - f2)
    margin = jnp.minimum(width, 0.5)
    return jnp.clip(jnp.where(trusted, quadratic, 0.5), margin, 1 - margin), width

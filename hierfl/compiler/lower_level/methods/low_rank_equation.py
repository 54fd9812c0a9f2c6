"""Lower levels with J = diag(d) + U V' over a box: an equation in theta = V'y, solved by a semismooth Newton method.

With theta = V'y the problem on a box separates, y_j = clip(-(q_j + U_j theta) / d_j), and what remains is an equation in
theta: O(n r^2) a step, never n x n.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from hierfl.compiler.lower_level.low_rank_map import LowRank

LIMIT = 200


class Response(NamedTuple):
    """y(theta) = clip(-(q + U theta) / d) on a box, and the residual theta - V'y(theta); a monotone J makes its zero unique."""

    parts: LowRank
    inverse: Array  # of d
    steepness: Array
    q: Array
    lower: Array
    upper: Array

    def unbounded(self, theta: Array) -> Array:
        """y(theta) without the box."""
        return -(self.q + times(self.parts.left, theta)) * self.inverse

    def residual(self, theta: Array) -> tuple[Array, Array]:
        """theta - V'y(theta), and what rounding alone makes of its norm."""
        reached = across(self.parts.right, jnp.clip(self.unbounded(theta), self.lower, self.upper))
        size = jnp.linalg.norm(theta) + jnp.linalg.norm(reached)
        rounded = 8 * self.steepness * jnp.linalg.norm(theta)
        units = (8 + math.sqrt(self.q.size)) * size + rounded  # reached is a sum of n terms
        return theta - reached, jnp.finfo(theta.dtype).eps * units

    def potential(self, theta: Array, metric: Array) -> tuple[Array, Array]:
        """0.5 theta' S^-1 theta - min_y (0.5 y'Dy + (q + U theta)'y), convex in theta, and what rounding makes of it."""
        y = jnp.clip(self.unbounded(theta), self.lower, self.upper)
        linear, square = (self.q + self.parts.left @ theta) * y, 0.5 * self.parts.diagonal * y * y
        outer = 0.5 * theta @ (metric @ theta)
        size = jnp.abs(outer) + jnp.sum(jnp.abs(linear) + square)
        return outer - jnp.sum(linear + square), 8 * jnp.finfo(theta.dtype).eps * size

    def newton_step(self, theta: Array, value: Array) -> Array:
        """The step that the slope of the residual at theta asks for."""
        _, u, v = self.parts
        raw = self.unbounded(theta)
        free = jnp.where((raw > self.lower) & (raw < self.upper), self.inverse, 0.0)
        slope = jnp.eye(theta.size, dtype=theta.dtype) + across(v, free[:, None] * u)
        return jnp.linalg.solve(slope, value) if theta.size > 1 else value / slope[0]


def solve_box(
    parts: LowRank,
    q: Float[Array, " n"],
    lower: Float[Array, " n"],
    upper: Float[Array, " n"],
    start: Float[Array, " r"],
) -> tuple[Float[Array, " n"], Array]:
    """(y, steps): 0 in q + J y + N(y) over a box, by a semismooth Newton method in theta = V'y from a start (r,).

    A rounding of theta moves V'y by sum |u v / d| of it; hence a last step in y itself. The caller's certificate says how well
    the zero was met.
    """
    answer = Response(parts, 1.0 / parts.diagonal, parts.steepness(), q, lower, upper)
    theta, value, count = (_bracketed if start.size == 1 else _damped)(answer, start)
    # a last correction, too small for theta's own digits but not for those of q + u theta; anything larger comes of a singular J
    last = answer.newton_step(theta, value)
    small = jnp.linalg.norm(last) <= 1e3 * jnp.finfo(theta.dtype).eps * jnp.linalg.norm(theta)
    correction = times(parts.left, jnp.where(small, last, 0.0)) * answer.inverse
    return jnp.clip(answer.unbounded(theta) + correction, lower, upper), count


def _bracketed(answer: Response, start: Array) -> tuple[Array, Array, Array]:
    """(theta, residual, steps) for one unknown: Newton's steps within a bracket, which every third step halves.

    The bracket and the steps are one array, since every array that a loop begins with costs as much as a sum over y.
    """

    def unfinished(state: tuple[Array, ...]) -> Array:
        *_, known, done = state
        return ~done & (known[2] < LIMIT)

    def advance(state: tuple[Array, ...]) -> tuple[Array, ...]:
        theta, value, known, _ = state
        low, high = jnp.where(value < 0, theta, known[0]), jnp.where(value > 0, theta, known[1])
        full, middle = theta - answer.newton_step(theta, value), 0.5 * (low + high)
        inside = (full > low) & (full < high) & (known[2] % 3 != 2)
        new = jnp.where(inside | ~jnp.isfinite(middle), full, middle)
        new_value, rounding = answer.residual(new)
        done = ~(jnp.linalg.norm(new_value) > rounding) | jnp.any((new == low) | (new == high))  # NaN ends it as well
        return new, new_value, jnp.concatenate([low, high, known[2:] + 1]), done

    value, rounding = answer.residual(start)
    known, done = jnp.array([-jnp.inf, jnp.inf, 0.0], start.dtype), ~(jnp.linalg.norm(value) > rounding)
    state: tuple[Array, ...] = (start, value, known, done)
    theta, value, known, _ = jax.lax.while_loop(unfinished, advance, state)
    return theta, value, known[2].astype(int)


def _damped(answer: Response, start: Array) -> tuple[Array, Array, Array]:
    """(theta, residual, steps) for several unknowns: Newton's steps, halved until they descend.

    Where U V' = U S U' with S positive definite the residual is S times the gradient of a convex potential, which shrinks along
    Newton's steps whatever the start; the residual's norm need not, where bounds of y come and go. Without such an S it is the
    residual that has to shrink.
    """
    metric = _metric(answer.parts)
    has_potential = jnp.isfinite(metric).all()

    def look(theta: Array) -> _Look:
        value, rounding = answer.residual(theta)
        norm = jnp.linalg.norm(value)
        potential, blur = answer.potential(theta, metric)
        merit, blur = jnp.where(has_potential, potential, norm), jnp.where(has_potential, blur, 0.0)
        return _Look(theta, value, norm <= rounding, merit, blur)

    def unfinished(state: tuple[_Look, Array, Array]) -> Array:
        _, count, done = state
        return ~done & (count < LIMIT)

    def advance(state: tuple[_Look, Array, Array]) -> tuple[_Look, Array, Array]:
        old, count, _ = state
        step = answer.newton_step(old.theta, old.value)
        slope = jnp.where(has_potential, step @ (metric @ old.value), old.merit)  # of the merit along the step

        def too_long(trial: tuple[_Look, Array]) -> Array:
            new, share = trial
            return ~(new.merit <= old.merit - 1e-4 * share * slope + new.blur) & (share > 1e-9)

        def halve(trial: tuple[_Look, Array]) -> tuple[_Look, Array]:
            share = 0.5 * trial[1]
            return look(old.theta - share * step), share

        new, _ = jax.lax.while_loop(too_long, halve, (look(old.theta - step), jnp.ones((), start.dtype)))
        closer = jnp.linalg.norm(new.value) < jnp.linalg.norm(old.value)
        better = closer | (new.merit < old.merit - new.blur)
        kept = jax.tree.map(lambda a, b: jnp.where(better, a, b), new, old)
        return kept, count + 1, new.done | ~better

    first = look(start)
    last, count, _ = jax.lax.while_loop(unfinished, advance, (first, jnp.zeros((), int), first.done))
    return last.theta, last.value, count


class _Look(NamedTuple):
    """What is known at a theta; ``merit`` is what steps have to shrink, ``blur`` its rounding."""

    theta: Array
    value: Array
    done: Array
    merit: Array
    blur: Array


def _metric(parts: LowRank) -> Array:
    """The inverse of S in U V' = U S U', NaN where there is no positive definite one."""
    gram, across_both = parts.left.T @ parts.left, parts.left.T @ parts.right
    shape = jnp.linalg.solve(gram, across_both)
    shape = 0.5 * (shape + shape.T)
    root = jnp.linalg.cholesky(shape)  # NaN unless positive definite
    missed = jnp.linalg.norm(parts.left @ shape - parts.right)
    fits = missed <= jnp.cbrt(jnp.finfo(shape.dtype).eps) * jnp.linalg.norm(parts.right)
    return jnp.where(fits & jnp.isfinite(root).all(), jnp.linalg.inv(shape), jnp.nan)


def times(tall: Array, theta: Array) -> Array:
    """tall @ theta; for one column a product that fuses with what surrounds it."""
    return tall[:, 0] * theta[0] if tall.shape[1] == 1 else tall @ theta


def across(tall: Array, values: Array) -> Array:
    """The product tall' @ values."""
    if tall.shape[1] > 1:
        return tall.T @ values
    column = tall[:, 0] if values.ndim == 1 else tall
    return jnp.sum(column * values, axis=0, keepdims=True)

"""A box with a few interval rows, {y : lower <= y <= upper, low <= A y <= high}, by a semismooth Newton method on the dual.

The multipliers m of the k rows give y = clip(z - A'm), and the dual is piecewise quadratic once each row has a slack s = A y in
[low, high] with a proximal term: then y and s are one projection on a box, with the equations A y - s = 0. Newton's method
with an exact search along each direction (a strip's multiplier) solves it, the slacks' proximal point follows
(Li, Sun and Toh, 2018, do the same for the lasso). Rows may depend on each other, vertices may be degenerate.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from hierfl.projections import box
from hierfl.projections.box_with_hyperplane import Line
from hierfl.projections.emptiness import beyond
from hierfl.projections.norm import norm

LIMIT = 500
SLACK = 1e2  # weight of a row against its slack's proximal term, rows having norm 1
DAMPING = 1e-4  # of the curvature, times the error relative to the data
LONGEST = 4e3  # no step exceeds this multiple of the data: where the dual is level up to rounding a search has no end
STALLED = 1e4  # a direction along which nothing moves ends the iteration at this multiple of the rounding
FAR = 1e8  # an entry without a bound is taken to be within this multiple of the data when emptiness is judged


def project(z: Array, matrix: Array, low: Array, high: Array, lower: Array, upper: Array) -> tuple[Array, Array]:
    """Nearest point to ``z`` (n,) for ``matrix`` (k, n), ``low <= high`` (k,) and bounds (n,), any of them infinite.

    The residual, relative to 1 + ||z||, is that of the optimality conditions: it is rounding unless the set is empty or more
    than 500 Newton steps are needed. Derivatives are those of the active set.
    """
    matrix, low, high = _normalised(matrix, low, high)
    rows = Rows(*map(jax.lax.stop_gradient, (z, matrix, low, high, lower, upper)))
    m, prox, _ = rows.solve()
    raised = prox + SLACK * m
    active = (raised >= rows.high) | (raised <= rows.low)
    m = jnp.where(active, m, 0.0)
    bound = jnp.where(raised >= rows.high, high, jnp.where(active, low, 0.0))

    # a last Newton step on the active set, in terms of y: exact there, and with its derivatives
    point = z - matrix.T @ m
    free = (point > lower) & (point < upper)
    p = _clip(point, lower, upper)
    face = jax.lax.stop_gradient(jnp.where(active[:, None] & free, matrix, 0.0))
    step = _pseudo_inverse(face @ face.T) @ jnp.where(active, matrix @ p - bound, 0.0)
    p = _clip(p - face.T @ step, lower, upper)
    return p, rows.residual(jax.lax.stop_gradient(p), m + jax.lax.stop_gradient(step))


def gap(matrix: Array, low: Array, high: Array, lower: Array, upper: Array) -> Array:
    """A distance, rows having norm 1, between the values of A y on the box and [low, high]: positive when the set is empty.

    It is proved by a multiplier m whose m'A y over the box stays above m's over [low, high] (Farkas), unbounded entries being
    held within 1e8 times the data; so a set that has a point within these bounds is never called empty.
    """
    matrix, low, high = map(jax.lax.stop_gradient, _normalised(matrix, low, high))
    rows = Rows(_clip(jnp.zeros_like(lower), lower, upper), matrix, low, high, lower, upper)
    ends = jnp.concatenate([low, high, lower, upper])
    separation = beyond(rows.solve()[2], jnp.max(jnp.where(jnp.isfinite(ends), jnp.abs(ends), 0.0), initial=0.0))
    return jnp.maximum(separation, jnp.maximum(box.gap(low, high), box.gap(lower, upper)))


class Rows(NamedTuple):
    """The data of one projection, rows having norm 1."""

    z: Array
    matrix: Array
    low: Array
    high: Array
    lower: Array
    upper: Array

    def solve(self) -> tuple[Array, Array, Array]:
        """(multipliers (k,), proximal point of the slacks (k,), largest separation of :meth:`separation` met)."""
        z, matrix, low, high, lower, upper = self
        root = SLACK**0.5
        low_, high_ = jnp.concatenate([lower, low / root]), jnp.concatenate([upper, high / root])
        eps = jnp.finfo(z.dtype).eps
        size = norm(z)

        def at(m: Array, prox: Array) -> tuple[Array, Array, Array, Array]:
            """(unclipped y and s / root, y, s, A y - s)."""
            raw = jnp.concatenate([z - matrix.T @ m, (prox + SLACK * m) / root])
            both = _clip(raw, low_, high_)
            y, s = both[: z.shape[0]], root * both[z.shape[0] :]
            return raw, y, s, matrix @ y - s

        def unfinished(state: tuple[Array, ...]) -> Array:
            *_, count, done = state
            return ~done & (count < LIMIT)

        def advance(state: tuple[Array, ...]) -> tuple[Array, ...]:
            m, prox, separation, count, _ = state
            _, y, s, excess = at(m, prox)
            error, moved = norm(excess), norm(s - prox)
            scale = size + norm(y) + norm(s) + norm(m)
            rounding = 4 * eps * scale
            solved = (error <= rounding) & (moved <= SLACK * rounding)
            prox = jnp.where(error <= jnp.maximum(rounding, 0.1 * moved), s, prox)
            raw, _, _, excess = at(m, prox)

            moves = (raw > low_) & (raw < high_)
            face = jnp.where(moves[: z.shape[0]], matrix, 0.0)
            curvature = face @ face.T + jnp.diag(jnp.where(moves[z.shape[0] :], SLACK, 0.0))
            largest = jnp.max(jnp.diagonal(curvature), initial=0.0)
            # where the curvature vanishes the step is error / damping: of the size of the data, not beyond
            damping = jnp.clip(DAMPING * error / jnp.where(scale > 0, scale, 1.0), eps ** (2 / 3), 1e-2)
            damping = damping * jnp.where(largest > 0, largest, 1.0)
            factor = jnp.linalg.cholesky(curvature + damping * jnp.eye(m.shape[0], dtype=z.dtype))
            direction = _unit(jax.scipy.linalg.cho_solve((factor, True), excess))

            normal = jnp.concatenate([matrix.T @ direction, -root * direction])
            length, _ = Line(raw, normal, low_, high_).search(jnp.zeros((), z.dtype))
            length = jnp.minimum(length, LONGEST * scale)
            stalled = (length == 0) & (error <= STALLED * rounding)
            separation = jnp.maximum(separation, jnp.maximum(self.separation(direction), self.separation(_unit(m))))
            return m + length * direction, prox, separation, count + 1, solved | stalled | (separation > 0)

        m = jnp.zeros_like(low)
        prox = _clip(matrix @ _clip(z, lower, upper), low, high)
        never = jnp.full((), -jnp.inf, z.dtype)
        start: tuple[Array, ...] = (m, prox, never, jnp.zeros((), int), jnp.zeros((), bool))
        m, prox, separation, *_ = jax.lax.while_loop(unfinished, advance, start)
        return m, prox, separation

    def separation(self, m: Array) -> Array:
        """min m'A y over the box - max m's over [low, high] for a unit ``m``, less its rounding: positive proves emptiness."""
        _, matrix, low, high, lower, upper = self
        ends = jnp.concatenate([low, high, lower, upper])
        far = FAR * jnp.max(jnp.where(jnp.isfinite(ends), jnp.abs(ends), 0.0), initial=0.0)
        slope = matrix.T @ m
        entry = jnp.where(slope > 0, jnp.maximum(lower, -far), jnp.minimum(upper, far))
        bound = jnp.where(m == 0, 0.0, jnp.where(m > 0, high, low))
        least, most = jnp.sum(slope * entry), jnp.sum(m * bound)
        # the slopes carry rounding of their own, times an entry that may be far
        rounding = jnp.sum((jnp.abs(matrix).T @ jnp.abs(m)) * jnp.abs(entry)) + jnp.sum(jnp.abs(m * bound))
        return least - most - 8 * jnp.finfo(m.dtype).eps * rounding

    def residual(self, p: Array, m: Array) -> Array:
        """The largest of ||p - clip(z - A'm)||, ||A p - clip(A p + m)|| and the violations, relative to 1 + ||z||."""
        z, matrix, low, high, lower, upper = self
        values = matrix @ p
        stationarity = norm(p - _clip(z - matrix.T @ m, lower, upper))
        complementarity = norm(values - _clip(values + m, low, high))
        crossed = jnp.maximum(jnp.max(low - values, initial=0.0), jnp.max(lower - p, initial=0.0))
        return jnp.maximum(crossed, jnp.maximum(stationarity, complementarity)) / (1.0 + norm(z))


def _normalised(matrix: Array, low: Array, high: Array) -> tuple[Array, Array, Array]:
    """Rows of norm 1; a zero row stays, its bounds divided by their own size."""
    size = jax.lax.stop_gradient(jax.vmap(norm)(matrix))
    size = jnp.where(size > 0, size, 1.0)
    return matrix / size[:, None], low / size, high / size


def _unit(m: Array) -> Array:
    size = norm(m)
    return m / jnp.where(size > 0, size, 1.0)


def _pseudo_inverse(square: Array) -> Array:
    """Of a positive semidefinite matrix (k, k), eigenvalues below rounding cut off: rows may depend on each other."""
    cutoff = 10 * max(square.shape[0], 1) * float(jnp.finfo(square.dtype).eps)
    return jnp.linalg.pinv(square, rtol=cutoff, hermitian=True)


def _clip(y: Array, lower: Array, upper: Array) -> Array:
    return jnp.minimum(jnp.maximum(y, lower), upper)

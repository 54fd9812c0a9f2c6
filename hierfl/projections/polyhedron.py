"""A box with a few interval rows, {y : lower <= y <= upper, low <= A y <= high}, by a semismooth Newton method on the dual.

The multipliers m of the k rows give y = clip(z - A'm), and the dual is piecewise quadratic once each row has a slack s = A y in
[low, high] with a proximal term: then y and s are one projection on a box, with the equations A y - s = 0. Newton's method
with an exact search along each direction (a strip's multiplier) solves it, the slacks' proximal point follows
(Li, Sun and Toh, 2018, do the same for the lasso). Rows may depend on each other, vertices may be degenerate.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from hierfl.projections import box
from hierfl.projections.box_with_hyperplane import ClippedLine
from hierfl.projections.emptiness import beyond
from hierfl.projections.norm import norm

LIMIT = 500
SLACK = 1e2  # weight of a row against its slack's proximal term, rows having norm 1
DAMPING = 1e-4  # of the curvature, times the error relative to the data
LONGEST = 4e3  # no step exceeds this multiple of the data: where the dual is level up to rounding a search has no end
STALLED = 1e4  # a direction along which nothing moves ends the iteration at this multiple of the rounding
FAR = 1e8  # an entry without a bound is taken to be within this multiple of the data when emptiness is judged

Extended: TypeAlias = Float[Array, " n+k"]  # the entries of y, then the slacks s / root
ExtendedBounds: TypeAlias = tuple[Extended, Extended]


def project(
    z: Float[Array, " n"],
    matrix: Float[Array, "k n"],
    low: Float[Array, " k"],
    high: Float[Array, " k"],
    lower: Float[Array, " n"],
    upper: Float[Array, " n"],
) -> tuple[Float[Array, " n"], Float[Array, ""]]:
    """The nearest point to ``z`` for ``low <= high`` and bounds, any of them infinite, and a residual.

    The residual, relative to 1 + ||z||, is that of the optimality conditions: it is rounding unless the set is empty or more
    than 500 Newton steps are needed. Derivatives are those of the active set.
    """
    matrix, low, high = _normalised(matrix, low, high)
    dual = DualProblem(*map(jax.lax.stop_gradient, (z, matrix, low, high, lower, upper)))
    m, slacks, *_ = dual.solve()
    raised = slacks + SLACK * m
    active = (raised >= dual.high) | (raised <= dual.low)
    m = jnp.where(active, m, 0.0)
    bound = jnp.where(raised >= dual.high, high, jnp.where(active, low, 0.0))

    # a last Newton step on the active set, in terms of y: exact there, and with its derivatives
    point = z - matrix.T @ m
    free = (point > lower) & (point < upper)
    p = box.project(point, lower, upper)
    face = jax.lax.stop_gradient(jnp.where(active[:, None] & free, matrix, 0.0))
    step = _pseudo_inverse(face @ face.T) @ jnp.where(active, matrix @ p - bound, 0.0)
    p = box.project(p - face.T @ step, lower, upper)
    return p, dual.residual(jax.lax.stop_gradient(p), m + jax.lax.stop_gradient(step))


def gap(
    matrix: Float[Array, "k n"],
    low: Float[Array, " k"],
    high: Float[Array, " k"],
    lower: Float[Array, " n"],
    upper: Float[Array, " n"],
) -> Float[Array, ""]:
    """A distance, rows having norm 1, between the values of A y on the box and [low, high]: positive when the set is empty.

    It is proved by a multiplier m whose m'A y over the box stays above m's over [low, high] (Farkas), unbounded entries being
    held within 1e8 times the data; so a set that has a point within these bounds is never called empty.
    """
    matrix, low, high = map(jax.lax.stop_gradient, _normalised(matrix, low, high))
    dual = DualProblem(box.project(jnp.zeros_like(lower), lower, upper), matrix, low, high, lower, upper)
    ends = jnp.concatenate([low, high, lower, upper])
    separation = beyond(
        dual.solve().separation, jnp.max(jnp.where(jnp.isfinite(ends), jnp.abs(ends), 0.0), initial=0.0)
    )
    return jnp.maximum(separation, jnp.maximum(box.gap(low, high), box.gap(lower, upper)))


class DualProblem(NamedTuple):
    """The data of one projection, rows having norm 1, for the problem of its multipliers."""

    z: Float[Array, " n"]
    matrix: Float[Array, "k n"]
    low: Float[Array, " k"]
    high: Float[Array, " k"]
    lower: Float[Array, " n"]
    upper: Float[Array, " n"]

    def solve(self) -> DualIterate:
        """Iterate until the equations A y - s = 0 hold to rounding, no step moves, or the set is proved empty."""
        z, matrix, low, high, lower, upper = self
        root = SLACK**0.5
        bounds = jnp.concatenate([lower, low / root]), jnp.concatenate([upper, high / root])
        size = norm(z)

        def unfinished(iterate: DualIterate) -> Bool[Array, ""]:
            return ~iterate.done & (iterate.steps < LIMIT)

        def advance(iterate: DualIterate) -> DualIterate:
            return self._advanced(iterate, bounds, size)

        none = jnp.zeros_like(low)
        slacks = box.project(matrix @ box.project(z, lower, upper), low, high)
        never = jnp.full((), -jnp.inf, z.dtype)
        start = DualIterate(none, slacks, never, jnp.zeros((), int), jnp.zeros((), bool))
        return jax.lax.while_loop(unfinished, advance, start)

    def _advanced(self, iterate: DualIterate, bounds: ExtendedBounds, size: Float[Array, ""]) -> DualIterate:
        """The next iterate: the proximal point follows where the equations hold, then one step of Newton's with exact search."""
        m, prox, separation, steps, _ = iterate
        n, eps = self.z.shape[0], jnp.finfo(self.z.dtype).eps
        _, y, s, excess = self._point(m, prox, bounds)
        error, moved = norm(excess), norm(s - prox)
        scale = size + norm(y) + norm(s) + norm(m)
        rounding = 4 * eps * scale
        solved = (error <= rounding) & (moved <= SLACK * rounding)
        prox = jnp.where(error <= jnp.maximum(rounding, 0.1 * moved), s, prox)
        raw, _, _, excess = self._point(m, prox, bounds)

        moves = (raw > bounds[0]) & (raw < bounds[1])
        face = jnp.where(moves[:n], self.matrix, 0.0)
        curvature = face @ face.T + jnp.diag(jnp.where(moves[n:], SLACK, 0.0))
        largest = jnp.max(jnp.diagonal(curvature), initial=0.0)
        # where the curvature vanishes the step is error / damping: of the size of the data, not beyond
        damping = jnp.clip(DAMPING * error / jnp.where(scale > 0, scale, 1.0), eps ** (2 / 3), 1e-2)
        damping = damping * jnp.where(largest > 0, largest, 1.0)
        factor = jnp.linalg.cholesky(curvature + damping * jnp.eye(m.shape[0], dtype=self.z.dtype))
        direction = _unit(jax.scipy.linalg.cho_solve((factor, True), excess))

        normal = jnp.concatenate([self.matrix.T @ direction, -(SLACK**0.5) * direction])
        length, _ = ClippedLine(raw, normal, *bounds).search(jnp.zeros((), self.z.dtype))
        length = jnp.minimum(length, LONGEST * scale)
        stalled = (length == 0) & (error <= STALLED * rounding)
        separation = jnp.maximum(separation, jnp.maximum(self.separation(direction), self.separation(_unit(m))))
        done = solved | stalled | (separation > 0)
        return DualIterate(m + length * direction, prox, separation, steps + 1, done)

    def _point(
        self, m: Float[Array, " k"], prox: Float[Array, " k"], bounds: ExtendedBounds
    ) -> tuple[Extended, Float[Array, " n"], Float[Array, " k"], Float[Array, " k"]]:
        """y and s / root before they are clipped, y, s, and A y - s."""
        n, root = self.z.shape[0], SLACK**0.5
        raw = jnp.concatenate([self.z - self.matrix.T @ m, (prox + SLACK * m) / root])
        both = box.project(raw, *bounds)
        y, s = both[:n], root * both[n:]
        return raw, y, s, self.matrix @ y - s

    def separation(self, m: Float[Array, " k"]) -> Float[Array, ""]:
        """The least m'A y over the box less the largest m's over [low, high] for a unit ``m``, less its rounding: positive proves emptiness."""
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

    def residual(self, p: Float[Array, " n"], m: Float[Array, " k"]) -> Float[Array, ""]:
        """The largest of ||p - clip(z - A'm)||, ||A p - clip(A p + m)|| and the violations, relative to 1 + ||z||."""
        z, matrix, low, high, lower, upper = self
        values = matrix @ p
        stationarity = norm(p - box.project(z - matrix.T @ m, lower, upper))
        complementarity = norm(values - box.project(values + m, low, high))
        crossed = jnp.maximum(jnp.max(low - values, initial=0.0), jnp.max(lower - p, initial=0.0))
        return jnp.maximum(crossed, jnp.maximum(stationarity, complementarity)) / (1.0 + norm(z))


class DualIterate(NamedTuple):
    """Where Newton's method stands: the multipliers, the proximal point of the slacks, the largest separation met so far."""

    multipliers: Float[Array, " k"]
    slacks: Float[Array, " k"]
    separation: Float[Array, ""]
    steps: Int[Array, ""]
    done: Bool[Array, ""]


def _normalised(
    matrix: Float[Array, "k n"], low: Float[Array, " k"], high: Float[Array, " k"]
) -> tuple[Float[Array, "k n"], Float[Array, " k"], Float[Array, " k"]]:
    """The rows scaled to norm 1; a zero row stays, its bounds divided by their own size."""
    size = jax.lax.stop_gradient(jax.vmap(norm)(matrix))
    size = jnp.where(size > 0, size, 1.0)
    return matrix / size[:, None], low / size, high / size


def _unit(m: Float[Array, " k"]) -> Float[Array, " k"]:
    size = norm(m)
    return m / jnp.where(size > 0, size, 1.0)


def _pseudo_inverse(square: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """The pseudo-inverse of a positive semidefinite matrix, eigenvalues below rounding cut off: rows may depend on each other."""
    cutoff = 10 * max(square.shape[0], 1) * float(jnp.finfo(square.dtype).eps)
    return jnp.linalg.pinv(square, rtol=cutoff, hermitian=True)

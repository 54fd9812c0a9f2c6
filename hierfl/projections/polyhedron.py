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

LIMIT = 500
SLACK = 1e2  # weight of a row against its slack's proximal term, rows having norm 1
DAMPING = 1e-4  # of the curvature, times the error relative to the data
LONGEST = 4e3  # no step exceeds this multiple of the data: where the dual is level up to rounding a search has no end
NEAR = 64  # units of rounding, of the size of the data, within which an entry is at its bound; a row's slack, SLACK times as many
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
    bounds = (*_normalised(matrix, low, high), lower, upper)
    dual = DualProblem(*map(jax.lax.stop_gradient, (z, *bounds)))
    return _on_active(z, bounds, dual, dual.solve())


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
    matrix, low, high = _normalised(matrix, low, high)
    start = box.project(jnp.zeros_like(lower), lower, upper)
    dual = DualProblem(*map(jax.lax.stop_gradient, (start, matrix, low, high, lower, upper)))
    return dual.gap(dual.solve())


def _on_active(
    z: Float[Array, " n"], bounds: tuple[Array, ...], dual: DualProblem, solution: DualIterate
) -> tuple[Float[Array, " n"], Float[Array, ""]]:
    """The point of a solution and its residual, by a last Newton step in terms of y on the active set, with its derivatives.

    Rows and entries at their bounds are active, pushed or not: multipliers need not be unique, and others may push them. Where
    the projection is differentiable, its derivative is the projection on the directions along which all of them stay.
    """
    matrix, low, high, lower, upper = bounds
    m, slacks, *_ = solution
    raised = slacks + SLACK * m
    near = NEAR * jnp.finfo(z.dtype).eps * (_length(dual.z) + _length(slacks) + _length(m))
    at_high, binding = raised >= dual.high - SLACK * near, (raised >= dual.high) | (raised <= dual.low)
    active = at_high | (raised <= dual.low + SLACK * near)

    held, p = box.held(z - matrix.T @ jnp.where(active, m, 0.0), lower, upper, near)
    missed = jnp.where(active, matrix @ p - jnp.where(at_high, high, low), 0.0)
    missed = missed - jax.lax.stop_gradient(jnp.where(binding, 0.0, missed))
    face = jnp.where(active[:, None] & ~held, dual.matrix, 0.0)
    step = _pseudo_inverse(face @ face.T) @ missed
    p = box.project(p - face.T @ step, lower, upper)
    return p, dual.residual(jax.lax.stop_gradient(p), m + jax.lax.stop_gradient(step))


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
        size = _length(z)

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
        eps, root = jnp.finfo(self.z.dtype).eps, SLACK**0.5
        raw = self.z - self.matrix.T @ m
        y = box.project(raw, self.lower, self.upper)
        values, s = self.matrix @ y, box.project(prox + SLACK * m, self.low, self.high)
        error, moved = _length(values - s), _length(s - prox)
        scale = size + _length(y) + _length(s) + _length(m)
        rounding = 4 * eps * scale
        solved = (error <= rounding) & (moved <= SLACK * rounding)
        prox = jnp.where(error <= jnp.maximum(rounding, 0.1 * moved), s, prox)
        raised = prox + SLACK * m
        excess = values - box.project(raised, self.low, self.high)

        face = jnp.where((raw > self.lower) & (raw < self.upper), self.matrix, 0.0)
        moves = (raised > self.low) & (raised < self.high)
        curvature = face @ face.T + jnp.diag(jnp.where(moves, SLACK, 0.0))
        largest = jnp.max(jnp.diagonal(curvature), initial=0.0)
        # where the curvature vanishes the step is error / damping: of the size of the data, not beyond
        damping = jnp.clip(DAMPING * error / jnp.where(scale > 0, scale, 1.0), eps ** (2 / 3), 1e-2)
        damping = damping * jnp.where(largest > 0, largest, 1.0)
        factor = jnp.linalg.cholesky(curvature + damping * jnp.eye(m.shape[0], dtype=self.z.dtype))
        direction = _unit(jax.scipy.linalg.cho_solve((factor, True), excess))

        point = jnp.concatenate([raw, raised / root])
        normal = jnp.concatenate([self.matrix.T @ direction, -root * direction])
        length = ClippedLine(point, normal, *bounds).search(jnp.zeros((), self.z.dtype)).t
        length = jnp.minimum(length, LONGEST * scale)
        stalled = (length == 0) & (error <= STALLED * rounding)
        apart = jax.vmap(self.separation)(jnp.stack([direction, _unit(m)]))
        separation = jnp.maximum(separation, jnp.max(apart))
        done = solved | stalled | (separation > 0)
        return DualIterate(m + length * direction, prox, separation, steps + 1, done)

    def separation(self, m: Float[Array, " k"]) -> Float[Array, ""]:
        """The least m'A y over the box less the largest m's over [low, high] for a unit ``m``, less its rounding: positive proves emptiness."""
        _, matrix, low, high, lower, upper = self
        far = FAR * self._size()
        slope = matrix.T @ m
        entry = jnp.where(slope > 0, jnp.maximum(lower, -far), jnp.minimum(upper, far))
        bound = jnp.where(m == 0, 0.0, jnp.where(m > 0, high, low))
        least, most = jnp.sum(slope * entry), jnp.sum(m * bound)
        # the slopes carry rounding of their own, times an entry that may be far
        rounding = jnp.sum((jnp.abs(matrix).T @ jnp.abs(m)) * jnp.abs(entry)) + jnp.sum(jnp.abs(m * bound))
        return least - most - 8 * jnp.finfo(m.dtype).eps * rounding

    def gap(self, solution: DualIterate) -> Float[Array, ""]:
        """The separation that was met beyond its tolerance, or by how much bounds cross."""
        _, _, low, high, lower, upper = self
        crossed = jnp.maximum(box.gap(low, high), box.gap(lower, upper))
        apart = jnp.maximum(solution.separation, self.separation(self._sharpened(_unit(solution.multipliers))))
        return jnp.maximum(beyond(apart, self._size()), crossed)

    def _sharpened(self, m: Float[Array, " k"]) -> Float[Array, " k"]:
        """A direction less what is rounding in it, and less what moves entries that have no bound there: they would be held far away."""
        free = jnp.isinf(jnp.where(self.matrix.T @ m > 0, self.lower, self.upper))
        m = jnp.where(jnp.abs(m) > jnp.finfo(m.dtype).eps ** 0.5, m, 0.0)
        face = jnp.where((m != 0)[:, None] & free, self.matrix, 0.0)
        square = face @ face.T
        inverse = _pseudo_inverse(square)
        m = m - inverse @ (square @ m)
        return m - inverse @ (square @ m)

    def _size(self) -> Float[Array, ""]:
        """The largest finite bound."""
        ends = jnp.concatenate([self.low, self.high, self.lower, self.upper])
        return jnp.max(jnp.where(jnp.isfinite(ends), jnp.abs(ends), 0.0), initial=0.0)

    def residual(self, p: Float[Array, " n"], m: Float[Array, " k"]) -> Float[Array, ""]:
        """The largest of ||p - clip(z - A'm)||, ||A p - clip(A p + m)|| and the violations, relative to 1 + ||z||."""
        z, matrix, low, high, lower, upper = self
        values = matrix @ p
        stationarity = _length(p - box.project(z - matrix.T @ m, lower, upper))
        complementarity = _length(values - box.project(values + m, low, high))
        crossed = jnp.maximum(jnp.max(low - values, initial=0.0), jnp.max(lower - p, initial=0.0))
        return jnp.maximum(crossed, jnp.maximum(stationarity, complementarity)) / (1.0 + _length(z))


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
    size = jax.vmap(_length)(jax.lax.stop_gradient(matrix))
    size = jnp.where(size > 0, size, 1.0)
    return matrix / size[:, None], low / size, high / size


def _length(m: Float[Array, " n"]) -> Float[Array, ""]:
    """The Euclidean norm; it is never differentiated here."""
    return jnp.sqrt(m @ m)


def _unit(m: Float[Array, " k"]) -> Float[Array, " k"]:
    size = _length(m)
    return m / jnp.where(size > 0, size, 1.0)


def _pseudo_inverse(square: Float[Array, "k k"]) -> Float[Array, "k k"]:
    """The pseudo-inverse of a positive semidefinite matrix, eigenvalues below rounding cut off: rows may depend on each other."""
    cutoff = 10 * max(square.shape[0], 1) * float(jnp.finfo(square.dtype).eps)
    return jnp.linalg.pinv(square, rtol=cutoff, hermitian=True)

"""Affine maps F(y) = q + J y with J diagonal plus low rank, J = diag(d) + U V': Cournot games, separable terms with a few couplings.

The structure is found from products with J and J' alone: rows I and columns K, disjoint, meet off the diagonal, so J[I, K]
has the rank of U V', and its singular vectors give U and V (a skeleton decomposition). With theta = V'y the problem on a box
separates, y_j = clip(-(q_j + U_j theta) / d_j), and what remains is an equation in theta: O(n r^2) a step, never n x n.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hierfl.compiler.expressions.program import Array
from hierfl.jaxtools.cheap_jit import quick_jit

RANK_LIMIT = 8
LIMIT = 200

Map = Callable[[Array], Array]


class LowRank(NamedTuple):
    """diag(d) + U V': ``diagonal`` (n,), ``left`` U and ``right`` V (n, r)."""

    diagonal: Array
    left: Array
    right: Array

    def invertible(self) -> Array:
        """Whether d is positive, beyond rounding: y(theta) divides by it."""
        return (self.diagonal > 1e-12 * jnp.max(jnp.abs(self.left * self.right))).all()

    def reproduces(self, multiply: Map) -> Array:
        """Whether this is J, by products with random vectors."""
        vectors = np.random.default_rng(1).standard_normal((3, self.diagonal.size))
        return jax.vmap(lambda vector: self._agrees(multiply, vector, 1e-10))(jnp.asarray(vectors, float)).all()

    def where_true(self, multiply: Map) -> LowRank:
        """The same if it reproduces a product with J, NaN if not: an owner's J may have another structure; traceable."""
        vector = jnp.cos(jnp.arange(1, self.diagonal.size + 1, dtype=self.diagonal.dtype) ** 2)
        agrees = self._agrees(multiply, vector, jnp.sqrt(jnp.finfo(self.diagonal.dtype).eps))
        return self._replace(diagonal=jnp.where(agrees, self.diagonal, jnp.nan))

    def _agrees(self, multiply: Map, vector: Array, tolerance: Array | float) -> Array:
        """Whether J v is this, each row and column beside the size of its diagonal entry; False where it is NaN."""
        size = jnp.sqrt(jnp.abs(self.diagonal + jnp.sum(self.left * self.right, axis=1)))
        missed = jnp.abs(self.multiply(vector) - multiply(vector))
        return (missed <= tolerance * size * jnp.linalg.norm(size * vector)).all()

    def multiply(self, y: Array) -> Array:
        """J y."""
        return self.diagonal * y + self.left @ (self.right.T @ y)

    def modulus(self) -> Array:
        """A lower bound on the smallest eigenvalue of the symmetric part: min d plus the least of the low-rank part."""
        basis, _ = jnp.linalg.qr(jnp.concatenate([self.left, self.right], axis=1))
        left, right = basis.T @ self.left, basis.T @ self.right
        values = jnp.linalg.eigvalsh(0.5 * (left @ right.T + right @ left.T))
        rounding = 64 * jnp.finfo(values.dtype).eps * (jnp.max(jnp.abs(values)) + jnp.max(jnp.abs(self.diagonal)))
        return jnp.maximum(jnp.min(self.diagonal) + jnp.minimum(values[0], 0.0) - rounding, 0.0)

    def steepness(self) -> Array:
        """What V'y(theta) makes of a change of theta at most: sum |u v / d|."""
        return jnp.sum(jnp.abs(self.left * self.right / self.diagonal[:, None]))

    def size(self) -> Array:
        """An upper bound on the norm of J."""
        return jnp.max(jnp.abs(self.diagonal)) + jnp.linalg.norm(self.left) * jnp.linalg.norm(self.right)


class Skeleton(NamedTuple):
    """Which rows and columns of J to look at, and the rank found when the problem was compiled."""

    rows: np.ndarray
    columns: np.ndarray
    rank: int

    @classmethod
    def of(cls, multiply: Map, size: int) -> Skeleton | None:
        """What J could have, from its products; None if it is not diagonal plus rank <= 8 (of a size at least four times as much)."""
        count = min(RANK_LIMIT + 2, size // 4)
        if count < 2:
            return None
        places = np.random.default_rng(0).permutation(size).astype(np.int32)  # 64-bit indices fail in single precision
        rows, columns = np.sort(places[:count]), np.sort(places[count : 2 * count])
        by_columns = np.asarray(quick_jit(lambda: jax.vmap(multiply, out_axes=1)(_units(columns, size)))())
        values = np.linalg.svd(by_columns[rows], compute_uv=False)
        rank = int(np.sum(values > 1e-11 * max(values[0], np.abs(np.diagonal(by_columns[columns])).max())))
        return cls(rows, columns, rank) if 0 < rank < count else None

    def fits(self, multiply: Map, transpose: Map, size: int) -> tuple[Array, Array]:
        """(whether J has this skeleton, whether its diagonal is invertible); traceable."""
        parts = self.decompose(multiply, transpose, size)
        return parts.reproduces(multiply), parts.invertible()

    def decompose(self, multiply: Map, transpose: Map, size: int) -> LowRank:
        """diag(d) + U V' of a map with this skeleton; traceable."""
        at_rows, at_columns = _units(self.rows, size), _units(self.columns, size)
        by_columns = jax.vmap(multiply, out_axes=1)(at_columns)  # J[:, K]
        by_rows = jax.vmap(transpose, out_axes=1)(at_rows)  # J[I, :]'
        plain = np.setdiff1d(np.arange(size, dtype=np.int32), np.concatenate([self.rows, self.columns]))
        columns_beside = jax.vmap(transpose)(at_columns)[:, plain]  # J[K, plain]
        rows_beside = jax.vmap(multiply)(at_rows)[:, plain]  # J[plain, I]'
        find = self._cross if self.rank == 1 else self._singular
        left, right = find(by_columns, by_rows, plain, columns_beside, rows_beside)
        # signs s in turn give the diagonal: J s = d s + U (V' s), where V' s is small if neighbours are alike
        signs = 1.0 - 2.0 * (jnp.arange(size) % 2)
        diagonal = signs * (multiply(signs) - left @ (right.T @ signs))
        return LowRank(diagonal, left, right)

    def _singular(
        self, by_columns: Array, by_rows: Array, plain: np.ndarray, columns_beside: Array, rows_beside: Array
    ) -> tuple[Array, Array]:
        """U and V of any rank."""
        u, s, vt = jnp.linalg.svd(by_columns[self.rows])
        cut = jnp.maximum(1e-11, 8 * jnp.finfo(s.dtype).eps) * s[0]
        kept = jnp.where(s > cut, s, 0.0)[: self.rank]  # the rank may be less at a point
        left = by_columns @ _quotient(vt[: self.rank].T, kept)  # wrong at the rows K, where the diagonal is
        right = by_rows @ jnp.where(kept > 0, u[:, : self.rank], 0.0)  # wrong at the columns I
        left = left.at[self.columns].set(jnp.linalg.lstsq(right[plain], columns_beside.T)[0].T)
        right = right.at[self.rows].set(jnp.linalg.lstsq(left[plain], rows_beside.T)[0].T)
        return left, right

    def _cross(
        self, by_columns: Array, by_rows: Array, plain: np.ndarray, columns_beside: Array, rows_beside: Array
    ) -> tuple[Array, Array]:
        """u and v of rank one without rounding errors where all entries are alike: a column over its pivot, and the pivot's row."""
        block = by_columns[self.rows]
        row, column = jnp.unravel_index(jnp.argmax(jnp.abs(block)), block.shape)
        left, right = _quotient(by_columns[:, column], block[row, column]), by_rows[:, row]
        # but for the pivot's own entries, where the diagonal is
        widest, longest = jnp.argmax(jnp.abs(right[plain])), jnp.argmax(jnp.abs(left[plain]))
        left = left.at[jnp.asarray(self.columns)[column]].set(
            _quotient(columns_beside[column, widest], right[plain][widest])
        )
        right = right.at[jnp.asarray(self.rows)[row]].set(_quotient(rows_beside[row, longest], left[plain][longest]))
        return left[:, None], right[:, None]


def _quotient(above: Array, below: Array) -> Array:
    """above / below, and 0 over 0: a coupling may vanish at a point."""
    return jnp.where(below == 0, 0.0, above / jnp.where(below == 0, 1.0, below))


def _units(places: np.ndarray, size: int) -> Array:
    """Unit vectors, (places, size)."""
    return (jnp.arange(size) == jnp.asarray(places)[:, None]).astype(float)


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
        """By the slope of the residual at theta."""
        _, u, v = self.parts
        raw = self.unbounded(theta)
        free = jnp.where((raw > self.lower) & (raw < self.upper), self.inverse, 0.0)
        slope = jnp.eye(theta.size, dtype=theta.dtype) + across(v, free[:, None] * u)
        return jnp.linalg.solve(slope, value) if theta.size > 1 else value / slope[0]


def solve_box(parts: LowRank, q: Array, lower: Array, upper: Array, start: Array) -> tuple[Array, Array]:
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
    """tall' @ values."""
    if tall.shape[1] > 1:
        return tall.T @ values
    column = tall[:, 0] if values.ndim == 1 else tall
    return jnp.sum(column * values, axis=0, keepdims=True)

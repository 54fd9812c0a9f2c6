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

from hierfl.compiler.program import Array

RANK_LIMIT = 8
LIMIT = 100

Map = Callable[[Array], Array]


class LowRank(NamedTuple):
    """diag(d) + U V': ``diagonal`` (n,), ``left`` U and ``right`` V (n, r)."""

    diagonal: Array
    left: Array
    right: Array

    def invertible(self) -> bool:
        """Whether d is positive, beyond rounding: y(theta) divides by it."""
        return bool((self.diagonal > 1e-12 * jnp.max(jnp.abs(self.left * self.right))).all())

    def reproduces(self, multiply: Map) -> bool:
        """Whether this is J, by products with random vectors, each row and column beside the size of its diagonal entry."""
        size = np.sqrt(np.abs(self.diagonal + jnp.sum(self.left * self.right, axis=1)))
        for vector in np.random.default_rng(1).standard_normal((3, size.size)):
            missed = np.abs(self.multiply(vector) - np.asarray(multiply(vector)))
            if not (missed <= 1e-10 * size * np.linalg.norm(size * vector)).all():
                return False
        return True

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

    def size(self) -> Array:
        """An upper bound on the norm of J."""
        return jnp.max(jnp.abs(self.diagonal)) + jnp.linalg.norm(self.left) * jnp.linalg.norm(self.right)


class Skeleton(NamedTuple):
    """Which rows and columns of J to look at, and the rank found when the problem was compiled."""

    rows: np.ndarray
    columns: np.ndarray
    rank: int

    @classmethod
    def of(cls, multiply: Map, transpose: Map, size: int) -> Skeleton | None:
        """The skeleton of J from its products; None if J is not diagonal plus rank <= 8 (of a size at least four times as much)."""
        count = min(RANK_LIMIT + 2, size // 4)
        if count < 2:
            return None
        places = np.random.default_rng(0).permutation(size).astype(np.int32)  # 64-bit indices fail in single precision
        rows, columns = np.sort(places[:count]), np.sort(places[count : 2 * count])
        by_columns = np.asarray(jax.vmap(multiply, out_axes=1)(_units(columns, size)))
        values = np.linalg.svd(by_columns[rows], compute_uv=False)
        rank = int(np.sum(values > 1e-11 * max(values[0], np.abs(np.diagonal(by_columns[columns])).max())))
        if rank == 0 or rank >= count:
            return None
        found = cls(rows, columns, rank)
        parts = found.decompose(multiply, transpose, size)
        return found if parts.invertible() and parts.reproduces(multiply) else None

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
        left = by_columns @ (vt[: self.rank].T / s[: self.rank])  # wrong at the rows K, where the diagonal is
        right = by_rows @ u[:, : self.rank]  # wrong at the columns I
        left = left.at[self.columns].set(jnp.linalg.lstsq(right[plain], columns_beside.T)[0].T)
        right = right.at[self.rows].set(jnp.linalg.lstsq(left[plain], rows_beside.T)[0].T)
        return left, right

    def _cross(
        self, by_columns: Array, by_rows: Array, plain: np.ndarray, columns_beside: Array, rows_beside: Array
    ) -> tuple[Array, Array]:
        """u and v of rank one without rounding errors where all entries are alike: a column over its pivot, and the pivot's row."""
        block = by_columns[self.rows]
        row, column = jnp.unravel_index(jnp.argmax(jnp.abs(block)), block.shape)
        left, right = by_columns[:, column] / block[row, column], by_rows[:, row]
        # but for the pivot's own entries, where the diagonal is
        widest, longest = jnp.argmax(jnp.abs(right[plain])), jnp.argmax(jnp.abs(left[plain]))
        left = left.at[jnp.asarray(self.columns)[column]].set(columns_beside[column, widest] / right[plain][widest])
        right = right.at[jnp.asarray(self.rows)[row]].set(rows_beside[row, longest] / left[plain][longest])
        return left[:, None], right[:, None]


def _units(places: np.ndarray, size: int) -> Array:
    """Unit vectors, (places, size)."""
    return (jnp.arange(size) == jnp.asarray(places)[:, None]).astype(float)


def solve_box(parts: LowRank, q: Array, lower: Array, upper: Array, start: Array) -> tuple[Array, Array]:
    """(y, steps): 0 in q + J y + N(y) over a box, by a semismooth Newton method in theta = V'y from a start (r,).

    For a monotone J the residual theta - V'y(theta) has one zero; steps that do not shrink it are halved. A rounding of theta moves
    V'y by sum |u v / d| of it; hence a last step in y itself. The caller's certificate says how well the zero was met.
    """
    d, u, v = parts

    inverse = 1.0 / d
    steepest = jnp.sum(jnp.abs(u * v * inverse[:, None]))  # what V'y(theta) makes of a rounding of theta

    def unbounded(theta: Array) -> Array:
        return -(q + times(u, theta)) * inverse

    def answer(theta: Array) -> Array:
        return jnp.clip(unbounded(theta), lower, upper)

    def newton_step(theta: Array, value: Array) -> Array:
        raw = unbounded(theta)
        free = jnp.where((raw > lower) & (raw < upper), inverse, 0.0)
        slope = jnp.eye(theta.size, dtype=theta.dtype) + across(v, free[:, None] * u)
        return jnp.linalg.solve(slope, value) if theta.size > 1 else value / slope[0]

    def residual(theta: Array) -> tuple[Array, Array]:
        """theta - V'y(theta), and what rounding alone makes of it."""
        reached = across(v, answer(theta))
        size = jnp.linalg.norm(theta) + jnp.linalg.norm(reached)
        units = (8 + math.sqrt(q.size)) * size + 8 * steepest * jnp.linalg.norm(theta)  # reached is a sum of n terms
        return theta - reached, jnp.finfo(theta.dtype).eps * units

    def unfinished(state: tuple[Array, ...]) -> Array:
        *_, count, done = state
        return ~done & (count < LIMIT)

    def advance(state: tuple[Array, ...]) -> tuple[Array, ...]:
        theta, value, count, _ = state
        step = newton_step(theta, value)
        old = jnp.linalg.norm(value)

        def too_long(trial: tuple[Array, Array, Array, Array]) -> Array:
            _, new_value, _, share = trial
            return ~(jnp.linalg.norm(new_value) <= (1 - 1e-4 * share) * old) & (share > 1e-6)

        def halve(trial: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
            share = 0.5 * trial[3]
            return theta - share * step, *residual(theta - share * step), share

        full = theta - step
        trial = (full, *residual(full), jnp.ones((), theta.dtype))
        new, new_value, rounding, _ = jax.lax.while_loop(too_long, halve, trial)
        better = jnp.linalg.norm(new_value) < old
        done = (jnp.linalg.norm(new_value) <= rounding) | ~better
        return jnp.where(better, new, theta), jnp.where(better, new_value, value), count + 1, done

    value, rounding = residual(start)
    state: tuple[Array, ...] = (start, value, jnp.zeros((), int), jnp.linalg.norm(value) <= rounding)
    theta, value, count, _ = jax.lax.while_loop(unfinished, advance, state)
    # a last correction, too small for theta's own digits but not for those of q + u theta; anything larger comes of a singular J
    last = newton_step(theta, value)
    small = jnp.linalg.norm(last) <= 1e3 * jnp.finfo(theta.dtype).eps * jnp.linalg.norm(theta)
    last = times(u, jnp.where(small, last, 0.0)) * inverse
    return jnp.clip(unbounded(theta) + last, lower, upper), count


def times(tall: Array, theta: Array) -> Array:
    """tall @ theta; for one column a product that fuses with what surrounds it."""
    return tall[:, 0] * theta[0] if tall.shape[1] == 1 else tall @ theta


def across(tall: Array, values: Array) -> Array:
    """tall' @ values."""
    if tall.shape[1] > 1:
        return tall.T @ values
    column = tall[:, 0] if values.ndim == 1 else tall
    return jnp.sum(column * values, axis=0, keepdims=True)

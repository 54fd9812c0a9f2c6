"""Affine maps F(y) = q + J y with J diagonal plus low rank, J = diag(d) + U V': Cournot games, separable terms with a few couplings.

The structure is found from products with J and J' alone: rows I and columns K, disjoint, meet off the diagonal, so J[I, K]
has the rank of U V', and its singular vectors give U and V (a skeleton decomposition).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from hierfl.jaxtools.cheap_jit import quick_jit

RANK_LIMIT = 8

Map = Callable[[Array], Array]


class LowRank(NamedTuple):
    """diag(d) + U V': ``diagonal`` (n,), ``left`` U and ``right`` V (n, r)."""

    diagonal: Float[Array, " n"]
    left: Float[Array, "n r"]
    right: Float[Array, "n r"]

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
        """The product J y."""
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

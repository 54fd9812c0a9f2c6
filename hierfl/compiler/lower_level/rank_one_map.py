"""Affine maps F(y) = q + J y with J diagonal plus rank one, J = diag(d) + u v': Cournot games, separable terms with one coupling.

The structure is found from products with J and J' alone: rows I and columns K, disjoint, meet off the diagonal, so J[I, K]
has rank one, and a row and a column of it give u and v (a skeleton decomposition).
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

LOOKED_AT = 10  # rows, and columns, at most; a fourth of all
Map = Callable[[Array], Array]


class RankOne(NamedTuple):
    """diag(d) + u v': ``diagonal`` d, ``left`` u and ``right`` v."""

    diagonal: Float[Array, " n"]
    left: Float[Array, " n"]
    right: Float[Array, " n"]

    def invertible(self) -> Array:
        """Whether d is positive, beyond rounding: y(theta) divides by it."""
        return (self.diagonal > 1e-12 * jnp.max(jnp.abs(self.left * self.right))).all()

    def reproduces(self, multiply: Map) -> Array:
        """Whether this is J, by products with random vectors."""
        vectors = np.random.default_rng(1).standard_normal((3, self.diagonal.size))
        return jax.vmap(lambda vector: self._agrees(multiply, vector, 1e-10))(jnp.asarray(vectors, float)).all()

    def where_true(self, multiply: Map) -> RankOne:
        """The same if it reproduces a product with J, NaN if not: an owner's J may have another structure; traceable."""
        vector = jnp.cos(jnp.arange(1, self.diagonal.size + 1, dtype=self.diagonal.dtype) ** 2)
        agrees = self._agrees(multiply, vector, jnp.sqrt(jnp.finfo(self.diagonal.dtype).eps))
        return self._replace(diagonal=jnp.where(agrees, self.diagonal, jnp.nan))

    def _agrees(self, multiply: Map, vector: Array, tolerance: Array | float) -> Array:
        """Whether J v is this, each row and column beside the size of its diagonal entry; False where it is NaN."""
        size = jnp.sqrt(jnp.abs(self.diagonal + self.left * self.right))
        missed = jnp.abs(self.multiply(vector) - multiply(vector))
        return (missed <= tolerance * size * jnp.linalg.norm(size * vector)).all()

    def multiply(self, y: Array) -> Array:
        """The product J y."""
        return self.diagonal * y + self.left * (self.right @ y)

    def modulus(self) -> Array:
        """A lower bound on the smallest eigenvalue of the symmetric part: min d plus that of (u v' + v u') / 2."""
        inner, lengths = self.left @ self.right, jnp.linalg.norm(self.left) * jnp.linalg.norm(self.right)
        rounding = 64 * jnp.finfo(lengths.dtype).eps * (lengths + jnp.max(jnp.abs(self.diagonal)))
        return jnp.maximum(jnp.min(self.diagonal) + 0.5 * jnp.minimum(inner - lengths, 0.0) - rounding, 0.0)

    def steepness(self) -> Array:
        """What v'y(theta) makes of a change of theta at most: sum |u v / d|."""
        return jnp.sum(jnp.abs(self.left * self.right / self.diagonal))

    def size(self) -> Array:
        """An upper bound on the norm of J."""
        return jnp.max(jnp.abs(self.diagonal)) + jnp.linalg.norm(self.left) * jnp.linalg.norm(self.right)


class Skeleton(NamedTuple):
    """Which rows and columns of J to look at."""

    rows: np.ndarray
    columns: np.ndarray

    @classmethod
    def of(cls, multiply: Map, size: int) -> Skeleton | None:
        """What J could have, from its products; None if it is not diagonal plus rank one, of at least eight scalars."""
        count = min(LOOKED_AT, size // 4)
        if count < 2:
            return None
        places = np.random.default_rng(0).permutation(size).astype(np.int32)  # 64-bit indices fail in single precision
        rows, columns = np.sort(places[:count]), np.sort(places[count : 2 * count])
        by_columns = np.asarray(quick_jit(lambda: jax.vmap(multiply, out_axes=1)(_units(columns, size)))())
        values = np.linalg.svd(by_columns[rows], compute_uv=False)
        rank = int(np.sum(values > 1e-11 * max(values[0], np.abs(np.diagonal(by_columns[columns])).max())))
        return cls(rows, columns) if rank == 1 else None

    def fits(self, multiply: Map, transpose: Map, size: int) -> tuple[Array, Array]:
        """(whether J has this skeleton, whether its diagonal is invertible); traceable."""
        parts = self.decompose(multiply, transpose, size)
        return parts.reproduces(multiply), parts.invertible()

    def decompose(self, multiply: Map, transpose: Map, size: int) -> RankOne:
        """diag(d) + u v' of a map with this skeleton: a column over its pivot, and the pivot's row; traceable.

        Where all entries are alike no rounding enters.
        """
        at_rows, at_columns = _units(self.rows, size), _units(self.columns, size)
        by_columns = jax.vmap(multiply, out_axes=1)(at_columns)  # J[:, K]
        by_rows = jax.vmap(transpose, out_axes=1)(at_rows)  # J[I, :]'
        plain = np.setdiff1d(np.arange(size, dtype=np.int32), np.concatenate([self.rows, self.columns]))
        columns_beside = jax.vmap(transpose)(at_columns)[:, plain]  # J[K, plain]
        rows_beside = jax.vmap(multiply)(at_rows)[:, plain]  # J[plain, I]'
        block = by_columns[self.rows]
        row, column = jnp.unravel_index(jnp.argmax(jnp.abs(block)), block.shape)
        left, right = _quotient(by_columns[:, column], block[row, column]), by_rows[:, row]
        # but for the pivot's own entries, where the diagonal is
        widest, longest = jnp.argmax(jnp.abs(right[plain])), jnp.argmax(jnp.abs(left[plain]))
        own_left = _quotient(columns_beside[column, widest], right[plain][widest])
        own_right = _quotient(rows_beside[row, longest], left[plain][longest])
        left = left.at[jnp.asarray(self.columns)[column]].set(own_left)
        right = right.at[jnp.asarray(self.rows)[row]].set(own_right)
        # signs s in turn give the diagonal: J s = d s + u (v' s), where v' s is small if neighbours are alike
        signs = 1.0 - 2.0 * (jnp.arange(size) % 2)
        return RankOne(signs * (multiply(signs) - left * (right @ signs)), left, right)


def _quotient(above: Array, below: Array) -> Array:
    """above / below, and 0 over 0: a coupling may vanish at a point."""
    return jnp.where(below == 0, 0.0, above / jnp.where(below == 0, 1.0, below))


def _units(places: np.ndarray, size: int) -> Array:
    """Unit vectors, (places, size)."""
    return (jnp.arange(size) == jnp.asarray(places)[:, None]).astype(float)

"""Recognised pieces of constraints with their numbers compiled: coefficients, offsets and radii."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from hierfl.compiler.program import Array
from hierfl.compiler.recognise import AffineRows, Coefficients, NormBound, Other
from hierfl.language.text import expression_text

Values = Mapping[int, Any]


@dataclass(frozen=True, eq=False)
class Piece:
    """A recognised piece of one constraint; ``support`` lists its entries of y.

    ``offsets(values, y)`` is the affine expression, at y = 0 where y is left out; ``radius(values)`` the bound of a norm.
    """

    original: Any
    constraint: Any
    found: AffineRows | NormBound | Other
    coefficients: Coefficients | None
    offsets: Callable[..., Array] | None
    radius: Callable[..., Array] | None
    support: np.ndarray


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows of an affine piece: ``A y + b <= 0`` or ``== 0``."""

    piece: Piece
    index: np.ndarray
    equality: bool

    @property
    def pattern(self) -> sp.csr_array:
        """Coefficients of these rows (a pattern where they are not constant)."""
        assert self.piece.coefficients is not None
        return self.piece.coefficients.matrix[self.index]

    @property
    def columns(self) -> np.ndarray:
        """The entry of each row, for rows of one entry."""
        return self.pattern.indices

    @property
    def constant(self) -> bool:
        """Whether the coefficients are the same in every environment."""
        assert self.piece.coefficients is not None
        return self.piece.coefficients.constant

    def b(self, values: Values) -> Array:
        """Offsets."""
        return self._at(values)

    def row_sums(self, values: Values) -> Array:
        """A @ 1, which for single-entry rows is the coefficient itself."""
        zero = jnp.zeros(self._width)
        return jax.jvp(lambda y: self._at(values, y), (zero,), (jnp.ones(self._width),))[1]

    def weights(self, values: Values) -> Array:
        """The coefficients in the order of ``pattern``, for rows with disjoint supports."""
        pattern = self.pattern
        if self.constant:
            return jnp.asarray(pattern.data)
        sums = jax.grad(lambda y: jnp.sum(self._at(values, y)))(jnp.zeros(self._width))
        return sums[pattern.indices]  # each column meets one row, so its sum is the coefficient

    def dense(self, values: Values, entries: np.ndarray) -> Array:
        """The rows' matrix on ``entries``."""
        if self.constant:
            return jnp.asarray(self.pattern[:, entries].toarray())

        def on_entries(part: Array) -> Array:
            return self._at(values, jnp.zeros(self._width).at[entries].set(part))

        jacobian = jax.jacrev if len(self.index) < len(entries) else jax.jacfwd
        return jacobian(on_entries)(jnp.zeros(len(entries)))

    @property
    def _width(self) -> int:
        assert self.piece.coefficients is not None
        return int(self.piece.coefficients.matrix.shape[1])

    def _at(self, values: Values, y: Any = None) -> Array:
        assert self.piece.offsets is not None
        return self.piece.offsets(values, y)[self.index]


def merged(rows: Iterable[Rows]) -> tuple[Rows, ...]:
    """The same rows with those of one piece together, so that each piece is evaluated once."""
    by_piece: dict[int, list[Rows]] = {}
    for row in rows:
        by_piece.setdefault(id(row.piece), []).append(row)
    return tuple(
        Rows(same[0].piece, np.concatenate([r.index for r in same]), same[0].equality) for same in by_piece.values()
    )


def constraint_names(pieces: Iterable[Piece]) -> str:
    """The constraints behind the pieces, each once, as text."""
    return ", ".join(dict.fromkeys(expression_text(piece.original) for piece in pieces))

"""Compiled affine expressions of the flat y and their rows: coefficients and offsets in an environment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from jaxtyping import Array, Float, Int

from hierfl.compiler.sets.members.coefficients import Coefficients

Values = Mapping[int, Array]  # hoisted parameter id -> its value in an environment

DENSE_ENTRIES = 4_000_000  # larger matrices are not formed densely


@dataclass(frozen=True, eq=False)
class AffineMap:
    """A compiled affine expression of the flat y: ``evaluate(values, y)`` (y = 0 where left out) and its coefficients."""

    evaluate: Callable[..., Array]
    coefficients: Coefficients
    fixed: Float[np.ndarray, " rows"] | None  # the offsets, where no parameter enters the expression at all

    @property
    def width(self) -> int:
        """The size of the flat y."""
        return int(self.coefficients.matrix.shape[1])


@dataclass(frozen=True, eq=False)
class CompiledRows:
    """Some rows ``A y + b`` of an affine map."""

    source: AffineMap
    index: Int[np.ndarray, " rows"]

    @cached_property
    def pattern(self) -> sp.csr_array:
        """Coefficients of these rows (absolute values that show the pattern where they are not constant)."""
        return self.source.coefficients.matrix[self.index]

    @property
    def constant(self) -> bool:
        """Whether the coefficients are the same in every environment."""
        return self.source.coefficients.constant

    def offsets(self, values: Values) -> Float[Array, " rows"]:
        """The vector b of ``A y + b``."""
        return self._at(values) if self.source.fixed is None else jnp.asarray(self.source.fixed[self.index], float)

    def sums(self, values: Values) -> Float[Array, " rows"]:
        """The product A @ 1, which for single-entry rows is the coefficient itself."""
        zero = jnp.zeros(self.source.width)
        return jax.jvp(lambda y: self._at(values, y), (zero,), (jnp.ones_like(zero),))[1]

    def coefficients(self, values: Values) -> Float[Array, " nonzeros"]:
        """The nonzero coefficients in the order of ``pattern``, for rows with disjoint supports."""
        pattern = self.pattern
        if self.constant:
            return jnp.asarray(pattern.data, float)
        sums = jax.grad(lambda y: jnp.sum(self._at(values, y)))(jnp.zeros(self.source.width))
        return sums[pattern.indices.astype(np.int32)]  # each column meets one row, so its sum is the coefficient

    def dense(self, values: Values, entries: Int[np.ndarray, " n"]) -> Float[Array, "rows n"]:
        """The rows' matrix on ``entries``."""
        if self.constant:
            return jnp.asarray(self.pattern[:, entries].toarray(), float)

        def on_entries(part: Array) -> Array:
            return self._at(values, jnp.zeros(self.source.width).at[entries.astype(np.int32)].set(part))

        jacobian = jax.jacrev if len(self.index) < len(entries) else jax.jacfwd
        return jacobian(on_entries)(jnp.zeros(len(entries)))

    def _at(self, values: Values, y: Float[Array, " size"] | None = None) -> Float[Array, " rows"]:
        return self.source.evaluate(values, y)[self.index.astype(np.int32)]  # 64-bit indices fail in single precision


def merged(rows: Iterable[CompiledRows]) -> tuple[CompiledRows, ...]:
    """The same rows with those of one map together, so that each map is evaluated once."""
    by_map: dict[int, list[CompiledRows]] = {}
    for row in rows:
        by_map.setdefault(id(row.source), []).append(row)
    return tuple(CompiledRows(same[0].source, np.concatenate([r.index for r in same])) for same in by_map.values())

"""Rows of compiled affine expressions: coefficients and offsets in an environment."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from hierfl.compiler.expressions.program import Array
from hierfl.compiler.sets.coefficients import Coefficients

Values = Mapping[int, Any]


@dataclass(frozen=True, eq=False)
class AffineMap:
    """A compiled affine expression of the flat y: ``evaluate(values, y)`` (y = 0 where left out) and its coefficients."""

    evaluate: Callable[..., Array]
    coefficients: Coefficients
    fixed: np.ndarray | None  # the offsets, where no parameter enters the expression at all

    @property
    def width(self) -> int:
        """Size of the flat y."""
        return int(self.coefficients.matrix.shape[1])


@dataclass(frozen=True, eq=False)
class Rows:
    """Some rows ``A y + b`` of an affine map."""

    source: AffineMap
    index: np.ndarray

    @cached_property
    def pattern(self) -> sp.csr_array:
        """Coefficients of these rows (absolute values that show the pattern where they are not constant)."""
        return self.source.coefficients.matrix[self.index]

    @property
    def constant(self) -> bool:
        """Whether the coefficients are the same in every environment."""
        return self.source.coefficients.constant

    def offsets(self, values: Values) -> Array:
        """b."""
        return self._at(values) if self.source.fixed is None else jnp.asarray(self.source.fixed[self.index], float)

    def sums(self, values: Values) -> Array:
        """A @ 1, which for single-entry rows is the coefficient itself."""
        zero = jnp.zeros(self.source.width)
        return jax.jvp(lambda y: self._at(values, y), (zero,), (jnp.ones_like(zero),))[1]

    def coefficients(self, values: Values) -> Array:
        """The nonzero coefficients in the order of ``pattern``, for rows with disjoint supports."""
        pattern = self.pattern
        if self.constant:
            return jnp.asarray(pattern.data, float)
        sums = jax.grad(lambda y: jnp.sum(self._at(values, y)))(jnp.zeros(self.source.width))
        return sums[pattern.indices]  # each column meets one row, so its sum is the coefficient

    def dense(self, values: Values, entries: np.ndarray) -> Array:
        """The rows' matrix on ``entries``."""
        if self.constant:
            return jnp.asarray(self.pattern[:, entries].toarray(), float)

        def on_entries(part: Array) -> Array:
            return self._at(values, jnp.zeros(self.source.width).at[entries].set(part))

        jacobian = jax.jacrev if len(self.index) < len(entries) else jax.jacfwd
        return jacobian(on_entries)(jnp.zeros(len(entries)))

    def _at(self, values: Values, y: Any = None) -> Array:
        return self.source.evaluate(values, y)[self.index.astype(np.int32)]  # 64-bit indices fail in single precision


def merged(rows: Iterable[Rows]) -> tuple[Rows, ...]:
    """The same rows with those of one map together, so that each map is evaluated once."""
    by_map: dict[int, list[Rows]] = {}
    for row in rows:
        by_map.setdefault(id(row.source), []).append(row)
    return tuple(Rows(same[0].source, np.concatenate([r.index for r in same])) for same in by_map.values())

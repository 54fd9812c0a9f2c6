"""Linear systems of optimality conditions, [P A'; A 0], which may be singular and still have solutions.

Dependent rows (every conservation law has them) and flat objectives are the normal case. Small systems are decomposed: what the
null space sees is left out. Large ones are factorised with a little of the identity beside, [P + d, A'; A, -d], which is always
possible, and the solution is refined until the residual is rounding: a proximal point method, whose factor is d / (d + lambda).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float
from scipy.sparse.linalg import splu

DENSE = 160  # unknowns up to which a system is decomposed
FIRM = 1e-8  # of the identity, in units in which the system's entries are about 1
FAINT = 1e-12  # of the largest eigenvalue, from which one counts as none
REFINEMENTS = 60


class Saddle:
    """The system of one P and some rows."""

    def __init__(self, p: Any, rows: Any) -> None:
        self.width, self.count = p.shape[0], rows.shape[0]
        system = sp.bmat([[p, rows.T], [rows, None]], format="csc") if self.count else sp.csc_array(p)
        self._units = _equilibrated(system)
        self._system = sp.csc_array(sp.diags_array(self._units) @ system @ sp.diags_array(self._units))

    def solve(
        self, right: Float[np.ndarray, " width"], below: Float[np.ndarray, " count"]
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """(v, w, what is left of the system relative to the right side) for P v + rows' w = right, rows v = below."""
        wanted = self._units * np.concatenate([right, below])
        size = float(np.abs(wanted).max(initial=0.0))
        if size == 0.0 or not np.isfinite(size):
            return np.zeros(self.width), np.zeros(self.count), 0.0 if size == 0.0 else np.inf
        found = self._inverted(wanted)
        left = wanted - self._system @ found
        best = float(np.abs(left).max())
        for _ in range(REFINEMENTS):
            if best <= 1e-16 * size:
                break
            better = found + self._inverted(left)
            rest = wanted - self._system @ better
            error = float(np.abs(rest).max())
            if not error < 0.9 * best:
                break
            found, left, best = better, rest, error
        found = found * self._units
        return found[: self.width], found[self.width :], best / size

    @property
    def dense(self) -> bool:
        """Whether it is decomposed."""
        return self._system.shape[0] <= DENSE

    def _inverted(self, wanted: np.ndarray) -> np.ndarray:
        if self.dense:
            values, vectors = self._decomposed
            return np.asarray(vectors @ ((vectors.T @ wanted) / values))
        return np.asarray(self._factor.solve(wanted))

    @cached_property
    def _decomposed(self) -> tuple[np.ndarray, np.ndarray]:
        """The eigenvalues that are not zero, and their vectors."""
        values, vectors = np.linalg.eigh(self._system.toarray())
        kept = np.abs(values) > FAINT * np.abs(values).max(initial=0.0)
        return values[kept], vectors[:, kept]

    @cached_property
    def _factor(self) -> Any:
        firm = np.concatenate([np.full(self.width, FIRM), np.full(self.count, -FIRM)])
        matrix = sp.csc_matrix(self._system + sp.diags_array(firm))
        return splu(matrix, permc_spec="MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})


def _equilibrated(system: Any) -> np.ndarray:
    """Powers of two that bring the largest entry of each row and column to about 1 (Ruiz, 2001)."""
    units, scaled = np.ones(system.shape[0]), abs(system)
    for _ in range(4):
        largest = np.asarray(scaled.max(axis=0).todense()).reshape(-1)
        step = np.where(largest > 0, 1.0 / np.sqrt(np.where(largest > 0, largest, 1.0)), 1.0)
        units *= step
        scaled = sp.diags_array(step) @ scaled @ sp.diags_array(step)
    return np.asarray(np.exp2(np.round(np.log2(units))))

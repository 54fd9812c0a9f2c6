"""Linear systems of optimality conditions, [P A'; A 0], which may be singular and still have solutions.

Dependent rows (every conservation law has them) and flat objectives are the normal case. Small ones are decomposed where they
are singular: what the null space sees is left out. Large ones are factorised with a little of the identity beside, [P + d, A'; A, -d], which is always
possible, without pivots and so with little filling in, and the solution is refined until the residual is rounding: a proximal point
method, whose factor is d / (d + lambda). What rows with a single entry fix is left out before. Where that is slow, a smaller d with
pivots is tried, unless what is left does not change at all.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from copy import copy
from functools import cached_property
from threading import Lock
from typing import Any, NamedTuple, TypeVar

import numpy as np
import qdldl
import scipy.sparse as sp
from jaxtyping import Float
from scipy.linalg import svd
from scipy.linalg.lapack import dgecon, dgetrf, dgetrs, dsycon, dsytrf, dsytrs
from scipy.sparse.linalg import splu

from hierfl.compiler.programs.small_and_sparse import (
    Matrix,
    as_array,
    columns_scaled,
    count_in_rows,
    entries_of,
    is_dense,
    largest_in_rows,
    rows_scaled,
    same,
)
from hierfl.jaxtools.interruption import heed

DENSE = 400  # unknowns up to which a system is decomposed; up to
FILLED, FULL = 4_000, 0.15  # so many where it has as many entries, a share of all
UNCERTAIN, OF_MAPS = 1e-11, 1e-8  # the inverse of a condition number, from which a null space is looked for; of maps, whose pivots leave more
FAINT, DEPENDENT = 1e-12, 1e-13  # of the largest curvature, and of the largest singular value of rows, up to which one counts as none
FIRM = ((1e-6, 0.0), (1e-10, 1.0))  # d, where the system's entries are about 1, and the threshold for pivots
FULL_FACTORS = 5_000_000  # entries of factors beyond which no pivots are tried
REFINEMENTS = 60
GOOD = 1e-12  # of the right side, that may be left before the next d is tried
COMES_BACK = 1e-6  # how far a generic vector of about 1 may be from what its image is solved for
KEPT = 12_000_000  # numbers in systems that are kept
TRIALS, STAYS = 3, 1e-6  # refinements in which what is left of a system without a solution is seen to change by no more than this

T = TypeVar("T")
_Parts = tuple[np.ndarray, np.ndarray, np.ndarray]  # left vectors, singular values that are not zero, right vectors


class Saddle:
    """The system of one P, ``symmetric`` or not, and some rows."""

    def __init__(self, p: Matrix, rows: Matrix, symmetric: bool = True) -> None:
        heed()  # every loop over programs comes by here
        self.width, self.count, self._symmetric = p.shape[0], rows.shape[0], symmetric
        self._p, self._rows = p, rows
        if is_dense(p) and is_dense(rows):
            self._by = self._at = np.zeros(0, int)
            system = np.zeros((self.width + self.count,) * 2)
            system[: self.width, : self.width] = p
            system[self.width :, : self.width], system[: self.width, self.width :] = rows, rows.T
        else:
            self._p, self._rows = p, rows = sp.csr_array(p), sp.csr_array(rows)
            self._by, self._at, self._entries = _bounds(rows)
            free, rest = self._free, self._rest
            inner, others = sp.csr_array(p[free][:, free]), sp.csr_array(rows[rest][:, free])
            system = sp.csr_array(sp.bmat([[inner, others.T], [others, None]])) if len(rest) else inner
            system = system.toarray() if system.shape[0] <= DENSE else system
        self._units = _equilibrated(abs(system) if symmetric else abs(system) + abs(system).T)
        self._system = _scaled(system, self._units)
        self._factors: dict[float, Any] = {}

    @cached_property
    def _free(self) -> np.ndarray:
        """The entries of v that no row fixes alone."""
        return np.delete(np.arange(self.width), self._at)

    @cached_property
    def _rest(self) -> np.ndarray:
        """The rows that fix no entry alone."""
        return np.delete(np.arange(self.count), self._by)

    def solve(
        self,
        right: Float[np.ndarray, " width"],
        below: Float[np.ndarray, " count"],
        noise: Float[np.ndarray, " width+count"] | float = 0.0,
    ) -> tuple[np.ndarray, np.ndarray, float]:
        """(v, w, what is left of the system relative to the right side) for P v + rows' w = right, rows v = below.

        ``noise`` is what rounding has left in each entry of the right side: no smaller d is tried for it.
        """
        whole = np.concatenate([right, below])
        if not len(self._by):
            return self._inner(whole, noise * np.ones(len(whole)), float(np.abs(self._units * whole).max(initial=0.0)))
        v, w = np.zeros(self.width), np.zeros(self.count)
        v[self._at] = below[self._by] / self._entries
        place = np.concatenate([self._free, self.width + self._rest])
        given = np.concatenate([self._p @ v, self._rows @ v])[place]
        size = float(np.abs(self._units * whole[place]).max(initial=0.0) + np.abs(self._units * given).max(initial=0.0))
        found, others, left = self._inner(whole[place] - given, (noise * np.ones(len(whole)))[place], size)
        v[self._free], w[self._rest] = found, others
        w[self._by] = (right - self._p @ v - self._rows.T @ w)[self._at] / self._entries
        return v, w, left

    def _inner(self, whole: np.ndarray, noise: np.ndarray, size: float) -> tuple[np.ndarray, np.ndarray, float]:
        """The same for what no row fixes alone; ``size`` is that of what adds up in the right side, in the system's units."""
        wanted, width = self._units * whole, len(self._free)
        if not float(np.abs(wanted).max(initial=0.0)) or not np.isfinite(size):
            return np.zeros(width), np.zeros(len(whole) - width), 0.0 if np.isfinite(size) else np.inf
        best, found = np.inf, np.full(len(wanted), np.nan)
        if self._is_small:
            best, found = self._refined(wanted, self._by_vectors)
        else:
            good = np.maximum(GOOD * size, self._units * noise)
            for firm, pivots in FIRM:
                left, other = self._refined(wanted, lambda v, d=firm, p=pivots: self._by_factor(v, d, p))
                best, found = (left, other) if left < best else (best, found)
                rest = wanted - self._system @ found
                if (np.abs(rest) <= good).all() or self._is_full or self._is_beyond(rest, firm, pivots):
                    break
        found = found * self._units
        return found[:width], found[width:], best / size

    @cached_property
    def is_regular(self) -> bool:
        """Whether it has one solution for every right side, as far as a generic one tells."""
        return self._pivoted is not None if self._is_small else self.comes_back

    @cached_property
    def comes_back(self) -> bool:
        """Whether a generic solution is found again from its right side."""
        return bool(max(np.abs(part).max(initial=0.0) for part in self.left_open) <= COMES_BACK)

    @cached_property
    def left_open(self) -> tuple[np.ndarray, np.ndarray]:
        """A generic vector of the null space: by what a generic solution, of numbers of about 1, differs from what is found for its right side."""
        v, w = (np.cos(np.arange(1, count + 1) ** 2) for count in (self.width, self.count))
        found, others, _ = self.solve(self._p @ v + self._rows.T @ w, self._rows @ v)
        return found - v, others - w

    @staticmethod
    def numbers_of(p: Matrix, a: Matrix) -> int:
        """The most that it may hold of some rows of A, about."""
        count = p.shape[0] + a.shape[0]
        entries = sum(part.size if is_dense(part) else part.nnz for part in (p, a, a))
        return 2 * count**2 if count <= DENSE or entries >= FULL * count**2 else 20 * (entries + count)

    @property
    def numbers(self) -> int:
        """How many it holds, about."""
        count = self._system.shape[0]
        return 2 * count**2 if self._is_small else 3 * self._system.nnz + sum(each.nnz for each in self._factors.values() if each)

    @cached_property
    def _is_small(self) -> bool:
        """Whether it is decomposed as a dense matrix."""
        count = self._system.shape[0]
        full = is_dense(self._system) or self._system.nnz >= FULL * count**2
        return count <= DENSE or (count <= FILLED and full)

    @property
    def _is_full(self) -> bool:
        """Whether the factors of what it is without pivots are so full that with pivots there is no end to it."""
        factor = self._factors[FIRM[0][0]]
        return factor is not None and factor.nnz > FULL_FACTORS

    def _refined(self, wanted: np.ndarray, inverted: Any) -> tuple[float, np.ndarray]:
        """(what is left, the solution), made better by itself as long as that helps."""
        found = inverted(wanted)
        left = wanted - self._system @ found
        best = float(np.abs(left).max())
        if not np.isfinite(best):
            return np.inf, found
        size = float(np.abs(wanted).max())
        for _ in range(REFINEMENTS):
            if best <= 1e-16 * size:
                break
            better = found + inverted(left)
            rest = wanted - self._system @ better
            error = float(np.abs(rest).max())
            if not error < 0.9 * best:
                break
            found, left, best = better, rest, error
        return best, found

    def _is_beyond(self, rest: np.ndarray, firm: float, pivots: float) -> bool:
        """Whether what is left stays: then it is of the null space, or of eigenvalues that are as good as none."""
        size = float(np.abs(rest).max())
        for _ in range(TRIALS):
            rest = rest - self._system @ self._by_factor(rest, firm, pivots)
            before, size = size, float(np.abs(rest).max())
            if abs(before - size) <= STAYS * before:
                return True
        return False

    def _by_vectors(self, wanted: np.ndarray) -> np.ndarray:
        if self._pivoted is not None:
            return self._pivoted(wanted)
        (to_rows, values, ways), flat, (left, curved, right) = self._decomposed
        above, below = wanted[: len(ways)], wanted[len(ways) :]
        p = as_array(self._system)[: len(ways), : len(ways)]
        v = ways @ ((to_rows.T @ below) / values)
        v = v + flat @ (right @ ((left.T @ (flat.T @ (above - p @ v))) / curved))
        w = to_rows @ ((ways.T @ (above - p @ v)) / values)
        return np.concatenate([v, w])

    @cached_property
    def _pivoted(self) -> Callable[..., np.ndarray] | None:
        """What solves it, or its transpose (1), by a factorisation with pivots (Bunch and Kaufman, 1977, or LU); None where it is singular, or nearly."""
        system = as_array(self._system)
        if not (len(system) and np.isfinite(system).all()):
            return None
        size = float(np.abs(system).sum(axis=0).max())
        if self._symmetric:
            factor, pivots, failed = dsytrf(system, lwork=64 * len(system))
            certain = not failed and dsycon(factor, pivots, size)[0] > UNCERTAIN
            return (lambda wanted: np.asarray(dsytrs(factor, pivots, wanted)[0])) if certain else None
        factor, pivots, failed = dgetrf(system)
        certain = not failed and dgecon(factor, size)[0] > OF_MAPS
        return (lambda wanted, turned=0: np.asarray(dgetrs(factor, pivots, wanted, turned)[0])) if certain else None

    @cached_property
    def _decomposed(self) -> tuple[_Parts, np.ndarray, _Parts]:
        """(the rows, directions that no row sees, P along these): the system itself would square how far rows are from being dependent."""
        system, width = as_array(self._system), len(self._free)
        to_rows, values, ways = svd(system[width:, :width], lapack_driver="gesvd")
        count = int((values > DEPENDENT * values.max(initial=0.0)).sum())
        flat = ways[count:].T
        left, curved, right = svd(flat.T @ system[:width, :width] @ flat, lapack_driver="gesvd")
        bent = int((curved > FAINT * np.abs(system[:width, :width]).max(initial=0.0)).sum())
        return (to_rows[:, :count], values[:count], ways[:count].T), flat, (left[:, :bent], curved[:bent], right[:bent].T)

    @cached_property
    def turned(self) -> Saddle:
        """That of P', by the same factors."""
        if self._symmetric:
            return self
        other = copy(self)
        other._p, other._system, other._factors = self._p.T, self._system.T, {}
        if self._is_small and (pivoted := self._pivoted) is not None:
            other._pivoted = lambda wanted: pivoted(wanted, 1)
        elif self._is_small:
            rows, flat, (left, curved, right) = self._decomposed
            other._decomposed = rows, flat, (right, curved, left)
        return other

    def _by_factor(self, wanted: np.ndarray, firm: float, pivots: float) -> np.ndarray:
        if firm not in self._factors:
            signs = np.where(np.arange(self._system.shape[0]) < len(self._free), firm, -firm)
            matrix = sp.csc_matrix(self._system + sp.diags_array(signs))
            try:
                if self._symmetric and not pivots:
                    self._factors[firm] = _Factor.of(matrix)
                else:
                    order, pivots = ("MMD_AT_PLUS_A", pivots) if self._symmetric else ("COLAMD", 1.0)
                    self._factors[firm] = splu(matrix, order, diag_pivot_thresh=pivots)
            except RuntimeError:  # QDLDL's and SuperLU's word for a pivot that is zero
                self._factors[firm] = None
        factor = self._factors[firm]
        return np.full(len(wanted), np.nan) if factor is None else np.asarray(factor.solve(wanted))


class _Factor(NamedTuple):
    """L D L' by QDLDL, in AMD's order: SuperLU's own for symmetric matrices takes ten times as long where columns are full."""

    solve: Callable[[np.ndarray], np.ndarray]
    nnz: int

    @classmethod
    def of(cls, matrix: sp.csc_matrix) -> _Factor:
        solver = qdldl.Solver(matrix)
        return cls(solver.solve, 2 * solver.factors()[0].nnz)


def _bounds(rows: Matrix) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(rows, columns, numbers) of rows with a single entry, one for each column."""
    alone = np.flatnonzero(count_in_rows(rows) == 1)
    row, column, value = entries_of(rows[alone])
    _, first = np.unique(column, return_index=True)
    return alone[row[first]], column[first], value[first]


def _equilibrated(sizes: Matrix) -> np.ndarray:
    """Powers of two that bring the largest entry of each row and column, of sizes that are symmetric, to about 1 (Ruiz, 2001)."""
    units = np.ones(sizes.shape[0])
    for _ in range(4 if len(units) else 0):
        scaled = _scaled(sizes, units) if (units != 1.0).any() else sizes
        most = scaled.max(axis=0) if is_dense(scaled) else largest_in_rows(scaled)
        units = units / np.sqrt(np.where(most > 0, most, 1.0))
    return np.asarray(np.exp2(np.round(np.log2(units))))


def _scaled(matrix: Matrix, units: np.ndarray) -> Matrix:
    return columns_scaled(rows_scaled(matrix, units), units)


class Saddles:
    """What programs that differ in their parameters had in common: the systems of one P and A by the rows that hold.

    ``held`` are the rows that did last, ``inside`` is a point inside of a domain, with what that is made of.
    """

    def __init__(self) -> None:
        self.held: np.ndarray | None = None
        self._inside: tuple[list[Matrix], Any] = [], None
        self._of: list[Matrix] = []
        self._kept: OrderedDict[bytes, Saddle] = OrderedDict()
        self._numbers: dict[bytes, int] = {}
        self._one_at_a_time = Lock()  # seeds of one problem run on threads

    def inside(self, domain: list[Matrix], find: Callable[[], T]) -> T:
        """What is found of a domain, which often does not move."""
        kept = self._inside
        if not same(kept[0], domain):
            kept = self._inside = domain, find()
        return kept[1]

    def at(self, p: Matrix, a: Matrix, held: np.ndarray, symmetric: bool = True) -> Saddle:
        key = held.tobytes()
        with self._one_at_a_time:
            if not same(self._of, [p, a]):
                self._of = [p, a]
                self._kept.clear()
                self._numbers.clear()
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
            if self._kept:  # the last one has its factors by now
                last = next(reversed(self._kept))
                self._numbers[last] = self._kept[last].numbers
            self._kept[key] = found = Saddle(p, a[held], symmetric)
            self._numbers[key] = found.numbers
            while len(self._kept) > 1 and sum(self._numbers.values()) > KEPT:
                del self._numbers[self._kept.popitem(last=False)[0]]
            return found

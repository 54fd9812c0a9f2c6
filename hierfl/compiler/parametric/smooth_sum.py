"""Sums of smooth functions of linear forms, in numbers: sum_k weight_k s(form_k u + shift_k)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from hierfl.compiler.parametric.small_and_sparse import Matrix, columns_scaled, is_dense, placed, stacked
from hierfl.compiler.parametric.smooth_atoms import SmoothAtom


@dataclass(frozen=True, eq=False)
class SmoothTerm:
    """One atom: ``form`` (n k, width), ``shift`` (n k,), ``weight`` (n,)."""

    atom: SmoothAtom
    block: int
    form: Matrix
    shift: np.ndarray
    weight: np.ndarray

    def arguments(self, u: np.ndarray) -> np.ndarray:
        """The arguments at u: (n, k)."""
        return np.asarray(self.form @ u + self.shift).reshape(-1, self.block)

    def curvature(self, u: np.ndarray) -> np.ndarray:
        """The weighted curvatures at u: (n, k, k); 0 where there is no weight."""
        counted = self.weight != 0
        out = np.zeros((len(self.weight), self.block, self.block))
        out[counted] = self.weight[counted, None, None] * self.atom.curvature(self.arguments(u)[counted])
        return out

    def slope(self, u: np.ndarray) -> np.ndarray:
        """The weighted slopes at u: (n, k)."""
        counted = self.weight != 0
        out = np.zeros((len(self.weight), self.block))
        out[counted] = self.weight[counted, None] * self.atom.slope(self.arguments(u)[counted])
        return out


@dataclass(frozen=True, eq=False)
class SmoothSum:
    """Some of them."""

    terms: Sequence[SmoothTerm]

    def value(self, u: np.ndarray) -> float:
        """The sum; infinite where it is not defined."""
        with np.errstate(all="ignore"):
            total = 0.0
            for term in self.terms:
                counted = term.weight != 0
                total += float(term.weight[counted] @ term.atom.value(term.arguments(u)[counted]))
        return total if np.isfinite(total) else np.inf

    def gradient(self, u: np.ndarray) -> np.ndarray:
        """Its gradient."""
        with np.errstate(all="ignore"):
            return np.asarray(sum(term.form.T @ term.slope(u).ravel() for term in self.terms))

    def gradient_size(self, u: np.ndarray) -> np.ndarray:
        """The size of what adds up in it."""
        with np.errstate(all="ignore"):
            return np.asarray(sum(abs(term.form).T @ np.abs(term.slope(u)).ravel() for term in self.terms))

    def hessian(self, u: np.ndarray) -> Matrix:
        """Its second derivative."""
        with np.errstate(all="ignore"):
            return sum(_weighted(term.form, term.curvature(u)) for term in self.terms)

    def placed(self, columns: np.ndarray, width: int) -> SmoothSum:
        """The same over a wider u, of which these entries are its own."""
        rows = [np.arange(term.form.shape[0]) for term in self.terms]
        forms = [placed(term.form, own, columns, (len(own), width)) for term, own in zip(self.terms, rows)]
        return SmoothSum([replace(term, form=form) for term, form in zip(self.terms, forms)])

    def in_units(self, units: np.ndarray) -> SmoothSum:
        """The same for u / units."""
        return SmoothSum([replace(term, form=columns_scaled(term.form, units)) for term in self.terms])

    @property
    def curved(self) -> Matrix:
        """Rows without which nothing changes: the forms that count, of soft maxima their differences."""
        return stacked([term.form[np.repeat(term.weight != 0, term.block)] for term in self.terms])

    def reach(self, u: np.ndarray, step: np.ndarray) -> float:
        """How much of a step stays inside of the domain, 1 at most."""
        longest = 1.0
        for term in self.terms:
            if term.atom.barrier:
                here, change = (
                    term.arguments(u)[term.weight != 0],
                    np.asarray(term.form @ step).reshape(-1, 1)[term.weight != 0],
                )
                falling = change < 0
                if falling.any():
                    longest = min(longest, 0.99 * float((here[falling] / -change[falling]).min()))
        return longest

    @property
    def barriers(self) -> Iterator[SmoothTerm]:
        """The terms whose slopes are infinite where they end."""
        return (term for term in self.terms if term.atom.barrier)


def _weighted(form: Matrix, blocks: np.ndarray) -> Matrix:
    """form' C form, C of these blocks."""
    from hierfl.compiler.parametric.small_and_sparse import gram

    count, k, _ = blocks.shape
    if k == 1:
        return gram(form, blocks[:, 0, 0])
    if is_dense(form):
        parts = form.reshape(count, k, -1)
        return np.einsum("nia,nij,njb->ab", parts, blocks, parts, optimize=True)
    import scipy.sparse as sp

    numbers = np.arange(count * k).reshape(count, k)
    rows, columns = np.repeat(numbers, k, axis=1).ravel(), np.tile(numbers, (1, k)).ravel()
    middle = sp.csr_array((blocks.ravel(), (rows, columns)), (count * k, count * k))
    return sp.csr_array(form.T @ middle @ form)

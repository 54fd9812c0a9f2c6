"""Sums of smooth functions of linear forms, in numbers: sum_k weight_k s(form_k u + shift_k)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import scipy.sparse as sp

from hierfl.compiler.programs.small_and_sparse import Matrix, columns_scaled, gram, is_dense, placed, stacked
from hierfl.compiler.programs.smooth_atoms import SmoothAtom


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

    def curvature(self, u: np.ndarray, least: float = 0.0) -> np.ndarray:
        """The weighted curvatures at u: (n, k, k); 0 where there is no weight.

        Where one may be infinite, arguments count as ``least``, or as what rounding leaves of them, at least.
        """
        counted = self.weight != 0
        out, v = np.zeros((len(self.weight), self.block, self.block)), self.arguments(u)
        if self.atom.steep:
            near = np.maximum(self._unresolved(u), least)
            v = np.where(np.linalg.norm(v, axis=1, keepdims=True) < near, near / np.sqrt(self.block), v)
        out[counted] = self.weight[counted, None, None] * self.atom.curvature(v[counted])
        return out

    def curved(self, u: np.ndarray) -> Matrix:
        """The rows of the form that fix what is not linear in it near u."""
        counted = np.repeat(self.weight != 0, self.block)
        form = self.form[counted]
        if self.atom.flat is None:
            return form
        along = self.atom.flat(self.arguments(u)[self.weight != 0])
        along = along / np.linalg.norm(along, axis=1, keepdims=True)
        return _of_blocks(np.eye(self.block) - along[:, :, None] * along[:, None, :], form)

    def _unresolved(self, u: np.ndarray) -> np.ndarray:
        """What rounding leaves of each argument: (n, 1)."""
        terms = np.asarray(abs(self.form) @ np.abs(u) + np.abs(self.shift)).reshape(-1, self.block)
        return np.asarray(np.finfo(float).eps * terms.max(axis=1, keepdims=True))

    def rounding(self, u: np.ndarray) -> np.ndarray:
        """What slopes may be wrong by where curvatures are so large that the last bit of an argument tells: of each entry of u."""
        if not self.atom.steep:
            return np.zeros(len(u))
        steep = np.abs(self.curvature(u)).max(axis=(1, 2))[:, None] * self._unresolved(u) * np.ones(self.block)
        return np.asarray(abs(self.form).T @ steep.ravel())

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

    def rounding(self, u: np.ndarray) -> np.ndarray | float:
        """See ``SmoothTerm.rounding``."""
        with np.errstate(all="ignore"):
            return sum(term.rounding(u) for term in self.terms) if self.steep else 0.0

    def hessian(self, u: np.ndarray, least: float = 0.0) -> Matrix:
        """Its second derivative; see ``SmoothTerm.curvature``."""
        with np.errstate(all="ignore"):
            return sum(_weighted(term.form, term.curvature(u, least)) for term in self.terms)

    def placed(self, columns: np.ndarray, width: int) -> SmoothSum:
        """The same over a wider u, of which these entries are its own."""
        rows = [np.arange(term.form.shape[0]) for term in self.terms]
        forms = [placed(term.form, own, columns, (len(own), width)) for term, own in zip(self.terms, rows)]
        return SmoothSum([replace(term, form=form) for term, form in zip(self.terms, forms)])

    def in_units(self, units: np.ndarray) -> SmoothSum:
        """The same for u / units."""
        return SmoothSum([replace(term, form=columns_scaled(term.form, units)) for term in self.terms])

    def curved(self, u: np.ndarray) -> Matrix:
        """Rows without which nothing changes but by a linear function: the forms that count, but for what is flat along."""
        return stacked([term.curved(u) for term in self.terms])

    @property
    def forms(self) -> Matrix:
        """The forms that count."""
        return stacked([term.form[np.repeat(term.weight != 0, term.block)] for term in self.terms])

    @property
    def steep(self) -> bool:
        """Whether a curvature may be infinite."""
        return any(term.atom.steep for term in self.terms)

    def corners(self, u: np.ndarray, near: float) -> tuple[Matrix, np.ndarray]:
        """(forms, shifts) of the arguments whose curvature may be infinite and that are nearly 0."""
        forms, shifts = [self.terms[0].form[:0]], [np.zeros(0)]
        for term in self.terms:
            if term.atom.steep:
                small = np.repeat(np.linalg.norm(term.arguments(u), axis=1) <= near, term.block)
                forms.append(term.form[small])
                shifts.append(term.shift[small])
        return stacked(forms), np.concatenate(shifts)

    def reach(self, u: np.ndarray, step: np.ndarray) -> float:
        """How much of a step stays inside of the domain, 1 at most."""
        longest = 1.0
        for term in self.terms:
            if term.atom.barrier:
                here = term.arguments(u)[term.weight != 0]
                change = np.asarray(term.form @ step).reshape(-1, term.block)[term.weight != 0]
                rates = _rates(here, change) if term.atom.of_matrices else np.ravel(-change / here)
                if (rates > 0).any():
                    longest = min(longest, 0.99 / float(rates.max()))
        return longest

    @property
    def barriers(self) -> Iterator[SmoothTerm]:
        """The terms whose slopes are infinite where they end."""
        return (term for term in self.terms if term.atom.barrier)


def _rates(here: np.ndarray, change: np.ndarray) -> np.ndarray:
    """How fast eigenvalues of definite matrices fall beside what they are: those of -L^-1 D L^-T, L L' the matrix."""
    order = int(np.sqrt(here.shape[1]))
    roots = np.linalg.inv(np.linalg.cholesky(here.reshape(-1, order, order)))
    return np.asarray(np.linalg.eigvalsh(-roots @ change.reshape(-1, order, order) @ roots.swapaxes(1, 2))).ravel()


def _of_blocks(blocks: np.ndarray, form: Matrix) -> Matrix:
    """C form, C of these blocks (n, k, k) along its diagonal."""
    count, k, _ = blocks.shape
    if is_dense(form):
        return np.einsum("nij,njb->nib", blocks, form.reshape(count, k, -1)).reshape(form.shape)
    numbers = np.arange(count * k).reshape(count, k)
    rows, columns = np.repeat(numbers, k, axis=1).ravel(), np.tile(numbers, (1, k)).ravel()
    return sp.csr_array(sp.csr_array((blocks.ravel(), (rows, columns)), (count * k, count * k)) @ form)


def _weighted(form: Matrix, blocks: np.ndarray) -> Matrix:
    """form' C form, C of these blocks."""
    if blocks.shape[1] == 1:
        return gram(form, blocks[:, 0, 0])
    inner = form.T @ _of_blocks(blocks, form)
    return inner if is_dense(form) else sp.csr_array(inner)

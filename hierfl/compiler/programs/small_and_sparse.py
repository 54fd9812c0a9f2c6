"""Matrices that are NumPy's where they are small and SciPy's sparse ones where they are not: what the two do not say alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
from scipy.linalg import lstsq
from scipy.linalg.lapack import dgecon, dgetrf, dgetrs
from scipy.sparse.linalg import splu
from threadpoolctl import ThreadpoolController

SMALL = 40_000  # entries up to which a matrix is dense: below, SciPy's bookkeeping takes longer than NumPy's arithmetic

NEGATIVE = 1e-12  # of the largest entry, up to which an eigenvalue is none

T = TypeVar("T")
Matrix = Any  # an array, or one of SciPy's sparse arrays
Entries = tuple[np.ndarray, np.ndarray, np.ndarray]  # rows, columns, numbers


def on_one_thread(function: Callable[..., T]) -> Callable[..., T]:
    """The function with NumPy's and SciPy's factorisations on one thread each: threads of small ones wait for each other."""

    @wraps(function)
    def alone(*given: Any, **named: Any) -> T:
        with _libraries().limit(limits=1, user_api="blas"):
            return function(*given, **named)

    return alone


_libraries = cache(ThreadpoolController)


def is_dense(matrix: Matrix) -> bool:
    """Whether it is NumPy's."""
    return isinstance(matrix, np.ndarray)


def from_entries(
    rows: np.ndarray, columns: np.ndarray, values: np.ndarray, shape: tuple[int, int], dense: bool
) -> Matrix:
    """A matrix by rows; entries of one place add up."""
    if not dense:
        return sp.csr_array((values, (rows, columns)), shape)
    place = rows * shape[1] + columns
    return np.bincount(place, values, shape[0] * shape[1]).reshape(shape)


def entries_at(block: np.ndarray, down: int, right: int) -> Entries:
    """Those of a block that begins so far down and right."""
    rows, columns = np.nonzero(block)
    return rows + down, columns + right, block[rows, columns]


def together(entries: Sequence[Entries]) -> Entries:
    """Those of several as one."""
    nothing = np.zeros(0, int)
    rows, columns, numbers = zip((nothing, nothing, np.zeros(0)), *entries)
    return np.concatenate(rows), np.concatenate(columns), np.concatenate(numbers)


def stacked(parts: Sequence[tuple[int, Entries]], width: int, dense: bool) -> Matrix:
    """The matrix of so many rows each, one below the other."""
    starts = np.cumsum([0, *(count for count, _ in parts)])
    below = [(start + rows, columns, numbers) for start, (_, (rows, columns, numbers)) in zip(starts, parts)]
    return from_entries(*together(below), (int(starts[-1]), width), dense)


def vstack(parts: Sequence[Matrix]) -> Matrix:
    """As NumPy's, of either kind."""
    if all(map(is_dense, parts)):
        return np.vstack(parts)
    return sp.csr_array(sp.vstack([sp.csr_array(part) for part in parts]))


def hstack(parts: Sequence[Matrix]) -> Matrix:
    """As NumPy's, of either kind."""
    if all(map(is_dense, parts)):
        return np.hstack(parts)
    return sp.csr_array(sp.hstack([sp.csr_array(part) for part in parts]))


def zeros(rows: int, columns: int, like: Matrix) -> Matrix:
    """As NumPy's, of the kind of another."""
    return np.zeros((rows, columns)) if is_dense(like) else sp.csr_array((rows, columns))


def diagonal(numbers: np.ndarray, like: Matrix) -> Matrix:
    """The matrix with these numbers on its diagonal."""
    return np.diag(numbers) if is_dense(like) else sp.csr_array(sp.diags_array(numbers))


def columns_scaled(matrix: Matrix, units: np.ndarray) -> Matrix:
    """matrix diag(units)."""
    if is_dense(matrix):
        return matrix * units
    rows = sp.csr_array(matrix)
    return sp.csr_array((rows.data * units[rows.indices], rows.indices, rows.indptr), rows.shape)


def rows_scaled(matrix: Matrix, units: np.ndarray) -> Matrix:
    """diag(units) matrix."""
    if is_dense(matrix):
        return matrix * units[:, None]
    rows = sp.csr_array(matrix)
    return sp.csr_array((rows.data * np.repeat(units, np.diff(rows.indptr)), rows.indices, rows.indptr), rows.shape)


def largest(matrix: Matrix) -> float:
    """The largest size of an entry."""
    numbers = matrix if is_dense(matrix) else matrix.data
    return float(np.abs(numbers).max(initial=0.0))


def largest_in_rows(sizes: Matrix) -> np.ndarray:
    """The largest entry of each row of sizes by rows; 0 where there is none."""
    if is_dense(sizes):
        return np.asarray(sizes.max(axis=1, initial=0.0))
    most, filled = np.zeros(sizes.shape[0]), np.diff(sizes.indptr) > 0
    if filled.any():
        most[filled] = np.maximum.reduceat(sizes.data, sizes.indptr[:-1][filled])
    return most


def row_norms(matrix: Matrix) -> np.ndarray:
    """The Euclidean norm of each row."""
    if is_dense(matrix):
        return np.asarray(np.sqrt(np.einsum("ij,ij->i", matrix, matrix)))
    squares = matrix.multiply(matrix).sum(axis=1)
    return np.sqrt(np.asarray(squares, float).reshape(-1))


def placed(matrix: Matrix, rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> Matrix:
    """The matrix with its rows and columns at other places of a larger one."""
    if is_dense(matrix):
        out = np.zeros(shape)
        out[np.ix_(rows, columns)] = matrix
        return out
    coo = sp.coo_array(matrix)
    row, column = coo.coords
    return sp.csr_array((coo.data, (rows[row], columns[column])), shape)


def of_blocks(blocks: np.ndarray, form: Matrix) -> Matrix:
    """C form, C of these blocks (n, k, k) along its diagonal."""
    count, k, _ = blocks.shape
    if is_dense(form):
        return (blocks @ form.reshape(count, k, form.shape[1])).reshape(form.shape)
    numbers = np.arange(count * k).reshape(count, k)
    rows, columns = np.repeat(numbers, k, axis=1).ravel(), np.tile(numbers, (1, k)).ravel()
    return sp.csr_array(sp.csr_array((blocks.ravel(), (rows, columns)), (count * k, count * k)) @ form)


def gram(form: Matrix, inner: np.ndarray) -> Matrix:
    """form' C form, C diagonal (n,) or of blocks (n, k, k) along its diagonal."""
    blocks = inner if inner.ndim == 3 else inner[:, None, None]
    full = form if is_dense(form) else form.toarray() if form.shape[1] > 8 and form.nnz > 0.2 * np.prod(form.shape) else None
    if full is form:
        return full.T @ of_blocks(blocks, full)
    return sp.csr_array(form.T @ of_blocks(blocks, form) if full is None else full.T @ of_blocks(blocks, full))


def entries_of(matrix: Matrix) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(rows, columns, numbers) of what is not zero."""
    if is_dense(matrix):
        row, column = np.nonzero(matrix)
        return row, column, matrix[row, column]
    return sp.find(matrix)


def count_in_rows(matrix: Matrix) -> np.ndarray:
    """How many entries of each row are not zero."""
    return np.asarray((matrix != 0).sum(axis=1))


def as_array(matrix: Matrix) -> np.ndarray:
    """NumPy's."""
    return matrix if is_dense(matrix) else np.asarray(matrix.toarray())


def is_monotone(p: Matrix) -> bool:
    """Whether the map of a matrix is monotone, P + P' having no negative eigenvalue, up to rounding."""
    p = p + p.T
    size = largest(p)
    if not size:
        return True
    firm = p + NEGATIVE * size * diagonal(np.ones(p.shape[0]), p)
    if is_dense(p):
        return bool(np.linalg.eigvalsh(firm)[0] >= 0.0)
    factor = splu(sp.csc_matrix(firm), "MMD_AT_PLUS_A", diag_pivot_thresh=0.0, options={"SymmetricMode": True})
    return bool((factor.U.diagonal() > 0).all())  # the signs of the pivots are those of the eigenvalues (Sylvester)


def same(some: Sequence[Matrix], others: Sequence[Matrix]) -> bool:
    """Whether matrices have the same numbers."""
    return len(some) == len(others) and all(map(_equal, some, others))


def _equal(one: Matrix, other: Matrix) -> bool:
    if one is other:
        return True
    if one.shape != other.shape or is_dense(one) != is_dense(other):
        return False
    if is_dense(one):
        return np.array_equal(one, other)
    return all(np.array_equal(getattr(one, part), getattr(other, part)) for part in ("indptr", "indices", "data"))


REGULAR = 1e-9  # the inverse of a condition number, from which a linear system has one solution beyond doubt


def solved_or_shortest(system: np.ndarray, right: np.ndarray, faint: float) -> tuple[np.ndarray, int]:
    """(the solution, the rank): the shortest of least squares where it is not the only one.

    What is below ``faint`` times the largest counts as none, in a pivoted QR factorisation: one by singular values may not come to an end.
    """
    factors, pivots, info = dgetrf(system)
    if not info and dgecon(factors, np.abs(system).sum(axis=0).max(initial=0.0))[0] > REGULAR:
        return np.asarray(dgetrs(factors, pivots, right)[0]), len(system)
    found, _, rank, _ = lstsq(system, right, cond=faint, lapack_driver="gelsy", check_finite=False)
    return np.asarray(found), int(rank)

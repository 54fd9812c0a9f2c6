"""Factorisations of JAX in NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.linalg

Made = Callable[..., Any]


def triangular(equation: Any) -> Made:
    """Solve with a triangular matrix from the left or the right, over leading axes."""
    settings = equation.params
    left, lower, transposed = settings["left_side"], settings["lower"], settings["transpose_a"]
    unit = settings["unit_diagonal"]

    trans = int(transposed) if left else 1 - int(transposed)

    def one(a: Any, b: Any) -> Any:
        try:
            return scipy.linalg.solve_triangular(a, b, trans=trans, lower=lower, unit_diagonal=unit, check_finite=False)
        except np.linalg.LinAlgError:  # a zero on the diagonal, by which JAX divides
            return np.full_like(b, np.nan)

    def solve(a: Any, b: Any) -> Any:
        return _each(one, a, b) if left else np.swapaxes(_each(one, a, np.swapaxes(b, -1, -2)), -1, -2)

    return solve


def _each(function: Made, a: Any, b: Any) -> Any:
    """A function of two matrices, over leading axes."""
    if a.ndim == 2:
        return function(a, b)
    out = np.empty_like(b)
    for place in np.ndindex(a.shape[:-2]):
        out[place] = function(a[place], b[place])
    return out


def lu(x: Any) -> tuple[Any, Any, Any]:
    """Find (both factors in one matrix, pivots, the rows' permutation), over leading axes."""
    rows, least = x.shape[-2], min(x.shape[-2:])
    factors, lead = np.empty_like(x), x.shape[:-2]
    pivots, order = np.empty((*lead, least), np.int32), np.empty((*lead, rows), np.int32)
    (factorise,) = scipy.linalg.get_lapack_funcs(("getrf",), (x,))
    for place in np.ndindex(lead):
        factors[place], pivots[place], _ = factorise(x[place])
        permutation = np.arange(rows)
        for row, pivot in enumerate(pivots[place]):
            permutation[[row, pivot]] = permutation[[pivot, row]]
        order[place] = permutation
    return factors, pivots, order


def eigh(equation: Any) -> Made:
    """Find (eigenvectors, eigenvalues) of a symmetric matrix."""

    def pair(x: Any) -> tuple[Any, Any]:
        values, vectors = np.linalg.eigh(x)
        return vectors, values

    return pair


def svd(equation: Any) -> Made:
    """Find singular values, with vectors where they are asked for."""
    full, vectors = equation.params["full_matrices"], equation.params["compute_uv"]
    if not vectors:
        return lambda x: (np.linalg.svd(x, compute_uv=False),)

    def three(x: Any) -> tuple[Any, Any, Any]:
        left, values, right = np.linalg.svd(x, full_matrices=full)
        return values, left, right

    return three


def cholesky(x: Any) -> Any:
    """Find the lower factor, NaN where the matrix is not definite, as JAX has it."""
    try:
        return np.linalg.cholesky(x)
    except np.linalg.LinAlgError:
        return np.full_like(x, np.nan)

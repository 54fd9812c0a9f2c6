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

    def one(a: Any, b: Any) -> Any:
        return scipy.linalg.solve_triangular(
            a, b, trans=int(transposed), lower=lower, unit_diagonal=unit, check_finite=False
        )

    def solve(a: Any, b: Any) -> Any:
        if not left:
            flipped = np.swapaxes(b, -1, -2)
            return np.swapaxes(
                _each(
                    lambda m, r: scipy.linalg.solve_triangular(
                        m, r, trans=1 - int(transposed), lower=lower, unit_diagonal=unit, check_finite=False
                    ),
                    a,
                    flipped,
                ),
                -1,
                -2,
            )
        return _each(one, a, b)

    return solve


def _each(function: Made, a: Any, b: Any) -> Any:
    """A function of two matrices, over leading axes."""
    if a.ndim == 2:
        return function(a, b)
    out = np.empty_like(b)
    for place in np.ndindex(a.shape[:-2]):
        out[place] = function(a[place], b[place])
    return out


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

"""Singular value decompositions that do not give up: LAPACK's quicker method does for some matrices of many rows that are alike."""

from __future__ import annotations

import numpy as np
from scipy.linalg import svd


def decomposed(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(U, the singular values, V'), U and V' square."""
    try:
        left, values, right = np.linalg.svd(matrix)
    except np.linalg.LinAlgError:
        left, values, right = svd(matrix, lapack_driver="gesvd")
    return left, values, right


def solution_of(
    matrix: np.ndarray, right: np.ndarray, scale: float, rank: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """(a solution of least norm, a basis of the null space (width, k), by how much the solution misses)."""
    if not len(right):
        return right, np.zeros((0, 0)), 0.0
    left, values, rows = decomposed(matrix)
    kept = values > rank * values.max() if values.max() > 1e-14 * scale else np.zeros(len(values), bool)
    solution = rows[kept].T @ ((left[:, kept].T @ right) / values[kept])
    return solution, rows[~kept].T, float(np.linalg.norm(matrix @ solution - right))

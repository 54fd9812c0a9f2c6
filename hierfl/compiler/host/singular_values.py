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

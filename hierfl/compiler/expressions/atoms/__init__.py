"""The lowering table, one family of atoms per file; importing this package fills it."""

from hierfl.compiler.expressions.atoms import (
    affine_atoms,
    derivative_atoms,
    elementwise_atoms,
    matrix_atoms,
    norm_atoms,
    perspective_atoms,
    reduction_atoms,
    user_atoms,
)

__all__ = [
    "affine_atoms",
    "derivative_atoms",
    "elementwise_atoms",
    "matrix_atoms",
    "norm_atoms",
    "perspective_atoms",
    "reduction_atoms",
    "user_atoms",
]

"""The lowering table, one family of atoms per file; importing this package fills it."""

from hierfl.compiler.atoms import affine, derivative, elementwise, matrix, norms, perspective, reductions, user

__all__ = ["affine", "derivative", "elementwise", "matrix", "norms", "perspective", "reductions", "user"]

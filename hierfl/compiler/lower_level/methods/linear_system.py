"""A linear system: F is affine and y is free."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from hierfl.compiler.lower_level.certificate import LowerSolution
from hierfl.compiler.lower_level.methods.method import ExactMethod, Question, Verdict
from hierfl.compiler.lower_level.structure import LowerStructure

LIMIT = 1000  # scalars of y whose matrix is factorised


class LinearSystem(ExactMethod):
    """The method for an affine F without constraints: its solution of least norm."""

    name: ClassVar[str] = "linear system"
    cost: ClassVar[str] = "a factorisation, O(n^3)"
    at_once: ClassVar[bool] = True

    @classmethod
    def verdict(cls, structure: LowerStructure) -> Verdict:
        if structure.affine and structure.kind == "free" and structure.size <= LIMIT:
            return Verdict(True, "F is affine and y is unconstrained")
        return Verdict(False, f"needs an affine F, no constraints, and at most {LIMIT} variables")

    def answer(self, question: Question) -> LowerSolution:
        owner, start = question.owner, question.warm
        matrix = jax.vmap(owner.multiply, in_axes=1, out_axes=1)(jnp.eye(start.size, dtype=start.dtype))
        right = -owner.operator(jnp.zeros_like(start))
        y = least_norm_solution(matrix, right, self.structure.pattern.symmetric)
        size = jnp.linalg.norm(matrix)
        step = jnp.where(size > 0, 1.0 / jnp.where(size > 0, size, 1.0), 1.0)
        return question.certified_directly(y, step, jnp.zeros((), int))


def least_norm_solution(matrix: Float[Array, "n n"], right: Float[Array, " n"], symmetric: bool) -> Float[Array, " n"]:
    """The solution of least norm; of a symmetric matrix by its eigenvalues, those of rounding size left out."""
    if not symmetric:
        return jnp.linalg.lstsq(matrix, right)[0]
    values, vectors = jnp.linalg.eigh(0.5 * (matrix + matrix.T))
    cut = jnp.finfo(matrix.dtype).eps * matrix.shape[0] * jnp.abs(values).max()
    safe = jnp.where(jnp.abs(values) > cut, values, jnp.inf)
    return vectors @ ((vectors.T @ right) / safe)

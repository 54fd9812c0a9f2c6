"""Atoms of symmetric, positive definite and general matrices."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import jax.scipy as jsp
import numpy as np
from cvxpy.atoms.condition_number import condition_number
from cvxpy.atoms.gen_lambda_max import gen_lambda_max
from cvxpy.atoms.matrix_frac import MatrixFrac
from cvxpy.atoms.perspective import perspective
from cvxpy.atoms.quad_form import QuadForm, SymbolicQuadForm
from cvxpy.atoms.quantum_rel_entr import quantum_rel_entr
from cvxpy.atoms.suppfunc import SuppFuncAtom
from cvxpy.atoms.tr_inv import tr_inv
from cvxpy.atoms.von_neumann_entr import von_neumann_entr

from hierfl.compiler.registry import lowers, refuses


@lowers(QuadForm)
def _quadratic_form(atom: Any, x: Any, matrix: Any) -> Any:
    flat = jnp.ravel(x)
    return flat @ matrix @ flat


@lowers(MatrixFrac)
def _matrix_fraction(atom: Any, x: Any, matrix: Any) -> Any:
    columns = x if jnp.ndim(x) == 2 else x[:, None]
    return jnp.sum(columns * jnp.linalg.solve(matrix, columns))


@lowers(cp.log_det)
def _log_determinant(atom: Any, value: Any) -> Any:
    sign, logarithm = jnp.linalg.slogdet(value)
    return jnp.where(sign > 0, logarithm, -jnp.inf)


@lowers(tr_inv)
def _trace_of_inverse(atom: Any, value: Any) -> Any:
    definite = jnp.linalg.eigvalsh(_symmetric(value))[0] > 0
    return jnp.where(
        definite,
        jnp.trace(jnp.linalg.inv(jnp.where(definite, value, jnp.eye(value.shape[0], dtype=value.dtype)))),
        jnp.inf,
    )


@lowers(cp.lambda_max)
def _largest_eigenvalue(atom: Any, value: Any) -> Any:
    return _sum_of_largest_eigenvalues(_symmetric(value), np.array([1.0]))


@lowers(cp.lambda_sum_largest)
def _largest_eigenvalues(atom: Any, value: Any) -> Any:
    whole = int(np.floor(atom.k))
    part = float(atom.k) - whole
    weights = np.array([1.0] * whole + ([part] if part else []))
    return _sum_of_largest_eigenvalues(_symmetric(value), weights)


@lowers(gen_lambda_max)
def _generalised_eigenvalue(atom: Any, a: Any, b: Any) -> Any:
    factor = jnp.linalg.cholesky(_symmetric(b))
    half = jsp.linalg.solve_triangular(factor, _symmetric(a), lower=True)
    reduced = jsp.linalg.solve_triangular(factor, half.T, lower=True)
    return _sum_of_largest_eigenvalues(_symmetric(reduced), np.array([1.0]))


@lowers(condition_number)
def _condition_number(atom: Any, value: Any) -> Any:
    one = np.array([1.0])
    return _sum_of_largest_eigenvalues(_symmetric(value), one) / -_sum_of_largest_eigenvalues(-_symmetric(value), one)


@lowers(cp.eye_minus_inv)
def _inverse_of_identity_minus(atom: Any, value: Any) -> Any:
    return jnp.linalg.inv(jnp.eye(value.shape[0], dtype=value.dtype) - value)


@lowers(cp.gmatmul)
def _geometric_product(atom: Any, value: Any) -> Any:
    matrix = jnp.asarray(np.asarray(atom.A.value, dtype=float), value.dtype)
    return jnp.exp(matrix @ jnp.log(value))


refuses("its value is a symbol of CVXPY's quadratic canonicalisation, never written by a user", SymbolicQuadForm)
refuses("support functions are defined by a conic program and have no closed form", SuppFuncAtom)
refuses("quantum atoms act on complex Hermitian matrices", quantum_rel_entr, von_neumann_entr)
refuses("the Perron-Frobenius eigenvalue belongs to geometric programs, which hierfl does not treat", cp.pf_eigenvalue)
refuses(
    "its definition holds a second expression tree; write t * f(x / t) with the atoms of f, or wrap it in hf.Function",
    perspective,
)


def _symmetric(value: Any) -> Any:
    return 0.5 * (value + value.T)


def _sum_of_largest_eigenvalues(value: Any, weights: np.ndarray) -> Any:
    """Weighted sum of the largest eigenvalues; the derivative uses eigenvectors, so repeated eigenvalues are safe."""

    @jax.custom_jvp
    def largest(matrix: Any) -> Any:
        ordered = jnp.linalg.eigvalsh(matrix)[::-1]
        return ordered[: len(weights)] @ jnp.asarray(weights, matrix.dtype)

    @largest.defjvp
    def _(primals: tuple[Any], tangents: tuple[Any]) -> tuple[Any, Any]:
        (matrix,), (tangent,) = primals, tangents
        values, vectors = jnp.linalg.eigh(matrix)
        top = vectors[:, ::-1][:, : len(weights)]
        scale = jnp.asarray(weights, matrix.dtype)
        return values[::-1][: len(weights)] @ scale, jnp.sum(jnp.einsum("ik,ij,jk->k", top, tangent, top) * scale)

    return largest(value)

"""Atoms of symmetric, positive definite and positive matrices.

Atoms that CVXPY defines on symmetric matrices act on the symmetric part, so that their gradients are symmetric.
"""

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
from cvxpy.atoms.quad_form import QuadForm, SymbolicQuadForm
from cvxpy.atoms.quantum_rel_entr import quantum_rel_entr
from cvxpy.atoms.suppfunc import SuppFuncAtom
from cvxpy.atoms.tr_inv import tr_inv
from cvxpy.atoms.von_neumann_entr import von_neumann_entr

from hierfl.compiler.expressions.atoms.spectral_values import eigenvalue_sum, symmetric
from hierfl.compiler.expressions.registry import lowers, refuses

_LARGEST = (1.0,)
_SQUARINGS = 40


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
    sign, logarithm = jnp.linalg.slogdet(symmetric(value))
    return jnp.where(sign > 0, logarithm, -jnp.inf)


@lowers(tr_inv)
def _trace_of_inverse(atom: Any, value: Any) -> Any:
    matrix = symmetric(value)
    definite = jnp.linalg.eigvalsh(jax.lax.stop_gradient(matrix))[0] > 0
    safe = jnp.where(definite, matrix, jnp.eye(matrix.shape[0], dtype=matrix.dtype))
    return jnp.where(definite, jnp.trace(jnp.linalg.inv(safe)), jnp.inf)


@lowers(cp.lambda_max)
def _largest_eigenvalue(atom: Any, value: Any) -> Any:
    return eigenvalue_sum(_LARGEST, value)


@lowers(cp.lambda_sum_largest)
def _largest_eigenvalues(atom: Any, value: Any) -> Any:
    whole = int(np.floor(atom.k))
    weights = (1.0,) * whole + (float(atom.k) - whole,)
    return eigenvalue_sum(weights[: value.shape[-1]], value)


@lowers(gen_lambda_max)
def _generalised_eigenvalue(atom: Any, a: Any, b: Any) -> Any:
    factor = jnp.linalg.cholesky(symmetric(b))
    half = jsp.linalg.solve_triangular(factor, symmetric(a), lower=True)
    return eigenvalue_sum(_LARGEST, jsp.linalg.solve_triangular(factor, half.T, lower=True))


@lowers(condition_number)
def _condition_number(atom: Any, value: Any) -> Any:
    return eigenvalue_sum(_LARGEST, value) / -eigenvalue_sum(_LARGEST, -value)


@lowers(cp.eye_minus_inv)
def _inverse_of_identity_minus(atom: Any, value: Any) -> Any:
    return jnp.linalg.inv(jnp.eye(value.shape[0], dtype=value.dtype) - value)


@lowers(cp.gmatmul, settings=("A",))
def _geometric_product(atom: Any, value: Any, exponents: Any) -> Any:
    return jnp.exp(exponents @ jnp.log(value))


@lowers(cp.pf_eigenvalue)
def _perron_eigenvalue(atom: Any, value: Any) -> Any:
    """u' A v / u' v with the Perron vectors from repeated squaring of A, which tends to v u' (A positive)."""

    def square(_: Any, power: Any) -> Any:
        squared = power @ power
        return squared / jnp.sum(squared)

    power = jax.lax.fori_loop(0, _SQUARINGS, square, value / jnp.sum(value))
    right, left = jnp.sum(power, axis=1), jnp.sum(power, axis=0)
    return left @ value @ right / (left @ right)


refuses("it is a symbol of CVXPY's own quadratic canonicalisation, never written by a user", SymbolicQuadForm)
refuses("a support function is defined by a conic program and has no closed form; write the set's own", SuppFuncAtom)
refuses("quantum atoms act on complex Hermitian matrices", quantum_rel_entr, von_neumann_entr)

"""Affine atoms. CVXPY vectorises in Fortran order; shapes are enforced by the program."""

from __future__ import annotations

import functools
import operator
from typing import Any

import jax.numpy as jnp
import numpy as np
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.binary_operators import DivExpression, MulExpression, multiply
from cvxpy.atoms.affine.broadcast_to import broadcast_to
from cvxpy.atoms.affine.concatenate import Concatenate
from cvxpy.atoms.affine.conj import conj
from cvxpy.atoms.affine.conv import conv, convolve
from cvxpy.atoms.affine.cumsum import cumsum
from cvxpy.atoms.affine.diag import diag_mat, diag_vec
from cvxpy.atoms.affine.hstack import Hstack
from cvxpy.atoms.affine.imag import imag
from cvxpy.atoms.affine.index import index, special_index
from cvxpy.atoms.affine.kron import kron
from cvxpy.atoms.affine.promote import Promote
from cvxpy.atoms.affine.real import real
from cvxpy.atoms.affine.reshape import reshape
from cvxpy.atoms.affine.sum import Sum
from cvxpy.atoms.affine.trace import Trace
from cvxpy.atoms.affine.transpose import transpose
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.atoms.affine.upper_tri import upper_tri
from cvxpy.atoms.affine.vstack import Vstack
from cvxpy.atoms.affine.wraps import (
    Wrap,
    hermitian_wrap,
    nonneg_wrap,
    nonpos_wrap,
    nsd_wrap,
    psd_wrap,
    skew_symmetric_wrap,
    symmetric_wrap,
)

from hierfl.compiler.expressions.registry import lowers


@lowers(AddExpression)
def _add(atom: Any, *values: Any) -> Any:
    return functools.reduce(operator.add, values)


@lowers(NegExpression)
def _negate(atom: Any, value: Any) -> Any:
    return -value


@lowers(MulExpression)
def _product(atom: Any, left: Any, right: Any) -> Any:
    # a * y of one-dimensional operands is a dot product; with a scalar it is a scaling
    return left @ right if jnp.ndim(left) and jnp.ndim(right) else left * right


@lowers(multiply)
def _multiply(atom: Any, left: Any, right: Any) -> Any:
    return left * right


@lowers(DivExpression)
def _divide(atom: Any, left: Any, right: Any) -> Any:
    return left / right


@lowers(Promote, broadcast_to)
def _broadcast(atom: Any, value: Any) -> Any:
    return jnp.broadcast_to(value, atom.shape)


@lowers(Sum)
def _sum(atom: Any, value: Any) -> Any:
    return jnp.sum(value, axis=atom.axis)


@lowers(Concatenate)
def _concatenate(atom: Any, *values: Any) -> Any:
    return jnp.concatenate(values, axis=atom.axis)


@lowers(Hstack)
def _hstack(atom: Any, *values: Any) -> Any:
    return jnp.hstack(values)


@lowers(Vstack)
def _vstack(atom: Any, *values: Any) -> Any:
    return jnp.vstack(values)


@lowers(kron)
def _kron(atom: Any, left: Any, right: Any) -> Any:
    return jnp.kron(left, right)


@lowers(conv, convolve)
def _convolve(atom: Any, left: Any, right: Any) -> Any:
    return jnp.convolve(jnp.ravel(left), jnp.ravel(right))


@lowers(cumsum)
def _cumsum(atom: Any, value: Any) -> Any:
    return jnp.cumsum(value, axis=atom.axis)


@lowers(diag_vec)
def _vector_to_diagonal(atom: Any, value: Any) -> Any:
    return jnp.diag(jnp.ravel(value), k=atom.k)


@lowers(diag_mat)
def _diagonal_to_vector(atom: Any, value: Any) -> Any:
    return jnp.diagonal(value, offset=atom.k)


@lowers(Trace)
def _trace(atom: Any, value: Any) -> Any:
    return jnp.trace(value, axis1=-2, axis2=-1)


@lowers(transpose)
def _transpose(atom: Any, value: Any) -> Any:
    return jnp.transpose(value, atom.axes)


@lowers(reshape)
def _reshape(atom: Any, value: Any) -> Any:
    return jnp.reshape(value, atom.shape, order=atom.order)


@lowers(upper_tri)
def _upper_triangle(atom: Any, value: Any) -> Any:
    rows, columns = np.triu_indices(value.shape[-1], k=1)
    return value[..., rows, columns]


@lowers(index)
def _index(atom: Any, value: Any) -> Any:
    return value[atom._orig_key]  # as CVXPY evaluates it; its normalised key ends negative steps at -1


@lowers(special_index)
def _special_index(atom: Any, value: Any) -> Any:
    keys = atom.key if isinstance(atom.key, tuple) else (atom.key,)
    return value[tuple(np.asarray(key) if isinstance(key, list) else key for key in keys)]


@lowers(
    Wrap, nonneg_wrap, nonpos_wrap, psd_wrap, nsd_wrap, symmetric_wrap, hermitian_wrap, skew_symmetric_wrap, real, conj
)
def _identity(atom: Any, value: Any) -> Any:
    return value


@lowers(imag)
def _imaginary(atom: Any, value: Any) -> Any:
    return jnp.zeros_like(value)

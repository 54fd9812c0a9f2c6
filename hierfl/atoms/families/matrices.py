"""Atoms of positive definite and positive matrices: determinants, inverses and geometric products.

Atoms that CVXPY defines on symmetric matrices act on the symmetric part, so that their gradients are symmetric.
"""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.quantum_rel_entr import quantum_rel_entr
from cvxpy.atoms.tr_inv import tr_inv
from cvxpy.atoms.von_neumann_entr import von_neumann_entr
from cvxpy.expressions.expression import Expression
from scipy.special import entr, rel_entr

from hierfl.atoms.algebra import times
from hierfl.atoms.formulas import Scalars
from hierfl.atoms.intervals import EPS, Interval
from hierfl.atoms.loaded_late import jax, jnp, spectral_values, sympy
from hierfl.atoms.row import AtomRow, CurvatureSearch, NoAnswerError
from hierfl.atoms.writing.latex_pen import LatexPen, Template, beside
from hierfl.atoms.writing.pen import POWER, PRODUCT, SUM, Written
from hierfl.atoms.writing.phrase import Phrase
from hierfl.atoms.writing.spelling import Spelling

_LARGEST_ENTROPY = float(np.exp(-1.0))  # where -t log t is largest


def _log_determinant(atom: Any, value: Any) -> Any:
    """Minus infinity, without a gradient, where the matrix is not positive definite, whatever the sign of its determinant."""
    matrix = spectral_values.symmetric(value)
    definite = jnp.linalg.eigvalsh(jax.lax.stop_gradient(matrix))[0] > 0
    return jnp.where(definite, jnp.linalg.slogdet(jnp.where(definite, matrix, jnp.nan))[1], -jnp.inf)


def _trace_of_inverse(atom: Any, value: Any) -> Any:
    matrix = spectral_values.symmetric(value)
    definite = jnp.linalg.eigvalsh(jax.lax.stop_gradient(matrix))[0] > 0
    kept = jnp.where(definite, matrix, jnp.eye(matrix.shape[0], dtype=matrix.dtype))
    return jnp.where(definite, jnp.trace(jnp.linalg.inv(kept)), jnp.inf)


def _von_neumann_entropy(atom: Any, value: Any) -> Any:
    """-tr(X log X), in nats; -inf where X is not positive semidefinite."""
    matrix = spectral_values.symmetric(value)
    inside = spectral_values.is_semidefinite(matrix)
    kept = jnp.where(inside, matrix, jnp.eye(matrix.shape[0], dtype=matrix.dtype))
    return jnp.where(inside, spectral_values.entropy(kept), -jnp.inf)


def _trace_range(matrix: Interval) -> tuple[float, float]:
    """Bounds of the trace of a positive semidefinite matrix, rounded outward."""
    low, high = float(np.trace(matrix.lo)), float(np.trace(matrix.hi))
    slack = 8 * matrix.shape[0] * EPS * float(np.sum(np.diag(matrix.magnitude)))
    return max(low - slack, 0.0) if np.isfinite(low) else 0.0, max(high + slack, 0.0)


def _range_of_entropy(atom: Any, arguments: list[Interval]) -> Interval:
    """n eigenvalues of sum t: the entropy is least where one of them is t, greatest where all are t / n."""
    (argument,), size = atom.args, atom.args[0].shape[0]
    least, greatest = _trace_range(arguments[0])
    each = np.clip(_LARGEST_ENTROPY, least / size, greatest / size)
    high = size * float(entr(each))
    low = min(float(entr(least)), float(entr(greatest))) if argument.is_psd() else -np.inf
    slack = 16 * size * EPS * (1.0 + (greatest if np.isfinite(greatest) else 0.0))
    return Interval(np.asarray(low - slack), np.asarray(high + slack))


def _curvature_of_entropy(search: CurvatureSearch, atom: Any, upper: bool) -> Expression | None:
    """The Hessian is at most -1 over the largest eigenvalue, which is at most the trace."""
    (argument,) = atom.args
    if not upper or not search.is_affine(argument) or search.is_moved(argument):
        return None
    _, trace = _trace_range(search.range_of(argument))
    return times(-0.5 / trace, cp.sum_squares(argument)) if 0 < trace < np.inf else None


def _diagonal(value: Scalars) -> Scalars:
    """The diagonal of a matrix that has nothing else: no formula is known for the eigenvalues of others."""
    if any(value[place] != 0 for place in np.ndindex(*value.shape) if place[0] != place[1]):
        raise NoAnswerError("{atom} is of a matrix that is not diagonal: its eigenvalues have no formula.")
    return np.diagonal(value)


def _quantum_relative_entropy(atom: Any, x: Any, y: Any) -> Any:
    """tr(X (log X - log Y)), in nats; inf where one is not positive semidefinite, or X acts where Y does not.

    As CVXPY defines and solves it; its ``value`` scales X in the first term to trace 1.
    """
    x, y = spectral_values.symmetric(x), spectral_values.symmetric(y)
    both = spectral_values.is_semidefinite(x) & spectral_values.is_semidefinite(y)
    fixed_x, fixed_y = jax.lax.stop_gradient(x), jax.lax.stop_gradient(y)
    values, vectors = jnp.linalg.eigh(fixed_y)
    outside = jnp.sum(jnp.where(values <= 0, jnp.sum(vectors * (fixed_x @ vectors), axis=0), 0.0))
    inside = both & (outside <= x.shape[0] * jnp.finfo(x.dtype).eps * jnp.trace(fixed_x))
    one = jnp.eye(x.shape[0], dtype=x.dtype)
    kept_x, kept_y = jnp.where(inside, x, one), jnp.where(inside, y, one)
    value = -spectral_values.entropy(kept_x) - jnp.sum(kept_x * spectral_values.logarithm(kept_y))
    return jnp.where(inside, value, jnp.inf)


def _range_of_relative_entropy(atom: Any, arguments: list[Interval]) -> Interval:
    """At least the relative entropy of the traces, t log(t / s): no channel increases it (Lindblad, 1975)."""
    least, greatest = _trace_range(arguments[0])
    _, other = _trace_range(arguments[1])
    trace = np.clip(other * _LARGEST_ENTROPY, least, greatest)
    low = float(rel_entr(trace, other)) if np.isfinite(other) else -np.inf
    slack = 16 * atom.args[0].shape[0] * EPS * (1.0 + abs(low) + other)
    return Interval(np.asarray(low - slack if np.isfinite(low) else -np.inf), np.asarray(np.inf))


def _curvature_of_relative_entropy(search: CurvatureSearch, atom: Any, upper: bool) -> Expression | None:
    """In X alone the Hessian is at least 1 over the largest eigenvalue, which is at most the trace."""
    first, second = atom.args
    if upper or search.has_kept(second) or not search.is_affine(first) or search.is_moved(first):
        return None
    _, trace = _trace_range(search.range_of(first))
    return times(0.5 / trace, cp.sum_squares(first)) if 0 < trace < np.inf else None


def _latex_of_geometric_product(pen: LatexPen, phrase: Phrase) -> Written:
    matrix = pen.at(phrase.option("A"), PRODUCT)
    inner = beside(matrix, rf"\log\left({pen.listed(phrase.args)}\right)").text
    return Written(rf"\exp\left({inner}\right)", POWER)


_RELATIVE_ENTROPY = r"\mathrm{tr}\left(*1 \, \left(\log @1 - \log @2\right)\right)"

ROWS = (
    AtomRow((cp.log_det,), lower=_log_determinant, spellings=(Spelling("log_det", latex=r"\log\det"),)),
    AtomRow(
        (tr_inv,),
        lower=_trace_of_inverse,
        spellings=(Spelling("tr_inv", latex=Template(r"\mathrm{tr}\left(@1^{-1}\right)", POWER)),),
    ),
    AtomRow(
        (cp.eye_minus_inv,),
        range=lambda atom, arguments: Interval.free(atom.shape),
        lower=lambda atom, value: jnp.linalg.inv(jnp.eye(value.shape[0], dtype=value.dtype) - value),
        spellings=(Spelling("eye_minus_inv", latex=Template(r"\left(I - *1\right)^{-1}", POWER)),),
    ),
    AtomRow(
        (cp.gmatmul,),
        lower=lambda atom, value, exponents: jnp.exp(exponents @ jnp.log(value)),
        settings=("A",),
        copy=lambda atom, rebuild: cp.gmatmul(rebuild(atom.A), rebuild(atom.args[0])),  # its own takes the exponents for the argument
        spellings=(Spelling("gmatmul", {"A": None}, _latex_of_geometric_product),),
    ),
    AtomRow(
        (quantum_rel_entr,),
        lower=_quantum_relative_entropy,
        range=_range_of_relative_entropy,
        curvature=_curvature_of_relative_entropy,
        formula=lambda atom, x, y: sympy.Add(*(a * sympy.log(a / b) for a, b in zip(_diagonal(x), _diagonal(y)))),
        spellings=(Spelling("quantum_rel_entr", latex=Template(_RELATIVE_ENTROPY, POWER)),),
    ),
    AtomRow(
        (von_neumann_entr,),
        lower=_von_neumann_entropy,
        range=_range_of_entropy,
        curvature=_curvature_of_entropy,
        formula=lambda atom, value: sympy.Add(*(-v * sympy.log(v) for v in _diagonal(value))),
        spellings=(
            Spelling("von_neumann_entr", latex=Template(r"-\mathrm{tr}\left(*1 \log @1\right)", SUM)),
        ),
    ),
)

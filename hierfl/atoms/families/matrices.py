"""Atoms of positive definite and positive matrices: determinants, inverses and geometric products.

Atoms that CVXPY defines on symmetric matrices act on the symmetric part, so that their gradients are symmetric.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import cvxpy as cp
from cvxpy.atoms.quantum_rel_entr import quantum_rel_entr
from cvxpy.atoms.tr_inv import tr_inv
from cvxpy.atoms.von_neumann_entr import von_neumann_entr

from hierfl.atoms.row import AtomRow
from hierfl.atoms.writing import latex_pen
from hierfl.atoms.writing.latex_pen import Latex, LatexPen, Template, beside
from hierfl.atoms.writing.phrase import Phrase
from hierfl.atoms.writing.spelling import Spelling
from hierfl.jaxtools.lazy_module import lazy_module

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp

    from hierfl.atoms.numerics import spectral_values
else:
    jax, jnp = map(lazy_module, ("jax", "jax.numpy"))
    spectral_values = lazy_module("hierfl.atoms.numerics.spectral_values")

_QUANTUM = "quantum atoms act on complex Hermitian matrices"


def _log_determinant(atom: Any, value: Any) -> Any:
    sign, logarithm = jnp.linalg.slogdet(spectral_values.symmetric(value))
    return jnp.where(sign > 0, logarithm, -jnp.inf)


def _trace_of_inverse(atom: Any, value: Any) -> Any:
    matrix = spectral_values.symmetric(value)
    definite = jnp.linalg.eigvalsh(jax.lax.stop_gradient(matrix))[0] > 0
    kept = jnp.where(definite, matrix, jnp.eye(matrix.shape[0], dtype=matrix.dtype))
    return jnp.where(definite, jnp.trace(jnp.linalg.inv(kept)), jnp.inf)


def _inverse_of_identity_minus(atom: Any, value: Any) -> Any:
    return jnp.linalg.inv(jnp.eye(value.shape[0], dtype=value.dtype) - value)


def _geometric_product(atom: Any, value: Any, exponents: Any) -> Any:
    return jnp.exp(exponents @ jnp.log(value))


def _copy_geometric_product(atom: Any, rebuild: Callable[[Any], Any]) -> Any:
    """Its own copy takes the exponents for the argument."""
    return cp.gmatmul(rebuild(atom.A), rebuild(atom.args[0]))


def _latex_of_geometric_product(pen: LatexPen, phrase: Phrase) -> Latex:
    matrix = pen.at(phrase.option("A"), latex_pen.PRODUCT)
    inner = beside(matrix, rf"\log\left({pen.listed(phrase.args)}\right)").text
    return Latex(rf"\exp\left({inner}\right)", latex_pen.POWER)


_RELATIVE_ENTROPY = r"\mathrm{tr}\left(*1 \, \left(\log @1 - \log @2\right)\right)"

ROWS = (
    AtomRow((cp.log_det,), lower=_log_determinant, spellings=(Spelling("log_det", latex=r"\log\det"),)),
    AtomRow(
        (tr_inv,),
        lower=_trace_of_inverse,
        spellings=(Spelling("tr_inv", latex=Template(r"\mathrm{tr}\left(@1^{-1}\right)", latex_pen.POWER)),),
    ),
    AtomRow(
        (cp.eye_minus_inv,),
        lower=_inverse_of_identity_minus,
        spellings=(Spelling("eye_minus_inv", latex=Template(r"\left(I - *1\right)^{-1}", latex_pen.POWER)),),
    ),
    AtomRow(
        (cp.gmatmul,),
        lower=_geometric_product,
        settings=("A",),
        copy=_copy_geometric_product,
        spellings=(Spelling("gmatmul", {"A": None}, _latex_of_geometric_product),),
    ),
    AtomRow(
        (quantum_rel_entr,),
        refusal=_QUANTUM,
        spellings=(Spelling("quantum_rel_entr", latex=Template(_RELATIVE_ENTROPY, latex_pen.POWER)),),
    ),
    AtomRow(
        (von_neumann_entr,),
        refusal=_QUANTUM,
        spellings=(
            Spelling("von_neumann_entr", latex=Template(r"-\mathrm{tr}\left(*1 \log @1\right)", latex_pen.SUM)),
        ),
    ),
)

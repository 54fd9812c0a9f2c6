"""Eigenvalues and singular values, which have kinks where they meet."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.condition_number import condition_number
from cvxpy.atoms.gen_lambda_max import gen_lambda_max
from cvxpy.atoms.norm_nuc import normNuc
from cvxpy.atoms.sigma_max import sigma_max

from hierfl.atoms.families.norms import norm_spelling
from hierfl.atoms.intervals import Interval
from hierfl.atoms.loaded_late import jax, jnp, jsp, spectral_values
from hierfl.atoms.ranges import monotone
from hierfl.atoms.row import AtomRow
from hierfl.atoms.writing.latex_pen import LatexPen
from hierfl.atoms.writing.pen import PRODUCT, Written
from hierfl.atoms.writing.phrase import Phrase
from hierfl.atoms.writing.spelling import Spelling

_LARGEST = (1.0,)
_SQUARINGS = 40


def _largest_eigenvalues(atom: Any, value: Any) -> Any:
    whole = int(np.floor(atom.k))
    weights = (1.0,) * whole + (float(atom.k) - whole,)
    return spectral_values.eigenvalue_sum(weights[: value.shape[-1]], value)


def _generalised_eigenvalue(atom: Any, a: Any, b: Any) -> Any:
    factor = jnp.linalg.cholesky(spectral_values.symmetric(b))
    half = jsp.linalg.solve_triangular(factor, spectral_values.symmetric(a), lower=True)
    return spectral_values.eigenvalue_sum(_LARGEST, jsp.linalg.solve_triangular(factor, half.T, lower=True))


def _condition_number(atom: Any, value: Any) -> Any:
    largest, least = (spectral_values.eigenvalue_sum(_LARGEST, matrix) for matrix in (value, -value))
    return largest / -least


def _perron_eigenvalue(atom: Any, value: Any) -> Any:
    """u' A v / u' v with the Perron vectors from repeated squaring of A, which tends to v u' (A positive)."""

    def square(_: Any, power: Any) -> Any:
        squared = power @ power
        return squared / jnp.sum(squared)

    power = jax.lax.fori_loop(0, _SQUARINGS, square, value / jnp.sum(value))
    right, left = jnp.sum(power, axis=1), jnp.sum(power, axis=0)
    return left @ value @ right / (left @ right)


def _latex_of_largest(pen: LatexPen, phrase: Phrase) -> Written:
    inside = pen.listed(phrase.args)
    return Written(rf"\sum_{{j=1}}^{{{phrase.option('k')}}} \lambda_{{j}}\left({inside}\right)", PRODUCT)


ROWS = (
    AtomRow(
        (cp.lambda_max,),
        lower=lambda atom, value: spectral_values.eigenvalue_sum(_LARGEST, value),
        opaque=True,
        spellings=(Spelling("lambda_max", latex=r"\lambda_{\max}"),),
    ),
    AtomRow(
        (cp.lambda_sum_largest,),
        lower=_largest_eigenvalues,
        opaque=True,
        spellings=(Spelling("lambda_sum_largest", {"k": None}, _latex_of_largest),),
    ),
    AtomRow(
        (gen_lambda_max,),
        lower=_generalised_eigenvalue,
        opaque=True,
        spellings=(Spelling("gen_lambda_max", latex=r"\lambda_{\max}"),),
    ),
    AtomRow(
        (condition_number,),
        lower=_condition_number,
        opaque=True,
        spellings=(Spelling("condition_number", latex=r"\kappa"),),
    ),
    AtomRow(
        (cp.pf_eigenvalue,),
        range=lambda atom, arguments: monotone(atom, arguments) if (arguments[0].lo >= 0).all() else Interval.free(()),
        lower=_perron_eigenvalue,
        spellings=(Spelling("pf_eigenvalue", latex=r"\lambda_{\mathrm{pf}}"),),
    ),
    AtomRow(
        (sigma_max,),
        lower=lambda atom, value: spectral_values.singular_value_sum(True, value),
        opaque=True,
        spellings=(Spelling("sigma_max", latex=r"\sigma_{\max}"),),
    ),
    AtomRow(
        (normNuc,),
        lower=lambda atom, value: spectral_values.singular_value_sum(False, value),
        opaque=True,
        spellings=(norm_spelling("norm_nuc", r"\ast", text="nuc"),),
    ),
)

"""Quadratic atoms: sums of squares over a scalar, quadratic forms and matrix fractions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.matrix_frac import MatrixFrac
from cvxpy.atoms.quad_form import QuadForm, SymbolicQuadForm
from cvxpy.expressions.expression import Expression

from hierfl.atoms import narrowing
from hierfl.atoms.algebra import expanded, factored, inverse, product, times, vanishes
from hierfl.atoms.families.products import product_majorant
from hierfl.atoms.formulas import reduction
from hierfl.atoms.intervals import EPS, Interval, bounded, matmul
from hierfl.atoms.loaded_late import jax, jnp, sympy
from hierfl.atoms.ranges import everywhere, flat_at_zero, reshaped, value_at, within_rows
from hierfl.atoms.row import AtomRow, CurvatureSearch, Parts, Rebuild
from hierfl.atoms.writing.latex_pen import LatexPen, Template, raised, subscript
from hierfl.atoms.writing.pen import ATOM, POWER, PRODUCT, Written
from hierfl.atoms.writing.phrase import Phrase
from hierfl.atoms.writing.spelling import Reader, Spelling

# Values


def _sum_of_squares_over(atom: Any, value: Any, denominator: Any) -> Any:
    squares = jnp.sum(value * value, axis=atom.axis)
    divisor = atom.args[1]
    is_one = isinstance(divisor, cp.Constant) and divisor.value == 1
    below = jnp.reshape(denominator, ())
    return squares if is_one else jnp.where(below >= 0, squares / below, jnp.nan)


def _quadratic_form(atom: Any, x: Any, matrix: Any) -> Any:
    flat = x.ravel()  # of JAX's numbers, or of SymPy's
    return flat @ matrix @ flat


def _matrix_fraction(atom: Any, x: Any, matrix: Any) -> Any:
    columns = x if jnp.ndim(x) == 2 else x[:, None]
    least = jnp.linalg.eigvalsh(jax.lax.stop_gradient(matrix))[0]
    return jnp.where(least >= 0, jnp.sum(columns * jnp.linalg.solve(matrix, columns)), jnp.nan)


# Ranges


def _range_of_squares(atom: Any, arguments: list[Interval]) -> Interval:
    above, below = arguments
    high_below = np.maximum(below.hi, 0.0)
    low_below = np.maximum(below.lo, 0.0)
    low, high = value_at(atom, [above.mignitude, high_below]), value_at(atom, [above.magnitude, low_below])
    low = np.where(below.lo >= 0, low, -np.inf)
    return bounded(low, np.where((low_below > 0) & np.isfinite(high), high, np.inf)).widened(4 * (above.lo.size + 8) * EPS)


def _range_of_form(atom: Any, arguments: list[Interval]) -> Interval:
    vector, matrix = arguments
    flat = Interval(vector.lo.ravel(), vector.hi.ravel())
    return reshaped(matmul(flat, matmul(matrix, flat)), atom.shape)


# Curvature


def _curvature_of_squares(search: CurvatureSearch, atom: Any, upper: bool) -> Expression | None:
    above, below = atom.args
    if search.has_kept(below) or atom.axis is not None:
        return None
    parts = factored(search, above) if search.is_moved(above) else None
    squares = cp.sum_squares(above) if parts is None else cp.sum(cp.multiply(cp.square(parts[0]), cp.square(parts[1])))
    if not vanishes(below - 1):
        return search.bound(cp.multiply(inverse(below), squares), upper)
    return None if parts is None else search.bound(squares, upper)


def _majorant_of_form(atom: Any, parts: Parts, rebuild: Rebuild) -> Expression | None:
    vector, matrix = parts
    return None if vector is None or matrix is not None else vector @ (cp.abs(atom.args[1]) @ vector)


def _is_smooth(atom: Any, varies: Sequence[bool], enclosure: Callable[[Any], Interval]) -> bool:
    return not varies[1]


# Derivatives


def _pull_squares(atom: Any, index: int, adjoint: Expression) -> Expression | None:
    above, below = atom.args
    if index == 1:
        return None
    return times(expanded(times(2, times(adjoint, inverse(below))), atom.axis, above.shape), above)


def _pull_form(atom: Any, index: int, adjoint: Expression) -> Expression | None:
    vector, matrix = atom.args
    if index == 1:
        return None
    return times(expanded(times(2, adjoint), None, vector.shape), product(matrix, vector))


# Notation


def _read_squares(reader: Reader, atom: Any) -> Phrase:
    numerator, denominator = (reader(argument) for argument in atom.args)
    if denominator.is_number(1):
        return reader.operation(atom, (numerator,), head="sum_squares")
    return reader.operation(atom, (numerator, denominator))


def _latex_of_sum_of_squares(pen: LatexPen, phrase: Phrase) -> Written:
    (argument,) = phrase.args
    if not argument.shape:
        return raised(pen.at(argument, ATOM), "2", elementwise=False)
    kind = "F" if len(argument.shape) == 2 and phrase.option("axis") is None else "2"
    norm = rf"\left\Vert {pen.text(argument)} \right\Vert"
    return Written(f"{norm}{subscript([kind, *pen.settings(phrase)])}^{{2}}", POWER)


_FRACTION = Template(r"\frac{\left\Vert #1 \right\Vert_{2#,}^{2}}{#2}", PRODUCT)
_FORM = Spelling("quad_form", latex=Template(r"@1^{\top} \, *2 \, *1", PRODUCT))

ROWS = (
    AtomRow(
        (cp.quad_over_lin,),
        twice_smooth=everywhere,
        narrow=narrowing.of_quadratic_over_linear,
        lower=_sum_of_squares_over,
        keeps_rows=lambda atom: bool(atom.args[1].is_constant()) and within_rows(atom),
        range=_range_of_squares,
        curvature=_curvature_of_squares,
        majorant=product_majorant,
        smooth=_is_smooth,
        flat=flat_at_zero,
        derivative=_pull_squares,
        formula=reduction(lambda atom, entries, below: sympy.Add(*(e**2 for e in entries)) / below),
        read=_read_squares,
        spellings=(
            Spelling("quad_over_lin", latex=_FRACTION),
            Spelling("sum_squares", latex=_latex_of_sum_of_squares),
        ),
    ),
    AtomRow(
        (QuadForm,),
        twice_smooth=everywhere,
        lower=_quadratic_form,
        range=_range_of_form,
        majorant=_majorant_of_form,
        smooth=_is_smooth,
        derivative=_pull_form,
        formula=_quadratic_form,
        spellings=(_FORM,),
    ),
    AtomRow(
        (SymbolicQuadForm,),
        refusal="it is a symbol of CVXPY's own quadratic canonicalisation, never written by a user",
        spellings=(_FORM,),
    ),
    AtomRow(
        (MatrixFrac,),
        lower=_matrix_fraction,
        spellings=(Spelling("matrix_frac", latex=Template(r"@1^{\top} \, @2^{-1} \, *1", PRODUCT)),),
    ),
)

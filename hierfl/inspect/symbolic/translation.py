"""CVXPY expressions as arrays of SymPy scalars.

Affine atoms need no formula: each is evaluated by CVXPY itself, at 0 and at the unit vectors, which gives its coefficients.
The formulas of products and of nonlinear atoms are in their rows. Numbers become fractions: 0.1 is 1/10, and what a float
can only round (1/3) is the fraction meant, if its denominator is small.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.expressions.leaf import Leaf

from hierfl.atoms.formulas import Scalars, exact_array
from hierfl.atoms.row import NoAnswerError
from hierfl.atoms.table import row_of
from hierfl.errors import SymbolicError
from hierfl.language.expectation import SampleAverage
from hierfl.language.printing.text import expression_text


def translate(expression: Any, environment: Mapping[int, Scalars]) -> Scalars:
    """The expression as an array of SymPy scalars, of its shape.

    Parameters
    ----------
    expression
        A CVXPY expression.
    environment
        Leaf id -> array of SymPy expressions.

    Raises
    ------
    SymbolicError
        For an atom without a rule; names it.
    """
    memo: dict[int, Scalars] = {}

    def visit(node: Any) -> Scalars:
        if id(node) not in memo:
            memo[id(node)] = _shaped(_value(node), tuple(node.shape))
        return memo[id(node)]

    def _value(node: Any) -> Any:
        if isinstance(node, cp.Constant):
            return exact_array(node.value)
        if isinstance(node, Leaf):
            return environment[node.id]
        return _formula(node, [visit(argument) for argument in node.args])

    return visit(expression)


def _shaped(value: Any, shape: tuple[int, ...]) -> Scalars:
    return np.asarray(value, dtype=object).reshape(shape)


def _formula(node: Any, values: list[Scalars]) -> Any:
    if isinstance(node, SampleAverage):
        raise SymbolicError(f"{expression_text(node)} is over data, not a formula of x.")
    formula = row_of(node).formula
    if formula is not None:
        try:
            return formula(node, *values)
        except NoAnswerError as reason:
            raise SymbolicError(str(reason).format(atom=expression_text(node))) from None
    if isinstance(node, AffAtom):
        return _affine(node, *values)
    raise SymbolicError(f"{type(node).__name__} in {expression_text(node)} has no translation to SymPy.")


def _affine(atom: Any, *values: Scalars) -> Scalars:
    """Affine in the arguments that are not numbers, jointly: CVXPY's own value at 0, and its change along each entry."""
    points = [np.zeros(v.shape) if _is_symbolic(v) else v.astype(float) for v in values]
    base = _numeric(atom, points)
    result = exact_array(base)
    for place, value in enumerate(values):
        if _is_symbolic(value):
            for entry in np.ndindex(*value.shape):
                moved = [p.copy() for p in points]
                moved[place][entry] = 1.0
                result = result + exact_array(_numeric(atom, moved) - base) * value[entry]
    return result


def _numeric(atom: Any, points: list[np.ndarray]) -> np.ndarray:
    value = atom.numeric(points)
    return np.asarray(value.toarray() if sp.issparse(value) else value, dtype=float).reshape(atom.shape)


def _is_symbolic(value: Scalars) -> bool:
    return any(entry.free_symbols for entry in value.flat)

"""CVXPY expressions as arrays of SymPy scalars.

Affine atoms need no table: each is evaluated by CVXPY itself, at 0 and at the unit vectors, which gives its coefficients.
Products and nonlinear atoms are one rule each. Numbers become fractions: 0.1 is 1/10, and what a float can only round
(1/3) is the fraction meant, if its denominator is small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
import sympy
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.affine.binary_operators import DivExpression, MulExpression, multiply
from cvxpy.atoms.elementwise.hyperbolic import asinh, atanh, sinh, tanh
from cvxpy.atoms.elementwise.power import Power, PowerApprox
from cvxpy.atoms.elementwise.trig import cos, sin, tan
from cvxpy.atoms.pnorm import Pnorm, PnormApprox
from cvxpy.atoms.prod import Prod
from cvxpy.expressions.leaf import Leaf

from hierfl.errors import SymbolicError
from hierfl.language.expectation import SampleAverage
from hierfl.language.printing.text import expression_text

Expr = Any  # a SymPy expression; SymPy has no types of its own
Scalars = np.ndarray  # of SymPy expressions, dtype object
_Rule = Callable[..., Any]
_RULES: dict[type, _Rule] = {}
_LARGEST_DENOMINATOR = 1000


def exact(value: float) -> Expr:
    """The number as a fraction: the nearest one of a small denominator if it rounds to the float, else its decimals."""
    value = float(value)
    if not np.isfinite(value):
        return sympy.oo if value > 0 else -sympy.oo
    near = Fraction(value).limit_denominator(_LARGEST_DENOMINATOR)
    if abs(float(near) - value) <= 2e-16 * abs(value):
        return sympy.Rational(near.numerator, near.denominator)
    return sympy.Rational(repr(value))


def exact_array(value: Any) -> Scalars:
    """An array of floats as fractions."""
    dense = np.asarray(value.toarray() if sp.issparse(value) else value, dtype=float)
    return as_array([exact(entry) for entry in dense.ravel()], dense.shape)


def as_array(entries: Any, shape: tuple[int, ...]) -> Scalars:
    """SymPy expressions, in C order, as an array."""
    array = np.empty(len(entries), dtype=object)
    array[:] = entries
    return array.reshape(shape)


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
        return _rule_of(node)(node, *map(visit, node.args))

    return visit(expression)


def _shaped(value: Any, shape: tuple[int, ...]) -> Scalars:
    return np.asarray(value, dtype=object).reshape(shape)


def _rule_of(node: Any) -> _Rule:
    if isinstance(node, SampleAverage):
        raise SymbolicError(f"{expression_text(node)} is over data, not a formula of x.")
    for kind in type(node).__mro__:
        if kind in _RULES:
            return _RULES[kind]
    raise SymbolicError(f"{type(node).__name__} in {expression_text(node)} has no translation to SymPy.")


def _rule(*kinds: type) -> Callable[[_Rule], _Rule]:
    def register(function: _Rule) -> _Rule:
        _RULES.update(dict.fromkeys(kinds, function))
        return function

    return register


# Affine atoms and products


@_rule(AffAtom)
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


@_rule(multiply)
def _multiply(atom: Any, left: Scalars, right: Scalars) -> Any:
    return left * right


@_rule(DivExpression)
def _divide(atom: Any, left: Scalars, right: Scalars) -> Any:
    return left / right


@_rule(MulExpression)
def _product(atom: Any, left: Scalars, right: Scalars) -> Any:
    return left @ right if left.ndim and right.ndim else left * right


@_rule(cp.QuadForm)
def _quad_form(atom: Any, vector: Scalars, matrix: Scalars) -> Any:
    flat = vector.ravel()
    return flat @ matrix @ flat


# Elementwise atoms


def _elementwise(function: Callable[..., Expr], *kinds: type) -> None:
    def rule(atom: Any, *values: Scalars) -> Scalars:
        entries = np.broadcast_arrays(*values)
        return as_array([function(*entry) for entry in zip(*(e.ravel() for e in entries))], entries[0].shape)

    _rule(*kinds)(rule)


def _relative_entropy(x: Expr, y: Expr) -> Expr:
    return x * sympy.log(x / y)


_elementwise(sympy.Abs, cp.abs)
_elementwise(sympy.Max, cp.maximum)
_elementwise(sympy.Min, cp.minimum)
_elementwise(sympy.exp, cp.exp)
_elementwise(sympy.log, cp.log)
_elementwise(lambda v: sympy.log(1 + v), cp.log1p)
_elementwise(lambda v: sympy.log(1 + sympy.exp(v)), cp.logistic)
_elementwise(lambda v: -v * sympy.log(v), cp.entr)
_elementwise(_relative_entropy, cp.rel_entr)
_elementwise(lambda x, y: _relative_entropy(x, y) - x + y, cp.kl_div)
_elementwise(lambda v: v * sympy.exp(v), cp.xexp)
_elementwise(lambda v: 1 - v, cp.one_minus_pos)
_elementwise(sympy.sin, sin)
_elementwise(sympy.cos, cos)
_elementwise(sympy.tan, tan)
_elementwise(sympy.sinh, sinh)
_elementwise(sympy.tanh, tanh)
_elementwise(sympy.asinh, asinh)
_elementwise(sympy.atanh, atanh)


@_rule(Power, PowerApprox)
def _power(atom: Any, value: Scalars) -> Any:
    return value ** exact(float(atom.p.value))


@_rule(cp.huber)
def _huber(atom: Any, value: Scalars) -> Scalars:
    if not isinstance(atom.M, cp.Constant):
        raise SymbolicError(f"the threshold of {expression_text(atom)} is a parameter; write it as a number.")
    bound = exact(float(atom.M.value))

    def penalty(v: Expr) -> Expr:
        inner = sympy.Min(sympy.Abs(v), bound)
        return inner**2 + 2 * bound * (sympy.Abs(v) - inner)

    return as_array([penalty(v) for v in value.flat], value.shape)


# Reductions


def _reduction(function: Callable[..., Expr], *kinds: type) -> None:
    def rule(atom: Any, value: Scalars, *others: Scalars) -> Scalars:
        return _reduced(atom, value, lambda entries: function(atom, entries, *(o.ravel()[0] for o in others)))

    _rule(*kinds)(rule)


def _reduced(atom: Any, value: Scalars, function: Callable[[list[Expr]], Expr]) -> Scalars:
    axis = getattr(atom, "axis", None)
    axes = tuple(range(value.ndim)) if axis is None else (axis,) if isinstance(axis, int) else tuple(axis)
    last = np.moveaxis(value, axes, range(-len(axes), 0)) if axes else value.reshape(1)
    kept = last.shape[: value.ndim - len(axes)]
    rows = last.reshape(int(np.prod(kept)), -1)
    return as_array([function(list(row)) for row in rows], kept)


def _norm(atom: Any, entries: list[Expr]) -> Expr:
    p = exact(float(atom.p))
    sizes = entries if p == 2 else [sympy.Abs(entry) for entry in entries]
    return sympy.Add(*(size**p for size in sizes)) ** (1 / p)


_reduction(lambda atom, entries: sympy.Max(*entries), cp.max)
_reduction(lambda atom, entries: sympy.Min(*entries), cp.min)
_reduction(lambda atom, entries: sympy.Mul(*entries), Prod)
_reduction(lambda atom, entries: sympy.Add(*map(sympy.Abs, entries)), cp.norm1)
_reduction(lambda atom, entries: sympy.Max(*map(sympy.Abs, entries)), cp.norm_inf)
_reduction(_norm, Pnorm, PnormApprox)
_reduction(lambda atom, entries: sympy.log(sympy.Add(*map(sympy.exp, entries))), cp.log_sum_exp)
_reduction(lambda atom, entries, below: sympy.Add(*(e**2 for e in entries)) / below, cp.quad_over_lin)


@_rule(cp.sum_largest)
def _sum_largest(atom: Any, value: Scalars) -> Scalars:
    """k t + sum of max(v - t, 0) is least at an entry t: the sum of the k largest, for fractional k as well."""
    k = exact(float(atom.k))

    def total(entries: list[Expr]) -> Expr:
        return sympy.Min(*(k * t + sympy.Add(*(sympy.Max(v - t, 0) for v in entries)) for t in entries))

    return _reduced(atom, value, total)

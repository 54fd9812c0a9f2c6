"""Formulas against numbers: at random points a formula has to agree with the one that it replaces, and with the oracles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import cvxpy as cp
import numpy as np
import sympy

from hierfl.atoms.formulas import Expr
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.public_response import public_response
from hierfl.compiler.starting_points import on_upper_set
from hierfl.errors import DivergedError, HierflError, SymbolicError
from hierfl.inspect.symbolic.real_zeros import random_rational
from hierfl.inspect.symbolic.region import Region
from hierfl.inspect.symbolic.view import SymbolicView

CHECKS = 16  # points of X at which the formulas are compared with the numbers
_TRIES = 200
_TOLERANCE = 1e-9


def agree(one: Expr, other: Expr, region: Region) -> bool:
    """Whether two formulas have the same value at random points that the region's conditions do not rule out."""
    rng = np.random.default_rng(0)
    for _ in range(CHECKS):
        point = {s: random_rational(rng, region.limits(s)) for s in sorted(other.free_symbols, key=str)}
        expected = complex(sympy.N(other.xreplace(point), 20))
        if region.domain.xreplace(point) == sympy.false or not np.isfinite(expected):
            continue
        if not abs(complex(sympy.N(one.xreplace(point), 20)) - expected) <= _TOLERANCE * max(1.0, abs(expected)):
            return False
    return True


def verify(compiled: CompiledProblem, view: SymbolicView) -> None:
    """Compare with the implicit function at random points of X.

    Raises
    ------
    HierflError
        If they disagree: a defect of hierfl.
    """
    upper, checked = compiled.upper, 0
    for point in _points(compiled, view):
        x = upper.unflatten(point)
        try:
            evaluation = compiled.exact.at(point)
        except DivergedError:  # a point of X at which the objective is not defined
            continue
        place = dict(zip(view.decision.flat, map(_digits, point)))
        solution, pairs = evaluation.solution, [(view.value, compiled.sign * float(evaluation.value))]
        if view.response and solution is not None:
            pairs += _pairs(view.response, public_response(compiled, solution.y))
        for formula, number in pairs:
            exact_value = complex(sympy.N(formula.xreplace(place), 20))
            if not abs(exact_value - number) <= _TOLERANCE * max(1.0, abs(number)):
                raise HierflError(
                    f"internal error: at x = {x} the formula {formula} is {exact_value}, problem.implicit finds {number}. "
                    f"Please report it."
                )
        checked += 1
        if checked == view.verified:
            return
    raise SymbolicError(f"f has a value at only {checked} of {_TRIES} random points of X: too few to check a formula.")


def _digits(value: float) -> Expr:
    """The float's own value, all digits."""
    return sympy.Rational(float(value))


def _points(compiled: CompiledProblem, view: SymbolicView) -> Iterator[np.ndarray]:
    """Random points of X at which Y(x) is not empty."""
    rng = np.random.default_rng(0)
    limits = [view.region.limits(symbol) for symbol in view.decision.flat]
    finite = [low.is_finite and high.is_finite for low, high in limits]
    low, high = (np.array([float(e[k]) if f else 3.0 * (2 * k - 1) for e, f in zip(limits, finite)]) for k in (0, 1))
    for point in on_upper_set(compiled, low + (high - low) * rng.random((_TRIES, low.size))):
        place = dict(zip(view.decision.flat, map(_digits, point)))
        if bool(view.domain.xreplace(place)):
            yield point


def _pairs(response: Mapping[cp.Variable, Expr], numbers: Any) -> list[tuple[Expr, float]]:
    by_variable = numbers if isinstance(numbers, Mapping) else {next(iter(response)): numbers}
    return [
        (formula, float(number))
        for variable, formulas in response.items()
        for formula, number in zip(_entries(formulas), np.ravel(by_variable[variable]))
    ]


def _entries(formulas: Expr) -> list[Expr]:
    return list(sympy.flatten(formulas)) if isinstance(formulas, sympy.NDimArray) else [formulas]

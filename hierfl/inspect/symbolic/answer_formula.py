"""y(x) in closed form where the lower level is separable: F_i = h_i(x) y_i + g_i(x) = 0, clipped to bounds or to a ball.

F is the gradient of the lower objective, or the mapping of an equilibrium. Structure is read off the translated formulas,
not off the names of atoms: F must be affine in y with a diagonal matrix, and each constraint, once maxima, absolute values
and norms are taken apart, must bound one entry of y or the distance of y from a point.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import sympy
from cvxpy.constraints import SOC

from hierfl.atoms.algebra import sides_of
from hierfl.atoms.formulas import Expr
from hierfl.errors import SymbolicError
from hierfl.inspect.symbolic.branches import Region, polynomial
from hierfl.language.printing.text import expression_text

Translator = Any  # CVXPY expression -> Scalars


@dataclass(frozen=True)
class Ball:
    """``sum (y_i - center_i)^2 <= radius_squared``, over all entries of y."""

    center: tuple[Expr, ...]
    radius_squared: Expr


@dataclass(frozen=True)
class Feasible:
    """Y(x) as read: lower and upper bounds of each entry, balls, and conditions on x under which it is not empty."""

    lower: dict[Expr, list[Expr]]
    upper: dict[Expr, list[Expr]]
    balls: list[Ball]
    conditions: list[Expr]


@dataclass(frozen=True)
class AnswerFormula:
    """y(x), entry by entry; Y(x) is not empty where all ``conditions`` on x are >= 0."""

    entries: tuple[Expr, ...]
    conditions: tuple[Expr, ...]


def answer_formula(
    operator: Sequence[Expr], inequalities: Sequence[Expr], unknowns: Sequence[Expr], region: Region
) -> AnswerFormula:
    """Solve VI(Y(x), F) for y: F_i for each unknown, expressions that must be <= 0, and the bounds of x on which signs are decided.

    Raises ``SymbolicError``, naming what is not separable.
    """
    slopes, offsets = _diagonal(operator, unknowns, region)
    feasible = _read(inequalities, unknowns, region)
    if feasible.balls:
        entries = _on_ball(slopes, offsets, feasible, unknowns, region)
    else:
        entries = tuple(_clipped(h, g, y, feasible, region) for h, g, y in zip(slopes, offsets, unknowns))
    gaps = [high - low for y in unknowns for low in feasible.lower[y] for high in feasible.upper[y]]
    conditions = [sympy.expand(gap) for gap in [*gaps, *feasible.conditions]]
    open_ = dict.fromkeys(c for c in conditions if not region.nonnegative(c) and not _is_root(c))
    return AnswerFormula(tuple(map(region.simplified, entries)), tuple(open_))


def _is_root(expr: Expr) -> bool:
    """A square root, which is nonnegative wherever what is under it is."""
    factor, rest = expr.as_coeff_Mul()
    return bool(factor > 0 and rest.is_Pow and rest.exp == sympy.Rational(1, 2))


# The operator


def _diagonal(
    operator: Sequence[Expr], unknowns: Sequence[Expr], region: Region
) -> tuple[tuple[Expr, ...], tuple[Expr, ...]]:
    """h and g of ``F_i = h_i(x) y_i + g_i(x)``, h >= 0."""
    slopes, offsets = [], []
    for own, part in zip(unknowns, operator):
        met = [y for y in unknowns if part.has(y)] or [own]
        affine = polynomial(part, met)
        if affine is None or affine.total_degree() > 1:
            curved = f"the lower level is not quadratic in y (its derivative by {own} is {part})"
            raise SymbolicError(f"{curved}: the closed form needs an objective sum h_i(x) y_i^2 / 2 + g_i(x) y_i.")
        for other in met:
            if other != own and (weight := affine.coeff_monomial(other)) != 0:
                coupled = f"the Hessian of the lower level in y is not diagonal: it couples {own} and {other} by {weight}"
                raise SymbolicError(f"{coupled}. The closed form needs entries of y that do not meet.")
        slope = affine.coeff_monomial(own) if own in met else sympy.S.Zero
        if slope != 0 and not region.positive(slope):
            raise SymbolicError(f"the curvature {slope} of the lower level in {own} is not proved positive: give bounds of x that imply it.")
        slopes.append(slope)
        offsets.append(affine.coeff_monomial(1))
    return tuple(slopes), tuple(offsets)


# The set


def _read(inequalities: Sequence[Expr], unknowns: Sequence[Expr], region: Region) -> Feasible:
    feasible = Feasible({y: [] for y in unknowns}, {y: [] for y in unknowns}, [], [])
    for inequality in inequalities:
        for part, condition in _taken_apart(sympy.expand(inequality), unknowns, region):
            if condition is not None:
                feasible.conditions.append(condition)
            _add_inequality(part, unknowns, region, feasible)
    return feasible


def _taken_apart(expr: Expr, unknowns: Sequence[Expr], region: Region) -> Iterator[tuple[Expr, Expr | None]]:
    """Inequalities ``<= 0`` without maxima, absolute values and square roots of y, each with a condition ``>= 0`` on x."""
    node = next((n for n in sympy.preorder_traversal(expr) if _is_compound(n, unknowns)), None)
    if node is None:
        yield expr, None
        return
    stand_in = sympy.Dummy("part", real=True)
    affine = polynomial(expr.xreplace({node: stand_in}), [stand_in])
    weight = affine.coeff_monomial(stand_in) if affine is not None and affine.total_degree() == 1 else sympy.S.Zero
    convex = region.positive(-weight if isinstance(node, sympy.Min) else weight)
    rest = affine.coeff_monomial(1) if convex else None
    if rest is None or (node.is_Pow and rest.has(*unknowns)):
        raise SymbolicError(f"{node} in a constraint of the lower level is no bound on y that SymPy can take apart.")
    if node.is_Pow:
        bound = -rest / weight
        yield sympy.expand(node.base - bound**2), bound
        return
    branches = (node.args[0], -node.args[0]) if isinstance(node, sympy.Abs) else node.args
    for branch in branches:
        yield from _taken_apart(sympy.expand(rest + weight * branch), unknowns, region)


def _is_compound(node: Expr, unknowns: Sequence[Expr]) -> bool:
    root = node.is_Pow and node.exp == sympy.Rational(1, 2)
    return bool(root or isinstance(node, (sympy.Max, sympy.Min, sympy.Abs))) and node.has(*unknowns)


def _add_inequality(expr: Expr, unknowns: Sequence[Expr], region: Region, feasible: Feasible) -> None:
    """Sort ``expr <= 0`` into the bounds, the balls or the conditions on x."""
    used = [y for y in unknowns if expr.has(y)]
    if not used:
        feasible.conditions.append(-expr)
        return
    poly = polynomial(expr, used)
    degree = poly.total_degree() if poly is not None else 3
    if len(used) == 1 and degree == 1:
        (y,), weight, rest = used, poly.coeff_monomial(used[0]), poly.coeff_monomial(1)
        sides = [side for side, sign in ((feasible.upper, weight), (feasible.lower, -weight)) if region.positive(sign)]
        if not sides:
            raise SymbolicError(f"whether {poly.as_expr()} <= 0 bounds {y} from above or below changes with x.")
        sides[0][y].append(sympy.cancel(-rest / weight))
    elif len(used) == 1 and degree == 2:  # a y^2 + b y + c <= 0
        (y,), ball = used, _ball(poly, used, region)
        radius = sympy.sqrt(sympy.factor(ball.radius_squared))
        feasible.lower[y].append(ball.center[0] - radius)
        feasible.upper[y].append(ball.center[0] + radius)
        feasible.conditions.append(ball.radius_squared)
    elif degree == 2 and len(used) == len(unknowns):
        feasible.balls.append(_ball(poly, used, region))
    else:
        joins = f"the constraint {expr} <= 0 of the lower level joins {', '.join(map(str, used))}"
        raise SymbolicError(f"{joins}: the closed form needs bounds on single entries of y, or one ball.")


def _ball(quadratic: Any, unknowns: Sequence[Expr], region: Region) -> Ball:
    """``a |y|^2 + b'y + c <= 0`` as a ball."""
    weight = quadratic.coeff_monomial(unknowns[0] ** 2)
    same = all(sympy.simplify(quadratic.coeff_monomial(y**2) - weight) == 0 for y in unknowns)
    if not same or any(quadratic.coeff_monomial(a * b) != 0 for a, b in combinations(unknowns, 2)) or not region.positive(weight):
        raise SymbolicError(f"the constraint {quadratic.as_expr()} <= 0 of the lower level is an ellipsoid, not a ball.")
    center = tuple(sympy.cancel(-quadratic.coeff_monomial(y) / (2 * weight)) for y in unknowns)
    return Ball(center, sympy.expand(sympy.Add(*(c**2 for c in center)) - quadratic.coeff_monomial(1) / weight))


# y(x)


def _clipped(slope: Expr, offset: Expr, y: Expr, feasible: Feasible, region: Region) -> Expr:
    """The median of the two bounds and the zero of F_i; without curvature the bound to which F_i points."""
    lower, upper = (sympy.Max(*feasible.lower[y]), sympy.Min(*feasible.upper[y]))
    if slope != 0:
        return sympy.Min(upper, sympy.Max(lower, sympy.cancel(-offset / slope)))
    for falls, bound in ((region.positive(offset), lower), (region.positive(-offset), upper)):
        if falls and bound.is_finite is not False:
            return bound
    linear = f"the lower level is linear in {y} with slope {offset}, which is not proved to be of one sign with a bound on that side"
    raise SymbolicError(f"{linear}: y(x) need not be one point.")


def _on_ball(
    slopes: Sequence[Expr], offsets: Sequence[Expr], feasible: Feasible, unknowns: Sequence[Expr], region: Region
) -> tuple[Expr, ...]:
    """The projection of the zero of F on a ball, where all curvatures are one."""
    bounded = any(feasible.lower[y] or feasible.upper[y] for y in unknowns)
    if len(feasible.balls) > 1 or bounded:
        raise SymbolicError("the lower level has a ball beside other constraints: their intersection has no closed form.")
    if slopes[0] == 0 or any(sympy.simplify(slope - slopes[0]) != 0 for slope in slopes):
        has = f"the lower level has a ball and the curvatures {', '.join(map(str, slopes))}"
        raise SymbolicError(f"{has}: the closed form needs one positive curvature for all entries of y.")
    (ball,) = feasible.balls
    feasible.conditions.append(ball.radius_squared)
    moves = [sympy.cancel(-g / h - c) for g, h, c in zip(offsets, slopes, ball.center)]
    distance = sympy.Add(*(move**2 for move in moves))
    if region.nonnegative(ball.radius_squared - distance):
        return tuple(sympy.cancel(c + move) for c, move in zip(ball.center, moves))
    inside = distance <= ball.radius_squared
    shrink = sympy.sqrt(ball.radius_squared) / sympy.sqrt(distance)
    cases = (((sympy.cancel(c + move), inside), (c + move * shrink, True)) for c, move in zip(ball.center, moves))
    return tuple(sympy.Piecewise(*each) for each in cases)


# Constraints as inequalities


def inequalities_of(constraint: Any, translated: Translator) -> list[Expr]:
    """A CVXPY constraint as expressions that must be <= 0; raises ``SymbolicError`` for one that is no list of inequalities."""
    if isinstance(constraint, SOC) and constraint.args[1].ndim <= 1:
        bound, vector = (translated(argument).ravel() for argument in constraint.args)
        return [sympy.sqrt(sympy.Add(*(entry**2 for entry in vector))) - bound[0]]
    if (compared := sides_of(constraint)) is None:
        raise SymbolicError(f"{expression_text(constraint)} bounds y neither entry by entry nor by a ball.")
    left, right, two_sided = compared
    parts = [part for part in np.ravel(translated(left) - translated(right)) if part != 0]
    return [*parts, *(-part for part in parts)] if two_sided else parts

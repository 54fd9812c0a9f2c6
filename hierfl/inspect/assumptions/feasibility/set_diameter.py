"""The size of the sets Y(x): by intervals, and by the balls among their constraints."""

from __future__ import annotations

from collections.abc import Sequence

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.constraints import Inequality
from cvxpy.constraints.constraint import Constraint

from hierfl.analysis.enclosure import Known, enclose
from hierfl.analysis.variable_attributes import attribute_constraints
from hierfl.analysis.variable_bounds import bounds_of
from hierfl.atoms.intervals import Interval
from hierfl.inspect.assumptions.study import Study


def diameter(study: Study) -> float:
    """The largest distance between two points of any Y(x), infinity where Y(x) may be unbounded."""
    assert study.level is not None
    variables = study.level.variables
    constraints = [*study.level.constraints, *attribute_constraints(variables)]
    sizes = []
    for holder in study.holders.clients:
        boxes: Known = holder.known
        if study.movement.kind != "moving":  # a translation does not change it: look at x = 0
            here = {v.id: Interval.of(np.zeros(v.shape)) for v in study.compiled.upper.variables}
            free = {leaf: box for leaf, box in holder.known.items() if leaf not in {v.id for v in variables}}
            boxes = bounds_of(constraints, variables, {**free, **here})
        box = float(np.linalg.norm([np.linalg.norm(boxes[v.id].hi - boxes[v.id].lo) for v in variables]))
        balls = [2 * _radius(constraint, variables, boxes) for constraint in constraints]
        sizes.append(min([box, *balls]))
    return float(np.max(sizes)) * (1 + 1e-12)


def _radius(constraint: Constraint, variables: Sequence[cp.Variable], known: Known) -> float:
    """The largest radius of a constraint that puts all of y into a ball, infinity for other constraints."""
    if not isinstance(constraint, Inequality) or len(variables) != 1:
        return np.inf
    ball, limit = constraint.args
    if any(v.id == variables[0].id for v in limit.variables()):
        return np.inf
    size = float(np.max(enclose(limit, known).hi))
    if isinstance(ball, cp.Pnorm) and ball.p == 2 and ball.axis is None and _shifted(ball.args[0], variables[0]):
        return max(size, 0.0)
    squared = isinstance(ball, cp.quad_over_lin) and ball.args[1].is_constant() and ball.args[1].value == 1
    return float(np.sqrt(max(size, 0.0))) if squared and _shifted(ball.args[0], variables[0]) else np.inf


def _shifted(expression: cp.Expression, y: cp.Variable) -> bool:
    """Whether the expression is y, or y plus and minus what does not depend on y."""
    if expression is y:
        return True
    if isinstance(expression, NegExpression):
        return _shifted(expression.args[0], y)
    if not isinstance(expression, AddExpression) or expression.shape != y.shape:
        return False
    moving = [argument for argument in expression.args if any(v.id == y.id for v in argument.variables())]
    return len(moving) == 1 and moving[0].shape == y.shape and _shifted(moving[0], y)

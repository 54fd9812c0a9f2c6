"""Y(x) with numbers for everything but y, for CVXPY's second opinion."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
from cvxpy.constraints.constraint import Constraint

from hierfl.analysis.conic_solving import status_of
from hierfl.analysis.hoist import hoist, instantiate
from hierfl.analysis.variable_attributes import attribute_constraints
from hierfl.inspect.assumptions.curvature.mapping_at_points import Weighted
from hierfl.inspect.assumptions.study import Study
from hierfl.language.sample import ClientParameter


def instantiated(study: Study, x: np.ndarray, owner: Weighted) -> tuple[list[Constraint], list[cp.Variable]]:
    """Put numbers into Y(x)'s constraints for everything but y: (constraints on twins of the variables, the twins)."""
    level = study.level
    assert level is not None
    holders = [holder for _, holder in owner]
    values = {
        **{v.id: np.asarray(a) for v, a in zip(study.compiled.upper.variables, study.compiled.upper.split(x).values())}
    }
    built: list[Constraint] = []
    for holder in holders:
        numbers = values | {leaf: np.asarray(v) for leaf, v in holder.own.items()}
        constraints = [*level.constraints, *attribute_constraints(level.variables)]
        leaves = {
            leaf: numbers[leaf.id]
            for c in constraints
            for leaf in [*c.variables(), *c.parameters()]
            if leaf.id in numbers
        }
        private = [c for c in constraints if any(isinstance(p, ClientParameter) for p in c.parameters())]
        built += instantiate(constraints if not built else private, leaves)
    hoisted = hoist(built, level.variables)
    return [c for c in hoisted.expressions if c.variables()], [hoisted.twins[v] for v in level.variables]


def is_infeasible(study: Study, x: np.ndarray, owner: Weighted) -> bool:
    """Whether CVXPY, too, finds Y(x) empty."""
    constraints, _ = instantiated(study, x, owner)
    if not constraints:
        return True
    problem = cp.Problem(cp.Minimize(0), constraints)
    return status_of(problem) in (cp.INFEASIBLE, cp.INFEASIBLE_INACCURATE)

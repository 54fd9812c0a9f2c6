"""A search for an x of X whose Y(x) is empty; CVXPY's second opinion is of Y(x) with numbers for everything but y."""

from __future__ import annotations

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
from cvxpy.constraints.constraint import Constraint

from hierfl.analysis.conic_solving import status_of
from hierfl.analysis.hoist import hoist, instantiate
from hierfl.inspect.assumptions.findings import Finding
from hierfl.inspect.assumptions.study import Study, Weighted
from hierfl.language.sample import ClientParameter


def instantiated(study: Study, x: np.ndarray, owner: Weighted) -> tuple[list[Constraint], list[cp.Variable]]:
    """Put numbers into Y(x)'s constraints for everything but y: (constraints on twins of the variables, the twins)."""
    level = study.below
    holders = [holder for _, holder in owner]
    values = {
        **{v.id: np.asarray(a) for v, a in zip(study.compiled.upper.variables, study.compiled.upper.split(x).values())}
    }
    built: list[Constraint] = []
    for holder in holders:
        numbers = values | {leaf: np.asarray(v) for leaf, v in holder.own.items()}
        constraints = study.lower_constraints
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


GAP_TOLERANCE = 0.0  # gaps allow for rounding themselves
OWNERS = 12
_ASCENTS, _STEPS = 4, 30


def search_empty_set(study: Study, name: str, assumption: str) -> Finding:
    """Look for an x of X with an empty Y(x): at points of X, then by ascent on the gap from the worst of them."""
    owners = study.set_owners[:OWNERS]
    exact = study.compiled.lower_set is not None and study.compiled.lower_set.is_exact
    points = study.x_points if exact else study.x_points[:8]
    worst: list[tuple[float, np.ndarray, str, Weighted]] = []
    for label, owner in owners:
        worst += [(study.lower.gap(x, owner), x, label, owner) for x in points]
    worst.sort(key=lambda entry: -entry[0])
    tried = len(worst)
    doubtful = False
    for gap, x, label, owner in worst[:_ASCENTS]:
        if gap <= GAP_TOLERANCE and exact:
            gap, x, steps = _ascend(study, x, owner)
            tried += steps
        if gap > GAP_TOLERANCE and is_infeasible(study, x, owner):
            return empty_set_finding(study, x, label, assumption)
        doubtful = doubtful or gap > GAP_TOLERANCE
    if doubtful:
        reason = "at a point of X the projection misses Y(x), but CVXPY does not find Y(x) empty there"
        return Finding(name, "unknown", reason, assumption, tried, worst[0][0])
    reason = "a point of Y(x) was found at every point of X that was tried"
    return Finding(name, "sampled", reason, assumption, tried, worst[0][0])


def _ascend(study: Study, x: np.ndarray, owner: Weighted) -> tuple[float, np.ndarray, int]:
    """Climb on the gap by projected gradients with growing steps: (the gap, its point, how many steps it took)."""
    gap, own = study.lower.gap_function, owner[0][1].own
    slope = jax.jit(jax.grad(gap))
    best = float(gap(jnp.asarray(x), own))
    step, used = 1.0, 0
    while used < _STEPS:
        used += 1
        direction = np.asarray(slope(jnp.asarray(x), own))
        if not np.isfinite(direction).all() or not direction.any() or best > GAP_TOLERANCE:
            break
        other = study.project_x(x + step * direction / np.linalg.norm(direction))
        value = float(gap(jnp.asarray(other), own))
        step = 2 * step if value > best else 0.25 * step
        if value > best:
            best, x = value, other
    return best, x, used


def empty_set_finding(study: Study, x: np.ndarray, label: str, assumption: str) -> Finding:
    """Say that Y(x) is empty at x for the owner of that label."""
    witness = {"x": study.compiled.upper.unflatten(x), "client": label}
    return Finding("Y(x) nonempty", "violated", "Y(x) is empty at a point of X", assumption, witness=witness)

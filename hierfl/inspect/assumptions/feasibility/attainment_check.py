"""Whether the lower level attains a minimum, or falls without end along a direction that stays in Y(x)."""

from __future__ import annotations

from dataclasses import replace

import cvxpy as cp
import numpy as np

from hierfl.analysis.conic_solving import status_of
from hierfl.analysis.hoist import hoist
from hierfl.inspect.assumptions.feasibility.empty_set_search import OWNERS, instantiated
from hierfl.inspect.assumptions.feasibility.lower_set_checks import diameter
from hierfl.inspect.assumptions.findings import Finding
from hierfl.inspect.assumptions.study import Study, Weighted

_FAR = (1.0, 1e2, 1e4, 1e6)


def has_a_solution(study: Study, mu: float, nonempty: Finding) -> Finding:
    """Whether the lower level attains a minimum for every x: Y(x) is nonempty, and there is one where it is."""
    attained = _attained(study, mu)
    if nonempty.status == "proved" or attained.status == "violated":
        return attained
    if nonempty.status == "violated":
        return replace(nonempty, name=attained.name, assumption="")
    if attained.status == "proved":
        reason = f"{attained.reason}; that Y(x) is nonempty is {nonempty.status}: {nonempty.reason}"
        return replace(nonempty, name=attained.name, assumption="", reason=reason)
    return attained


def _attained(study: Study, mu: float) -> Finding:
    """By strong convexity, by a compact Y(x), or else look for a direction to infinity."""
    name = "lower level has a solution"
    level = study.below
    if mu > 0:
        return Finding(name, "proved", "strongly convex (monotone) over a closed convex set")
    if np.isfinite(diameter(study)):
        return Finding(name, "proved", "continuous over a compact convex set")
    hoisted = hoist(level.expressions, level.variables, study.compiled.declaration.known_bounds).expressions
    if level.kind == "equilibrium" or not hoisted[0].is_affine():
        return Finding(name, "unknown", "neither strongly convex nor over a bounded set")
    points = 0
    for label, owner in study.owners[:OWNERS]:
        for x in study.x_points[:3]:
            escape = _recession(study, x, owner)
            points += 1
            if escape is not None:
                start, direction, slope = escape
                lower = study.compiled.lower
                witness = {
                    "client": label,
                    "x": study.compiled.upper.unflatten(x),
                    "y": lower.unflatten(start),
                    "direction": lower.unflatten(direction),
                    "slope": slope,
                }
                reason = f"the linear objective falls without end: its slope along a direction that never leaves Y(x) is {slope:.6g}"
                return Finding(name, "violated", reason, witness=witness)
    return Finding(name, "sampled", "no direction of descent that stays in Y(x)", points=points)


def _recession(study: Study, x: np.ndarray, owner: Weighted) -> tuple[np.ndarray, np.ndarray, float] | None:
    """Look for (y, d, slope) with y + t d in Y(x) for all t that are tried, while the linear objective falls along d."""
    size = study.compiled.lower.size
    slope = study.lower.operator(x, np.zeros(size), owner)
    constraints, twins = instantiated(study, x, owner)
    flat = cp.hstack([cp.reshape(twin, (twin.size,), order="C") for twin in twins])
    start = study.lower.project(x, np.zeros(size), owner)
    far = []
    for radius in (1e2, 2e2):
        problem = cp.Problem(cp.Minimize(slope @ flat), [*constraints, cp.norm_inf(flat - start) <= radius])
        if status_of(problem) not in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE):
            return None
        far.append(np.asarray(flat.value, dtype=float))
    direction = (far[1] - far[0]) / 1e2
    direction[np.abs(direction) < 1e-6] = 0.0
    if not direction.any() or slope @ direction >= -1e-9 * np.linalg.norm(slope):
        return None
    direction /= np.linalg.norm(direction)
    for length in _FAR:
        point, begin = start + length * direction, 0
        for twin in twins:
            twin.save_value(point[begin : begin + twin.size].reshape(twin.shape))
            begin += twin.size
        if max((float(np.max(c.violation())) for c in constraints), default=0.0) > 1e-6 * (1.0 + length):
            return None
    return start, direction, float(slope @ direction)

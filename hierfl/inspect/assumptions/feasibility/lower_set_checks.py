"""The sets Y(x): nonempty for every x of X, closed and convex, bounded."""

from __future__ import annotations

import numpy as np
from cvxpy.constraints import Equality, Inequality, NonNeg, NonPos, Zero
from cvxpy.constraints.constraint import Constraint

from hierfl.analysis.enclosure import Known, enclose
from hierfl.analysis.variable_attributes import attribute_constraints
from hierfl.atoms.intervals import Interval
from hierfl.inspect.assumptions.feasibility.empty_set_search import GAP_TOLERANCE, empty_set_finding, search_empty_set
from hierfl.inspect.assumptions.feasibility.set_diameter import diameter
from hierfl.inspect.assumptions.feasibility.set_instance import is_infeasible
from hierfl.inspect.assumptions.findings import Finding
from hierfl.inspect.assumptions.study import Study

_ASSUMPTION = {
    "nn": "",
    "bl": "[2S] Assumption 2 (iv)",
    "mm": "[2S] Assumption 2 (iv)",
    "2s": "[2S] Assumption 3 (iv)",
    "hfl": "[HFL] Assumption 1 (iv)",
}


def lower_sets(study: Study) -> tuple[Finding, ...]:
    """Examine Y(x): whether it is nonempty for all x of X, closed and convex, bounded."""
    assumption = _ASSUMPTION[study.problem_class]
    convex = Finding("Y(x) closed and convex", "proved", "by CVXPY's rules, for every x of X", assumption)
    return (_nonempty(study, assumption), convex, _bounded(study, assumption))


def _bounded(study: Study, assumption: str) -> Finding:
    needed = assumption if study.problem_class == "2s" else ""
    size = diameter(study)
    if np.isfinite(size):
        return Finding("Y(x) bounded", "proved", f"of diameter at most {size:.6g} for each x of X", needed)
    return Finding("Y(x) bounded", "unknown", "no bounds on y follow from its constraints on X", needed)


def _nonempty(study: Study, assumption: str) -> Finding:
    name = "Y(x) nonempty"
    compiled = study.compiled
    if compiled.lower_set is None or not compiled.lower_set.blocks:
        return Finding(name, "proved", "y is unconstrained", assumption)
    x = study.x_points[0]
    here = [(label, owner, study.lower.gap(x, owner)) for label, owner in study.set_owners]
    empty = next(((label, owner) for label, owner, gap in here if gap > GAP_TOLERANCE), None)
    if empty is not None and is_infeasible(study, x, empty[1]):
        return empty_set_finding(study, x, empty[0], assumption)
    if empty is None and study.movement.kind != "moving" and not _leaves_out_samples(study):
        return Finding(name, "proved", f"Y(x) is {study.movement.kind}, and a point of it was found", assumption)
    point = _common_point(study) if empty is None else None
    if point is not None:
        return Finding(
            name,
            "proved",
            f"y = {np.array2string(point, threshold=6, precision=4)} lies in Y(x) for every x of X",
            assumption,
        )
    return search_empty_set(study, name, assumption)


def _leaves_out_samples(study: Study) -> bool:
    """Whether the set depends on samples of which only some were looked at."""
    if study.compiled.lower_set is None or study.compiled.scope != "sample" or study.holders.every_sample:
        return False
    samples = {leaf for table in study.holders.data.clients.tables for leaf in table.samples}
    return bool(samples & study.compiled.lower_set.depends_on)


def _common_point(study: Study) -> np.ndarray | None:
    """Find a y that intervals prove to lie in Y(x) for all x of X and every owner; None if none of a few does."""
    level = study.level
    assert level is not None
    constraints = [*level.constraints, *attribute_constraints(level.variables)]
    size = study.compiled.lower.size
    candidates = [np.zeros(size)]
    for x in study.x_points[:4]:
        candidates += [study.lower.project(x, np.zeros(size), owner) for _, owner in study.set_owners[:4]]
    for candidate in candidates:
        values = {leaf: Interval.of(np.asarray(v)) for leaf, v in study.compiled.lower.split(candidate).items()}
        if all(_holds(c, {**h.known, **values}) for h in study.holders.clients for c in constraints):
            return candidate
    return None


def _holds(constraint: Constraint, known: Known) -> bool:
    """Whether intervals prove that the constraint holds."""
    if isinstance(constraint, (Inequality, Equality)):
        left, right = (enclose(argument, known) for argument in constraint.args)
        below = bool((left.hi <= right.lo).all())
        return below and (isinstance(constraint, Inequality) or bool((left.lo >= right.hi).all()))
    if isinstance(constraint, (NonNeg, NonPos, Zero)):
        side = enclose(constraint.args[0], known)
        low = isinstance(constraint, NonPos) or bool((side.lo >= 0).all())
        return low and (isinstance(constraint, NonNeg) or bool((side.hi <= 0).all()))
    return False

"""The sets X_i: nonempty, closed and convex, and how much they differ from each other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hierfl.analysis.variable_attributes import attribute_constraints
from hierfl.analysis.variable_bounds import bounds_of
from hierfl.inspect.assumptions.feasibility.empty_set_search import GAP_TOLERANCE
from hierfl.inspect.assumptions.findings import Constant, Finding
from hierfl.inspect.assumptions.study import Study

_ASSUMPTION = {
    "nn": "[NN] Assumption 1 (iii)",
    "bl": "[2S] Assumption 2 (iii)",
    "mm": "[2S] Assumption 2 (iii)",
    "2s": "[2S] Assumption 3 (iii)",
    "hfl": "",
}


@dataclass(frozen=True)
class Dissimilarity:
    """What is known of X, with the constants B_1 and B_2 of the X_i's dissimilarity (infinite where unknown)."""

    findings: tuple[Finding, ...]
    constants: tuple[Constant, ...]
    b1: float
    b2: float


def upper_sets(study: Study) -> Dissimilarity:
    """Examine the X_i: whether they are nonempty, and their dissimilarity (inequality (2) of [2S])."""
    compiled, assumption = study.compiled, _ASSUMPTION[study.problem_class]
    own = study.holders.clients[0].own
    gap = float(np.max(compiled.upper_set.gap(own)))
    nonempty = Finding(
        "X nonempty, closed and convex", "proved", "a point of X was found; convex by CVXPY's rules", assumption
    )
    if not gap <= GAP_TOLERANCE:
        nonempty = Finding(
            nonempty.name, "violated", f"X is empty: its constraints miss each other by {gap:.3g}", assumption
        )
    name = "set dissimilarity"
    if compiled.private_set is None:
        free = not compiled.upper_set.blocks
        b2, rule = (0.0, "no constraints on x") if free else (1.0, "all X_i are the same set")
        return _dissimilar(
            nonempty, Finding(name, "proved", f"B_1 = 0, B_2 = {b2:.0f}: {rule}", assumption), 0.0, b2, rule
        )
    width = _spread_of_sets(study)
    if not np.isfinite(width):
        return _dissimilar(
            nonempty, Finding(name, "unknown", "private sets X_i that are not bounded", assumption), np.inf, np.inf, ""
        )
    rule = f"all X_i lie in a box of diameter {width:.6g}"
    return _dissimilar(
        nonempty,
        Finding(name, "proved", f"B_1^2 = 2 D^2, B_2^2 = 2: {rule}", assumption),
        np.sqrt(2) * width * (1 + 1e-12),
        float(np.nextafter(np.sqrt(2), 2)),
        rule,
    )


def _dissimilar(nonempty: Finding, finding: Finding, b1: float, b2: float, rule: str) -> Dissimilarity:
    constants = (Constant("B_1", b1, "<=", rule or "unknown"), Constant("B_2", b2, "<=", rule or "unknown"))
    return Dissimilarity((nonempty, finding), constants, b1, b2)


def _spread_of_sets(study: Study) -> float:
    """The diameter D of a box around all X_i, by which dist(x, X_i) <= |x - mean of P_i(x)| + D."""
    problem = study.compiled.declaration
    constraints = [*problem.constraints, *attribute_constraints(problem.roles.upper)]
    parts = []
    for variable in problem.roles.upper:
        boxes = [bounds_of(constraints, problem.roles.upper, h.known)[variable.id] for h in study.holders.clients]
        low, high = np.min([b.lo for b in boxes], axis=0), np.max([b.hi for b in boxes], axis=0)
        parts.append(float(np.linalg.norm(high - low)))
    return float(np.linalg.norm(parts))

"""Whether an equilibrium's mapping F is a gradient."""

from __future__ import annotations

import numpy as np

from hierfl.analysis.curvature_bounds import moves_slopes
from hierfl.analysis.hoist import hoist
from hierfl.inspect.assumptions.curvature.lower_spectra import slope_key, slope_parameters
from hierfl.inspect.assumptions.curvature.mapping_at_points import JACOBIAN_LIMIT
from hierfl.inspect.assumptions.curvature.monotonicity_search import POINTS
from hierfl.inspect.assumptions.findings import Finding
from hierfl.inspect.assumptions.study import Study


def symmetry(study: Study) -> Finding:
    """Look at whether F's Jacobian is symmetric, at points (that of an affine mapping is the same everywhere)."""
    if study.compiled.lower.size > JACOBIAN_LIMIT:
        return Finding("F is a gradient", "unknown", "the Jacobian is too large to form")
    level = study.level
    assert level is not None
    hoisted = hoist(level.expressions, level.variables, study.compiled.declaration.known_bounds).expressions
    fixed = all(e.is_affine() for e in hoisted) and not any(
        moves_slopes(e, {v.id for v in level.variables}) for e in level.expressions
    )
    used = {leaf for e in level.expressions for leaf in slope_parameters(e, {v.id for v in level.variables})}
    different = {slope_key(study, owner[0][1], used): (label, owner) for label, owner in reversed(study.owners)}
    worst, points = 0.0, 0
    for label, owner in list(different.values())[:POINTS]:
        for x in study.x_points[: 1 if fixed else 4]:
            y = study.y_points(x, owner, 1)[0]
            matrix = study.lower.jacobian(x, y, owner)
            gap = float(np.abs(matrix - matrix.T).max() / max(1e-300, np.abs(matrix).max()))
            worst, points = max(worst, gap), points + 1
            if gap > 1e-9:
                unflatten = study.compiled.lower.unflatten
                witness = {"client": label, "x": study.compiled.upper.unflatten(x), "y": unflatten(y)}
                reason = "its Jacobian is not symmetric at a point, so that no objective has it: nothing asks for one"
                return Finding("F is no gradient", "proved", reason, witness=witness, points=points, worst=gap)
    if fixed and len(different) <= POINTS:
        reason = "the Jacobian is constant and symmetric"
        return Finding("F is a gradient", "proved", reason, points=points, worst=worst)
    return Finding("F is a gradient", "sampled", "symmetric Jacobians", points=points, worst=worst)

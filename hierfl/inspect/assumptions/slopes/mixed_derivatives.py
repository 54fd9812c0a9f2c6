"""The Lipschitz constant in x of the lower level's gradient."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hierfl.analysis.hoist import hoist
from hierfl.analysis.lipschitz import addends, mixed_bound, one_sample
from hierfl.analysis.spectrum import Edge
from hierfl.inspect.assumptions.curvature.hessians import Curvature
from hierfl.inspect.assumptions.study import Study
from hierfl.language.calculus.derivative import depends


def mixed_constant(study: Study) -> float:
    """Bound L_{grad h,x}: by the Jacobian's entries, or for large jointly convex quadratics by |H_xy|^2 <= |H_xx| |H_yy|."""
    level, compiled = study.level, study.compiled
    assert level is not None
    upper, lower = compiled.upper.variables, level.variables
    worst = 0.0
    for holder in study.holders.clients:
        if level.kind == "equilibrium":
            bound = mixed_bound(level.expressions, upper, holder.known)
        else:
            bound = mixed_bound([one_sample(level.expression, holder.count)], upper, holder.known, lower)
        worst = max(worst, bound)
        if not np.isfinite(worst):
            break
    if np.isfinite(worst) or level.kind == "equilibrium":
        return worst
    x_ids, y_ids = ({v.id for v in group} for group in (upper, lower))
    terms = [t for t in addends(level.expression) if depends(t, x_ids) and depends(t, y_ids)]
    joint = level.sign * sum(terms[1:], start=terms[0])
    (hoisted,) = hoist([joint], [*upper, *lower], compiled.declaration.known_bounds).expressions
    if not hoisted.is_convex():
        return np.inf
    halves = [Curvature(compiled, joint, group, study.holders.clients[0].known) for group in (upper, lower)]
    if not all(half.bounds.exact for half in halves):
        return np.inf
    worst = 0.0
    for holder in study.holders.clients:
        ends = [half.spectrum(holder).high for half in halves]
        worst = max(worst, *(np.inf if end is None else 0.0 for end in ends), _root(ends))
    return worst


def _root(ends: Sequence[Edge | None]) -> float:
    """The geometric mean of two ends, moved outward by the rounding."""
    return float(np.sqrt(np.prod([max(end.value, 0.0) for end in ends if end is not None]))) * (1 + 1e-12)

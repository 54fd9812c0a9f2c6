"""Bounds on the gradients and on the spread of a party's term over its samples."""

from __future__ import annotations

from collections.abc import Sequence

import cvxpy as cp
import numpy as np

from hierfl.analysis.curvature_bounds import is_quadratic
from hierfl.analysis.enclosure import enclose
from hierfl.analysis.hoist import hoist
from hierfl.analysis.lipschitz import gradient_bound, one_sample
from hierfl.atoms.algebra import addends
from hierfl.inspect.assumptions.holders import Holder
from hierfl.inspect.assumptions.study import Study
from hierfl.language.calculus.derivative import depends
from hierfl.language.sample import Sample


def worst_gradient(
    study: Study, term: cp.Expression | None, variables: Sequence[cp.Variable]
) -> tuple[float, str, tuple[float, ...]]:
    """The largest over clients of :func:`gradient_size`, whose it is, and those of all clients."""
    if term is None:
        return 0.0, "", ()
    values = tuple(gradient_size(study, term, variables, holder) for holder in study.holders.clients)
    return max(values), study.holders.clients[int(np.argmax(values))].label, values


def gradient_size(study: Study, term: cp.Expression, variables: Sequence[cp.Variable], holder: Holder) -> float:
    """The root mean square over a party's samples of a bound on the norm of one sample's gradient."""
    if not depends(term, {v.id for v in variables}):
        return 0.0
    samples = tuple(p.id for p in term.parameters() if isinstance(p, Sample))
    alone = one_sample(term, holder.count)
    rough = gradient_bound(alone, variables, holder.known)
    if not np.isfinite(rough) or not samples:
        return rough
    squares = [
        (share, gradient_bound(alone, variables, known) ** 2) for share, known in study.holders.groups(holder, samples)
    ]
    return float(np.sqrt(sum(share * square for share, square in squares))) * (1 + 1e-12)


def steep_addend(study: Study, term: cp.Expression, variables: Sequence[cp.Variable]) -> cp.Expression | None:
    """An addend whose slope is not bounded on the whole space, where convexity keeps the others from making up for it; else None."""
    wanted = {v.id for v in variables}
    moving = [part for part in addends(term) if depends(part, wanted)]
    known = study.compiled.declaration.known_bounds
    alone = [(part, hoist([part], variables, known).expressions[0]) for part in moving]
    if not (all(e.is_convex() for _, e in alone) or all(e.is_concave() for _, e in alone)):
        return None
    return next((part for part, e in alone if is_quadratic(e) and not e.is_affine()), None)


def spread(study: Study, term: cp.Expression | None, holder: Holder) -> float:
    """A bound on the variance over samples of one sample's value of the term: a quarter of its range squared (Popoviciu)."""
    if term is None or not any(isinstance(p, Sample) for p in term.parameters()):
        return 0.0
    values = enclose(one_sample(term, holder.count), holder.known)
    return float(np.max(0.25 * (values.hi - values.lo) ** 2)) * (1 + 1e-12)

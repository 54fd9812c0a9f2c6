"""The size of the sets Y(x), by intervals."""

from __future__ import annotations

import numpy as np

from hierfl.analysis.enclosure import Known
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
        sizes.append(np.linalg.norm([np.linalg.norm(boxes[v.id].hi - boxes[v.id].lo) for v in variables]))
    return float(np.max(sizes)) * (1 + 1e-12)

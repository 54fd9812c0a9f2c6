"""Where the density of a law of one scalar jumps: within its support, and at the ends of that.

Answers to such a law have kinks there, and what is told of it between nodes has to begin anew (``LawIntegrals``).
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jaxtyping import Float

LEAST = 1e-6  # of the density beside it: a jump that is one
# in which an interval is looked at, down to neighbouring numbers; what is narrower than one may go unseen
PARTS, ROUNDS = 12, 15
STEEP = 3  # times the usual change over such a part: that of a jump
SHRUNK = 0.16  # of the change over a part: over a part of that, a smooth density's is smaller
NARROW = 1e6  # units of rounding: in intervals that are no wider a jump is not told from a steep density


def has_density(law: Any) -> bool:
    """Whether SciPy tells the density and the probability beyond a point of a law."""
    return all(hasattr(law, part) for part in ("sf", "pdf", "ppf"))


@np.errstate(all="ignore")  # the density may be infinite at an end
def density_jumps(law: Any, nodes: Float[np.ndarray, " n"]) -> Float[np.ndarray, " jumps"]:
    """The places where the density jumps, ascending: between ascending nodes, and at the ends of the support beside the outermost."""

    def density(places: np.ndarray) -> np.ndarray:
        return np.nan_to_num(np.asarray(law.pdf(places), float), posinf=np.finfo(float).max)

    low, high, before = nodes[:-1], nodes[1:], np.zeros(0)
    wide = high - low > NARROW * np.spacing(np.maximum(np.abs(low), np.abs(high)))
    parts = np.stack([low[wide], high[wide]])
    least = LEAST * density(parts).max(axis=0)
    for step in range(ROUNDS):
        edges = np.linspace(parts[0], parts[1], PARTS + 1)
        change = np.abs(np.diff(density(edges), axis=0))
        smooth = SHRUNK * before if step else STEEP * np.median(change, axis=0)
        part, interval = np.nonzero((change > smooth) & (change > least))
        parts, before, least = (
            np.stack([edges[part, interval], edges[part + 1, interval]]),
            change[part, interval],
            least[interval],
        )
    gap = np.median(high - low) * np.array([1, -1])
    beside = nodes[[0, -1]] + np.sign(gap) * np.maximum(1e-10 * np.abs(gap), 4 * np.spacing(np.abs(nodes[[0, -1]])))
    ends = np.ravel(law.support())[density(beside) > LEAST * np.median(density(nodes))]
    return np.unique(np.concatenate([parts.mean(axis=0), ends[np.isfinite(ends)]]))

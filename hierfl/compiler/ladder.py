"""Where to start the Newton method of a rank-one lower level: its scalar equation, solved at one point in advance.

On a box, F(y) = q + diag(d) y + u v'y is solved by y(theta) = clip(-(q + u theta) / d) with theta = v'y. If only a multiple of u
is added to q, q = q0 + s u, the shift tau = s + theta solves tau - v'y0(tau) = s, where y0 belongs to q0: a fixed increasing
piecewise linear function, whose rungs are tabulated once. Other changes of q, or of the box, leave a start like any other.
"""

from __future__ import annotations

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from hierfl.compiler.low_rank import LowRank
from hierfl.compiler.program import Array

WORK = 4_000_000  # scalars to be looked at while tabulating


class Ladder(NamedTuple):
    """``rungs``: increasing shifts tau; ``levels``: tau - v'y0(tau) there; ``weights``: q - q0 to s."""

    rungs: Array
    levels: Array
    origin: Array
    weights: Array

    @classmethod
    def of(cls, parts: LowRank, origin: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> Ladder | None:
        """Tabulate; None for another rank, or where nothing ever meets a bound."""
        d, u, v = (np.asarray(part) for part in parts)
        if u.shape[1] != 1:
            return None
        u, v = u[:, 0], v[:, 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            bends = np.concatenate([-(origin + d * bound) / u for bound in (lower, upper)])
        bends = np.unique(bends[np.isfinite(bends)])
        if not bends.size:
            return None
        count = max(2, min(bends.size, WORK // u.size))
        rungs = bends[np.linspace(0, bends.size - 1, count).astype(int)]
        far = 1.0 + rungs[-1] - rungs[0]
        rungs = np.unique(np.concatenate([[rungs[0] - far], rungs, [rungs[-1] + far]]))
        levels = [tau - v @ np.clip(-(origin + u * tau) / d, lower, upper) for tau in rungs]
        return cls(jnp.asarray(rungs), jnp.asarray(levels), jnp.asarray(origin), jnp.asarray(u / (u @ u)))

    def start(self, q: Array) -> Array:
        """theta = v'y for this q, ``(1,)``; exact if q - q0 is a multiple of u and every bend is a rung."""
        shift = jnp.sum(self.weights * (q - self.origin))
        place = jnp.clip(jnp.sum(self.levels < shift), 1, self.levels.size - 1)
        low, high = self.levels[place - 1], self.levels[place]
        share = (shift - low) / jnp.where(high > low, high - low, 1.0)
        tau = self.rungs[place - 1] + share * (self.rungs[place] - self.rungs[place - 1])
        return (tau - shift)[None]

"""Where to start the Newton method of a rank-one lower level: its scalar equation, solved at one point in advance.

On a box, F(y) = q + diag(d) y + u v'y is solved by y(theta) = clip(-(q + u theta) / d) with theta = v'y. If only a multiple of u
is added to q, q = q0 + s u, the shift tau = s + theta solves tau - v'y0(tau) = s, where y0 belongs to q0: a fixed increasing
piecewise linear function, whose rungs are tabulated once. Other changes of q, or of the box, leave a start like any other.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.compiler.lower_level.low_rank_map import LowRank


class Ladder(NamedTuple):
    """tau(s) in increasing pieces ``rung + slope * (s - level)`` for ``first <= s < last``, and s from q.

    ``pieces`` (5, k, l) has first, last, level, rung and slope of each piece, in blocks of l. s is the sum of
    ``weights * (q - q0)``, or its entry ``lead`` alone where q moves along u only.
    """

    pieces: Array
    origin: Array
    weights: Array
    lead: int | None

    @classmethod
    def of(
        cls, parts: LowRank, origin: np.ndarray, other: np.ndarray, lower: np.ndarray, upper: np.ndarray
    ) -> Ladder | None:
        """Tabulate, from q at two points; None for another rank, or where nothing ever meets a bound."""
        d, u, v = (np.asarray(part) for part in parts)
        if u.shape[1] != 1:
            return None
        u, v = u[:, 0], v[:, 0]
        with np.errstate(divide="ignore", invalid="ignore"):
            bends = np.sort([-(origin + d * bound) / u for bound in (lower, upper)], axis=0)  # free in between
        inner = np.unique(bends[np.isfinite(bends)])
        if not inner.size:
            return None
        far = 1.0 + inner[-1] - inner[0]
        rungs = np.concatenate([[inner[0] - far], inner, [inner[-1] + far]])
        # from rung to rung tau - v'y0(tau) climbs by 1 and by u_j v_j / d_j for every y_j that is free
        changes = np.zeros(rungs.size)
        for ends, sign in zip(bends, (1.0, -1.0)):
            np.add.at(changes, np.clip(np.searchsorted(rungs, ends), 0, rungs.size - 1), sign * u * v / d)
        climbs = np.diff(rungs) * (1.0 + np.cumsum(changes)[:-1])
        lowest = rungs[0] - v @ np.clip(-(origin + u * rungs[0]) / d, lower, upper)
        levels = lowest + np.concatenate([[0.0], np.cumsum(climbs)])
        weights, lead = _reading(other - origin, u)
        return cls(jnp.asarray(_in_blocks(rungs, levels)), jnp.asarray(origin), jnp.asarray(weights), lead)

    def start(self, q: Array) -> Array:
        """theta = v'y for this q, ``(1,)``; exact if q - q0 is a multiple of u and every bend is a rung.

        Its block first, then the piece in it: sums of a few dozen terms, where a search would be a loop.
        """
        pieces, origin, weights = (table.astype(q.dtype) for table in self[:3])
        change = weights * (q - origin)
        shift = jnp.sum(change) if self.lead is None else change[self.lead]
        block = jnp.maximum(jnp.sum(pieces[0, :, 0] <= shift) - 1, 0)
        first, last, levels, rungs, slopes = pieces[:, block]
        theta = rungs + slopes * (shift - levels) - shift
        return jnp.sum(jnp.where((first <= shift) & (shift < last), theta, 0.0), keepdims=True)


def _in_blocks(rungs: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """The pieces between the rungs, about as many blocks as pieces in one; filled up with pieces that nothing meets."""
    rise, inner = np.diff(levels), levels[1:-1]
    slopes = np.where(rise > 0, np.diff(rungs) / np.where(rise > 0, rise, 1.0), 0.0)
    pieces = np.stack([np.append(-np.inf, inner), np.append(inner, np.inf), levels[:-1], rungs[:-1], slopes])
    width = math.isqrt(slopes.size)
    return np.pad(pieces, ((0, 0), (0, -slopes.size % width)), constant_values=np.inf).reshape(5, -1, width)


def _reading(change: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, int | None]:
    """(weights, lead) from how q differs at another point; the weights agree, so that rounding errors of u average out."""
    nearest, lead = u / (u @ u), int(np.argmax(np.abs(change)))
    multiple, size = nearest @ change, np.abs(change[lead])
    if size == 0 or not np.allclose(change, multiple * u, rtol=1e-9, atol=1e-9 * size):
        return nearest, None
    return np.where(change != 0, multiple / np.where(change != 0, change, 1.0), 0.0), lead

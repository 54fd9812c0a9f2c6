"""The shortest element of conv(G) + cone(N) for finitely many vectors, exact at every scale.

With s the sum of the convex weights, min ||G'w + N'u||^2 + r^2 (s - 1)^2 over w, u >= 0 has the value r^2 D^2 / (r^2 + D^2), D the
distance sought, and after division by s the shortest element itself: one nonnegative least-squares problem (Lawson and Hanson,
1974). Rounding leaves D right to about sqrt(r) 1e-7; it is solved again with r near D until D no longer falls.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import scipy.optimize

from hierfl.errors import SettingError

PASSES = 12
FALL = 0.9  # another pass while it shortens by more than a tenth
SMALLEST_LEVEL = 1e-15
OPTIMAL = 1e-9  # of the longest gradient


class Combination(NamedTuple):
    """``rest`` (n,) = weights @ gradients + multipliers @ normals; weights (k,) sum to 1, nothing is negative."""

    weights: np.ndarray
    multipliers: np.ndarray
    rest: np.ndarray

    @property
    def length(self) -> float:
        """The norm of ``rest``."""
        return float(np.linalg.norm(self.rest))


def shortest(gradients: np.ndarray, normals: np.ndarray) -> Combination:
    """Find the shortest element of conv(gradients) + cone(normals), given as rows (k, n) and (j, n), j may be 0.

    Raises
    ------
    SettingError
        If the conditions of optimality do not hold to 1e-9 of the longest gradient.
    """
    size = float(np.max(np.linalg.norm(gradients, axis=1)))
    if size == 0:
        return Combination(
            np.full(len(gradients), 1 / len(gradients)), np.zeros(len(normals)), np.zeros_like(gradients[0])
        )
    lengths = np.linalg.norm(normals, axis=1)
    scaled, units = gradients / size, normals / lengths[:, None]
    level, passes = 1.0, [_solved(scaled, units, 1.0)]
    while passes[-1].length > SMALLEST_LEVEL and len(passes) < PASSES:
        if passes[-1].length >= FALL * level and _gap(passes[-1], scaled, units) <= OPTIMAL:
            break
        level = passes[-1].length
        passes.append(_solved(scaled, units, level))
    gaps = [_gap(combination, scaled, units) for combination in passes]
    if min(gaps) > OPTIMAL:
        raise _unsolved(len(gradients), f"its optimality conditions are violated by {min(gaps):.3g}")
    best = min((one for one, gap in zip(passes, gaps) if gap <= OPTIMAL), key=lambda one: one.length)
    return Combination(best.weights, best.multipliers * size / lengths, best.rest * size)


def _solved(gradients: np.ndarray, normals: np.ndarray, level: float) -> Combination:
    """Solve for r = level, the columns scaled to unit length."""
    count = len(gradients)
    matrix = np.vstack([np.hstack([gradients.T / level, normals.T]), np.repeat([1.0, 0.0], [count, len(normals)])])
    lengths = np.linalg.norm(matrix, axis=0)
    target = np.append(np.zeros(gradients.shape[1]), 1.0)
    try:
        solution, _ = scipy.optimize.nnls(matrix / lengths, target, maxiter=50 * len(lengths))
    except RuntimeError as error:
        raise _unsolved(count, str(error)) from error
    scaled = solution / lengths
    total = np.sum(scaled[:count])
    if not total > 0:
        raise _unsolved(count, "no weight is positive")
    weights, multipliers = scaled[:count] / total, scaled[count:] * level / total
    return Combination(weights, multipliers, weights @ gradients + multipliers @ normals)


def _gap(combination: Combination, gradients: np.ndarray, normals: np.ndarray) -> float:
    """Measure how far the conditions of optimality fail: no gradient shorter along ``rest`` than ``rest``, no normal against it."""
    length = combination.length
    if length <= OPTIMAL:  # nothing is shorter than 0
        return 0.0
    shorter = length - float(np.min(gradients @ combination.rest)) / length
    return max(shorter, -float(np.min(normals @ combination.rest, initial=0.0)))


def _unsolved(count: int, why: str) -> SettingError:
    return SettingError(
        f"the shortest combination of the {count} sampled gradients was not found ({why}): take another samples=... or seed=...."
    )

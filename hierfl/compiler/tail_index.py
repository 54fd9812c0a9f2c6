"""How heavy the tail of a sample is: the index k of the generalised Pareto law that fits its largest values.

The variance is infinite from k = 1/2 on, the mean from k = 1 on. The fit is that of Zhang and Stephens (2009), used to judge Monte
Carlo means as Vehtari, Simpson, Gelman, Yao and Gabry do (2024).
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float


def tail_index(sample: Float[np.ndarray, " n"]) -> float:
    """The index of the distances from the median; -infinity where the largest of them do not differ."""
    away = np.sort(np.abs(sample - np.median(sample)))
    largest = int(min(0.2 * away.size, 3 * np.sqrt(away.size)))
    excess = away[-largest:] - away[-largest - 1]
    if not np.isfinite(excess).all():
        return float("inf")
    return _pareto_index(excess) if excess[0] >= 0 and excess[largest // 4] > 1e-12 * away[-1] else float("-inf")


def _pareto_index(excess: Float[np.ndarray, " n"]) -> float:
    """The index of a generalised Pareto law fitted to positive values in order: a mean over likely scales of the estimate for each."""
    count = excess.size
    grid = 20 + int(np.sqrt(count))
    quartile = excess[int(count / 4 + 0.5) - 1]
    scales = 1 / excess[-1] + (1 - np.sqrt(grid / (np.arange(grid) + 0.5))) / (3 * quartile)
    index = np.mean(np.log1p(-scales[:, None] * excess), axis=1)
    likelihood = count * (np.log(-scales / index) - index - 1)
    weights = 1 / np.sum(np.exp(np.clip(likelihood - likelihood[:, None], None, 700.0)), axis=1)
    return float(np.mean(np.log1p(-np.sum(weights * scales) * excess)))

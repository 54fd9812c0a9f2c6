"""The constants that the papers' theorems are functions of, and the settings that they prescribe."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class Constants:
    """The constants that the theorems mention; ``n`` upper scalars, ``m`` clients.

    ``lipschitz`` is L_0 (without a lower level) or L_0^imp, ``lipschitz_y`` L_{0,y}^f, ``slope`` L_{0,x}^{grad h} / mu_h (the
    Lipschitz constant of y(x) there), ``variance`` nu^2, ``b1`` and ``b2`` the set dissimilarity, ``mu`` and ``smooth`` mu_h
    (mu_F) and L_{1,y}^h (L_F), ``start`` a bound on the squared distance of the lower solver's start from y(x),
    ``server_smooth`` L_1^{f_1}, ``server_variance`` sigma^2, ``lower_variance`` the largest sigma_i^2, ``swing`` a bound on
    f^eta - inf f^eta over X.
    """

    n: int
    m: int
    smoothing: float
    gap: float = inf
    lipschitz: float = inf
    lipschitz_y: float = 0.0
    slope: float = 0.0
    variance: float = 0.0
    b1: float = 0.0
    b2: float = 0.0
    mu: float = 0.0
    smooth: float = inf
    start: float = inf
    server_smooth: float = 0.0
    server_variance: float = 0.0
    lower_variance: float = 0.0
    swing: float = inf
    value: float = 0.0
    lowest: float = 0.0


@dataclass(frozen=True)
class Prescription:
    """A setting under which a bound on E|grad f^eta|^2 reaches the accuracy.

    ``iterations`` is the horizon K of local steps, ``rounds`` R, ``step`` gamma (its value in round 0 for [HFL]),
    ``local_steps`` H; ``thetas`` the theorem's constants; ``extra`` further settings by name,
    ``lower`` the lower solver of a run.
    """

    rounds: float
    step: float
    local_steps: float
    bound: float
    thetas: dict[str, float]
    iterations: float | None = None
    extra: dict[str, float] | None = None
    lower: str | None = None

"""The least number of iterations under which a theorem's bound reaches an accuracy."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, exp, inf, log

from hierfl.analysis.theorems.prescription import Constants, Prescription

HORIZON_LIMIT = 1e300


def local_steps(horizon: float, m: int) -> float:
    """H = ceil((K / m^3)^(1/4))."""
    return float(max(1, ceil((horizon / m**3) ** 0.25))) if horizon < HORIZON_LIMIT else inf


def steps_given(given: float | None) -> Callable[[float, int], float]:
    """H as a function of the horizon and m: the theorems' choice, or a number that is given."""
    return local_steps if given is None else lambda horizon, m: float(given)


def least_horizon(
    c: Constants,
    epsilon: float,
    bound: Callable[[Constants, float, float, float], float],
    limit: Callable[[Constants, float], float],
    steps_of: Callable[[float, int], float],
    step_of: Callable[[float], float],
    thetas: dict[str, float],
) -> Prescription:
    """The least K (to a part in 10^9, by bisection of its logarithm) from which on the bound and the limits hold."""

    def met(horizon: float) -> bool:
        steps, step = steps_of(horizon, c.m), step_of(horizon)
        return step <= limit(c, steps) and bound(c, horizon, step, steps) <= epsilon

    high = 1.0
    while high < HORIZON_LIMIT and not met(high):
        high *= 2
    if high >= HORIZON_LIMIT:
        return Prescription(inf, 0.0, inf, inf, thetas, inf)
    low = high / 2
    while high - low > max(1.0, 1e-9 * high):
        middle = exp(0.5 * (log(low) + log(high)))
        low, high = (low, middle) if met(middle) else (middle, high)
    horizon = float(ceil(high)) if met(float(ceil(high))) else high
    steps, step = steps_of(horizon, c.m), step_of(horizon)
    return Prescription(float(ceil(horizon / steps)), step, steps, bound(c, horizon, step, steps), thetas, horizon)


def over(above: float, below: float) -> float:
    """The quotient, infinity where ``below`` is 0."""
    return above / below if below > 0 else inf

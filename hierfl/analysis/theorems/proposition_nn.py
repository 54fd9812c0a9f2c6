"""Proposition 1 of [NN] (Qiu, Shanbhag, Yousefian, 2023) and of [2S]: nonsmooth federated problems without a lower level; as printed, and corrected."""

from __future__ import annotations

from math import sqrt

from hierfl.analysis.theorems.horizon import least_horizon, over, steps_given
from hierfl.analysis.theorems.prescription import Constants, Prescription


def step_limit_nn(c: Constants, steps: float) -> float:
    """gamma <= min{eta / (4 L0 n), 1 / (4 H), eta / (12 sqrt(3) B2 (L0 n + 1) H)}."""
    limits = [over(c.smoothing, 4 * c.lipschitz * c.n), 1 / (4 * steps)]
    return min(*limits, over(c.smoothing, 12 * sqrt(3) * c.b2 * (c.lipschitz * c.n + 1) * steps))


def step_limit_nn_corrected(c: Constants, steps: float) -> float:
    """With gamma <= eta / (4 (L0 n + 1)): f^eta is (L0 n + 1) / eta-smooth, as the proof shows."""
    return min(step_limit_nn(c, steps), c.smoothing / (4 * (c.lipschitz * c.n + 1)))


def bound_nn(c: Constants, horizon: float, step: float, steps: float) -> float:
    """The error bound of Proposition 1 (i) for K = ``horizon``, gamma = ``step`` and H = ``steps``."""
    return _bound(c, horizon, step, steps, c.lipschitz * c.n)


def bound_nn_corrected(c: Constants, horizon: float, step: float, steps: float) -> float:
    """The same with the smoothness that the proof shows, (L0 n + 1) / eta, where it then writes L0 n / eta."""
    return _bound(c, horizon, step, steps, c.lipschitz * c.n + 1)


def _bound(c: Constants, horizon: float, step: float, steps: float, reach: float) -> float:
    eta, n, lipschitz = c.smoothing, c.n, c.lipschitz
    return (
        8 * c.gap / (step * (horizon + 1))
        + 12 * step * reach * n**2 / (eta * c.m) * (2 * c.variance / eta**2 + lipschitz**2)
        + 36
        * steps**2
        * step**2
        * (lipschitz * n + 1) ** 2
        / eta**2
        * ((6 * n**2 * c.variance + 2 * c.b1**2) / eta**2 + (3 + 4 * c.b2**2) * lipschitz**2 * n**2)
    )


def prescribe_nn(c: Constants, epsilon: float, corrected: bool, given: float | None = None) -> Prescription:
    """The least horizon K with gamma = sqrt(m / K), H = ceil((K / m^3)^(1/4)), or a given H, that meets the bound and its step limits."""
    bound, limit = (bound_nn_corrected, step_limit_nn_corrected) if corrected else (bound_nn, step_limit_nn)
    return least_horizon(c, epsilon, bound, limit, steps_given(given), lambda k: sqrt(c.m / k), {})

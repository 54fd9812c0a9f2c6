"""Proposition 1 of [NN] (Qiu, Shanbhag, Yousefian, 2023) and of [2S]: nonsmooth federated problems without a lower level."""

from __future__ import annotations

from math import sqrt

from hierfl.analysis.theorems.horizon import least_horizon, local_steps, over
from hierfl.analysis.theorems.prescription import Constants, Prescription


def step_limit_nn(c: Constants, steps: float) -> float:
    """gamma <= min{eta / (4 L0 n), 1 / (4 H), eta / (12 sqrt(3) B2 (L0 n + 1) H)}."""
    limits = [over(c.smoothing, 4 * c.lipschitz * c.n), 1 / (4 * steps)]
    return min(*limits, over(c.smoothing, 12 * sqrt(3) * c.b2 * (c.lipschitz * c.n + 1) * steps))


def bound_nn(c: Constants, horizon: float, step: float, steps: float) -> float:
    """The error bound of Proposition 1 (i) for K = ``horizon``, gamma = ``step`` and H = ``steps``."""
    eta, n, lipschitz = c.smoothing, c.n, c.lipschitz
    return (
        8 * c.gap / (step * (horizon + 1))
        + 12 * step * lipschitz * n**3 / (eta * c.m) * (2 * c.variance / eta**2 + lipschitz**2)
        + 36
        * steps**2
        * step**2
        * (lipschitz * n + 1) ** 2
        / eta**2
        * ((6 * n**2 * c.variance + 2 * c.b1**2) / eta**2 + (3 + 4 * c.b2**2) * lipschitz**2 * n**2)
    )


def prescribe_nn(c: Constants, epsilon: float) -> Prescription:
    """The least horizon K with gamma = sqrt(m / K), H = ceil((K / m^3)^(1/4)) that meets the bound and its step limits."""
    return least_horizon(c, epsilon, bound_nn, step_limit_nn, local_steps, lambda k: sqrt(c.m / k), {})

"""Theorem 1 of [2S] (Qiu, Shanbhag, Yousefian, 2024), bilevel and minimax problems; as printed, and corrected."""

from __future__ import annotations

from dataclasses import replace
from math import sqrt

from hierfl.analysis.theorems.horizon import least_horizon, over, steps_given
from hierfl.analysis.theorems.prescription import Constants, Prescription


def thetas_bl(c: Constants) -> dict[str, float]:
    """Theta_1..Theta_5 of [2S] Theorem 1."""
    n, eta, reach = c.n, c.smoothing, c.lipschitz * c.n + 1
    return {
        "Theta_1": 3 * reach * n**2 / (2 * eta) * c.lipschitz**2,
        "Theta_2": 5 * reach**2 / (8 * eta**2),
        "Theta_3": c.slope**2 * 20 * n**2 / eta**2 * c.lipschitz_y**2,
        "Theta_4": 96 * n**2 / eta**2 * c.lipschitz_y**2,
        "Theta_5": 48 * c.b1**2 / eta**2 + (96 * c.b2**2 + 1) * c.lipschitz**2 * n**2,
    }


def step_limit_bl(c: Constants, steps: float) -> float:
    """gamma <= min{max{2, sqrt(.1 Theta_3), 4 B2 sqrt(3 Theta_2), 4 B2 sqrt(3 Theta_3)}^-1 / (4 H), eta / (24 (L n + 1))}."""
    t = thetas_bl(c)
    largest = max(
        2.0,
        sqrt(0.1 * t["Theta_3"]),
        4 * c.b2 * sqrt(3 * t["Theta_2"]),
        4 * c.b2 * sqrt(3 * t["Theta_3"]),
    )
    return min(1 / (4 * steps * largest), c.smoothing / (24 * (c.lipschitz * c.n + 1)))


def bound_bl(c: Constants, horizon: float, step: float, steps: float) -> float:
    """The error bound of [2S] Theorem 1 (i) with the lower level solved exactly (every epsilon_r = 0)."""
    t = thetas_bl(c)
    drift = 8 * steps**2 * step**2 * max(t["Theta_2"], t["Theta_3"]) * t["Theta_5"]
    return 8 * c.gap / (step * horizon) + 8 * step * t["Theta_1"] / c.m + drift


def bound_bl_corrected(c: Constants, horizon: float, step: float, steps: float) -> float:
    """Without independence that is not there ([2S] Lemma 9): one local step a round, and no division by m.

    A direction shared by all clients leaves E|mean of g|^2 <= n^2 L^2; at H = 1 no client has moved from the broadcast
    point, so that the drift terms vanish.
    """
    assert steps == 1
    return 8 * c.gap / (step * horizon) + 8 * step * thetas_bl(c)["Theta_1"]


def prescribe_bl(c: Constants, epsilon: float, given: float | None = None) -> Prescription:
    """As printed: gamma = sqrt(m / K), H = ceil((K / m^3)^(1/4)) or a given H."""
    steps = steps_given(given)
    return least_horizon(c, epsilon, bound_bl, step_limit_bl, steps, lambda k: sqrt(c.m / k), thetas_bl(c))


def prescribe_bl_corrected(c: Constants, epsilon: float) -> Prescription:
    """One local step a round, gamma = 1 / sqrt(K); half of the accuracy is left to the lower level's error.

    ``extra["lower_error"]`` is the mean squared error of y that this half allows: 8 * 20 n^2 L_y^2 / eta^2 times it (the
    coefficient of the proof's inequality (19) before the factor that only belongs to the drift).
    """
    half = least_horizon(
        c,
        epsilon / 2,
        bound_bl_corrected,
        step_limit_bl,
        lambda horizon, m: 1.0,
        lambda k: 1 / sqrt(k),
        thetas_bl(c),
    )
    weight = 8 * 20 * c.n**2 / c.smoothing**2 * c.lipschitz_y**2
    extra = {"lower_error": over(epsilon / 2, weight)}
    return replace(half, extra=extra)

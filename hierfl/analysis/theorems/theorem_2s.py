"""Theorem 2 of [2S] (Qiu, Shanbhag, Yousefian, 2024), two-stage problems; as printed, and corrected."""

from __future__ import annotations

from dataclasses import replace
from math import log, log1p, sqrt

from hierfl.analysis.theorems.horizon import least_horizon, over, steps_given
from hierfl.analysis.theorems.prescription import Constants, Prescription


def thetas_2s(c: Constants) -> dict[str, float]:
    """Theta_1..Theta_5 of [2S] Theorem 2."""
    n, eta, reach = c.n, c.smoothing, c.lipschitz * c.n + 1
    return {
        "Theta_1": reach * n**2 / eta * c.lipschitz**2,
        "Theta_2": 5 * reach**2 / (8 * eta**2),
        "Theta_3": 20 * n**2 / eta**2 * c.lipschitz_y**2,
        "Theta_4": 36 * n**2 / eta**2 * c.lipschitz_y**2,
        "Theta_5": 9 * (2 * c.b1**2 / eta**2 + (4 * c.b2**2 + 1) * c.lipschitz**2 * n**2),
    }


def step_limit_2s(c: Constants, steps: float) -> float:
    """gamma <= min{1 / (12 sqrt(6) H B2 sqrt(Theta_2)), eta / (16 (L n + 1))}."""
    t = thetas_2s(c)
    return min(
        over(1.0, 12 * sqrt(6) * steps * c.b2 * sqrt(t["Theta_2"])), c.smoothing / (16 * (c.lipschitz * c.n + 1))
    )


def step_limit_2s_corrected(c: Constants, steps: float) -> float:
    """With gamma <= 1 / (sqrt(24) H), which the proof uses (Lemma 13 (ii)) and the statement omits."""
    return min(step_limit_2s(c, steps), 1 / (sqrt(24) * steps))


def bound_2s(c: Constants, horizon: float, step: float, steps: float) -> float:
    """The error bound of [2S] Theorem 2 (ii), with sum of epsilon_k <= B (1 + ln K) as for its t_k."""
    t = thetas_2s(c)
    errors = c.start * (1 + log(horizon))
    return (
        8 * c.gap / (step * horizon)
        + 8 * step * t["Theta_1"] / c.m
        + 8 * steps**2 * step**2 * t["Theta_2"] * t["Theta_5"]
        + (8 * steps**2 * step**2 * t["Theta_2"] * t["Theta_4"] + 8 * t["Theta_3"]) * errors / horizon
    )


def lower_steps_2s(c: Constants) -> dict[str, float]:
    """alpha = mu / L^2 and the least tau = -1 / ln(1 - 1 / kappa^2) of t_k = ceil(tau ln(k + 1))."""
    return {"alpha": c.mu / c.smooth**2, "tau": contraction_growth(c.mu, c.smooth)}


def contraction_growth(mu: float, smooth: float) -> float:
    """The least tau of Theorem 2 (iii), -1 / ln(1 - 1 / kappa^2) with kappa = L / mu; 0 where kappa is 1."""
    ratio = (mu / smooth) ** 2
    return -1 / log1p(-ratio) if ratio < 1 else 0.0


def prescribe_2s(c: Constants, epsilon: float, corrected: bool, given: float | None = None) -> Prescription:
    """gamma = sqrt(m / K), H = ceil((K / m^3)^(1/4)) or a given H, and the lower solver's step and number of steps."""
    limit = step_limit_2s_corrected if corrected else step_limit_2s
    upper = least_horizon(c, epsilon, bound_2s, limit, steps_given(given), lambda k: sqrt(c.m / k), thetas_2s(c))
    return replace(upper, extra=lower_steps_2s(c))

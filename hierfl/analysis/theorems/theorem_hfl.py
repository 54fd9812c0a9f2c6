"""Theorem 1 of [HFL] (Qiu, Kim, Yousefian, 2025), hierarchical problems; as printed, and corrected."""

from __future__ import annotations

from math import ceil, inf, pi, sqrt

from hierfl.analysis.theorems.horizon import HORIZON_LIMIT
from hierfl.analysis.theorems.prescription import Constants, Prescription


def smoothness_hfl(c: Constants) -> float:
    """L^f = L_1^{f_1} + L_0^imp sqrt(n) / eta."""
    return c.server_smooth + c.lipschitz * sqrt(c.n) / c.smoothing


def lower_settings_hfl(c: Constants) -> dict[str, float]:
    """Proposition 1 with gamma~ = 2 / mu, so that mu gamma~ > 1, and the least Gamma = 2 L^2 gamma~ / mu.

    ``C`` is the numerator max{2 sigma^2 gamma~^2 / (mu gamma~ - 1), Gamma |y_0 - y|^2} of its bound; ``tau`` the least
    number of local steps for which C / tau <= 1.
    """
    step = 2 / c.mu
    offset = 2 * c.smooth**2 * step / c.mu
    numerator = max(2 * c.lower_variance * step**2 / (c.mu * step - 1), offset * c.start)
    return {"step": step, "Gamma": offset, "C": numerator, "tau": float(max(1, ceil(numerator)))}


def thetas_hfl(c: Constants) -> dict[str, float]:
    """Theta_1..Theta_3 of [HFL] Theorem 1, as printed."""
    return {
        "Theta_1": 4 * smoothness_hfl(c) * (abs(c.value) + abs(c.lowest)),
        "Theta_2": 64 * sqrt(2 * pi) * c.lipschitz**2 * c.n + 4 * c.server_variance,
        "Theta_3": 6 * c.n**2 / c.smoothing**2 * c.lipschitz_y**2,
    }


def thetas_hfl_corrected(c: Constants) -> dict[str, float]:
    """Theta_1 = 16 L^f (sup f^eta - inf f^eta), since 1 / gamma_r does not telescope; Theta_3 times C / tau."""
    printed, lower = thetas_hfl(c), lower_settings_hfl(c)
    return {
        "Theta_1": 16 * smoothness_hfl(c) * c.swing,
        "Theta_2": printed["Theta_2"],
        "Theta_3": printed["Theta_3"] * lower["C"] / lower["tau"],
    }


def prescribe_hfl(c: Constants, epsilon: float, corrected: bool) -> Prescription:
    """gamma_r = 1 / (4 L^f sqrt(r + 1)), H_r = ceil(tau sqrt(r + 1)), R = (sum of Theta / epsilon)^2."""
    thetas = thetas_hfl_corrected(c) if corrected else thetas_hfl(c)
    lower = lower_settings_hfl(c)
    total = sum(thetas.values())
    rounds = float(max(1, ceil((total / epsilon) ** 2))) if total / epsilon < sqrt(HORIZON_LIMIT) else inf
    return Prescription(rounds, 1 / (4 * smoothness_hfl(c)), lower["tau"], total / sqrt(rounds), thetas, None, lower)

"""The epsilon of a run against formulas for Gaussian mechanisms that are independent of the accountant."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import norm

from hierfl.runtime.privacy.gaussian_noise import epsilon_of, library


def concentrated(rho: float, delta: float) -> float:
    """epsilon of rho-zero-concentrated differential privacy: the best of Renyi's orders (Canonne, Kamath and Steinke, 2020, Section 2.3)."""

    def at(log_order: float) -> float:
        a = 1 + np.exp(log_order)
        return float(a * rho + np.log((a - 1) / a) - (np.log(delta) + np.log(a)) / (a - 1))

    return float(minimize_scalar(at, bounds=(-6, 12), method="bounded", options={"xatol": 1e-10}).fun)


def analytic(ratio: float, delta: float) -> float:
    """The exact epsilon of one Gaussian mechanism of this deviation over its sensitivity (Balle and Wang, 2018, Theorem 8)."""

    def excess(epsilon: float) -> float:
        below, above = 1 / (2 * ratio) - epsilon * ratio, -1 / (2 * ratio) - epsilon * ratio
        return float(norm.cdf(below) - np.exp(epsilon + norm.logcdf(above)) - delta)

    return float(brentq(excess, 0, 5000, xtol=1e-12))


def test_a_run_worked_by_hand() -> None:
    """Deviation 4 C, sensitivity 2 C: each message has rho = (2 / 4)^2 / 2 = 1/8, a hundred of them 12.5."""
    assert epsilon_of(4.0, 100, 1e-5) == pytest.approx(concentrated(12.5, 1e-5), rel=1e-3)
    assert concentrated(12.5, 1e-5) == pytest.approx(35.07, abs=0.005)


@pytest.mark.parametrize("multiplier", [1.0, 2.2, 8.0, 40.0])
def test_it_is_never_below_the_exact_one(multiplier: float) -> None:
    """A composition of Gaussian mechanisms is one of a hundredth, ... of the variance, whose epsilon has a formula."""
    for releases in (1, 7, 400):
        exact = analytic(multiplier / 2 / np.sqrt(releases), 1e-5)
        assert exact <= epsilon_of(multiplier, releases, 1e-5) <= 1.2 * exact + 0.05


def test_nothing_sent_is_nothing_told() -> None:
    assert epsilon_of(1.0, 0, 1e-5) == 0.0
    assert library().startswith("dp-accounting ")

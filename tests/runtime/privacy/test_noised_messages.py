"""What leaves a site under noise: no longer than the clip before it, discrete Gaussian noise after it, and once; and epsilon, that this comes to."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import brentq, minimize_scalar
from scipy.stats import norm

from hierfl.errors import SiteError
from hierfl.runtime.privacy.accounting import MOST_NUMBERS, Spent, composed
from hierfl.runtime.privacy.gaussian_noise import NoisedMessages, NoiseOrder, clipped, epsilon_of, grid_of, noised


def squares(message: np.ndarray) -> Fraction:
    return sum((Fraction(float(entry)) ** 2 for entry in message), Fraction(0))


@settings(max_examples=300, deadline=None)
@given(
    arrays(float, st.integers(0, 40), elements=st.floats(allow_nan=False, allow_infinity=False)),
    st.floats(1e-6, 1e6),
    st.floats(1e-3, 1e3),
)
def test_in_exact_arithmetic_nothing_is_longer_than_the_clip(
    message: np.ndarray, clip: float, multiplier: float
) -> None:
    short = clipped(message, clip)
    assert squares(short) <= Fraction(clip) ** 2
    grid, scale = grid_of(clip * multiplier)
    on_grid = np.trunc(short / grid)
    assert squares(on_grid) <= (Fraction(clip) / Fraction(grid)) ** 2
    assert 2.0**30 <= scale < 2.0**31 and np.abs(on_grid * grid - short).max(initial=0.0) <= grid
    if squares(message) <= (Fraction(clip) * Fraction(999, 1000)) ** 2:
        np.testing.assert_array_equal(short, message)


def test_a_long_message_keeps_its_direction_and_one_without_length_says_nothing() -> None:
    np.testing.assert_allclose(clipped(np.array([30.0, -40.0]), 1.0), [0.6, -0.8], rtol=1e-8)
    np.testing.assert_allclose(clipped(np.array([3e300, -4e300]), 1.0), [0.6, -0.8], rtol=1e-8)
    for bad in (np.nan, np.inf, -np.inf):
        np.testing.assert_array_equal(clipped(np.array([1.0, bad]), 1.0), [0.0, 0.0])


def test_the_noise_has_the_deviation_that_is_stated() -> None:
    """By statistics that fail once in 10^9 tests."""
    count, grid, scale = 20_000, *grid_of(0.5 * 1.1)
    noise = noised(np.full(count, 0.25), grid, scale) - 0.25
    assert abs(noise.mean()) < 6 * 0.55 / np.sqrt(count)
    assert noise.std() == pytest.approx(0.55, rel=6 / np.sqrt(2 * count))
    assert scipy.stats.kstest(noise / 0.55, "norm").pvalue > 1e-9
    assert abs(np.corrcoef(noise[:-1], noise[1:])[0, 1]) < 6 / np.sqrt(count)
    np.testing.assert_array_equal(noise / grid, np.trunc(noise / grid))


def test_a_question_asked_again_is_answered_as_before_and_others_until_there_are_enough() -> None:
    messages = NoisedMessages(NoiseOrder(1.0, 2.0, 1e-5, 2, "a run"), "local_steps")
    payload = {"a": np.zeros((2, 3)), "b": np.zeros(2)}
    first = messages.of([4, 9], ["x", "x"], payload)
    again = messages.of([9], ["x"], {"a": np.ones((1, 3)), "b": np.ones(1)})
    assert first["a"].shape == (2, 3) and first["b"].shape == (2,)
    np.testing.assert_array_equal(again["a"][0], first["a"][1])
    np.testing.assert_array_equal(again["b"][0], first["b"][1])
    assert messages.releases.counts == {4: 1, 9: 1}
    other = messages.of([9], ["y"], {"a": np.zeros((1, 3)), "b": np.zeros(1)})
    assert np.all(other["a"] != first["a"][1]) and np.all(first["a"][0] != first["a"][1])
    with pytest.raises(SiteError, match="have sent the 2 messages"):
        messages.of([4, 9], ["y", "z"], payload)
    assert messages.releases.counts == {4: 1, 9: 2}
    for kind, step in (("query", "local_steps"), ("map", "oracle.full_value")):
        with pytest.raises(SiteError, match="would not be"):
            messages.require(kind, step)


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
    """Deviation 4 C, sensitivity 2 C: each message has rho = (2 / 4)^2 / 2 = 1/8, a hundred of them 12.5, or half the root of a hundred."""
    assert epsilon_of(4.0, 100, 1e-5, shared=True) == pytest.approx(concentrated(12.5, 1e-5), rel=1e-3)
    assert concentrated(12.5, 1e-5) == pytest.approx(35.07, abs=0.005)
    assert epsilon_of(4.0, 100, 1e-5) == pytest.approx(analytic(0.2, 1e-5), rel=1e-6)
    assert analytic(0.2, 1e-5) == pytest.approx(33.10, abs=0.005)


@pytest.mark.parametrize("multiplier", [1.0, 2.2, 8.0, 40.0, 1e4])
def test_it_is_never_below_the_exact_one(multiplier: float) -> None:
    """A composition of Gaussian mechanisms is one of a hundredth, ... of the variance, whose epsilon has a formula."""
    for releases in (1, 7, 100):
        exact = analytic(multiplier / 2 / np.sqrt(releases), 1e-5)
        assert exact <= epsilon_of(multiplier, releases, 1e-5) <= (1 + 1e-6) * exact + 1e-6
        assert exact <= epsilon_of(multiplier, releases, 1e-5, shared=True) <= 1.2 * exact + 0.05


def test_runs_compose_to_what_the_accountant_says_of_all() -> None:
    import dp_accounting
    from dp_accounting.pld import PLDAccountant
    from dp_accounting.rdp import RdpAccountant

    runs = [(8.0, 20), (5.0, 7), (30.0, 200)]
    for accountant, shared in ((PLDAccountant(), False), (RdpAccountant(), True)):
        for multiplier, releases in runs:
            accountant.compose(dp_accounting.GaussianDpEvent(multiplier / 2), releases)
        spent = [Spent(*run, 5, shared and place == 1) for place, run in enumerate(runs)]  # one that is shared is enough
        found = composed(spent, 1e-6)
        assert found.epsilon == pytest.approx(accountant.get_epsilon(1e-6), rel=1e-5)
        assert ("Renyi" if shared else "privacy loss") in found.accountant


def test_what_the_discrete_noise_costs() -> None:
    """Its likelihoods beside those of a rounded Gaussian: within 40 deviations no further apart than the accountant adds."""
    from mpmath import erfc, exp, log, mp, mpf, pi, sqrt

    with mp.workdps(100):
        for s in (mpf(2) ** 10, mpf(2) ** 30):
            for k in (mpf(0), mpf(1), s / 4, s, 7 * s, 40 * s):
                discrete = exp(-(k**2) / (2 * s**2)) / (s * sqrt(2 * pi))
                rounded = (erfc((k - 0.5) / (s * sqrt(2))) - erfc((k + 0.5) / (s * sqrt(2)))) / 2
                assert -1 / (24 * s**2) <= log(rounded / discrete) <= 1600 / (24 * s**2)
    plain, sent = epsilon_of(8.0, 20, 1e-5), epsilon_of(8.0, 20, 1e-5, numbers=10**9)
    assert plain < sent == pytest.approx(plain + 20e9 * 2.0**-53, abs=1e-12) and 1601 / 24 * 2.0**-60 < 2.0**-53
    assert composed([Spent(8.0, 20, MOST_NUMBERS)], 1e-5).accountant.endswith("Renyi differential privacy")


def test_nothing_sent_is_nothing_told() -> None:
    assert epsilon_of(1.0, 0, 1e-5) == 0.0
    assert 0.0 <= epsilon_of(1e308, 1, 1e-5) < 1e-12
    assert composed([], 1e-5) == (0.0, "none, since nothing is sent")

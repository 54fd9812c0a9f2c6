"""What leaves a site under noise: no longer than the clip before it, discrete Gaussian noise after it, and once."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hierfl.errors import SiteError
from hierfl.runtime.privacy.gaussian_noise import NoisedMessages, NoiseOrder, clipped, grid_of, noised


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

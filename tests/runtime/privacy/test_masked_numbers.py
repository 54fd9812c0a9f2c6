"""Masks: sums that are exact to the resolution, messages that look like noise, and questions that would open one."""

from __future__ import annotations

import itertools
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
from hierfl.runtime.privacy.gaussian_noise import (
    MOST_NUMBERS,
    NoisedMessages,
    NoiseOrder,
    Spent,
    clipped,
    composed,
    grid_of,
    noised,
)
from hierfl.runtime.privacy.pairwise_masks import (
    CHECKS,
    SEALED,
    Masking,
    MaskOrder,
    SiteMasks,
    key_from,
    opened,
    shares_of,
    stream,
    whole,
)

ORDER = MaskOrder(3, 40, "a run")
RNG = np.random.default_rng(5)


def epsilon_of(multiplier: float, releases: int, delta: float, numbers: int = 0, shared: bool = False) -> float:
    """The epsilon of so many messages of a client, each of so many numbers with noise of ``multiplier`` times the clip."""
    return composed([Spent(multiplier, releases, numbers, shared)], delta).epsilon


PLACE, ASKED = (0, 0), b"a question"


def sites(count: int) -> tuple[list[SiteMasks], tuple[bytes, ...]]:
    masks = [SiteMasks(ORDER) for _ in range(count)]
    return masks, tuple(sorted(mask.public for mask in masks))


@settings(max_examples=100, deadline=None)
@given(
    arrays(float, st.tuples(st.integers(1, 9), st.integers(1, 8)), elements=st.floats(-4e5, 4e5)), st.integers(1, 40)
)
def test_whole_numbers_sum_to_the_resolution(values: np.ndarray, bits: int) -> None:
    total = opened([whole(row, bits, len(values)) for row in values], [], 0, bits)
    exact = np.array([float(sum(map(float, column))) for column in values.T])
    assert np.abs(total - exact).max() <= len(values) * 2.0 ** -(bits + 1) + 1e-9


def test_masks_cancel_in_the_sum_of_all_and_nowhere_else() -> None:
    masks, keys = sites(4)
    values = RNG.standard_normal((4, 6))
    for attempt in (0, 1, 7):
        given = (Masking(attempt, keys, ()), (attempt, 0), ASKED)
        masked = [mask.masked(row, *given)[0] for mask, row in zip(masks, values)]
        own = [mask.own_mask(attempt) for mask in masks]
        *total, ones, cut = opened(masked, own, attempt, 40)
        assert np.abs(total - values.sum(axis=0)).max() <= 4 * 2.0**-41 + 1e-15 and (ones, cut) == (4, 0)
        three = opened(masked[:3], own[:3], attempt, 40)[:-CHECKS]
        assert np.all(np.abs(three - values[:3].sum(axis=0)) > 1.0)  # a mask is of the size of 2^23
        closed = opened(masked, own[:3], attempt, 40)[:-CHECKS]
        assert np.all(np.abs(closed - values.sum(axis=0)) > 1.0)


def test_a_masked_message_looks_uniform_and_differs_between_attempts() -> None:
    masks, keys = sites(3)
    numbers = np.full(8192, 0.5)
    first, second = (masks[0].masked(numbers, Masking(attempt, keys, ()), PLACE, ASKED)[0] for attempt in (0, 1))
    for message in (first, second, first - second):
        counts = np.bincount(np.frombuffer(message.tobytes(), np.uint8), minlength=256)
        assert scipy.stats.chisquare(counts).pvalue > 1e-9
        ones = np.unpackbits(message.view(np.uint8).reshape(-1, 8), axis=1).mean(axis=0)
        assert np.abs(ones - 0.5).max() < 6 * 0.5 / np.sqrt(len(numbers))
    assert np.all(first[:-CHECKS] != whole(numbers, 40, 3)) and np.all(first != second)
    pair = masks[0]._key_with(masks[1].public, ASKED)
    assert pair == masks[1]._key_with(masks[0].public, ASKED) != masks[0]._key_with(masks[2].public, ASKED)


def test_the_mask_of_one_that_has_gone_is_opened_by_more_than_half() -> None:
    masks, keys = sites(5)
    values = RNG.standard_normal((5, 6))
    sent = [mask.masked(row, Masking(2, keys, ()), PLACE, ASKED) for mask, row in zip(masks, values)]
    own = {mask.public: mask.own_mask(2) for mask in masks[1:]}
    others = sorted(set(keys) - {masks[0].public})
    sealed = {other: sent[0][1][SEALED * k : SEALED * (k + 1)] for k, other in enumerate(others)}
    shares = {1 + others.index(m.public): m.share(2, masks[0].public, sealed[m.public]) for m in masks[1:]}
    for some in itertools.combinations(shares, 3):
        key = key_from({k: shares[k] for k in some})
        assert key == masks[0].own_mask(2)
    assert key_from({k: shares[k] for k in (1, 2)}) != masks[0].own_mask(2)
    total = opened([message for message, _ in sent], [key, *own.values()], 2, 40)[:-CHECKS]
    np.testing.assert_allclose(total, values.sum(axis=0), atol=5 * 2.0**-41 + 1e-15)
    with pytest.raises(SiteError, match="not sealed for this site"):
        masks[1].share(2, masks[0].public, sealed[masks[2].public])
    with pytest.raises(SiteError, match="not in the sum"):
        masks[1].share(2, masks[1].public, sealed[masks[1].public])
    masks[1].masked(values[1], Masking(3, keys, ()), (1, 0), ASKED)
    for ask in (lambda: masks[1].share(2, masks[0].public, sealed[masks[1].public]), lambda: masks[1].own_mask(2)):
        with pytest.raises(SiteError, match="given up"):
            ask()


@given(st.binary(min_size=32, max_size=32), st.integers(2, 12), st.data())
def test_shares_tell_a_key_by_enough_of_them(key: bytes, least: int, data: st.DataObject) -> None:
    count = data.draw(st.integers(least, 15))
    shares = shares_of(key, count, least)
    some = data.draw(st.permutations(range(count)))[:least]
    assert key_from({k + 1: shares[k] for k in some}) == key
    assert len({*shares}) == count and key_from({k + 1: shares[k] for k in some[1:]}) != key


def test_the_stream_is_that_of_the_standard() -> None:
    """RFC 8439, Section 2.4.2 has key and nonce; its key stream begins, with the block counter 0, as in Appendix A.1, vector 1."""
    assert stream(bytes(32), 0, 2).tobytes().hex() == "76b8e0ada0f13d90405d6ae55386bd28"


def test_questions_that_would_open_a_message_are_refused() -> None:
    masks, keys = sites(3)
    numbers = np.ones(2)
    masks[0].masked(numbers, Masking(4, keys, ()), PLACE, ASKED)
    for masking, said in (
        (None, "asked for one without"),
        (Masking(4, keys, ()), "or again"),
        (Masking(3, keys, ()), "or again"),
        (Masking(5, keys[:2], ()), "3 or more"),
        (Masking(5, (*keys[:1], *keys[:1], *keys[1:]), ()), "each once"),
        (Masking(5, (*2 * [SiteMasks(ORDER).public], SiteMasks(ORDER).public), ()), "over this site"),
        (Masking(5, tuple(SiteMasks(ORDER).public for _ in range(3)), ()), "over this site"),
    ):
        with pytest.raises(SiteError, match=said):
            masks[0].masked(numbers, masking, PLACE, ASKED)
    assert len(masks[0].own_mask(4)) == 32
    with pytest.raises(SiteError, match="was opened"):
        masks[0].masked(numbers, Masking(5, keys, ()), PLACE, ASKED)
    masks[0].masked(numbers, Masking(5, keys, ()), (0, 1), ASKED)
    with pytest.raises(SiteError, match="given up"):
        masks[0].own_mask(4)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.0**22])
def test_numbers_out_of_range_are_told_by_the_sum_alone(value: float) -> None:
    """A refusal would tell of one site's numbers: a server could look for their size by asking."""
    masks, keys = sites(3)
    numbers = [np.array([value, 0.25]), np.zeros(2), np.zeros(2)]
    sent = [mask.masked(own, Masking(0, keys, ()), PLACE, ASKED)[0] for mask, own in zip(masks, numbers)]
    _, second, count, cut = opened(sent, [mask.own_mask(0) for mask in masks], 0, 40)
    assert (second, count, cut) == (0.25, 3, 1)


# --- What leaves a site under noise: no longer than the clip before it, discrete Gaussian noise after it, and once; and
# epsilon, that this comes to.


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


@pytest.mark.parametrize("multiplier", [1.0, 2.2, 8.0, 40.0, 1e4])
def test_it_is_never_below_the_exact_one(multiplier: float) -> None:
    """A composition of Gaussian mechanisms is one of a hundredth, ... of the variance, whose epsilon has a formula."""
    for releases in (1, 7, 100):
        exact = analytic(multiplier / 2 / np.sqrt(releases), 1e-5)
        assert exact <= epsilon_of(multiplier, releases, 1e-5) <= (1 + 1e-6) * exact + 1e-6
        by_renyi = concentrated(2 * releases / multiplier**2, 1e-5)  # each message has rho = (2 / multiplier)^2 / 2
        assert exact <= by_renyi <= epsilon_of(multiplier, releases, 1e-5, shared=True) <= 1.006 * by_renyi + 0.005


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

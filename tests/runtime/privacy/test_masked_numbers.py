"""Masks: sums that are exact to the resolution, messages that look like noise, and questions that would open one."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hierfl.errors import SiteError
from hierfl.runtime.privacy.pairwise_masks import Masking, MaskOrder, SiteMasks, opened, stream, whole

ORDER = MaskOrder(3, 40, "a run")
RNG = np.random.default_rng(5)


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
        masked = [mask.masked(row, Masking(attempt, keys)) for mask, row in zip(masks, values)]
        own = [mask.own_mask(attempt) for mask in masks]
        total = opened(masked, own, attempt, 40)
        assert np.abs(total - values.sum(axis=0)).max() <= 4 * 2.0**-41 + 1e-15
        three = opened(masked[:3], own[:3], attempt, 40)
        assert np.all(np.abs(three - values[:3].sum(axis=0)) > 1.0)  # a mask is of the size of 2^23
        closed = opened(masked, own[:3], attempt, 40)
        assert np.all(np.abs(closed - values.sum(axis=0)) > 1.0)


def test_a_masked_message_looks_uniform_and_differs_between_attempts() -> None:
    masks, keys = sites(3)
    numbers = np.full(8192, 0.5)
    first, second = (masks[0].masked(numbers, Masking(attempt, keys)) for attempt in (0, 1))
    for message in (first, second, first - second):
        counts = np.bincount(np.frombuffer(message.tobytes(), np.uint8), minlength=256)
        assert scipy.stats.chisquare(counts).pvalue > 1e-9
        ones = np.unpackbits(message.view(np.uint8).reshape(-1, 8), axis=1).mean(axis=0)
        assert np.abs(ones - 0.5).max() < 6 * 0.5 / np.sqrt(len(numbers))
    assert np.all(first != whole(numbers, 40, 3)) and np.all(first != second)
    pair = masks[0]._key_with(masks[1].public)
    assert pair == masks[1]._key_with(masks[0].public) != masks[0]._key_with(masks[2].public)


def test_the_stream_is_that_of_the_standard() -> None:
    """RFC 8439, Section 2.4.2 has key and nonce; its key stream begins, with the block counter 0, as in Appendix A.1, vector 1."""
    assert stream(bytes(32), 0, 2).tobytes().hex() == "76b8e0ada0f13d90405d6ae55386bd28"


def test_questions_that_would_open_a_message_are_refused() -> None:
    masks, keys = sites(3)
    numbers = np.ones(2)
    masks[0].masked(numbers, Masking(4, keys))
    for masking, said in (
        (None, "asked for one without"),
        (Masking(4, keys), "or again"),
        (Masking(3, keys), "or again"),
        (Masking(5, keys[:2]), "3 or more"),
        (Masking(5, (*keys[:1], *keys[:1], *keys[1:])), "each once"),
        (Masking(5, (*2 * [SiteMasks(ORDER).public], SiteMasks(ORDER).public)), "over this site"),
        (Masking(5, tuple(SiteMasks(ORDER).public for _ in range(3))), "over this site"),
    ):
        with pytest.raises(SiteError, match=said):
            masks[0].masked(numbers, masking)
    assert len(masks[0].own_mask(4)) == 32
    masks[0].masked(numbers, Masking(5, keys))
    with pytest.raises(SiteError, match="given up"):
        masks[0].own_mask(4)
    for value in (np.nan, np.inf, 2.0**22):
        with pytest.raises(SiteError, match="not finite, or beyond 1.4e"):
            masks[0].masked(np.array([value, 0.0]), Masking(6, keys))

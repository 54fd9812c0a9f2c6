"""Masks: sums that are exact to the resolution, messages that look like noise, and questions that would open one."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hierfl.errors import SiteError
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


def test_masks_of_those_who_were_asked_for_different_things_do_not_cancel() -> None:
    """Nor of those who were told of other clients: a server that sends all but one a step of 0 gets no sum, and no message."""
    masks, keys = sites(3)
    values = RNG.standard_normal((3, 6))
    masked = [mask.masked(row, Masking(0, keys, ()), PLACE, b"asked" if mask is not masks[0] else b"other")[0] for mask, row in zip(masks, values)]
    *total, ones, _ = opened(masked, [mask.own_mask(0) for mask in masks], 0, 40)
    assert np.all(np.abs(total - values.sum(axis=0)) > 1.0) and np.all(np.abs(total - values[0]) > 1.0) and ones != 3


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

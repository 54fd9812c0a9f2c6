"""Row numbers of minibatches: in range, reproducible, uniform, and independent between counters, keys and tables."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from hierfl.compiler.draws import row_numbers
from tests.draws import row_numbers as in_numpy

FALSE_ALARM = 1e-6


def drawn(seed: int, size: int, count: int, stream: int = 0) -> np.ndarray:
    return np.asarray(row_numbers(jax.random.key(seed), stream, jnp.arange(size), jnp.asarray(count)))


def of_keys(size: int, count: int, counter: int = 0) -> np.ndarray:
    """The number at one counter, for many keys of one family."""
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(3), i))(jnp.arange(size))
    return np.asarray(jax.vmap(lambda k: row_numbers(k, 0, jnp.asarray([counter]), jnp.asarray(count))[0])(keys))


@settings(deadline=None)
@given(st.integers(0, 2**31 - 1), st.integers(1, 2**31 - 1), st.integers(0, 5), st.integers(0, 1000))
def test_equals_the_numpy_transcription(seed: int, count: int, table: int, step: int) -> None:
    key = jax.random.key(seed)
    found = row_numbers(key, table, step * 3 + jnp.arange(3), jnp.asarray(count))
    np.testing.assert_array_equal(found, in_numpy(key, 3, count, step, table))
    assert (np.asarray(found) >= 0).all() and (np.asarray(found) < count).all()


@pytest.mark.parametrize("count", [2, 7, 256, 6000])
@pytest.mark.parametrize("draw", [lambda size, count: drawn(1, size, count), of_keys])
def test_is_uniform_over_counters_and_over_keys(draw, count: int) -> None:
    seen = np.bincount(draw(400_000, count), minlength=count)
    assert scipy.stats.chisquare(seen).pvalue > FALSE_ALARM


@pytest.mark.parametrize("lag", [1, 2, 32, 64])
def test_neighbouring_counters_and_keys_are_independent(lag: int) -> None:
    for numbers in (drawn(5, 400_000, 16), of_keys(400_000, 16)):
        pairs = np.bincount(numbers[:-lag] * 16 + numbers[lag:], minlength=256)
        assert scipy.stats.chisquare(pairs).pvalue > FALSE_ALARM


@pytest.mark.parametrize("others", [(6, 0), (5, 1), (5, 7)])
def test_keys_and_tables_draw_independently(others: tuple[int, int]) -> None:
    seed, table = others
    pairs = np.bincount(drawn(5, 400_000, 16) * 16 + drawn(seed, 400_000, 16, table), minlength=256)
    assert scipy.stats.chisquare(pairs).pvalue > FALSE_ALARM


def test_a_biased_draw_would_be_found() -> None:
    numbers = drawn(1, 400_000, 16).copy()
    numbers[::50] = 3
    assert scipy.stats.chisquare(np.bincount(numbers)).pvalue < FALSE_ALARM

"""Row numbers and uniforms of minibatches: in range, reproducible, uniform, and independent of each other."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from hierfl.compiler.draws import row_numbers, uniforms
from tests.draws import row_numbers as in_python
from tests.draws import words

FALSE_ALARM, MANY = 1e-6, 400_000
KEY = jax.random.key(5)


def along_the_batch(count: int, key: jax.Array = KEY, stream: int = 0, step: int = 0) -> np.ndarray:
    return np.array(row_numbers(key, stream, step, MANY, jnp.asarray(count)))


def along_steps(count: int, key: jax.Array = KEY, place: int = 0) -> np.ndarray:
    draw = jax.vmap(lambda t: row_numbers(key, 0, t, place + 1, jnp.asarray(count))[place])
    return np.array(draw(jnp.arange(MANY)))


KEYS = {"usual": KEY, "zero": jax.random.key(0), "half zero": jax.random.wrap_key_data(jnp.array([7, 0], jnp.uint32))}


def along_keys(count: int) -> np.ndarray:
    keys = jax.vmap(lambda i: jax.random.fold_in(jax.random.key(3), i))(jnp.arange(MANY))
    return np.array(jax.vmap(lambda k: row_numbers(k, 0, 0, 1, jnp.asarray(count))[0])(keys))


FAMILIES = [along_the_batch, along_steps, along_keys]


@settings(deadline=None)
@given(st.integers(0, 2**31 - 1), st.integers(1, 2**31 - 1), st.integers(0, 5), st.integers(0, 1000))
def test_equal_the_transcription(seed: int, count: int, table: int, step: int) -> None:
    key = jax.random.key(seed)
    found = row_numbers(key, table, step, 3, jnp.asarray(count))
    np.testing.assert_array_equal(found, in_python(key, 3, count, step, table))
    assert (np.asarray(found) >= 0).all() and (np.asarray(found) < count).all()


@pytest.mark.parametrize("count", [2, 7, 256, 6000])
@pytest.mark.parametrize("draw", FAMILIES)
def test_every_row_is_as_likely(draw: Callable[[int], np.ndarray], count: int) -> None:
    assert scipy.stats.chisquare(np.bincount(draw(count), minlength=count)).pvalue > FALSE_ALARM


@pytest.mark.parametrize("place", [0, 1, 3])
@pytest.mark.parametrize("key", KEYS.values(), ids=KEYS)
def test_no_key_and_no_place_is_degenerate(key: jax.Array, place: int) -> None:
    for draws in (along_the_batch(16, key), along_steps(16, key, place), along_the_batch(16, key, stream=3)):
        assert scipy.stats.chisquare(np.bincount(draws, minlength=16)).pvalue > FALSE_ALARM
    assert independent(along_steps(16, key, place), along_steps(16, key, place + 1))
    assert independent(along_steps(16, key, place)[1:], along_steps(16, key, place)[:-1])


@pytest.mark.parametrize("lag", [1, 2, 32, 64])
@pytest.mark.parametrize("draw", FAMILIES)
def test_neighbours_are_independent(draw: Callable[[int], np.ndarray], lag: int) -> None:
    assert independent(draw(16)[:-lag], draw(16)[lag:])


@pytest.mark.parametrize(
    "other", [{"key": jax.random.key(6)}, {"stream": 1}, {"stream": 7}, {"step": 1}, {"step": 64}], ids=str
)
def test_keys_tables_and_steps_draw_independently(other: dict) -> None:
    assert independent(along_the_batch(16), along_the_batch(16, **other))


def independent(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether pairs of numbers below 16 are as likely as each other."""
    return scipy.stats.chisquare(np.bincount(one * 16 + other, minlength=256)).pvalue > FALSE_ALARM


def test_a_biased_draw_would_be_found() -> None:
    numbers = along_the_batch(16)
    numbers[::50] = 3
    assert scipy.stats.chisquare(np.bincount(numbers)).pvalue < FALSE_ALARM


@pytest.mark.parametrize("double", [True, False])
def test_uniforms(double: bool) -> None:
    with jax.enable_x64(double):
        found = np.asarray(uniforms(KEY, 3, 2, (1000, 200)))
    assert found.dtype == (np.float64 if double else np.float32)
    assert found.min() > 0 and found.max() < 1
    assert scipy.stats.kstest(found.ravel(), "uniform").pvalue > FALSE_ALARM
    high, low = (np.array(words(KEY, 5, 2, stream), dtype=object) for stream in (6, 7))
    expected = ((high >> 6) * 2**26 + (low >> 6) + 0.5) / 2**52 if double else ((high >> 9) + 0.5) / 2**23
    np.testing.assert_array_equal(found.ravel()[:5], expected.astype(float))

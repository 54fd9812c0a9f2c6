"""Row numbers, uniforms, normals and keys: in range, reproducible, of their law, and independent of each other."""

from __future__ import annotations

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

import hierfl as hf
from hierfl.jaxtools.keyed_random import (
    fold_in,
    geometric,
    key_of,
    mixed,
    normals,
    row_numbers,
    split,
    uniforms,
    words,
)
from tests import draws as in_python

FALSE_ALARM, MANY = 1e-6, 400_000
KEY = jax.random.key(5)


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**32, 3 * 2**40 + 5, 2**63 - 1])
def test_the_key_of_a_seed_is_jaxs_in_either_precision(seed: int) -> None:
    with jax.enable_x64(True):
        expected = jax.random.key_data(jax.random.key(seed))
    np.testing.assert_array_equal(jax.random.key_data(key_of(seed)), expected)


# MurmurHash3_x86_32 of no bytes is the finaliser of its seed: its published vectors
PUBLISHED = {0: 0, 1: 0x514E28B7, 2**32 - 1: 0x81F16F39}


def test_words_are_mixed_as_published() -> None:
    mixed_words = np.asarray(mixed(jnp.array(list(PUBLISHED), jnp.uint32)))
    assert mixed_words.tolist() == [in_python.finalised(word) for word in PUBLISHED] == list(PUBLISHED.values())
    some = np.random.default_rng(0).integers(2**32, size=1000, dtype=np.uint32)
    assert np.asarray(mixed(jnp.asarray(some))).tolist() == [in_python.finalised(int(word)) for word in some]


def test_a_seed_draws_what_it_always_drew() -> None:
    """Recorded once: another generator, or other streams, would give every published run other numbers."""
    with jax.enable_x64(True):
        assert words(KEY, 3, 2, 4).tolist() == [0xABC499C8, 0x8181FAB4, 0xA6890B28, 0xBF7D236A]
        assert jax.random.key_data(fold_in(KEY, 7)).tolist() == [0x5D35576B, 0xC337D5C6]
        assert jax.random.key_data(split(KEY)).tolist() == [[0xA24D0243, 0xB9FA405A], [0x1E50D607, 0xEC5EF4B9]]
        assert row_numbers(KEY, 1, 2, 6, jnp.asarray(1000)).tolist() == [715, 866, 128, 108, 620, 666]
        np.testing.assert_allclose(normals(KEY, (3,)), [-0.56596601, -1.11966422, -0.66395257], atol=1e-8)
        assert geometric(KEY, 0.1) == 6


@settings(deadline=None)
@given(st.integers(0, 2**31 - 1), st.integers(1, 2**31 - 1), st.integers(0, 5), st.integers(0, 1000))
def test_equal_the_transcription(seed: int, count: int, table: int, step: int) -> None:
    key = jax.random.key(seed)
    found = row_numbers(key, table, step, 3, jnp.asarray(count))
    np.testing.assert_array_equal(found, in_python.row_numbers(key, 3, count, step, table))
    assert (np.asarray(found) >= 0).all() and (np.asarray(found) < count).all()


@pytest.mark.parametrize("double", [True, False])
def test_uniforms(double: bool) -> None:
    with jax.enable_x64(double):
        found = np.asarray(uniforms(KEY, 3, 2, (1000, 200)))
    assert found.dtype == (np.float64 if double else np.float32)
    assert found.min() > 0 and found.max() < 1
    assert scipy.stats.kstest(found.ravel(), "uniform").pvalue > FALSE_ALARM
    high, low = (np.array(in_python.words(KEY, 5, 2, stream), dtype=object) for stream in (6, 7))
    expected = ((high >> 6) * 2**26 + (low >> 6) + 0.5) / 2**52 if double else ((high >> 9) + 0.5) / 2**23
    np.testing.assert_array_equal(found.ravel()[:5], expected.astype(float))


@settings(deadline=None, max_examples=50)
@given(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1), st.integers(1, 5))
def test_keys_equal_the_transcription(seed: int, index: int, count: int) -> None:
    key = jax.random.key(seed)
    assert fold_in(key, index) == in_python.fold_in(key, index)
    assert list(split(fold_in(key, index), count)) == in_python.split(in_python.fold_in(key, index), count)


@pytest.mark.parametrize("double", [True, False])
def test_normals(double: bool) -> None:
    with jax.enable_x64(double):
        found, few = np.asarray(normals(KEY, (1000, 200))), np.asarray(normals(KEY, (2, 3)))
        over_seeds = np.asarray(jax.vmap(lambda seed: normals(jax.random.key(seed), (1,))[0])(jnp.arange(MANY)))
    assert found.dtype == (np.float64 if double else np.float32)
    np.testing.assert_allclose(few, in_python.normals(KEY, (2, 3)), rtol=1e-12 if double else 1e-5)
    for numbers in (found.ravel(), found.sum(axis=1) / np.sqrt(200), over_seeds):
        assert scipy.stats.kstest(numbers, "norm").pvalue > FALSE_ALARM


@pytest.mark.parametrize("probability", [0.03, 0.5, 0.97])
@pytest.mark.parametrize("double", [True, False])
def test_tosses_up_to_a_head(probability: float, double: bool) -> None:
    with jax.enable_x64(double):
        found = np.asarray(jax.vmap(lambda seed: geometric(jax.random.key(seed), probability))(jnp.arange(MANY)))
        one, certain = int(geometric(KEY, probability)), int(geometric(KEY, 1.0))
    assert (one, certain) == (in_python.tosses(KEY, probability), 1)
    assert np.issubdtype(found.dtype, np.integer) and found.min() == 1
    law = scipy.stats.geom(probability)
    values = np.arange(1, int(law.isf(20 / MANY)) + 1)
    expected = np.append(law.pmf(values), law.sf(values[-1]))
    seen = np.append([np.sum(found == value) for value in values], np.sum(found > values[-1]))
    assert scipy.stats.chisquare(seen, MANY * expected).pvalue > FALSE_ALARM


def test_runs_draw_the_same_whatever_generator_jax_is_set_to() -> None:
    def last() -> np.ndarray:
        x = cp.Variable(2, name="x")
        problem = hf.Problem(hf.Minimize(cp.sum_squares(x - 1)), constraints=[x >= 0])
        return problem.solve(hf.solvers.FedRZO(smoothing=0.1, step_size=0.05), rounds=3, progress=False).x

    expected = last()
    with jax.default_prng_impl("rbg"):
        np.testing.assert_array_equal(last(), expected)

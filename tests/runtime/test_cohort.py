"""Participants: distinct, equally likely, and a function of the key alone."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from hierfl.errors import SettingError
from hierfl.jaxtools.keyed_random import keyed_permutation
from hierfl.runtime.contract import cohort_size, draw_participants


@settings(max_examples=30, deadline=None)
@given(total=st.integers(2, 10**9), seed=st.integers(0, 2**31), size=st.integers(1, 64))
def test_any_range(total: int, seed: int, size: int) -> None:
    indices = jnp.arange(min(size, total))
    images = np.asarray(keyed_permutation(jax.random.key(seed), indices, total))
    assert len(set(images.tolist())) == len(indices) and images.min() >= 0 and images.max() < total


@pytest.mark.parametrize(("total", "cohort"), [(6, 2), (2000, 3), (5000, 900)])
def test_clients_are_equally_likely_alone_and_in_pairs(total: int, cohort: int) -> None:
    """Chi-square of the counts (with the correction for draws without replacement), and of the pair (0, 1)."""
    keys = jax.random.split(jax.random.key(1), 4000)
    drawn = np.asarray(jax.jit(jax.vmap(lambda key: draw_participants(key, cohort, total)))(keys))
    assert (np.diff(np.sort(drawn, axis=1), axis=1) > 0).all()
    counts, share = np.bincount(drawn.ravel(), minlength=total), cohort / total
    statistic = np.sum((counts - len(keys) * share) ** 2) / (len(keys) * share * (1 - share))
    statistic *= (total - 1) / total
    assert 1e-6 < scipy.stats.chi2.sf(statistic, total - 1) < 1 - 1e-6
    together = int(((drawn == 0).any(axis=1) & (drawn == 1).any(axis=1)).sum())
    pair = share * (cohort - 1) / (total - 1)
    assert scipy.stats.binomtest(together, len(keys), pair).pvalue > 1e-6


def test_everybody_and_how_many() -> None:
    np.testing.assert_array_equal(draw_participants(jax.random.key(0), 7, 7), np.arange(7))
    assert (cohort_size(0.5, 3), cohort_size(1.0, 3), cohort_size(1e-9, 10**6), cohort_size(0.3, 10)) == (2, 3, 1, 3)
    with pytest.raises(SettingError, match="fraction"):
        cohort_size(0.0, 3)

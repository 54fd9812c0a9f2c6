"""The library's row numbers, written again in plain Python for the transcriptions of algorithms."""

from __future__ import annotations

import jax
import numpy as np

WORD, GOLDEN = 2**32, 0x9E3779B9


def row_numbers(key: jax.Array, size: int, count: int, step: int = 0, table: int = 0) -> np.ndarray:
    """``size`` numbers below ``count`` at a step: counters under a key, by the finaliser of MurmurHash3."""
    return np.array([word * count // WORD for word in words(key, size, step, table)])


def words(key: jax.Array, size: int, step: int, stream: int) -> list[int]:
    """32-bit words."""
    first, second = (int(word) for word in np.asarray(jax.random.key_data(key)))
    own = _finalised((step * GOLDEN + first) % WORD)
    own = _finalised(own ^ (second + stream * GOLDEN) % WORD)
    other = (_finalised(own ^ 0x5BD1E995) + second) % WORD
    return [_finalised(_finalised((i * GOLDEN + own) % WORD) ^ other) for i in range(size)]


def _finalised(word: int) -> int:
    """fmix32 of MurmurHash3, on Python's whole numbers."""
    word = (word ^ word >> 16) * 0x85EBCA6B % WORD
    word = (word ^ word >> 13) * 0xC2B2AE35 % WORD
    return word ^ word >> 16

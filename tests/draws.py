"""The library's row numbers, written again in plain NumPy for the transcriptions of algorithms."""

from __future__ import annotations

import jax
import numpy as np

WORD = 2**32


def row_numbers(key: jax.Array, size: int, count: int, step: int = 0, table: int = 0) -> np.ndarray:
    """``size`` numbers below ``count`` at a step: MurmurHash3's finaliser of a counter, keyed twice."""
    first, second = (int(word) for word in np.asarray(jax.random.key_data(key)))
    found = []
    for counter in range(step * size, (step + 1) * size):
        inner = _finalised((counter * 0x9E3779B9 + first) % WORD)
        found.append(_finalised(inner ^ (second + table * 0x9E3779B9) % WORD) * count // WORD)
    return np.array(found)


def _finalised(word: int) -> int:
    """fmix32 of MurmurHash3, on Python's whole numbers."""
    word = (word ^ word >> 16) * 0x85EBCA6B % WORD
    word = (word ^ word >> 13) * 0xC2B2AE35 % WORD
    return word ^ word >> 16

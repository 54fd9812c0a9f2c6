"""The library's draws and keys, written again in plain Python for the transcriptions of algorithms."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

WORD, GOLDEN = 2**32, 0x9E3779B9
FOLD, SPLIT, NORMAL, GEOMETRIC = 2**31 - 1, 2**31 - 2, 2**31 - 3, 2**31 - 4


def fold_in(key: jax.Array, index: int) -> jax.Array:
    """The key of one of many under this one."""
    return _key(words(key, 2, index, FOLD))


def split(key: jax.Array, count: int = 2) -> list[jax.Array]:
    """Several keys."""
    found = words(key, 2 * count, 0, SPLIT)
    return [_key(found[2 * k : 2 * k + 2]) for k in range(count)]


def chosen(key: jax.Array, cohort: int, total: int) -> list[int]:
    """Who of a few clients takes part: those with the least words."""
    return sorted(np.argsort(words(key, total, 0, 0), kind="stable")[:cohort].tolist())


def directions(key: jax.Array, count: int, size: int) -> np.ndarray:
    """Unit vectors: a step's normals for each."""
    normal = np.stack([normals(key, (size,), step) for step in range(count)])
    return normal / np.linalg.norm(normal, axis=1, keepdims=True)


def normals(key: jax.Array, shape: tuple[int, ...], step: int = 0) -> np.ndarray:
    """Standard normals, as quantiles of uniforms of 52 bits."""
    return scipy.stats.norm.ppf(uniforms(key, int(np.prod(shape)), step, NORMAL)).reshape(shape)


def tosses(key: jax.Array, probability: float) -> int:
    """Tosses of a coin up to its first head."""
    return int(scipy.stats.geom.isf(uniforms(key, 1, 0, GEOMETRIC)[0], probability))


def uniforms(key: jax.Array, size: int, step: int, stream: int) -> list[float]:
    """Of 52 bits."""
    pairs = zip(words(key, size, step, 2 * stream), words(key, size, step, 2 * stream + 1))
    return [((high >> 6) * 2**26 + (low >> 6) + 0.5) / 2**52 for high, low in pairs]


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


def _key(pair: list[int]) -> jax.Array:
    return jax.random.wrap_key_data(jnp.array(pair, jnp.uint32))


def _finalised(word: int) -> int:
    """fmix32 of MurmurHash3, on Python's whole numbers."""
    word = (word ^ word >> 16) * 0x85EBCA6B % WORD
    word = (word ^ word >> 13) * 0xC2B2AE35 % WORD
    return word ^ word >> 16

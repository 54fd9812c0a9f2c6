"""The library's draws and keys, written again in plain Python for the transcriptions of algorithms.

The finaliser of MurmurHash3 is scikit-learn's: the hash of no bytes at all is the finaliser of its seed. The constants of the
streams are the library's own; what they give is recorded in ``tests/jaxtools/test_keyed_random.py``.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from sklearn.utils import murmurhash3_32

from hierfl.jaxtools.keyed_random import FOLD, GEOMETRIC, GOLDEN, NORMAL, SALT, SPLIT

WORD = 2**32


def fold_in(key: jax.Array, index: int) -> jax.Array:
    """The key of one of many under this one."""
    return _key(words(key, 2, index, FOLD))


def split(key: jax.Array, count: int = 2) -> list[jax.Array]:
    """Several keys."""
    pairs = words(key, 2 * count, 0, SPLIT)
    return [_key(pairs[2 * k : 2 * k + 2]) for k in range(count)]


def chosen(key: jax.Array, cohort: int, total: int) -> list[int]:
    """Who of a few clients takes part, in the order of being drawn: those with the least words."""
    chosen_first: list[int] = np.argsort(words(key, total, 0, 0), kind="stable")[:cohort].tolist()
    return chosen_first


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
    """Uniforms of 52 bits on the open interval (0, 1)."""
    pairs = zip(words(key, size, step, 2 * stream), words(key, size, step, 2 * stream + 1))
    return [((high >> 6) * 2**26 + (low >> 6) + 0.5) / 2**52 for high, low in pairs]


def row_numbers(key: jax.Array, size: int, count: int, step: int = 0, table: int = 0) -> np.ndarray:
    """``size`` numbers below ``count`` at a step: counters under a key, by the finaliser of MurmurHash3."""
    return np.array([word * count // WORD for word in words(key, size, step, table)])


def permutation(key: jax.Array, total: int) -> list[int]:
    """0, ..., total - 1 in a keyed order: a Feistel network of eight rounds, applied again to what falls outside the range."""
    half = max(1, ((total - 1).bit_length() + 1) // 2)
    subkeys, mask = words(key, 8, 0, 0), 2**half - 1

    def image(value: int) -> int:
        left, right = value >> half, value & mask
        for subkey in subkeys:
            left, right = right, left ^ (finalised(right ^ subkey) & mask)
        value = (left << half) | right
        return value if value < total else image(value)

    return [image(place) for place in range(total)]


def words(key: jax.Array, size: int, step: int, stream: int) -> list[int]:
    """The 32-bit words of a step, one for each counter."""
    first, second = (int(word) for word in np.asarray(jax.random.key_data(key)))
    own = finalised((step * GOLDEN + first) % WORD)
    own = finalised(own ^ (second + stream * GOLDEN) % WORD)
    other = (finalised(own ^ SALT) + second) % WORD
    return [finalised(finalised((i * GOLDEN + own) % WORD) ^ other) for i in range(size)]


def finalised(word: int) -> int:
    """The finaliser of MurmurHash3, by which every bit of a word depends on every other."""
    return murmurhash3_32(b"", seed=word, positive=True)


def _key(pair: list[int]) -> jax.Array:
    return jax.random.wrap_key_data(jnp.array(pair, jnp.uint32))

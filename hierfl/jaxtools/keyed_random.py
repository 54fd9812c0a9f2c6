"""All that a run draws, and the keys it draws under: counters mixed under a key, at a fraction of the cost of JAX's generator.

A key is a JAX key, so that an algorithm may give it to ``jax.random`` as well. Under a key, the words of a step are the finaliser
of MurmurHash3 (Appleby) applied twice to a counter, with a word of the key each time: a handful of integer operations in one
kernel, where a Threefry draw is a loop of twenty rounds. On a CPU that loop cost more than a step of stochastic gradient on one
row. :func:`fold_in` and :func:`split` are those of ``jax.random``, by this hash.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

GOLDEN = 0x9E3779B9  # 2^32 over the golden ratio: far apart even for neighbouring counters
SALT = 0x5BD1E995  # no small multiple of GOLDEN, so that no word cancels a neighbour's
FOLD, SPLIT, NORMAL, GEOMETRIC = (2**31 - k for k in (1, 2, 3, 4))  # streams beside the tables' and the laws'


def key_of(seed: int) -> Array:
    """The key of a seed below 2^64: ``jax.random.key``'s in double precision, whose single precision drops the upper 32 bits."""
    return jax.random.wrap_key_data(jnp.asarray(np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)))


def fold_in(key: Array, index: Any) -> Array:
    """The key of one of many under this one; ``index`` may be traced, and counts modulo 2^32."""
    return jax.random.wrap_key_data(words(key, FOLD, index, 2))


def split(key: Array, count: int = 2) -> Array:
    """``(count,)`` keys."""
    return jax.random.wrap_key_data(words(key, SPLIT, 0, 2 * count).reshape(count, 2))


@partial(jax.jit, static_argnames=("stream", "size"), inline=True)
def row_numbers(key: Array, stream: int, step: Any, size: int, count: Array) -> Array:
    """``size`` numbers in 0, ..., count - 1; functions of the arguments alone.

    Uniform up to count / 2^32: the high word of (32 random bits) * count, as in Lemire (2019) without the rejection.

    Parameters
    ----------
    key
        A scalar JAX key.
    stream, step
        Tell draws under the same key apart; ``step`` may be traced.
    count
        How many rows there are; may be traced.
    """
    bits = words(key, stream, step, size)
    return jax.lax.mulhi(bits, jnp.broadcast_to(count.astype(jnp.uint32), bits.shape)).astype(jnp.int32)


def uniforms(key: Array, stream: int, step: Any, shape: tuple[int, ...]) -> Array:
    """Independent uniforms on the open interval (0, 1), of 52 random bits in double precision, of 23 in single."""
    size = math.prod(shape)
    high = words(key, 2 * stream, step, size)
    if jnp.result_type(float) == jnp.float32:
        found = ((high >> 9).astype(jnp.float32) + 0.5) / 2**23
    else:
        low = words(key, 2 * stream + 1, step, size)
        found = ((high >> 6).astype(float) * 2**26 + (low >> 6).astype(float) + 0.5) / 2**52
    return found.reshape(shape)


def normals(key: Array, shape: tuple[int, ...], step: Any = 0) -> Array:
    """Independent standard normals, as quantiles of :func:`uniforms`; ``step`` tells draws under the same key apart."""
    return math.sqrt(2.0) * jax.lax.erf_inv(2.0 * uniforms(key, NORMAL, step, shape) - 1.0)


def geometric(key: Array, probability: float) -> Array:
    """How many tosses of a coin there are up to its first head; ``probability`` in (0, 1] is that of a head."""
    tails = jnp.log(uniforms(key, GEOMETRIC, 0, ())) / math.log1p(-probability) if probability < 1 else jnp.zeros(())
    return 1 + jnp.floor(tails).astype(int)


def mixed(words: Array) -> Array:
    """The finaliser of MurmurHash3 (Appleby): every bit of a word depends on every other."""
    words = (words ^ (words >> 16)) * jnp.uint32(0x85EBCA6B)
    words = (words ^ (words >> 13)) * jnp.uint32(0xC2B2AE35)
    return words ^ (words >> 16)


def words(key: Array, stream: int, step: Any, size: int) -> Array:
    """32 random bits for each of ``size`` counters.

    Two lanes are joined by a reduction, which XLA computes once: it would copy a chain of integer operations into every kernel
    that uses a word, and several draws in a row made kernels that LLVM took minutes over.
    """
    golden, first, second = jnp.uint32(GOLDEN), *jax.random.key_data(key)
    own = mixed(jnp.asarray(step).astype(jnp.uint32) * golden + first)
    own = mixed(own ^ (second + jnp.uint32(stream * GOLDEN % 2**32)))
    inner = mixed(jnp.arange(size, dtype=jnp.uint32) * golden + own)
    other = mixed(own ^ jnp.uint32(SALT)) + second
    lanes = jnp.where(jnp.arange(2)[:, None] == 0, inner, other)
    return mixed(jax.lax.reduce_xor(lanes, (0,)))

"""Row numbers and uniforms for minibatches: counters mixed under a key, at a fraction of the cost of JAX's generator.

A run's keys are JAX's (Threefry). Under a key, the words of a step are the finaliser of MurmurHash3 (Appleby) applied twice to a
counter, with a word of the key each time: a handful of integer operations in one kernel, where a Threefry draw is a loop of
twenty rounds. On a CPU that loop cost more than a step of stochastic gradient on one row, to run and to compile.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from hierfl.compiler.program import Array

GOLDEN = 0x9E3779B9  # 2^32 over the golden ratio: far apart even for neighbouring counters
SALT = 0x5BD1E995  # no small multiple of GOLDEN, so that no word cancels a neighbour's


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
    bits = _words(key, stream, step, size)
    return jax.lax.mulhi(bits, jnp.broadcast_to(count.astype(jnp.uint32), bits.shape)).astype(jnp.int32)


def uniforms(key: Array, stream: int, step: Any, shape: tuple[int, ...]) -> Array:
    """Independent uniforms on the open interval (0, 1), of 52 random bits in double precision, of 23 in single."""
    size = math.prod(shape)
    high = _words(key, 2 * stream, step, size)
    if jnp.result_type(float) == jnp.float32:
        found = ((high >> 9).astype(jnp.float32) + 0.5) / 2**23
    else:
        low = _words(key, 2 * stream + 1, step, size)
        found = ((high >> 6).astype(float) * 2**26 + (low >> 6).astype(float) + 0.5) / 2**52
    return found.reshape(shape)


def mixed(words: Array) -> Array:
    """The finaliser of MurmurHash3 (Appleby): every bit of a word depends on every other."""
    words = (words ^ (words >> 16)) * jnp.uint32(0x85EBCA6B)
    words = (words ^ (words >> 13)) * jnp.uint32(0xC2B2AE35)
    return words ^ (words >> 16)


def _words(key: Array, stream: int, step: Any, size: int) -> Array:
    """32 random bits for each of ``size`` counters."""
    golden, first, second = jnp.uint32(GOLDEN), *jax.random.key_data(key)
    own = mixed(jnp.asarray(step).astype(jnp.uint32) * golden + first)
    own = mixed(own ^ (second + jnp.uint32(stream * GOLDEN % 2**32)))
    inner = mixed(jnp.arange(size, dtype=jnp.uint32) * golden + own)
    return mixed(inner ^ (mixed(own ^ jnp.uint32(SALT)) + second))

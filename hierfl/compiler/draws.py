"""Row numbers of minibatches: counters mixed under a key, at a fraction of the cost of JAX's generator.

A run's keys are JAX's (Threefry); under a key the number at a counter is the finaliser of MurmurHash3 (Appleby) applied twice,
with a word of the key each time. That is a handful of integer operations in one kernel, where a Threefry draw is a loop of
twenty rounds: on a CPU it cost more than a step of stochastic gradient on one row, to run and to compile.
"""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp

from hierfl.compiler.program import Array

GOLDEN = 0x9E3779B9  # 2^32 over the golden ratio: far apart even for neighbouring counters


@partial(jax.jit, static_argnames="stream", inline=True)
def row_numbers(key: Array, stream: int, counters: Array, count: Array) -> Array:
    """Numbers in 0, ..., count - 1, one for each counter; a function of its arguments alone.

    Uniform up to count / 2^32: the high word of (32 random bits) * count, as in Lemire (2019) without the rejection.

    Parameters
    ----------
    key
        A scalar JAX key.
    stream
        Tells draws under the same key apart.
    counters
        Integers below 2^32.
    count
        How many rows there are; may be traced.
    """
    words = jax.random.key_data(key)
    inner = mixed(counters.astype(jnp.uint32) * jnp.uint32(GOLDEN) + words[0])
    bits = mixed(inner ^ (words[1] + jnp.uint32(stream * GOLDEN % 2**32)))
    return jax.lax.mulhi(bits, jnp.broadcast_to(count.astype(jnp.uint32), bits.shape)).astype(jnp.int32)


def mixed(words: Array) -> Array:
    """The finaliser of MurmurHash3 (Appleby): every bit of a word depends on every other."""
    words = (words ^ (words >> 16)) * jnp.uint32(0x85EBCA6B)
    words = (words ^ (words >> 13)) * jnp.uint32(0xC2B2AE35)
    return words ^ (words >> 16)

"""All that a run draws, and the keys it draws under: counters mixed under a key, at a fraction of the cost of JAX's generator.

A key is a JAX key, so that an algorithm may give it to ``jax.random`` as well. Under a key, the words of a step are the finaliser
of MurmurHash3 (Appleby) applied twice to a counter, with a word of the key each time: a handful of integer operations in one
kernel, where a Threefry draw is a loop of twenty rounds. On a CPU that loop cost more than a step of stochastic gradient on one
row. :func:`fold_in` and :func:`split` are those of ``jax.random``, by this hash.
"""

from __future__ import annotations

import math
from functools import partial
from typing import TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Int32, Key, UInt32

Index: TypeAlias = int | Int[Array, ""]  # may be traced

GOLDEN = 0x9E3779B9  # 2^32 over the golden ratio: far apart even for neighbouring counters
SALT = 0x5BD1E995  # no small multiple of GOLDEN, so that no word cancels a neighbour's
FOLD, SPLIT, NORMAL, GEOMETRIC = (2**31 - k for k in (1, 2, 3, 4))  # streams beside the tables' and the laws'


def key_of(seed: int) -> Key[Array, ""]:
    """The key of a seed below 2^64: ``jax.random.key``'s in double precision, whose single precision drops the upper 32 bits."""
    return jax.random.wrap_key_data(jnp.asarray(np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)))


def fold_in(key: Key[Array, ""], index: Index) -> Key[Array, ""]:
    """The key of one of many under this one; ``index`` may be traced, and counts modulo 2^32."""
    return jax.random.wrap_key_data(words(key, FOLD, index, 2))


def split(key: Key[Array, ""], count: int = 2) -> Key[Array, " count"]:
    """Some keys under this one."""
    return jax.random.wrap_key_data(words(key, SPLIT, 0, 2 * count).reshape(count, 2))


@partial(jax.jit, static_argnames=("stream", "size"), inline=True)
def row_numbers(
    key: Key[Array, ""], stream: int, step: Index, size: int, count: Int[Array, ""]
) -> Int32[Array, " size"]:
    """``size`` numbers in 0, ..., count - 1, which are functions of the arguments alone; ``stream`` and ``step`` tell draws under the same key apart.

    They are uniform up to count / 2^32: the high word of (32 random bits) * count, as in Lemire (2019) without the rejection. ``step`` and ``count`` may
    be traced.
    """
    bits = words(key, stream, step, size)
    return jax.lax.mulhi(bits, jnp.broadcast_to(count.astype(jnp.uint32), bits.shape)).astype(jnp.int32)


def uniforms(key: Key[Array, ""], stream: int, step: Index, shape: tuple[int, ...]) -> Float[Array, "*shape"]:
    """Independent uniforms on the open interval (0, 1), of 52 random bits in double precision, of 23 in single."""
    size = math.prod(shape)
    high = words(key, 2 * stream, step, size)
    if jnp.result_type(float) == jnp.float32:
        values = ((high >> 9).astype(jnp.float32) + 0.5) / 2**23
    else:
        low = words(key, 2 * stream + 1, step, size)
        values = ((high >> 6).astype(float) * 2**26 + (low >> 6).astype(float) + 0.5) / 2**52
    return values.reshape(shape)


def normals(key: Key[Array, ""], shape: tuple[int, ...], step: Index = 0) -> Float[Array, "*shape"]:
    """Independent standard normals, as quantiles of :func:`uniforms`; ``step`` tells draws under the same key apart."""
    return math.sqrt(2.0) * jax.lax.erf_inv(2.0 * uniforms(key, NORMAL, step, shape) - 1.0)


def geometric(key: Key[Array, ""], probability: float) -> Int[Array, ""]:
    """How many tosses of a coin there are up to its first head; ``probability`` in (0, 1] is that of a head."""
    tails = jnp.log(uniforms(key, GEOMETRIC, 0, ())) / math.log1p(-probability) if probability < 1 else jnp.zeros(())
    return 1 + jnp.floor(tails).astype(int)


def mixed(words: UInt32[Array, "*shape"]) -> UInt32[Array, "*shape"]:
    """The finaliser of MurmurHash3 (Appleby): every bit of a word depends on every other."""
    words = (words ^ (words >> 16)) * jnp.uint32(0x85EBCA6B)
    words = (words ^ (words >> 13)) * jnp.uint32(0xC2B2AE35)
    return words ^ (words >> 16)


def words(key: Key[Array, ""], stream: int, step: Index, size: int) -> UInt32[Array, " size"]:
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


FEISTEL_ROUNDS = 8


def keyed_permutation(key: Array, indices: Array, total: Array | int) -> Array:
    """Map indices below ``total`` (at most 2^30, may be traced) by a permutation of 0, ..., total - 1 that the key selects.

    Any entry is found without the others, by a Feistel network on the least even number of bits that holds them (Luby and Rackoff, 1988),
    applied again to what falls outside the range ("cycle walking", Black and Rogaway, 2002). Sorting a permutation of a million indices
    takes half a second.
    """
    last = jnp.asarray(total, jnp.uint32) - 1
    half = jnp.maximum(1, (33 - jax.lax.clz(last)) // 2)  # of the bits of the last index, rounded up
    subkeys = words(key, 0, 0, FEISTEL_ROUNDS)
    mask = (jnp.uint32(1) << half) - 1

    def network(values: Array) -> Array:
        left, right = values >> half, values & mask
        for place in range(FEISTEL_ROUNDS):
            left, right = right, left ^ (mixed(right ^ subkeys[place]) & mask)
        return (left << half) | right

    def walk(values: Array) -> Array:
        return jnp.where(values <= last, values, network(values))

    images = jax.lax.while_loop(lambda values: (values > last).any(), walk, network(indices.astype(jnp.uint32)))
    return images.astype(indices.dtype)

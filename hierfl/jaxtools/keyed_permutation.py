"""A keyed permutation of 0, ..., total - 1, any entry of which is found without the others.

It is a Feistel network on the least even number of bits that holds them (Luby and Rackoff, 1988), applied again to what falls
outside the range ("cycle walking", Black and Rogaway, 2002). Sorting a permutation of a million indices takes half a second.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from hierfl.jaxtools.keyed_random import mixed, words

FEISTEL_ROUNDS = 8


def keyed_permutation(key: Array, indices: Array, total: Array | int) -> Array:
    """Map indices below ``total`` (at most 2^30, may be traced) by a permutation of 0, ..., total - 1 that the key selects."""
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

"""Who takes part in a round: a keyed random subset without replacement, at a cost that does not grow with the federation.

Beyond ``SORTED`` clients the subset is the image of 0, ..., S - 1 under a keyed permutation of the clients' indices: a Feistel
network on the least even number of bits that holds them (Luby and Rackoff, 1988), applied again to what falls outside the
range ("cycle walking", Black and Rogaway, 2002). Sorting a permutation of a million indices takes half a second a round.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from hierfl.errors import SettingError
from hierfl.jaxtools.keyed_random import fold_in, mixed, words
from hierfl.runtime.streams import COHORT_STREAM

SORTED = 128
FEISTEL_ROUNDS = 8


@dataclass(frozen=True)
class Cohort:
    """Who takes part in a round: the first ``count`` of ``participants`` (S,); places beyond repeat the first of them.

    ``count`` is a Python number where it is S in every round.
    """

    participants: Array
    count: Array | int


def draw_participants(round_key: Array, cohort: int, total: int) -> Array:
    """Draw the indices of a round's participants ``(cohort,)``: all in order, or a keyed random subset in any."""
    if cohort == total:
        return jnp.arange(total)
    key = fold_in(round_key, COHORT_STREAM)
    if total <= SORTED:
        return jnp.argsort(words(key, 0, 0, total))[:cohort]
    return keyed_permutation(key, jnp.arange(cohort), total)


def keyed_permutation(key: Array, indices: Array, total: int) -> Array:
    """Map indices below ``total`` (at most 2^30) by a permutation of 0, ..., total - 1 that the key selects."""
    half = max(1, math.ceil(math.log2(total) / 2))
    subkeys = words(key, 0, 0, FEISTEL_ROUNDS)
    mask = jnp.uint32(2**half - 1)

    def network(values: Array) -> Array:
        left, right = values >> half, values & mask
        for place in range(FEISTEL_ROUNDS):
            left, right = right, left ^ (mixed(right ^ subkeys[place]) & mask)
        return (left << half) | right

    def walk(values: Array) -> Array:
        return jnp.where(values < total, values, network(values))

    images = jax.lax.while_loop(lambda values: (values >= total).any(), walk, network(indices.astype(jnp.uint32)))
    return images.astype(indices.dtype)


def cohort_size(participation: float, clients: int) -> int:
    """The number of participants, ceil(participation * m).

    Raises
    ------
    SettingError
        If the fraction is not in (0, 1].
    """
    if not 0 < participation <= 1:
        raise SettingError(f"participation={participation}: a fraction of the clients in (0, 1].")
    return min(clients, math.ceil(participation * clients - 1e-9))

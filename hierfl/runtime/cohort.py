"""Who takes part in a round: a keyed random subset without replacement, at a cost that does not grow with the federation.

Beyond ``SORTED`` clients the subset is the image of 0, ..., S - 1 under a keyed permutation of the clients' indices, any entry of which
is found without the others. The keys of a round are here too, those beside its clients', whose indices are the smaller numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax import Array

from hierfl.errors import SettingError
from hierfl.jaxtools.keyed_random import fold_in, keyed_permutation, words

ROUND_STREAM = 2**31 - 1  # what the algorithm draws at the server
COHORT_STREAM = 2**31 - 2  # who takes part
SERVER_STREAM = 2**31 - 3  # what the server draws as a holder of data
VALUE_STREAM = 2**31 - 4  # the algorithm's own value at the end


SORTED = 128


@jax.tree_util.register_dataclass
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


def cohort_size(participation: float, clients: int) -> int:
    """The number of participants, ceil(participation * m).

    Raises ``SettingError`` if the fraction is not in (0, 1].
    """
    if not 0 < participation <= 1:
        raise SettingError(f"participation={participation}: a fraction of the clients in (0, 1].")
    return min(clients, math.ceil(participation * clients - 1e-9))

"""Where a lower level on the host is asked about: x, and its owner."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import NamedTuple

import numpy as np

from hierfl.compiler.lower_level.on_host.owner_terms import Own


class Place(NamedTuple):
    """Where the lower level is asked about: x, and its owner."""

    x: np.ndarray
    client: np.ndarray  # its index, where the owner is one
    own: Own

    @property
    def key(self) -> Hashable:
        """What tells it from other places."""
        return self.x.tobytes(), int(self.client), *((leaf, value.tobytes()) for leaf, value in self.own.items())


def stacked(asked: Sequence[Place]) -> tuple[Place, Place]:
    """(places as one, with a leading axis, the axes for ``jax.vmap``); constants that are the same for all stay as they are."""
    own: Own = {}
    axes: Own = {}
    for leaf, value in asked[0].own.items():
        same = all(place.own[leaf] is value for place in asked)
        own[leaf], axes[leaf] = (value, None) if same else (np.stack([place.own[leaf] for place in asked]), 0)
    x, client = np.stack([place.x for place in asked]), np.stack([place.client for place in asked])
    return Place(x, client, own), Place(0, 0, axes)  # type: ignore[arg-type]


def places(leaves: Sequence[int], values: Sequence[np.ndarray]) -> Own:
    """An owner's constants by leaf."""
    return dict(zip(leaves, map(np.asarray, values)))

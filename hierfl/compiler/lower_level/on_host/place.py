"""Where a lower level on the host is asked about: x, and its owner; one such place, or many."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from hierfl.compiler.lower_level.on_host.owner_terms import Own

SHORT = 512  # bytes of a constant that tell it by themselves; longer ones are told by a digest


class Place(NamedTuple):
    """Where the lower level is asked about: x, and its owner."""

    x: np.ndarray
    client: np.ndarray  # its index, where the owner is one
    own: Own

    @property
    def key(self) -> bytes:
        """What tells it from other places."""
        own = {leaf: np.asarray(value)[None] for leaf, value in self.own.items()}
        return Places(np.asarray(self.x)[None], np.asarray(self.client)[None], own).keys[0]


@dataclass(frozen=True, eq=False)
class Places:
    """Many places: x (k, n), indices of clients (k,), and constants with a leading axis of k entries, or of one for all.

    ``mark`` tells places at several x, whose answers follow from each other's, from the same asked at one: there an answer may not
    depend, by its last bits or the choice among multipliers, on what was asked before.
    """

    x: np.ndarray
    client: np.ndarray
    own: Own
    mark: bytes = b""

    @classmethod
    def marked(cls, x: np.ndarray, client: np.ndarray, own: Own) -> Places:
        """The places, with the mark that they need."""
        return cls(x, client, own, b"apart" if len(x) > 1 and (x != x[0]).any() else b"")

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, k: int) -> Place:
        return Place(
            self.x[k], self.client[k], {leaf: value[0 if len(value) == 1 else k] for leaf, value in self.own.items()}
        )

    def among(self, chosen: Sequence[int] | np.ndarray) -> Places:
        """Some of them."""
        own = {leaf: value if len(value) == 1 else value[chosen] for leaf, value in self.own.items()}
        return Places(self.x[chosen], self.client[chosen], own, self.mark)

    @cached_property
    def keys(self) -> list[bytes]:
        """What tells each from other places."""
        parts = [_bytes(self.x.astype(np.float64)), _bytes(self.client.astype(np.int64))]
        parts += [_told(value) for value in self.own.values()]
        parts += [np.frombuffer(self.mark, np.uint8)[None]] if self.mark else []
        ends = list(accumulate(part.shape[1] for part in parts))
        rows = np.empty((len(self), ends[-1]), np.uint8)
        for part, end in zip(parts, ends):
            rows[:, end - part.shape[1] : end] = part  # of one entry where it is the same for all
        keys: list[bytes] = rows.view(f"V{ends[-1]}")[:, 0].tolist()
        return keys

    def as_one(self) -> tuple[Place, Place]:
        """(them as a place with leading axes, the axes for ``jax.vmap``); constants that are the same for all stay as they are."""
        shared = {leaf: len(value) == 1 for leaf, value in self.own.items()}
        own = {leaf: value[0] if shared[leaf] else value for leaf, value in self.own.items()}
        axes = Place(0, 0, {leaf: None if same else 0 for leaf, same in shared.items()})  # type: ignore[arg-type]
        return Place(self.x, self.client, own), axes


def _bytes(values: np.ndarray) -> np.ndarray:
    """The bytes of each entry of an array: (k, bytes)."""
    return np.ascontiguousarray(values).view(np.uint8).reshape(len(values), -1)


def _told(values: np.ndarray) -> np.ndarray:
    """What tells the entries of an array from others: (k, bytes)."""
    if values[0].nbytes <= SHORT:
        return _bytes(values)
    digests = [hashlib.blake2b(np.ascontiguousarray(value).tobytes(), digest_size=16).digest() for value in values]
    return np.frombuffer(b"".join(digests), np.uint8).reshape(len(values), -1)

"""Where a lower level on the host is asked about: x, and what its owner holds; one such place, or many."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from hierfl.compiler.lower_level.owner import Held

SHORT = 512  # bytes of what is held that tell it by themselves; more are told by a digest


@dataclass(frozen=True, eq=False)
class Place:
    """Where the lower level is asked about: x, and what its owner holds, in NumPy's arrays."""

    x: np.ndarray
    held: Held

    @classmethod
    def of(cls, x: Any, held: Held) -> Place:
        """The place, of anybody's arrays."""
        return cls(np.asarray(x, float), jax.tree.map(np.asarray, held))

    @property
    def parts(self) -> tuple[np.ndarray, Held]:
        """As programs take it."""
        return self.x, self.held

    @property
    def key(self) -> bytes:
        """What tells it from other places."""
        return Places(self.x[None], jax.tree.map(lambda leaf: np.asarray(leaf)[None], self.held)).keys[0]

    @cached_property
    def form(self) -> Hashable:
        """What programs of it are traced for: which arrays there are, and their shapes."""
        leaves, tree = jax.tree.flatten(self.held)
        return tree, tuple(leaf.shape for leaf in leaves)


@dataclass(frozen=True, eq=False)
class Places:
    """Many places: x (k, n), and what is held with a leading axis of k entries, or of one for all.

    ``mark`` tells places at several x, whose answers follow from each other's, from the same asked at one: there an answer may not
    depend, by its last bits or the choice among multipliers, on what was asked before.
    """

    x: np.ndarray
    held: Held
    mark: bytes = b""

    @classmethod
    def marked(cls, x: np.ndarray, held: Held) -> Places:
        """The places, with the mark that they need."""
        return cls(x, held, b"apart" if len(x) > 1 and (x != x[0]).any() else b"")

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, k: int) -> Place:
        return Place(self.x[k], jax.tree.map(lambda leaf: leaf[0 if len(leaf) == 1 else k], self.held))

    def among(self, chosen: Sequence[int] | np.ndarray) -> Places:
        """Some of them."""
        held = jax.tree.map(lambda leaf: leaf if len(leaf) == 1 else leaf[chosen], self.held)
        return Places(self.x[chosen], held, self.mark)

    @cached_property
    def keys(self) -> list[bytes]:
        """What tells each from other places: all the numbers that its answer is a function of."""
        held = self._joined(jax.tree.leaves(self.held))
        if held.shape[1] > SHORT:
            digests = [hashlib.blake2b(row, digest_size=16).digest() for row in held]
            held = np.frombuffer(b"".join(digests), np.uint8).reshape(len(held), -1)
        rows = np.ascontiguousarray(self._joined([self.x, held], len(self)))
        whole: list[bytes] = rows.view(f"V{rows.shape[1]}")[:, 0].tolist()
        return [row + self.mark for row in whole] if self.mark else whole

    @staticmethod
    def _joined(arrays: Sequence[np.ndarray], least: int = 1) -> np.ndarray:
        """The bytes of each entry of some arrays, one after another: (k, bytes), k = 1 where all are the same for all."""
        parts = [_bytes(array) for array in arrays]
        rows = np.empty((max([least, *map(len, parts)]), sum(part.shape[1] for part in parts)), np.uint8)
        start = 0
        for part in parts:
            rows[:, start : start + part.shape[1]] = part  # of one entry where it is the same for all
            start += part.shape[1]
        return rows

    def as_one(self) -> tuple[Place, tuple[int, Held]]:
        """(them as a place with leading axes, the axes for ``jax.vmap``); what is the same for all stays as it is."""
        held = jax.tree.map(lambda leaf: leaf[0] if len(leaf) == 1 else leaf, self.held)
        axes = jax.tree.map(lambda leaf: None if len(leaf) == 1 else 0, self.held)
        return Place(self.x, held), (0, axes)


class Handed:
    """How what an owner holds reaches the host from a traced program: ``arrays`` travel, and what is no part of it stays here."""

    def __init__(self, held: Held) -> None:
        leaves, self.tree = jax.tree.flatten(held)
        self.fixed = [None if isinstance(leaf, jax.core.Tracer) else np.asarray(leaf) for leaf in leaves]
        self.arrays = [leaf for leaf in leaves if isinstance(leaf, jax.core.Tracer)]

    def place(self, x: np.ndarray, arrived: Sequence[np.ndarray]) -> Place:
        """Where one call asks."""
        return Place(np.asarray(x, float), self._held(arrived, [leaf for leaf in self.fixed if leaf is not None]))

    def places(self, count: int, x: np.ndarray, arrived: Sequence[np.ndarray]) -> Places:
        """Where the calls of a batch ask."""
        held = self._held(arrived, [leaf[None] for leaf in self.fixed if leaf is not None])
        return Places.marked(for_each(count, x), held)

    def _held(self, arrived: Sequence[np.ndarray], fixed: Sequence[np.ndarray]) -> Held:
        travelled, stayed = iter(arrived), iter(fixed)
        leaves = [next(travelled if leaf is None else stayed) for leaf in self.fixed]
        held: Held = jax.tree.unflatten(self.tree, [_number(leaf) for leaf in leaves])
        return held


def for_each(count: int, array: np.ndarray) -> np.ndarray:
    """An array of an entry for each call, where it may have one for all; numbers as doubles."""
    array = _number(array)
    if len(array) == count:
        return array
    whole = np.empty((count, *array.shape[1:]), array.dtype)
    whole[:] = array
    return whole


def _number(array: np.ndarray) -> np.ndarray:
    """Floating-point numbers as doubles, others as they are."""
    return array.astype(float, copy=False) if array.dtype.kind == "f" else array


def _bytes(values: np.ndarray) -> np.ndarray:
    """The bytes of each entry of an array: (k, bytes); whole numbers of one width, whoever counted."""
    wide = values if values.dtype.kind != "i" else values.astype(np.int64, copy=False)
    return np.ascontiguousarray(wide).view(np.uint8).reshape(len(values), -1)

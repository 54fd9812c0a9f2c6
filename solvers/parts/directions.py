"""Random directions for zeroth-order estimators: held while they are few scalars, else made from their key where they are used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float, Int

from hierfl.jaxtools.keyed_random import fold_in, normals

KINDS = ("independent", "orthonormal")
HELD = 1_000_000  # scalars of directions that may be held
TOGETHER = 65_536  # scalars made together where they are not held: half a megabyte, which a cache keeps
Value = TypeVar("Value")


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Directions:
    """``count`` unit vectors of R^size, each uniform on the sphere S.

    Direction j is a function of the key and of ``first + j``. All are held as ``held`` (count, size) by whoever draws them where they
    are at most ``HELD`` scalars, or orthonormal; else ``held`` is None, and none outlives its use.
    """

    seed: Array  # the key's words, which any process can be sent
    first: Array
    held: Array | None
    count: int = field(metadata={"static": True})
    size: int = field(metadata={"static": True})

    @classmethod
    def draw(cls, key: Array, count: int, size: int, kind: str) -> Directions:
        """The directions that follow from a key.

        ``"orthonormal"`` draws groups of at most ``size`` mutually orthogonal ones: the Q of a Gaussian matrix with the
        signs of R's diagonal removed (raw QR columns are not uniform). It takes all of a group to make one of them: they
        are held, however many they are.
        """
        seeded = cls(jax.random.key_data(key), jnp.zeros((), int), None, count, size)
        if kind == "orthonormal":
            return replace(seeded, held=_orthonormal(key, count, size))
        if count * size <= HELD:
            return replace(seeded, held=jax.vmap(seeded.at)(jnp.arange(count)))
        return seeded

    def at(self, number: Int[Array, ""]) -> Float[Array, " size"]:
        """The direction of a number."""
        if self.held is not None:
            return self.held[number]
        normal = normals(jax.random.wrap_key_data(self.seed), (self.size,), self.first + number)
        return normal / jnp.linalg.norm(normal)

    def parts(self, count: int) -> Directions:
        """As many successive ones for each of ``count`` holders: every array has a leading axis for them."""
        each = self.count // count
        seed = jnp.broadcast_to(self.seed, (count, *self.seed.shape))
        held = None if self.held is None else self.held.reshape(count, each, self.size)
        return Directions(seed, self.first + each * jnp.arange(count), held, each, self.size)

    def each(
        self,
        function: Callable[..., Value],
        numbers: Sequence[int] | np.ndarray,
        *jobs: Array | np.ndarray,
        one_by_one: bool = False,
    ) -> Value:
        """``function(direction, *job)`` for some of them, stacked: side by side, or as many at a time as are made together."""
        places = np.asarray(numbers)
        if self.held is not None and not one_by_one:
            in_order = np.array_equal(places, np.arange(self.count))
            together: Value = jax.vmap(function)(self.held if in_order else self.held[places], *jobs)
            return together
        blocks = _blocks(places.size, 1 if one_by_one else self._together)

        def block(members: Array) -> Value:
            own = jax.tree.map(lambda job: jnp.asarray(job)[members], jobs)
            values: Value = jax.vmap(function)(jax.vmap(self.at)(jnp.asarray(places)[members]), *own)
            return values

        by_block = jax.lax.map(block, jnp.asarray(np.minimum(blocks, places.size - 1)))
        values: Value = jax.tree.map(lambda a: a.reshape(blocks.size, *a.shape[2:])[: places.size], by_block)
        return values

    def combination(self, coefficients: Float[Array, " count"]) -> Float[Array, " size"]:
        """The sum of coefficients_j times direction j."""
        if self.held is not None:
            return coefficients @ self.held

        blocks = _blocks(self.count, self._together)
        padded = jnp.pad(coefficients, (0, blocks.size - self.count))

        def add(place: Array, total: Array) -> Array:
            members = jnp.asarray(blocks)[place]
            return total + padded[members] @ jax.vmap(self.at)(members)

        return jax.lax.fori_loop(0, len(blocks), add, jnp.zeros(self.size, coefficients.dtype))

    def along(self, vector: Float[Array, " size"]) -> Float[Array, " count"]:
        """The vector's inner product with each direction."""
        if self.held is not None:
            return self.held @ vector
        return self.each(lambda direction: direction @ vector, range(self.count))

    @property
    def _together(self) -> int:
        return max(1, TOGETHER // self.size)


def _blocks(count: int, together: int) -> np.ndarray:
    """0, ..., count - 1 in as few blocks as can be, of one size; the last may hold some numbers beyond."""
    number = -(-count // together)
    return np.arange(number * -(-count // number)).reshape(number, -1)


def _orthonormal(key: Array, count: int, size: int) -> Array:
    groups = []
    for start in range(0, count, size):
        width = min(size, count - start)
        q, r = jnp.linalg.qr(normals(fold_in(key, start), (size, width)))
        groups.append((q * jnp.sign(jnp.diagonal(r))).T)
    return jnp.concatenate(groups)

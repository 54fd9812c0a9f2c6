"""Random directions, held while they are few scalars, else made from their key; and estimators of grad f^eta from values of f along them.

    g = n/q  sum_j  D_j v_j,          D_j = (f(x + eta v_j) - f(x)) / eta                        forward
                                      D_j = (f(x + eta v_j) - f(x - eta v_j)) / (2 eta)          central (antithetic)

v_j uniform on the unit sphere; every estimator here is unbiased for grad f^eta.

With a control variate c, a sketch of the gradient which must not depend on the v_j, g = c + n/q sum_j (D_j - c'v_j) v_j is unbiased too,
since E[n v v'] = I: only the difference is left to be estimated. After its use c is moved to agree with what was seen along the v_j (a
sketch in the sense of SEGA: Hanzely, Mishchenko and Richtarik, 2018). An empty array stands for no control variate.
"""

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
            return jax.vmap(function)(self.held if in_order else self.held[places], *jobs)
        blocks = _blocks(places.size, 1 if one_by_one else self._together)

        def block(members: Array) -> Value:
            own = jax.tree.map(lambda job: jnp.asarray(job)[members], jobs)
            return jax.vmap(function)(jax.vmap(self.at)(jnp.asarray(places)[members]), *own)

        by_block = jax.lax.map(block, jnp.asarray(np.minimum(blocks, places.size - 1)))
        return jax.tree.map(lambda a: a.reshape(blocks.size, *a.shape[2:])[: places.size], by_block)

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


ESTIMATORS = ("forward", "central")
Length = Array | np.ndarray | float


def shifts_of(count: int, smoothing: Length, estimator: str) -> tuple[np.ndarray, Array | np.ndarray]:
    """Where f is evaluated for ``count`` directions, relative to x: the numbers of directions, and how far along each."""
    numbers, plus = np.arange(count), np.ones(count)
    if estimator == "central":
        return np.concatenate([numbers, numbers]), smoothing * np.concatenate([-plus, plus])
    return np.concatenate([[0], numbers]), smoothing * np.concatenate([[0.0], plus])


def slopes(values: Float[Array, "points ..."], smoothing: Length, estimator: str) -> Float[Array, "q ..."]:
    """The slopes D_j from the values at ``shifts_of``, in the same order."""
    if estimator == "central":
        half = values.shape[0] // 2
        return (values[half:] - values[:half]) / (2 * smoothing)
    return (values[1:] - values[:1]) / smoothing


def average_along(directions: Directions, measured: Float[Array, " q"]) -> Float[Array, " n"]:
    """g from q directions and the slopes measured along them."""
    return directions.size / directions.count * directions.combination(measured)


def central_value(values: Float[Array, " points"], estimator: str) -> Float[Array, ""]:
    """f at x itself (forward) or the mean of the pairs, for the history."""
    return jnp.mean(values) if estimator == "central" else values[0]


def estimate(
    directions: Directions, measured: Float[Array, " q"], control: Float[Array, " n"], kind: str
) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """(g, next control variate) from q directions of a ``kind`` and the slopes measured along them; an empty one is none, and stays so."""
    if not control.size:
        return average_along(directions, measured), control
    count, size = directions.count, directions.size
    surprise = directions.combination(measured - directions.along(control))
    share = 1.0 if kind == "orthonormal" and count <= size else 1.0 / count
    return control + size / count * surprise, control + share * surprise

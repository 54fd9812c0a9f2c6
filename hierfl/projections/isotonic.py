"""The monotone cone {y_1 <= y_2 <= ... <= y_n}: isotonic regression, by divide and conquer.

If two halves are fitted already, lowering the end of the left one and raising the start of the right one to their common mean
m fits the whole: (min(left, m), max(right, m)). Pooling adjacent violators (Ayer et al., 1955) would do the same in O(n)
sequential steps, which neither vectorise nor batch; here it is log n rounds of bisection over all pairs of halves at once,
O(n (log n)^2) whatever the data.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

METHOD, COST = "by isotonic regression", "O(n (log n)^2)"


def project(z: Float[Array, " n"]) -> Float[Array, " n"]:
    """The nearest nondecreasing vector to ``z``: means over blocks of entries. Its derivative averages over the same blocks."""
    if z.shape[0] < 2:
        return z
    fitted = _fit(jax.lax.stop_gradient(z))
    block = jnp.cumsum(jnp.concatenate([jnp.zeros(1, int), fitted[1:] != fitted[:-1]]))
    count = jnp.zeros_like(z).at[block].add(1.0)
    total = jnp.zeros_like(z).at[block].add(z)
    return (total / jnp.maximum(count, 1.0))[block]


def _fit(z: Float[Array, " n"]) -> Float[Array, " n"]:
    """The projection, equal entries exactly equal; while it is computed z is padded by entries that are too large to be pooled with others."""
    size = 1 << (z.shape[0] - 1).bit_length()
    fitted = jnp.concatenate([z, jnp.full(size - z.shape[0], jnp.max(z), z.dtype)])
    half = 1
    while half < size:
        fitted = _join(fitted.reshape(-1, 2, half)).ravel()
        half *= 2
    return fitted[: z.shape[0]]


def _join(halves: Float[Array, "count 2 half"]) -> Float[Array, "count both"]:
    """Pairs of nondecreasing vectors, each pair fitted together."""
    left, right = halves[:, :1], halves[:, 1:]
    half = halves.shape[2]

    def excess(level: Float[Array, "count 2"]) -> Float[Array, "count 2"]:
        """What is to be lowered on the left, less what is to be raised on the right: decreasing in the level."""
        level = level[..., None]
        return jnp.sum(jnp.maximum(left - level, 0.0), 2) - jnp.sum(jnp.maximum(level - right, 0.0), 2)

    def bisect(step: int | Array, below: Int[Array, "count 2"]) -> Int[Array, "count 2"]:
        further = below + (half >> step)
        level = jnp.take_along_axis(halves, jnp.minimum(further, half)[..., None] - 1, axis=2)[..., 0]
        return jnp.where((further <= half) & (excess(level) > 0), further, below)

    # how many entries of each half are below the common mean
    below = jax.lax.fori_loop(0, half.bit_length(), bisect, jnp.zeros(halves.shape[:2], int))[..., None]
    place = jnp.arange(half)
    pooled = jnp.concatenate([place >= below[:, :1], place < below[:, 1:]], axis=1)
    count = jnp.sum(pooled, axis=(1, 2), keepdims=True)
    mean = jnp.sum(jnp.where(pooled, halves, 0.0), axis=(1, 2), keepdims=True) / count
    mean = jnp.where(left[..., -1:] > right[..., :1], mean, left[..., -1:])
    return jnp.concatenate([jnp.minimum(left, mean), jnp.maximum(right, mean)], axis=1)

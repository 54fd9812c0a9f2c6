"""The monotone cone {y_1 <= y_2 <= ... <= y_n}: isotonic regression."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

_DENSE = 256


def project(z: Array) -> Array:
    """Means over blocks of consecutive entries; the derivative averages over the same blocks.

    The blocks come from the min-max formula (Robertson, Wright and Dykstra, 1988, theorem 1.4.4), O(n^2) and without loops, up to
    256 entries, and from pooling adjacent violators, O(n), above.
    """
    if z.shape[0] < 2:
        return z
    stopped = jax.lax.stop_gradient(z)
    starts = _starts_dense(stopped) if z.shape[0] <= _DENSE else _starts_pooled(stopped)
    block = jnp.cumsum(starts) - 1
    count = jnp.zeros_like(z).at[block].add(1.0)
    total = jnp.zeros_like(z).at[block].add(z)
    return (total / jnp.maximum(count, 1.0))[block]


def _starts_dense(z: Array) -> Array:
    """Whether a new block starts at each entry, from max over j <= i of min over k >= i of mean(z_j .. z_k)."""
    size = z.shape[0]
    ends = jnp.concatenate([jnp.zeros(1, z.dtype), jnp.cumsum(z - jnp.mean(z))])
    first, last = jnp.arange(size)[:, None], jnp.arange(size)[None, :]
    means = (ends[last + 1] - ends[first]) / jnp.maximum(last - first + 1, 1)
    means = jnp.where(last >= first, means, jnp.inf)
    least = jax.lax.cummin(means, axis=1, reverse=True)
    fitted = jnp.max(jnp.where(last >= first, least, -jnp.inf), axis=0)
    rounding = 8 * size * jnp.finfo(z.dtype).eps * jnp.max(jnp.abs(ends))
    return jnp.concatenate([jnp.ones(1, bool), fitted[1:] > fitted[:-1] + rounding])


def _starts_pooled(z: Array) -> Array:
    """The same with a stack of blocks: each new entry is pooled with the last block while that has the larger mean."""
    size = z.shape[0]

    def add(index: Array, stack: tuple[Array, Array, Array, Array]) -> tuple[Array, Array, Array, Array]:
        starts, sums, counts, top = stack
        starts, sums, counts = starts.at[top].set(index), sums.at[top].set(z[index]), counts.at[top].set(1.0)

        def violated(stack: tuple[Array, Array, Array]) -> Array:
            sums, counts, top = stack
            return (top > 0) & (sums[top - 1] * counts[top] >= sums[top] * counts[top - 1])

        def pool(stack: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            sums, counts, top = stack
            return sums.at[top - 1].add(sums[top]), counts.at[top - 1].add(counts[top]), top - 1

        sums, counts, top = jax.lax.while_loop(violated, pool, (sums, counts, top))
        return starts, sums, counts, top + 1

    zeros = jnp.zeros(size, z.dtype)
    starts, _, _, blocks = jax.lax.fori_loop(0, size, add, (jnp.zeros(size, int), zeros, zeros, jnp.zeros((), int)))
    real = jnp.arange(size) < blocks
    return jnp.zeros(size, bool).at[jnp.where(real, starts, 0)].set(True)

"""Many small quadratic programs of one shape as one traced program of a fixed number of steps, on whatever device JAX computes.

Predictor and corrector steps of an interior point method (Mehrotra, 1992), with equations by the proximal method of multipliers, so that dependent
ones do no harm (Schwan, Jiang, Kuhn and Jones, 2023): a step is one Cholesky factorisation of the size of u, of all programs side by side
(as in OptNet: Amos and Kolter, 2017). The rows that hold at the end are then solved for as equations, by the method of multipliers; the
adjoint solves the same system. Nothing here is judged: what has not come to an end is seen by its conditions, and is for others to solve.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.scipy.linalg import cho_solve
from jaxtyping import Bool, Float

from hierfl.jaxtools.precision import computing

STEPS = 20  # of interior points: 15 are enough for most, and what 20 do not end is mostly empty, unbounded or degenerate
MULTIPLIERS = 4  # steps of the method of multipliers, each of which leaves about FIRM of the error
FIRM = 1e-7  # how little an equation gives: a row of length 1 beside a P of size 1
PROXIMAL = 1e-9  # of P: curvature of each step
SHORT = 0.99  # of the way to the next bound
LEAST = 1e-14  # a slack, or a multiplier, of numbers of size 1

Stack = Float[np.ndarray, "k *shape"]


def pairs_side_by_side(p: Stack, q: Stack, a: Stack, b: Stack, equal: Bool[np.ndarray, " rows"]) -> tuple[Stack, Stack]:
    """(u, z) of P u + q = A'z, A u + b >= 0 (zero where ``equal``): P (k or 1, width, width), q (k, width), A (k or 1, rows, width), b (k, rows).

    Arrays of NumPy's; whatever has no solution, or was not found, comes as any numbers, or none.
    """
    return _many(_pairs, len(q), (p, q, a, b), equal)


def adjoints_side_by_side(p: Stack, a: Stack, held: Bool[np.ndarray, "k rows"], seeds: Stack) -> tuple[Stack, Stack]:
    """(v, w) of P v + A'w = seed, A v = 0 over the rows that are held, w zero for others."""

    return _many(_adjoints, len(seeds), (p, a, held, seeds))


def _many(function: Callable[..., Any], count: int, stacks: tuple[np.ndarray, ...], *shared: np.ndarray) -> tuple[Stack, Stack]:
    """A function of each program, for all; some are there twice, so that it is compiled for few counts."""
    whole = count + -count % (1 << max(0, count.bit_length() - 4))
    places = np.minimum(np.arange(whole), count - 1)
    with computing(double=True):
        first, second = function(*(part if len(part) == 1 else part[places] for part in stacks), *shared)
        return np.asarray(first)[:count], np.asarray(second)[:count]


def _each(function: Callable[..., Any], *stacks: Array) -> Any:
    """A function of each program, some parts of which are the same for all, side by side."""
    shared = [0 if len(part) > 1 else None for part in stacks]
    if not any(axis == 0 for axis in shared):
        shared = [0] * len(stacks)
    return jax.vmap(function, shared)(*(part if axis == 0 else part[0] for part, axis in zip(stacks, shared)))


@jax.jit
def _pairs(p: Array, q: Array, a: Array, b: Array, equal: Array) -> tuple[Array, Array]:
    return _each(partial(_pair, equal), p, q, a, b)


@jax.jit
def _adjoints(p: Array, a: Array, held: Array, seeds: Array) -> tuple[Array, Array]:
    def one(p: Array, a: Array, held: Array, seed: Array) -> tuple[Array, Array]:
        sizes, stiff = _lengths(a), _or_one(jnp.abs(p).max(initial=0.0))
        rows = jnp.where(held[:, None], a / sizes[:, None], 0.0)
        v, w = _with_rows(p / stiff, -seed / stiff, rows, jnp.zeros(len(a)))
        return v, -w * stiff / sizes

    return _each(one, p, a, held, seeds)


def _pair(equal: Array, p: Array, q: Array, a: Array, b: Array) -> tuple[Array, Array]:
    """(u, z) of one program: that of numbers of size 1, and then of the rows that it holds."""
    sizes, stiff = _lengths(a), jnp.abs(p).max(initial=0.0)
    unit = jnp.maximum(1.0, jnp.abs(b / sizes).max(initial=0.0))
    weight = _or_one(jnp.maximum(stiff * unit, jnp.abs(q).max(initial=0.0)))
    p, q, a, b = p * (unit / weight), q / weight, a / sizes[:, None], b / sizes / unit
    slack, z = _interior(p, q, a, b, equal)
    held = equal | (z > slack)
    u, z = _with_rows(p, q, jnp.where(held[:, None], a, 0.0), jnp.where(held, b, 0.0))
    return u * unit, z * weight / sizes


def _interior(p: Array, q: Array, a: Array, b: Array, equal: Array) -> tuple[Array, Array]:
    """(slacks, multipliers) where interior points end; a row of zeros, as of an equation that is another's double, is no other kind of row."""
    count, width = a.shape

    def factorised(z: Array, slack: Array) -> Array:
        weight = jnp.where(equal, 1.0 / FIRM, z / slack)
        return jnp.linalg.cholesky(p + a.T @ (weight[:, None] * a) + PROXIMAL * jnp.eye(width))

    def step(number: int, state: tuple[Array, ...]) -> tuple[Array, ...]:
        u, z, slack = state
        force, gap = p @ u + q - a.T @ z, a @ u + b - jnp.where(equal, 0.0, slack)
        factor = factorised(z, slack)
        product = jnp.where(equal, 0.0, z * slack)
        mean = product.sum() / jnp.maximum(1, (~equal).sum())

        def towards(wanted: Array) -> tuple[Array, Array, Array]:
            pushed = jnp.where(equal, -gap / FIRM, (wanted - product - z * gap) / slack)
            du = cho_solve((factor, True), a.T @ pushed - force)
            moved = a @ du
            ds = moved + gap
            return du, jnp.where(equal, -(gap + moved) / FIRM, (wanted - product - z * ds) / slack), jnp.where(equal, 0.0, ds)

        def longest(dz: Array, ds: Array) -> Array:
            ways = jnp.concatenate([jnp.where(equal, 0.0, -dz / z), -ds / slack])
            return 1.0 / jnp.maximum(1.0, ways.max(initial=0.0))

        _, dz, ds = towards(jnp.zeros(count))
        far = longest(dz, ds)
        ahead = jnp.where(equal, 0.0, (z + far * dz) * (slack + far * ds)).sum() / jnp.maximum(1, (~equal).sum())
        centred = mean * (ahead / jnp.maximum(mean, LEAST**2)) ** 3
        du, dz, ds = towards(jnp.where(equal, 0.0, centred - dz * ds))
        far = SHORT * longest(dz, ds)
        new = u + far * du, z + far * dz, slack + far * ds
        new = new[0], jnp.where(equal, new[1], jnp.maximum(new[1], LEAST)), jnp.where(equal, 1.0, jnp.maximum(new[2], LEAST))
        fine = jnp.all(jnp.isfinite(jnp.concatenate(new)))  # else as near as rounding lets it come
        return tuple(jnp.where(fine, one, other) for one, other in zip(new, state))

    ones = jnp.ones(count)
    u = cho_solve((factorised(ones, ones), True), a.T @ jnp.where(equal, -b / FIRM, 1.0 - b) - q)
    slack = jnp.where(equal, 1.0, jnp.maximum(jnp.abs(a @ u + b), 1.0))
    start = u, jnp.where(equal, 0.0, 1.0), slack
    _, z, slack = jax.lax.fori_loop(0, STEPS, step, start)
    return slack, z


def _with_rows(p: Array, q: Array, rows: Array, b: Array) -> tuple[Array, Array]:
    """(u, z) with P u + q = R'z and R u + b = 0; rows of zeros are none."""
    factor = jnp.linalg.cholesky(p + rows.T @ rows / FIRM)
    u, z = jnp.zeros(len(q)), jnp.zeros(len(b))
    for _ in range(MULTIPLIERS):
        force, gap = p @ u + q - rows.T @ z, rows @ u + b
        du = cho_solve((factor, True), -force - rows.T @ gap / FIRM)
        u, z = u + du, z - (gap + rows @ du) / FIRM  # not of u anew, whose rounding would count 1 / FIRM times
    return u, z


def _lengths(a: Array) -> Array:
    return _or_one(jnp.sqrt((a**2).sum(axis=1)))


def _or_one(sizes: Array) -> Array:
    return jnp.where(sizes > 0, sizes, 1.0)

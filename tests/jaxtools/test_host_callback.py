"""Calls on the host from batches: each call once, in order, whatever is mapped."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hierfl.jaxtools.by_numpy.numpy_program import NumpyProgram
from hierfl.jaxtools.host_callback import call_on_host

X, MATRIX = np.arange(12.0).reshape(4, 3), np.arange(6.0).reshape(2, 3)


def product(matrix: np.ndarray, x: np.ndarray) -> np.ndarray:
    return matrix @ x


def on_host(matrix: Any, x: Any, calls: list[int] | None) -> jax.Array:
    def many(count: int, matrices: np.ndarray, points: np.ndarray) -> list[np.ndarray]:
        assert calls is not None
        calls.append(count)
        return [product(matrices[k % len(matrices)], points[k % len(points)]) for k in range(count)]

    return call_on_host(product, (2,), x.dtype, matrix, x, many=None if calls is None else many)


@pytest.mark.parametrize("way", [jax.jit, lambda f: lambda *a: NumpyProgram(f, *a)(*a)], ids=["XLA", "NumPy"])
@pytest.mark.parametrize("together", [False, True])
def test_batches(way: Any, together: bool) -> None:
    calls: list[int] | None = [] if together else None

    def each(matrix: jax.Array, x: jax.Array) -> jax.Array:
        return on_host(matrix, x, calls)

    with jax.enable_x64(True):
        one = way(each)(MATRIX, X[0])
        rows = way(jax.vmap(each, (None, 0)))(MATRIX, X)
        table = way(jax.vmap(jax.vmap(each, (0, None)), (None, 0)))(np.stack([MATRIX, -MATRIX, 2 * MATRIX]), X)
    np.testing.assert_array_equal(one, MATRIX @ X[0])
    np.testing.assert_array_equal(rows, X @ MATRIX.T)
    np.testing.assert_array_equal(table, np.stack([(X @ MATRIX.T) * s for s in (1, -1, 2)], axis=1))
    assert calls in (None, [4, 12])


def test_a_batch_of_calls_without_arguments() -> None:
    def constant(x: jax.Array) -> jax.Array:
        return x + call_on_host(lambda: np.array(3.0), (), jnp.float32)

    np.testing.assert_array_equal(jax.vmap(constant)(jnp.arange(3.0)), [3, 4, 5])

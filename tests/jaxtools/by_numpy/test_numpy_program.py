"""Programs that NumPy runs give what JAX gives: operations, derivatives, batches, loops, and calls of functions on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hierfl.jaxtools.by_numpy.numpy_program import NumpyProgram
from hierfl.jaxtools.host_callback import call_on_host

RNG = np.random.default_rng(0)
VECTOR, MATRIX, BATCH = RNG.standard_normal(5), RNG.standard_normal((5, 5)), RNG.standard_normal((4, 5))
PAIRS = RNG.standard_normal((3, 2))


def mixed(x: Any) -> Any:
    """Selections, gathers, a linear system and a loop."""
    chosen = jnp.where(x > 0, x, 0.0).sum() + x[jnp.array([0, 1])].sum()
    return chosen + jnp.linalg.solve(MATRIX, x).sum() + jax.lax.fori_loop(0, 3, lambda i, c: c + x[i] ** 2, 0.0)


def doubled_until_large(x: Any) -> Any:
    return jax.lax.while_loop(lambda c: c.sum() < 100, lambda c: c * 1.5 + 1, x)


def twice(z: np.ndarray) -> np.ndarray:
    return 2 * z


CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "mixed": (mixed, (VECTOR,)),
    "gradient": (jax.grad(mixed), (VECTOR,)),
    "hessian": (jax.hessian(mixed), (VECTOR,)),
    "batch": (jax.vmap(mixed), (BATCH,)),
    "while": (doubled_until_large, (VECTOR,)),
    "while over a batch that ends at different times": (jax.vmap(doubled_until_large), (BATCH,)),
    "sort": (lambda x: jnp.sort(x)[::-1] + jnp.cumsum(x), (VECTOR,)),
    "gradient of a sort": (jax.grad(lambda x: jnp.sort(x) @ jnp.arange(5.0)), (VECTOR,)),
    "log-sum-exp": (jax.scipy.special.logsumexp, (VECTOR,)),
    "eigenvalues": (lambda x: jnp.linalg.eigvalsh(x @ x.T), (MATRIX,)),
    "singular values": (lambda x: jnp.linalg.svd(x)[1], (MATRIX,)),
    "pseudo-inverse": (jnp.linalg.pinv, (MATRIX,)),
    "cholesky": (lambda x: jnp.linalg.cholesky(x @ x.T), (MATRIX,)),
    "set and add": (lambda x: x.at[1:3].set(7.0).at[jnp.array([0, 0])].add(2.0), (VECTOR,)),
    "a place": (lambda x, i: x[i], (VECTOR, np.array([3, 1]))),
    "a place in each row": (jax.vmap(lambda x, i: x[i]), (BATCH, np.array([3, 1, 0, 2]))),
    "scan": (lambda x: jax.lax.map(lambda a: 2 * a + VECTOR.sum(), x, batch_size=2), (VECTOR,)),
    "products of batches": (lambda x: jnp.einsum("bi,bj->ij", x, x), (BATCH,)),
    "a call": (lambda x: call_on_host(twice, (5,), float, x), (VECTOR,)),
    "calls": (jax.vmap(lambda x: call_on_host(twice, (5,), float, x)), (BATCH,)),
    "random numbers": (lambda x: jax.random.normal(jax.random.key(0), (3,)) + x[0], (VECTOR,)),
    "convolution": (lambda x: jnp.convolve(x, x), (VECTOR,)),
    "stack and tile": (lambda x: jnp.tile(jnp.stack([x, 2 * x], 1), (2, 3)), (VECTOR,)),
    "round": (lambda x: jnp.round(3 * x), (VECTOR,)),
    "Fortran's order": (lambda x: jnp.ravel(x, order="F"), (PAIRS,)),
    "Fortran's order of another shape": (lambda x: jnp.reshape(x, (2, 3), order="F"), (PAIRS,)),
    "Fortran's order of a square": (lambda x: jax.lax.reshape(x, (2, 2), (1, 0)), (PAIRS[:2],)),
}


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_jax(name: str) -> None:
    function, arguments = CASES[name]
    with jax.enable_x64(True):
        program = NumpyProgram(function, *arguments)
        found, expected = program(*arguments), function(*map(jnp.asarray, arguments))
        assert np.asarray(found).dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)


def test_a_condition_is_followed() -> None:
    with jax.enable_x64(True):
        program = NumpyProgram(lambda x: jax.lax.cond(x > 0, lambda v: v, lambda v: -2 * v, x), np.asarray(1.0))
        assert [float(program(np.asarray(x))) for x in (3.0, -3.0)] == [3.0, 6.0]

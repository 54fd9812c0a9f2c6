"""Which programs keep one thread."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hierfl.jaxtools.host_callback import call_on_host
from hierfl.jaxtools.thread_pool import why_alone

MATRIX = jnp.eye(3)
FACTORISING: dict[str, Callable] = {
    "solve": lambda m: jnp.linalg.solve(m, jnp.ones(3)),
    "batch": jax.vmap(lambda m: jnp.linalg.solve(m + jnp.eye(3), jnp.ones(3))),
    "cholesky": jnp.linalg.cholesky,
    "in a loop": lambda m: jax.lax.fori_loop(0, 2, lambda _, z: jnp.linalg.inv(z), m),
    "in a branch": lambda m: jax.lax.cond(m[0, 0] > 0, jnp.linalg.inv, lambda z: z, m),
    "compiled inside": lambda m: jax.jit(jnp.linalg.inv)(m),
}


@pytest.mark.parametrize("function", FACTORISING.values(), ids=FACTORISING)
def test_factorisations_are_found(function: Callable) -> None:
    assert "factorises matrices" in str(why_alone(jax.make_jaxpr(function)(MATRIX)))


def test_calls_of_python_are_found() -> None:
    def calling(m: jax.Array) -> jax.Array:
        return jax.lax.map(lambda row: call_on_host(np.sort, (3,), row.dtype, row), m)

    assert why_alone(jax.make_jaxpr(calling)(MATRIX)) == "the problem calls Python functions"


@pytest.mark.parametrize("function", [jnp.linalg.eigh, jnp.linalg.svd, jnp.linalg.qr, jnp.sort, lambda m: m @ m])
def test_nothing_else_is(function: Callable) -> None:
    assert why_alone(jax.make_jaxpr(function)(MATRIX)) is None

"""Second derivatives of rows that are wide: XLA 0.10 on CPUs computes those of all directions at once wrongly, of one after another rightly."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from hierfl.jaxtools.columns import jacobian_by_columns


def test_a_sum_over_pairs_of_rows_and_entries(x64: None) -> None:
    """sum over n, k of exp(u_n . b + a_k), whose Hessian is known."""
    rows, wide, few = 400, 100, 20
    rng = np.random.default_rng(0)
    u, z = rng.normal(size=(rows, few)), rng.normal(size=few + wide) * 0.1

    def value(z: jax.Array) -> jax.Array:
        return jnp.sum(jnp.exp(jax.vmap(lambda row: row @ z[:few] + z[few:])(u)))

    weights = np.exp((u @ z[:few])[:, None] + z[few:])
    expected = np.block([[(u.T * weights.sum(axis=1)) @ u, u.T @ weights], [weights.T @ u, np.diag(weights.sum(axis=0))]])
    found = jax.jit(lambda z: jacobian_by_columns(jax.grad(value), z))(z)
    np.testing.assert_allclose(found, expected, rtol=1e-11)

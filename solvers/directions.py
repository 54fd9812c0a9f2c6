"""Random directions for zeroth-order estimators."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from hierfl.compiler.draws import fold_in, normals

KINDS = ("independent", "orthonormal")


def draw_directions(key: jax.Array, count: int, size: int, kind: str) -> jax.Array:
    """``(count, size)`` unit vectors, each uniform on the sphere S of R^size.

    ``"orthonormal"`` draws groups of at most ``size`` mutually orthogonal ones: the Q of a Gaussian matrix with the
    signs of R's diagonal removed (raw QR columns are not uniform).
    """
    if kind == "independent":
        normal = normals(key, (count, size))
        return normal / jnp.linalg.norm(normal, axis=1, keepdims=True)
    groups = []
    for start in range(0, count, size):
        width = min(size, count - start)
        normal = normals(fold_in(key, start), (size, width))
        q, r = jnp.linalg.qr(normal)
        groups.append((q * jnp.sign(jnp.diagonal(r))).T)
    return jnp.concatenate(groups)

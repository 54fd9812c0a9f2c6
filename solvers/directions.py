"""Random directions for zeroth-order estimators."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from hierfl.errors import SettingError

KINDS = ("independent", "orthonormal")


def check_directions(count: int, kind: str, size: int) -> None:
    """Check the settings against the number of upper scalars.

    Raises
    ------
    SettingError
        For fewer than one direction or an unknown kind.
    """
    if int(count) != count or count < 1:
        raise SettingError(f"directions={count}: at least one direction is needed.")
    if kind not in KINDS:
        raise SettingError(f"direction_kind={kind!r}: write one of {', '.join(KINDS)}.")
    if size < 1:
        raise SettingError("the problem has no upper scalars.")


def draw_directions(key: jax.Array, count: int, size: int, kind: str) -> jax.Array:
    """``(count, size)`` unit vectors, each uniform on the sphere S of R^size.

    ``"orthonormal"`` draws groups of at most ``size`` mutually orthogonal ones: the Q of a Gaussian matrix with the
    signs of R's diagonal removed (raw QR columns are not uniform).
    """
    if kind == "independent":
        normal = jax.random.normal(key, (count, size), float)
        return normal / jnp.linalg.norm(normal, axis=1, keepdims=True)
    groups = []
    for start in range(0, count, size):
        width = min(size, count - start)
        normal = jax.random.normal(jax.random.fold_in(key, start), (size, width), float)
        q, r = jnp.linalg.qr(normal)
        groups.append((q * jnp.sign(jnp.diagonal(r))).T)
    return jnp.concatenate(groups)

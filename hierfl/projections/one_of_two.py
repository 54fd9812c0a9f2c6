"""A choice between two trees of arrays, as loops make it of their states."""

from __future__ import annotations

from functools import partial
from typing import TypeVar

import jax
from jaxtyping import Array, Bool

T = TypeVar("T")


def one_of_two(condition: Bool[Array, ""], one: T, other: T) -> T:
    """``one`` where the scalar condition holds, else ``other``, whose arrays have the same shapes."""
    chosen: T = jax.tree.map(partial(jax.lax.select, condition), one, other)
    return chosen

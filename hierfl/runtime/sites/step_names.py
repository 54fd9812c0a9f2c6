"""How a step of an algorithm is named, so that another process with the same declaration finds it, and how its arrays travel."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def step_name(step: Callable[..., Any], algorithm: Any) -> str:
    """Where the algorithm has a step, such as ``lower.local_round``: the way to it in any process.

    Raises
    ------
    TypeError
        For anything but a method of the bound algorithm, or of an object in its fields.
    """
    owner = getattr(step, "__self__", None)
    places: deque[tuple[str, Any]] = deque([("", algorithm)])
    while owner is not None and places:
        path, place = places.popleft()
        if place is owner:
            return f"{path}{step.__name__}"
        if is_dataclass(place):
            places.extend((f"{path}{f.name}.", getattr(place, f.name)) for f in fields(place))
    raise TypeError(f"{step!r} is no method of {type(algorithm).__name__} or of an object in its fields.")


def as_numpy(tree: Any) -> Any:
    """The arrays of a message as NumPy's, which any process can unpickle."""
    return jax.tree.map(lambda leaf: np.asarray(leaf) if isinstance(leaf, jax.Array) else leaf, tree)


def as_tables(tables: Any) -> Any:
    """An algorithm's tables as programs take them."""
    return jax.tree.map(lambda table: jnp.asarray(table, float if table.dtype.kind == "f" else int), tables)

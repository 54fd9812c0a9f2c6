"""What a projection is to the functions that take one as an argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from jaxtyping import Array, Float

Projection: TypeAlias = Callable[[Float[Array, "*shape"]], Float[Array, "*shape"]]

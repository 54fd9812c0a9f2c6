"""Control variates of zeroth-order estimators: a sketch of the gradient, which leaves only the difference to be estimated.

With a control variate c, which must not depend on the v_j, g = c + n/q sum_j (D_j - c'v_j) v_j is unbiased too, since
E[n v v'] = I. After its use c is moved to agree with what was seen along the v_j (a sketch in the sense of SEGA: Hanzely,
Mishchenko and Richtarik, 2018). An empty array stands for no control variate.
"""

from __future__ import annotations

from typing import TypeVar

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from hierfl.solvers.parts.directions import Directions
from hierfl.solvers.parts.estimators import average_along

Control = TypeVar("Control", Array, "Array | None")


def first_control(x0: Float[Array, " n"], kept: bool) -> Array:
    """A client's control variate before it has seen anything; empty where none is kept."""
    return jnp.zeros(x0.size if kept else 0, x0.dtype)


def estimate(
    directions: Directions, measured: Float[Array, " q"], control: Control, kind: str
) -> tuple[Float[Array, " n"], Control]:
    """(g, next control variate) from q directions of a ``kind`` and the slopes measured along them."""
    if control is None or not control.size:
        return average_along(directions, measured), control
    count, size = directions.count, directions.size
    surprise = directions.combination(measured - directions.along(control))
    share = 1.0 if kind == "orthonormal" and count <= size else 1.0 / count
    return control + size / count * surprise, control + share * surprise

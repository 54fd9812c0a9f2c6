"""Double precision around hierfl's own computations, without touching JAX's global setting."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import jax

from hierfl.jaxtools.host_callback import as_raised

P = ParamSpec("P")
R = TypeVar("R")


def double_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function with 64-bit JAX types enabled: differences over a small smoothing radius need them.

    An error of a function on the host (a BlackBox, a CVXPY solution, a file) reaches the caller as it was raised.
    """

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with jax.enable_x64(True), as_raised():
            return function(*args, **kwargs)

    return wrapped

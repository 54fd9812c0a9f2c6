"""What holds around hierfl's own computations, without touching JAX's global settings: the precision, the cache on disk."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np

from hierfl.jaxtools.disk_cache import kept_on_disk
from hierfl.jaxtools.host_callback import as_raised

P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def computing(*, double: bool) -> Iterator[None]:
    """Compute with 64-bit JAX types, or without; what is compiled is kept on disk. Both are settings of the thread."""
    with jax.enable_x64(double), kept_on_disk():
        yield


def double_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function with 64-bit JAX types enabled: differences over a small smoothing radius need them.

    An error of a function on the host (a BlackBox, a CVXPY solution, a file) reaches the caller as it was raised.
    """

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with computing(double=True), as_raised():
            return function(*args, **kwargs)

    return wrapped


def renewed(tree: Any) -> Any:
    """The same with views for NumPy's arrays: JAX keeps an array object in the precision in which it first saw it."""
    return jax.tree.map(lambda leaf: leaf[...] if isinstance(leaf, np.ndarray) else leaf, tree)

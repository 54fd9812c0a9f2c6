"""What holds around hierfl's own computations, without touching JAX's global settings: the precision, the cache on disk."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np

from hierfl.errors import ForkedProcessError
from hierfl.jaxtools.disk_cache import kept_on_disk
from hierfl.jaxtools.host_callback import as_raised
from hierfl.jaxtools.interruption import heeded_unless_within

P = ParamSpec("P")
R = TypeVar("R")
_COMPUTES_IN: dict[str, int] = {}  # the process in which hierfl computes, once it has; copied by a fork


_THREAD = threading.local()  # ``within``: whether this thread is computing


@contextmanager
def computing(*, double: bool) -> Iterator[None]:
    """Compute with 64-bit JAX types, or without, and keys of two words; what is compiled is kept on disk. All are settings of the thread."""
    _require_first_process()
    before, _THREAD.within = getattr(_THREAD, "within", False), True
    try:
        with jax.enable_x64(double), jax.default_prng_impl("threefry2x32"), nullcontext() if before else kept_on_disk():
            yield
    finally:
        _THREAD.within = before


def _require_first_process() -> None:
    """Require that this process is no fork of one in which hierfl has computed: the threads of XLA are not in it.

    Raises ``ForkedProcessError`` where a computation would wait for them for ever.
    """
    if _COMPUTES_IN.setdefault("process", os.getpid()) != os.getpid():
        raise ForkedProcessError(
            "this process was forked from one in which hierfl had computed, and the threads of JAX, which computes, do not come along: it "
            "would wait for ever. Start it afresh, by multiprocessing.get_context('spawn') or mp_context= of ProcessPoolExecutor, or "
            "fork before the first value is asked for."
        )


def double_precision(function: Callable[P, R]) -> Callable[P, R]:
    """Run a function with 64-bit JAX types enabled: differences over a small smoothing radius need them.

    An error of a function on the host (a BlackBox, a CVXPY solution, a file) reaches the caller as it was raised, and so does Ctrl-C.
    """

    @wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        if getattr(_THREAD, "within", False) and is_double():  # called by another such function
            with as_raised():
                return function(*args, **kwargs)
        with heeded_unless_within(), computing(double=True), as_raised():
            return function(*args, **kwargs)

    return wrapped


def is_double() -> bool:
    """Whether JAX computes with 64-bit types now, in this thread."""
    return bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]


def renewed(tree: Any) -> Any:
    """The same with views for NumPy's arrays: JAX keeps an array object in the precision in which it first saw it."""
    return jax.tree.map(lambda leaf: leaf[...] if isinstance(leaf, np.ndarray) else leaf, tree)

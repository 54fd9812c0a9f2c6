"""Calls of compiled programs, which leave Python while they run, shared out over the cores of a CPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from hierfl.jaxtools.precision import computing

Returned = TypeVar("Returned")


def core_count() -> int:
    """The number of cores of the CPU that this process may use; 1 where an accelerator computes."""
    return len(os.sched_getaffinity(0)) if jax.default_backend() == "cpu" else 1


def on_cores(
    threads: int, function: Callable[..., Returned], *arguments: Iterable[Any], stopped: Event | None = None
) -> list[Returned]:
    """``list(map(function, *arguments))`` in some threads, each in the caller's precision.

    The first error is raised; it sets ``stopped``, and so does Ctrl-C, for calls that look at it.
    """
    double = jnp.result_type(float) == jnp.float64  # a setting of the thread
    stopped = stopped or Event()

    def one(*own: Any) -> Returned:
        try:
            with computing(double=double):
                return function(*own)
        except BaseException:  # the other calls are to end, whatever it was
            stopped.set()
            raise

    with ThreadPoolExecutor(threads) as pool:
        try:
            return list(pool.map(one, *arguments))
        except BaseException:  # Ctrl-C arrives here, in the thread that waits
            stopped.set()
            pool.shutdown(cancel_futures=True)
            raise

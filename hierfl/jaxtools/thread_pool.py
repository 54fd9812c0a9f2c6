"""Calls of compiled programs, which leave Python while they run: shared out over the cores of a CPU, and such that one can be given up.

Some must not run beside another, in a thread of the same process.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from threading import Event, Thread, get_ident
from time import monotonic
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxprs_in_params

from hierfl.jaxtools.interruption import CutShort, present_wishes, working_under
from hierfl.jaxtools.precision import computing

Returned = TypeVar("Returned")
LOOK = 0.05  # seconds between looks whether a call is to be given up
AT_EXIT = 5.0  # seconds that the process waits at its end for calls that were given up: XLA may be compiling
_GIVEN_UP: list[Thread] = []


def core_count() -> int:
    """The number of cores of the CPU that this process may use; 1 where an accelerator computes."""
    if jax.default_backend() != "cpu":
        return 1
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # which Linux alone has


def on_cores(
    threads: int, function: Callable[..., Returned], *arguments: Iterable[Any], stopped: Event | None = None
) -> list[Returned]:
    """``list(map(function, *arguments))`` in some threads, each in the caller's precision.

    The first error is raised; it sets ``stopped``, and so does Ctrl-C, for calls that look at it.
    """
    double = jnp.result_type(float) == jnp.float64  # a setting of the thread
    stopped, wishes = stopped or Event(), present_wishes()

    def one(*own: Any) -> Returned:
        try:
            with computing(double=double), working_under(wishes):
                return function(*own)
        except BaseException:  # the other calls are to end, whatever it was
            stopped.set()
            raise

    pool = ThreadPoolExecutor(threads)
    try:
        return list(pool.map(one, *arguments))
    except BaseException as error:  # Ctrl-C arrives here, in the thread that waits
        stopped.set()
        pool.shutdown(wait=not isinstance(error, KeyboardInterrupt), cancel_futures=True)
        raise
    finally:
        pool.shutdown(wait=False)


def apart(function: Callable[..., Returned], *arguments: Any) -> Returned:
    """``function(*arguments)``, which leaves Python for long, in a thread of its own, so that this one hears that it is to end.

    The call is given up then, and its thread left to itself. Where this thread has heard nobody yet, the call is made here.

    Raises ``CutShort`` where it was given up.
    """
    wishes = present_wishes()
    if not wishes or wishes[-1].owner != get_ident():
        return function(*arguments)
    double = jnp.result_type(float) == jnp.float64  # a setting of the thread
    answer = Future[Returned]()

    def call() -> None:
        try:
            with computing(double=double), working_under(wishes):
                answer.set_result(function(*arguments))
        except BaseException as error:  # it is raised in the thread that waits
            answer.set_exception(error)

    thread = Thread(target=call, daemon=True, name="hierfl: a call apart")
    thread.start()
    try:
        while not wait([answer], LOOK).done:
            if wishes[-1].overdue:
                raise CutShort
    except BaseException:
        _GIVEN_UP.append(thread)
        raise
    return answer.result()


@atexit.register
def _await_those_given_up() -> None:
    """Threads that come back from XLA when Python has ended would end the process by an error."""
    until = monotonic() + AT_EXIT
    for thread in _GIVEN_UP:
        thread.join(max(0.0, until - monotonic()))


REASONS = {
    # neither CVXPY nor users' functions are to be called by two threads at once
    "pure_callback": "the problem calls Python functions",
    # XLA's kernels for batches of these wait for threads of one pool: two programs that do can wait for each other for ever
    **dict.fromkeys(("cholesky", "lu", "triangular_solve"), "the problem factorises matrices, which XLA does in threads"),
}


def why_alone(program: Jaxpr | ClosedJaxpr) -> str | None:
    """The reason why a traced program has to run alone; None where it need not."""
    for equation in program.eqns:
        within = map(why_alone, jaxprs_in_params(equation.params))
        if reason := REASONS.get(equation.primitive.name) or next(filter(None, within), None):
            return reason
    return None

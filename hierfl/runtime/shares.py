"""Several runs shared out over the cores of a CPU: a thread for each core, which leaves Python while its program runs.

What happens between blocks of rounds (metrics, limits, the progress bar) and whatever traces or compiles is done by one thread
at a time, so that users' functions need not be safe in threads, and threads with as many runs share one compiled program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from threading import Event, Lock
from typing import Any, NamedTuple

import numpy as np

from hierfl.jaxtools.thread_pool import on_cores
from hierfl.runtime.contract import Ending

Turn = AbstractContextManager[Any]
ALONE: Turn = nullcontext()


class Share(NamedTuple):
    """One of so many shares, and the turn in which it does what one thread does at a time."""

    shares: int
    turn: Turn


def in_shares(
    count: int,
    cores: int,
    at_ends: Sequence[Callable[..., Ending | None]],
    run: Callable[[np.ndarray, list[Any], Share], list[Any]],
) -> list[Any]:
    """Do ``run(places, their at_ends, share)`` for shares of ``range(count)``, one for each core; the outcomes in order.

    An error (or Ctrl-C) in one share ends the others after their block, and is raised.
    """
    shares = [places for places in np.array_split(np.arange(count), cores) if places.size]
    if len(shares) == 1:
        return run(shares[0], list(at_ends), Share(1, ALONE))
    turn, stopped = Lock(), Event()

    def taking_turns(at_end: Callable[..., Ending | None]) -> Callable[..., Ending | None]:
        def ended(done: int, *rest: Any) -> Ending | None:
            with turn:
                return Ending(done) if stopped.is_set() else at_end(done, *rest)

        return ended

    def one(places: np.ndarray) -> list[Any]:
        return run(places, [taking_turns(at_ends[place]) for place in places], Share(len(shares), turn))

    return list(chain.from_iterable(on_cores(len(shares), one, shares, stopped=stopped)))

"""Several runs shared out over the cores of a CPU: a thread for each core, which leaves Python while its program runs.

What happens between blocks of rounds (metrics, limits, the progress bar) and whatever traces or compiles is done by one thread
at a time, so that users' functions need not be safe in threads, and threads with as many runs share one compiled program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import chain
from threading import Event, Lock
from typing import Any

import numpy as np

from hierfl.compiler.cores import on_cores
from hierfl.runtime.contract import Ending

Turn = AbstractContextManager[Any]
ALONE: Turn = nullcontext()


def in_shares(
    count: int,
    cores: int,
    at_ends: Sequence[Callable[..., Ending | None]],
    run: Callable[[np.ndarray, list[Any], Turn], list[Any]],
) -> list[Any]:
    """``run(share, its at_ends, turn)`` for shares of ``range(count)``, one for each core; the outcomes in order.

    An error (or Ctrl-C) in one share ends the others after their block, and is raised.
    """
    shares = [share for share in np.array_split(np.arange(count), cores) if share.size]
    if len(shares) == 1:
        return run(shares[0], list(at_ends), ALONE)
    turn, stopped = Lock(), Event()

    def taking_turns(at_end: Callable[..., Ending | None]) -> Callable[..., Ending | None]:
        def ended(done: int, *rest: Any) -> Ending | None:
            with turn:
                return Ending(done) if stopped.is_set() else at_end(done, *rest)

        return ended

    def one(share: np.ndarray) -> list[Any]:
        return run(share, [taking_turns(at_ends[place]) for place in share], turn)

    return list(chain.from_iterable(on_cores(len(shares), one, shares, stopped=stopped)))

"""The clients' processes and the pipes to them: calls go to some clients all at once, and their answers come back in order."""

from __future__ import annotations

import multiprocessing
import threading
import time
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

from hierfl.jaxtools.interruption import CutShort, overdue, unbroken
from hierfl.runtime.processes.client_process import serve
from hierfl.runtime.sites.step_names import as_numpy

PATIENCE = 120.0  # seconds that a client may take to answer
LOOK = 0.1  # seconds between looks whether answers are still wanted


class ProcessPool:
    """The processes of so many clients, which serve one run after another; a context."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._turn = threading.Lock()  # questions from compiled code come on threads of their own
        self._pipes: list[Connection] = []
        self._owed = [0] * size  # answers that nobody waited for
        self._processes: list[SpawnProcess] = []
        for place in range(size):
            here, there = context.Pipe()
            process = context.Process(target=serve, args=(there, place), daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    @property
    def size(self) -> int:
        """How many clients there are."""
        return len(self._processes)

    def __enter__(self) -> ProcessPool:
        return self

    def __exit__(self, *_: object) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(5)
            process.terminate()

    def ask(self, method: str, arguments: dict[int, tuple[Any, ...]]) -> list[Any]:
        """Call a method of ``ClientProcess`` at some clients, all at once, and collect the answers in the same order.

        Raises
        ------
        RuntimeError
            With the traceback of a client that failed; all answers have then been collected.
        TimeoutError
            If a client has not answered in ``PATIENCE`` seconds.
        CutShort
            If what asks is to end; the answers are dropped when they come.
        """
        sent = {place: as_numpy(given) for place, given in arguments.items()}
        with self._turn, unbroken():
            for place, given in sent.items():
                while self._owed[place]:
                    self._receive(place)
                self._pipes[place].send((method, given))
                self._owed[place] += 1
            answers = [self._receive(place) for place in sent]
        for place, (_, error) in zip(sent, answers):
            if error is not None:
                raise RuntimeError(f"client {place} failed in {method!r}:\n{error}")
        return [answer for answer, _ in answers]

    def _receive(self, place: int) -> tuple[Any, str | None]:
        """A client's value and error, one of them None."""
        until = time.monotonic() + PATIENCE
        while not self._pipes[place].poll(LOOK):
            if overdue():
                raise CutShort
            if time.monotonic() >= until:
                raise TimeoutError(f"client {place} has not answered for {PATIENCE:g} seconds.")
        answer: tuple[Any, str | None] = self._pipes[place].recv()
        self._owed[place] -= 1
        return answer

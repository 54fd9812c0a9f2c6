"""The clients' processes and the pipes to them: calls go to some clients all at once, and their answers come back in order.

A client's process holds the data and the memory, and runs the algorithm's steps by name.
"""

from __future__ import annotations

import importlib
import multiprocessing
import signal
import threading
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from operator import attrgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.jaxtools.interruption import CutShort, overdue, unbroken
from hierfl.jaxtools.precision import computing
from hierfl.runtime.contract import Algorithm, Message, Received
from hierfl.runtime.sites.parcels import as_numpy


def declared(address: str, case: str, holder: int, rounds: int) -> tuple[CompiledProblem, Algorithm]:
    """The problem and the bound algorithm that ``module:function`` declares, as one holder of data knows them.

    The function is called with the case and the holder, and returns a problem and a solver.
    """
    module, function = address.split(":")
    problem, solver = getattr(importlib.import_module(module), function)(case, holder)
    compiled = problem.compile()
    return compiled, solver.bind(compiled, rounds)


class ClientProcess:
    """What the server may call in a client's process: ``declare``, then ``map`` and ``query`` in any order; ``remembered``, to go on later.

    Parameters
    ----------
    place
        The client's index in the federation.
    """

    def __init__(self, place: int) -> None:
        self.place = place

    def declare(self, address: str, case: str, rounds: int, x0: np.ndarray) -> None:
        """Begin a run: forget the last one."""
        problem, self.algorithm = declared(address, case, self.place, rounds)
        federation = problem.declaration.federation
        assert federation is not None
        self.data = problem.population_of({self.place: federation.clients[self.place]})
        self.memory = self.algorithm.memory(jnp.asarray(x0))
        self.programs: dict[str, Callable[..., Any]] = {}

    def map(self, name: str, broadcast: Any, own: Any, round_index: np.ndarray, key: np.ndarray) -> Message:
        """Run a step; the memory stays."""
        received, seed = Received(broadcast, own, jnp.asarray(round_index)), jax.random.wrap_key_data(jnp.asarray(key))
        self.memory, message = self._program(name)(self.data, self.memory, received, seed)
        return message

    def remembered(self) -> Any:
        """What the client remembers."""
        return self.memory

    def remember(self, leaves: list[np.ndarray]) -> None:
        """Remember what was remembered before; after ``declare``."""
        self.memory = jax.tree.unflatten(jax.tree.structure(self.memory), [jnp.asarray(leaf) for leaf in leaves])

    def query(self, name: str, broadcast: Any) -> Any:
        """Answer a question of the server, with this client's own data."""
        return self._program(name)(self.data, broadcast)

    def _program(self, name: str) -> Callable[..., Any]:
        """The step of a name, compiled once in a run."""
        if name not in self.programs:
            step = attrgetter(name)(self.algorithm)
            self.programs[name] = jax.jit(lambda data, *given: step(data.party(0), *given))
        return self.programs[name]


def serve(connection: Connection, place: int) -> None:
    """Answer calls of a ``ClientProcess``'s methods until the server's end of the pipe is closed.

    A call is a method's name and its arguments; an answer is a value and None, or None and a traceback.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which then wants answers still
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_disable_most_optimizations", True)  # programs that run for a moment need not be good ones
    client = ClientProcess(place)
    with computing(double=True):
        while True:
            try:
                method, arguments = connection.recv()
            except EOFError:
                return
            try:
                answer, error = as_numpy(getattr(client, method)(*arguments)), None
            except Exception:  # whatever it is, the server must hear of it
                answer, error = None, traceback.format_exc()
            connection.send((answer, error))


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

        Raises ``RuntimeError``: with the traceback of a client that failed; all answers have then been collected.
        Raises ``TimeoutError`` if a client has not answered in ``PATIENCE`` seconds. Raises ``CutShort`` if what asks
        is to end; the answers are dropped when they come.
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

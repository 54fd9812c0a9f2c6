"""The life of a client's process: it holds the data and the memory, and runs the algorithm's steps by name."""

from __future__ import annotations

import importlib
import signal
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from operator import attrgetter
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.jaxtools.precision import computing
from hierfl.runtime.contract import Algorithm, Message, Received
from hierfl.runtime.sites.step_names import as_numpy


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

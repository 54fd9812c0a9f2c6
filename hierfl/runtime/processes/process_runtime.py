"""The runtime: sites of one client each, and the pipes to their processes. Calls go to all at once, and answers come back in order."""

from __future__ import annotations

import importlib
import multiprocessing
import signal
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Any

import jax

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.jaxtools.interruption import CutShort, overdue, unbroken
from hierfl.jaxtools.precision import computing
from hierfl.near_names import suggests_names
from hierfl.runtime.site_runtime import SiteRuntime
from hierfl.runtime.sites.owner.site_rules import SiteRules
from hierfl.runtime.sites.parcels import Lost
from hierfl.runtime.sites.site import Site


def declared(address: str, case: str, holder: int) -> tuple[Any, Any]:
    """The problem and the solver that ``module:function`` declares, called with the case and a holder of data, as that one knows them."""
    module, function = address.split(":")
    problem, solver = getattr(importlib.import_module(module), function)(case, holder)
    return problem, solver


class ClientProcess:
    """What the server may call in a client's process: ``declare``, then ``answer``.

    Parameters
    ----------
    place
        The client's index in the federation.
    """

    def __init__(self, place: int) -> None:
        self.place = place
        self.site: Site | None = None

    def declare(self, address: str, case: str) -> None:
        """Become the site of this client in a problem, which runs are then made of."""
        compiled = declared(address, case, self.place)[0].compile()
        federation = compiled.declaration.federation
        assert federation is not None
        held, programs = {self.place: federation.clients[self.place]}, compiled.programs.keep("as a site", dict)
        name, rules = f"client {self.place}", SiteRules(shared_seeds=True)
        self.site = Site(name, compiled.declaration, held, rules, compiled, programs, memories="handed back")

    def answer(self, parcel: bytes) -> bytes:
        """Answer a message of a run."""
        assert self.site is not None, "a problem is declared first"
        return self.site.answer(parcel)


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
                answer, error = getattr(client, method)(*arguments), None
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
        with self._turn, unbroken():
            for place, given in arguments.items():
                while self._owed[place]:
                    self._receive(place)
                self._pipes[place].send((method, given))
                self._owed[place] += 1
            answers = [self._receive(place) for place in arguments]
        for place, (_, error) in zip(arguments, answers):
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


EVERYBODY = 2**31 - 1


@suggests_names
@dataclass(frozen=True)
class Processes(SiteRuntime):
    """The runtime for the problem and the solver that ``address`` (``module:function``) declares as ``case``.

    Parameters
    ----------
    pool
        A process for every client.
    address, case
        What each process declares for itself: see :func:`hierfl.runtime.processes.process_runtime.declared`.

    Examples
    --------
    >>> from hierfl.runtime.processes.process_runtime import ProcessPool, Processes  # doctest: +SKIP
    >>> with ProcessPool(3) as pool:  # doctest: +SKIP
    ...     result = problem.solve(solver, runtime=Processes(pool, "study:declared", "first"), rounds=20)
    """

    pool: ProcessPool
    address: str
    case: str
    minimum: int = field(default=EVERYBODY, kw_only=True)
    shared_seeds: bool = field(default=True, kw_only=True)

    def _links(self, problem: CompiledProblem) -> Any:
        self.pool.ask("declare", dict.fromkeys(range(problem.num_clients), (self.address, self.case)))
        return PipeLinks(self.pool)


class PipeLinks:
    """The ways to the clients' processes; none of them comes later or leaves."""

    def __init__(self, pool: ProcessPool) -> None:
        self.pool = pool

    def ready(self) -> frozenset[str]:
        """All of them."""
        return frozenset(self.held())

    def held(self) -> dict[str, tuple[int, ...]]:
        """Each its own client's data."""
        return {str(place): (place,) for place in range(self.pool.size)}

    def born(self, site: str) -> int:
        """There is one process for each."""
        return 1

    def exchange(self, parcels: Mapping[str, bytes], timeout: float) -> dict[str, bytes | Lost]:
        """Ask them all at once."""
        try:
            return dict(zip(parcels, self.pool.ask("answer", {int(site): (sent,) for site, sent in parcels.items()})))
        except CutShort:
            return dict.fromkeys(parcels, Lost("no answer before the run had to end"))

"""Sites that are simulated on this machine: processes that are handed their data, and reached by pipes of their own, so that no port is open.

What they are handed is pickled: their code and their data are this side's. Each imports the user's script again, and must not run it.
"""

from __future__ import annotations

import multiprocessing
import pickle
import signal
import socket
import time
from collections.abc import Mapping
from multiprocessing.process import BaseProcess
from typing import NamedTuple

import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import SiteError
from hierfl.runtime.on_dask.lines import (
    ASKED,
    HANDED,
    HEADER,
    HELLO,
    LOOK,
    LineLinks,
    SiteLine,
    framed,
    heard,
    length_of,
)
from hierfl.runtime.sites.letters import packed, reply_of
from hierfl.runtime.sites.owner.site_rules import SiteRules
from hierfl.runtime.sites.parcels import Lost, Refusal, unpickled_solver, without_data
from hierfl.runtime.sites.site import Site

JOINING = 120.0  # seconds for the processes to be there, on a busy machine
ENDING = 5.0  # seconds for them to end


class HandedPart(NamedTuple):
    """What a site is handed: its clients, and with their data the declaration, pickled."""

    clients: tuple[int, ...]
    content: bytes


def parts_of(problem: CompiledProblem, sites: int) -> dict[str, HandedPart]:
    """What each site is handed: the declaration without data, and its own clients' data."""
    bare, federation = without_data(problem.declaration), problem.declaration.federation
    if federation is None:
        raise SiteError("the problem has no federation: there is nobody to be at a site.")
    shares = np.array_split(np.arange(problem.num_clients), min(sites, problem.num_clients))
    parts = {}
    for name, share in enumerate(shares):
        held = {int(place): federation.clients[place] for place in share}
        parts[str(name)] = HandedPart(tuple(held), pickle.dumps((f"site {name}", bare, held)))
    return parts


def serve_pipe(connection: socket.socket) -> None:
    """Be a simulated site until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which then wants answers still
    site: Site | None = None
    while (question := _next(connection)) is not None:
        kind, content = question[:1], question[1:]
        try:
            if kind == HANDED:
                name, declaration, held = pickle.loads(content)
                given = name, declaration, held, SiteRules(shared_seeds=True)
                site, answer = Site(*given, memories="handed back", read_solver=unpickled_solver), HANDED
            elif kind == ASKED and site is not None:
                answer = site.answer(content)
            else:
                answer = HELLO
        except Exception as error:  # whatever it is, the server must hear of it
            answer = packed(Refusal(f"{type(error).__name__}: {error}", failed=True))
        connection.sendall(framed(answer))


def _next(connection: socket.socket) -> bytes | None:
    """The next frame's content; None where the other end is closed."""
    try:
        header = connection.recv(HEADER.size, socket.MSG_WAITALL)
        if len(header) < HEADER.size:
            return None
        content = bytearray(length_of(header))
        view = memoryview(content)
        while view:
            count = connection.recv_into(view)
            if not count:
                return None
            view = view[count:]
    except ConnectionError:
        return None
    return bytes(content)


class LocalSites(LineLinks):
    """The processes and the links to them, kept from problem to problem until they are closed; one that has died is started again."""

    def __init__(self) -> None:
        super().__init__()
        self.processes: dict[str, BaseProcess] = {}
        self._parts: Mapping[str, HandedPart] = {}
        self._coming: dict[str, SiteLine] = {}  # those that are not there yet, or have still to take their part
        self._spare: dict[str, SiteLine] = {}  # those that hold another problem's

    def hand(self, parts: Mapping[str, HandedPart]) -> None:
        """Have the data of another problem held."""
        self._parts = parts
        self._spare |= self.lines
        self.lines = {}
        self._held = {site: part.clients for site, part in parts.items()}
        self.look()

    def look(self) -> None:
        """Wait until all are there.

        Raises ``SiteError`` if one cannot begin.
        """
        super().look()
        until = time.monotonic() + JOINING
        while self._begin() or self._coming:
            for site, reply in heard(self._coming, LOOK).items():
                if not self._met(site, reply):
                    said = reply_of(reply, None).reason if isinstance(reply, bytes) else "its output says why"
                    raise SiteError(f"the process of site {site} on this machine ended before it had begun: {said}")
            if time.monotonic() > until:
                raise SiteError(f"the sites' processes on this machine have not begun within {JOINING:g} s.")

    def ready(self) -> frozenset[str]:
        """Those that are there, and owe no answer."""
        if self._begin() or self._coming:
            for site, reply in heard(self._coming, 0.0).items():
                self._met(site, reply)
        return super().ready()

    def close(self) -> None:
        for line in (*self._coming.values(), *self._spare.values()):
            line.close()
        super().close()
        for process in self.processes.values():
            process.join(ENDING)
            process.kill()
            process.join()

    def _begin(self) -> bool:
        """Greet whoever has still to take its part, in a new process if need be; whether there is anybody."""
        missing = self._parts.keys() - self.lines.keys() - self._coming.keys()
        for site in missing:
            line = self._spare.pop(site, None)
            if line is None or line.waits or not self.processes[site].is_alive():
                line = self._started(site)
            line.send(HELLO, LOOK)
            self._coming[site] = line
        return bool(missing)

    def _started(self, site: str) -> SiteLine:
        if site in self.processes:
            self.processes[site].kill()
            self.processes[site].join()
        here, there = socket.socketpair()
        with there:
            process = multiprocessing.get_context("spawn").Process(target=serve_pipe, args=(there,), daemon=True)
            process.start()
        self.processes[site] = process
        return SiteLine(here)

    def _met(self, site: str, reply: bytes | Lost) -> bool:
        """Hand a site its part, or take it in that has it; whether it goes on."""
        line = self._coming[site]
        if reply == HELLO:
            line.send(HANDED + self._parts[site].content, JOINING)
            return True
        del self._coming[site]
        if reply != HANDED:
            line.close()
            return False
        self.lines[site] = line
        self._births[site] = self.born(site) + 1
        return True

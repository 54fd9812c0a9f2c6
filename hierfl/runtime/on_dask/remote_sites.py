"""The links to sites that have joined a scheduler: it names them and their addresses, and messages go to each straight, by a connection of its own.

A site that has left is noticed at once where its process has ended, and one that came within a second or two. A site whose certificate says
another name than that under which it has joined is none.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, NamedTuple
from uuid import uuid4

from hierfl.errors import SiteError
from hierfl.runtime.on_dask.lines import HELLO, LineLinks, SiteLine, heard
from hierfl.runtime.on_dask.site_process import last_cause, place_of, site_role, unlike
from hierfl.runtime.sites.letters import Introduction, Letter, message_of

JOINING = 60.0  # seconds to reach the scheduler
CONNECTING = 10.0  # seconds to reach a site
LOOK = 1.0  # seconds between looks whether sites came
AGAIN = 5.0  # seconds until a site that could not be asked is tried again
PROCESS = 32  # bytes by which a process of a site is known


class Met(NamedTuple):
    """A site that was reached: the line to it, its process, and whose data it holds."""

    line: SiteLine
    process: bytes
    clients: tuple[int, ...]


class RemoteSites(LineLinks):
    """The links to the sites of a scheduler, by a ``distributed.Security`` with the server's certificate, or in the clear."""

    def __init__(self, scheduler: str, security: Any) -> None:
        from distributed import Security

        super().__init__()
        self.scheduler, self._security = scheduler, (security or Security()).get_connection_args("client")
        self._mark = uuid4().bytes  # by which sites know this server again
        self._threads = ThreadPoolExecutor(8, thread_name_prefix="hierfl sites")
        self._listing: Future[dict[str, str]] | None = None
        self._coming: dict[str, Future[Met]] = {}
        self._addresses: dict[str, str] = {}
        self._processes: dict[str, bytes] = {}
        self._tried: dict[tuple[str, str], float] = {}
        self._looked = -LOOK

    def look(self) -> None:
        """Ask the scheduler, and wait for those whom it names.

        Raises ``SiteError`` if it cannot be asked.
        """
        super().look()
        self._listing = self._listing or self._threads.submit(self._listed, JOINING)
        try:
            self._listing.result()
        except (OSError, ValueError, TypeError, LookupError, RuntimeError) as error:
            self._listing = None
            raise SiteError(f"cannot reach the scheduler {self.scheduler}: {last_cause(error)}") from error
        self._take_in()
        wait(self._coming.values())
        self._take_in()

    def ready(self) -> frozenset[str]:
        self._take_in()
        if self._listing is None and time.monotonic() - self._looked >= LOOK:
            self._listing = self._threads.submit(self._listed, 0.0)
        return super().ready()

    def close(self) -> None:
        super().close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _listed(self, timeout: float) -> dict[str, str]:
        from hierfl.runtime.on_dask.dask_servers import workers_of

        return workers_of(self.scheduler, self._security, timeout)

    def _take_in(self) -> None:
        """What the scheduler has said, and whoever was reached."""
        if self._listing is not None and self._listing.done():
            listing, self._listing, self._looked = self._listing, None, time.monotonic()
            if listing.exception() is None:
                self._call(listing.result())
        for site, future in list(self._coming.items()):
            if future.done():
                del self._coming[site]
                if future.exception() is not None:
                    self.refusals[site] = str(future.exception())
                    continue
                met = future.result()
                self.refusals.pop(site, None)
                if self._processes.get(site) != met.process:
                    self._births[site] = self.born(site) + 1
                self.lines[site], self._held[site], self._processes[site] = met.line, met.clients, met.process

    def _call(self, there: Mapping[str, str]) -> None:
        """Connect to those that are new, and let go of those that have left."""
        self._forget(site for site in self.lines if there.get(site) != self._addresses[site])
        for site in self.refusals.keys() - there.keys():
            del self.refusals[site]
        for site, address in there.items():
            tried = self._tried.get((site, address), -AGAIN)
            if (
                site in self.lines
                or site in self._coming
                or (site in self.refusals and time.monotonic() - tried < AGAIN)
            ):
                continue
            self._addresses[site], self._tried[site, address] = address, time.monotonic()
            self._coming[site] = self._threads.submit(self._met, site, address)

    def _met(self, site: str, address: str) -> Met:
        """Connect to a site, and hear who it is.

        Raises ``SiteError`` if that cannot be.
        """
        try:
            connection = socket.create_connection(place_of(address), CONNECTING)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context = self._security["ssl_context"]
            if context is not None:
                connection = context.wrap_socket(connection)
                if (wrong := unlike(connection.getpeercert(), site_role(site))) is not None:
                    connection.close()
                    raise SiteError(wrong)
            line = SiteLine(connection)
            line.send(HELLO + self._mark, CONNECTING)
            answer = heard({site: line}, CONNECTING).get(site)
            if not isinstance(answer, bytes):
                line.close()
                raise SiteError(f"at {address} it ended the connection, or says nothing: its log says why")
            who = message_of(Letter.from_bytes(answer[PROCESS:]), Introduction)
        except OSError as error:
            raise SiteError(f"cannot be reached at {address}: {last_cause(error)}") from error
        return Met(line, answer[:PROCESS], who.clients)

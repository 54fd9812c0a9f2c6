"""A site on a Dask cluster: a worker that joins the scheduler as others do, and does nothing but answer hierfl's messages.

Of Dask's there are left the registration and the heartbeats. Whoever asks connects to the worker itself, whose door knows frames of bytes:
letters, by which nothing is run. Tasks, actors, functions, plugins and files are none of its words.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

from distributed import Worker
from distributed.comm.addressing import unparse_host_port
from distributed.core import Status

from hierfl.runtime.on_dask.lines import ASKED, HEADER, HELLO, framed, length_of
from hierfl.runtime.on_dask.roles import SERVER, name_of, unlike
from hierfl.runtime.on_dask.stripped import Stripped
from hierfl.runtime.sites.letters import Introduction, packed
from hierfl.runtime.sites.site import Site

LOG = logging.getLogger("hierfl.site")
HANDSHAKE = 10.0  # seconds
ARRIVING = 300.0  # seconds that a frame may take to arrive, once it has begun
MOST = 32  # connections at once
ARRIVING_AT_ONCE = 2 << 30  # bytes of all frames that have begun to arrive
LONGEST = 64  # bytes by which a server calls itself


class Door:
    """Where a site listens, as Dask asks of listeners.

    Parameters
    ----------
    site
        Answers letters.
    security
        The context of ``ssl`` that asks for certificates; None in the clear.
    """

    def __init__(self, site: Site, security: ssl.SSLContext | None) -> None:
        self.site, self.security, self.prefix = site, security, "tcp://" if security is None else "tls://"
        self._thread = ThreadPoolExecutor(1)  # answers one after another, while heartbeats go on
        introduction = Introduction(site.name, tuple(site.held))
        self._hello = uuid4().hex.encode() + packed(introduction)  # the process, and who it is
        self._guests: set[asyncio.StreamWriter] = set()
        self._arriving = 0  # bytes
        self._server: asyncio.Server | None = None

    async def open(self, host: str, port: int) -> None:
        """Listen. Raises ``OSError`` where that cannot be."""
        timed: dict[str, Any] = {} if self.security is None else {"ssl_handshake_timeout": HANDSHAKE}
        self._server = await asyncio.start_server(self._met, host, port, ssl=self.security, limit=1 << 20, **timed)
        self.contact_address = self.listen_address = (
            f"{self.prefix}{unparse_host_port(*self._server.sockets[0].getsockname()[:2])}"
        )

    def stop(self) -> None:
        """Listen no more, and end what is open."""
        if self._server is not None:
            self._server.close()
        for guest in self._guests:
            guest.close()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _met(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one guest until it leaves, or says what is no question."""
        who = f"{self.site.name}: whoever called from {writer.get_extra_info('peername')}"
        self._guests.add(writer)
        try:
            certificate = writer.get_extra_info("peercert")
            wrong = None if self.security is None else unlike(certificate, SERVER)
            if wrong is not None or len(self._guests) > MOST:
                raise ConnectionRefusedError(wrong or f"there are {MOST} already")
            server = ""
            while header := await _header(reader):
                question = await self._question(reader, length_of(header))
                kind, content = question[:1], question[1:]
                if kind == HELLO and 0 < len(content) <= LONGEST:
                    server, answer = content.hex(), self._hello
                elif kind == ASKED and server:
                    loop = asyncio.get_running_loop()
                    answer = await loop.run_in_executor(self._thread, self._answer, content, server, name_of(certificate))
                else:
                    raise ConnectionError("no question of hierfl's")
                writer.write(framed(answer))
                await writer.drain()
        except (OSError, EOFError) as error:
            LOG.warning("%s was left: %s: %s", who, type(error).__name__, error)
        except Exception:
            LOG.exception("%s was left", who)
        finally:
            self._guests.discard(writer)
            writer.close()

    async def _question(self, reader: asyncio.StreamReader, length: int) -> bytes:
        """A frame's content, if there is room and it comes in time."""
        if self._arriving + length > ARRIVING_AT_ONCE:
            raise ConnectionRefusedError("too much arrives already")
        self._arriving += length
        try:
            async with asyncio.timeout(ARRIVING):
                return await reader.readexactly(length)
        finally:
            self._arriving -= length

    def _answer(self, content: bytes, server: str, name: str | None) -> bytes:
        """Answer a server whose certificate has a name."""
        self.site.callers = {} if name is None else {server: name}
        return self.site.answer(content, server)


async def _header(reader: asyncio.StreamReader) -> bytes:
    """The header of the next frame; nothing where the guest has left."""
    try:
        return await reader.readexactly(HEADER.size)
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise
        return b""


class SiteWorker(Stripped, Worker):
    """The worker.

    Parameters
    ----------
    site
        Answers letters.
    host, port
        Where it listens.
    settings
        As :class:`distributed.Worker` takes them.
    """

    def __init__(self, site: Site, scheduler: str, host: str, port: int, **settings: Any) -> None:
        self._site, self._place = site, (host, port)
        bare: dict[str, Any] = {
            "metrics": {},
            "startup_information": {},
            "extensions": {},
            "preload": [],
            "services": {},
        }
        super().__init__(scheduler, name=site.name, nthreads=1, host=host, memory_limit=0, **bare, **settings)
        self.strip({}, {"close": self._leave})

    async def listen(self, port_or_addr: Any = None, allow_offload: bool = True, **settings: Any) -> None:
        """Open the door for hierfl's messages, and none of Dask's."""
        door = Door(self._site, settings.get("ssl_context"))
        await door.open(*self._place)
        self.listeners.append(door)

    async def plugin_add(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Take no code; Dask's own, for tables, comes with every registration."""
        return {}

    def _send_worker_status_change(self, stimulus_id: str) -> None:
        """Never tell the scheduler that tasks are welcome."""
        if self._status != Status.running:
            super()._send_worker_status_change(stimulus_id)

    async def _leave(self, **_: Any) -> None:
        await self.close(reason="the scheduler has ended it")

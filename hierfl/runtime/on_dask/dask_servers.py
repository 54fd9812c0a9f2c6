"""Of Dask's servers, a worker and a scheduler, what is left here: a site that answers hierfl's messages alone, and a scheduler that lists sites.

All of their words but a few are taken away, pages, and code that comes from others; connections to a scheduler are read as plain words and
numbers: what is pickled, or else would have to be built, arrives as None, where Dask's own read pickles of whoever is at the other end.

``hierfl scheduler`` is a list of sites, and does nothing else for anybody: sites register, each under the name that its certificate says, and
tell that they live; the server asks who is there. Clients, tasks and functions are none of its words, so that a site cannot run code there, nor
end another's registration. A site is a worker that joins as others do. Whoever asks connects to the worker itself, whose door knows frames of
bytes: letters, by which nothing is run.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import struct
import sys
import tempfile
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from uuid import uuid4

import msgpack
from distributed import Scheduler, Security, Worker
from distributed.comm import registry, tcp
from distributed.comm.addressing import parse_address, unparse_host_port
from distributed.comm.core import Comm, CommClosedError, FatalCommClosedError
from distributed.core import Status
from distributed.protocol.utils import unpack_frames
from tornado.iostream import StreamClosedError

from hierfl.runtime.on_dask.lines import ASKED, HEADER, HELLO, framed, length_of
from hierfl.runtime.on_dask.site_process import SCHEDULER, SERVER, name_of, site_role, unlike
from hierfl.runtime.sites.letters import Introduction, packed
from hierfl.runtime.sites.site import Site

LOG = logging.getLogger("hierfl.site")


class Unheard(dict[str, Any]):
    """The handlers of what comes in a stream: there is one for what is here, and all else is left undone."""

    def __missing__(self, word: str) -> Any:
        LOG.warning("a cluster's message %.40r, which is not heard here", word)
        return lambda **_: None


class Stripped:
    """Beside a server of Dask's, before it among the bases."""

    local_directory: str
    handlers: dict[str, Any]
    stream_handlers: dict[str, Any]

    def strip(self, words: Mapping[str, Any], stream: Mapping[str, Any]) -> None:
        """Leave these words alone, those of new connections and those in streams; nor are modules looked for where Dask puts others' files."""
        self.handlers, self.stream_handlers = dict(words), Unheard(stream)
        if self.local_directory in sys.path:
            sys.path.remove(self.local_directory)

    def start_http_server(self, *_: Any, **__: Any) -> None:
        """Open no port for pages."""


LARGEST = 1 << 26  # bytes of a message
AGAIN = 0.2  # seconds until a connection is tried again
ANSWERING = 10.0  # seconds that a scheduler may take to answer
LENGTH = struct.Struct("Q")  # as Dask writes it


def words_of(frames: Any) -> Any:
    """What the first frame says; the others hold what would have to be built."""
    return msgpack.loads(frames[0], object_hook=_plain, use_list=False, strict_map_key=False)


def _plain(entries: dict[Any, Any]) -> Any:
    return None if {"__Serialized__", "__Pickled__", "__Enum__"} & entries.keys() else entries


class PlainTCP(tcp.TCP):
    """A connection in the clear."""

    async def read(self, deserializers: Any = None) -> Any:
        """The next message. Raises ``CommClosedError`` where none can come any more, or it is too large, or none of Dask's."""
        if self.stream is None:
            raise CommClosedError
        try:
            (size,) = LENGTH.unpack(await self.stream.read_bytes(LENGTH.size))
            if size > LARGEST:
                raise ValueError(f"{size} bytes")
            return words_of(unpack_frames(await self.stream.read_bytes(size)))
        except (StreamClosedError, ssl.SSLError) as error:
            self.abort()
            tcp.convert_stream_closed_error(self, error)
        except (ValueError, struct.error, msgpack.UnpackException, RecursionError) as error:
            self.abort()
            raise CommClosedError(f"what came is no message of a scheduler's: {type(error).__name__}") from error
        except BaseException:
            self.abort()
            raise


class PlainTLS(PlainTCP, tcp.TLS):
    """One with certificates on both sides."""


class TLSConnector(tcp.TLSConnector):
    """Connects to a scheduler, or to the server where that is one, and to nobody else who has a certificate."""

    async def connect(self, address: str, deserialize: bool = True, **connection_args: Any) -> Comm:
        """The connection. Raises ``FatalCommClosedError`` where the other side's certificate has another role."""
        comm: Comm = await super().connect(address, deserialize, **connection_args)
        wrong = unlike(comm.extra_info.get("peercert"), SCHEDULER, SERVER)
        if wrong is not None:
            comm.abort()
            raise FatalCommClosedError(f"the scheduler is none: {wrong}")
        return comm


def _of_plain(backend: type, comm: type, connector: type) -> registry.Backend:
    """A backend of Dask's that connects and listens by connections of this class."""
    kinds = {"_connector_class": connector, "_listener_class": backend._listener_class}  # type: ignore[attr-defined]
    own = {name: type(f"Plain{kind.__name__}", (kind,), {"comm_class": comm}) for name, kind in kinds.items()}
    return type(f"Plain{backend.__name__}", (backend,), own)()


BACKENDS = {
    "tcp": _of_plain(tcp.TCPBackend, PlainTCP, tcp.TCPConnector),
    "tls": _of_plain(tcp.TLSBackend, PlainTLS, TLSConnector),
}


def read_plainly() -> None:
    """Have all of this process's connections of Dask's read so, and no others made: for a process that is a site or a scheduler, and nothing else."""
    registry.backends.clear()
    registry.backends.update(BACKENDS)


async def connected(address: str, connection_args: dict[str, Any], timeout: float) -> Comm:
    """A connection to a scheduler, greeted; it is tried again until the time (seconds) is over. Raises ``OSError``."""
    scheme, place = parse_address(address)
    until = time.monotonic() + timeout
    while True:
        try:
            async with asyncio.timeout(max(until - time.monotonic(), AGAIN)):
                comm: Comm = await BACKENDS[scheme].get_connector().connect(place, deserialize=False, **connection_args)
                ours = comm.handshake_info()
                await comm.write(ours)
                comm.handshake_options = comm.handshake_configuration(ours, await comm.read())
                return comm
        except TimeoutError:
            raise TimeoutError(f"no scheduler answered there within {timeout:g} s") from None
        except OSError as error:
            if isinstance(error, FatalCommClosedError) or time.monotonic() > until:
                raise
            await asyncio.sleep(AGAIN)


def workers_of(address: str, connection_args: dict[str, Any], timeout: float) -> dict[str, str]:
    """The addresses of a scheduler's workers, by their names. Raises ``OSError``, ``TimeoutError`` among them."""

    async def asked() -> Any:
        comm = await connected(address, connection_args, timeout)
        try:
            await comm.write({"op": "identity", "n_workers": -1, "reply": True, "close": True})
            return await comm.read()
        finally:
            comm.abort()

    told = asyncio.run(asyncio.wait_for(asked(), timeout + ANSWERING))
    workers = told.get("workers") if isinstance(told, dict) else None
    if not isinstance(workers, dict):
        raise CommClosedError("the scheduler tells of no workers")
    return {str(worker["name"]): str(where) for where, worker in workers.items() if isinstance(worker, dict)}


USUAL = ("keep-alive", "worker-status-change", "log-event")  # what workers send, and nothing has to be done about


class ClosedScheduler(Stripped, Scheduler):
    """The scheduler; its settings are those of :class:`distributed.Scheduler`."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(extensions={}, plugins=(), dashboard=False, **settings)
        words: dict[str, Any] = {"identity": self._named, "register-worker": self._registered, "heartbeat_worker": self._alive}
        self.strip(words, dict.fromkeys(USUAL, lambda **_: None))

    async def _named(self, comm: Comm, n_workers: int = -1) -> Any:
        """Who is there: for the server."""
        self._require(comm, SERVER)
        return self.identity(n_workers=n_workers)

    async def _registered(self, comm: Comm, **said: Any) -> None:
        """A site joins; the answer is written here, and the connection stays."""
        wrong = self._wrong(comm, site_role(str(said.get("name"))))
        if wrong is None:
            return await self.add_worker(comm, **said)
        LOG.warning("refused a site %.40r from %s: %s", said.get("name"), comm.peer_address, wrong)
        await comm.write({"status": "error", "message": wrong, "time": time.time()})

    async def _alive(self, comm: Comm, **said: Any) -> Any:
        known = self.workers.get(self.coerce_address(str(said.get("address"))))
        if known is None:
            return {"status": "missing"}
        self._require(comm, site_role(str(known.name)))
        return self.heartbeat_worker(**said)

    def _wrong(self, comm: Comm, *roles: str) -> str | None:
        return unlike(comm.extra_info.get("peercert"), *roles) if self.address.startswith("tls://") else None

    def _require(self, comm: Comm, *roles: str) -> None:
        wrong = self._wrong(comm, *roles)
        if wrong is not None:
            LOG.warning("refused a word from %s: %s", comm.peer_address, wrong)
            raise PermissionError(wrong)


async def scheduling(host: str, port: int, security: Security | None) -> None:
    """Be the scheduler until the process is ended. Raises ``OSError`` where it cannot listen."""
    read_plainly()
    protocol = "tcp" if security is None else "tls"
    with tempfile.TemporaryDirectory(prefix="hierfl-scheduler-") as folder:
        settings = {"protocol": protocol, "security": security or Security(), "local_directory": folder}
        async with ClosedScheduler(host=host, port=port, **settings) as scheduler:
            LOG.info("a scheduler listens at %s", scheduler.address)
            await asyncio.shield(scheduler.finished())


HANDSHAKE = 10.0  # seconds
ARRIVING = 300.0  # seconds that a frame may take to arrive, once it has begun
MOST = 32  # connections at once
ARRIVING_AT_ONCE = 2 << 30  # bytes of all frames that have begun to arrive
LONGEST = 64  # bytes by which a server calls itself


class Door:
    """Where a site listens, as Dask asks of listeners; ``security`` is ``ssl``'s context that asks for certificates, None in the clear."""

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
        place = unparse_host_port(*self._server.sockets[0].getsockname()[:2])
        self.contact_address = self.listen_address = f"{self.prefix}{place}"

    def stop(self) -> None:
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
            while header := await _header(reader, None if server else ARRIVING):
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


async def _header(reader: asyncio.StreamReader, patience: float | None) -> bytes:
    """The header of the next frame, which begins within ``patience`` (seconds); nothing where the guest has left."""
    async with asyncio.timeout(patience):
        first = await reader.read(1)
    async with asyncio.timeout(ARRIVING):
        return first and first + await reader.readexactly(HEADER.size - 1)


class SiteWorker(Stripped, Worker):
    """The worker of a site, which answers letters; it listens at a host and a port, and has settings as :class:`distributed.Worker` takes them."""

    def __init__(self, site: Site, scheduler: str, host: str, port: int, **settings: Any) -> None:
        self._site, self._place = site, (host, port)
        bare: dict[str, Any] = {"metrics": {}, "startup_information": {}, "extensions": {}, "services": {}}
        super().__init__(scheduler, name=site.name, nthreads=1, host=host, memory_limit=0, preload=[], **bare, **settings)
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

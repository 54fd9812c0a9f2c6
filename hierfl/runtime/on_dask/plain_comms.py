"""Dask's connections to a scheduler, read as plain words and numbers: what is pickled, or else would have to be built, arrives as None.

Dask's own read pickles of whoever is at the other end.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
import time
from typing import Any

import msgpack
from distributed.comm import registry, tcp
from distributed.comm.addressing import parse_address
from distributed.comm.core import Comm, CommClosedError, FatalCommClosedError
from distributed.protocol.utils import unpack_frames
from tornado.iostream import StreamClosedError

from hierfl.runtime.on_dask.roles import SCHEDULER, SERVER, unlike

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


class PlainTCPConnector(tcp.TCPConnector):
    """Connects in the clear."""

    comm_class = PlainTCP


class PlainTLSConnector(tcp.TLSConnector):
    """Connects to a scheduler, or to the server where that is one, and to nobody else who has a certificate."""

    comm_class = PlainTLS

    async def connect(self, address: str, deserialize: bool = True, **connection_args: Any) -> Comm:
        """The connection. Raises ``FatalCommClosedError`` where the other side's certificate has another role."""
        comm: Comm = await super().connect(address, deserialize, **connection_args)
        wrong = unlike(comm.extra_info.get("peercert"), SCHEDULER, SERVER)
        if wrong is not None:
            comm.abort()
            raise FatalCommClosedError(f"the scheduler is none: {wrong}")
        return comm


class PlainTCPListener(tcp.TCPListener):
    """Listens in the clear."""

    comm_class = PlainTCP


class PlainTLSListener(tcp.TLSListener):
    """Listens to those who have certificates."""

    comm_class = PlainTLS


class PlainTCPBackend(tcp.TCPBackend):
    """Makes them, for ``tcp://``."""

    _connector_class, _listener_class = PlainTCPConnector, PlainTCPListener


class PlainTLSBackend(tcp.TLSBackend):
    """Makes them, for ``tls://``."""

    _connector_class, _listener_class = PlainTLSConnector, PlainTLSListener


BACKENDS: dict[str, registry.Backend] = {"tcp": PlainTCPBackend(), "tls": PlainTLSBackend()}


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
            comm: Comm = await BACKENDS[scheme].get_connector().connect(place, deserialize=False, **connection_args)
            break
        except OSError as error:
            if isinstance(error, FatalCommClosedError) or time.monotonic() > until:
                raise
            await asyncio.sleep(AGAIN)
    ours = comm.handshake_info()
    await comm.write(ours)
    comm.handshake_options = comm.handshake_configuration(ours, await comm.read())
    return comm


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

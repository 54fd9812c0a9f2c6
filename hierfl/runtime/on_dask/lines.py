"""Questions and answers over a socket: frames of bytes with a mark and a length, and the side that asks.

A frame is read into memory as it arrives, has a largest size, and is never run. An answer that nobody waited for is dropped when it comes.
"""

from __future__ import annotations

import selectors
import socket
import ssl
import struct
import time
from collections.abc import Iterable, Mapping

from hierfl.errors import SiteError
from hierfl.jaxtools.interruption import overdue
from hierfl.runtime.sites.parcels import Lost

MARK = b"hfl1"  # what every frame begins with, before its length
HEADER = struct.Struct("!4sQ")
LARGEST = 1 << 30  # bytes of a frame
CHUNK = 1 << 16
HELLO, ASKED, HANDED = b"?", b"!", b"="  # what a question is: who is there, a message of a run, and data for a site of one's own
LOOK = 0.5  # seconds between looks whether answers are still wanted
GONE = Lost("its process is gone", gone=True)


def framed(content: bytes) -> bytes:
    """A frame's bytes. Raises ``SiteError`` for one that the other side would refuse."""
    if len(content) > LARGEST:
        raise SiteError(f"a message of {len(content):,} bytes, and a connection carries {LARGEST:,} at most: send fewer numbers, or give sites their data as files.")
    return HEADER.pack(MARK, len(content)) + content


def length_of(header: bytes) -> int:
    """The length that a header tells. Raises ``ConnectionError`` for one of no frame, or of one that is too large."""
    mark, length = HEADER.unpack(header)
    if mark != MARK or length > LARGEST:
        raise ConnectionError("what came is no frame of hierfl's")
    return int(length)


class SiteLine:
    """The asking end of a connection, at which one question at a time is open."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.waits = False  # for an answer
        self._heard = bytearray()

    def fileno(self) -> int:
        return self.socket.fileno()

    def send(self, content: bytes, timeout: float) -> None:
        """Ask. Raises ``OSError`` if that cannot be done in time."""
        self.socket.settimeout(max(timeout, 1e-3))
        self.socket.sendall(framed(content))
        self.socket.settimeout(0.0)
        self.waits = True

    def receive(self) -> bytes | None:
        """The answer, if all of it is there. Raises ``OSError`` where none can come any more."""
        while True:
            try:
                chunk = self.socket.recv(CHUNK)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                break
            if not chunk:
                raise ConnectionError("the other side has ended the connection")
            self._heard += chunk
            if not self.waits or len(self._heard) > self._end:
                raise ConnectionError("an answer that nobody asked for")
        if len(self._heard) < self._end:
            return None
        answer, self._heard, self.waits = bytes(memoryview(self._heard)[HEADER.size :]), bytearray(), False
        return answer

    @property
    def _end(self) -> int:
        """Where the frame ends; beyond all that has come, while its header is not whole."""
        header = bytes(self._heard[: HEADER.size])
        return HEADER.size + (length_of(header) if len(header) == HEADER.size else CHUNK)

    def close(self) -> None:
        self.socket.close()


def heard(lines: Mapping[str, SiteLine], timeout: float) -> dict[str, bytes | Lost]:
    """The answers that are there first, by the lines' names; none if there are none within the timeout (seconds)."""
    found, until = dict[str, bytes | Lost](), time.monotonic() + timeout
    with selectors.DefaultSelector() as selector:
        for name, line in lines.items():
            selector.register(line, selectors.EVENT_READ, name)
        while not found:
            left = until - time.monotonic()
            for key, _ in selector.select(max(left, 0.0)):
                try:
                    answer = lines[key.data].receive()
                except OSError:
                    found[key.data] = GONE
                else:
                    found |= {} if answer is None else {key.data: answer}
            if left <= 0:
                break
    return found


class LineLinks:
    """The links to sites by lines, which a subclass makes; ``refusals`` says of sites, by name, why they are none."""

    def __init__(self) -> None:
        self.lines: dict[str, SiteLine] = {}
        self.refusals: dict[str, str] = {}
        self._births: dict[str, int] = {}
        self._held: dict[str, tuple[int, ...]] = {}
        self._open: set[str] = set()  # those whose answers come one by one
        self._arrived: dict[str, bytes | Lost] = {}  # of these, and not asked for yet

    def look(self) -> None:
        """Look for sites that came, or went; nobody waits for answers to what a run before has sent for."""
        self._open.clear()
        self._arrived.clear()

    def ready(self) -> frozenset[str]:
        """The sites that can be asked; late answers that have come are dropped."""
        late = {site: line for site, line in self.lines.items() if line.waits and site not in self._open}
        if late:
            self._forget(site for site, reply in heard(late, 0.0).items() if isinstance(reply, Lost))
        return frozenset(site for site, line in self.lines.items() if site in self._open or not line.waits)

    def held(self) -> dict[str, tuple[int, ...]]:
        return {site: self._held[site] for site in self.lines}

    def born(self, site: str) -> int:
        return self._births.get(site, 0)

    def exchange(self, parcels: Mapping[str, bytes], timeout: float) -> dict[str, bytes | Lost]:
        until, found = time.monotonic() + timeout, dict[str, bytes | Lost]()
        for site, parcel in parcels.items():
            found |= self._asked(site, parcel, until - time.monotonic())
        waiting = {site: self.lines[site] for site in parcels.keys() - found.keys()}
        while waiting and (left := until - time.monotonic()) > 0 and not overdue():
            for site, reply in heard(waiting, min(LOOK, left)).items():
                found[site] = reply
                del waiting[site]
        self._forget(site for site, reply in found.items() if reply is GONE)
        return found | dict.fromkeys(waiting, Lost(f"no answer within {timeout:g} s"))

    def send(self, site: str, parcel: bytes) -> None:
        self._open.add(site)
        self._asked(site, parcel, LOOK)

    def arrival(self, timeout: float) -> tuple[str, bytes | Lost] | None:
        if not self._arrived:
            waiting = {site: line for site, line in self.lines.items() if site in self._open and line.waits}
            self._arrived = dict.fromkeys(self._open - waiting.keys(), GONE) or heard(waiting, timeout)
            self._open -= self._arrived.keys()
        if not self._arrived:
            return None
        site = next(iter(self._arrived))
        reply = self._arrived.pop(site)
        if reply is GONE:
            self._forget([site])
        return site, reply

    @property
    def clock(self) -> float:
        return time.monotonic()

    def close(self) -> None:
        self._forget(list(self.lines))

    def _asked(self, site: str, parcel: bytes, timeout: float) -> dict[str, bytes | Lost]:
        """Ask one site; what is known of its answer, if it is gone."""
        try:
            self.lines[site].send(ASKED + parcel, timeout)
        except (KeyError, OSError):
            return {site: GONE}
        return {}

    def _forget(self, sites: Iterable[str]) -> None:
        for site in list(sites):
            if (line := self.lines.pop(site, None)) is not None:
                line.close()

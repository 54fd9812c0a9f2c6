"""The socket file at which a site is asked: whatever comes there ends its own connection, and never the site.

Each connection has a thread, which reads a letter and sends the answer; letters are answered one after another, where ``answer_with`` was called.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from socketserver import BaseRequestHandler, ThreadingMixIn, UnixStreamServer
from typing import Any

from hierfl.errors import SettingError, SiteError
from hierfl.runtime.on_flower.site_frames import (
    LARGEST,
    SECONDS,
    FrameError,
    dial,
    receive_bytes,
    receive_length,
    send_frame,
)

LOG = logging.getLogger("hierfl.site")
LONGEST = 100  # characters of a path, a limit of the operating system's
LOOK = 1.0  # seconds between looks whether the parent is there, or a signal
AT_ONCE = 32  # connections; the letters of all of them have no more bytes than one may have
PACE = 0.01  # seconds between connections, on average, once there were as many as may be open

Answer = SimpleQueue[bytes | None]  # where one is waited for; None where there is none


class SocketDoor(ThreadingMixIn, UnixStreamServer):
    """Listens at a socket file, from ``with`` on until its end, when the file is removed.

    Who may connect is who may write to the file: the process's user, and the group where the umask leaves it writing (``umask 007``).
    """

    daemon_threads, request_queue_size = True, 128

    def __init__(self, path: str) -> None:
        self.path, self._letters = path, SimpleQueue[tuple[bytes, Answer]]()
        self._places, self._guard = threading.Semaphore(AT_ONCE), threading.Lock()
        self._held: dict[socket.socket, int] = {}  # bytes of each connection's letter, the oldest first
        self._whole: set[socket.socket] = set()  # those whose letter is there
        self._credit, self._last = float(AT_ONCE), time.monotonic()  # connections that need not wait
        before = os.umask(0o177)
        try:
            super().__init__(path, BaseRequestHandler)
        except OSError as error:
            raise SettingError(f"--socket {path!r}: no socket can be made there ({error.strerror}).") from error
        finally:
            os.umask(before)
        if not before & 0o020:
            os.chmod(path, 0o660)
        threading.Thread(target=self.serve_forever, args=(0.1,), daemon=True).start()

    def __exit__(self, *error: Any) -> None:
        self._places.release(AT_ONCE)  # nobody is waited for
        self.shutdown()
        super().__exit__(*error)
        Path(self.path).unlink(missing_ok=True)

    def answer_with(self, answer: Callable[[bytes], bytes]) -> None:
        while True:
            try:
                letter, waiting = self._letters.get(timeout=LOOK)
            except Empty:  # a signal that came just before it waited is heard now
                continue
            try:
                waiting.put(answer(letter))
            except Exception:
                LOG.exception("a letter was not answered")
                waiting.put(None)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a connection a thread, at its pace and in its turn; the one that has waited longest for its letter makes room."""
        now = time.monotonic()
        self._credit, self._last = min(self._credit + (now - self._last) / PACE, AT_ONCE) - 1, now
        time.sleep(max(-self._credit * PACE, 0.0))
        if not self._places.acquire(blocking=False):
            with self._guard, suppress(StopIteration, OSError):
                next(one for one in self._held if one not in self._whole).shutdown(socket.SHUT_RDWR)
                LOG.warning("more than %d callers at once: the first without a letter is sent away", AT_ONCE)
            self._places.acquire()
        with self._guard:
            self._held[request] = 0
        super().process_request(request, client_address)

    def finish_request(self, request: Any, client_address: Any) -> None:
        length = receive_length(request, SECONDS)
        letter, waiting = receive_bytes(request, length, partial(self._hold, request)), Answer()
        with self._guard:
            self._whole.add(request)
        self._letters.put((letter, waiting))
        del letter
        if (answer := waiting.get()) is not None:
            send_frame(request, answer, SECONDS)

    def _hold(self, connection: socket.socket, count: int) -> None:
        with self._guard:
            self._held[connection] += count
            if sum(self._held.values()) > LARGEST:
                raise FrameError(f"would have had letters of more than {LARGEST:,} bytes waiting here")

    def handle_error(self, request: Any, client_address: Any) -> None:
        """What went wrong with a connection is a line of the log."""
        error = sys.exception()
        told = str(error) if isinstance(error, FrameError) else f"was gone before the answer: {type(error).__name__}"
        LOG.warning("a caller was not answered, who %s", told)

    def shutdown_request(self, request: Any) -> None:
        with self._guard:
            known = self._held.pop(request, None)
            self._whole.discard(request)
        super().shutdown_request(request)
        if known is not None:
            self._places.release()


def serve_socket(answer: Callable[[bytes], bytes], path: str, parent: int | None = None) -> None:
    """Answer letters at a socket file until the process is ended, or a ``parent`` whose number is given.

    Raises ``SettingError`` for a path that is too long for a socket, or where no file can be made, and ``SiteError`` if a site listens there.
    """
    if len(os.fsencode(path)) > LONGEST:
        raise SettingError(f"--socket {path!r}: at most {LONGEST} characters; choose a shorter folder.")
    _require_free(path)
    signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(SystemExit(0)))
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with SocketDoor(path) as door:
        LOG.info("listening at %s", path)
        door.answer_with(answer)


def _require_free(path: str) -> None:
    """Remove the file of a process that is gone."""
    try:
        dial(path).close()
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        if not Path(path).is_socket():
            raise SettingError(f"--socket {path!r} is a file of another kind: choose another name.") from None
        Path(path).unlink()
        return
    except OSError as error:
        raise SettingError(f"--socket {path!r}: no socket can be made there ({error.strerror}).") from error
    raise SiteError(f"a site listens at {path} already: end it, or choose another --socket.")


def _end_with(parent: int) -> None:
    while True:
        try:
            os.kill(parent, 0)
        except ProcessLookupError:
            os.kill(os.getpid(), signal.SIGTERM)
            return
        time.sleep(LOOK)

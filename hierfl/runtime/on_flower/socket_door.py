"""The socket file at which a site is asked: whatever comes there ends its own connection, and never the site.

Each connection has a thread, which reads a letter and sends the answer; letters are answered one after another, where ``answer_with`` was called.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import TracebackType

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
LOOK = 1.0  # seconds between looks whether the parent is there
AT_ONCE = 32  # connections; the letters of all of them have no more bytes than one may have
PACE = 0.01  # seconds between connections, on average, once there were as many as may be open

Answer = SimpleQueue[bytes | None]  # where one is waited for; None where there is none


class SocketDoor:
    """Listens at a socket file, from ``with`` on until its end, when the file is removed.

    Who may connect is who may write to the file: the process's user, and the group where the umask leaves it writing (``umask 007``).
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._letters = SimpleQueue[tuple[bytes, Answer]]()
        self._places, self._guard = threading.BoundedSemaphore(AT_ONCE), threading.Lock()
        self._held: dict[socket.socket, int] = {}  # bytes of each connection's letter, the oldest first
        self._whole: set[socket.socket] = set()  # those whose letter is there

    def __enter__(self) -> SocketDoor:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        before = os.umask(0o177)
        try:
            self._listener.bind(self.path)
        except OSError as error:
            raise SettingError(f"--socket {self.path!r}: no socket can be made there ({error.strerror}).") from error
        finally:
            os.umask(before)
        if not before & 0o020:
            os.chmod(self.path, 0o660)
        self._listener.listen(128)
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # which ends the wait for callers
        self._listener.close()
        Path(self.path).unlink(missing_ok=True)

    def answer_with(self, answer: Callable[[bytes], bytes]) -> None:
        """Answer letters, one after another, for ever."""
        while True:
            letter, waiting = self._letters.get()
            try:
                waiting.put(answer(letter))
            except Exception:
                LOG.exception("a letter was not answered")
                waiting.put(None)

    def _accept(self) -> None:
        credit, last = float(AT_ONCE), time.monotonic()
        while self._listener.fileno() >= 0:
            now = time.monotonic()
            credit, last = min(credit + (now - last) / PACE, AT_ONCE), now
            if credit < 1:
                time.sleep(PACE)
                continue
            credit -= 1
            try:
                self._admit(self._listener.accept()[0])
            except (OSError, RuntimeError) as error:  # the end of listening, or there are no files or threads left
                if self._listener.fileno() >= 0:
                    LOG.warning("no caller could be heard: %s", error)
                    time.sleep(LOOK)

    def _admit(self, connection: socket.socket) -> None:
        if not self._places.acquire(blocking=False):
            self._make_room()
            self._places.acquire()
        with self._guard:
            self._held[connection] = 0
        try:
            threading.Thread(target=self._attend, args=(connection,), daemon=True).start()
        except RuntimeError:
            self._leave(connection)
            raise

    def _make_room(self) -> None:
        """End the connection that has been open for longest without a whole letter."""
        with self._guard:
            oldest = next((one for one in self._held if one not in self._whole), None)
            if oldest is not None:
                LOG.warning("more than %d callers at once: the first without a letter is sent away", AT_ONCE)
                with suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)

    def _attend(self, connection: socket.socket) -> None:
        try:
            length = receive_length(connection, SECONDS)
            letter, waiting = receive_bytes(connection, length, partial(self._hold, connection)), Answer()
            with self._guard:
                self._whole.add(connection)
            self._letters.put((letter, waiting))
            del letter
            if (answer := waiting.get()) is not None:
                send_frame(connection, answer, SECONDS)
        except FrameError as error:
            LOG.warning("a caller was not answered, who %s", error)
        except OSError as error:
            LOG.warning("a caller was gone before its answer: %s", type(error).__name__)
        except Exception:
            LOG.exception("a caller was not answered")
        finally:
            self._leave(connection)

    def _hold(self, connection: socket.socket, count: int) -> None:
        with self._guard:
            self._held[connection] += count
            if sum(self._held.values()) > LARGEST:
                raise FrameError(f"would have had letters of more than {LARGEST:,} bytes waiting here")

    def _leave(self, connection: socket.socket) -> None:
        with self._guard:
            del self._held[connection]
            self._whole.discard(connection)
        connection.close()
        self._places.release()


def serve_socket(answer: Callable[[bytes], bytes], path: str, parent: int | None = None) -> None:
    """Answer letters at a socket file until the process is ended; the file is removed then.

    Parameters
    ----------
    answer
        Makes of a letter's bytes those of another.
    path
        Of the socket file.
    parent
        A process with whose end this one ends, too.

    Raises
    ------
    SettingError
        For a path that is too long for a socket, or where no file can be made.
    SiteError
        If a site listens there already.
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

"""Where letters come to a site on Flower: a socket file on its own machine, at which they are answered one after another."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Client, Listener
from pathlib import Path

from hierfl.errors import SettingError, SiteError

LOG = logging.getLogger("hierfl.site")
LARGEST = 1 << 31  # bytes of a letter
LONGEST = 100  # characters of a path, a limit of the operating system's
LOOK = 1.0  # seconds between looks whether the parent is there


def serve_socket(answer: Callable[[bytes], bytes], path: str, parent: int | None = None) -> None:
    """Answer letters at a socket file until the process is ended; the file is removed then.

    Who may connect is who may write to the file: it has the permissions that the process's umask leaves.

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
        For a path that is too long for a socket.
    SiteError
        If a site listens there already.
    """
    if len(os.fsencode(path)) > LONGEST:
        raise SettingError(f"--socket {path!r}: at most {LONGEST} characters; choose a shorter folder.")
    _require_free(path)
    signal.signal(signal.SIGTERM, lambda *_: (_ for _ in ()).throw(SystemExit(0)))
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    with Listener(path, "AF_UNIX") as listener:
        LOG.info("listening at %s", path)
        while True:
            with listener.accept() as connection:
                try:
                    connection.send_bytes(answer(connection.recv_bytes(LARGEST)))
                except (EOFError, ConnectionError) as error:
                    LOG.warning("a caller was gone before its answer: %s", type(error).__name__)


def _require_free(path: str) -> None:
    """Remove the file of a process that is gone."""
    try:
        Client(path, "AF_UNIX").close()
    except FileNotFoundError:
        return
    except ConnectionRefusedError:
        Path(path).unlink()
        return
    raise SiteError(f"a site listens at {path} already: end it, or choose another --socket.")


def _end_with(parent: int) -> None:
    while True:
        try:
            os.kill(parent, 0)
        except ProcessLookupError:
            os.kill(os.getpid(), signal.SIGTERM)
            return
        time.sleep(LOOK)

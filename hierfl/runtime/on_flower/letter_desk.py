"""Where a site reads letters: each is a message of the run's own algorithm, or it is refused and the owner's log says why.

What the algorithm's steps are sent is found by tracing the server's program of a round; nothing else is answered. Letters come at a socket
file on the site's own machine, and are answered one after another.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Any

from hierfl.errors import HierflError, SettingError, SiteError
from hierfl.runtime.on_flower.letters import (
    SERVER,
    Hello,
    Introduction,
    Letter,
    asked_of,
    letter_of,
    message_of,
    start_of,
)
from hierfl.runtime.sites.parcels import Keep, Refusal, Unmask
from hierfl.runtime.sites.site import NO_RUN, Site

LOG = logging.getLogger("hierfl.site")


class LetterDesk:
    """Answers letters for a site.

    Parameters
    ----------
    site
        With its data and its owner's rules.
    read_solver
        Makes a solver of its text, and runs nothing else.
    """

    def __init__(self, site: Site, read_solver: Callable[[str], Any]) -> None:
        self.site, self.read_solver = site, read_solver

    def answer(self, parcel: bytes) -> bytes:
        """Answer one letter by another."""
        reply = self._reply(parcel)
        sent = letter_of(reply).as_bytes()
        self.site.tell(reply, len(sent))
        return sent

    def _reply(self, parcel: bytes) -> Any:
        try:
            letter = Letter.from_bytes(parcel)
            kind, server = letter.words.get("message"), str(letter.words.get(SERVER, ""))
            if kind == Hello.__name__:
                return Introduction(self.site.name, tuple(self.site.held))
            if kind == "Start":
                return self.site.respond(start_of(letter, self.read_solver), server)
            if kind == "Asked":
                return self._step(letter, server)
            if kind == "Keep":
                return self.site.respond(message_of(letter, Keep), server)
            if kind == "Unmask":
                return self.site.respond(message_of(letter, Unmask), server)
            raise SiteError(f"a message of the kind {kind!r}, which no run sends.")
        except HierflError as error:
            LOG.warning("%s: refused: %s", self.site.name, error)
            return Refusal(str(error), failed=True)
        except Exception as error:
            LOG.exception("%s: failed", self.site.name)
            return Refusal(f"{type(error).__name__}, which the site's own log has in full", failed=True)

    def _step(self, letter: Letter, server: str) -> Any:
        run = self.site.run(server)
        if run is None:
            return NO_RUN
        return self.site.respond(asked_of(letter, run.protocol.shapes, set(self.site.held)), server)


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

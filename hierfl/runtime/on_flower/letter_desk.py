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

import jax
import jax.numpy as jnp
import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import HierflError, SettingError, SiteError
from hierfl.jaxtools.keyed_random import key_of
from hierfl.jaxtools.precision import computing
from hierfl.runtime.on_flower.letters import (
    SERVER,
    Hello,
    Introduction,
    Letter,
    asked_of,
    keep_of,
    letter_of,
    message_of,
    start_of,
)
from hierfl.runtime.sites.parcels import Asked, Refusal, Unmask
from hierfl.runtime.sites.rounds import present_in
from hierfl.runtime.sites.site import NO_RUN, Site, SiteRun
from hierfl.runtime.sites.site_programs import SitePrograms, Wire

Steps = dict[tuple[str, str], list[Any]]  # by kind and name: trees of jax.ShapeDtypeStruct of (broadcast, each)


class Noting(Wire):
    """A wire on which nothing is sent: it notes what would be."""

    def __init__(self) -> None:
        self.steps: Steps = {}

    def note(self, kind: str, name: str, broadcast: Any, each: Any) -> None:
        """Note the shapes of one message."""
        shapes = jax.tree.map(lambda a: jax.ShapeDtypeStruct(jnp.shape(a), jnp.result_type(a)), (broadcast, each))
        known = self.steps.setdefault((kind, name), [])
        if shapes not in known:
            known.append(shapes)


def step_messages(problem: CompiledProblem, algorithm: Any, x0: np.ndarray) -> Steps:
    """The messages of a round, and of the run's own value at its end, by kind and name of their steps."""
    with computing(double=True):
        noting = Noting()
        programs = SitePrograms(problem, algorithm, tracing=noting)
        state, data, index = algorithm.init(jnp.asarray(x0)), problem.laid_out(), jnp.asarray(0)
        size = algorithm.cohorts.size
        some, everyone = (present_in(np.arange(n), n) for n in (size, problem.num_clients))
        given = (programs.tables, state, data)
        jax.eval_shape(programs.round(), *given, some, everyone, key_of(0), index)
        jax.eval_shape(programs.own_value(), *given, everyone, key_of(0), index, jnp.asarray(x0))
        return noting.steps


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
        self._steps: tuple[SiteRun, Steps] | None = None  # of the run asked last

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
                return self.site.respond(keep_of(letter, set(self.site.held)), server)
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
        if self._steps is None or self._steps[0] is not run:
            self._steps = (run, step_messages(run.problem, run.algorithm, run.x0))
        message: Asked = asked_of(letter, self._steps[1], set(self.site.held))
        return self.site.respond(message, server)


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

"""Where a site reads letters: each is a message of the run's own algorithm, or it is refused and the owner's log says why."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from hierfl.errors import HierflError, SiteError
from hierfl.runtime.on_flower.letter import Letter
from hierfl.runtime.on_flower.letters import (
    SERVER,
    Hello,
    Introduction,
    asked_of,
    keep_of,
    letter_of,
    start_of,
    unmask_of,
)
from hierfl.runtime.on_flower.step_messages import Steps, step_messages
from hierfl.runtime.sites.parcels import Asked, Refusal
from hierfl.runtime.sites.site import NO_RUN, Site, SiteRun

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
                return self.site.respond(unmask_of(letter), server)
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

"""Where a site reads letters: each is a message of the run's own algorithm, or it is refused and the owner's log says why.

What the algorithm's steps are sent is found by tracing the server's program of a round; nothing else is answered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from hierfl.errors import HierflError, SiteError
from hierfl.runtime.sites.letters import (
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

    def answer(self, parcel: bytes, server: str = "") -> bytes:
        """Answer one letter by another; ``server`` tells apart who asks, where the letter does not."""
        reply = self._reply(parcel, server)
        sent = letter_of(reply).as_bytes()
        self.site.tell(reply, len(sent))
        return sent

    def _reply(self, parcel: bytes, server: str) -> Any:
        try:
            letter = Letter.from_bytes(parcel)
            kind, server = letter.words.get("message"), server or str(letter.words.get(SERVER, ""))
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
            return Refusal(f"{type(error).__name__}, of which the site's own log has the kind and the place", failed=True)

    def _step(self, letter: Letter, server: str) -> Any:
        run = self.site.run(server)
        if run is None:
            return NO_RUN
        return self.site.respond(asked_of(letter, run.protocol.shapes, set(self.site.held)), server)

"""One site's part in a run without rounds: it works from a version of x, and its answers come when they come.

The server's program of a round runs as far as the answers go that are there; the message that it asks for next is sent, and when its
answer has come the program runs again from the same state, one message further.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from hierfl.runtime.sites.exchange import Shapes
from hierfl.runtime.sites.parcels import Answered, Asked, Settled, packed


@dataclass
class Conversation:
    """What the server and a site have said to each other about one version of the state."""

    site: str
    clients: np.ndarray
    version: int
    state: Any
    turn: int
    settled: Settled | None
    answers: list[Answered] = field(default_factory=list)
    pending: bytes | None = None
    step: str = ""
    expected: Shapes = None
    _place: int = 0

    def again(self) -> None:
        """Run from the beginning."""
        self._place, self.pending = 0, None

    def ask(
        self, kind: str, step: str, clients: np.ndarray, broadcast: Any, each: Any, seed: np.ndarray, expected: Shapes
    ) -> Any:
        """The answer that is there, or zeros: then ``pending`` is what to send."""
        place, self._place = self._place, self._place + 1
        if place < len(self.answers):
            answer = self.answers[place]
            return jax.tree.map(lambda zero, part: part, expected, (answer.payload, answer.monitor))
        if self.pending is None:
            settled = self.settled
            asked = Asked(self.turn, self.version, place, settled, kind, step, clients, seed, broadcast, each)
            self.pending, self.step, self.expected = packed(asked), step, expected
        return jax.tree.map(lambda s: np.zeros((len(clients), *s.shape), s.dtype), expected)

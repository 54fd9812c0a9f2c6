"""What an algorithm may ask of the place where its clients run, and what a runtime may ask of an algorithm.

Inside a round the server reaches clients only through ``Clients.map``; what is transmitted is what ``map`` is given and
what its steps return, so it is visible, and counted, in one place. Algorithms never know where clients run.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from hierfl.compiler.data import Data, Party
from hierfl.compiler.program import Array


class Message(NamedTuple):
    """What one client sends: the algorithm's ``payload``, and ``monitor`` numbers for history and errors.

    ``monitor`` is counted apart: it carries the objective's estimate, the residual and error codes.
    """

    payload: Any
    monitor: dict[str, Array]


Step = Callable[[Party, Any, Any, Array], tuple[Any, Message]]


class Clients(Protocol):
    """The clients that take part in one round."""

    @property
    def participants(self) -> Array:
        """Indices of the round's participants, ``(S,)``."""

    @property
    def public(self) -> dict[int, Array]:
        """Values of the declaration's plain parameters, known to everybody."""

    def map(self, step: Step, broadcast: Any, each: Any = None) -> Message:
        """Run ``step(party, memory, (broadcast, own part of each), key)`` at every participant.

        Messages are stacked, leading axis S. A client's memory stays with it; an absent client's is untouched.
        """

    def server(self, step: Callable[[Party, Any, Array], Any], broadcast: Any) -> Any:
        """Run ``step(party, broadcast, key)`` on the server's own data."""

    def mean(self, values: Any) -> Any:
        """The weighted aggregate of per-participant values (leading axis S)."""


class Algorithm(Protocol):
    """A solver bound to a problem."""

    participation: float
    absent: str

    def init(self, x0: Array) -> Any:
        """The server's state at round 0."""

    def memory(self, x0: Array) -> Any:
        """One client's memory at round 0 (a pytree of arrays)."""

    def round(self, clients: Clients, state: Any, round_index: Array, key: Array) -> tuple[Any, dict[str, Array]]:
        """One communication round: the new state and the round's record."""

    def answers(self, data: Data, x: Array, memory: Any, round_index: Any, key: Array) -> Array:
        """What the run's own lower solver answers at x, (owners, size): the algorithm's own value is computed from it."""

    def decision(self, state: Any) -> Array:
        """The flat x of a state."""

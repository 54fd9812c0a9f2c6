"""What every runtime records of a run, and gives back at its end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.runtime.contract import Algorithm, Ending, OwnValue

TRAFFIC = tuple(level + way for level in ("", "lower_") for way in ("scalars_down", "scalars_up", "monitor_scalars"))
History = dict[str, np.ndarray]
BlockEnd = Callable[[int, Any, Any, History], Ending | None]
MOTION = ("move", "extent")
WITHHELD = "withheld"  # a column of rounds in which clients told nothing of their objectives


class Outcome(NamedTuple):
    """The final state, the clients' memories (leading axis m), the history per round, and the run's own value at any x.

    ``ended`` says why a run has ended by itself; None where its rounds were made, or something else ended it. ``told`` is what a
    runtime has to tell of the run, for the result's settings.
    """

    state: Any
    memory: Any
    history: History
    own_value: Callable[[Array], OwnValue] | None
    ended: str | None = None
    told: dict[str, Any] = {}  # noqa: RUF012


class Begun(NamedTuple):
    """Where a run goes on: the rounds made, the state after them, and the leaves of what the runtime gave as the clients' memories.

    A runtime whose ``execute`` takes ``begun`` (``execute_many`` one for each run, None for those at their start) makes the rounds from
    there on, and its outcome has the history of these alone. Where memories stay with the clients, it gives None for them at the
    end of a block, and has a method ``memories()`` by which they are kept for a checkpoint: they, or what finds them again.
    """

    rounds: int
    state: Any
    memory: list[np.ndarray]


@runtime_checkable
class KeptMemory(Protocol):
    """Memories that are no tree of arrays."""

    def kept(self, rounds: int) -> list[Any]:
        """The arrays that a checkpoint after so many rounds keeps."""


def motion(algorithm: Algorithm, before: Any, after: Any) -> dict[str, Array]:
    """Measure what a runtime adds to a round's record: the length of x's move, and the largest entry of the new x."""
    old, new = algorithm.decision(before), algorithm.decision(after)
    return {"move": jnp.linalg.norm(new - old), "extent": jnp.max(jnp.abs(new), initial=0.0)}

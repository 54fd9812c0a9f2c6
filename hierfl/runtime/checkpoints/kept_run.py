"""One run as its checkpoint knows it: where it stands after a block of rounds, and how it goes on from there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from hierfl.jaxtools.interruption import INTERRUPTED, TIME_IS_UP, rest
from hierfl.runtime.contract import Ending
from hierfl.runtime.records import Begun, History, KeptMemory
from hierfl.runtime.watch import Seen, Watch

# what ends a run for now; any other end is found again from the block before it
GOES_ON = (TIME_IS_UP, INTERRUPTED)


class Standing(NamedTuple):
    """A run between two blocks: the rounds made, the state, the clients' memories, and what the watch has seen."""

    rounds: int
    state: Any
    memory: Any
    seen: Seen


class KeptRun:
    """What a runtime calls at the end of a block in place of the watch.

    ``standing`` is where the run last stood, ``written`` the rounds of it that are on disk, ``over`` whether it has come to its end.
    """

    def __init__(
        self, watch: Watch, due: Callable[[int], bool], write: Callable[[], None], memories: Callable[[], Any]
    ) -> None:
        self.watch, self._due, self._write, self._memories = watch, due, write, memories
        self.standing: Standing | None = None
        self.written = 0
        self.over = False
        self.begun: Begun | None = None

    def __call__(self, done: int, state: Any, memory: Any, history: History) -> Ending | None:
        """Look at a block as the watch does, and keep it where that is due."""
        watch = self.watch
        ending = watch(done, state, memory, history)
        self.over = ending is not None or done == watch.settings.most_rounds
        if ending is not None and watch.status not in GOES_ON:
            return ending
        due = self._due(done)
        if memory is None:  # it is the clients', and asked for where it is wanted
            if not due and not self.over:
                return None
            rest()  # clients are still to keep what they remember
            memory = self._memories()
        self.standing = Standing(done, state, memory, watch.seen)
        if due:
            self._write()
        return ending

    def stored(self, arrays: dict[str, np.ndarray], lane: int) -> dict[str, Any] | None:
        """Put the arrays of where it stands among others, and return the rest; None before the first block."""
        at = self.standing
        if at is None:
            return None
        path = {done: x for done, x in at.seen.path.items() if done <= at.rounds}
        measured = self.watch.measured
        kept = int(np.sum(np.array(measured["round"]) <= at.rounds)) if measured else 0
        state, memory = jax.tree.leaves(at.state), _leaves(at.memory, at.rounds)
        groups: dict[str, dict[str, Any]] = {
            "history": self.watch.history(at.rounds),
            "state": {str(place): leaf for place, leaf in enumerate(state)},
            "memory": {str(place): leaf for place, leaf in enumerate(memory)},
            "path": {"round": list(path), "x": list(path.values()), "start": at.seen.start},
            "measured": {str(place): values[:kept] for place, values in enumerate(measured.values())},
        }
        arrays |= {
            f"{lane}/{g}/{name}": np.asarray(part) for g, parts in groups.items() for name, part in parts.items()
        }
        return {
            "rounds": at.rounds,
            "looked": at.seen.looked,
            "next_look": at.seen.next_look,
            "gradient_at_most": at.seen.gradient_at_most,
            "measured": list(measured),
            "leaves": [len(state), len(memory)],
        }

    def resume(self, note: Mapping[str, Any], arrays: Mapping[str, np.ndarray], lane: int, structure: Any) -> None:
        """Stand where the run stood; ``structure`` is that of the algorithm's state, or None where the method has its own."""
        watch, rounds = self.watch, note["rounds"]

        def group(name: str) -> dict[str, np.ndarray]:
            start = f"{lane}/{name}/"
            return {key.removeprefix(start): values for key, values in arrays.items() if key.startswith(start)}

        state, memory = ([group(n)[str(k)] for k in range(c)] for n, c in zip(("state", "memory"), note["leaves"]))
        own = None if structure is None else jax.tree.unflatten(structure, state)
        path = group("path")
        measured = {name: group("measured")[str(place)].tolist() for place, name in enumerate(note["measured"])}
        kept = dict(zip(path["round"].tolist(), path["x"]))
        seen = Seen(kept, note["next_look"], note["gradient_at_most"], note["looked"], path["start"])
        watch.go_on(rounds, seen, group("history"), measured)
        self.begun, self.written = Begun(rounds, own, memory), rounds
        self.over = rounds == watch.settings.most_rounds
        self.standing = Standing(rounds, state if own is None else own, memory, seen)


def _leaves(memory: Any, rounds: int) -> list[Any]:
    return memory.kept(rounds) if isinstance(memory, KeptMemory) else jax.tree.leaves(memory)

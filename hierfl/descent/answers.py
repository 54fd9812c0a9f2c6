"""What a search was answered, question by question: given the same answers again it comes to the same place, and asks on from there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, UInt64

from hierfl.errors import DivergedError, EmptyLowerSetError, HierflError, LowerLevelError, NoGradientError

FAILURES: tuple[type[HierflError], ...] = (EmptyLowerSetError, LowerLevelError, DivergedError, NoGradientError)
VALUE = len(FAILURES)
WORD = 2**64


class OracleAnswer(NamedTuple):
    """f and its gradient at a point of X, or the place of an error in ``FAILURES``; and the state of the random numbers after it.

    ``y`` is where an iteration on the lower level begins next, (owners, size); (0,) without one.
    """

    kind: int
    x: Float[np.ndarray, " n"]
    value: float
    slope: Float[np.ndarray, " n"]
    random: UInt64[np.ndarray, " 4"]
    y: np.ndarray


@dataclass
class Answers:
    """The answers so far; those after the first ``replayed`` are given again before anything new is asked."""

    all: list[OracleAnswer] = field(default_factory=list)
    replayed: int = 0

    @classmethod
    def of(cls, kept: Sequence[np.ndarray]) -> Answers:
        """Those of :meth:`kept`, to be given again."""
        return cls([OracleAnswer(int(kind), x, float(value), *rest) for kind, x, value, *rest in zip(*kept)])

    @property
    def replaying(self) -> bool:
        """Whether there is an answer that was not given again."""
        return self.replayed < len(self.all)

    def again(self) -> OracleAnswer:
        self.replayed += 1
        return self.all[self.replayed - 1]

    def add(self, answer: OracleAnswer) -> None:
        self.all.append(answer)
        self.replayed += 1

    def kept(self, rounds: int) -> list[Any]:
        """The answers of the first rounds, as arrays."""
        return [np.array(column) for column in zip(*self.all[:rounds])]


def random_words(random: np.random.Generator) -> UInt64[np.ndarray, " 4"]:
    """The state of PCG-64 as numbers; its increment is the seed's."""
    state: Any = random.bit_generator.state
    words = [*divmod(state["state"]["state"], WORD), state["has_uint32"], state["uinteger"]]
    return np.array(words, np.uint64)


def set_random_words(random: np.random.Generator, words: UInt64[np.ndarray, " 4"]) -> None:
    """Go on with the random numbers from such a state."""
    state: Any = random.bit_generator.state
    high, low, has, last = map(int, words)
    state["state"]["state"] = high * WORD + low
    state["has_uint32"], state["uinteger"] = has, last
    random.bit_generator.state = state

"""The linear systems of sets of rows that hold, where programs share H and A: each is inverted once, whatever g and b."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Bool, Float

from hierfl.compiler.host.families.program_shape import ProgramShape
from hierfl.compiler.host.families.stacks import Stack, inverse_of, patterns, times, turned

SCALARS = 2_000_000  # of inverses that are kept
STACKED = 100_000  # of inverses, up to which a copy for each program is sooner than a product for each set
CONDITION = 1e8  # of a linear system whose answer is the only one beyond doubt

Rows = Bool[np.ndarray, "k rows"]
Pair = tuple[Float[np.ndarray, "n n"], Float[np.ndarray, "n n"]]  # a system and its inverse


@dataclass(eq=False)
class HeldSystems:
    """Those of one shape. Several threads may ask: what is kept is replaced, never changed."""

    shape: ProgramShape
    latest: Rows | None = None  # what held for the few programs that were solved last
    inner: HeldSystems | None = None  # those of what is left of such programs without their limits
    _pairs: dict[bytes, Pair] = field(default_factory=dict)
    _determined: dict[bytes, bool] = field(default_factory=dict)
    _stacked: tuple[tuple[int, bytes], Stack, Stack] | None = None

    def on(self, held: Rows, g: Stack, b: Stack) -> tuple[Stack, Stack]:
        """(u, z) with H u + g = A' z, the rows that hold 0 and all other multipliers 0: to the last bit the same in any company."""
        right = -np.concatenate([g, np.where(held, b / self.shape.sizes, 0.0)], axis=1)
        answer, _ = self._solved(held, right, np.asarray)
        return answer[:, : g.shape[1]], answer[:, g.shape[1] :] / self.shape.sizes

    def adjoint(self, held: Rows, seeds: Stack) -> tuple[Stack, Stack, Float[np.ndarray, " k"]]:
        """(v, w, what of the seeds is missed): seed'u moves by -(v, w) times what g and b move by."""
        right = np.concatenate([seeds, np.zeros(held.shape)], axis=1)
        answer, missed = self._solved(held, right, turned)
        width = seeds.shape[1]
        return answer[:, :width], answer[:, width:] / self.shape.sizes, np.linalg.norm(missed, axis=1)

    def determined(self, held: Rows) -> Bool[np.ndarray, " k"]:
        """Where the rows that hold determine u and their multipliers."""
        if not self.shape.shared:
            return np.asarray(np.linalg.cond(self.shape.systems(held)) < CONDITION)
        first, which = patterns(held)
        return np.array([self._determines(held[k]) for k in first], bool)[which]

    def _determines(self, held: Bool[np.ndarray, " rows"]) -> bool:
        key = held.tobytes()
        certain = self._determined.get(key)
        if certain is None:
            certain = bool(np.linalg.cond(self._pair(held)[0]) < CONDITION)
            self._determined = {**self._room(self._determined), key: certain}
        return certain

    def _solved(self, held: Rows, right: Stack, way: Callable[[Stack], Stack]) -> tuple[Stack, Stack]:
        """The solutions after a step of refinement, and what they miss of the right sides; NaN where a system is singular."""
        if len(held) * right.shape[1] ** 2 <= STACKED:
            systems, inverses = self._stacks(held)
            return _refined(way(systems), way(inverses), right)
        answer, missed = np.empty_like(right), np.empty_like(right)
        first, which = patterns(held)
        for at, k in enumerate(first):
            some = which == at
            system, inverse = self._pair(held[k])
            answer[some], missed[some] = _refined(way(system[None]), way(inverse[None]), right[some])
        return answer, missed

    def _stacks(self, held: Rows) -> tuple[Stack, Stack]:
        """The systems and inverses of each; those of the last call are at hand."""
        key, stacked = (len(held), held.tobytes()), self._stacked
        if stacked is None or stacked[0] != key:
            pairs = [self._pair(one) for one in held]
            stacked = key, np.stack([pair[0] for pair in pairs]), np.stack([pair[1] for pair in pairs])
            self._stacked = stacked
        return stacked[1:]

    def _pair(self, held: Bool[np.ndarray, " rows"]) -> Pair:
        key = held.tobytes()
        pair = self._pairs.get(key)
        if pair is None:
            system = self.shape.systems(held[None])[0]
            pair = system, inverse_of(system)
            self._pairs = {**self._room(self._pairs), key: pair}
        return pair

    def _room(self, kept: dict[bytes, Any]) -> dict[bytes, Any]:
        """What is kept, or nothing where it is full."""
        full = len(kept) * sum(self.shape.a.shape[1:]) ** 2 >= SCALARS
        return {} if full else kept


def _refined(systems: Stack, inverses: Stack, right: Stack) -> tuple[Stack, Stack]:
    answer = times(inverses, right)
    answer = answer + times(inverses, right - times(systems, answer))
    return answer, right - times(systems, answer)

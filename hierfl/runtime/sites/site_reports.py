"""What a run tells of each site at its end: how often it answered, what went wrong and when, and what crossed the wire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hierfl.runtime.sites.parcels import Item

MOST_FAULTS = 100  # that are listed
MOST_SPANS = 2000  # of all clients together


@dataclass
class SiteReport:
    """The statistics of one site; ``seconds`` is its own work, as it says, ``faults`` are (round, what happened)."""

    clients: int
    answered: int = 0
    rounds: int = 0
    seconds: float = 0.0
    bytes_down: int = 0
    bytes_up: int = 0
    faults: list[tuple[int, str]] = field(default_factory=list)
    faults_in_all: int = 0
    silent: list[int] = field(default_factory=list)

    def fault(self, round_index: int, what: str) -> None:
        self.faults_in_all += 1
        if len(self.faults) < MOST_FAULTS:
            self.faults.append((round_index, what))

    @property
    def told(self) -> dict[str, Any]:
        return {
            "clients": self.clients,
            "rounds_answered": self.rounds,
            "rounds_without": _spans(self.silent),
            "seconds": round(self.seconds, 6),
            "bytes_down": self.bytes_down,
            "bytes_up": self.bytes_up,
            "faults": [list(fault) for fault in self.faults],
            "faults_in_all": self.faults_in_all,
        }


@dataclass
class RollCall:
    """Who was asked in each round, and whose messages counted; ``names`` are the clients', None for those that have none."""

    names: Sequence[str | None]
    rounds: list[tuple[int, np.ndarray, np.ndarray]] = field(default_factory=list)

    def note(self, round_index: int, asked: np.ndarray, answered: np.ndarray) -> None:
        self.rounds.append((round_index, asked, answered))

    def forget(self, first: int) -> None:
        """Those rounds from there on that do not count after all."""
        self.rounds = [one for one in self.rounds if one[0] < first]

    @property
    def told(self) -> dict[str, Any]:
        """By client, the first and last of each stretch of rounds in which it answered, and in which it was asked and did not."""
        answered, missed = dict[int, list[int]](), dict[int, list[int]]()
        for index, asked, there in self.rounds:
            for client in there.tolist():
                answered.setdefault(client, []).append(index)
            for client in np.setdiff1d(asked, there).tolist():
                missed.setdefault(client, []).append(index)
        return {"answered": self._listed(answered), "missed": self._listed(missed)}

    def _listed(self, of: dict[int, list[int]]) -> dict[str, list[list[int]]] | str:
        spans = {self.names[client] or str(client): _spans(of[client]) for client in sorted(of)}
        many = sum(map(len, spans.values()))
        return spans if many <= MOST_SPANS else f"{many} stretches of rounds, of {len(spans)} clients"


@dataclass(frozen=True)
class Crossing:
    """One message: to (``"down"``) or from (``"up"``) a site, the step that it is for, the arrays in it, and its bytes."""

    site: str
    way: str
    step: str
    items: tuple[Item, ...]
    bytes: int


def _spans(rounds: Sequence[int]) -> list[list[int]]:
    """Rounds as first and last of each stretch."""
    spans: list[list[int]] = []
    for index in rounds:
        if spans and spans[-1][1] == index - 1:
            spans[-1][1] = index
        else:
            spans.append([index, index])
    return spans

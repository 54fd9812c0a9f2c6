"""What a run tells of each site at its end: how often it answered, what went wrong and when, and what crossed the wire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from hierfl.runtime.sites.parcels import Item

MOST_FAULTS = 100  # that are listed


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
        """Note what went wrong in a round."""
        self.faults_in_all += 1
        if len(self.faults) < MOST_FAULTS:
            self.faults.append((round_index, what))

    @property
    def told(self) -> dict[str, Any]:
        """As a result keeps it."""
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

"""What a runtime over sites asks of whatever carries its messages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol


class Lost(NamedTuple):
    """No answer of a site, and why; ``gone`` if its process is."""

    reason: str
    gone: bool = False


class Links(Protocol):
    """The ways to the sites, by name. A site that is gone, or owes an answer, is not among ``ready``."""

    def ready(self) -> frozenset[str]:
        """The sites that can be asked now, those that came back included."""

    def exchange(self, parcels: Mapping[str, bytes], timeout: float) -> dict[str, bytes | Lost]:
        """Send to some sites at once, and collect their answers; none takes longer than the timeout (seconds)."""

    def held(self) -> dict[str, tuple[int, ...]]:
        """Whose data each site that is there holds, by the clients' indices."""

    def born(self, site: str) -> int:
        """A number that is another one when the site's process is another one: a new process knows of no run."""

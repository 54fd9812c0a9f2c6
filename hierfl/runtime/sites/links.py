"""What a runtime over sites asks of whatever carries its messages, and of who holds whose data there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

from hierfl.errors import SiteError


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


def require_known(held: dict[str, tuple[int, ...]], clients: int) -> dict[str, tuple[int, ...]]:
    """Whose data the sites hold, each client's at one site.

    Raises ``SiteError`` if two sites say that they hold the same client's, or one an unknown client's.
    """
    holder: dict[int, str] = {}
    for site, own in held.items():
        for client in own:
            if client in holder:
                raise SiteError(
                    f"sites {holder[client]!r} and {site!r} both say that they hold the data of client {client}: stop one."
                )
            if client >= clients:
                raise SiteError(
                    f"site {site!r} holds the data of client {client}, but the problem has {clients} clients."
                )
            holder[client] = site
    return held


def require_everybody(clients: int, site_of: dict[int, str], names: Sequence[str | None]) -> None:
    """Require that somebody holds each client's data.

    Raises ``SiteError``, naming the clients of whom nobody does.
    """
    missing = [str(names[client] or client) for client in range(clients) if client not in site_of]
    if missing:
        raise SiteError(
            f"no site holds the data of {', '.join(missing[:8])}{', ...' if len(missing) > 8 else ''}: start one for each client, "
            f"hierfl site --problem ... --data ... --scheduler ...."
        )

"""What a worker of Dask runs for a site: an actor that hands each message to the site of its process."""

from __future__ import annotations

import pickle
from uuid import uuid4

from hierfl.errors import SiteError
from hierfl.runtime.sites.site import Site
from hierfl.runtime.sites.site_rules import SiteRules

_SERVED: list[Site] = []  # the site of this process, once it has one


def serve_here(site: Site) -> None:
    """Make this process the one of a site: ``hierfl site`` does, before it joins the cluster."""
    _SERVED[:] = [site]


class Desk:
    """The actor. Its site is the process's own, or one whose data the server hands over, as for sites that are only simulated.

    Parameters
    ----------
    handed
        A pickled ``(name, declaration, held)``; None where the site is to have its own.
    """

    def __init__(self, handed: bytes | None) -> None:
        self._server = uuid4().hex  # every server has a desk of its own
        if handed is not None:
            name, declaration, held = pickle.loads(handed)
            self._site = Site(name, declaration, held, SiteRules(), memories="handed back")
        elif _SERVED:
            self._site = _SERVED[0]
        else:
            raise SiteError("this worker was not started by 'hierfl site': it holds nobody's data.")

    def holds(self) -> list[int]:
        """The clients whose data are here, by their index in the declaration."""
        return list(self._site.held)

    def answer(self, parcel: bytes) -> bytes:
        """Answer a message."""
        return self._site.answer(parcel, self._server)

"""What a certificate says that its holder is: the server, the scheduler, or a site by its name.

It says so by a URI among its alternative names: ``hierfl:server``, ``hierfl:scheduler`` or ``hierfl:site:NAME``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote

SERVER, SCHEDULER = "server", "scheduler"
SCHEME = "hierfl:"


def site_role(name: str) -> str:
    """The role of a site of this name."""
    return f"site:{name}"


def roles_of(certificate: Mapping[str, Any] | None) -> frozenset[str]:
    """The roles of a certificate, as ``ssl`` tells of it; none where there is no certificate."""
    names = (certificate or {}).get("subjectAltName", ())
    return frozenset(
        unquote(name.removeprefix(SCHEME)) for kind, name in names if kind == "URI" and name.startswith(SCHEME)
    )


def name_of(certificate: Mapping[str, Any] | None) -> str | None:
    """The common name of a certificate's holder, such as a server's."""
    named = [value for part in (certificate or {}).get("subject", ()) for kind, value in part if kind == "commonName"]
    return named[0] if len(named) == 1 else None


def unlike(certificate: Mapping[str, Any] | None, *roles: str) -> str | None:
    """What is wrong with a certificate that is to have one of these roles; None where nothing is."""
    found = roles_of(certificate)
    if found & set(roles):
        return None
    wanted = " or ".join(f"{SCHEME}{role}" for role in roles)
    said = ", ".join(f"{SCHEME}{role}" for role in sorted(found)) or "no role"
    return f"its certificate says {said}, not {wanted} (a URI among its alternative names: docs/real_federations.md)"

"""Why a connection failed."""

from __future__ import annotations

import ssl


def last_cause(error: BaseException) -> str:
    """The last in the chain of causes, which says most, by its kind and its words; of a failed handshake also where to look."""
    while (deeper := error.__cause__ or error.__context__) is not None:
        error = deeper
    hint = (
        " One side does not accept the other's certificate: it has expired, or another authority signed it. The other side's log says which."
        if isinstance(error, ssl.SSLError)
        else ""
    )
    return f"{type(error).__name__}: {error}.{hint}"

"""Why a connection failed."""

from __future__ import annotations

import ssl

REFUSED = " One side does not accept the other's certificate: it has expired, or another authority signed it. The other side's log says which."
ENDED = (
    " The other side ended the connection. One side does not accept the other's certificate: it has expired, or another authority signed it; "
    "or one has tls:// and the other tcp://. The other side's log says which."
)
HINTS = dict.fromkeys(("StreamClosedError", "ConnectionResetError", "BrokenPipeError"), ENDED)  # by the names of errors


def last_cause(error: BaseException) -> str:
    """The last in the chain of causes, which says most, by its kind and its words; of a failed handshake also where to look."""
    while (deeper := error.__cause__ or error.__context__) is not None:
        error = deeper
    hint = REFUSED if isinstance(error, ssl.SSLError) else HINTS.get(type(error).__name__, "")
    return f"{type(error).__name__}: {error}.{hint}"

"""``hierfl site`` on a Dask cluster: the process of a site, which has loaded its own data, where it listens, and what certificates say.

A certificate says what its holder is, the server, the scheduler or a site by its name, by a URI among its alternative names:
``hierfl:server``, ``hierfl:scheduler`` or ``hierfl:site:NAME``.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

from hierfl.errors import SettingError, SiteError, needing
from hierfl.near_names import suggests_names
from hierfl.runtime.sites.site import Site

LOG = logging.getLogger("hierfl.site")


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


@suggests_names
@dataclass(frozen=True)
class TLSFiles:
    """A side's certificate: the authority that both sides trust, the certificate that it signed, and its key (PEM files).

    Raises
    ------
    SettingError
        If only some of them are given.
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        if len({value is None for value in (self.ca, self.cert, self.key)}) > 1:
            raise SettingError("TLS needs all of --tls-ca, --tls-cert and --tls-key (TLSFiles(ca=..., cert=..., key=...)).")

    def security(self) -> Any:
        """As Dask takes it, for every role; None without files, in the clear."""
        if self.ca is None:
            return None
        from distributed import Security

        roles = ("client", "worker", "scheduler")
        own = {f"tls_{role}_{kind}": getattr(self, kind) for role in roles for kind in ("cert", "key")}
        return Security(tls_ca_file=self.ca, require_encryption=True, **own)


def _numeric(host: str) -> Any:
    """The address of localhost, or that a number stands for in any spelling, as ``0`` does for ``0.0.0.0``; None for other names."""
    try:
        found = socket.getaddrinfo("127.0.0.1" if host == "localhost" else host, None, flags=socket.AI_NUMERICHOST)
    except (OSError, ValueError):  # of names, and of what is none
        return None
    return ipaddress.ip_address(found[0][4][0])


def place_of(scheduler: str) -> tuple[str, int]:
    """The host and the port of an address. Raises ``SettingError`` for one that names none."""
    try:
        parts = urlsplit(scheduler)
        host, port = parts.hostname, parts.port
    except ValueError:
        parts, host, port = urlsplit(""), None, None
    if parts.scheme not in ("tcp", "tls") or not host or not port:
        raise SettingError(f"scheduler {scheduler!r}: tcp://host:port or tls://host:port.")
    return host, port


def require_closed(files: TLSFiles, insecure: bool, *hosts: str) -> None:
    """Require that nobody is listened to at all addresses at once, nor in the clear beyond this machine, unless that was asked for.

    Raises ``SettingError``, with what to write.
    """
    for host in hosts:
        address = _numeric(host)
        if host in ("", "*") or (address and address.is_unspecified):
            raise SettingError(f"--host {host!r}: listen at one address, that under which the others reach this machine.")
        if files.ca is None and not insecure and not (address and address.is_loopback):
            raise SettingError(
                f"{host} in the clear: whoever is on the way reads the messages, and whoever reaches this process can ask it. Write tls:// and "
                f"--tls-ca, --tls-cert and --tls-key (docs/real_federations.md says how to make these files), or --insecure where the network "
                f"is nobody else's."
            )


def run_scheduler(files: TLSFiles, host: str, port: int, insecure: bool = False) -> None:
    """Be the scheduler, and nothing else, until ended. Raises ``SettingError`` and ``SiteError`` where it may not listen."""
    require_closed(files, insecure, host)
    with needing("hierfl scheduler needs the package distributed: pip install 'hierfl[dask]'."):
        from hierfl.runtime.on_dask.dask_servers import scheduling
    try:
        asyncio.run(scheduling(host, port, files.security()))
    except (OSError, RuntimeError) as error:
        raise SiteError(f"cannot listen at {host}:{port}: {last_cause(error)}") from error


def listening_host(scheduler: str, files: TLSFiles, host: str | None, insecure: bool) -> str:
    """The address at which a site listens: by default that of the interface that reaches the scheduler.

    Raises ``SettingError`` for certificates without ``tls://`` and the other way, for all addresses at once, and for messages in the clear
    beyond this machine that were not asked for.
    """
    there, port = place_of(scheduler)
    if scheduler.startswith("tls://") != (files.ca is not None):
        raise SettingError(
            f"scheduler {scheduler!r}: a tls:// address needs --tls-ca, --tls-cert and --tls-key, and these a tls:// address."
        )
    require_closed(files, insecure, there, *([] if host is None else [host]))
    if host is not None:
        return host
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(there, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as toward:
            toward.connect(address)  # nothing is sent
            return str(toward.getsockname()[0])
    except OSError as error:
        raise SiteError(f"cannot join {scheduler}: {last_cause(error)}") from error


def run_site(
    site: Site,
    scheduler: str,
    files: TLSFiles,
    host: str | None = None,
    port: int | None = None,
    insecure: bool = False,
    joining: float = 30.0,
) -> None:
    """Join the cluster (for ``joining`` seconds) and answer; returns when the scheduler closes the worker.

    The scheduler's address is ``tcp://...``, or ``tls://...``, for which ``files`` are this site's certificate. The site listens as
    :func:`listening_host` says, at any free port unless one is named; ``insecure`` lets messages go in the clear to other machines.

    Raises ``SettingError`` for a place where it would listen to everybody; ``SiteError`` if the scheduler cannot be reached, or one of both does
    not accept the other's certificate; ``MissingPackageError`` without ``distributed``.
    """
    place = listening_host(scheduler, files, host, insecure), port or 0
    with needing("hierfl site needs the package distributed: pip install 'hierfl[dask]'."):
        import distributed  # noqa: F401
    with tempfile.TemporaryDirectory(prefix="hierfl-site-") as folder:  # Dask's own is shared with the machine's other users
        asyncio.run(_serve(site, scheduler, files.security(), place, joining, folder))


async def _serve(
    site: Site, scheduler: str, security: Any, place: tuple[str, int], joining: float, folder: str
) -> None:
    from distributed import Security

    from hierfl.runtime.on_dask.dask_servers import SiteWorker, connected, read_plainly

    read_plainly()
    trusted = security or Security()
    try:
        comm = await connected(scheduler, trusted.get_connection_args("worker"), joining)
        await comm.close()
    except (TimeoutError, OSError) as error:
        raise SiteError(f"cannot join {scheduler}: {last_cause(error)}") from error
    settings: dict[str, Any] = {"death_timeout": joining, "silence_logs": logging.ERROR, "local_directory": folder}
    worker = SiteWorker(site, scheduler, *place, security=trusted, **settings)
    try:
        await worker
    except (TimeoutError, OSError, ValueError, RuntimeError) as error:
        raise SiteError(f"cannot join {scheduler} as {site.name!r}: {last_cause(error)}") from error
    clients, joined = ", ".join(map(str, site.held)), "%s: joined %s, with the data of clients %s; listening at %s"
    LOG.info(joined, site.name, scheduler, clients, worker.address)
    await worker.finished()


SERVER, SCHEDULER = "server", "scheduler"
SCHEME = "hierfl:"


def site_role(name: str) -> str:
    """The role of a site of this name."""
    return f"site:{name}"


def name_of(certificate: Mapping[str, Any] | None) -> str | None:
    """The common name of a certificate's holder, such as a server's."""
    named = [value for part in (certificate or {}).get("subject", ()) for kind, value in part if kind == "commonName"]
    return named[0] if len(named) == 1 else None


def unlike(certificate: Mapping[str, Any] | None, *roles: str) -> str | None:
    """What is wrong with a certificate that is to have one of these roles; None where nothing is."""
    names = (certificate or {}).get("subjectAltName", ())  # as ssl tells of them
    found = {unquote(name.removeprefix(SCHEME)) for kind, name in names if kind == "URI" and name.startswith(SCHEME)}
    if found & set(roles):
        return None
    wanted = " or ".join(f"{SCHEME}{role}" for role in roles)
    said = ", ".join(f"{SCHEME}{role}" for role in sorted(found)) or "no role"
    return f"its certificate says {said}, not {wanted} (a URI among its alternative names: docs/real_federations.md)"

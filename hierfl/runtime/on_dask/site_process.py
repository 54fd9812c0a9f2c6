"""The process of a site: it has loaded its own data, joins a Dask cluster as a worker, and answers until the scheduler is gone."""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass
from typing import Any

from hierfl.errors import MissingPackageError, SettingError, SiteError
from hierfl.near_names import suggests_names
from hierfl.runtime.on_dask.desk_links import serve_here
from hierfl.runtime.sites.site import Site

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


LOG = logging.getLogger("hierfl.site")


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
            raise SettingError(
                "TLS needs all of --tls-ca, --tls-cert and --tls-key (TLSFiles(ca=..., cert=..., key=...))."
            )

    def security(self) -> Any:
        """As Dask takes it, for every role; None without files, in the clear."""
        if self.ca is None:
            return None
        from distributed import Security

        roles = ("client", "worker", "scheduler")
        own = {f"tls_{role}_{kind}": getattr(self, kind) for role in roles for kind in ("cert", "key")}
        return Security(tls_ca_file=self.ca, require_encryption=True, **own)


def run_site(site: Site, scheduler: str, files: TLSFiles, host: str | None = None, joining: float = 30.0) -> None:
    """Join the cluster and answer; returns when the scheduler closes the worker.

    Parameters
    ----------
    site
        With its data and its owner's rules.
    scheduler
        The address, ``tcp://...`` or ``tls://...``.
    files
        This site's certificate, for ``tls://``.
    host
        The address under which the scheduler reaches this machine, where Dask's guess is wrong.
    joining
        Seconds to try to reach the scheduler.

    Raises
    ------
    SiteError
        If the scheduler cannot be reached, or does not accept the certificate, or has no acceptable one itself.
    MissingPackageError
        Without ``distributed``.
    """
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        raise MissingPackageError("hierfl site needs the package distributed: pip install 'hierfl[dask]'.") from error
    if scheduler.startswith("tls://") != (files.ca is not None):
        raise SettingError(
            f"scheduler {scheduler!r}: a tls:// address needs --tls-ca, --tls-cert and --tls-key, and these a tls:// address."
        )
    serve_here(site)
    asyncio.run(_serve(site, scheduler, files.security(), host, joining))


async def _serve(site: Site, scheduler: str, security: Any, host: str | None, joining: float) -> None:
    from distributed import Security, Worker
    from distributed.comm import connect

    trusted = security or Security()
    try:
        comm = await connect(scheduler, timeout=joining, **trusted.get_connection_args("worker"))
        await comm.close()
    except (TimeoutError, OSError) as error:
        raise SiteError(f"cannot join {scheduler}: {last_cause(error)}") from error
    worker = Worker(
        scheduler,
        name=site.name,
        nthreads=1,
        security=trusted,
        host=host,
        dashboard=False,
        death_timeout=joining,
        memory_limit=0,
        silence_logs=logging.ERROR,
    )
    try:
        await worker
    except (TimeoutError, OSError, ValueError, RuntimeError) as error:
        raise SiteError(f"cannot join {scheduler} as {site.name!r}: {last_cause(error)}") from error
    LOG.info("%s: joined %s, with the data of clients %s", site.name, scheduler, ", ".join(map(str, site.held)))
    await worker.finished()

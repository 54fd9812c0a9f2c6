"""The sites of a Dask cluster: the process of one, which has loaded its own data and joins as a worker, and the server's ways to them all.

An actor at each site hands it messages; it is asked side by side with others, and looked for again when its worker is gone. Messages go by
the scheduler, so that a site needs to reach nobody but the scheduler, and answers until that is gone. A worker that has left the scheduler
is noticed within a second or so; one that does not answer in time is not asked again before it has.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import ssl
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from hierfl.errors import MissingPackageError, SettingError, SiteError
from hierfl.jaxtools.interruption import overdue
from hierfl.near_names import suggests_names
from hierfl.runtime.sites.parcels import Lost
from hierfl.runtime.sites.site import Site, SiteRules

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
            self._site = Site(name, declaration, held, SiteRules(shared_seeds=True), memories="handed back")
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


LOOK = 0.5  # seconds between looks whether workers are there
STARTING = 60.0  # seconds that an actor may take to be there


class DeskLinks:
    """The links of one run.

    Parameters
    ----------
    client
        Connected to the scheduler.
    handed
        What each site is handed, by the name of its worker; None for sites that have their own data.
    """

    def __init__(self, client: Any, handed: Mapping[str, bytes] | None) -> None:
        self.client, self.handed = client, handed
        self.desks: dict[str, Any] = {}
        self.refusals: dict[str, str] = {}
        self._addresses: dict[str, str] = {}
        self._births: dict[str, int] = {}
        self._held: dict[str, tuple[int, ...]] = {}
        self._late: dict[str, asyncio.Task[Any]] = {}
        self._open: dict[str, asyncio.Task[bytes]] = {}  # sent for, answers to come one by one
        self._looked = -LOOK

    # --- who is there --------------------------------------------------------------------------------------------------

    def ready(self) -> frozenset[str]:
        """The sites that can be asked."""
        missing = self.handed is None or bool(self.handed.keys() - self.desks.keys())
        if missing and time.monotonic() - self._looked >= LOOK:
            self.look()
        late = {site for site, task in self._late.items() if not task.done()}
        return frozenset(self.desks.keys() - late)

    def look(self) -> None:
        """Look for workers that came, or went, and put an actor at each that has none."""
        self._looked = time.monotonic()
        there = self._workers()
        for site in [site for site, address in self._addresses.items() if there.get(site) != address]:
            self._forget(site)
        for site, address in there.items():
            if site in self.desks or (self.handed is not None and site not in self.handed):
                continue
            handed = None if self.handed is None else self.handed[site]
            future = self.client.submit(
                Desk, handed, actor=True, workers=[address], allow_other_workers=False, pure=False
            )
            try:
                with self.client.as_current():  # actors take the client that is current when they are first asked
                    desk = future.result(timeout=STARTING)
                    self._held[site] = tuple(desk.holds().result(timeout=STARTING))
            except Exception as error:  # whatever keeps a worker from having a desk, the others do
                self.refusals[site] = f"{type(error).__name__}: {error}"
                continue
            self.desks[site] = desk
            self._addresses[site] = address
            self._births[site] = self._births.get(site, 0) + 1

    def born(self, site: str) -> int:
        """How many processes this site has had."""
        return self._births.get(site, 0)

    def held(self) -> dict[str, tuple[int, ...]]:
        """Whose data each site holds."""
        return {site: self._held[site] for site in self.desks}

    def _workers(self) -> dict[str, str]:
        """The addresses of the cluster's workers, by name."""
        workers = self.client.scheduler_info(n_workers=-1)["workers"]
        return {str(worker["name"]): address for address, worker in workers.items()}

    def _forget(self, site: str) -> None:
        self.desks.pop(site, None)
        self._addresses.pop(site, None)
        if (late := self._late.pop(site, None)) is not None:
            self.client.loop.add_callback(self._unwanted, late)

    # --- messages -------------------------------------------------------------------------------------------------------

    def exchange(self, parcels: Mapping[str, bytes], timeout: float) -> dict[str, bytes | Lost]:
        """Ask them all at once."""
        found: dict[str, bytes | Lost] = self.client.sync(self._exchange, parcels, timeout)
        for site, reply in found.items():
            if isinstance(reply, Lost) and reply.gone:
                self._forget(site)
        return found

    async def _exchange(self, parcels: Mapping[str, bytes], timeout: float) -> dict[str, bytes | Lost]:
        until = time.monotonic() + timeout
        tasks = {site: asyncio.ensure_future(self._ask(site, parcel)) for site, parcel in parcels.items()}
        gone: set[str] = set()
        while True:
            waiting = {task for site, task in tasks.items() if not task.done() and site not in gone}
            left = until - time.monotonic()
            if not waiting or left <= 0 or overdue():
                break
            done, _ = await asyncio.wait(waiting, timeout=min(LOOK, left))
            if not done:
                identity = await self.client.scheduler.identity(n_workers=-1)
                gone |= {site for site in tasks if self._addresses.get(site) not in identity["workers"]}
        return {site: self._reply(site, task, timeout, gone) for site, task in tasks.items()}

    # --- messages whose answers come one by one ----------------------------------------------------------------------------

    def send(self, site: str, parcel: bytes) -> None:
        """Ask one site, and do not wait."""
        self._open[site] = self.client.sync(self._launched, site, parcel)

    def arrival(self, timeout: float) -> tuple[str, bytes | Lost] | None:
        """The next answer of those that were sent for, or None."""
        arrived: tuple[str, bytes | Lost] | None = self.client.sync(self._arrival, timeout)
        if arrived is not None and isinstance(arrived[1], Lost) and arrived[1].gone:
            self._forget(arrived[0])
        return arrived

    @property
    def clock(self) -> float:
        """Seconds."""
        return time.monotonic()

    async def _launched(self, site: str, parcel: bytes) -> asyncio.Task[bytes]:
        task = asyncio.ensure_future(self._ask(site, parcel))
        task.add_done_callback(lambda done: None if done.cancelled() else done.exception())  # a run may end before it
        return task

    async def _arrival(self, timeout: float) -> tuple[str, bytes | Lost] | None:
        until = time.monotonic() + timeout
        while self._open:
            for site, task in list(self._open.items()):
                if task.done():
                    del self._open[site]
                    return site, self._reply(site, task, timeout)
            left = until - time.monotonic()
            if left <= 0:
                return None
            waiting = set(self._open.values())
            done, _ = await asyncio.wait(waiting, timeout=min(LOOK, left), return_when=asyncio.FIRST_COMPLETED)
            if not done:
                identity = await self.client.scheduler.identity(n_workers=-1)
                for site, task in list(self._open.items()):
                    if self._addresses.get(site) not in identity["workers"] and not task.done():
                        self._unwanted(task)
                        del self._open[site]
                        return site, Lost("its process is gone", gone=True)
        await asyncio.sleep(timeout)  # nobody is at work
        return None

    async def _ask(self, site: str, parcel: bytes) -> bytes:
        answer: bytes = await self.desks[site].answer(parcel)
        return answer

    @staticmethod
    def _unwanted(task: asyncio.Task[bytes]) -> None:
        """Let go of an answer that nobody waits for any more, whatever it is."""
        task.cancel()
        task.add_done_callback(lambda done: None if done.cancelled() else done.exception())

    def _reply(self, site: str, task: asyncio.Task[bytes], timeout: float, gone: Collection[str] = ()) -> bytes | Lost:
        if not task.done():
            if site not in gone:
                self._late[site] = task
                return Lost(f"no answer within {timeout:g} s")
            self._unwanted(task)
            return Lost("its process is gone", gone=True)
        error = task.exception()
        if error is None:
            return task.result()
        if isinstance(error, OSError):
            return Lost("its process is gone", gone=True)
        return Lost(f"{type(error).__name__}: {error}")


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

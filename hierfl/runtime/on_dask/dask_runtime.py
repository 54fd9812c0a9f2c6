"""``hf.runtime.Dask``: runs whose clients are at sites that have joined a Dask scheduler, each with its own data, or are simulated here.

The simulated ones are processes of this machine, which are handed their data, and reached by pipes of their own, so that no port is open.
What they are handed is pickled: their code and their data are this side's. Each imports the user's script again, and must not run it.
"""

from __future__ import annotations

import ast
import linecache
import multiprocessing
import pickle
import signal
import socket
import sys
import time
import weakref
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from uuid import uuid4

import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import SettingError, SiteError, needing
from hierfl.near_names import suggests_names
from hierfl.runtime.on_dask.lines import (
    ASKED,
    HANDED,
    HEADER,
    HELLO,
    LOOK,
    LineLinks,
    SiteLine,
    framed,
    heard,
    length_of,
)
from hierfl.runtime.on_dask.site_process import last_cause, place_of, site_role, unlike
from hierfl.runtime.site_runtime import SiteRuntime
from hierfl.runtime.sites.letters import Introduction, Letter, message_of, packed, reply_of
from hierfl.runtime.sites.owner.site_rules import SiteRules
from hierfl.runtime.sites.parcels import Lost, Refusal, unpickled_solver, without_data
from hierfl.runtime.sites.site import Site

JOINING = 120.0  # seconds for the processes to be there, on a busy machine
ENDING = 5.0  # seconds for them to end


HandedPart = tuple[tuple[int, ...], bytes]  # a site's clients; with their data the declaration without any, pickled


def parts_of(problem: CompiledProblem, sites: int) -> dict[str, HandedPart]:
    """What each site is handed."""
    bare, federation = without_data(problem.declaration), problem.declaration.federation
    if federation is None:
        raise SiteError("the problem has no federation: there is nobody to be at a site.")
    shares = np.array_split(np.arange(problem.num_clients), min(sites, problem.num_clients))
    parts = {}
    for name, share in enumerate(shares):
        held = {int(place): federation.clients[place] for place in share}
        parts[str(name)] = tuple(held), pickle.dumps((f"site {name}", bare, held))
    return parts


def serve_pipe(connection: socket.socket) -> None:
    """Be a simulated site until the other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the server, which then wants answers still
    site: Site | None = None
    frames = connection.makefile("rb")
    while (question := _next(frames)) is not None:
        kind, content = question[:1], question[1:]
        try:
            if kind == HANDED:
                name, declaration, held = pickle.loads(content)
                given = name, declaration, held, SiteRules(shared_seeds=True)
                site, answer = Site(*given, memories="handed back", read_solver=unpickled_solver), HANDED
            elif kind == ASKED and site is not None:
                answer = site.answer(content)
            else:
                answer = HELLO
        except Exception as error:  # whatever it is, the server must hear of it
            answer = packed(Refusal(f"{type(error).__name__}: {error}", failed=True))
        connection.sendall(framed(answer))


def _next(frames: BinaryIO) -> bytes | None:
    """The next frame's content; None where the other end is closed."""
    with suppress(ConnectionError):
        header = frames.read(HEADER.size)
        if len(header) == HEADER.size:
            content = frames.read(length := length_of(header))
            return content if len(content) == length else None
    return None


class LocalSites(LineLinks):
    """The processes and the links to them, kept from problem to problem until they are closed; one that has died is started again."""

    def __init__(self) -> None:
        super().__init__()
        self.processes: dict[str, BaseProcess] = {}
        self._parts: Mapping[str, HandedPart] = {}
        self._coming: dict[str, SiteLine] = {}  # those that are not there yet, or have still to take their part
        self._spare: dict[str, SiteLine] = {}  # those that hold another problem's

    def hand(self, parts: Mapping[str, HandedPart]) -> None:
        self._parts = parts
        self._spare |= self.lines | self._coming  # one that still takes its part would have the last problem's
        self.lines, self._coming = {}, {}
        self._held = {site: clients for site, (clients, _) in parts.items()}
        self.look()

    def look(self) -> None:
        """Wait until all are there. Raises ``SiteError`` if one cannot begin."""
        super().look()
        until = time.monotonic() + JOINING
        while self._begin() or self._coming:
            for site, reply in heard(self._coming, LOOK).items():
                if not self._met(site, reply):
                    said = reply_of(reply, None).reason if isinstance(reply, bytes) else "its output says why"
                    raise SiteError(f"the process of site {site} on this machine ended before it had begun: {said}")
            if time.monotonic() > until:
                raise SiteError(f"the sites' processes on this machine have not begun within {JOINING:g} s.")

    def ready(self) -> frozenset[str]:
        if self._begin() or self._coming:
            for site, reply in heard(self._coming, 0.0).items():
                self._met(site, reply)
        return super().ready()

    def close(self) -> None:
        for line in (*self._coming.values(), *self._spare.values()):
            line.close()
        super().close()
        for process in self.processes.values():
            process.join(ENDING)
            process.kill()
            process.join()

    def _begin(self) -> bool:
        """Greet whoever has still to take its part, in a new process if need be; whether there is anybody."""
        missing = self._parts.keys() - self.lines.keys() - self._coming.keys()
        for site in missing:
            line = self._spare.pop(site, None)
            if line is None or line.waits or not self.processes[site].is_alive():
                line = self._started(site)
            line.send(HELLO, LOOK)
            self._coming[site] = line
        return bool(missing)

    def _started(self, site: str) -> SiteLine:
        if site in self.processes:
            self.processes[site].kill()
            self.processes[site].join()
        here, there = socket.socketpair()
        with there:
            process = multiprocessing.get_context("spawn").Process(target=serve_pipe, args=(there,), daemon=True)
            process.start()
        self.processes[site] = process
        return SiteLine(here)

    def _met(self, site: str, reply: bytes | Lost) -> bool:
        """Hand a site its part, or take it in that has it; whether it goes on."""
        line = self._coming[site]
        if reply == HELLO:
            line.send(HANDED + self._parts[site][1], JOINING)
            return True
        del self._coming[site]
        if reply != HANDED:
            line.close()
            return False
        self.lines[site] = line
        self._births[site] = self.born(site) + 1
        return True


LOCAL_SITES = 3


@suggests_names
@dataclass(frozen=True)
class Dask(SiteRuntime):
    """Run with clients at sites, found by a Dask scheduler.

    With ``scheduler`` the sites are processes that their owners started by ``hierfl site``, each with its own data: declare these as
    ``hf.Elsewhere``. They answer messages of named arrays and run nothing that arrives. Without it ``sites`` processes are started on this
    machine and handed the clients' data, which is a simulation of sites; no port is open. Same seed, same iterates as in process, where
    rows are not drawn at random or ``shared_seeds``: keys are folded from (round, client, step).

    Parameters
    ----------
    scheduler
        The scheduler's address, such as ``"tls://server:8786"``.
    sites
        How many processes to start without one.
    timeout
        Seconds that a site may take to answer. One that takes longer is left out until it has answered.
    minimum
        The fewest clients that a round is made with (of those drawn for it). With fewer the run ends, as ``"paused: ..."``.
    patience
        Seconds to wait at the start for everybody, and at the beginning of a round for that many to be there.
    largest
        The largest entry of a message that is believed.
    shared_seeds
        Whether sites draw minibatches by the run's seed, as a run in process does, so that iterates are the same; their owners have to
        allow it (``hierfl site --shared-seeds``), since the server then knows which rows are behind every number. Else every site draws under
        a secret of its own.
    security
        A ``distributed.Security`` with this side's certificate, for a ``tls://`` scheduler (docs/real_federations.md).
    watcher
        Called with a ``hierfl.runtime.sites.site_reports.Crossing`` for everything that is sent and received.
    asynchronous, buffer, staleness
        Without rounds, after FedBuff: every site works at its own pace, and x steps when the moves of ``buffer`` sites have come, each times
        (1 + tau)^(-staleness) where tau steps were made since it was given its x. For ``FedAvg``, ``ZOHFL`` and ``FedRZO`` without
        cohorts and without a lower level that all answer together. The order of answers, and so the iterates, are the wire's.
    aggregation, adversaries
        ``"median"``, ``"trimmed mean"``, ``"geometric median"`` or ``"Krum"`` in place of the weighted mean of what clients send, for up to
        that share of clients that send anything; it counts clients alike (:mod:`hierfl.runtime.sites.aggregation`).
    noise
        A :class:`GaussianNoise`: clients' messages are clipped and noised at their sites, so that each client has differential privacy
        against the server.
    masks
        :class:`PairwiseMasks`: the server sees sums over sites, and no single site's messages.

    Raises
    ------
    SettingError
        For settings out of range; when a run begins, for a solver that cannot be written as text where sites are others'.
    MissingPackageError
        If ``distributed`` is not installed, with ``scheduler``.
    SiteError
        When a run begins, if sites are missing or refuse.

    Examples
    --------
    >>> with hf.runtime.Dask(sites=3) as runtime:  # doctest: +SKIP
    ...     result = problem.solve(ZOHFL(), runtime=runtime, rounds=200)
    """

    scheduler: str | None = None
    sites: int | None = None
    security: Any = field(default=None, repr=False)
    _session: _Session = field(default_factory=lambda: _Session(), init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scheduler is not None and self.sites is not None:
            raise SettingError("Dask(scheduler=..., sites=...): a scheduler's sites are those that joined it; leave sites out.")
        if self.sites is not None and self.sites < 1:
            raise SettingError(f"Dask(sites={self.sites!r}): at least 1.")

    @property
    def _wire(self) -> str:
        if self.scheduler is None:
            return super()._wire
        return "TLS, both sides with certificates" if self.scheduler.startswith("tls://") else "in the clear: whoever is on the way reads it"

    @property
    def _hands_data(self) -> bool:
        return self.scheduler is None

    def _links(self, problem: CompiledProblem) -> Any:
        return self._session.links(self, problem)

    def close(self) -> None:
        """End the connections, and the processes that were started here. The next run starts again."""
        self._session.close()

    def __enter__(self) -> Dask:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Session:
    """The links, kept from run to run with what is compiled at the sites, until they are closed or nobody has them any more."""

    def __init__(self) -> None:
        self._open = ExitStack()
        self._links: LocalSites | RemoteSites | None = None
        self._of: tuple[CompiledProblem, Any] | None = None  # what the sites on this machine were handed, with its parameters' values
        weakref.finalize(self, self._open.close)

    def links(self, runtime: Dask, problem: CompiledProblem) -> LocalSites | RemoteSites:
        if self._links is None:
            self._links = self._begun(runtime)
            self._open.callback(self._links.close)
        handed = problem, problem.parameter_values
        if isinstance(self._links, RemoteSites) or self._of == handed:
            self._links.look()
            return self._links
        self._of = None
        problem.require_all_here("sites on this machine, which hf.runtime.Dask() starts")
        self._links.hand(parts_of(problem, runtime.sites or LOCAL_SITES))
        self._of = handed
        return self._links

    def _begun(self, runtime: Dask) -> LocalSites | RemoteSites:
        if runtime.scheduler is None:
            require_guard("hf.runtime.Dask on this machine")
            return LocalSites()
        with needing("hf.runtime.Dask(scheduler) needs the package distributed: pip install 'hierfl[dask]'."):
            return RemoteSites(runtime.scheduler, runtime.security)

    def close(self) -> None:
        self._of = self._links = None
        self._open.close()


def require_guard(who: str) -> None:
    """Require that the line of the main script that is being run stands under an ``if``, so that whoever imports the script can skip it.

    Raises ``SiteError``, naming the file and the line, with what to write.
    """
    file, line = _running()
    if file is None:
        return

    def holds(part: ast.stmt) -> bool:
        return part.lineno <= line <= (part.end_lineno or part.lineno)

    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # no Python: whoever runs it knows what happens in its processes
        return
    statement = next(filter(holds, tree.body), None)
    if statement is None or any(isinstance(part, ast.If) and holds(part) for part in ast.walk(statement)):
        return
    raise SiteError(
        f"{who} starts processes, each of which imports {Path(file).name} and would run its line {line} again. Put what the script does "
        "into a function, such as main(), and call it at the end under if __name__ == '__main__': main()."
    )


def _running() -> tuple[str | None, int]:
    """The main script's file and the line of it that is being run at its top level; no file where there is none, as in a notebook."""
    main, frame, line = sys.modules["__main__"], sys._getframe(), 0
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_globals is vars(main) and frame.f_code.co_name == "<module>":
            line = frame.f_lineno  # the outermost counts: exec() has frames of its own
    return (getattr(main, "__file__", None), line) if line else (None, 0)


REACHING = 60.0  # seconds to reach the scheduler
CONNECTING = 10.0  # seconds to reach a site
LISTING = 1.0  # seconds between looks whether sites came
AGAIN = 5.0  # seconds until a site that could not be asked is tried again
PROCESS = 32  # bytes by which a process of a site is known


class Met(NamedTuple):
    """A site that was reached: the line to it, its process, and whose data it holds."""

    line: SiteLine
    process: bytes
    clients: tuple[int, ...]


class RemoteSites(LineLinks):
    """The links to sites that have joined a scheduler, by a ``distributed.Security`` with the server's certificate, or in the clear.

    It names them and their addresses, and messages go to each straight, by a connection of its own. A site that has left is noticed at once
    where its process has ended, and one that came within a second or two. A site whose certificate says another name than that under which it
    has joined is none.
    """

    def __init__(self, scheduler: str, security: Any) -> None:
        from distributed import Security

        super().__init__()
        self.scheduler, self._security = scheduler, (security or Security()).get_connection_args("client")
        self._mark = uuid4().bytes  # by which sites know this server again
        self._threads = ThreadPoolExecutor(8, thread_name_prefix="hierfl sites")
        self._listing: Future[dict[str, str]] | None = None
        self._coming: dict[str, Future[Met]] = {}
        self._addresses: dict[str, str] = {}
        self._processes: dict[str, bytes] = {}
        self._tried: dict[tuple[str, str], float] = {}
        self._looked = -LISTING

    def look(self) -> None:
        """Ask the scheduler, and wait for those whom it names. Raises ``SiteError`` if it cannot be asked."""
        super().look()
        self._listing = self._listing or self._threads.submit(self._listed, REACHING)
        try:
            self._listing.result()
        except (OSError, ValueError, TypeError, LookupError, RuntimeError) as error:
            self._listing = None
            raise SiteError(f"cannot reach the scheduler {self.scheduler}: {last_cause(error)}") from error
        self._take_in()
        wait(self._coming.values())
        self._take_in()

    def ready(self) -> frozenset[str]:
        self._take_in()
        if self._listing is None and time.monotonic() - self._looked >= LISTING:
            self._listing = self._threads.submit(self._listed, 0.0)
        return super().ready()

    def close(self) -> None:
        super().close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _listed(self, timeout: float) -> dict[str, str]:
        from hierfl.runtime.on_dask.dask_servers import workers_of

        return workers_of(self.scheduler, self._security, timeout)

    def _take_in(self) -> None:
        """What the scheduler has said, and whoever was reached."""
        if self._listing is not None and self._listing.done():
            listing, self._listing, self._looked = self._listing, None, time.monotonic()
            if listing.exception() is None:
                self._call(listing.result())
        for site, future in list(self._coming.items()):
            if future.done():
                del self._coming[site]
                if future.exception() is not None:
                    self.refusals[site] = str(future.exception())
                    continue
                met = future.result()
                self.refusals.pop(site, None)
                if self._processes.get(site) != met.process:
                    self._births[site] = self.born(site) + 1
                self.lines[site], self._held[site], self._processes[site] = met.line, met.clients, met.process

    def _call(self, there: Mapping[str, str]) -> None:
        """Connect to those that are new, and let go of those that have left."""
        self._forget(site for site in self.lines if there.get(site) != self._addresses[site])
        for site in self.refusals.keys() - there.keys():
            del self.refusals[site]
        for site, address in there.items():
            tried = self._tried.get((site, address), -AGAIN)
            lately = site in self.refusals and time.monotonic() - tried < AGAIN
            if site in self.lines or site in self._coming or lately:
                continue
            self._addresses[site], self._tried[site, address] = address, time.monotonic()
            self._coming[site] = self._threads.submit(self._met, site, address)

    def _met(self, site: str, address: str) -> Met:
        """Connect to a site, and hear who it is. Raises ``SiteError`` if that cannot be."""
        try:
            connection = socket.create_connection(place_of(address), CONNECTING)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            context = self._security["ssl_context"]
            if context is not None:
                connection = context.wrap_socket(connection)
                if (wrong := unlike(connection.getpeercert(), site_role(site))) is not None:
                    connection.close()
                    raise SiteError(wrong)
            line = SiteLine(connection)
            line.send(HELLO + self._mark, CONNECTING)
            answer = heard({site: line}, CONNECTING).get(site)
            if not isinstance(answer, bytes):
                line.close()
                raise SiteError(f"at {address} it ended the connection, or says nothing: its log says why")
            who = message_of(Letter.from_bytes(answer[PROCESS:]), Introduction)
        except OSError as error:
            raise SiteError(f"cannot be reached at {address}: {last_cause(error)}") from error
        return Met(line, answer[:PROCESS], who.clients)

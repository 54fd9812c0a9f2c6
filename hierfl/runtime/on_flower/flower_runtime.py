"""``hf.runtime.Flower``: runs whose clients are at the SuperNodes of Flower, inside a ServerApp.

Nothing is pickled: a solver travels as it is written in Python.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import SettingError, SiteError, needing
from hierfl.jaxtools.interruption import overdue
from hierfl.near_names import suggests_names
from hierfl.runtime.site_runtime import SiteRuntime
from hierfl.runtime.sites.letters import SERVER, Hello, Introduction, Letter, message_of, packed
from hierfl.runtime.sites.parcels import Lost


@suggests_names
@dataclass(frozen=True)
class Flower(SiteRuntime):
    """Run with clients at the SuperNodes of Flower, each with its own data, reached by messages of named arrays; nothing is pickled.

    It is made inside a ServerApp, such as ``hierfl flower new`` writes. Same seed, same iterates as in process, where rows are not drawn at
    random or ``shared_seeds``: keys are folded from (round, client, step). Flower starts a process for each message at each node, so that a
    round takes seconds (docs/real_federations.md).

    Parameters
    ----------
    grid
        The ``flwr.serverapp.Grid`` that a ServerApp is given.
    timeout, minimum, patience, largest, shared_seeds, watcher
        As in ``hf.runtime.Dask``, where a site has ten minutes to answer, and two are waited for those that are missing (seconds).
    asynchronous, buffer, staleness, aggregation, adversaries
        Without rounds, and a robust aggregate in place of the weighted mean, as in ``hf.runtime.Dask``.
    noise, masks
        A :class:`GaussianNoise`, and :class:`PairwiseMasks`, as in ``hf.runtime.Dask``; masks take a second exchange in every round.

    Raises
    ------
    SettingError
        For settings out of range; when a run begins, for a solver that cannot be written as text, such as one with a function.
    MissingPackageError
        If ``flwr`` is not installed.
    SiteError
        When a run begins, if sites are missing or refuse.

    Examples
    --------
    >>> runtime = hf.runtime.Flower(grid, timeout=600, minimum=2)  # doctest: +SKIP
    """

    grid: Any = field(repr=False)
    timeout: float = field(default=600.0, kw_only=True)
    patience: float = field(default=120.0, kw_only=True)
    _kept: list[Any] = field(default_factory=list, init=False, repr=False, compare=False)  # what is known of the nodes, from run to run

    def __post_init__(self) -> None:
        super().__post_init__()
        if not hasattr(self.grid, "push_messages"):
            raise SettingError(
                f"Flower(grid={type(self.grid).__name__}): the Grid that a ServerApp's main function is given; "
                f"hierfl flower new writes such an app."
            )

    @property
    def _wire(self) -> str:
        return "Flower's, as its SuperLink was started"

    def _links(self, problem: CompiledProblem) -> Any:
        if not self._kept:
            with needing("hf.runtime.Flower needs the package flwr: pip install 'hierfl[flower]'."):
                import flwr  # noqa: F401
            self._kept.append(GridLinks(self.grid, self.timeout))
        self._kept[0].look()
        return self._kept[0]


PULL = 0.2  # seconds between looks for replies
LOOK = 2.0  # seconds between looks for nodes
AGAIN = 20.0  # seconds until a node that had no site is asked again
PATIENCE, LATEST, LEAST = 2.0, 5, 15.0  # times the longest of so many latest answers, and seconds at least: a first round compiles, and machines have other work


class GridLinks:
    """The ways to the sites over Flower's grid: one message to a node for each question, and its reply.

    A node may take ``timeout`` seconds to say whose data it has. One that does not answer in time is not asked again before its reply is there,
    or has expired. One that has answered before is waited for twice as long as it took then, or as the others take now: the SuperLink hears of a
    node that was killed much later.
    """

    def __init__(self, grid: Any, timeout: float) -> None:
        self.grid, self.timeout, self._mark = grid, timeout, uuid4().hex
        self.refusals: dict[str, str] = {}  # of nodes: why each is no site
        self._nodes: dict[str, int] = {}
        self._held: dict[str, tuple[int, ...]] = {}
        self._hellos: dict[int, str] = {}  # nodes that were asked who they are, and the messages
        self._births: dict[str, int] = {}
        self._siteless: dict[int, float] = {}  # nodes that had no site, and when they said so
        self._late: dict[str, str] = {}
        self._took: dict[str, deque[float]] = {}  # seconds until each site's latest answers were there
        self._open: dict[str, tuple[str, float]] = {}  # what was sent for, by message: the site, and when
        self._arrived: dict[str, bytes | Lost] = {}  # answers among them that nobody has asked for yet
        self._online: frozenset[int] = frozenset()
        self._looked = -LOOK

    def ready(self) -> frozenset[str]:
        self.look()
        if self._late:
            arrived = self._pulled(set(self._late.values()))
            self._late = {site: message for site, message in self._late.items() if message not in arrived}
        return frozenset(site for site, node in self._nodes.items() if node in self._online and site not in self._late)

    def look(self) -> None:
        """Look for nodes that came, or went, and ask those that are new whose data they have."""
        if self._see_who_is_online():
            again = {node for node, said in self._siteless.items() if self._looked - said >= AGAIN}
            strangers = self._online - (self._hellos.keys() - again)
            if strangers:
                self._hellos |= self._pushed(dict.fromkeys(strangers, packed(Hello())), self.timeout)
                self._siteless = {node: said for node, said in self._siteless.items() if node not in strangers}
        waited = {message: node for node, message in self._hellos.items() if message}
        if waited:
            for message, reply in self._pulled(set(waited)).items():
                self._met(waited[message], reply)
                self._hellos[waited[message]] = ""

    def _see_who_is_online(self) -> bool:
        """Look, if the last look was long enough ago; whether it was."""
        if time.monotonic() - self._looked < LOOK:
            return False
        self._looked, self._online = time.monotonic(), frozenset(self.grid.get_node_ids())
        return True

    def held(self) -> dict[str, tuple[int, ...]]:
        return dict(self._held)

    def born(self, site: str) -> int:
        """How many nodes have had this site's name; a process of the same node that knows of no run says so when it is asked."""
        return self._births[site]

    def exchange(self, parcels: Mapping[str, bytes], timeout: float) -> dict[str, bytes | Lost]:
        """Ask them all at once; a node that is gone is not waited for, and one that has become slow not for long."""
        messages = self._pushed({self._nodes[site]: parcel for site, parcel in parcels.items()}, timeout)
        waiting = {messages[self._nodes[site]]: site for site in parcels}
        found: dict[str, bytes | Lost] = {}
        began, others = time.monotonic(), 0.0
        while waiting and not overdue():
            passed = time.monotonic() - began
            for message, reply in self._pulled(set(waiting)).items():
                site, others = waiting.pop(message), passed
                found[site] = reply
                self._took.setdefault(site, deque(maxlen=LATEST)).append(passed)
            for message, site in list(waiting.items()):
                lost = self._lost(site, passed, min(timeout, self._patience(site, others)))
                if lost is not None:
                    found[waiting.pop(message)] = lost
                    self._late |= {} if lost.gone else {site: message}
            if waiting:
                time.sleep(PULL)
                self._see_who_is_online()
        for message, site in waiting.items():
            self._late[site], found[site] = message, Lost("no answer before the run had to end")
        return found

    def _patience(self, site: str, others: float) -> float:
        """Seconds that a site is waited for: for ever, where it has never answered."""
        took = self._took.get(site)
        return PATIENCE * max(*took, others, LEAST) if took else float("inf")

    def _lost(self, site: str, passed: float, patience: float) -> Lost | None:
        if self._nodes[site] not in self._online:
            return Lost("its SuperNode is gone", gone=True)
        return Lost(f"no answer within {patience:.3g} s") if passed >= patience else None

    # --- messages whose answers come one by one ------------------------------------------------------------------------

    def send(self, site: str, parcel: bytes) -> None:
        (message,) = self._pushed({self._nodes[site]: parcel}, self.timeout).values()
        self._open[message] = site, time.monotonic()

    def arrival(self, timeout: float) -> tuple[str, bytes | Lost] | None:
        until = time.monotonic() + timeout
        while True:
            self._arrived |= self._pulled(self._open.keys() - self._arrived.keys())  # the SuperLink gives each only once
            for message in self._open:
                if message in self._arrived:
                    return self._open.pop(message)[0], self._arrived.pop(message)
            self._see_who_is_online()
            for message, (site, sent) in list(self._open.items()):
                lost = self._lost(site, time.monotonic() - sent, self.timeout)
                if lost is not None:
                    del self._open[message]
                    self._late |= {} if lost.gone else {site: message}
                    return site, lost
            if time.monotonic() >= until:
                return None
            time.sleep(PULL)

    @property
    def clock(self) -> float:
        return time.monotonic()

    def _pushed(self, letters: Mapping[int, bytes], timeout: float) -> dict[int, str]:
        """Send letters to nodes, with whom they are from; the messages' identities, by node."""
        from flwr.app import Message

        from hierfl.runtime.on_flower.relay import as_content

        messages = []
        for node, letter in letters.items():
            content = as_content(letter)
            content.config_records["words"][SERVER] = self._mark
            messages.append(Message(content, node, "query", ttl=timeout))
        sent = list(self.grid.push_messages(messages))
        if len(sent) != len(messages) or not all(sent):
            raise SiteError("the SuperLink did not take a message: its log says why.")
        return dict(zip(letters, sent))

    def _pulled(self, messages: set[str]) -> dict[str, bytes | Lost]:
        """The replies that are there, by the message that each replies to."""
        found: dict[str, bytes | Lost] = {}
        for reply in self.grid.pull_messages(messages):
            told = Lost(reply.error.reason) if reply.has_error() else _bytes(reply.content)
            found[reply.metadata.reply_to_message_id] = told
        return found

    def _met(self, node: int, reply: bytes | Lost) -> None:
        """Take a node in that has introduced itself."""
        try:
            if isinstance(reply, Lost):
                raise SiteError(reply.reason)
            who = message_of(Letter.from_bytes(reply), Introduction)
        except SiteError as error:
            self.refusals[f"node {node}"], self._siteless[node] = str(error), time.monotonic()
            return
        self.refusals.pop(f"node {node}", None)
        self._siteless.pop(node, None)
        before = self._nodes.get(who.name)
        name = who.name if before is None or before not in self._online else f"{who.name} ({node})"
        self._nodes[name], self._held[name], self._births[name] = node, who.clients, self._births.get(name, 0) + 1


def _bytes(content: Any) -> bytes | Lost:
    """Flower's records as a letter's bytes; what they are is seen when these are read."""
    from hierfl.runtime.on_flower.relay import as_bytes

    try:
        return as_bytes(content)
    except Exception as error:  # what a site has made up can raise anything
        return Lost(f"sent what cannot be read ({type(error).__name__})")

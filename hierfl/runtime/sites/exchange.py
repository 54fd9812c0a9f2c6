"""The server's side of the messages of one run: who holds whose data, what is sent, what comes back, and what of it is believed."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import SiteError
from hierfl.runtime.privacy.gaussian_noise import Releases
from hierfl.runtime.privacy.pairwise_masks import (
    CHECKS,
    KEY,
    SEALED,
    SHARE,
    Masking,
    MaskOrder,
    enough,
    key_from,
    opened,
)
from hierfl.runtime.sites.letters import items_in, packed, reply_of
from hierfl.runtime.sites.parcels import (
    Answered,
    Asked,
    Keep,
    Kept,
    KeptMark,
    Links,
    Lost,
    Refusal,
    Settled,
    Start,
    Unmask,
    Unmasked,
    Welcome,
)
from hierfl.runtime.sites.site_reports import Crossing, SiteReport

Shapes = Any  # a tree of jax.ShapeDtypeStruct
PATIENT = 10  # rounds until a site that refused a run is asked again


class Request(NamedTuple):
    """A step that the server's program asks of clients, ``each`` with a leading axis of these; ``expected`` is what one of them is to tell."""

    kind: str
    step: str
    clients: np.ndarray
    broadcast: Any
    each: Any
    seed: np.ndarray
    expected: Shapes

    def zeros(self) -> Any:
        """Stacked answers that say nothing."""
        return jax.tree.map(lambda s: np.zeros((len(self.clients), *s.shape), s.dtype), self.expected)


class Told(NamedTuple):
    """What a site was asked in a round, and what it answered."""

    message: Asked
    answer: Answered


@dataclass
class Exchange:
    """The messages of a run: ``timeout`` in seconds, ``largest`` entry of clients, a ``watcher`` of all that crosses."""

    links: Links
    start: Start
    clients_of: dict[str, tuple[int, ...]]
    timeout: float
    watcher: Callable[[Crossing], None] | None = None
    reports: dict[str, SiteReport] = field(default_factory=dict)
    kept: dict[str, KeptMark] = field(default_factory=dict)  # what each site's clients last kept of their memories
    lost: dict[int, str] = field(default_factory=dict)  # clients that do not count in this turn
    remembers: bool = False  # whether clients remember anything from round to round
    changed: set[str] = field(default_factory=set)  # sites whose clients remember more than they last kept
    kept_by: dict[int, str] = field(default_factory=dict)  # the site that kept a client's, before the run went on
    forgotten: set[str] = field(default_factory=set)  # those that began again without it
    turn: int = -1
    round: int = 0
    away: set[str] = field(default_factory=set)  # the sites that cannot be asked in this round
    failed: bool = False
    unfit: dict[str, str] = field(default_factory=dict)  # what is wrong with a site's data, as it says
    stuck: str | None = None  # why the round cannot be made again without those who were lost
    numbers: int = 0  # of a client's largest message
    num_clients: float = math.inf  # of the problem
    with_earlier_runs: float | None = None  # the largest epsilon of all runs that a site tells of
    _places: Counter[str] = field(default_factory=Counter)  # how often each site was asked in this try at the round
    _began: dict[str, int] = field(default_factory=dict)  # the processes that know of this run
    _welcomes: Counter[str] = field(default_factory=Counter)  # how often each began: new processes have forgotten
    _refused: dict[str, tuple[int, int]] = field(default_factory=dict)  # those that did not want it, and in which round
    _settled: dict[str, Settled] = field(default_factory=dict)
    _asked: set[str] = field(default_factory=set)  # in this round
    _answered: set[str] = field(default_factory=set)  # in the latest try at it
    _calls: dict[str, list[Told]] = field(default_factory=dict)  # of this round
    _turns: dict[str, int] = field(default_factory=dict)  # of the sites in it

    def __post_init__(self) -> None:
        self.site_of = {client: site for site, clients in self.clients_of.items() for client in clients}
        self.reports = {site: SiteReport(len(clients)) for site, clients in self.clients_of.items()}
        noise = self.start.noise
        self.releases = None if noise is None else Releases(noise.releases)

    # --- who is there --------------------------------------------------------------------------------------------------

    def begin(self, sites: Sequence[str]) -> None:
        """Tell sites of the run that do not know of it: at its start, and when their process is another one."""
        strangers = [site for site in sites if self._began.get(site) != self.links.born(site)]
        strangers = [site for site in strangers if self._may_ask_again(site)]
        if not strangers:
            return
        parcels = {site: packed(self.start._replace(kept=self.kept.get(site))) for site in strangers}
        for site, reply in self._sent(parcels, "start", None).items():
            if isinstance(reply, Welcome):
                self._began[site] = self.links.born(site)
                self.unfit.pop(site, None)
                self._welcomes[site] += 1
                self._welcomed(site, reply)
                if site in self.changed or any(self.kept_by.get(own, site) != site for own in self.clients_of[site]):
                    self.changed.discard(site)
                    self.forgotten.add(site)
                    self._fault(site, "began again without what its clients remembered")
                self._settled.pop(site, None)
            else:
                self._fault(site, said_by(reply))
                if getattr(reply, "unfit", False):
                    self.unfit[site] = said_by(reply)
                if isinstance(reply, Lost) and site not in self.links.ready():
                    continue  # it is slow to begin, and is asked again once its late answer is there
                self._refused[site] = self.links.born(site), self.round

    def begin_anew(self, x: np.ndarray) -> None:
        """Have all clients begin with the memories of a first round at this x."""
        self.start = self.start._replace(x0=x)
        for known in (self.kept, self.kept_by, self.changed, self.forgotten, self._began):
            known.clear()

    @property
    def unwilling(self) -> set[str]:
        """The sites that did not want the run."""
        return self._refused.keys() - self._began.keys()

    def _may_ask_again(self, site: str) -> bool:
        """A site that did not want the run is not asked again in every round, unless it is another process now."""
        born, said = self._refused.get(site, (None, 0))
        return born != self.links.born(site) or self.round >= said + PATIENT

    def _welcomed(self, site: str, welcome: Welcome) -> None:
        if isinstance(welcome.epsilon, float) and welcome.epsilon > (self.with_earlier_runs or 0.0):
            self.with_earlier_runs = welcome.epsilon

    def tell(self) -> dict[str, Any]:
        told: dict[str, Any] = {"rows_drawn_by": "the run's seed" if self.start.shared_seeds else "secrets of the sites"}
        if self.start.noise is not None and self.releases is not None:
            told["privacy"] = self.start.noise.told(self.releases.largest, self.numbers, self.with_earlier_runs)
        return told

    def present(self) -> np.ndarray:
        """The clients that can be asked now, in the order of their indices."""
        there_now = self.links.ready()
        self._learn(there_now)
        ready = [site for site in self.clients_of if site in there_now]
        self.begin(ready)
        there = [site for site in ready if self._began.get(site) == self.links.born(site)]
        self.away = self.clients_of.keys() - set(there)
        return np.sort(np.array([client for site in there for client in self.clients_of[site]], int))

    def _learn(self, ready: frozenset[str]) -> None:
        """Take sites in that came later, unless they say that they hold others' clients."""
        for site, clients in self.links.held().items():
            known = all(0 <= client < self.num_clients for client in clients)
            if known and site in ready and site not in self.clients_of and not self.site_of.keys() & set(clients):
                self.clients_of[site] = clients
                self.site_of |= dict.fromkeys(clients, site)
                self.reports[site] = SiteReport(len(clients))

    # --- a turn ---------------------------------------------------------------------------------------------------------

    def open(self, round_index: int) -> None:
        self.turn, self.round, self.lost, self._asked = self.turn + 1, round_index, {}, set()
        self._calls = {site: [] for site in self.clients_of}
        self._turns = dict.fromkeys(self.clients_of, self.turn)
        self.again()

    def again(self) -> None:
        """Make the round, once more without those who were lost: what others have answered they are not asked again."""
        self._places.clear()
        self._answered, self.failed = set(), False

    def close(self, made: bool = True) -> None:
        """The round is over, and its clients remember it if it was made.

        A site that answered nothing may not have been reached, and then has still to hear of the turn before; if it was, it drops this one.
        """
        for site in self._answered:
            self._settled[site] = Settled(self._turns[site], made)
            if self.remembers and made:
                self.changed.add(site)
        for site, report in self.reports.items():
            if site in self._asked and not self.lost.keys() >= set(self.clients_of[site]):
                report.rounds += 1
            elif site in self._asked or site in self.away:
                report.silent.append(self.round)

    def take_back(self) -> None:
        """The round that is over is none of the run's: clients do not remember it, either."""
        self._settled |= {site: self._settled[site]._replace(kept=False) for site in self._answered}

    def ask(self, request: Request) -> Any:
        """Stacked answers ``(len(clients), ...)`` of a step; zeros, and ``failed``, where somebody did not answer as expected."""
        zeros, clients, expected = request.zeros(), request.clients, request.expected
        if self.failed:
            return zeros
        rows = self._rows(clients)
        answers = self._answers(self._parts(rows, request), request.step, expected)
        for site, answer in answers.items():
            problem = None if answer is None else misshapen(answer, rows[site].size, expected)
            if answer is None or problem is not None:
                self._lose(site, clients[rows[site]], problem)
        if not self.failed:
            self._refuse_wild(clients, rows, answers)
        if self.failed:
            return zeros

        def joined(zero: np.ndarray, *parts: np.ndarray) -> np.ndarray:
            for mine, part in zip(rows.values(), parts):
                zero[mine] = part
            return zero

        told = [(answer.payload, answer.monitor) for answer in answers.values() if answer is not None]
        return jax.tree.map(joined, zeros, *told)

    def _rows(self, clients: np.ndarray) -> dict[str, np.ndarray]:
        """Where a site's clients are among these, of those that have some."""
        rows = {site: np.flatnonzero(np.isin(clients, own)) for site, own in self.clients_of.items()}
        return {site: mine for site, mine in rows.items() if mine.size}

    def _parts(self, rows: dict[str, np.ndarray], request: Request, masking: Masking | None = None) -> dict[str, Asked]:
        """What each site is asked; ``place`` counts its questions, since not every site takes part in all that a round asks."""
        parts, (kind, step, clients, broadcast, each, seed, _) = {}, request
        for site, mine in rows.items():
            own, settled = jax.tree.map(lambda a, mine=mine: a[mine], each), self._settled.get(site)
            at = self._turns[site], self.round, self._places[site]
            parts[site] = Asked(*at, settled, kind, step, clients[mine], seed, broadcast, own, masking)
            self._places[site] += 1
        return parts

    def _answers(
        self, asked: dict[str, Asked], step: str, expected: Shapes, anew: bool = False
    ) -> dict[str, Answered | None]:
        """By site; None of those that do not answer. Who has answered the very same in this round is not asked again, unless it is to be ``anew``."""
        self._asked |= asked.keys()
        self.numbers = max(self.numbers, sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(expected[0])))
        found: dict[str, Any] = {}
        for site, message in asked.items():
            before = self._calls[site][message.place : message.place + 1]  # in a try at the round that failed
            if before and before[0].message.digest() != message.digest():
                asked[site] = self._in_another_turn(site, message)
            elif before and not anew:
                found[site] = before[0].answer
        fresh = {site: message for site, message in asked.items() if site not in found}
        silent = self._without_releases(fresh)
        parcels = {site: packed(message) for site, message in fresh.items() if site not in silent}
        found |= silent | (self._sent(parcels, step, expected) if parcels else {})
        for site, reply in found.items():
            if isinstance(reply, Answered):
                self._answered.add(site)
                self._calls[site][asked[site].place :] = [Told(asked[site], reply)]
                continue
            self._fault(site, said_by(reply))
            if isinstance(reply, Refusal) and not reply.failed:
                self._began.pop(site, None)
        return {site: reply if isinstance(reply := found[site], Answered) else None for site in asked}

    def _in_another_turn(self, site: str, message: Asked) -> Asked:
        """A question in the place of one that was answered, which is one of another turn: what is before it is asked in it, and answered as before."""
        self.turn += 1
        self._turns[site] = self.turn
        for call in self._calls[site][: message.place]:
            self._sent({site: packed(call.message._replace(turn=self.turn))}, call.message.step, None)
        return message._replace(turn=self.turn)

    def _without_releases(self, asked: dict[str, Asked]) -> dict[str, Lost]:
        """Count the messages that are asked for, where each is a release; sites are not asked for more than the run may.

        A new process draws its noise anew, and its message may be a second one of a question whose first was lost on its way.
        """
        if self.releases is None:
            return {}
        silent = {}
        for site, message in asked.items():
            questions = [(self._welcomes[site], question) for question in message.questions()]
            if self.releases.count(message.clients.tolist(), questions) is None:
                silent[site] = Lost(f"its clients have sent the {self.releases.most} messages of a run with this noise")
        return silent

    def _sent(self, parcels: dict[str, bytes], step: str, expected: Shapes) -> dict[str, Any]:
        """Send, and unpack what comes back; both are counted."""
        back = self.links.exchange(parcels, self.timeout)
        replies: dict[str, Any] = {}
        for site, parcel in parcels.items():
            self.note_sent(site, step, parcel)
            reply = back[site]
            if isinstance(reply, Lost):
                replies[site] = reply
                continue
            replies[site] = reply_of(reply, expected)
            self.note_received(site, step, replies[site], reply)
        return replies

    def note_sent(self, site: str, step: str, parcel: bytes) -> None:
        """Count what is sent by another way than ``ask``."""
        self.reports[site].bytes_down += len(parcel)
        self._watch(site, "down", step, parcel)

    def note_received(self, site: str, step: str, message: Any, reply: bytes) -> None:
        """Count what came back by another way than ``ask``."""
        self.reports[site].bytes_up += len(reply)
        self._watch(site, "up", step, reply)
        if isinstance(message, Answered):
            self.reports[site].answered += 1
            self.reports[site].seconds += message.seconds

    def go_on_from(self, turn: int, settled: dict[str, Settled]) -> None:
        """Ask next what follows this turn, and say what became of those before."""
        self.turn, self._settled = turn, dict(settled)

    def keep(self, run: str, number: int) -> None:
        """Have the sites that are here keep what their clients remember after the rounds so far.

        One that cannot do so now, and its faults say so, begins again with what it kept before, or anew where that would be too little.

        Raises ``SiteError``, naming a site that was given no place for it.
        """
        ready = self.links.ready()
        here = [site for site in self.clients_of if site in ready and self._began.get(site) == self.links.born(site)]
        parcels = {site: packed(Keep(run, number, self._settled.get(site))) for site in here}
        for site, reply in self._sent(parcels, "keep", None).items():
            if not isinstance(reply, Kept):
                said = getattr(reply, "reason", "another kind of answer")
                self._fault(site, f"kept nothing for the checkpoint: {said}")
            elif reply.kept:
                self.kept[site] = KeptMark(run, number, reply.content)
                self.changed.discard(site)
            else:
                said = f"site {site!r} has no place to keep what clients remember, which this solver's checkpoints need"
                raise SiteError(f"{said}: have its owner start it with --keep DIR, or leave checkpoint=... out.")

    def require_memories(self) -> None:
        """No site refused to go on with what its clients remembered. Raises ``SiteError``, with what it said."""
        for site in self.kept.keys() & self._refused.keys():
            said = self.reports[site].faults[-1][1]
            raise SiteError(f"the run cannot go on from this checkpoint: site {site!r}: {said}.")

    def forget(self, site: str) -> None:
        self._began.pop(site, None)

    def _watch(self, site: str, way: str, step: str, parcel: bytes) -> None:
        if self.watcher is not None:
            self.watcher(Crossing(site, way, step, items_in(parcel), len(parcel)))

    # --- what is not believed -------------------------------------------------------------------------------------------

    def _lose(self, site: str, clients: np.ndarray, problem: str | None) -> None:
        if problem is not None:
            self._fault(site, problem)
        self.lost |= dict.fromkeys(clients.tolist(), site)
        self.failed = True

    def _fault(self, site: str, what: str) -> None:
        self.reports[site].fault(self.round, what)

    def _refuse_wild(self, clients: np.ndarray, rows: dict[str, np.ndarray], answers: dict[str, Any]) -> None:
        """Refuse messages that are not finite, or beyond ``largest``, unless all of them are: then it is the run that diverges."""
        found_wild = {site: wild(answer, self.start.largest) for site, answer in answers.items()}
        if all(found.all() for found in found_wild.values()):
            return
        for site, found in found_wild.items():
            for place in np.flatnonzero(found):
                client = int(clients[rows[site][place]])
                said = f"client {client} sent NaN, infinity or more than {self.start.largest:g}"
                self._lose(site, np.array([client]), said)


def said_by(reply: Any) -> str:
    """Why a reply is no answer."""
    return str(getattr(reply, "reason", f"sent {type(reply).__name__}, another kind of message than is due"))


def misshapen(answer: Answered, count: int, expected: Shapes) -> str | None:
    """What is wrong with the shapes of an answer, whose arrays were read into the trees that are expected."""
    told = answer.payload, answer.monitor
    for (path, leaf), shape in zip(jax.tree_util.tree_flatten_with_path(told)[0], jax.tree.leaves(expected)):
        array = np.asarray(leaf)
        if array.shape != (count, *shape.shape) or array.dtype.kind != np.dtype(shape.dtype).kind:
            name = jax.tree_util.keystr(path)
            return f"sent {name} of shape {array.shape} and type {array.dtype}, not {(count, *shape.shape)} and {shape.dtype}"
    return None


def wild(answer: Answered, largest: float) -> np.ndarray:
    """Which of the clients' messages are NaN, infinite or too large: what they send, and what they say of their objective."""
    count = len(jax.tree.leaves((answer.payload, answer.monitor))[0]) if jax.tree.leaves(answer.payload) else 0
    found = np.zeros(count, bool)
    value = answer.monitor.get("value") if isinstance(answer.monitor, dict) else None
    for leaf in [*jax.tree.leaves(answer.payload), *([] if value is None else [value])]:
        flat = np.asarray(leaf).reshape(count, -1)
        if flat.dtype.kind == "f" and flat.size:
            found |= ~(np.abs(flat) <= largest).all(axis=1)
    return found


@dataclass
class MaskedExchange(Exchange):
    """An exchange that stacks the same in all places, the weighted mean of what the clients of a step sent.

    The mean of these is that of the messages themselves, whatever the weights of absent ones. ``weights`` are the clients', summing to one.
    """

    weights: np.ndarray = field(default_factory=lambda: np.zeros(0))
    sums: int = 0
    error: float = 0.0
    _keys: dict[str, bytes] = field(default_factory=dict)
    _attempt: int = -1
    _summed_in: int = -1  # the round of the latest sum

    @property
    def order(self) -> MaskOrder:
        assert self.start.masks is not None  # or the exchange is a plain one
        return self.start.masks

    def tell(self) -> dict[str, Any]:
        return super().tell() | {"masks": self.order.told(self.sums, self.error)}

    def _welcomed(self, site: str, welcome: Welcome) -> None:
        super()._welcomed(site, welcome)
        self._keys[site] = welcome.key

    def ask(self, request: Request) -> Any:
        """The mean of the answers, in the place of each; zeros, and ``failed``, where it could not be had."""
        means, clients, expected = request.zeros(), request.clients, request.expected
        if self.failed:
            return means
        rows = self._rows(clients)
        if len(rows) < self.order.least:
            least = f"PairwiseMasks(least={self.order.least}) sums over as many sites at least"
            return self._end(f"{least}, and {len(rows)} could be asked", means)
        self._attempt += 1
        keys = tuple(sorted(self._keys[site] for site in rows))
        masking = Masking(self._attempt, keys, tuple(np.sort(clients).tolist()))
        parts = self._parts(rows, request, masking)
        count = CHECKS + sum(math.prod(shape.shape) for shape in summed_shapes(expected))
        answers = self._answers(parts, request.step, (jax.ShapeDtypeStruct((count,), np.uint64), {}), anew=True)
        for site, answer in answers.items():
            problem = None if answer is None else _unlike_a_sum(answer, count, len(rows))
            if answer is None or problem is not None:
                self._lose(site, clients[rows[site]], problem)
        if self.failed and self._summed_in == self.round:
            return self._end("a site was lost in a round of which sums were opened, and second ones would tell its message", means)
        if self.failed:
            return means
        own = self._own_masks({site: answer for site, answer in answers.items() if answer is not None})
        if isinstance(own, str):
            return self._end(own, means)
        share = float(np.sum(self.weights[clients]))
        payloads = [answer.payload for answer in answers.values() if answer is not None]
        total = opened(payloads, own, self._attempt, self.order.bits)
        self.sums, self._summed_in = self.sums + 1, self.round
        total, (sites, cut) = total[:-CHECKS], total[-CHECKS:]
        if sites != len(rows):
            return self._end("the sites' masks do not cancel: they were asked for different things, or one of them lies", means)
        if cut:
            beyond = 2.0 ** (62 - self.order.bits) / len(rows)
            return self._end(f"a site's sum is not finite, or beyond {beyond:.3g}: take fewer bits of PairwiseMasks", means)
        if share <= 0.0:
            return means
        if not (np.abs(total / share) <= self.start.largest).all():
            wild_mean = f"the sites' mean has entries beyond largest={self.start.largest:g}"
            return self._end(f"{wild_mean}: one of them lies", means)
        noise = self.start.noise  # of which each site has a part: then clients' messages are rounded one by one, towards zero
        units = len(clients) if noise is not None and noise.shared else 0.5 * len(rows)
        self.error = max(self.error, units * 2.0**-self.order.bits / share)
        return filled(means, total / share)

    def _own_masks(self, answers: dict[str, Answered]) -> list[bytes] | str:
        """The keys of the sites' own masks, of those that have gone by the others' shares; or why the sum stays closed."""
        replies = self._sent(dict.fromkeys(answers, packed(Unmask(self._attempt))), "unmask", None)
        own = {site: reply.key for site, reply in replies.items() if isinstance(reply, Unmasked) and len(reply.key) == KEY}
        for site in [site for site in answers if site not in own]:
            self._fault(site, getattr(replies[site], "reason", "told no key"))
            key = self._by_shares(site, answers, [other for other in answers if other in own and other != site])
            if key is None:
                why = f"fewer than {enough(len(answers))} of the sum's {len(answers)} sites have told their shares of its mask"
                return f"site {site!r} was lost between its message and its mask, and {why}: the sum stays closed"
            own[site] = key
            self._began.pop(site, None)  # it has not heard that the sum was opened, and remembers nothing of it
        return list(own.values())

    def _by_shares(self, gone: str, answers: dict[str, Answered], there: list[str]) -> bytes | None:
        """The key of the mask of a site that has gone, by the shares that it sealed for those that are there."""
        key, least = self._keys[gone], enough(len(answers))
        places = {other: place for place, other in enumerate(sorted(self._keys[site] for site in answers if site != gone))}
        sealed, parcels = answers[gone].shares, {}
        for site in there if sealed else ():
            place = places[self._keys[site]]
            own = sealed[SEALED * place : SEALED * (place + 1)]
            parcels[site] = packed(Unmask(self._attempt, key, own))
        shares = {}
        for site, reply in (self._sent(parcels, "share", None) if len(parcels) >= least else {}).items():
            if isinstance(reply, Unmasked) and len(reply.key) == SHARE:
                shares[places[self._keys[site]] + 1] = reply.key
        return key_from(dict(list(shares.items())[:least])) if len(shares) >= least else None

    def _end(self, reason: str, means: Any) -> Any:
        """No further attempt is to be made."""
        self.failed, self.stuck = True, reason
        return means


def exchange_for(
    problem: CompiledProblem,
    links: Links,
    start: Start,
    clients_of: dict[str, tuple[int, ...]],
    timeout: float,
    watcher: Callable[[Crossing], None] | None = None,
) -> Exchange:
    """The exchange of a run, with masks where it has some."""
    if start.masks is None:
        return Exchange(links, start, clients_of, timeout, watcher, num_clients=problem.num_clients)
    weights = problem.declaration.client_weights
    shares = weights / np.sum(weights)
    return MaskedExchange(links, start, clients_of, timeout, watcher, num_clients=problem.num_clients, weights=shares)


def summed_shapes(expected: Shapes) -> list[Any]:
    """The parts of a message that are summed: the payload's arrays, and the objective's estimate."""
    payload, monitor = expected
    return [*jax.tree.leaves(payload), *([monitor["value"]] if "value" in monitor else [])]


def filled(means: Any, numbers: np.ndarray) -> Any:
    """The stacked message with each of these numbers in all places; what else is monitored stays zero."""
    place = 0
    for leaf in summed_shapes(means):
        size = leaf[0].size
        leaf[:] = numbers[place : place + size].reshape(leaf.shape[1:])
        place += size
    return means


def _unlike_a_sum(answer: Answered, count: int, sites: int) -> str | None:
    masked, shares = answer.payload, answer.shares
    if masked.shape == (count,) and masked.dtype == np.uint64 and len(shares) == (SEALED * (sites - 1) if enough(sites) < sites else 0):
        return None
    return f"sent no masked sum of {count} numbers, with shares of its mask"

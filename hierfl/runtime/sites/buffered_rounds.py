"""Runs without rounds, after FedBuff (Nguyen et al., 2022): every site works at its own pace, and the server steps when enough moves are there.

A move is the difference that the algorithm's own round makes with the clients of one site alone, from the x that they were given. When ``buffer``
moves have come, x takes their mean over clients, each times (1 + tau)^(-staleness), where tau counts the steps since the site was given its x. That
is one round of the result.

In the conversation with a site the server's program of a round runs as far as the answers go that are there; the message that it asks
for next is sent, and when its answer has come the program runs again from the same state, one message further.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import IncompatibleSolverError, SettingError
from hierfl.jaxtools.interruption import heed, reason, unbroken
from hierfl.jaxtools.keyed_random import fold_in
from hierfl.runtime.contract import TRAFFIC, Algorithm
from hierfl.runtime.records import WORK, Begun, BlockEnd, Outcome
from hierfl.runtime.sites.exchange import Exchange, Shapes, misshapen, said_by, wild
from hierfl.runtime.sites.letters import packed, reply_of
from hierfl.runtime.sites.parcels import Answered, Asked, Lost, Refusal, Settled
from hierfl.runtime.sites.rounds import Attendance, SiteRounds, TooFewError
from hierfl.runtime.sites.site_programs import present_in


@dataclass
class Conversation:
    """What the server and a site have said to each other about one version of the state."""

    site: str
    clients: np.ndarray
    version: int
    state: Any
    turn: int
    settled: Settled | None
    answers: list[Answered] = field(default_factory=list)
    pending: Asked | None = None
    step: str = ""
    expected: Shapes = None
    _place: int = 0

    def again(self) -> None:
        self._place, self.pending = 0, None

    def ask(
        self, kind: str, step: str, clients: np.ndarray, broadcast: Any, each: Any, seed: np.ndarray, expected: Shapes
    ) -> Any:
        """The answer that is there, or zeros: then ``pending`` is what to send."""
        place, self._place = self._place, self._place + 1
        if place < len(self.answers):
            answer = self.answers[place]
            return jax.tree.map(lambda zero, part: part, expected, (answer.payload, answer.monitor))
        if self.pending is None:
            settled = self.settled
            asked = Asked(self.turn, self.version, place, settled, kind, step, clients, seed, broadcast, each)
            self.pending, self.step, self.expected = asked, step, expected
        return jax.tree.map(lambda s: np.zeros((len(clients), *s.shape), s.dtype), expected)


LOOK = 0.5  # seconds between looks whether the run is to end
SOLVERS = ("FedAvg", "FedRZO", "ZOHFL")
SUMMED = (*TRAFFIC, *WORK)
LARGEST = ("fault", "empty")


@dataclass(frozen=True)
class Buffering:
    """How many sites' moves make a step, and how much an old one weighs: (1 + tau)^(-staleness)."""

    buffer: int
    staleness: float


def require_buffered(problem: CompiledProblem, algorithm: Algorithm) -> None:
    """Require that a run without rounds is one of this algorithm.

    Raises ``IncompatibleSolverError``, saying what stands against it.
    """
    name = type(algorithm.settings).__name__
    against = None
    if name not in SOLVERS:
        against = f"is about clients that answer together; {', '.join(SOLVERS)} can do without"
    elif problem.scope == "federation":
        against = "solves a lower level that all clients answer together"
    elif problem.asks_all:
        against = "asks all clients, in every round, for their part in a mean that an upper constraint is on"
    elif getattr(algorithm.settings, "communication", "full") != "full":
        against = "with communication='scalars' has clients rebuild x from everybody's scalars in their order"
    elif not algorithm.cohorts.everybody:
        against = "draws cohorts; who takes part is for the delays to say: leave participation out"
    if against is not None:
        raise IncompatibleSolverError(f"asynchronous=True: {name} {against}.")


class BufferedRounds(SiteRounds):
    """Makes the steps of one run: each is a round of the result."""

    unit = "step"

    def __init__(
        self,
        problem: CompiledProblem,
        algorithm: Algorithm,
        exchange: Exchange,
        buffering: Buffering,
        patience: float,
        seed: int,
    ) -> None:
        require_buffered(problem, algorithm)
        super().__init__(problem, algorithm, exchange, Attendance(1, patience), seed)
        self.links, self.buffering = exchange.links, buffering
        self.size = max(map(len, exchange.clients_of.values()))
        self.talking: dict[str, Conversation] = {}
        self.last: dict[str, Settled] = {}
        self.turns = 0

    def run(self, x0: np.ndarray, rounds: int, block: int, at_end: BlockEnd, begun: Begun | None) -> Outcome:
        if begun is not None:
            raise SettingError("asynchronous=True: a run without rounds does not go on from a checkpoint.")
        if self.buffering.buffer > len(self.exchange.clients_of):
            raise SettingError(f"buffer={self.buffering.buffer}: there are {len(self.exchange.clients_of)} sites.")
        return super().run(x0, rounds, block, at_end, None)

    def round(self, state: Any, index: int) -> tuple[Any, dict[str, Any]]:
        began, moves = self.links.clock, self._moves(state, index)
        if moves is None:
            raise TooFewError(self._why())
        after = self._stepped(state, index, moves)
        return after, self._record(state, after, index, moves, began)

    def tell(self) -> dict[str, Any]:
        self.told["sites"] = {site: report.told for site, report in self.exchange.reports.items()}
        return self.told

    def finish(self) -> None:
        """Wait for those who are still at work, as long as for anybody: they are asked for f next."""
        self.programs.wire.exchange = self.exchange
        until = time.monotonic() + self.attendance.patience
        while self.talking and time.monotonic() < until and reason() is None:
            arrived = self.links.arrival(1.0)
            if arrived is not None and (conversation := self.talking.get(arrived[0])) is not None:
                self._over(conversation, kept=False)
        self.exchange.go_on_from(self.turns, self.last)

    def _why(self) -> str:
        there = len(self.exchange.present())
        faults = [f"{site}: {report.faults[-1][1]}" for site, report in self.exchange.reports.items() if report.faults]
        said = f" ({'; '.join(faults)})" if faults else ""
        return f"{there} of {self.problem.num_clients} clients are there, and no answer that counts came in time{said}"

    # --- moves ----------------------------------------------------------------------------------------------------------

    def _moves(self, state: Any, version: int) -> list[tuple[Conversation, Any, Any]] | None:
        """As many moves as make a step: (the conversation, the state after it, its record); None if too few come."""
        moves: list[tuple[Conversation, Any, Any]] = []
        refused, until = 0, time.monotonic() + self.attendance.patience
        while len(moves) < self.buffering.buffer:
            heed()
            self._dispatch(state, version)
            arrived = self.links.arrival(min(LOOK, max(0.05, until - time.monotonic())))
            if arrived is None:
                if time.monotonic() >= until:
                    return None
                continue
            site, reply = arrived
            conversation = self.talking.get(site)
            if conversation is None or not self._believed(conversation, reply, version):
                refused += 1
                if refused > 2 * len(self.exchange.clients_of):
                    return None
                continue
            until = time.monotonic() + self.attendance.patience
            after, record = self._on(conversation)
            if conversation.pending is None:
                moves.append((conversation, after, record))
                self._over(conversation, kept=True)
        return moves

    def _dispatch(self, state: Any, version: int) -> None:
        """Give the present x to every site that is there and has nothing to do."""
        exchange = self.exchange
        exchange.round = version
        there = set(exchange.present().tolist())
        for site, clients in exchange.clients_of.items():
            if site in self.talking or not set(clients) <= there:
                continue
            self.turns += 1
            own = np.array(clients)
            conversation = Conversation(site, own, version, state, self.turns, self.last.get(site))
            self.talking[site] = conversation
            self._on(conversation)

    def _on(self, conversation: Conversation) -> tuple[Any, Any]:
        """The server's program as far as it goes with the answers that are there; what it asks next is sent."""
        conversation.again()
        self.programs.wire.exchange = conversation
        present = present_in(conversation.clients, self.size)
        key, index = fold_in(self.key, conversation.turn), jnp.asarray(conversation.version)
        given = (self.tables, conversation.state, self.data, present, present, key, index)
        program = self.programs.round()
        with unbroken():
            after, record = jax.block_until_ready(program(*given))
        if conversation.pending is not None:
            parcel = packed(conversation.pending)
            self.exchange.note_sent(conversation.site, conversation.step, parcel)
            self.links.send(conversation.site, parcel)
        return after, record

    def _believed(self, conversation: Conversation, reply: bytes | Lost, version: int) -> bool:
        """Whether an answer is one; it is then the conversation's, which is else over."""
        site, exchange = conversation.site, self.exchange
        problem: str | None
        if isinstance(reply, Lost):
            problem = reply.reason
        else:
            message = reply_of(reply, conversation.expected)
            exchange.note_received(site, conversation.step, message, reply)
            if isinstance(message, Answered):
                problem = misshapen(message, len(conversation.clients), conversation.expected)
                if problem is None and wild(message, exchange.start.largest).any():
                    problem = f"sent NaN, infinity or more than {exchange.start.largest:g}"
                if problem is None:
                    conversation.answers.append(message)
                    return True
            else:
                problem = said_by(message)
                if isinstance(message, Refusal) and not message.failed:
                    exchange.forget(site)
        exchange.reports[site].fault(version, problem)
        self._over(conversation, kept=False)
        return False

    def _over(self, conversation: Conversation, kept: bool) -> None:
        self.talking.pop(conversation.site, None)
        self.last[conversation.site] = Settled(conversation.turn, kept)
        if kept:
            self.exchange.reports[conversation.site].rounds += 1

    # --- steps ----------------------------------------------------------------------------------------------------------

    def _stepped(self, state: Any, version: int, moves: list[tuple[Conversation, Any, Any]]) -> Any:
        """x plus the mean of the moves over clients, old ones weighing less; on X, where the algorithm stays there."""
        sizes = np.array([len(talk.clients) for talk, _, _ in moves], float)
        old = np.array([version - talk.version for talk, _, _ in moves], float)
        weights = sizes / sizes.sum() * (1.0 + old) ** -self.buffering.staleness

        def stepped(now: Any, *pairs: Any) -> Any:
            if not jnp.issubdtype(now.dtype, jnp.floating):
                return now
            befores, afters = pairs[: len(moves)], pairs[len(moves) :]
            return now + sum(w * (after - before) for w, before, after in zip(weights, befores, afters))

        befores, afters = [talk.state for talk, _, _ in moves], [after for _, after, _ in moves]
        new = jax.tree.map(stepped, state, *befores, *afters)
        if not self.algorithm.stays_in_upper_set:
            return new
        public = self.data.clients.public
        x = self.problem.project_upper(self.algorithm.decision(new), public)
        return new._replace(x=x) if hasattr(new, "_replace") else x

    def _record(self, before: Any, after: Any, version: int, moves: list[Any], began: float) -> dict[str, Any]:
        """The round's record: means of what the moves' own records say."""
        records = [record for _, _, record in moves]
        shown = {}
        for name in records[0]:
            values = np.stack([np.asarray(record[name]) for record in records])
            shown[name] = values.sum() if name in SUMMED else values.max() if name in LARGEST else values.mean()
        old, new = (np.asarray(self.algorithm.decision(state)) for state in (before, after))
        moved = {"move": np.linalg.norm(new - old), "extent": np.max(np.abs(new), initial=0.0)}
        answered = sum(len(talk.clients) for talk, _, _ in moves)
        staleness = float(np.mean([version - talk.version for talk, _, _ in moves]))
        clock = self.links.clock
        own = {"answered": answered, "staleness": staleness, "clock": clock, "seconds": clock - began}
        return {**shown, **moved, **own}

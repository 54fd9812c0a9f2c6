"""A run over sites: round after round with those that answer, until it is done, or too few are there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import IncompatibleSolverError, SettingError, SiteError
from hierfl.jaxtools.interruption import CutShort, heed, over, reason, unbroken
from hierfl.jaxtools.keyed_random import fold_in, key_of
from hierfl.jaxtools.precision import computing
from hierfl.runtime.contract import TRAFFIC, Algorithm, OwnValue
from hierfl.runtime.records import ANSWERED, WITHHELD, WORK, Begun, BlockEnd, History, Outcome
from hierfl.runtime.sites.aggregation import Aggregation
from hierfl.runtime.sites.exchange import Exchange, Request, misshapen, said_by, wild
from hierfl.runtime.sites.letters import packed, reply_of
from hierfl.runtime.sites.parcels import Answered, Asked, Lost, Refusal, Settled
from hierfl.runtime.sites.site_programs import SitePrograms, present_in
from hierfl.runtime.sites.site_reports import RollCall

LOOK = 0.2  # seconds between looks for sites that are missing


class TooFewError(Exception):
    """A round cannot be made, most often since fewer clients answered than have to; says why."""


class SiteRounds:
    """Makes the rounds of one run: with so many clients at least, for which it waits as long as its ``patience`` lasts (seconds)."""

    unit = "round"

    def __init__(
        self,
        problem: CompiledProblem,
        algorithm: Algorithm,
        exchange: Exchange,
        minimum: int,
        patience: float,
        seed: int,
        clock: Callable[[], float] | None = None,
        aggregation: Aggregation | None = None,
    ) -> None:
        if aggregation is not None:
            aggregation.require_fitting(problem, algorithm)
        self.clock = clock  # of a simulation, which is then recorded
        self.problem, self.algorithm, self.exchange = problem, algorithm, exchange
        self.minimum, self.patience = minimum, patience
        self.noise = exchange.start.noise
        federation = problem.declaration.federation
        self.roll = RollCall([client.name for client in federation.clients] if federation else [None])
        self.programs = SitePrograms(problem, algorithm, aggregation)
        self.programs.wire.exchange = exchange
        self._missed: set[int] = set()  # clients that have not been back since a round that they were wanted for
        self.told: dict[str, Any] = {} if aggregation is None else {"aggregation": str(aggregation)}
        self.key, self.tables, self.data = key_of(seed), self.programs.tables, problem.laid_out()

    def run(self, x0: np.ndarray, rounds: int, block: int, at_end: BlockEnd, begun: Begun | None) -> Outcome:
        state = self.algorithm.init(jnp.asarray(x0))
        records: list[dict[str, Any]] = []
        first = done = 0
        if begun is not None:
            first = done = begun.rounds
            state = jax.tree.map(jnp.asarray, begun.state)
        told, ended, states = first, None, [state]  # those since the run was last looked at: it may end within a block
        ends_within = getattr(at_end, "ends_within", lambda _: False)
        while done < rounds and ended is None:
            began = time.perf_counter()
            try:
                state, record = self.round(state, done)
            except CutShort:  # what clients have done in this round is undone
                if done > told:
                    at_end(done, state, None, stacked(records[told - first :]))
                break
            except TooFewError as reason:
                if done == first:
                    raise SiteError(f"no {self.unit} could be made: {reason}") from None
                ended = f"paused: {reason}"
            else:
                done += 1
                simulated = {} if self.clock is None else {"clock": self.clock()}
                states.append(state)
                records.append(record | simulated | {"seconds": record.get("seconds", time.perf_counter() - began)})
            latest = stacked(records[told - first :])
            if done == told or (ended is None and done % block and done < rounds and not (over() or ends_within(latest))):
                continue
            ending = at_end(done, state, None, latest)
            if ending is not None:  # its rounds are not made again, since every message is told once
                if ending.rounds < done:  # by one round, which sites forget
                    self.exchange.take_back()
                state, done = states[ending.rounds - told], ending.rounds
                self.roll.forget(done)
                del records[done - first :]
                break
            told, states = done, [state]
        asks = self.problem.elsewhere or (done and self.problem.lower.size)
        if asks:
            self.finish()
        own_value = self._own_value(state, done) if asks and self.noise is None else None
        return Outcome(state, None, seen(stacked(records)), own_value, ended, self.tell())

    def round(self, state: Any, index: int) -> tuple[Any, dict[str, Any]]:
        """One round, made again without those who were lost in it."""
        exchange, key = self.exchange, fold_in(self.key, index)
        drawn, count = self.programs.participants()(key, jnp.asarray(index))
        wanted, size = np.asarray(drawn)[: int(count)], len(drawn)
        exchange.round = index
        there = self._gathered(index, wanted)
        anew = self._anew(state, there)
        if anew is not None:
            state, there = anew, self._gathered(index, wanted)
        exchange.open(index)
        while True:
            there = there[~np.isin(there, list(exchange.lost))]
            chosen = wanted[np.isin(wanted, there)]
            chosen = chosen if chosen.size else there[:size]  # of others that are there, if none of those who were drawn
            if len(chosen) < min(self.minimum, len(wanted)):
                exchange.close(made=False)
                raise TooFewError(_too_few(len(chosen), len(wanted), index, self.minimum, exchange))
            given = (present_in(chosen, size), present_in(there, self.problem.num_clients), key, jnp.asarray(index))
            program = self.programs.round()
            with unbroken():
                after, record = jax.block_until_ready(program(self.tables, state, self.data, *given))
            if not exchange.failed:
                exchange.close()
                self.roll.note(index, wanted, chosen)
                self._missed |= set(wanted.tolist()) - set(chosen.tolist())
                withheld = {} if self.noise is None else {WITHHELD: True}
                return after, {**record, "answered": len(chosen), **withheld}
            if exchange.stuck is not None:
                exchange.close(made=False)
                raise TooFewError(exchange.stuck)
            heed()
            exchange.again()

    def _anew(self, state: Any, there: np.ndarray) -> Any:
        """The state to go on from with new memories, where clients are back that the algorithm cannot take as they are; else None."""
        exchange, back = self.exchange, self._missed & set(there.tolist())
        if not (exchange.forgotten or back):
            return None
        anew = self.algorithm.anew(state, forgotten=bool(exchange.forgotten))
        exchange.forgotten.clear()
        self._missed -= back
        if anew is not None:
            exchange.begin_anew(np.asarray(self.algorithm.decision(anew)))
            self._missed.clear()
            self.told.setdefault("began_anew", []).append(exchange.round)
        return anew

    def _gathered(self, index: int, wanted: np.ndarray) -> np.ndarray:
        """The clients that are there, once enough of those that are wanted are; waits for them as long as it may."""
        until = time.monotonic() + self.patience
        while True:
            there = self.exchange.present()
            enough = len(there) >= min(self.minimum, len(wanted))
            if enough or time.monotonic() >= until:
                return there
            heed()
            time.sleep(LOOK)

    def finish(self) -> None:
        """See to what is left to do before the sites are asked for f."""

    def tell(self) -> dict[str, Any]:
        self.told["sites"] = {site: report.told for site, report in self.exchange.reports.items()}
        self.told |= self.roll.told | self.exchange.tell()
        return self.told

    def _own_value(self, state: Any, done: int) -> Callable[[Array], OwnValue]:
        """The run's own value at any x, over the clients that are there: those that are not are told. NaN where nobody is."""
        last, exchange, clients = max(done - 1, 0), self.exchange, self.problem.num_clients
        key, index = fold_in(self.key, last), jnp.asarray(last)

        def value(x: Array) -> OwnValue:
            with computing(double=True):
                there, found = exchange.present(), OwnValue.of(jnp.nan)
                exchange.open(max(done, exchange.round + 1))  # behind a round that was taken back, too, whose sums sites have opened
                while len(there):
                    given = (self.tables, state, self.data, present_in(there, clients), key, index, jnp.asarray(x))
                    with unbroken():
                        said = jax.block_until_ready(self.programs.own_value()(*given))
                    if not exchange.failed:
                        found = said
                        break
                    there = there[~np.isin(there, list(exchange.lost))]
                    if exchange.stuck is not None:
                        break
                    exchange.again()
                if len(there) < clients:
                    self.told["missing"] = missing_from(there, exchange, self.problem)
                self.tell()
                return found

        return value


def missing_from(there: np.ndarray, exchange: Exchange, problem: CompiledProblem) -> list[str]:
    """Who is not there, by the client's name and its site's, with what the site was last at fault with."""
    said = []
    for client in np.setdiff1d(np.arange(problem.num_clients), there).tolist():
        site = exchange.site_of.get(client)
        faults = [] if site is None else exchange.reports[site].faults
        at = "at no site that joined" if site is None else f"at site {site!r}"
        why = f": {faults[-1][1].splitlines()[0]}" if faults else ""
        said.append(f"{problem.declaration.client_called(client)} ({at}{why})")
    return said


def stacked(records: Sequence[dict[str, Any]]) -> History:
    """The rounds' records as one array for each of their numbers."""
    return {name: np.stack([np.asarray(record[name]) for record in records]) for name in (records or [{}])[0]}


def seen(history: History) -> History:
    """The records without what clients withhold, which stands there as zeros."""
    if WITHHELD not in history:
        return history
    nothing = np.full(len(history[WITHHELD]), np.nan)
    kept = {name: values for name, values in history.items() if name != WITHHELD}
    return kept | {name: nothing for name in ("objective", "lower_residual", *ANSWERED) if name in history}


def _too_few(answered: int, wanted: int, index: int, minimum: int, exchange: Exchange) -> str:
    latest = {site: report.faults[-1] for site, report in exchange.reports.items() if report.faults}
    why = [f"{site}: {said.splitlines()[0]}" for site, (at, said) in latest.items() if at == index]
    because = f" ({'; '.join(why)})" if why else ""
    return f"{answered} of {wanted} clients answered in round {index}, fewer than minimum={minimum}{because}"


def require_begun(exchange: Exchange, names: Sequence[str | None], minimum: int, patience: float) -> None:
    """Wait for the sites of a run that are still to come, or to answer (those that refuse do not), and require that it can begin.

    Raises ``SiteError`` if too few are there, with what each said, if one does not go on with what its clients
    remembered, if one's data are not what the problem declares (who left it out would answer another question than was asked), or if nobody
    holds a client's data and all clients are needed.
    """
    until, clients = time.monotonic() + patience, len(names)
    while True:
        there = exchange.present()
        decided = len(there) + sum(len(exchange.clients_of[site]) for site in exchange.unwilling)
        if decided >= clients or exchange.unfit or time.monotonic() >= until:
            break
        heed()
        time.sleep(LOOK)
    exchange.require_memories()
    if exchange.unfit:
        told = "\n".join(f"{site}: {reason}" for site, reason in exchange.unfit.items())
        raise SiteError(
            f"no run begins while a site's data are not what the problem declares: have its owner mend them, or leave its clients out of the "
            f"federation.\n{told}"
        )
    missing = [str(name or client) for client, name in enumerate(names) if client not in exchange.site_of]
    if missing and (minimum >= clients or not exchange.clients_of):
        raise SiteError(
            f"no site holds the data of {', '.join(missing[:8])}{', ...' if len(missing) > 8 else ''}: start one for each client, "
            f"hierfl site --problem ... --data ... --scheduler ...."
        )
    if len(there) < min(minimum, clients):
        said = [f"{site}: {report.faults[-1][1]}" for site, report in exchange.reports.items() if report.faults]
        few = f"{len(there)} of {clients} clients can take part, fewer than minimum={minimum}. "
        raise SiteError(few + "\n".join(said))


def scalars_remembered(algorithm: Algorithm, x0: np.ndarray) -> int:
    """How many numbers a client remembers from round to round."""
    shapes = jax.eval_shape(algorithm.memory, jax.ShapeDtypeStruct(x0.shape, float))
    return sum(int(np.prod(shape.shape)) for shape in jax.tree.leaves(shapes))


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
    request: Request | None = None  # that it is of
    _place: int = 0

    def again(self) -> None:
        self._place, self.pending = 0, None

    def ask(self, request: Request) -> Any:
        """The answer that is there, or zeros: then ``pending`` is what to send."""
        place, self._place = self._place, self._place + 1
        if place < len(self.answers):
            answer = self.answers[place]
            return jax.tree.map(lambda zero, part: part, request.expected, (answer.payload, answer.monitor))
        if self.pending is None:
            kind, step, clients, broadcast, each, seed, _ = request
            asked = Asked(self.turn, self.version, place, self.settled, kind, step, clients, seed, broadcast, each)
            self.pending, self.request = asked, request
        return request.zeros()


GIVEN_UP = 0.5  # seconds between looks whether the run is to end
SOLVERS = ("FedAvg", "FedRZO", "ZOHFL")
SUMMED = (*TRAFFIC, *WORK)
MOST_OF = ("fault", "empty")  # columns of which the largest counts, where others are averaged


def require_buffered(problem: CompiledProblem, algorithm: Algorithm) -> None:
    """An algorithm can do without rounds. Raises ``IncompatibleSolverError``, saying what stands against it."""
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
    """Runs without rounds, after FedBuff (Nguyen et al., 2022): every site works at its own pace, and the server steps when enough moves are there.

    A move is the difference that the algorithm's own round makes with the clients of one site alone, from the x that they were given. When ``buffer``
    moves have come, x takes their mean over clients, each times (1 + tau)^(-staleness), where tau counts the steps since the site was given its x.
    That is one round of the result.

    In the conversation with a site the server's program of a round runs as far as the answers go that are there; the message that it asks
    for next is sent, and when its answer has come the program runs again from the same state, one message further.
    """

    unit = "step"

    def __init__(
        self,
        problem: CompiledProblem,
        algorithm: Algorithm,
        exchange: Exchange,
        buffer: int,
        staleness: float,
        patience: float,
        seed: int,
    ) -> None:
        require_buffered(problem, algorithm)
        super().__init__(problem, algorithm, exchange, 1, patience, seed)
        self.links, self.buffer, self.staleness = exchange.links, buffer, staleness
        self.size = max(map(len, exchange.clients_of.values()))
        self.talking: dict[str, Conversation] = {}
        self.last: dict[str, Settled] = {}
        self.turns = 0

    def run(self, x0: np.ndarray, rounds: int, block: int, at_end: BlockEnd, begun: Begun | None) -> Outcome:
        if begun is not None:
            raise SettingError("asynchronous=True: a run without rounds does not go on from a checkpoint.")
        if self.buffer > len(self.exchange.clients_of):
            raise SettingError(f"buffer={self.buffer}: there are {len(self.exchange.clients_of)} sites.")
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
        until = time.monotonic() + self.patience
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
        refused, until = 0, time.monotonic() + self.patience
        while len(moves) < self.buffer:
            heed()
            self._dispatch(state, version)
            arrived = self.links.arrival(min(GIVEN_UP, max(0.05, until - time.monotonic())))
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
            until = time.monotonic() + self.patience
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
            self.exchange.note_sent(conversation.site, conversation.pending.step, parcel)
            self.links.send(conversation.site, parcel)
        return after, record

    def _believed(self, conversation: Conversation, reply: bytes | Lost, version: int) -> bool:
        """Whether an answer is one; it is then the conversation's, which is else over."""
        site, exchange = conversation.site, self.exchange
        problem: str | None
        if isinstance(reply, Lost):
            problem = reply.reason
        else:
            assert conversation.request is not None  # or nothing would have been sent
            expected = conversation.request.expected
            message = reply_of(reply, expected)
            exchange.note_received(site, conversation.request.step, message, reply)
            if isinstance(message, Answered):
                problem = misshapen(message, len(conversation.clients), expected)
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
        counted = self.algorithm.absent != "renormalise"  # whose moves are means by weights that sum to one at every site
        each = np.ones(self.problem.num_clients) if counted else self.problem.declaration.client_weights
        sizes, old = np.array([(np.sum(each[talk.clients]), version - talk.version) for talk, _, _ in moves], float).T
        weights = sizes / (sizes.sum() or 1.0) * (1.0 + old) ** -self.staleness

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
            shown[name] = values.sum() if name in SUMMED else values.max() if name in MOST_OF else values.mean()
        old, new = (np.asarray(self.algorithm.decision(state)) for state in (before, after))
        moved = {"move": np.linalg.norm(new - old), "extent": np.max(np.abs(new), initial=0.0)}
        answered = sum(len(talk.clients) for talk, _, _ in moves)
        staleness = float(np.mean([version - talk.version for talk, _, _ in moves]))
        own = {"answered": answered, "staleness": staleness, "clock": self.links.clock, "seconds": self.links.clock - began}
        return {**shown, **moved, **own}

"""A site: the data of its clients, their memories, the algorithm's steps, compiled once and run by name; and what its owner allows.

What a site answers is decided by what it reveals. Every number is over so many rows at least, which are drawn under a secret of the site's
own; of a run's algorithm it answers the steps of a round, in their order, each once; and every turn in which it computes anything counts.

What a turn does to memories is settled by the next message: the server keeps a turn, or drops it. A round that is made again is another turn,
in which what is asked as before is answered as before.
"""

from __future__ import annotations

import hmac
import logging
import secrets
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from operator import attrgetter
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import UInt32

from hierfl.compiler.compiled_problem import CompiledProblem, compile_problem, penalised_problem
from hierfl.errors import DataError, HierflError, SettingError, SiteError
from hierfl.jaxtools.disk_cache import ProgramCache
from hierfl.jaxtools.keyed_random import fold_in
from hierfl.jaxtools.precision import computing
from hierfl.language.declaration import Declaration
from hierfl.language.federation.client import Client
from hierfl.runtime.contract import Received, taken
from hierfl.runtime.in_process.simulation import choose_schedule
from hierfl.runtime.privacy.gaussian_noise import NoisedMessages, SharedNoise, require_covered
from hierfl.runtime.privacy.ledger import LedgerRun, PrivacyLedger
from hierfl.runtime.privacy.pairwise_masks import SiteMasks, require_means
from hierfl.runtime.records import as_tables
from hierfl.runtime.sites.letters import (
    SERVER,
    Hello,
    Introduction,
    Letter,
    asked_of,
    by_name,
    items_of,
    letter_of,
    message_of,
    start_of,
)
from hierfl.runtime.sites.memory_folder import MemoryFolder, memory_bytes, memory_of
from hierfl.runtime.sites.owner.site_rules import SiteRules
from hierfl.runtime.sites.parcels import (
    Answered,
    Asked,
    Keep,
    Kept,
    KeptMark,
    Refusal,
    Settled,
    Start,
    Unmask,
    Unmasked,
    Welcome,
    as_numpy,
    declaration_mark,
    declared_text,
    digest_of,
    unpickled_solver,
    version_of,
)
from hierfl.runtime.sites.site_programs import RunProtocol, fitted, require_alike
from hierfl.version import VERSION

LOG = logging.getLogger("hierfl.site")
NO_RUN = Refusal("no run has begun here for this server: this process is new, or others have begun theirs since")
SERVERS = 4  # that have a run here at once; of one more the run that was asked longest ago is forgotten
ALGORITHMS = 8  # whose programs are kept
MOST_DRAWN = 1_000_000  # rows at once
MOST_ROUNDS = 1_000_000  # of one run: an algorithm's tables have a row for each


def reads_nothing(text: str) -> Any:
    """Make no solver. Raises ``SiteError``."""
    raise SiteError("this site was given no way to read a solver")


class Site:
    """What a site's process holds, and how it answers.

    Its owner's log calls it ``name``; ``held`` are the data of its clients, by their index in the federation, of which the declaration says that they are
    elsewhere, or has them itself. Simulated sites of one process share what is ``compiled``, the ``programs``, and the data, and answer for their
    ``own`` clients. ``memories`` is where what clients remember is kept for the server's checkpoints: ``"handed back"`` to the server, where
    their data were handed over by it; None keeps nothing. All that is answered is written to the ``ledger`` before it leaves, and counted from
    it; None counts in memory. ``read_solver`` makes a solver of its text, and runs nothing else.

    Raises ``SettingError`` for a budget without a ledger.
    """

    def __init__(
        self,
        name: str,
        declaration: Declaration,
        held: Mapping[int, Client],
        rules: SiteRules,
        compiled: CompiledProblem | None = None,
        programs: ProgramCache | None = None,
        memories: MemoryFolder | Literal["handed back"] | None = None,
        own: frozenset[int] | None = None,
        ledger: PrivacyLedger | None = None,
        read_solver: Callable[[str], Any] = reads_nothing,
    ) -> None:
        if rules.epsilon is not None and ledger is None:
            raise SettingError("a budget of epsilon over all runs is kept by a ledger: hierfl site --ledger FILE.")
        self.callers: dict[str, str] = {}  # the names of servers, where a runtime is sure of them
        self.ledger, self.read_solver, self.now = ledger, read_solver, datetime.now
        self.memories, self.own = memories, frozenset(held) if own is None else own
        self.name, self.declaration, self.held, self.rules = name, declaration, dict(sorted(held.items())), rules
        self.mark = declaration_mark(declaration)
        self.rounds, self.messages = (0, 0) if ledger is None else (ledger.content.rounds, ledger.content.messages)  # answered, of all runs
        self.fingerprint = "" if ledger is None else ledger.fingerprint([[own.samples, own.parameters] for own in self.held.values()])
        self._compiled = compiled
        self.programs = ProgramCache() if programs is None else programs
        self._begun = 0  # how many runs
        self._recent = dict[Any, None]()  # keys of the algorithms whose programs are kept, the one begun last at the end
        self._asked_last: SiteRun | None = None  # whose answer is told next
        self._runs: dict[str, SiteRun] = {}  # by their servers, the one asked last at the end
        self._noised: dict[Any, NoisedMessages] = {}  # of each run with noise, which may begin here more than once

    def answer(self, parcel: bytes, server: str = "") -> bytes:
        """Answer one letter by another; ``server`` tells apart who asks, where the letter does not."""

        def read() -> Any:
            letter = Letter.from_bytes(parcel)
            asking = server or str(letter.words.get(SERVER, ""))
            message = self._message(letter, asking)
            return message if isinstance(message, Refusal | Introduction) else self.respond(message, asking)

        reply = self._said(read, failed=True)
        sent = letter_of(reply).as_bytes()
        self.tell(reply, len(sent))
        return sent

    def _message(self, letter: Letter, server: str) -> Any:
        """What a letter asks, or what is to be said of it at once."""
        kind = letter.words.get("message")
        if kind == Hello.__name__:
            return Introduction(self.name, tuple(self.held))
        if kind == Start.__name__:
            return start_of(letter)
        if kind == Asked.__name__:
            run = self.run(server)
            return NO_RUN if run is None else asked_of(letter, run.protocol.shapes)
        for other in (Keep, Unmask):
            if kind == other.__name__:
                return message_of(letter, other)
        raise SiteError(f"a message of the kind {kind!r}, which no run sends.")

    def _said(self, answer: Callable[[], Any], failed: bool = False) -> Any:
        """An answer, or why there is none; whatever goes wrong is told by its kind, and by its kind and place in this site's own log.

        A server whose pickles run here, as those of simulated sites do, has all that is here, and is told what went wrong and where.
        """
        try:
            return answer()
        except DataError as error:
            LOG.warning("%s: refused: %s", self.name, error)
            return Refusal(error.without_values, failed, unfit=True)
        except HierflError as error:
            LOG.warning("%s: refused: %s", self.name, error)
            return Refusal(str(error), failed)
        except Exception as error:
            LOG.exception("%s: failed", self.name)
            if self.read_solver is unpickled_solver:
                frames = traceback.extract_tb(error.__traceback__)
                place = ([at for at in frames if "site-packages" not in at.filename] or frames)[-1]  # all are there where hierfl is installed
                return Refusal(f"{type(error).__name__}: {error} (line {place.lineno} of {place.filename})", failed=True)
            return Refusal(f"{type(error).__name__}, of which the site's own log has the kind and the place", failed=True)

    def respond(self, message: Start | Asked | Unmask | Keep, server: str = "") -> Any:
        """Answer one message. What a server began is its own: another may have a run here at the same time."""
        return self._said(lambda: self._answered(message, server))

    def _answered(self, message: Start | Asked | Unmask | Keep, server: str) -> Any:
        reason = self.rules.against_now(self.now()) or self.rules.against_server(self.callers.get(server))
        if reason is not None:
            LOG.warning("%s: refused: %s", self.name, reason)
            return Refusal(reason)
        with computing(double=True):
            if isinstance(message, Start):
                return self._begin(message, server)
            run = self.run(server)
            if run is None:
                return NO_RUN
            return self._keep(message, run) if isinstance(message, Keep) else self._step(message, run)

    def run(self, server: str = "") -> SiteRun | None:
        self._asked_last = run = self._runs.pop(server, None)
        if run is not None:
            self._runs[server] = run
        return run

    def _begin(self, start: Start, server: str) -> Welcome | Refusal:
        """Begin a run, or say why not: another version, another declaration, or the owner's rules."""
        for order in (start.noise, start.masks):
            if order is not None:
                order.require_sound()
        if (reason := self._against(start)) is not None:
            return self._refusal(start, reason)
        if self._compiled is None:
            self._compiled = compile_problem(self.declaration)
        problem = self._compiled
        if start.penalty is not None:
            problem = penalised_problem(problem, *start.penalty)
        if np.shape(start.x0) != (problem.upper.size,):
            raise SiteError(f"x0 has the shape {np.shape(start.x0)}, not {(problem.upper.size,)}")
        solver = self.read_solver(start.solver) if isinstance(start.solver, str) else start.solver
        if type(solver).__name__ != start.algorithm:  # which is what the owner's rules are about
            raise SiteError(f"a start of {start.algorithm!r} whose solver is {type(solver).__name__}.")
        algorithm = solver.bind(problem, start.rounds, start.queries)
        if isinstance(start.solver, str) and start.version != version_of(algorithm) and self.read_solver is not unpickled_solver:
            return self._refusal(start, f"the server's {start.algorithm} is other code than this site's, or made by another Python: both take the same file")
        self._make_room(algorithm.program_key)
        protocol = self.programs.keep(("protocol", algorithm.program_key, start.penalty is None), lambda: RunProtocol.of(problem, algorithm, start.x0))
        if any(drawn.size > MOST_DRAWN for drawn in set().union(*protocol.drawn.values())):
            return self._refusal(start, f"batches of more than {MOST_DRAWN:,} rows: take batch_size=None for all of them")
        entry, replaced = self._entry(start, protocol, server), self._runs.get(server)
        ending = None if replaced is None or self._shared(replaced) else replaced.entry
        if self.ledger is not None and (reason := self.rules.against_spending(self.ledger.content, entry, ending)) is not None:
            return self._refusal(start, reason)
        noised = None
        if start.noise is not None:
            step = require_covered(problem, algorithm)
            noised = self._noised.setdefault(entry.mark, self._noise_of(start, step, entry))
        masks = None
        if start.masks is not None:
            require_means(problem, algorithm)
            masks = SiteMasks(start.masks)
        run = SiteRun(self, problem, algorithm, protocol, start, noised, masks)
        if masks is not None:
            require_alike(algorithm, start.tables)
        if (reason := self.rules.against_batches(run.fewest_rows())) is not None:
            return self._refusal(start, reason)
        if start.kept is not None:
            run.remember(self._kept(start.kept))
        self._runs.pop(server, None)  # what the ledger says is over is answered no more
        epsilon = 0.0
        if self.ledger is not None:
            run.entry = self.ledger.begin(entry, ending)
            epsilon = 0.0 if start.noise is None else self.ledger.content.epsilon(start.noise.delta)
        self._runs[server] = run
        if len(self._runs) > SERVERS:
            forgotten = self._runs.pop(next(iter(self._runs)))
            if self.ledger is not None and forgotten.entry is not None and not self._shared(forgotten):
                self.ledger.end(forgotten.entry)
        self._begun, self._asked_last = self._begun + 1, run
        run.number = self._begun
        LOG.info("%s: run %d begins: %s, %d rounds at most", self.name, run.number, start.algorithm, start.rounds)
        return Welcome(tuple(self.held), b"" if masks is None else masks.public, epsilon)

    def _entry(self, start: Start, protocol: RunProtocol, server: str) -> LedgerRun:
        """What the ledger says of a run; one that begins here again, under the same order for noise, is the same run."""
        noise, masks, numbers = start.noise, start.masks, protocol.numbers
        told = None if noise is None else {"numbers": numbers} | {name: value for name, value in noise._asdict().items() if name != "run"}
        mark = secrets.token_hex(16) if noise is None else digest_of(noise, masks, start.algorithm, numbers).hex()[:32]
        who, least = self.callers.get(server, server)[:64], None if masks is None else masks.least
        return LedgerRun(mark, who, self.mark, self.fingerprint, start.algorithm, start.rounds, told, least)

    def _shared(self, run: SiteRun) -> bool:
        """Whether what a run may still send is what another one may."""
        return any(other.entry is run.entry for other in self._runs.values() if other is not run)

    def _refusal(self, start: Start, reason: str) -> Refusal:
        LOG.warning("%s: refused a run of %s: %s", self.name, start.algorithm, reason)
        return Refusal(reason)

    def _noise_of(self, start: Start, step: str, entry: LedgerRun) -> NoisedMessages:
        assert start.noise is not None  # or there is none
        begun = None if self.ledger is None else self.ledger.content.run(entry.mark)
        before = 0 if begun is None else begun.released
        if not start.noise.shared:
            return NoisedMessages(start.noise, step, before)
        if start.masks is None:
            raise SiteError("noise that sites share is too little for messages without masks")
        weights = self.declaration.client_weights
        return SharedNoise(start.noise, step, start.masks, weights / np.sum(weights), before)

    def _against(self, start: Start) -> str | None:
        if start.version.partition(",")[0] != VERSION:
            return f"the server runs hierfl {start.version}, this site hierfl {VERSION}"
        if start.mark != self.mark:
            return (
                f"another problem is declared here than at the server (mathematics, values of parameters, clients' names, numbers of "
                f"rows, or laws). Here:\n{declared_text(self.declaration)}\nAt the server:\n{start.declared}"
            )
        if start.penalty is not None and not (self.declaration.plain.coupled and np.isfinite(start.penalty).all() and min(start.penalty) >= 0):
            return f"weights {tuple(start.penalty)} of violations and of f: no upper constraint here mentions y, or they are no weights"
        if not 0 <= start.rounds <= MOST_ROUNDS:
            return f"a run of {start.rounds} rounds, of at most {MOST_ROUNDS:,}: make it in parts"
        if start.noise is not None and start.noise.releases > start.rounds:
            return f"noise for {start.noise.releases} messages of a client in {start.rounds} rounds"
        return self.rules.against(start, self.declaration, self.held) or self.rules.against_more(self.rounds, self.messages)

    def _keep(self, asked: Keep, run: SiteRun) -> Kept:
        """Keep what clients remember, or hand it back to whom their data came from."""
        if self.memories is None:
            return Kept(False)
        if (reason := self.rules.against_more(-1, self.messages)) is not None:
            raise SiteError(reason)
        run.owed, self.messages = (run.owed[0], run.owed[1] + 1), self.messages + 1
        self._write(run)
        content = run.remembered(asked.settled)
        if self.memories == "handed back":
            return Kept(True, content)
        self.memories.keep(asked.run, asked.number, content)
        LOG.info("%s: kept what its clients remember, %d bytes, in %s", self.name, len(content), self.memories.path)
        return Kept(True)

    def _kept(self, mark: KeptMark) -> bytes:
        if self.memories is None:
            raise SiteError("the run goes on from what clients remember, and this site keeps nothing: start it with --keep DIR")
        return mark.content if self.memories == "handed back" else self.memories.read(mark.run, mark.number)

    def _step(self, asked: Asked | Unmask, run: SiteRun) -> Answered | Unmasked | Refusal:
        if isinstance(asked, Unmask):
            if run.masks is None:
                return Refusal("this run has no masks")
            if asked.other:
                return Unmasked(run.masks.share(asked.attempt, asked.other, asked.sealed))
            return Unmasked(run.masks.own_mask(asked.attempt))
        if run.is_new(asked):
            first = not run.counted  # in its turn
            reason = self.rules.against_more(self.rounds if first else -1, self.messages)
            if reason is not None:
                return Refusal(reason)
            run.counted, run.owed = True, (run.owed[0] + first, run.owed[1] + 1)
            self.rounds, self.messages = self.rounds + first, self.messages + 1
        try:
            return run.answer(asked)
        finally:  # also what was drawn and is not sent
            self._write(run)

    def _write(self, run: SiteRun) -> None:
        """Bring the ledger up to what a run was answered; without that nothing leaves."""
        if self.ledger is not None and run.entry is not None:
            released = 0 if run.noised is None else run.noised.releases.largest
            self.ledger.answered(run.entry, *run.owed, released)
        run.owed = 0, 0

    def _make_room(self, key: Any) -> None:
        """Forget the programs of the algorithm that was begun longest ago, where there would be too many."""
        self._recent.pop(key, None)
        self._recent[key] = None
        if len(self._recent) > ALGORITHMS:
            oldest = next(iter(self._recent))
            del self._recent[oldest]
            self.programs.forget(oldest)

    def tell(self, reply: Any, size: int) -> None:
        """The owner's log has every array that leaves: its run, name, shape and bytes."""
        run, self._asked_last = self._asked_last, None
        who = self.name if run is None else f"{self.name}: run {run.number}"
        if isinstance(reply, Answered):
            for item in items_of(by_name(payload=reply.payload, monitor=reply.monitor)):
                LOG.info("%s: sent %s %s %s, %d bytes", who, item.name, item.shape, item.dtype, item.bytes)
        LOG.info("%s: sent %s, %d bytes in all", who, type(reply).__name__, size)


class Call(NamedTuple):
    """A question that was answered in a turn: its mark, its step, what the clients told, and the memories after it."""

    mark: bytes
    step: tuple[str, str]
    told: Any
    memory: Any


class SiteRun:
    """One run at a site: the memories of its clients before the present turn, and the calls in it."""

    def __init__(
        self,
        site: Site,
        problem: CompiledProblem,
        algorithm: Any,
        protocol: RunProtocol,
        start: Start,
        noised: NoisedMessages | None,
        masks: SiteMasks | None,
    ) -> None:
        self.entry: LedgerRun | None = None
        self.number = 0  # in the owner's log
        held, self.own, self.programs = site.held, site.own, site.programs
        self.noised, self.masks, self._asked_alike = noised, masks, start.digest()
        self.problem, self.algorithm, self.rounds = problem, algorithm, start.rounds
        self.places = {client: place for place, client in enumerate(held)}
        key = "data", tuple(held), problem.parameter_values
        self.data = self.programs.keep(key, lambda: problem.population_of(held))
        self.tables = as_tables(fitted(start.tables, algorithm.tables))
        self.protocol, self.owed = protocol, (0, 0)  # rounds and messages that the ledger has not yet
        first = algorithm.memory(jnp.asarray(start.x0))
        self.memory = jax.tree.map(lambda a: jnp.broadcast_to(a, (len(held), *jnp.shape(a))), first)
        self._secret = None if start.shared_seeds else secrets.token_bytes(32)
        self.turn = self.round = -1
        self.counted = False  # whether anything was computed in this turn
        self._calls: list[Call] = []
        self._dropped: list[Call] = []  # of the last turn, where the round is made again
        self._mark = b""  # of the question that was looked at last

    def fewest_rows(self, step: tuple[str, str] | None = None) -> int | None:
        """The fewest rows that a step, or any, reads at once of a client here; None where it always reads all."""
        drawing = [table for table, own in enumerate(self.data.tables) if own.quantiles is None]
        counts = [{table: int(self.data.tables[table].counts[place]) for table in drawing} for place in self.places.values()]
        found = [self.protocol.fewest_rows(own, step) for own in counts]
        return min((rows for rows in found if rows is not None), default=None)

    def is_new(self, asked: Asked) -> bool:
        """Whether a question is yet to be answered: in its turn, and in the one before, where its round is made again.

        Raises ``SiteError`` for a question out of turn, of another place than is due, and what is no message of the run's algorithm.
        """
        clients = asked.clients.tolist()
        if not clients or len(set(clients)) < len(clients) or not set(clients) <= self.own or asked.seed.shape != (2,):
            raise SiteError(f"a message for clients {clients[:8]}, of whom not all are here, or one is there twice, or with no seed")
        if asked.turn < max(self.turn, 0) or not max(self.round, 0) <= asked.round <= self.rounds:
            raise SiteError(f"turn {asked.turn} of round {asked.round}: those up to {self.turn} and {self.round} are over, or the run has no such")
        self._begin(asked)
        if asked.place > len(self._calls):
            raise SiteError(f"call {asked.place} of a round of which {len(self._calls)} were answered")
        self._mark = mark = asked.digest()
        if asked.place < len(self._calls):
            if self._calls[asked.place].mark != mark:
                raise SiteError("another question in the place of one that was answered: each is answered once")
            return False
        step = asked.kind, asked.step
        self.protocol.require(asked, sum(call.step == step for call in self._calls))
        if self.noised is not None:
            self.noised.require(asked.kind, asked.step)
        if len(self._dropped) > asked.place and self._dropped[asked.place].mark == mark:
            self._calls.append(self._dropped[asked.place])
            return False
        self._dropped = []
        return True

    def _begin(self, asked: Asked) -> None:
        if asked.turn == self.turn:
            return
        self._dropped = [] if self._settle(asked.settled) or asked.round != self.round else self._calls
        self.turn, self.round, self._calls, self.counted = asked.turn, asked.round, [], False

    def answer(self, asked: Asked) -> Answered:
        """Run a step for some clients, side by side or one after another, unless that was done before; and hide what is to be hidden."""
        began = time.perf_counter()
        if asked.place == len(self._calls):
            self._calls.append(self._computed(asked))
        payload, monitor = self._calls[asked.place].told
        clients, seconds = asked.clients.tolist(), 0.0 if self.noised is not None else time.perf_counter() - began
        if isinstance(self.noised, SharedNoise):
            assert self.masks is not None  # required when the run began
            withheld = int("value" in monitor)
            attempt = -1 if asked.masking is None else asked.masking.attempt
            # another attempt, and another try under other masks, has other noise, and others may open it
            questions = [(question, attempt, self.masks.public) for question in asked.questions()]
            return self._masked(asked, self.noised.summed(clients, questions, payload, withheld), 0.0)
        if self.noised is not None:  # what else there is to say is withheld, the time it took as well
            payload = self.noised.of(clients, asked.questions(), payload)
            monitor = jax.tree.map(np.zeros_like, monitor)
        if self.masks is not None:
            return self._masked(asked, self._summed(asked.clients, payload, monitor), seconds)
        return Answered(payload, monitor, seconds)

    def _computed(self, asked: Asked) -> Call:
        memory = self._calls[-1].memory if self._calls else self.memory
        chosen = np.array([self.places[client] for client in asked.clients.tolist()])
        size, count = self._padded(len(chosen)), len(chosen)
        filled = np.concatenate([np.arange(count), np.zeros(size - count, int)])
        each = jax.tree.map(lambda a: np.asarray(a)[filled], asked.each)
        drawn_under = None if self._secret is None else self._secrets(asked)[filled]
        given = (self.tables, self.data, memory, chosen[filled], asked.broadcast, each)
        program = self._program(asked.kind, asked.step, size)
        memory, told = program(*given, np.asarray(asked.round), asked.seed, drawn_under)
        told = jax.tree.map(lambda a: np.asarray(a)[:count], as_numpy(told))
        return Call(self._mark, (asked.kind, asked.step), told, memory)

    def _secrets(self, asked: Asked) -> UInt32[np.ndarray, "clients 2"]:
        """What each client's rows are drawn under in a round, beside the run's keys: functions of these and of this site's secret."""
        assert self._secret is not None
        about = digest_of(asked.round, asked.seed)
        words = [hmac.digest(self._secret, about + client.to_bytes(8), "sha256")[:8] for client in asked.clients.tolist()]
        return np.frombuffer(b"".join(words), np.uint32).reshape(-1, 2)

    def _masked(self, asked: Asked, numbers: np.ndarray, seconds: float) -> Answered:
        """A sum under masks that cancel with those of sites that were asked the same, for the same clients of all."""
        assert self.masks is not None
        masking, summed = asked.masking, set() if asked.masking is None else set(asked.masking.clients)
        if masking and not len(masking.keys) <= len(masking.clients) <= self.problem.num_clients:
            raise SiteError("a sum over more sites than clients, or more clients than there are")
        if jax.tree.leaves(asked.each) or (masking and self.own & summed != set(asked.clients.tolist())):
            raise SiteError("a message under masks for some of the sum's clients alone, or with parts of their own")
        others = sorted(summed - self.own)
        if masking and not (set(others) <= set(range(self.problem.num_clients)) and np.any(self.problem.declaration.client_weights[others] > 0)):
            raise SiteError("a sum in which nobody else's messages weigh anything")
        everybody = () if masking is None else (*masking.clients, *masking.keys)
        alike = digest_of(self._asked_alike, asked.common(), everybody)
        sent, shares = self.masks.masked(numbers, masking, (asked.round, asked.place), alike)
        return Answered(sent, {}, seconds, shares)

    def _summed(self, clients: np.ndarray, payload: Any, monitor: Any) -> np.ndarray:
        """The clients' messages, times their share of all weights, as one list of numbers."""
        weights = self.problem.declaration.client_weights
        shares = weights[clients] / np.sum(weights)
        parts = [*jax.tree.leaves(payload), *([monitor["value"]] if "value" in monitor else [])]
        return np.concatenate([np.tensordot(shares, np.asarray(part, float), axes=1).ravel() for part in parts])

    def remembered(self, settled: Settled | None) -> bytes:
        self._settle(settled)
        return memory_bytes(self.memory, self.places)

    def remember(self, content: bytes) -> None:
        self.memory = memory_of(content, self.memory, self.places)

    def _settle(self, settled: Settled | None) -> bool:
        """Keep the last turn's memories, or not; whether they are kept."""
        kept = settled is not None and settled.turn == self.turn and settled.kept
        if kept and self.masks is not None and not self.masks.has_opened(self.round):
            kept = False  # what a server had one site remember would be in a sum as that site's own
        if kept and self._calls:
            self.memory = self._calls[-1].memory
        return kept

    def _padded(self, count: int) -> int:
        """A program for so many clients serves fewer as well."""
        return min(len(self.places), 1 << max(count - 1, 0).bit_length())

    def _program(self, kind: str, step: str, size: int) -> Callable[..., Any]:
        key = (self.algorithm.program_key, kind, step, size, self.problem.declaration.penalty is None)

        def program() -> Callable[..., Any]:
            together = choose_schedule(self.problem, size, None, self.algorithm.work).side_by_side
            return jax.jit(_stepper(self.algorithm, kind, step, together))

        return self.programs.keep(key, program)


def _stepper(algorithm: Any, kind: str, name: str, together: bool) -> Callable[..., Any]:
    """The program of a step for several clients of a site, as a function of everything that changes."""

    def run(
        tables: Any, data: Any, memory: Any, chosen: Any, broadcast: Any, each: Any, index: Any, seed: Any, secret: Any
    ) -> tuple[Any, tuple[Any, Any]]:
        step, key = attrgetter(name)(algorithm.with_tables(tables)), jax.random.wrap_key_data(seed)

        def one(job: tuple[Any, Any, Any, Any]) -> tuple[Any, tuple[Any, Any]]:
            place, own, sent, words = job
            party = replace(data.party(place), secret=words)
            if kind == "query":
                return own, (step(party, broadcast), {})
            after, message = taken(step, party, own, Received(broadcast, sent, index), fold_in(key, party.index))
            return after, (message.payload, message.monitor)

        jobs = (chosen, jax.tree.map(lambda a: a[chosen], memory), each, secret)
        changed, answers = (jax.vmap(one) if together else lambda given: jax.lax.map(one, given))(jobs)
        return jax.tree.map(lambda a, new: a.at[chosen].set(new), memory, changed), answers

    return run

"""A run over sites: round after round with those that answer, until it is done, or too few are there."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import SiteError
from hierfl.jaxtools.interruption import CutShort, heed, over, unbroken
from hierfl.jaxtools.keyed_random import fold_in, key_of
from hierfl.jaxtools.precision import computing
from hierfl.runtime.contract import Algorithm, OwnValue
from hierfl.runtime.records import ANSWERED, WITHHELD, Begun, BlockEnd, History, Outcome
from hierfl.runtime.sites.aggregation import Aggregation
from hierfl.runtime.sites.exchange import Exchange
from hierfl.runtime.sites.site_programs import SitePrograms, present_in
from hierfl.runtime.sites.site_reports import RollCall

LOOK = 0.2  # seconds between looks for sites that are missing


@dataclass(frozen=True)
class Attendance:
    """How many clients must answer in a round, and how long to wait for so many to be there (seconds)."""

    minimum: int
    patience: float


class TooFewError(Exception):
    """A round cannot be made, most often since fewer clients answered than have to; says why."""


class SiteRounds:
    """Makes the rounds of one run."""

    unit = "round"

    def __init__(
        self,
        problem: CompiledProblem,
        algorithm: Algorithm,
        exchange: Exchange,
        attendance: Attendance,
        seed: int,
        clock: Callable[[], float] | None = None,
        aggregation: Aggregation | None = None,
    ) -> None:
        if aggregation is not None:
            aggregation.require_fitting(problem, algorithm)
        self.clock = clock  # of a simulation, which is then recorded
        self.problem, self.algorithm, self.exchange, self.attendance = problem, algorithm, exchange, attendance
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
            chosen = (
                chosen if chosen.size else there[:size]
            )  # of others that are there, if none of those who were drawn
            if len(chosen) < min(self.attendance.minimum, len(wanted)):
                exchange.close(made=False)
                raise TooFewError(_too_few(len(chosen), len(wanted), index, self.attendance.minimum, exchange))
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
        until = time.monotonic() + self.attendance.patience
        while True:
            there = self.exchange.present()
            enough = len(there) >= min(self.attendance.minimum, len(wanted))
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
    why = [
        f"{site}: {report.faults[-1][1].splitlines()[0]}"
        for site, report in exchange.reports.items()
        if report.faults and report.faults[-1][0] == index
    ]
    because = f" ({'; '.join(why)})" if why else ""
    return f"{answered} of {wanted} clients answered in round {index}, fewer than minimum={minimum}{because}"


def require_begun(exchange: Exchange, names: Sequence[str | None], attendance: Attendance) -> None:
    """Wait for the sites of a run that are still to come, or to answer (those that refuse do not), and require that it can begin.

    Raises ``SiteError`` if too few are there, with what each said, if one does not go on with what its clients
    remembered, if one's data are not what the problem declares (who left it out would answer another question than was asked), or if nobody
    holds a client's data and all clients are needed.
    """
    until, clients = time.monotonic() + attendance.patience, len(names)
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
    if missing and (attendance.minimum >= clients or not exchange.clients_of):
        raise SiteError(
            f"no site holds the data of {', '.join(missing[:8])}{', ...' if len(missing) > 8 else ''}: start one for each client, "
            f"hierfl site --problem ... --data ... --scheduler ...."
        )
    if len(there) < min(attendance.minimum, clients):
        said = [f"{site}: {report.faults[-1][1]}" for site, report in exchange.reports.items() if report.faults]
        raise SiteError(
            f"{len(there)} of {clients} clients can take part, fewer than minimum={attendance.minimum}. " + "\n".join(said)
        )


def scalars_remembered(algorithm: Algorithm, x0: np.ndarray) -> int:
    """How many numbers a client remembers from round to round."""
    shapes = jax.eval_shape(algorithm.memory, jax.ShapeDtypeStruct(x0.shape, float))
    return sum(int(np.prod(shape.shape)) for shape in jax.tree.leaves(shapes))

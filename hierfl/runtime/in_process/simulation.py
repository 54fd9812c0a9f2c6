"""The programs of one algorithm on one problem, all clients in one process: its start, a block of rounds, its own value at any x.

They are kept with the problem, and serve every algorithm that differs in its tables alone. How the clients of a round are computed, one after
another or side by side, is chosen by a small cost model.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxpr_as_fun
from jax.extend.core.primitives import scan_p
from rich.filesize import decimal

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Data, Extent, Population, Table, chunk_size, gathered_clients
from hierfl.compiler.explain import Lowered
from hierfl.errors import SettingError
from hierfl.jaxtools.cheap_jit import quick_jit
from hierfl.jaxtools.keyed_random import fold_in
from hierfl.jaxtools.thread_pool import core_count, why_alone
from hierfl.jaxtools.traced import Ahead, Traced, size_of
from hierfl.runtime.contract import (
    VALUE_STREAM,
    Algorithm,
    Clients,
    Cohort,
    Message,
    OwnValue,
    Question,
    Received,
    Shared,
    Step,
    Work,
    rounded,
    taken,
)
from hierfl.runtime.records import as_tables, motion

SMALL, SMALL_BY_SAMPLE = 10_000, 100_000  # scalars of clients that are computed side by side
LARGE, LARGE_BY_SAMPLE = 4_000, 1_000  # scalars of a client for threads; fewer if each step iterates for a sample
ALL_POINTS = 10_000_000  # scalars of clients side by side, at all points that their steps look at: 80 MB
READ = 200_000  # scalars of data that steps side by side read: more of them leave the cache before they are used again


class Schedule(NamedTuple):
    """``kind`` is ``"map"`` (one client after another), ``"vmap"`` (side by side) or ``"threads"`` (in a group for each core).

    ``side_by_side`` says which of the two it is, for ``"threads"`` within a group.
    """

    kind: str
    side_by_side: bool
    reason: str


def choose_schedule(
    problem: CompiledProblem, cohort: int, asked: str | None = None, work: Work | None = None
) -> Schedule:
    """Choose how a cohort's clients are computed; by default, where each reads all its rows at one point, with lower levels by Exact.

    On a CPU a client at a time keeps its state in cache, but pays for every step of a loop. Measured on one core: side by side
    a round takes a fifth to a half of the time where 10 to 100 clients have up to 100 scalars each, as long as that of
    one after another with 10 clients of 1,000, and up to ten times as long where every client projects on a set of its own.
    Where a step answers a sample, it takes two thirds with 10 clients of 1,000 and half with 10 of 10,000.
    Where steps read 100,000 scalars of data together both take as long; with 320,000 side by side takes twice, with a million
    three times, and with full passes over megabytes ten times as long.
    Groups of clients in threads cost a quarter of a millisecond a round, which takes large clients to earn.
    """
    if jax.default_backend() != "cpu":
        kind = asked or "vmap"
        return Schedule(kind, kind == "vmap", "as asked for" if asked else "side by side, as accelerators want it")
    if asked in ("map", "vmap"):
        return Schedule(asked, asked == "vmap", "as asked for")
    each, cores = problem.upper.size + problem.lower.size, core_count()
    by_sample = problem.scope == "sample"
    if work is None:
        method = problem.exact.method_in_rounds
        work = Work(method is not None and method.at_once, None, 1)
    small, large = SMALL_BY_SAMPLE if by_sample else SMALL, LARGE_BY_SAMPLE if by_sample and not work.at_once else LARGE
    threads = asked == "threads" or (cores > 1 and cohort > 1 and each >= large)
    group = -(-cohort // cores) if threads else cohort
    held, read = each * group, scalars_read(problem, work.rows) * group
    few, light = by_sample or read <= READ, held * work.points <= ALL_POINTS
    together = problem.scope != "client" and held <= small and few and light
    how, size = ("side by side", "at most") if together else ("one after another", "over")
    if threads:
        how += f" in a group for each of {cores} cores (on one where a round calls Python or factorises matrices)"
    why = f"together they hold {held:,} scalars, {size} {small:,}"
    if held <= small and not few:
        why = f"their steps together read {read:,} scalars of data, over {READ:,}"
    elif held <= small and not light:
        why = f"together they hold {held * work.points:,} scalars at {work.points:,} points, over {ALL_POINTS:,}"
    if problem.scope == "client":
        why = "each client solves a lower level of its own"
    kind = "threads" if threads else "vmap" if together else "map"
    return Schedule(kind, together, "as asked for" if asked else f"{how}: {why}")


def how_clients_run(problem: CompiledProblem) -> Lowered:
    """Say what ``explain()`` says of the clients."""
    schedule = choose_schedule(problem, problem.num_clients)
    held = problem.num_clients * (problem.upper.size + problem.lower.size)
    how = f"{schedule.reason} (where all take part, with all their rows)"
    return Lowered("clients", how, f"{held:,} scalars of x and y for all of them")


def scalars_read(problem: CompiledProblem, rows: int | None) -> int:
    """Count the scalars of data that one client's step reads, in its largest table: those of so many rows, or of a piece of a full pass."""

    def read(table: Table) -> int:
        count = chunk_size(table) if rows is None else rows
        return count * sum(int(np.prod(column.shape[1:], dtype=int)) for column in table.values.values())

    return max(map(read, problem.static_data.clients.tables), default=0)


def require_memory(needed: int, problem: CompiledProblem, schedule: Schedule, seeds: int) -> None:
    """Require that so many bytes are free. Raises ``SettingError``, saying how much is needed, and what needs less."""
    free = available_bytes()
    if needed > free:
        clients, one_by_one = problem.num_clients, "schedule='map', " if schedule.side_by_side else ""
        raise SettingError(
            f"this run needs about {decimal(needed)} beside its data for {clients:,} client{'s' * (clients > 1)} "
            f"({seeds} seed{'s' * (seeds > 1)}, {schedule.kind}), and {decimal(free)} are free. Less is needed with "
            f"{one_by_one}precision='single', fewer seeds, participants or directions, smaller batches, a smaller evaluate_every, or a "
            f"solver whose clients remember less."
        )


def available_bytes() -> int:
    """Measure the memory that can be had: an accelerator's, or this machine's without swapping; all of it where the system does not say."""
    device = jax.devices()[0].memory_stats() or {}
    if "bytes_limit" in device:
        return int(device["bytes_limit"] - device["bytes_in_use"])
    known = Path("/proc/meminfo")
    if known.exists():
        for line in known.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return 1024 * int(line.split()[1])
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class InProcessClients(Clients):
    """The round's participants, as the algorithm sees them; lives while one round is traced.

    ``absent`` says how absent clients count; clients run ``side_by_side``, or one after another, and in so many ``groups``.
    """

    problem: CompiledProblem
    absent: str
    side_by_side: bool
    groups: int | None
    chosen: Population  # the participants' data, in their order

    @property
    def memory(self) -> Any:
        return self.shared.memory

    @property
    def everyone(self) -> InProcessClients:
        clients = self.data.clients
        return replace(self, cohort=Cohort(jnp.arange(clients.size), clients.size), chosen=clients, level="lower_")

    def map(self, step: Step, broadcast: Any, each: Any = None, key: Array | None = None) -> Message:
        seed = self.key if key is None else key

        def one(job: tuple[Array, Any, Any]) -> tuple[Any, Message]:
            place, memory, own = job
            party = self.chosen.party(place)
            return taken(step, party, memory, Received(broadcast, own, self.round), fold_in(seed, party.index))

        own = each if isinstance(self.count, int) else jax.tree.map(lambda a: a[self._places], each)
        jobs = (self._places, jax.tree.map(lambda a: a[self.participants], self.memory), own)
        changed, messages = self._run(one, jobs)
        self.shared.memory = jax.tree.map(lambda a, new: a.at[self.participants].set(new), self.memory, changed)
        self._note_messages(broadcast, each, messages.payload, messages.monitor)
        return messages

    def query(self, question: Question, broadcast: Any) -> Any:
        return self._run(lambda place: question(self.chosen.party(place), broadcast), self._places)

    def mean(self, values: Any) -> Any:
        problem = self.problem
        return self._aggregate(values, self.chosen.weights, self.absent, problem.num_clients, problem.total_weight)

    @property
    def _places(self) -> Array:
        """The participants' positions among themselves, 0 to S - 1; where the first stands in for nobody, its own."""
        places = jnp.arange(self.participants.shape[0])
        return places if isinstance(self.count, int) else jnp.where(self.present, places, 0)

    def _run(self, one: Callable[[Any], Any], jobs: Any) -> Any:
        run = jax.vmap(one) if self.side_by_side else partial(jax.lax.map, one)
        return in_groups(run, jobs, self.groups)


Tables = dict[str, Any]


class RoundsBlock(NamedTuple):
    """A block of rounds: ``run(tables, state, memory, data, key, first round, count)``.

    ``alone`` says whether it must run alone, and ``threads`` is the same with clients in threads, where they can.
    """

    run: Callable[..., Any]
    alone: bool
    threads: RoundInGroups | None


@dataclass(frozen=True)
class Simulation:
    """What simulates an algorithm on a problem; ``asked`` is the schedule that was asked for, or None."""

    problem: CompiledProblem
    algorithm: Algorithm
    asked: str | None
    precision: str

    @property
    def schedule(self) -> Schedule:
        return choose_schedule(self.problem, self.algorithm.cohorts.size, self.asked, self.algorithm.work)

    def tables(self) -> Tables:
        return as_tables(self.algorithm.tables)

    def start(self, lanes: int | None) -> Callable[..., Any]:
        """Make ``start(tables, x0)``: the state and all clients' memories before the first round, of one run or of several side by side."""
        begin = self._begin if lanes is None else jax.vmap(self._begin, (None, 0))
        return self._keep(("start", lanes is None), lambda: quick_jit(begin))

    def program(self, size: int, lanes: int | None, starts: np.ndarray, key: Array) -> Ahead:
        """Compile a block of at most ``size`` rounds of one run, or of several side by side; ``working`` counts the clients' memories."""

        def make() -> Ahead:
            tables, zero = self.tables(), whole(0)
            before = jax.eval_shape(self.start(lanes), tables, starts)
            given = (tables, *before, self.problem.data(), key, zero, zero)
            threads = lanes is None and self.schedule.kind == "threads"
            block = self.block(size, min(core_count(), self.algorithm.cohorts.size) if threads else None)
            if block.threads is not None:
                return Ahead(block.threads, size_of(before) + block.threads.working)
            axes = (None, 0, 0, None, 0, None, None)
            compiled = Ahead.of(block.run if lanes is None else jax.vmap(block.run, axes), *given)
            return Ahead(compiled.run, size_of(before) + compiled.working)

        return self._keep(("program", size, lanes), make)

    def block(self, size: int, groups: int | None) -> RoundsBlock:
        """Trace a block of at most ``size`` rounds of one run, with the clients in groups or not."""

        def make() -> RoundsBlock:
            tables = self.tables()
            state, memory = jax.eval_shape(self._begin, tables, jnp.zeros(self.problem.upper.size))
            given = (tables, state, memory, self.problem.data(), jax.random.key(0), jnp.zeros((), int))
            traced = Traced.of(partial(self._round, groups), *given)  # here, and not again in the loop

            def run(tables: Tables, state: Any, memory: Any, data: Data, key: Array, first: Array, count: Array) -> Any:
                records = jax.tree.map(lambda s: jnp.zeros((size, *s.shape), s.dtype), traced.result[2])

                def body(place: Array, carry: Any) -> Any:
                    state, memory, records = carry
                    state, memory, record = traced(tables, state, memory, data, key, jnp.asarray(first + place, int))
                    return state, memory, jax.tree.map(lambda all_, new: all_.at[place].set(new), records, record)

                return jax.lax.fori_loop(0, count, body, (state, memory, records))

            reason = why_alone(traced.program)
            threads = RoundInGroups.of(traced, groups) if groups is not None and reason is None else None
            if self.asked == "threads" and (reason is not None or (groups is not None and threads is None)):
                because = reason or "a round asks nothing of them, or only in loops of its own"
                said = "schedule='threads': the clients cannot run in threads here"
                raise SettingError(f"{said}, because {because}. Leave it out, or take 'map'.")
            return RoundsBlock(run, reason is not None, threads)

        return self._keep(("block", size, groups), make)

    def own_value(self) -> Callable[..., OwnValue]:
        """Make ``value(tables, state, memory, data, key, round, x)``: all terms at x, y by the algorithm's own lower solver."""

        def value(tables: Tables, state: Any, memory: Any, data: Data, key: Array, index: Array, x: Array) -> OwnValue:
            algorithm = self.algorithm.with_tables(tables)
            clients = self._clients(algorithm, memory, data, key, index, None)
            return algorithm.own_value(clients.everyone, state, x, fold_in(clients.key, VALUE_STREAM))

        return self._keep(("own value",), lambda: quick_jit(value))

    def _keep(self, key: tuple[Any, ...], make: Callable[[], Any]) -> Any:
        name, *rest = key
        whole = (name, self.asked, self.precision, self.algorithm.program_key, *rest)
        return self.problem.programs.keep(whole, make, of_run=True)

    def _begin(self, tables: Tables, start: Array) -> tuple[Any, Any]:
        algorithm = self.algorithm.with_tables(tables)
        first = algorithm.memory(start)
        memory = jax.tree.map(lambda a: jnp.broadcast_to(a, (self.problem.num_clients, *jnp.shape(a))), first)
        return algorithm.init(start), memory

    def _round(
        self, groups: int | None, tables: Tables, state: Any, memory: Any, data: Data, key: Array, index: Array
    ) -> Any:
        algorithm = self.algorithm.with_tables(tables)
        clients = self._clients(algorithm, memory, data, key, index, groups)
        after, record = rounded(algorithm, clients, state, clients.key)
        return after, clients.memory, {**record, **clients.sent, **motion(algorithm, state, after)}

    def _clients(
        self, algorithm: Algorithm, memory: Any, data: Data, key: Array, index: Array, groups: int | None
    ) -> InProcessClients:
        problem, round_key, chosen = self.problem, fold_in(key, index), data.clients
        cohort = algorithm.cohorts.of(round_key, index)
        if not algorithm.cohorts.everybody:
            extents = tuple(map(Extent.of, problem.static_data.clients.tables))
            chosen = gathered_clients(chosen, cohort.participants, extents)
        given = problem, self.algorithm.absent, self.schedule.side_by_side, groups, chosen
        return InProcessClients(data, cohort, round_key, jnp.asarray(index), *given, shared=Shared(memory))


def whole(number: int) -> np.ndarray:
    """Make a whole number as programs take it."""
    return np.asarray(number, jnp.result_type(int))


def whole_block(rounds: int) -> int:
    """Choose a block's size, a power of two, for so many rounds: a block need not be longer, and one of their very number would be another program."""
    return max(64, 1 << max(rounds - 1, 0).bit_length())


Values = dict[Var, Any]


def in_groups(run: Callable[[Any], Any], jobs: Any, groups: int | None) -> Any:
    """Do ``run(jobs)`` for clients along the leading axis, a group of them at a time; groups are of one size and may overlap."""
    if groups is None:
        return run(jobs)
    count = jax.tree.leaves(jobs)[0].shape[0]
    groups = min(groups, count)
    size = -(-count // groups)
    members = np.array([np.arange(size) + min(group * size, count - size) for group in range(groups)])
    place = np.unique(members, return_index=True)[1]  # of each client in the groups' answers, one after another

    def in_order(answers: Array) -> Array:
        flat = answers.reshape(groups * size, *answers.shape[2:])
        return flat if place.size == flat.shape[0] else flat[place]

    return jax.tree.map(in_order, jax.lax.map(run, jax.tree.map(lambda job: job[members], jobs)))


class RoundInGroups:
    """Blocks of rounds, as the one program runs them, with each group of clients in a thread."""

    def __init__(self, traced: Traced, groups: int) -> None:
        self._round, self._result = traced.program.jaxpr, jax.tree.structure(traced.result)
        self._known = dict(zip(self._round.constvars, traced.program.consts))
        self._groups, self._parts = groups, []
        equations, maps = list(self._round.eqns), None
        places = [k for k, equation in enumerate(equations) if _is_over_groups(equation, groups)]
        results = {v for v in self._round.outvars if isinstance(v, Var)}
        for first, last in zip([-1, *places], [*places, len(equations)]):
            later = {v for equation in equations[last:] for v in _inputs(equation)} | results
            self._parts.append(_RoundPart(self._round, self._known, maps, equations[first + 1 : last], later, groups))
            maps = equations[last] if last < len(equations) else None

    @classmethod
    def of(cls, traced: Traced, groups: int) -> RoundInGroups | None:
        """Cut a traced round where its clients run; None if they run inside loops of the server."""
        is_mapped = any(_is_over_groups(equation, groups) for equation in traced.program.eqns)
        return cls(traced, groups) if is_mapped else None

    @property
    def working(self) -> int:
        """How many bytes a block takes beside its arguments."""
        return sum(part.working for part in self._parts)

    def __call__(self, tables: Any, state: Any, memory: Any, data: Any, key: Array, first: Any, count: Any) -> Any:
        """Run ``count`` rounds: (state, memory, the records' entries stacked)."""
        records = []
        with ThreadPoolExecutor(self._groups) as pool:
            for index in range(int(first), int(first + count)):
                given = jax.tree.leaves((tables, state, memory, data, key, np.asarray(index, jnp.result_type(int))))
                state, memory, record = jax.tree.unflatten(self._result, self._one(pool, given))
                records.append(record)
        return state, memory, jax.tree.map(lambda *values: np.stack(values), *records) if records else {}

    def _one(self, pool: ThreadPoolExecutor, arguments: Sequence[Any]) -> list[Any]:
        values = self._known | dict(zip(self._round.invars, map(_bare, arguments)))
        for part in self._parts:
            part.run(pool, values)
        return [v.val if isinstance(v, Literal) else values[v] for v in self._round.outvars]


class _RoundPart:
    """A part of a round: what the clients do (nothing at its beginning), and what the server does next."""

    def __init__(
        self,
        whole: Jaxpr,
        known: Values,
        maps: JaxprEqn | None,
        equations: list[JaxprEqn],
        later: set[Var],
        groups: int,
    ) -> None:
        self._groups = groups if maps is not None else 0
        asked = _inputs(maps) if maps is not None else []
        self._asked = [v for v in dict.fromkeys(asked) if v not in known]
        mapped = list(maps.outvars) if maps is not None else []
        made = dict.fromkeys([*mapped, *(v for equation in equations for v in equation.outvars)])
        read = dict.fromkeys(v for equation in equations for v in _inputs(equation))
        self._inputs = [v for v in read if v not in made]
        self._outputs = [v for v in made if v in later]
        part = whole.replace(constvars=[], invars=[*mapped, *self._inputs], outvars=self._outputs, eqns=equations)
        of_server = jaxpr_as_fun(ClosedJaxpr(part, []))

        def serve(answers: list[list[Array]], *given: Any) -> list[Any]:
            stacked = [jnp.stack(parts) for parts in zip(*answers)]
            return [*map(_bare, of_server(*stacked, *map(_keyed, self._inputs, given)))]

        def group(place: Array, *given: Any) -> list[Array]:
            """Do one of the scan's iterations; what is known becomes a constant of the program, as it is in the whole round's."""
            assert maps is not None
            values = known | dict(zip(self._asked, map(_keyed, self._asked, given)))
            arguments = [v.val if isinstance(v, Literal) else values[v] for v in maps.invars]
            constants, jobs = arguments[: maps.params["num_consts"]], arguments[maps.params["num_consts"] :]
            return jaxpr_as_fun(maps.params["jaxpr"])(*constants, *(job[place] for job in jobs))

        parts = [[jax.ShapeDtypeStruct(_aval(v).shape[1:], _aval(v).dtype) for v in mapped]] * self._groups
        served = Ahead.of(serve, parts, *map(_bare_shape, self._inputs))
        self._serve, self.working = served.run, served.working
        if maps is not None:
            grouped = Ahead.of(group, np.int32(0), *map(_bare_shape, self._asked))
            self._group, self.working = grouped.run, served.working + groups * grouped.working

    def run(self, pool: ThreadPoolExecutor, values: Values) -> None:
        given = [values[v] for v in self._asked]
        double = jnp.result_type(float) == jnp.float64  # a setting of the thread

        def one(place: int) -> list[Array]:
            with jax.enable_x64(double):
                answers: list[Array] = jax.block_until_ready(self._group(np.int32(place), *given))
            return answers

        answers = list(pool.map(one, range(self._groups)))
        values.update(zip(self._outputs, self._serve(answers, *(values[v] for v in self._inputs))))


def _is_over_groups(equation: JaxprEqn, groups: int) -> bool:
    """Whether it is a scan over the groups: any scan without a carry may be done in parts; one over the groups is worth it."""
    return equation.primitive is scan_p and equation.params["num_carry"] == 0 and equation.params["length"] == groups


def _bare(value: Any) -> Any:
    """Give a key as its words: a program that is called with keys keeps other threads from calling theirs while it runs."""
    return jax.random.key_data(value) if jnp.issubdtype(jnp.asarray(value).dtype, jax.dtypes.prng_key) else value


def _bare_shape(variable: Var) -> jax.ShapeDtypeStruct:
    return jax.eval_shape(_bare, jax.ShapeDtypeStruct(_aval(variable).shape, _aval(variable).dtype))


def _keyed(variable: Var, value: Any) -> Any:
    """Give back what ``_bare`` was given."""
    return jax.random.wrap_key_data(value) if jnp.issubdtype(_aval(variable).dtype, jax.dtypes.prng_key) else value


def _aval(variable: Var) -> Any:
    return variable.aval  # of an array, which JAX does not say


def _inputs(equation: JaxprEqn) -> list[Var]:
    return [v for v in equation.invars if isinstance(v, Var)]

"""The programs of one algorithm on one problem, all clients in one process: its start, a block of rounds, its own value at any x.

They are kept with the problem, and serve every algorithm that differs in its tables alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.cohort_rows import Extent, gathered_clients
from hierfl.compiler.data.tables import Data
from hierfl.errors import SettingError
from hierfl.jaxtools.cheap_jit import quick_jit
from hierfl.jaxtools.keyed_random import fold_in
from hierfl.jaxtools.one_thread import why_alone
from hierfl.jaxtools.thread_pool import core_count
from hierfl.jaxtools.traced import Ahead, Traced, size_of
from hierfl.runtime.cohort import ROUND_STREAM, VALUE_STREAM
from hierfl.runtime.contract import Algorithm, OwnValue
from hierfl.runtime.in_process.clients import InProcessClients, RoundSetting, Shared
from hierfl.runtime.in_process.groups import RoundInGroups
from hierfl.runtime.in_process.schedule import Schedule, choose_schedule
from hierfl.runtime.records import motion

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
    def cohort(self) -> int:
        """How many clients take part in a round, at most."""
        return self.algorithm.cohorts.size

    @property
    def schedule(self) -> Schedule:
        """How a round's clients are computed."""
        return choose_schedule(self.problem, self.cohort, self.asked, self.algorithm.work)

    def tables(self) -> Tables:
        """The algorithm's tables as programs take them."""
        tables: Tables = jax.tree.map(
            lambda table: jnp.asarray(table, float if table.dtype.kind == "f" else int), self.algorithm.tables
        )
        return tables

    def start(self, lanes: int | None) -> Callable[..., Any]:
        """Make ``start(tables, x0)``: the state and all clients' memories before the first round, of one run or of several side by side."""
        start: Callable[..., Any] = self._keep(
            ("start", lanes is None),
            lambda: quick_jit(self._begin if lanes is None else jax.vmap(self._begin, (None, 0))),
        )
        return start

    def program(self, size: int, lanes: int | None, starts: np.ndarray, key: Array) -> Ahead:
        """Compile a block of at most ``size`` rounds of one run, or of several side by side; ``working`` counts the clients' memories."""

        def make() -> Ahead:
            tables, zero = self.tables(), whole(0)
            before = jax.eval_shape(self.start(lanes), tables, starts)
            given = (tables, *before, self.problem.data(), key, zero, zero)
            threads = lanes is None and self.schedule.kind == "threads"
            block = self.block(size, min(core_count(), self.cohort) if threads else None)
            if block.threads is not None:
                return Ahead(block.threads, size_of(before) + block.threads.working)
            axes = (None, 0, 0, None, 0, None, None)
            compiled = Ahead.of(block.run if lanes is None else jax.vmap(block.run, axes), *given)
            return Ahead(compiled.run, size_of(before) + compiled.working)

        program: Ahead = self._keep(("program", size, lanes), make)
        return program

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
                raise SettingError(
                    "schedule='threads': the clients cannot run in threads here, because "
                    + (reason or "a round asks nothing of them, or only in loops of its own")
                    + ". Leave it out, or take 'map'."
                )
            return RoundsBlock(run, reason is not None, threads)

        block: RoundsBlock = self._keep(("block", size, groups), make)
        return block

    def own_value(self) -> Callable[..., OwnValue]:
        """Make ``value(tables, state, memory, data, key, round, x)``: all terms at x, y by the algorithm's own lower solver."""

        def value(tables: Tables, state: Any, memory: Any, data: Data, key: Array, index: Array, x: Array) -> OwnValue:
            algorithm = self.algorithm.with_tables(tables)
            clients = self._clients(algorithm, memory, data, key, index, None)
            return algorithm.own_value(clients.everyone, state, x, fold_in(clients.key, VALUE_STREAM))

        program: Callable[..., OwnValue] = self._keep(("own value",), lambda: quick_jit(value))
        return program

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
        after, record = algorithm.round(clients, state, fold_in(clients.key, ROUND_STREAM))
        traffic = {name: jnp.asarray(count, int) for name, count in clients.traffic.items()}
        return after, clients.memory, {**record, **traffic, **motion(algorithm, state, after)}

    def _clients(
        self, algorithm: Algorithm, memory: Any, data: Data, key: Array, index: Array, groups: int | None
    ) -> InProcessClients:
        problem, round_key, chosen = self.problem, fold_in(key, index), data.clients
        cohort = algorithm.cohorts.of(round_key, index)
        if not algorithm.cohorts.everybody:
            extents = tuple(map(Extent.of, problem.static_data.clients.tables))
            chosen = gathered_clients(chosen, cohort.participants, extents)
        together, absent = self.schedule.side_by_side, self.algorithm.absent
        setting = RoundSetting(problem, absent, together, groups)
        return InProcessClients(data, cohort, round_key, jnp.asarray(index), setting, chosen, Shared(memory))


def whole(number: int) -> np.ndarray:
    """Make a whole number as programs take it."""
    return np.asarray(number, jnp.result_type(int))


def whole_block(rounds: int) -> int:
    """Choose a block's size, a power of two, for so many rounds: a block need not be longer, and one of their very number would be another program."""
    return max(64, 1 << max(rounds - 1, 0).bit_length())

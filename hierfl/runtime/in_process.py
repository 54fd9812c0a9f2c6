"""All clients simulated in this process: a whole block of rounds is one compiled program.

On a CPU large clients of a round run one after another (``lax.map``), so that a client's state stays in cache, and its
plus and minus evaluations side by side, in a group for each core; small ones, and accelerators, run all side by side.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hierfl.compiler.alone import why_alone
from hierfl.compiler.compiled import CompiledProblem
from hierfl.compiler.cores import core_count
from hierfl.compiler.data import Data, Party, Population
from hierfl.compiler.draws import fold_in
from hierfl.compiler.gathering import Extent, gathered_clients
from hierfl.compiler.program import Array
from hierfl.compiler.quick import quick_jit
from hierfl.compiler.schedule import Schedule, choose_schedule, require_memory
from hierfl.compiler.traced import Traced
from hierfl.errors import SettingError
from hierfl.runtime.cohort import cohort_size, draw_participants
from hierfl.runtime.contract import Algorithm, Ending, Known, Message, Question, Received, Step
from hierfl.runtime.groups import RoundInGroups, in_groups
from hierfl.runtime.shares import ALONE, Turn, in_shares

History = dict[str, np.ndarray]
BlockEnd = Callable[[int, Any, Any, History], Ending | None]

TRAFFIC = tuple(level + way for level in ("", "lower_") for way in ("scalars_down", "scalars_up", "monitor_scalars"))
MOTION = ("move", "extent")
ROUND_STREAM, SERVER_STREAM, VALUE_STREAM = (2**31 - k for k in (1, 3, 4))  # beside the clients' indices


class Outcome(NamedTuple):
    """The final state, the clients' memories (leading axis m), the history per round, and the run's own value at any x."""

    state: Any
    memory: Any
    history: History
    own_value: Callable[[Array], Array] | None


@dataclass
class _Run:
    """One seed's run: its records so far, and (state, memory, rounds) once it has ended early."""

    at_end: BlockEnd
    blocks: list[History] = field(default_factory=list)
    ended: tuple[Any, Any, int] | None = None

    def history(self, rounds: int) -> History:
        """The records of the first rounds."""
        names = self.blocks[0] if self.blocks else {}
        return {name: np.concatenate([block[name] for block in self.blocks])[:rounds] for name in names}


class _Block(NamedTuple):
    """``run(state, memory, data, key, first round, count)`` runs some rounds; whether it must run alone; ``run`` in threads."""

    run: Callable[..., Any]
    alone: bool
    threads: RoundInGroups | None


def _begin(problem: CompiledProblem, algorithm: Algorithm, start: Array) -> tuple[Any, Any]:
    """The state and all clients' memories before the first round."""
    first = algorithm.memory(start)
    memory = jax.tree.map(lambda a: jnp.broadcast_to(a, (problem.num_clients, *jnp.shape(a))), first)
    return algorithm.init(start), memory


def _whole(tree: Any, place: int) -> Any:
    """All of it: a run alone has no leading axis."""
    return tree


@jax.jit
def _lane(tree: Any, place: int) -> Any:
    """One seed's part."""
    return jax.tree.map(lambda leaf: leaf[place], tree)


@dataclass(frozen=True)
class InProcess:
    """Simulate every client here.

    Parameters
    ----------
    schedule
        ``"map"``: participants one after another; ``"vmap"``: side by side; ``"threads"``: in a group for each core, one after
        another or side by side. None chooses (``hierfl.compiler.schedule``), and ``problem.explain()`` says which. Draws are the
        same; sums side by side are rounded in another order, which steps that are too large amplify from round to round.
    precision
        ``"double"`` or ``"single"``: of a run's arithmetic. Data are kept as they are given, and the final value is computed in
        double precision either way.
    """

    schedule: str | None = None
    precision: str = "double"

    def __post_init__(self) -> None:
        for name, allowed in (("schedule", ("map", "threads", "vmap", None)), ("precision", ("double", "single"))):
            value = getattr(self, name)
            if value not in allowed:
                raise SettingError(f"{name}={value!r} of InProcess: write one of {', '.join(map(repr, allowed))}.")

    def execute(
        self,
        problem: CompiledProblem,
        algorithm: Algorithm,
        x0: np.ndarray,
        rounds: int,
        seed: int,
        block: int,
        at_end: BlockEnd,
    ) -> Outcome:
        """Run ``rounds`` rounds in blocks; ``at_end(rounds done, state, memory, block's records)`` may end the run."""
        self._require_memory(problem, algorithm, x0[None])
        with jax.enable_x64(self.precision == "double"):
            return self._execute(problem, algorithm, x0[None], rounds, [seed], block, [at_end], side_by_side=False)[0]

    def execute_many(
        self,
        problem: CompiledProblem,
        algorithm: Algorithm,
        starts: np.ndarray,
        rounds: int,
        seeds: Sequence[int],
        block: int,
        at_ends: Sequence[BlockEnd],
    ) -> list[Outcome]:
        """Several runs, each with its flat start and its seed; each ends by its own ``at_end``.

        A core's share of them is one compiled program, side by side (``hierfl.runtime.shares``).
        """
        self._require_memory(problem, algorithm, starts)

        def run(share: np.ndarray, own_ends: list[BlockEnd], turn: Turn) -> list[Outcome]:
            own_seeds = [seeds[place] for place in share]
            return self._execute(problem, algorithm, starts[share], rounds, own_seeds, block, own_ends, True, turn)

        with jax.enable_x64(self.precision == "double"):
            alone = not rounds or self._block(problem, algorithm, block, groups=None).alone
            return in_shares(len(seeds), 1 if alone else core_count(), at_ends, run)

    def _schedule(self, problem: CompiledProblem, algorithm: Algorithm, cohort: int) -> Schedule:
        return choose_schedule(problem, cohort, self.schedule, algorithm.answers_at_once, algorithm.batch)

    def _require_memory(self, problem: CompiledProblem, algorithm: Algorithm, starts: np.ndarray) -> None:
        cohort = cohort_size(algorithm.participation, problem.num_clients)
        chosen = self._schedule(problem, algorithm, cohort)
        with jax.enable_x64(self.precision == "double"):
            memory = problem.keep(
                ("memory", self, algorithm), lambda: jax.eval_shape(algorithm.memory, jnp.asarray(starts[0]))
            )
        require_memory(problem, chosen, cohort, memory, len(starts))

    def _execute(
        self,
        problem: CompiledProblem,
        algorithm: Algorithm,
        starts: np.ndarray,
        rounds: int,
        seeds: Sequence[int],
        block: int,
        at_ends: Sequence[BlockEnd],
        side_by_side: bool,
        turn: Turn = ALONE,
    ) -> list[Outcome]:
        """Side by side, the state, the memories and the key have a leading axis, a lane for each seed; the data do not.

        The first block, which compiles, is run in ``turn``.
        """
        data, keys = problem.data(), [jax.random.key(seed) for seed in seeds]
        lane: Callable[[Any, int], Any] = _lane if side_by_side else _whole
        key = jnp.stack(keys) if side_by_side else keys[0]
        state, memory = self._start(problem, algorithm, side_by_side)(starts if side_by_side else starts[0])
        runs, done = [_Run(at_end) for at_end in at_ends], 0
        while done < rounds and any(run.ended is None for run in runs):
            before, count = (state, memory), min(block, rounds - done)
            with turn if not done else ALONE:
                program = self._program(problem, algorithm, block, side_by_side)
                began = time.perf_counter()
                state, memory, records = jax.block_until_ready(program(*before, data, key, done, count))
            seconds = np.full(count, (time.perf_counter() - began) / (count * len(runs)))  # a seed's share
            arrays = {name: np.asarray(values) for name, values in records.items()}
            for place, run in enumerate(runs):
                if run.ended is not None:
                    continue
                found = lane((state, memory), place)
                rows = {name: values[place] if side_by_side else values for name, values in arrays.items()}
                history = {name: values[:count] for name, values in rows.items()} | {"seconds": seconds}
                run.blocks.append(history)
                ending = run.at_end(done + count, found[0], found[1], history)
                if ending is not None and ending.rounds < done + count:
                    again = program(*before, data, key, done, ending.rounds - done)
                    found = lane(again[:2], place)
                if ending is not None:
                    run.ended = (found[0], found[1], ending.rounds)
            done += count
        outcomes = []
        for place, run in enumerate(runs):
            state_, memory_, made = run.ended or (*lane((state, memory), place), done)
            own = self._own(problem, algorithm, state_, memory_, data, keys[place], made)
            outcomes.append(Outcome(state_, memory_, run.history(made), own))
        return outcomes

    def _own(
        self,
        problem: CompiledProblem,
        algorithm: Algorithm,
        state: Any,
        memory: Any,
        data: Data,
        key: Array,
        rounds: int,
    ) -> Callable[[Array], Array] | None:
        if not problem.lower.size or not rounds:
            return None
        own = problem.keep(
            ("own value", self, algorithm), lambda: quick_jit(partial(self._own_value, problem, algorithm))
        )

        def value(x: Array) -> Array:
            with jax.enable_x64(self.precision == "double"):
                found: Array = own(state, memory, data, key, rounds - 1, jnp.asarray(np.asarray(x)))
            return found

        return value

    def _start(self, problem: CompiledProblem, algorithm: Algorithm, side_by_side: bool) -> Any:
        """``start(x0)``: the state and all clients' memories before the first round, of one run or of several."""

        def make() -> Any:
            start = partial(_begin, problem, algorithm)
            return quick_jit(jax.vmap(start) if side_by_side else start)

        return problem.keep(("start", self, algorithm, side_by_side), make)

    def _program(self, problem: CompiledProblem, algorithm: Algorithm, size: int, side_by_side: bool) -> Any:
        """``program(state, memory, data, key, first round, count)``: a block of one run's rounds, or of several side by side."""

        def make() -> Any:
            if side_by_side:
                block = self._block(problem, algorithm, size, groups=None)
                return jax.jit(jax.vmap(block.run, in_axes=(0, 0, None, 0, None, None)))
            cohort = cohort_size(algorithm.participation, problem.num_clients)
            threads = self._schedule(problem, algorithm, cohort).kind == "threads"
            block = self._block(problem, algorithm, size, min(core_count(), cohort) if threads else None)
            return block.threads or jax.jit(block.run)

        return problem.keep(("program", self, algorithm, size, side_by_side), make)

    def _block(self, problem: CompiledProblem, algorithm: Algorithm, size: int, groups: int | None) -> _Block:
        """A block of at most ``size`` rounds of one run, with the clients in groups or not."""

        def one_round(state: Any, memory: Any, data: Data, key: Array, index: Array) -> Any:
            clients = self._clients(problem, algorithm, memory, data, key, index, groups)
            after, record = algorithm.round(clients, state, fold_in(clients.key, ROUND_STREAM))
            traffic = {name: jnp.asarray(count, int) for name, count in clients.traffic.items()}
            return after, clients.memory, {**record, **traffic, **motion(algorithm, state, after)}

        def make() -> _Block:
            state, memory = jax.eval_shape(partial(_begin, problem, algorithm), jnp.zeros(problem.upper.size))
            given = (state, memory, problem.data(), jax.random.key(0), jnp.zeros((), int))
            traced = Traced.of(one_round, *given)  # here, and not again in the loop

            def run(state: Any, memory: Any, data: Data, key: Array, first: Array, count: Array) -> Any:
                records = jax.tree.map(lambda s: jnp.zeros((size, *s.shape), s.dtype), traced.result[2])

                def body(place: Array, carry: Any) -> Any:
                    state, memory, records = carry
                    state, memory, record = traced(state, memory, data, key, jnp.asarray(first + place, int))
                    return state, memory, jax.tree.map(lambda all_, new: all_.at[place].set(new), records, record)

                return jax.lax.fori_loop(0, count, body, (state, memory, records))

            reason = why_alone(traced.program)
            threads = RoundInGroups.of(traced, groups) if groups is not None and reason is None else None
            if self.schedule == "threads" and (reason is not None or (groups is not None and threads is None)):
                raise SettingError(
                    "schedule='threads': the clients cannot run in threads here, because "
                    + (reason or "a round asks nothing of them, or only in loops of its own")
                    + ". Leave it out, or take 'map'."
                )
            return _Block(run, reason is not None, threads)

        found: _Block = problem.keep(("block", self, algorithm, size, groups), make)
        return found

    def _own_value(
        self,
        problem: CompiledProblem,
        algorithm: Algorithm,
        state: Any,
        memory: Any,
        data: Data,
        key: Array,
        index: Array,
        x: Array,
    ) -> Array:
        clients = self._clients(problem, algorithm, memory, data, key, index)
        return algorithm.own_value(clients.everyone, state, x, fold_in(clients.key, VALUE_STREAM))

    def _clients(
        self,
        problem: CompiledProblem,
        algorithm: Algorithm,
        memory: Any,
        data: Data,
        key: Array,
        index: Array,
        groups: int | None = None,
    ) -> InProcessClients:
        cohort = cohort_size(algorithm.participation, problem.num_clients)
        round_key = fold_in(key, index)
        side_by_side = self._schedule(problem, algorithm, cohort).side_by_side
        participants = draw_participants(round_key, cohort, problem.num_clients)
        traffic = dict.fromkeys(TRAFFIC, 0)
        chosen = data.clients
        if cohort < problem.num_clients:
            chosen = gathered_clients(chosen, participants, tuple(map(Extent.of, problem.static_data.clients.tables)))
        place = Place(problem, data, round_key, jnp.asarray(index), algorithm.absent, side_by_side, groups)
        return InProcessClients(place, participants, chosen, Shared(memory, traffic))


class Place(NamedTuple):
    """What does not change within a round."""

    problem: CompiledProblem
    data: Data
    key: Array
    round: Array
    absent: str
    side_by_side: bool
    groups: int | None


@dataclass
class Shared:
    """What does: the clients' memories (leading axis m) and the scalars sent so far."""

    memory: Any
    traffic: dict[str, Any]


@dataclass(frozen=True)
class InProcessClients:
    """The round's participants, as the algorithm sees them; lives while one round is traced."""

    place: Place
    participants: Array
    chosen: Population  # the participants' data, in their order
    shared: Shared
    level: str = ""

    @property
    def key(self) -> Array:
        """The round's key."""
        return self.place.key

    @property
    def round(self) -> Array:
        """Index of the round."""
        return self.place.round

    @property
    def memory(self) -> Any:
        """All clients' memories."""
        return self.shared.memory

    @property
    def traffic(self) -> dict[str, Any]:
        """Scalars sent in this round so far."""
        return self.shared.traffic

    @property
    def public(self) -> dict[int, Array]:
        """Values of the declaration's plain parameters."""
        return self.place.data.clients.public

    @property
    def everyone(self) -> InProcessClients:
        """All clients; what they send is counted as the lower level's."""
        clients = self.place.data.clients
        return replace(self, participants=jnp.arange(clients.size), chosen=clients, level="lower_")

    def map(self, step: Step, broadcast: Any, each: Any = None, key: Array | None = None) -> Message:
        """Run a step at every participant; see the contract."""
        seed = self.key if key is None else key

        def one(job: tuple[Array, Any, Any]) -> tuple[Any, Message]:
            place, memory, own = job
            party = self.chosen.party(place)
            return step(party, memory, Received(broadcast, own, self.round), fold_in(seed, party.index))

        jobs = (self._places, jax.tree.map(lambda a: a[self.participants], self.memory), each)
        changed, messages = self._run(one, jobs)
        self.shared.memory = jax.tree.map(lambda a, new: a.at[self.participants].set(new), self.memory, changed)
        self._count("scalars_down", broadcast, times=self.participants.shape[0])
        self._count("scalars_down", each, times=1)
        self._count("scalars_up", messages.payload, times=1)
        self._count("monitor_scalars", messages.monitor, times=1)
        return messages

    def share(self, values: Any) -> Known:
        """Count the values once."""
        self._count("scalars_down", values, times=self.participants.shape[0])
        return Known(values)

    def charge(self, way: str, scalars: Any) -> None:
        """Count scalars that the simulation does not send."""
        self.shared.traffic[f"{self.level}scalars_{way}"] += scalars

    def query(self, question: Question, broadcast: Any) -> Any:
        """Ask every participant; see the contract."""
        return self._run(lambda place: question(self.chosen.party(place), broadcast), self._places)

    def server(self, step: Callable[[Party, Received, Array], Any], broadcast: Any) -> Any:
        """Run a step on the server's own data; nothing is transmitted."""
        received = Received(broadcast, None, self.round)
        return step(self.place.data.server_party, received, fold_in(self.key, SERVER_STREAM))

    def mean(self, values: Any) -> Any:
        """Weighted aggregate over participants: by default unbiased for sum_i w_i v_i over all clients."""
        weights = self.chosen.weights
        absent, size = self.place.absent, self.participants.shape[0]
        if absent == "unbiased":
            weights = weights * (self.place.problem.num_clients / size)
        elif absent == "renormalise":
            weights = weights * (self.place.problem.total_weight / jnp.sum(weights))
        return jax.tree.map(lambda v: jnp.tensordot(weights, v, axes=1), values)

    def loop(self, count: Any, body: Callable[[Any, Any], Any], state: Any) -> Any:
        """``fori_loop``; the scalars of one pass count ``count`` times."""
        before, passes = self.shared.traffic, {}

        def one(index: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            state, self.shared.memory = carry
            self.shared.traffic = dict.fromkeys(before, 0)
            state = body(index, state)
            passes.update(self.shared.traffic)
            return state, self.shared.memory

        state, self.shared.memory = jax.lax.fori_loop(0, count, one, (state, self.shared.memory))
        self.shared.traffic = {name: before[name] + count * passes[name] for name in before}
        return state

    @property
    def _places(self) -> Array:
        """Of the participants among them."""
        return jnp.arange(self.participants.shape[0])

    def _run(self, one: Callable[[Any], Any], jobs: Any) -> Any:
        run = jax.vmap(one) if self.place.side_by_side else partial(jax.lax.map, one)
        return in_groups(run, jobs, self.place.groups)

    def _count(self, way: str, arrays: Any, times: int) -> None:
        leaves = jax.tree.leaves(arrays, is_leaf=lambda a: isinstance(a, Known))
        scalars = sum(int(np.prod(jnp.shape(a), dtype=int)) for a in leaves if not isinstance(a, Known))
        self.shared.traffic[self.level + way] += times * scalars


def motion(algorithm: Algorithm, before: Any, after: Any) -> dict[str, Array]:
    """What a runtime adds to a round's record: the length of x's move, and the largest entry of the new x."""
    old, new = algorithm.decision(before), algorithm.decision(after)
    return {"move": jnp.linalg.norm(new - old), "extent": jnp.max(jnp.abs(new), initial=0.0)}

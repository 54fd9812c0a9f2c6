"""All clients simulated in this process: a block of rounds is one compiled program, called for pieces of it that take half a second.

On a CPU large clients of a round run one after another (``lax.map``), so that a client's state stays in cache, and its
plus and minus evaluations side by side, in a group for each core; small ones, and accelerators, run all side by side.

Several runs are shared out over the cores: a thread for each core, which leaves Python while its program runs. What happens between
blocks of rounds (metrics, limits, the progress bar) and whatever traces or compiles is done by one thread at a time, so that users'
functions need not be safe in threads, and threads with as many runs share one compiled program.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from itertools import chain
from threading import Event, Lock
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.descent.implicit_oracle import Answers
from hierfl.errors import IncompatibleSolverError, SettingError
from hierfl.jaxtools.host_callback import as_raised
from hierfl.jaxtools.interruption import CutShort, heed
from hierfl.jaxtools.keyed_random import key_of
from hierfl.jaxtools.precision import computing, double_precision
from hierfl.jaxtools.thread_pool import apart, core_count, on_cores
from hierfl.near_names import suggests_names
from hierfl.runtime.contract import Algorithm, Ending, OwnValue, Visit, Visitor
from hierfl.runtime.in_process.simulation import Simulation, require_memory, whole, whole_block
from hierfl.runtime.records import Begun, BlockEnd, History, Outcome

Turn = AbstractContextManager[Any]
ALONE: Turn = nullcontext()


class Share(NamedTuple):
    """One of so many shares, and the turn in which it does what one thread does at a time."""

    shares: int
    turn: Turn


def in_shares(
    count: int,
    cores: int,
    at_ends: Sequence[Callable[..., Ending | None]],
    run: Callable[[np.ndarray, list[Any], Share], list[Any]],
) -> list[Any]:
    """Do ``run(places, their at_ends, share)`` for shares of ``range(count)``, one for each core; the outcomes in order.

    An error (or Ctrl-C) in one share ends the others after their block, and is raised.
    """
    shares = [places for places in np.array_split(np.arange(count), cores) if places.size]
    if len(shares) == 1:
        return run(shares[0], list(at_ends), Share(1, ALONE))
    turn, stopped = Lock(), Event()

    def taking_turns(at_end: Callable[..., Ending | None]) -> Callable[..., Ending | None]:
        def ended(done: int, *rest: Any) -> Ending | None:
            with turn:
                return Ending(done) if stopped.is_set() else at_end(done, *rest)

        return ended

    def one(places: np.ndarray) -> list[Any]:
        return run(places, [taking_turns(at_ends[place]) for place in places], Share(len(shares), turn))

    return list(chain.from_iterable(on_cores(len(shares), one, shares, stopped=stopped)))


PIECE = 0.5  # seconds of rounds that are made between two looks whether the run is to end
BRIEF = 0.05  # seconds of rounds that are not worth a thread in which they can be given up
GROWTH = 16  # times as many rounds as before, in a piece


@dataclass
class _Pieces:
    """Blocks of rounds in pieces that take about as long as they may: ``rate`` is the latest's seconds for a round.

    ``lanes`` says whether the records have a leading axis of runs.
    """

    run: Callable[..., Any]
    lanes: bool
    size: int = 1
    rate: float = math.inf

    def __call__(
        self, tables: Any, state: Any, memory: Any, data: Any, key: Array, first: int, count: int
    ) -> tuple[list[Any], dict[str, np.ndarray], int]:
        """``count`` rounds, or as many as are made before the run is to end: [state, memory], their records, and how many there are."""
        after, records, made = [state, memory], list[dict[str, np.ndarray]](), 0
        while made < count:
            size = min(self.size, count - made)
            given = (tables, *after, data, key, whole(first + made), whole(size))
            began = time.perf_counter()
            try:
                heed()
                with as_raised():
                    *after, told = self._called(given) if size * self.rate < BRIEF else apart(self._called, given)
            except CutShort:
                break
            seconds = time.perf_counter() - began
            self.rate = seconds / size
            self.size = max(1, min(GROWTH * size, int(PIECE / max(self.rate, 1e-9))))
            arrays = {name: np.asarray(values)[..., :size] for name, values in told.items()}
            runs = len(next(iter(arrays.values()))) if self.lanes else 1
            records.append(arrays | {"seconds": np.full(arrays["move"].shape, self.rate / runs)})  # a run's share
            made += size
        return after, {n: np.concatenate([r[n] for r in records], axis=-1) for n in (records or [{}])[0]}, made

    def _called(self, given: tuple[Any, ...]) -> Any:
        return jax.block_until_ready(self.run(*given))


@dataclass
class _Run:
    """One seed's run: the rounds made and before the first, its records, and (state, memory, rounds) once it has ended early."""

    at_end: BlockEnd
    done: int
    begun: int
    blocks: list[History] = field(default_factory=list)
    ended: tuple[Any, Any, int] | None = None

    def history(self, rounds: int) -> History:
        names, own = self.blocks[0] if self.blocks else {}, rounds - self.begun
        return {name: np.concatenate([block[name] for block in self.blocks])[:own] for name in names}


def _whole(tree: Any, place: int) -> Any:
    """Take all of it: a run alone has no leading axis."""
    return tree


@jax.jit
def _lane(tree: Any, place: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[place], tree)


@jax.jit
def _moved(moving: Array, before: Any, after: Any) -> Any:
    """Take the seeds' parts that have moved from ``after``, the others from ``before``."""

    def chosen(old: Array, new: Array) -> Array:
        return jnp.where(moving.reshape(-1, *[1] * (new.ndim - 1)), new, old)

    return jax.tree.map(chosen, before, after)


@suggests_names
@dataclass(frozen=True)
class InProcess:
    """Simulate every client here.

    Parameters
    ----------
    schedule
        ``"map"``: participants one after another; ``"vmap"``: side by side; ``"threads"``: in a group for each core, one after
        another or side by side. None chooses (``hierfl.runtime.in_process.simulation``), and ``problem.explain()`` says which. Draws are the
        same; sums side by side are rounded in another order, which steps that are too large amplify from round to round.
    precision
        ``"double"`` or ``"single"``: of a run's arithmetic. Data are kept as they are given, and the final value is computed in
        double precision either way.

    Examples
    --------
    >>> from hierfl.solvers import ZOHFL
    >>> result = problem.solve(ZOHFL(), runtime=hf.runtime.InProcess(precision="single"), rounds=5, progress=False)
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
        begun: Begun | None = None,
    ) -> Outcome:
        """Run ``rounds`` rounds in blocks, or what is left of them; ``at_end(rounds done, state, memory, block's records)`` may end the run."""
        simulation = Simulation(problem, algorithm, self.schedule, self.precision)
        with computing(double=self.precision == "double"):
            return self._execute(simulation, x0[None], rounds, [seed], block, [at_end], [begun], None)[0]

    def execute_many(
        self,
        problem: CompiledProblem,
        algorithm: Algorithm,
        starts: np.ndarray,
        rounds: int,
        seeds: Sequence[int],
        block: int,
        at_ends: Sequence[BlockEnd],
        begun: Sequence[Begun | None] | None = None,
    ) -> list[Outcome]:
        """Several runs, each with its flat start and its seed, or from where it has come to; each ends by its own ``at_end``.

        A core's share of them is one compiled program, side by side.
        """
        simulation = Simulation(problem, algorithm, self.schedule, self.precision)

        def run(places: np.ndarray, own_ends: list[BlockEnd], share: Share) -> list[Outcome]:
            own_seeds, own_begun = ([of[place] for place in places] for of in (seeds, begun or [None] * len(seeds)))
            return self._execute(simulation, starts[places], rounds, own_seeds, block, own_ends, own_begun, share)

        with computing(double=self.precision == "double"):
            block = min(block, whole_block(rounds))
            alone = not rounds or simulation.block(block, groups=None).alone
            return in_shares(len(seeds), 1 if alone else core_count(), at_ends, run)

    def _execute(
        self,
        simulation: Simulation,
        starts: np.ndarray,
        rounds: int,
        seeds: Sequence[int],
        block: int,
        at_ends: Sequence[BlockEnd],
        begun: Sequence[Begun | None],
        share: Share | None,
    ) -> list[Outcome]:
        """Side by side, in a share of several runs, the state, the memories and the key have a leading axis, a lane for each seed.

        What compiles is done in the share's turn. A block is one of those that have made the fewest rounds: runs that go on from
        different rounds catch up with each other first, and then make theirs together.
        """
        lanes, lane = (None, _whole) if share is None else (len(seeds), _lane)
        data, keys, tables = simulation.problem.data(), [key_of(seed) for seed in seeds], simulation.tables()
        key, start = (keys[0], starts[0]) if share is None else (jnp.stack(keys), starts)
        block = min(block, whole_block(rounds))
        if any(b is None or b.rounds < rounds for b in begun) and rounds:
            with ALONE if share is None else share.turn:
                program = simulation.program(block, lanes, start, key)
            shares = 1 if share is None else share.shares
            require_memory(shares * program.working, simulation.problem, simulation.schedule, shares * len(seeds))
            pieces = _Pieces(program.run, share is not None)
        with ALONE if share is None else share.turn:
            state, memory = simulation.start(lanes)(tables, start)
            state, memory = _going_on(begun, state, memory, share is None)
        runs = [_Run(at_end, made, made) for at_end, made in zip(at_ends, (b.rounds if b else 0 for b in begun))]
        while waiting := [run for run in runs if run.ended is None and run.done < rounds]:
            done = min(run.done for run in waiting)
            before = (tables, state, memory, data, key, done)
            after, arrays, count = pieces(*before, min(block - done % block, rounds - done))
            if not count:  # the run is to end
                break
            if any(run.done > done for run in runs if run.ended is None):
                after = _moved(jnp.array([run.done == done for run in runs]), [state, memory], after)
            state, memory = after
            for place, run in enumerate(runs):
                if run.ended is not None or run.done != done:
                    continue
                own_state, own_memory = lane((state, memory), place)
                history = {name: values if share is None else values[place] for name, values in arrays.items()}
                run.blocks.append(history)
                run.done += count
                ending = run.at_end(run.done, own_state, own_memory, history)
                if ending is not None and ending.rounds < run.done:
                    again, _, made = pieces(*before, ending.rounds - done)
                    if made < ending.rounds - done:
                        raise CutShort
                    own_state, own_memory = lane(again, place)
                if ending is not None:
                    run.ended = (own_state, own_memory, ending.rounds)
        outcomes = []
        for place, run in enumerate(runs):
            state_, memory_, made = run.ended or (*lane((state, memory), place), run.done)
            own = self._own(simulation, (tables, state_, memory_, data, keys[place]), made)
            outcomes.append(Outcome(state_, memory_, run.history(made), own))
        return outcomes

    def _own(self, simulation: Simulation, given: tuple[Any, ...], rounds: int) -> Callable[[Array], OwnValue] | None:
        if not simulation.problem.lower.size or not rounds:
            return None
        own = simulation.own_value()

        def value(x: Array) -> OwnValue:
            with computing(double=self.precision == "double"):
                value_at: OwnValue = own(*given, rounds - 1, jnp.asarray(np.asarray(x)))
            return value_at

        return value


def _going_on(begun: Sequence[Begun | None], state: Any, memory: Any, alone: bool) -> tuple[Any, Any]:
    """The state and the memories before the first round, those of runs that go on in their places."""

    def placed(fresh: Any, kept: list[list[np.ndarray] | None]) -> Any:
        leaves, structure = jax.tree.flatten(fresh)
        for place, own in enumerate(kept):
            if own is not None:
                pairs = zip(leaves, own)
                leaves = [jnp.asarray(new) if alone else jnp.asarray(old).at[place].set(new) for old, new in pairs]
        return jax.tree.unflatten(structure, leaves)

    states = [None if b is None else jax.tree.leaves(b.state) for b in begun]
    return placed(state, states), placed(memory, [None if b is None else b.memory for b in begun])


NOBODY = -1  # is at fault, and has an empty Y(x): such points are not visited


def require_here(runtime: object, solver: object) -> None:
    """All clients are simulated here, in double precision. Raises ``IncompatibleSolverError``, naming another solver."""
    name = type(solver).__name__
    instead = "no method takes whole numbers among x there" if getattr(solver, "treats_whole_numbers", False) else "use ImplicitGradient"
    if not isinstance(runtime, InProcess):
        raise IncompatibleSolverError(f"{name} evaluates f with all data in this process, which {type(runtime).__name__} has elsewhere: {instead}.")
    if runtime.precision != "double" or runtime.schedule is not None:
        raise IncompatibleSolverError(
            f"{name} evaluates f exactly, in double precision and by a schedule of its own: leave the settings of InProcess out; else {instead}."
        )


@double_precision
def execute_visits(
    problem: CompiledProblem,
    method: Visitor,
    x0: np.ndarray,
    rounds: int,
    seed: int,
    block: int,
    at_end: BlockEnd,
    begun: Begun | None = None,
) -> Outcome:
    """Make ``rounds`` rounds, or fewer where the method ends by itself or has to; ``at_end`` looks at each block, as for a runtime.

    What stands for the clients' memories are the answers that the method was given: with them a run that has ``begun`` goes on.
    """
    answers = Answers() if begun is None else Answers.of(begun.memory)
    records: list[dict[str, float]] = []
    visits = method.visits(x0, seed, answers) if rounds else iter(())
    before = done = 0 if begun is None else begun.rounds
    visit = Visit(method.init(jnp.asarray(x0)), {}, None)
    for _ in range(before):
        visit = next(visits)
    made = [visit]  # the last before the block, and each of its rounds
    while done < rounds and visit.ended is None:
        began = time.perf_counter()
        try:
            heed()
            visit = next(visits)
        except CutShort:
            if len(made) > 1:
                at_end(done, visit.state, answers, _history(records[1 - len(made) :]))
            break
        old, new = method.decision(made[-1].state), method.decision(visit.state)
        moved = {"move": float(np.linalg.norm(new - old)), "extent": float(np.max(np.abs(new), initial=0.0))}
        records.append({**visit.record, **moved, "seconds": time.perf_counter() - began})
        made.append(visit)
        done += 1
        if done % block and done < rounds and visit.ended is None:
            continue
        ending = at_end(done, visit.state, answers, _history(records[1 - len(made) :]))
        if ending is not None:
            last = made[ending.rounds - done - 1]
            return Outcome(last.state, answers, _history(records[: ending.rounds - before]), None, evaluation=last.evaluation)
        made = [visit]
    return Outcome(visit.state, answers, _history(records), None, visit.ended, evaluation=visit.evaluation)


def _history(records: list[dict[str, float]]) -> History:
    columns = {name: np.array([record[name] for record in records]) for name in (records[0] if records else ())}
    return {**columns, **{name: np.full(len(records), NOBODY) for name in ("fault", "empty")}} if records else {}

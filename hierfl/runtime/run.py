"""``run``: bind the solver, run the rounds, and turn the outcome into a ``Result`` or ``Runs``."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hierfl.analysis.variable_bounds import require_continuous
from hierfl.compiler.compiled_problem import CompiledProblem, verify_sets
from hierfl.compiler.starting_points import (
    on_upper_set,
    require_nonempty,
    require_start_in_x,
    start_points,
    tell_if_outside,
)
from hierfl.errors import DivergedError, LowerLevelWarning, SettingError, TheoryWarning, warn
from hierfl.jaxtools.interruption import CutShort, heed, heeded, impatient, reason, rest
from hierfl.jaxtools.precision import double_precision
from hierfl.language.printing.card import call_text
from hierfl.near_names import as_given
from hierfl.progress import RunProgress, Waiting
from hierfl.result import OWN_VALUE_TOLERANCE, Result
from hierfl.run_settings import RunSettings
from hierfl.runs import Runs
from hierfl.runtime.checkpoints import RunKeeper, keeping
from hierfl.runtime.contract import Algorithm, Visitor, require_call
from hierfl.runtime.in_process.execution import InProcess, execute_visits, require_here
from hierfl.runtime.outcome import DrawnStep, RunEnd, Watch, evaluations_at, result_of, theorem_point
from hierfl.runtime.privacy.gaussian_noise import require_one_run
from hierfl.runtime.records import Begun, BlockEnd, Limits, Outcome
from hierfl.runtime.step_search import FIRST, FoundStep, find_step, require_left, wants_step
from hierfl.value_certificate import AS_GOOD

INSIDE = 1e-9
DENIED = 1e3  # times what a lower solver told of its residual, that clients find in what they hold
QUICKLY, LATE = 1.0, 0.2  # seconds after the wish to end within which f is evaluated, and until that is given up by force
LOWER_SOLVERS = "hierfl.solvers.lower"


@double_precision
def run(
    compiled: CompiledProblem, solver: Any, settings: RunSettings, limits: Limits, chosen: str | None = None
) -> Result | Runs:
    """Run a solver; errors as for :meth:`hierfl.Problem.solve`.

    The clock of ``limits`` started before the problem was compiled; ``chosen`` says why the solver was, if the user named none.
    """
    if isinstance(solver, type) or not hasattr(solver, "bind"):
        raise SettingError(f"solver={as_given(solver)}: an instance of a solver of hierfl.solvers, such as ZOHFL(); left out, hierfl chooses one.")
    if type(solver).__module__.startswith(LOWER_SOLVERS):
        name = type(solver).__name__
        raise SettingError(f"{name} solves lower levels inside a run: FedRZO(lower={name}(...)), ZOHFL(lower={name}(...)).")
    if not getattr(solver, "treats_whole_numbers", False):
        require_continuous(compiled.upper.variables, type(solver).__name__)
    if settings.penalty is not None and compiled.declaration.penalty is None:
        raise SettingError(f"penalty={settings.penalty:g}: no constraint of this problem mentions y, so that there is nothing to weigh.")
    rounds, seeds, asked = settings.most_rounds, settings.all_seeds, solver
    compiled.laid_out()  # every plain parameter has a value
    compiled.require_server_here()
    require_one_run(getattr(settings.runtime, "noise", None), solver, settings)
    for changed in ("aggregation", "asynchronous") if getattr(solver, "schedule", "practical") != "practical" else ():
        if getattr(settings.runtime, changed, None):
            said = f"schedule={solver.schedule!r} with {changed}={getattr(settings.runtime, changed)!r}"
            raise SettingError(f"{said}: the theorem is about weighted means of all clients' messages, round by round; leave it out.")
    if settings.runtime is None or isinstance(settings.runtime, InProcess):
        compiled.require_all_here("a run in this process")
    if getattr(solver, "schedule", "practical") != "practical" and hasattr(solver, "starts"):
        solver = _from_its_starts(compiled, solver, settings)
    if hasattr(solver, "settled"):
        require_nonempty(compiled)
        solver = solver.settled(compiled, _starts(compiled, settings))
    with heeded(limits.until) as wish, keeping(compiled, asked, settings) as keeper:
        try:
            with impatient():
                heed()
                found = _found_step(compiled, solver, settings, keeper)
                if found is not None:
                    require_left(found, limits)
                algorithm, starts = _prepared(compiled, solver, found, settings)
        except CutShort:  # it ends where it would have begun
            rest()
            found = None
            algorithm, starts = _prepared(compiled, solver, found, settings)
        if (caveat := algorithm.caveat(rounds)) is not None:
            warn(TheoryWarning(f"{type(solver).__name__}: {caveat}"))
        bar = RunProgress(rounds, type(solver).__name__, settings.progress)
        took = {} if found is None else found.took
        watches = [Watch(compiled, asked, algorithm, settings, limits, bar, start, trials=took) for start in starts]
        with bar, nullcontext() if keeper is None else keeper.begin(algorithm, watches, starts):
            outcomes = _executed(algorithm, watches, starts, settings, keeper)
        early = wish.since if wish.reason else None
    theory = algorithm.theory if rounds and early is None else None
    drawn = [None if theory is None else DrawnStep.of(theory, rounds, seed) for seed in seeds]
    sense = compiled.declaration.objective.sense
    folder = None if settings.checkpoint is None else str(settings.checkpoint.folder)
    beside = {"checkpoint": folder, "chosen": chosen, "auto": found and found.told}
    told = {"rounds": rounds, "queries": settings.queries, "sense": sense, **{n: v for n, v in beside.items() if v is not None}}
    in_time = heeded((limits.until if early is None else early) + QUICKLY, LATE, anew=True)  # not long where the run was to end already
    results = _results(watches, outcomes, starts, settings, told, in_time)
    if not isinstance(algorithm, Visitor):
        results = _with_theorem_points(compiled, algorithm, drawn, starts, settings, results)
    if not settings.several:
        return _alone(compiled, watches[0].error, results[0], algorithm.advice)
    errors, over = [watch.error for watch in watches], "seeds" if settings.restarts is None else "starts"
    return gathered_runs(compiled, call_text(asked), seeds, errors, results, over, algorithm.advice)


def _prepared(
    compiled: CompiledProblem, solver: Any, found: FoundStep | None, settings: RunSettings
) -> tuple[Algorithm | Visitor, np.ndarray]:
    """The bound algorithm and the starts; a step that was not found in time is any, for rounds that are not made."""
    rounds = settings.most_rounds
    if wants_step(solver):
        solver = replace(solver, step_size=FIRST if found is None else found.schedule)
    require_call(solver.bind, "problem", "rounds", "queries")
    algorithm: Algorithm | Visitor = solver.bind(compiled, rounds, settings.queries)
    _require_algorithm(compiled, solver, algorithm)
    if (lower := getattr(algorithm, "lower", None)) is not None and hasattr(lower, "require_reachable"):
        lower.require_reachable()
    if isinstance(algorithm, Visitor):
        require_here(settings.runtime or InProcess(), solver)
    if settings.tolerance is not None and not algorithm.descends(rounds):
        raise SettingError(
            f"tolerance=... compares the moves of x with gradient steps, but those of {type(solver).__name__} with these settings are "
            f"none (corrections, proximal terms, a y that moves along with x, local steps that differ between parties, scripted participation, or absent='zero'): leave it out, and use "
            f"problem.implicit.stationarity on the result."
        )
    require_nonempty(compiled)
    verify_sets(compiled)
    starts = _starts(compiled, settings)
    if algorithm.stays_in_upper_set:
        starts = np.stack([_inside(compiled, start) for start in starts])
    return algorithm, starts


def _require_algorithm(compiled: CompiledProblem, solver: Any, algorithm: Any) -> None:
    """Raise ``TypeError`` for what is no bound method, naming what it lacks, or for a state that is none."""
    name = type(algorithm).__name__
    if not hasattr(type(algorithm), "decision"):
        raise TypeError(f"{type(solver).__name__}.bind gives {name}: it gives a bound method, such as a subclass of Bound (hierfl.solvers.extend).")
    if not isinstance(algorithm, Visitor) and not hasattr(algorithm, "round"):
        raise TypeError(f"{name} has no round: write round(self, clients, state, key), which gives (state, record).")
    state = algorithm.init(jnp.zeros(compiled.upper.size))
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        whole = hasattr(leaf, "dtype") and leaf.dtype.kind in "biu" and getattr(state, "x", state) is leaf
        if whole or not hasattr(leaf, "dtype"):
            what = f"an array of {leaf.dtype}" if whole else repr(leaf)
            raise TypeError(f"{name}.init gives {what} as state{jax.tree_util.keystr(path)}: a state is made of arrays, and x of floating-point numbers.")
    x = algorithm.decision(state)
    if (shape := getattr(x, "shape", None)) != (compiled.upper.size,):
        has = f"x of shape {shape}" if shape is not None else f"no array but {type(x).__name__}"
        raise TypeError(f"{name}.decision gives {has} of the state init(x0), where x0 has ({compiled.upper.size},): a state is x, or has it as .x.")


def _results(
    watches: list[Watch],
    outcomes: list[Outcome],
    starts: np.ndarray,
    settings: RunSettings,
    told: dict[str, Any],
    in_time: AbstractContextManager[Any],
) -> list[Result | None]:
    """The runs' results, with f at their ends where it is found in time; None for a diverged run whose last x has no value."""
    compiled = watches[0].compiled

    def of_each(ends: list[RunEnd], evaluations: Sequence[Any], valued: bool) -> list[Result | None]:
        return [
            None
            if valued and evaluation is None and not compiled.elsewhere
            else result_of(watch, end, evaluation, {**told, "seed": seed}, valued=valued)
            for watch, end, evaluation, seed in zip(watches, ends, evaluations, settings.all_seeds)
        ]

    try:
        with in_time, Waiting("f(x) at the end, its lower level solved", settings.progress):
            heed()
            ends = [RunEnd.of(*end) for end in zip(watches, outcomes, starts)]
            return of_each(ends, evaluations_at(compiled, watches, ends), True)
    except CutShort:
        ends = [RunEnd.of(*end, answered=False) for end in zip(watches, outcomes, starts)]
        return of_each(ends, [end.known for end in ends], False)


def _with_theorem_points(
    compiled: CompiledProblem,
    algorithm: Algorithm,
    drawn: Sequence[DrawnStep | None],
    starts: np.ndarray,
    settings: RunSettings,
    results: list[Result | None],
) -> list[Result | None]:
    """The results with the iterates that their theorem is about, where the runs came as far."""
    if not any(drawn):
        return results
    with Waiting("the iterate that the theorem is about", settings.progress):
        return [
            result
            if result is None or step is None or result.settings["rounds_done"] < step.rounds
            else replace(result, theorem_point=theorem_point(compiled, algorithm, step, start, seed, settings))
            for result, step, start, seed in zip(results, drawn, starts, settings.all_seeds)
        ]


def _found_step(
    compiled: CompiledProblem, solver: Any, settings: RunSettings, keeper: RunKeeper | None
) -> FoundStep | None:
    """The step of a solver that wants one: by trials, or as they found it before the run was kept."""
    if not wants_step(solver):
        return None
    if keeper is not None and keeper.found is not None:
        return FoundStep.of_stored(keeper.found)
    require_nonempty(compiled)
    replace(solver, step_size=FIRST).bind(compiled, settings.most_rounds, settings.queries)  # what is wrong with it is said before any trial
    found = find_step(compiled, solver, settings, _inside(compiled, _starts(compiled, settings)[0]))
    if keeper is not None:
        keeper.found = found.stored
    return found


def _from_its_starts(compiled: CompiledProblem, solver: Any, settings: RunSettings) -> Any:
    """The solver with its theory's bound on f(x_0) - inf f for the starts of these runs."""
    require_nonempty(compiled)
    starts = _starts(compiled, settings)
    for start in starts:
        require_start_in_x(compiled, start, f"schedule={solver.schedule!r}")
    return replace(solver, starts=tuple(sorted({tuple(start.tolist()) for start in starts})))


def _starts(compiled: CompiledProblem, settings: RunSettings) -> np.ndarray:
    """Choose the flat start of each run, (runs, n)."""
    runs = len(settings.all_seeds)
    count = 1 if settings.restarts is None else runs
    points = start_points(compiled, settings.x0, count, settings.seed)
    if settings.x0 is not None:
        tell_if_outside(compiled, points[0])
    return np.broadcast_to(points, (runs, compiled.upper.size))


def _executed(
    algorithm: Algorithm | Visitor,
    watches: list[Watch],
    starts: np.ndarray,
    settings: RunSettings,
    keeper: RunKeeper | None,
) -> list[Outcome]:
    """Run the rounds of all runs, together where the runtime can do that, up to where each run is to end."""
    compiled, runtime, seeds = watches[0].compiled, settings.runtime or InProcess(), settings.all_seeds
    rounds, block = settings.most_rounds, settings.evaluate_every
    begun = [None] * len(watches) if keeper is None else [run.begun for run in keeper.runs]
    at_ends: Sequence[BlockEnd] = watches if keeper is None else keeper.runs

    def execute(lane: int, rounds: int, at_end: BlockEnd) -> Outcome:
        if isinstance(algorithm, Visitor):
            return execute_visits(compiled, algorithm, starts[lane], rounds, seeds[lane], block, at_end, begun[lane])
        going_on = {} if begun[lane] is None else {"begun": begun[lane]}
        return runtime.execute(compiled, algorithm, starts[lane], rounds, seeds[lane], block, at_end, **going_on)

    for watch, start, done in zip(watches, starts, begun):
        if done is None:
            watch.measure(0, algorithm.init(jnp.asarray(start)), None)
            watch.follow(0, start)
    together = settings.several and hasattr(runtime, "execute_many")

    def outcome_of(lane: int, at_end: BlockEnd) -> Outcome:
        """One run's outcome; what its watch last saw of it, where it was given up."""
        if reason() is None:
            try:
                with impatient():
                    return execute(lane, rounds, at_end)
            except CutShort:
                pass
        return _given_up(watches[lane], algorithm, starts[lane], begun[lane])

    try:
        if isinstance(algorithm, Visitor) or not together or reason() is not None:
            outcomes = [outcome_of(lane, at_end) for lane, at_end in enumerate(at_ends)]
        else:
            going_on: dict[str, Any] = {"begun": begun} if any(begun) else {}
            with impatient():
                given = compiled, algorithm, starts, rounds, seeds, block, at_ends
                outcomes = list(runtime.execute_many(*given, **going_on))
    except CutShort:
        outcomes = [_given_up(watch, algorithm, *given) for watch, *given in zip(watches, starts, begun)]
    why = reason()
    rest()  # what is left to do ends by itself
    for lane, (watch, outcome) in enumerate(zip(watches, outcomes)):
        watch.status = outcome.ended or watch.status
        before = 0 if (kept := begun[lane]) is None else kept.rounds
        made = before + len(outcome.history.get("objective", ()))
        if why is not None and watch.ending is None and outcome.ended is None and made < rounds:
            watch.status = why
        if watch.ending is not None and made > watch.ending.rounds:
            outcome = execute(lane, watch.ending.rounds, go_on)  # a runtime that cannot go back
            made = watch.ending.rounds
        outcomes[lane] = outcome if keeper is None else outcome._replace(history=watch.history(made))
    return outcomes


def _given_up(watch: Watch, algorithm: Algorithm | Visitor, start: np.ndarray, begun: Begun | None) -> Outcome:
    """What a run had come to when its watch last saw it; its start, or that of what was to go on, where it never did."""
    watch.ending, watch.error, watch.status = None, None, "completed"
    if watch.latest is None:
        state = algorithm.init(jnp.asarray(start)) if begun is None or begun.state is None else begun.state
        return Outcome(state, None, {}, None)
    done, state, memory = watch.latest
    return Outcome(state, memory, {n: v[watch.begun :] for n, v in watch.history(done).items()}, None)


def _inside(compiled: CompiledProblem, start: np.ndarray) -> np.ndarray:
    """Put a start into X: itself where it is there, else its projection."""
    near = compiled.known_upper_set.point_near(start, compiled.laid_out().clients.public)
    if (near == start).all():
        return start
    projected = on_upper_set(compiled, start[None])[0]
    return start if np.linalg.norm(projected - start) <= INSIDE * (1 + np.linalg.norm(start)) else projected


def go_on(*_: Any) -> None:
    """End no run at the end of a block."""


def _alone(compiled: CompiledProblem, error: DivergedError | None, result: Result | None, advice: str) -> Result:
    """Give one run's result, or raise its error with that result."""
    if error is not None:
        error.result = result
        raise error
    assert result is not None
    assigned(compiled, result)
    _warn_if_unsolved([result], advice)
    return result


def gathered_runs(
    compiled: CompiledProblem,
    solver: str,
    seeds: Sequence[int],
    errors: list[DivergedError | None],
    results: list[Result | None],
    over: str,
    advice: str = "",
) -> Runs:
    """Give all runs; where some diverged, raise the first one's error with all of them."""
    runs = Runs(tuple(r for r in results if r is not None), solver, compiled.declaration.objective.sense, over)
    failed = [place for place, error in enumerate(errors) if error is not None]
    if failed:
        first = errors[failed[0]]
        assert first is not None
        together = DivergedError(f"seed {seeds[failed[0]]} ({len(failed)} of {len(seeds)} seeds diverged), {first}")
        for note in getattr(first, "__notes__", ()):
            together.add_note(note)
        together.result, together.runs = results[failed[0]], runs
        raise together
    assigned(compiled, runs.best)
    _warn_if_unsolved(runs.results, advice)
    return runs


def assigned(compiled: CompiledProblem, result: Result) -> None:
    """Set ``.value`` of the upper, and of the federation's lower variables."""
    compiled.upper.assign(compiled.upper.flatten(result.x, "x"))
    if compiled.scope == "federation" and result.y is not None:
        compiled.lower.assign(compiled.lower.flatten(result.y, "y"))


def _warn_if_unsolved(results: Sequence[Result], advice: str) -> None:
    """Name clients whose data deny what a lower solver told, and the run whose own value is furthest from f(x), if far."""

    def excess(result: Result) -> float:
        if result.own_value is None:
            return 0.0
        return abs(result.own_value - result.value) - OWN_VALUE_TOLERANCE * (1 + abs(result.value))

    for result in results:
        told, found = result.history.get("lower_residual", np.zeros(0)), result.certificate.own_residual
        if len(told) and found > AS_GOOD and found > DENIED * told[-1]:
            who = result.certificate.own_worst
            said = f"the run's lower solver tells of a residual of {told[-1]:.1e}, but {who}, by the data that it holds, finds {found:.1e}"
            warn(LowerLevelWarning(f"{said}: y does not answer the lower level that was declared. {advice}"))
    result = max(results, key=excess)
    if excess(result) > 0:
        short = sum(excess(one) > 0 for one in results)
        seed = result.settings["seed"]
        which = f" of seed {seed} ({short} of {len(results)} runs are alike)" if len(results) > 1 else ""
        said = f"the run's own objective value{which} is {result.own_value:.6g}, but f(x) with the lower level solved is {result.value:.6g}"
        warn(LowerLevelWarning(f"{said}: the lower solver stopped short. {advice}"))

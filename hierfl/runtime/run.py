"""``Problem.solve``: bind the solver, run the rounds, and turn the outcome into a ``Result``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import cvxpy as cp
import jax.numpy as jnp
import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.starting_points import project_on_all, require_nonempty, start_points
from hierfl.errors import (
    DivergedError,
    HierflError,
    LowerLevelWarning,
    SettingError,
    TheoryWarning,
)
from hierfl.jaxtools.precision import double_precision
from hierfl.progress import RunProgress, Waiting
from hierfl.result import Certificate, Result, public_response
from hierfl.runs import Runs
from hierfl.runtime.cohort import cohort_size
from hierfl.runtime.in_process.clients import TRAFFIC
from hierfl.runtime.in_process.execution import MOTION, BlockEnd, InProcess, Outcome
from hierfl.runtime.stopping import Limits
from hierfl.runtime.watch import Metrics, Watch

if TYPE_CHECKING:
    from hierfl.compiler.lower_level.exact_lower import Evaluation
    from hierfl.problem import Problem

OWN_VALUE_TOLERANCE = 0.01
INSIDE = 1e-9
MOST_ROUNDS = 100_000_000
SEEDS = 2**64  # there are


@double_precision
def run(
    problem: Problem,
    solver: Any,
    *,
    rounds: int = 500,
    seed: int = 0,
    seeds: int | Sequence[int] | None = None,
    restarts: int | None = None,
    x0: Any = None,
    runtime: Any = None,
    queries: str = "projected",
    metrics: Metrics | None = None,
    evaluate_every: int = 10,
    callback: Callable[..., Any] | None = None,
    tolerance: float | None = None,
    time_limit: float | None = None,
    communication_limit: float | None = None,
    progress: bool = True,
) -> Result | Runs:
    """Run a solver; arguments and errors as for :meth:`hierfl.Problem.solve`."""
    limits = Limits(tolerance, time_limit, communication_limit)
    _check_settings(rounds, evaluate_every, queries, seed)
    _check_callables(metrics, callback, runtime)
    rounds, evaluate_every = int(rounds), int(evaluate_every)
    all_seeds = _all_seeds(seed, seeds, restarts)
    if tolerance is not None and evaluate_every < 2:
        raise SettingError(
            "tolerance=... is tested on a block of rounds: take evaluate_every of at least 2, better 10."
        )
    several = seeds is not None or restarts is not None
    if several and callback is not None:
        raise SettingError("callback=... follows one run: leave it out with seeds and restarts, or solve one by one.")
    with Waiting("compiling", progress):
        compiled = problem.compile()
    solver = solver if solver is not None else default_solver(compiled)
    if isinstance(solver, type) or not hasattr(solver, "bind"):
        raise SettingError(f"solver={solver!r}: an instance of a solver of hierfl.solvers, such as ZOHFL().")
    compiled.data()  # every plain parameter has a value
    algorithm = solver.bind(compiled, rounds, queries)
    _require_gradient_steps(algorithm, solver, tolerance, rounds)
    require_nonempty(compiled)
    count = 1 if restarts is None else len(all_seeds)
    starts = np.broadcast_to(start_points(compiled, x0, count, seed), (len(all_seeds), compiled.upper.size))
    if algorithm.stays_in_upper_set:
        starts = np.stack([_inside(compiled, start) for start in starts])
    if (caveat := algorithm.caveat(rounds)) is not None:
        warnings.warn(f"{type(solver).__name__}: {caveat}", TheoryWarning, stacklevel=4)
    place = runtime or InProcess()
    bar = RunProgress(rounds, type(solver).__name__, progress)

    def watch(start: np.ndarray) -> Watch:
        return Watch(compiled, solver, algorithm, queries, limits, metrics or {}, callback, bar, start, rounds)

    def execute(lane: int, rounds: int, at_end: BlockEnd) -> Outcome:
        found: Outcome = place.execute(
            compiled, algorithm, starts[lane], rounds, all_seeds[lane], evaluate_every, at_end
        )
        return found

    watches = [watch(start) for start in starts]
    with bar:
        for one, start in zip(watches, starts):
            one.measure(0, algorithm.init(jnp.asarray(start)), None)
            one.follow(0, start)
        if several and hasattr(place, "execute_many"):
            outcomes = place.execute_many(compiled, algorithm, starts, rounds, all_seeds, evaluate_every, watches)
        else:
            outcomes = [execute(lane, rounds, one) for lane, one in enumerate(watches)]
    for index, (one, outcome) in enumerate(zip(watches, outcomes)):
        if one.ending is not None and len(outcome.history.get("objective", ())) > one.ending.rounds:
            outcomes[index] = execute(index, one.ending.rounds, _go_on)  # a runtime that cannot go back
    ends = [_End.of(one, outcome, start) for one, outcome, start in zip(watches, outcomes, starts)]
    with Waiting("f(x) at the end, its lower level solved", progress):
        evaluations = _evaluations(compiled, watches, ends)
    results = [
        None
        if evaluation is None
        else _result(one, end, evaluation, {"rounds": int(rounds), "seed": number, "queries": queries})
        for one, end, evaluation, number in zip(watches, ends, evaluations, all_seeds)
    ]
    if not several:
        return _alone(compiled, watches[0].error, results[0], algorithm.advice)
    errors, over = [one.error for one in watches], "seeds" if restarts is None else "starts"
    return _together(compiled, str(solver), all_seeds, errors, results, algorithm.advice, over)


def _require_gradient_steps(algorithm: Any, solver: Any, tolerance: float | None, rounds: int) -> None:
    """A tolerance can be compared with what the algorithm does."""
    if tolerance is not None and algorithm.gradient_steps(0, rounds) is None:
        raise SettingError(
            f"tolerance=... compares the moves of x with gradient steps, but those of {type(solver).__name__} with these settings are "
            f"none (corrections, proximal terms, local steps that differ between clients, or absent='zero'): leave it out, and use "
            f"problem.implicit.stationarity on the result."
        )


def _inside(compiled: CompiledProblem, start: np.ndarray) -> np.ndarray:
    """A start in X: itself, or its projection."""
    found = np.asarray(project_on_all(compiled, start))
    return start if np.linalg.norm(found - start) <= INSIDE * (1 + np.linalg.norm(start)) else found


def _go_on(*_: Any) -> None:
    """The end of a block that ends nothing."""


def _all_seeds(seed: int, seeds: int | Sequence[int] | None, restarts: int | None) -> list[int]:
    """The seed of each run, validated."""
    if restarts is not None:
        if seeds is not None:
            raise SettingError("seeds and restarts: give one of them; every restart has a seed of its own.")
        if isinstance(restarts, bool) or not isinstance(restarts, (int, np.integer)) or restarts < 1:
            raise SettingError(f"restarts={restarts!r}: a whole number of at least 1.")
        found: list[Any] = list(range(seed, seed + int(restarts)))
    elif seeds is None:
        found = [seed]
    elif isinstance(seeds, (int, np.integer)) and not isinstance(seeds, bool):
        found = list(range(seed, seed + int(seeds)))
    elif isinstance(seeds, (Sequence, np.ndarray)) and not isinstance(seeds, str) and seed == 0:
        found = list(seeds)
    else:
        raise SettingError(f"seeds={seeds!r}: how many (from seed on), or a sequence of seeds in place of seed.")
    whole = all(isinstance(s, (int, np.integer)) and not isinstance(s, bool) and s >= 0 for s in found)
    if not found or not whole or len(set(found)) < len(found):
        raise SettingError(f"seeds={seeds!r}: at least one, each a whole number of at least 0 and given once.")
    if max(found) >= SEEDS:
        raise SettingError(f"a seed of {max(found)}: seeds are below 2^64.")
    return [int(s) for s in found]


def _alone(compiled: CompiledProblem, error: DivergedError | None, result: Result | None, advice: str) -> Result:
    """One run's result, or its error with that result."""
    if error is not None:
        error.result = result
        raise error
    assert result is not None
    _assign(compiled, result)
    _warn_if_unsolved([result], advice)
    return result


def _together(
    compiled: CompiledProblem,
    solver: str,
    seeds: list[int],
    errors: list[DivergedError | None],
    results: list[Result | None],
    advice: str,
    over: str,
) -> Runs:
    """All runs; where some diverged, the first one's error with all of them."""
    runs = Runs(tuple(r for r in results if r is not None), solver, compiled.problem.objective.sense, over)
    failed = [place for place, error in enumerate(errors) if error is not None]
    if failed:
        first = errors[failed[0]]
        assert first is not None
        found = DivergedError(f"seed {seeds[failed[0]]} ({len(failed)} of {len(seeds)} seeds diverged), {first}")
        for note in getattr(first, "__notes__", ()):
            found.add_note(note)
        found.result, found.runs = results[failed[0]], runs
        raise found
    _assign(compiled, runs.best)
    _warn_if_unsolved(runs.results, advice)
    return runs


def _assign(compiled: CompiledProblem, result: Result) -> None:
    """Set ``.value`` of the upper, and of the federation's lower variables."""
    compiled.upper.assign(compiled.upper.flatten(result.x, "x"))
    if compiled.scope == "federation":
        compiled.lower.assign(compiled.lower.flatten(result.y, "y"))


def default_solver(compiled: CompiledProblem) -> Any:
    """The papers' algorithm for the declared class: ZO-HFL for client scope, FedRZO for others and private X_i."""
    from hierfl.solvers import ZOHFL, FedRZO

    return ZOHFL() if compiled.scope == "client" and compiled.private_set is None else FedRZO()


class _End(NamedTuple):
    """Where a run ended: its outcome, flat start, last iterate, the point of X that is reported, and its last y."""

    outcome: Outcome
    start: np.ndarray
    iterate: np.ndarray
    x: np.ndarray
    warm: np.ndarray | None

    @classmethod
    def of(cls, watch: Watch, outcome: Outcome, start: np.ndarray) -> _End:
        iterate = np.asarray(watch.algorithm.decision(outcome.state), float)
        x = np.asarray(project_on_all(watch.compiled, iterate))
        warm = watch.algorithm.response(outcome.state, outcome.memory)
        return cls(outcome, start, iterate, x, None if warm is None else np.asarray(warm, float))

    @property
    def rounds(self) -> int:
        return len(self.outcome.history.get("objective", ()))


def _evaluations(compiled: CompiledProblem, watches: list[Watch], ends: list[_End]) -> list[Evaluation | None]:
    """f at every end; None for a diverged run whose last x has no value, which its error then notes."""
    found: dict[int, Evaluation | None] = {}
    finished = [lane for lane, watch in enumerate(watches) if watch.error is None]
    if finished:
        points = np.stack([ends[lane].x for lane in finished])
        warm = [w for lane in finished if (w := ends[lane].warm) is not None]
        found |= zip(finished, compiled.exact.at_each(points, np.stack(warm) if warm else None))
    for lane, watch in enumerate(watches):
        if watch.error is None:
            continue
        try:
            found[lane] = compiled.exact.at(ends[lane].x, ends[lane].warm)
        except (HierflError, ArithmeticError, np.linalg.LinAlgError, cp.error.SolverError) as error:
            found[lane] = None
            watch.error.add_note(f"It carries no result: f has no value at the last finite x ({error})")
    return [found[lane] for lane in range(len(ends))]


def _result(watch: Watch, end: _End, evaluation: Evaluation, settings: dict[str, Any]) -> Result:
    """The outcome with its exact value."""
    compiled, algorithm, sign = watch.compiled, watch.algorithm, watch.compiled.sign
    state, memory, history, own = end.outcome
    if watch.error is None:
        watch.measure(end.rounds, state, memory)
    if watch.error is None:
        watch.follow(end.rounds, end.iterate)
    extra: dict[str, Any] = {} if watch.limits.tolerance is None else {"gradient_at_most": watch.gradient_at_most}
    if hasattr(watch.solver, "smoothing"):
        extra["smoothing"] = watch.solver.smoothing
    if (theory := algorithm.theory) is not None:
        extra["theory"] = {
            "step_size": theory.step,
            "local_steps": theory.local_steps,
            "rounds": theory.rounds,
            "bound": theory.bound,
        }
    return Result(
        x=compiled.upper.unflatten(end.x),
        iterate=compiled.upper.unflatten(end.iterate),
        x0=compiled.upper.unflatten(end.start),
        distances=_distances(compiled, end.iterate),
        y=None if evaluation.solution is None else public_response(compiled, evaluation.solution.y),
        value=sign * float(evaluation.value),
        own_value=None if own is None else sign * float(own(jnp.asarray(end.x))),
        status=watch.status,
        history={name: values for name, values in history.items() if name not in ("fault", "empty", *TRAFFIC, *MOTION)},
        metrics={name: np.asarray(values) for name, values in watch.measured.items()},
        communication=_communication(history, cohort_size(algorithm.participation, compiled.num_clients), end.rounds),
        certificate=Certificate.of(compiled, evaluation),
        settings={**settings, "solver": str(watch.solver), "rounds_done": end.rounds, **extra},
        trajectory=watch.trajectory,
        problem=compiled.problem,
    )


def _distances(compiled: CompiledProblem, iterate: np.ndarray) -> np.ndarray:
    """Distance of the raw iterate to each X_i = public part and client i's own constraints."""
    point = jnp.asarray(iterate)
    clients = compiled.data().clients
    if compiled.private_set is None:
        own = clients.party(0).environment
        return np.full(clients.size, np.linalg.norm(iterate - np.asarray(compiled.project_upper(point, own))))
    sets = compiled.client_upper_set
    nearest = [np.asarray(sets.project(point, clients.party(i).environment)) for i in range(clients.size)]
    return np.linalg.norm(iterate - np.stack(nearest), axis=1)


def _communication(history: dict[str, np.ndarray], cohort: int, rounds: int) -> dict[str, float]:
    """Scalars sent: totals and means per round; those of federation-scope lower solvers apart."""
    totals = {name: int(np.sum(history.get(name, 0))) for name in TRAFFIC}
    per_round = {f"{name}_per_round": _exact_mean(total, rounds) for name, total in totals.items()}
    return {"rounds": rounds, "participants_per_round": cohort, **totals, **per_round}


def _exact_mean(total: int, count: int) -> float:
    return total // count if count and total % count == 0 else total / max(1, count)


def _warn_if_unsolved(results: Sequence[Result], advice: str) -> None:
    """Name the run whose own value is furthest from f(x), if far."""

    def excess(result: Result) -> float:
        if result.own_value is None:
            return 0.0
        return abs(result.own_value - result.value) - OWN_VALUE_TOLERANCE * (1 + abs(result.value))

    result = max(results, key=excess)
    if excess(result) > 0:
        which = f" of seed {result.settings['seed']}" if len(results) > 1 else ""
        warnings.warn(
            f"the run's own objective value{which} is {result.own_value:.6g}, but f(x) with the lower level solved is "
            f"{result.value:.6g}: the lower solver stopped short. {advice}",
            LowerLevelWarning,
            stacklevel=6,
        )


def _check_settings(rounds: int, evaluate_every: int, queries: str, seed: int) -> None:
    for name, value, least in (("rounds", rounds, 0), ("evaluate_every", evaluate_every, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise SettingError(f"{name}={value!r}: a whole number of at least {least}.")
    if rounds > MOST_ROUNDS:
        raise SettingError(
            f"rounds={rounds}: at most {MOST_ROUNDS:,}, for all of which step sizes are tabulated; go on with x0=result.x."
        )
    if queries not in ("projected", "raw"):
        raise SettingError(f"queries={queries!r}: write 'projected' or 'raw'.")


def _check_callables(metrics: Any, callback: Any, runtime: Any) -> None:
    if metrics is not None and not (isinstance(metrics, Mapping) and all(callable(m) for m in metrics.values())):
        raise SettingError("metrics: a mapping {'name': function(x, y) -> number}.")
    taken = {"round", "objective", "gradient_norm", "lower_residual", "step_size", "seconds"} & set(metrics or ())
    if taken:
        raise SettingError(f"metric name {min(taken)!r} is a column of the history; choose another name.")
    if callback is not None and not callable(callback):
        raise SettingError(f"callback={callback!r}: a function (round, x, y).")
    if runtime is not None and (isinstance(runtime, type) or not hasattr(runtime, "execute")):
        raise SettingError(f"runtime={runtime!r}: a runtime such as hierfl.runtime.InProcess().")

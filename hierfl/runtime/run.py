"""``Problem.solve``: bind the solver, run the rounds, and turn the outcome into a ``Result``."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from hierfl.compiler.compiled import CompiledProblem
from hierfl.compiler.precision import double_precision
from hierfl.errors import (
    DeclarationError,
    DivergedError,
    EmptyLowerSetError,
    LowerLevelWarning,
    SettingError,
)
from hierfl.language.text import expression_text
from hierfl.result import Certificate, Result, public_response
from hierfl.runtime.contract import Algorithm
from hierfl.runtime.in_process import TRAFFIC, InProcess, Outcome, cohort_size
from hierfl.runtime.progress import RunProgress

if TYPE_CHECKING:
    from hierfl.problem import Problem

Metrics = Mapping[str, Callable[..., float]]
OWN_VALUE_TOLERANCE = 0.01


@double_precision
def run(
    problem: Problem,
    solver: Any,
    *,
    rounds: int,
    seed: int,
    x0: Any,
    runtime: Any,
    queries: str,
    metrics: Metrics | None,
    evaluate_every: int,
    callback: Callable[..., Any] | None,
    progress: bool,
) -> Result:
    """Run a solver; arguments and errors as for :meth:`hierfl.Problem.solve`."""
    _check_settings(rounds, evaluate_every, queries, seed)
    _check_callables(metrics, callback, runtime)
    compiled = problem.compile()
    solver = solver if solver is not None else default_solver(compiled)
    if isinstance(solver, type) or not hasattr(solver, "bind"):
        raise SettingError(f"solver={solver!r}: an instance of a solver of hierfl.solvers, such as ZOHFL().")
    algorithm = compiled.keep(("algorithm", solver, rounds, queries), lambda: solver.bind(compiled, rounds, queries))
    compiled.data()  # every plain parameter has a value
    require_nonempty(compiled)
    start = start_point(compiled, x0)
    bar = RunProgress(rounds, type(solver).__name__, progress)
    watch = _Watch(compiled, solver, algorithm, metrics or {}, callback, bar, queries)
    with watch.progress:
        watch.measure(0, algorithm.init(jnp.asarray(start)), None)
        outcome = (runtime or InProcess()).execute(compiled, algorithm, start, rounds, seed, evaluate_every, watch)
    return _result(watch, outcome, {"rounds": rounds, "seed": seed, "queries": queries})


def default_solver(compiled: CompiledProblem) -> Any:
    """The papers' algorithm for the declared class: ZO-HFL for client scope, FedRZO for the others."""
    from hierfl.solvers import ZOHFL, FedRZO

    return ZOHFL() if compiled.scope == "client" else FedRZO()


def require_nonempty(compiled: CompiledProblem) -> None:
    """X has a point.

    Raises
    ------
    DeclarationError
        Naming the constraints.
    """
    public = {p.id: jnp.asarray(p.value, float) for p in compiled.problem.roles.parameters}
    known = compiled.upper_set if compiled.private_set is None else compiled.full_upper_set
    if not float(known.gap(public)) <= 0:
        constraints = ", ".join(map(expression_text, known.constraints))
        raise DeclarationError(f"X is empty: no x satisfies {constraints}.")


def start_point(compiled: CompiledProblem, x0: Any) -> np.ndarray:
    """The flat start: the given point, or the projection of 0 on X."""
    if x0 is not None:
        return compiled.upper.flatten(x0, "x0")
    public = {p.id: jnp.asarray(p.value, float) for p in compiled.problem.roles.parameters}
    return np.asarray(compiled.project_upper(jnp.zeros(compiled.upper.size), public))


class _Watch:
    """What happens between blocks of rounds: errors, metrics, the callback, the progress bar."""

    def __init__(
        self,
        compiled: CompiledProblem,
        solver: Any,
        algorithm: Algorithm,
        metrics: Metrics,
        callback: Any,
        progress: RunProgress,
        queries: str,
    ) -> None:
        self.compiled, self.solver, self.algorithm = compiled, solver, algorithm
        self.metrics, self.callback = metrics, callback
        self.progress, self.queries = progress, queries
        self.measured: dict[str, list[float]] = {name: [] for name in ("round", *metrics)}
        self.stopped = False

    def __call__(self, done: int, state: Any, memory: Any, history: dict[str, np.ndarray]) -> bool:
        self._raise_faults(done, self.algorithm.decision(state), history)
        self.progress.update(done, f"objective {history['objective'][-1]:.4g}")
        self.measure(done, state, memory)
        if self.callback is not None:
            self.stopped = bool(self.callback(done, *self._public(state, memory)))
        return self.stopped

    def measure(self, done: int, state: Any, memory: Any) -> None:
        """Evaluate the user's metrics; ``memory`` None stands for the clients' first one."""
        if not self.metrics:
            return
        self.measured["round"].append(done)
        if memory is None:
            first = self.algorithm.memory(self.algorithm.decision(state))
            memory = jax.tree.map(lambda a: np.broadcast_to(a, (self.compiled.num_clients, *np.shape(a))), first)
        for name, metric in self.metrics.items():
            value = metric(*self._public(state, memory))
            if np.ndim(value) != 0 or value is None:
                raise SettingError(f"metric {name!r} returned {type(value).__name__}; expected one number.")
            self.measured[name].append(float(value))

    def _public(self, state: Any, memory: Any) -> tuple[Any, Any]:
        y = self.algorithm.response(state, memory)
        shown = None if y is None else public_response(self.compiled, np.asarray(y))
        return self.compiled.upper.unflatten(np.asarray(self.algorithm.decision(state))), shown

    def _raise_faults(self, done: int, x: Any, history: dict[str, np.ndarray]) -> None:
        first = done - len(history["objective"])
        level = self.compiled.problem.lower_level
        for place, client in enumerate(history["empty"]):
            if client >= 0:
                constraints = ", ".join(map(expression_text, level.constraints)) if level else ""
                near = np.array2string(np.asarray(x), threshold=8, precision=6)
                raise EmptyLowerSetError(
                    f"round {first + place}, client {int(client)}: Y(x) is empty at a queried point within the smoothing radius of "
                    f"x near {near} (queries={self.queries!r}): no y satisfies {constraints}. Declare the x for which it is not "
                    f"empty in Problem(constraints=...)."
                )
        for place in range(len(history["objective"])):
            client = int(history["fault"][place])
            if client >= 0:
                raise DivergedError(
                    f"round {first + place}, client {client}: f_2 at x +/- smoothing * v is NaN or infinite"
                    f"{' (or its lower level was not solved)' if level else ''}. Reduce step_size or the lower solver's step "
                    f"size, or check the domain of the clients term."
                )
            if not np.isfinite(history["gradient_norm"][place]) or not np.isfinite(history["objective"][place]):
                raise DivergedError(
                    f"round {first + place}: the server term or its gradient is NaN or infinite. Reduce step_size."
                )


def _result(watch: _Watch, outcome: Outcome, settings: dict[str, Any]) -> Result:
    compiled, algorithm = watch.compiled, watch.algorithm
    state, memory, history, own = outcome
    public = {p.id: jnp.asarray(p.value, float) for p in compiled.problem.roles.parameters}
    iterate = np.asarray(algorithm.decision(state))
    x = np.asarray(project_on_all(compiled, iterate, public))
    warm = algorithm.response(state, memory)
    evaluation = compiled.exact.at(x, None if warm is None else np.asarray(warm))
    sign = compiled.sign
    y = None if evaluation.solution is None else public_response(compiled, evaluation.solution.y)
    compiled.upper.assign(x)
    if compiled.scope == "federation" and evaluation.solution is not None:
        compiled.lower.assign(evaluation.solution.y[0])
    rounds_done = len(history.get("objective", ()))
    result = Result(
        x=compiled.upper.unflatten(x),
        iterate=compiled.upper.unflatten(iterate),
        distances=_distances(compiled, iterate),
        y=y,
        value=sign * float(evaluation.value),
        own_value=None if own is None else sign * float(own(jnp.asarray(x))),
        status="stopped by callback" if watch.stopped else "completed",
        history={name: values for name, values in history.items() if name not in ("fault", "empty", *TRAFFIC)},
        metrics={name: np.asarray(values) for name, values in watch.measured.items()} if watch.metrics else {},
        communication=_communication(history, cohort_size(algorithm.participation, compiled.num_clients), rounds_done),
        certificate=Certificate.of(compiled, evaluation),
        settings={**settings, "solver": str(watch.solver), "rounds_done": rounds_done},
    )
    _warn_if_unsolved(result)
    return result


def project_on_all(compiled: CompiledProblem, iterate: np.ndarray, public: Any) -> Any:
    """The iterate projected on X; with private X_i, on their intersection with the public part."""
    if compiled.private_set is None:
        return compiled.project_upper(jnp.asarray(iterate), public)
    return compiled.full_upper_set.project(jnp.asarray(iterate), public)


def _distances(compiled: CompiledProblem, iterate: np.ndarray) -> np.ndarray:
    """Distance of the raw iterate to each X_i = public part and client i's own constraints."""
    point = jnp.asarray(iterate)
    clients = compiled.data().clients
    if compiled.private_set is None:
        own = clients.party(0).environment
        return np.full(clients.size, float(jnp.linalg.norm(point - compiled.project_upper(point, own))))
    sets = compiled.client_upper_set
    return np.array(
        [float(jnp.linalg.norm(point - sets.project(point, clients.party(i).environment))) for i in range(clients.size)]
    )


def _communication(history: dict[str, np.ndarray], cohort: int, rounds: int) -> dict[str, float]:
    """Scalars sent: totals and means per round; those of federation-scope lower solvers apart."""
    totals = {name: int(np.sum(history.get(name, 0))) for name in TRAFFIC}
    per_round = {f"{name}_per_round": _exact_mean(total, rounds) for name, total in totals.items()}
    return {"rounds": rounds, "participants_per_round": cohort, **totals, **per_round}


def _exact_mean(total: int, count: int) -> float:
    return total // count if count and total % count == 0 else total / max(1, count)


def _warn_if_unsolved(result: Result) -> None:
    if result.own_value is None:
        return
    gap = abs(result.own_value - result.value)
    if gap > OWN_VALUE_TOLERANCE * (1 + abs(result.value)):
        warnings.warn(
            f"the run's own objective value is {result.own_value:.6g}, but f(x) with the lower level solved is "
            f"{result.value:.6g}: the lower solver stopped short. Take more local_steps, larger steps, or lower=Exact().",
            LowerLevelWarning,
            stacklevel=6,
        )


def _check_settings(rounds: int, evaluate_every: int, queries: str, seed: int) -> None:
    for name, value, least in (("rounds", rounds, 0), ("evaluate_every", evaluate_every, 1), ("seed", seed, 0)):
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise SettingError(f"{name}={value!r}: a whole number of at least {least}.")
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
    if runtime is not None and not hasattr(runtime, "execute"):
        raise SettingError(f"runtime={runtime!r}: a runtime such as hierfl.runtime.InProcess().")

"""What happens to a run between blocks of rounds (errors, limits, metrics, the callback, the progress bar), and what it came to.

That is where it ended, f there with the lower level solved, the ``Result``, and the iterate that a theorem is about.

[NN] Proposition 1, [2S] Theorems 1 and 2 and [HFL] Theorem 1 bound E|grad f^eta|^2 at x_k*, with k* uniform over the local steps of
all rounds (over the rounds for [HFL]), drawn before the run; none of them says anything of the last iterate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any, NamedTuple

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np

from hierfl.analysis.theorems import Prescription, TheoremPoint
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.lower_level.certificate import Evaluation
from hierfl.compiler.oracles import public_response
from hierfl.compiler.starting_points import on_upper_set
from hierfl.errors import DivergedError, EmptyLowerSetError, HierflError, SettingError
from hierfl.jaxtools.cheap_jit import quick_jit
from hierfl.jaxtools.interruption import INTERRUPTED, TIME_IS_UP, reason
from hierfl.language.printing.card import call_text
from hierfl.language.printing.text import expression_text
from hierfl.progress import RunProgress
from hierfl.result import Result
from hierfl.run_settings import RunSettings
from hierfl.run_standing import AT_REST, still_improving
from hierfl.runtime.contract import CLOUD, TRAFFIC, Algorithm, Ending, Method, Visitor
from hierfl.runtime.in_process.execution import InProcess
from hierfl.runtime.records import (
    MOTION,
    SCALARS,
    WITHHELD,
    WORK,
    History,
    Limits,
    Outcome,
    scalars_sent,
    spending,
    together,
)
from hierfl.value_certificate import Certificate

TOO_LARGE = 1e50
FIRST_LOOK = 256  # rounds
TRAJECTORY_SCALARS = 2_000_000


class Seen(NamedTuple):
    """What a watch has seen by the end of a block, by the names of its fields."""

    path: dict[int, np.ndarray]
    next_look: int
    gradient_at_most: float
    looked: int
    start: np.ndarray


@dataclass
class Watch:
    """Watches one run for its runtime; ``status`` is the result's, ``error`` where it diverged, ``start`` the flat x0."""

    compiled: CompiledProblem
    solver: Any
    algorithm: Method
    settings: RunSettings
    limits: Limits
    progress: RunProgress
    start: np.ndarray
    status: str = "completed"
    ending: Ending | None = None
    error: DivergedError | None = None
    spent: dict[str, int] = field(default_factory=dict)  # by column, with what trials took
    trials: dict[str, int] = field(default_factory=dict)
    gradient_at_most: float = float("inf")
    measured: dict[str, list[float]] = field(default_factory=dict)
    path: dict[int, np.ndarray] = field(default_factory=dict)
    next_look: int = FIRST_LOOK
    begun: int = 0  # rounds that were made before the run was resumed
    looked: int = 0  # rounds, at the end of whole blocks, where ``start`` is now
    latest: tuple[int, Any, Any] | None = None  # the rounds made, the state after them, the memories
    blocks: list[History] = field(default_factory=list)
    cut: History = field(default_factory=dict)  # of a block of which a part was made before the run was resumed

    def __call__(self, done: int, state: Any, memory: Any, history: History) -> Ending | None:
        """Look at a block of rounds that a runtime has done, and say whether the run ends with it, or within it.

        One that was cut short, since the run is to end, is no block to measure by: whoever goes on from there makes the rest of it first.
        """
        if self.cut:
            history, self.cut = _joined([self.cut, history]), {}
        self.blocks.append(history)
        count, before = len(history["objective"]), self.start
        first, x = done - count, np.asarray(self.algorithm.decision(state))
        self._require_answers(first, x, history)
        kept, by = self.limits.affordable(self.spent or self.trials, history)
        failing = _failing(history, x)
        if failing is not None and failing < kept:
            self.error = self._divergence(first + failing, history, failing)
            return self._end("diverged", first + failing)
        spent = together(self.spent or self.trials, spending(history))
        if kept < count or ((by := self.limits.exhausted(spent)) and done < self.settings.most_rounds):
            return self._end(spent_on(by, self.settings), max(first + kept, self.begun))
        self.latest = done, state, memory
        if done % self.settings.evaluate_every and done < self.settings.most_rounds and (why := reason()) is not None:
            return self._end(why, done)
        self.start, self.looked, self.spent = x, done, spent
        self.follow(done, x)
        self.progress.update(done, "" if WITHHELD in history else f"objective {history['objective'][-1]:.4g}")
        self.measure(done, state, memory)
        if self.settings.callback is not None and self.settings.callback(done, *self._public(state, memory)):
            return self._end("stopped by callback", done)
        if self.limits.tolerance is not None:
            bound = self.algorithm.gradient_at_most(before, x, history, first)
            assert bound is not None  # required of the method before its first round
            self.gradient_at_most = bound
            if self.gradient_at_most <= self.limits.tolerance:
                return self._end("gradient tolerance reached", done)
        if self.algorithm.rests(state):
            return self._end(AT_REST, done)
        if self.settings.rounds is None and self._stagnates(done):
            return self._end("stagnated", done)
        if done == self.settings.most_rounds:
            return None
        return None if (why := reason()) is None else self._end(why, done)

    def ends_within(self, history: History) -> bool:
        """Whether the run ends within these rounds since the last look, or has spent all that it may: where rounds are messages, none is made after it."""
        history = _joined([self.cut, history])
        kept, _ = self.limits.affordable(self.spent or self.trials, history)
        spent = together(self.spent or self.trials, spending(history))
        return kept < len(history["objective"]) or bool(self.limits.exhausted(spent)) or _failing(history, self.start) is not None

    @property
    def seen(self) -> Seen:
        return Seen(*(getattr(self, name) for name in Seen._fields))

    def go_on(self, done: int, seen: Seen, history: History, measured: dict[str, list[float]]) -> None:
        """Stand where the watch of a run stood after so many rounds, of which it had ``looked`` at the first ones, that led to ``start``."""
        self.begun, self.measured = done, measured
        self.path, self.next_look, self.gradient_at_most, self.looked, self.start = seen
        before = {name: values[: self.looked] for name, values in history.items()}
        self.cut = {name: values[self.looked :] for name, values in history.items()} if self.looked < done else {}
        self.blocks, self.spent = [before], together(self.trials, spending(before) if before else {})
        self.progress.update(done, "")

    def history(self, rounds: int) -> History:
        self.blocks = [_joined(self.blocks)] if len(self.blocks) > 1 else self.blocks
        return {name: values[:rounds] for name, values in _joined([*self.blocks, self.cut]).items()}

    def _stagnates(self, done: int) -> bool:
        """Whether the objective's estimates no longer improve, looked at after 256, 512, ... rounds."""
        if done < self.next_look:
            return False
        self.next_look *= 2
        sense = self.compiled.declaration.objective.sense
        return still_improving(np.asarray(self.history(done)["objective"], float), sense) is None

    def follow(self, done: int, x: np.ndarray) -> None:
        """Keep the iterate; every other one is dropped where they take too much room."""
        self.path[done] = x
        if len(self.path) > 2 and len(self.path) * x.size > TRAJECTORY_SCALARS:
            self.path = {done: self.path[done] for done in list(self.path)[::2]}

    @property
    def trajectory(self) -> dict[str, np.ndarray]:
        return {"round": np.array(list(self.path)), "x": np.array(list(self.path.values()))}

    def measure(self, done: int, state: Any, memory: Any) -> None:
        """Evaluate the user's metrics, once for each round; ``memory`` None stands for the clients' first one."""
        if not self.settings.metrics or (self.measured and self.measured["round"][-1] == done):
            return
        self.measured.setdefault("round", []).append(done)
        if memory is None and not done:
            first = self.algorithm.memory(self.algorithm.decision(state))
            memory = jax.tree.map(lambda a: np.broadcast_to(a, (self.compiled.num_clients, *np.shape(a))), first)
        for name, metric in self.settings.metrics.items():
            x, y = self._public(state, memory)
            try:
                value = metric(x, y)
            except Exception as error:
                asked = f"It is called as metric(x, y), with x {_described(x)} and y {_described(y)}"
                said = f"metric {name!r} raised {type(error).__name__} after {done} rounds"
                raise SettingError(f"{said}: {error}. {asked}.") from error
            number = np.ndim(value) == 0 and isinstance(value, (Real, np.generic, np.ndarray, jax.Array))
            if not number or np.asarray(value).dtype.kind not in "biuf":
                raise SettingError(f"metric {name!r} returned {type(value).__name__}; expected one number.")
            self.measured.setdefault(name, []).append(float(value))

    def _end(self, status: str, rounds: int) -> Ending:
        self.status, self.ending = status, Ending(rounds)
        return self.ending

    def _public(self, state: Any, memory: Any) -> tuple[Any, Any]:
        y = response_of(self.compiled, self.algorithm, state, memory)
        shown = None if y is None else public_response(self.compiled, np.asarray(y))
        return self.compiled.upper.unflatten(np.asarray(self.algorithm.decision(state))), shown

    def _require_answers(self, first: int, x: np.ndarray, history: History) -> None:
        level = self.compiled.declaration.lower_level
        for place, client in enumerate(history["empty"]):
            if client >= 0:
                constraints = ", ".join(map(expression_text, level.constraints)) if level else ""
                near = np.array2string(x, threshold=8, precision=6)
                raise EmptyLowerSetError(
                    f"round {first + place}, {self.compiled.declaration.client_called(int(client))}: Y(x) is empty at a queried point within the smoothing radius of "
                    f"x near {near} (queries={self.settings.queries!r}): no y satisfies {constraints}. Declare the x for which it is not "
                    f"empty in Problem(constraints=...)."
                )

    def _divergence(self, index: int, history: History, place: int) -> DivergedError:
        client, size = int(history["fault"][place]), float(history["step_size"][place])
        if client < 0 and self.compiled.num_clients == 1 and self.compiled.server_program is None:
            client = 0  # there is nobody else
        several = self._may_have_several()
        if client >= 0:
            return DivergedError(
                f"round {index}, {self.compiled.declaration.client_called(client)}: what it sends is NaN, infinite or beyond {TOO_LARGE:g}"
                f"{', or its lower level was not solved (problem.implicit(x) says why)' if self.compiled.lower.size else ''}{several}. Reduce step_size (here {size:g}) or "
                f"the lower solver's step size, or check the domain of the clients' term."
            )
        return DivergedError(
            f"round {index}, at the server: the objective's estimate, the gradient or the new x is NaN, infinite or beyond "
            f"{TOO_LARGE:g}{several}. Reduce step_size (here {size:g}), or check the domain of the server's and the clients' terms."
        )

    def _may_have_several(self) -> str:
        """What else may be wrong, of the gradient of a y that clients share."""
        method = self.compiled.exact.method
        if self.compiled.scope != "federation" or method is None or method.structure.strict:
            return ""
        return (
            ", or y is one of several solutions: how it moves with x is told by lower=Exact() with all data in one place, and not by "
            "clients' answers (a strongly convex term makes it the only one)"
        )


def spent_on(name: str, settings: RunSettings) -> str:
    """The status of a run that a limit of its counts ended."""
    floats = name == SCALARS
    return "communication limit reached" if floats and settings.communication_limit is not None else f"budget spent: {'floats' if floats else name}"


def response_of(compiled: CompiledProblem, algorithm: Method, state: Any, memory: Any) -> Any:
    """The latest y that the run holds; None where only the clients hold it, whose memories are not here."""
    theirs = compiled.scope == "client" or compiled.num_clients == 1
    return None if memory is None and theirs else algorithm.response(state, memory)


def _described(value: Any) -> str:
    """What a metric is given, in a few words."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}: {_described(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return f"a list of {len(value)}, one for each client"
    return "None" if value is None else f"of shape {np.shape(value)}"


def _failing(history: History, x: np.ndarray) -> int | None:
    """Find the first round of a block that fails; the last where only the block's end shows it."""
    numbers = [np.asarray(history.get(n, [0.0]), float) for n in ("objective", "gradient_norm", "extent")]
    beyond = np.any([~(np.abs(values) <= TOO_LARGE) for values in np.broadcast_arrays(*numbers)], axis=0)
    failing = np.flatnonzero(beyond | (history["fault"] >= 0))
    if failing.size:
        return int(failing[0])
    return None if np.all(np.abs(np.asarray(x, float)) <= TOO_LARGE) else len(beyond) - 1


def _joined(blocks: Sequence[History]) -> History:
    told = [block for block in blocks if block]
    return {name: np.concatenate([block[name] for block in told]) for name in told[0]} if told else {}


class RunEnd(NamedTuple):
    """Where a run ended: its outcome, flat start, last iterate, the point of X that is reported, and its last y."""

    outcome: Outcome
    start: np.ndarray
    iterate: np.ndarray
    x: np.ndarray
    warm: np.ndarray | None

    @classmethod
    def of(cls, watch: Watch, outcome: Outcome, start: np.ndarray, answered: bool = True) -> RunEnd:
        """Where it ended; not ``answered`` without a y, for which nothing is solved then."""
        iterate = np.asarray(watch.algorithm.decision(outcome.state), float)
        warm = response_of(watch.compiled, watch.algorithm, outcome.state, outcome.memory) if answered else None
        x = on_upper_set(watch.compiled, iterate[None])[0]
        return cls(outcome, start, iterate, x, None if warm is None else np.asarray(warm, float))

    @property
    def rounds(self) -> int:
        return len(self.outcome.history.get("objective", ()))

    @property
    def known(self) -> Evaluation | None:
        """f at x, where the method had it evaluated there."""
        return self.outcome.evaluation if np.array_equal(self.x, self.iterate) else None


def evaluations_at(compiled: CompiledProblem, watches: list[Watch], ends: list[RunEnd]) -> list[Evaluation | None]:
    """f at every end; None for a diverged run whose last x has no value, which its error then notes, and for data elsewhere."""
    if compiled.elsewhere:
        return [None] * len(ends)
    finished = [lane for lane, watch in enumerate(watches) if watch.error is None]
    by_lane: dict[int, Evaluation | None] = {
        lane: compiled.exact.trusted(ends[lane].x, known) for lane in finished if (known := ends[lane].known) is not None
    }
    asked = [lane for lane in finished if lane not in by_lane]
    if asked:
        points = np.stack([ends[lane].x for lane in asked])
        warm = [w for lane in asked if (w := ends[lane].warm) is not None]
        by_lane |= zip(asked, compiled.exact.at_each(points, np.stack(warm) if warm else None))
    for lane, watch in enumerate(watches):
        if watch.error is None:
            continue
        try:
            by_lane[lane] = compiled.exact.at(ends[lane].x, ends[lane].warm)
        except (HierflError, ArithmeticError, np.linalg.LinAlgError, cp.error.SolverError) as error:
            by_lane[lane] = None
            watch.error.add_note(f"It carries no result: f has no value at the last finite x ({error})")
    return [by_lane[lane] for lane in range(len(ends))]


def result_of(
    watch: Watch, end: RunEnd, evaluation: Evaluation | None, settings: dict[str, Any], *, valued: bool = True
) -> Result:
    """Put a run's result together, its exact value included; without one, where data are elsewhere, by the run's own value.

    One that is not ``valued``, for want of time, has no value but one that is ``known``, and no metrics at its end.
    """
    compiled, algorithm, sign = watch.compiled, watch.algorithm, watch.compiled.sign
    state, memory, history, own, _, told, _ = end.outcome
    if watch.error is None and valued:
        watch.measure(end.rounds, state, memory)
    if watch.error is None:
        watch.follow(end.rounds, end.iterate)
    participants = history["answered"] if "answered" in history else algorithm.cohorts.counts(end.rounds)
    extra: dict[str, Any] = {"rounds_done": end.rounds}
    extra |= {} if watch.limits.tolerance is None else {"gradient_at_most": watch.gradient_at_most}
    extra |= _slope_at_the_end(watch, end)
    if isinstance(algorithm, Visitor):
        extra["ended_by_itself"] = end.outcome.ended is not None
    if hasattr(watch.solver, "smoothing"):
        extra["smoothing"] = watch.solver.smoothing
    if (mode := getattr(watch.solver, "published_as", None)) is not None:
        extra["published_as"] = str(mode)
    if (theory := algorithm.theory) is not None:
        numbers = {name: getattr(theory, name) for name in ("local_steps", "rounds", "bound")}
        extra["theory"] = {"step_size": theory.step, **numbers, "schedule": watch.solver.schedule}
        extra["theory"] |= ({} if theory.lower is None else {"lower": theory.lower}) | (theory.extra or {})
    spared = watch.status in (INTERRUPTED, TIME_IS_UP) and evaluation is not None  # the time of another program
    word = None if own is None or spared or not valued else own(jnp.asarray(end.x))
    own_value = None if word is None else sign * float(word.value)
    exact = float("nan") if evaluation is None else sign * float(evaluation.value)
    value = exact if evaluation is not None or own_value is None else own_value
    solution = None if evaluation is None else evaluation.solution
    certificate = Certificate.elsewhere(compiled) if valued else Certificate.not_evaluated()
    if evaluation is not None:
        certificate = Certificate.of(compiled, end.x, evaluation, anew=valued)
    if word is not None:
        certificate = certificate.with_own(compiled, float(word.residual), float(word.error_bound), int(word.worst))
    return Result(
        x=compiled.upper.unflatten(end.x),
        iterate=compiled.upper.unflatten(end.iterate),
        x0=compiled.upper.unflatten(end.start),
        distances=_distances(compiled, end.iterate),
        y=None if solution is None else public_response(compiled, solution.y),
        value=value,
        own_value=own_value,
        ended=watch.status,
        history=_shown(compiled, history) | ({} if algorithm.cohorts.by_chance else {"participants": participants}),
        metrics={name: np.asarray(values) for name, values in watch.measured.items()},
        communication=_communication(history, participants),
        certificate=certificate,
        settings={**settings, "solver": str(watch.solver), "solver_given": call_text(watch.solver), **extra, **told},
        trajectory=watch.trajectory,
    )


def _slope_at_the_end(watch: Watch, end: RunEnd) -> dict[str, Any]:
    """How steep what the run descends on was over the last quarter of its rounds; nothing where that is not known."""
    if {"privacy", "aggregation"} & end.outcome.told.keys():
        return {}  # clipped moves, and those of a median, are no gradient steps
    first = max((done for done in watch.path if 4 * done <= 3 * end.rounds), default=None)
    if watch.error is not None or first is None or not end.rounds or not watch.algorithm.descends(end.rounds):
        return {}
    history = {name: values[first:] for name, values in end.outcome.history.items()}
    moved = MOTION[0] in history
    bound = watch.algorithm.gradient_at_most(watch.path[first], end.iterate, history, first) if moved else None
    if bound is None or not np.isfinite(bound):
        return {}
    return {"slope": bound, "slope_of": watch.algorithm.slope_of.format(rounds=end.rounds - first)}


def _distances(compiled: CompiledProblem, iterate: np.ndarray) -> np.ndarray:
    """Measure the raw iterate's distance to each X_i: the public part and client i's own constraints; NaN where these are elsewhere."""
    clients = compiled.clients_in_numpy()
    if compiled.private_set is not None and compiled.elsewhere:
        return np.full(clients.size, np.nan)  # the clients know
    if compiled.private_set is None:
        nearest = np.asarray(compiled.upper_projection(iterate, clients.party(0).environment))
        return np.full(clients.size, np.linalg.norm(iterate - nearest))
    project = compiled.programs.keep("projection on X_i", lambda: quick_jit(compiled.client_upper_set.project))
    nearest_each = [np.asarray(project(iterate, clients.party(i).environment)) for i in range(clients.size)]
    return np.linalg.norm(iterate - np.stack(nearest_each), axis=1)


def _shown(compiled: CompiledProblem, history: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    hidden = ("fault", "empty", *TRAFFIC, *MOTION)
    kept = {name: values for name, values in history.items() if name not in hidden and (name not in WORK or not values.size or np.any(values))}
    return kept | {"scalars": scalars_sent(history)}


def _communication(history: dict[str, np.ndarray], participants: np.ndarray) -> dict[str, float]:
    """Count the scalars sent, and the participants of each round: totals and means per round; those of federation-scope lower solvers apart."""
    rounds = participants.size
    totals = {name: int(np.sum(history.get(name, 0))) for name in TRAFFIC}
    totals = {name: total for name, total in totals.items() if total or not name.startswith(CLOUD)}
    per_round = {f"{name}_per_round": _exact_mean(total, rounds) for name, total in totals.items()}
    cohort = _exact_mean(int(participants.sum()), rounds)
    return {"rounds": rounds, "participants_per_round": cohort, **totals, **per_round}


def _exact_mean(total: int, count: int) -> float:
    return total // count if count and total % count == 0 else total / max(1, count)


STREAM = 0x7E0  # apart from the streams of the run's own draws


class DrawnStep(NamedTuple):
    """k* as a round and a local step in it; the mean of the clients' iterates there."""

    round: int
    local_step: int

    @property
    def rounds(self) -> int:
        """The rounds that a run makes up to there, the last of them cut short."""
        return self.round + (self.local_step > 0)

    @classmethod
    def of(cls, theory: Prescription, rounds: int, seed: int) -> DrawnStep:
        """Drawn from the run's seed, of the local steps of all rounds."""
        steps = 1 if theory.iterations is None else int(theory.local_steps)
        drawn = int(np.random.default_rng([STREAM, seed]).integers(rounds * steps))
        return cls(*divmod(drawn, steps))


def theorem_point(
    compiled: CompiledProblem,
    algorithm: Algorithm,
    drawn: DrawnStep,
    start: np.ndarray,
    seed: int,
    settings: RunSettings,
) -> TheoremPoint:
    """x_k*, by running once more as far as it, in this process: clients then stop, and the server takes their mean as at the end of a round.

    All data are here, where a theorem's constants are proved; at sites that draw under secrets of their own it is of other draws of the same law.
    """
    cut = algorithm if drawn.local_step == 0 else algorithm.cut_short(drawn.round, drawn.local_step)
    runtime = settings.runtime if isinstance(settings.runtime, InProcess) else InProcess()
    outcome = runtime.execute(compiled, cut, start, drawn.rounds, seed, settings.evaluate_every, lambda *_: None)
    iterate = np.asarray(cut.decision(outcome.state), float)
    x = on_upper_set(compiled, iterate[None])[0]
    places = {"x": compiled.upper.unflatten(x), "iterate": compiled.upper.unflatten(iterate)}
    value = compiled.sign * float(compiled.exact.at(x).value)
    return TheoremPoint(**places, value=value, round=drawn.round, local_step=drawn.local_step)

"""What a run came to: where it ended, f there with the lower level solved, the ``Result``, and the iterate that a theorem is about.

[NN] Proposition 1, [2S] Theorems 1 and 2 and [HFL] Theorem 1 bound E|grad f^eta|^2 at x_k*, with k* uniform over the local steps of
all rounds (over the rounds for [HFL]), drawn before the run; none of them says anything of the last iterate.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import cvxpy as cp
import jax.numpy as jnp
import numpy as np

from hierfl.analysis.theorems import Prescription, TheoremPoint
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.lower_level.certificate import Evaluation
from hierfl.compiler.oracles import public_response
from hierfl.compiler.starting_points import on_upper_set
from hierfl.errors import HierflError
from hierfl.jaxtools.cheap_jit import quick_jit
from hierfl.jaxtools.interruption import INTERRUPTED, TIME_IS_UP
from hierfl.language.printing.card import call_text
from hierfl.result import Result
from hierfl.run_settings import RunSettings
from hierfl.runtime.contract import CLOUD, TRAFFIC, Algorithm, Visitor
from hierfl.runtime.in_process.execution import InProcess
from hierfl.runtime.records import MOTION, WORK, Outcome, scalars_sent
from hierfl.runtime.watch import Watch, response_of
from hierfl.value_certificate import Certificate


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
    compiled: CompiledProblem, algorithm: Algorithm, drawn: DrawnStep, start: np.ndarray, seed: int,
    settings: RunSettings
) -> TheoremPoint:
    """x_k*, by running once more as far as it: clients then stop, and the server takes their mean as at the end of a round."""
    cut = algorithm if drawn.local_step == 0 else algorithm.cut_short(drawn.round, drawn.local_step)
    runtime, block = settings.runtime or InProcess(), settings.evaluate_every
    outcome = runtime.execute(compiled, cut, start, drawn.rounds, seed, block, lambda *_: None)
    iterate = np.asarray(cut.decision(outcome.state), float)
    x = on_upper_set(compiled, iterate[None])[0]
    places = {"x": compiled.upper.unflatten(x), "iterate": compiled.upper.unflatten(iterate)}
    value = compiled.sign * float(compiled.exact.at(x).value)
    return TheoremPoint(**places, value=value, round=drawn.round, local_step=drawn.local_step)

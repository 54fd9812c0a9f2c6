"""Runs on problems with conditions on the answers: on f plus rho times what is violated, with rho raised until nothing is.

The penalty is exact: from some rho on, minima of the penalised objective are those of f where the conditions hold (Han and Mangasarian,
1979), so that no rho has to grow without end. The first one is a guess from how f and the conditions change around the start. Each
run begins where the one before it ended. Where raising does not help a method that solves its problem, what is violated is minimised by itself: if
that does not come to a feasible point either, the problem is infeasible as far as was found. Methods by values near a point end near the
edge of what is feasible, on either side: for them rho is raised only as long as that helps.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem, penalised_problem
from hierfl.compiler.lower_level.certificate import Evaluation
from hierfl.compiler.oracles import public_response
from hierfl.compiler.starting_points import box_around, on_upper_set, sobol_points, start_points
from hierfl.compiler.violations import ALLOWED, Violation, Violations, sides_at
from hierfl.errors import DivergedError, FeasibilityWarning, HierflError, IncompatibleSolverError, SettingError, warn
from hierfl.jaxtools.interruption import INTERRUPTED, TIME_IS_UP, CutShort, heeded
from hierfl.jaxtools.precision import double_precision
from hierfl.language.coupled import Penalty
from hierfl.language.printing.card import call_text
from hierfl.result import Result
from hierfl.run_settings import RunSettings
from hierfl.run_standing import not_feasible
from hierfl.runs import Runs
from hierfl.runtime.outcome import spent_on
from hierfl.runtime.privacy.gaussian_noise import require_one_run
from hierfl.runtime.records import Limits
from hierfl.runtime.run import LATE, QUICKLY, assigned, gathered_runs, go_on, run
from hierfl.runtime.step_search import FIRST, wants_step
from hierfl.value_certificate import Certificate

RAISE, MOST = 10.0, 9  # by what rho is raised, and how often at most
SLOWLY, FEW = 4.0, 5  # the same of methods that end near the edge, the nearer the smaller rho is
HELPS = 0.5  # of what was violated, that a raise has to leave
GUESS, LEAST, LARGEST = 2.0, 1e-4, 1e8  # the first rho, in slopes of f by those of the conditions, and its bounds
PLACES, AROUND, STEP = 8, 3, 1e-4  # points of X beside the start that slopes are looked for at, points around each, and how far away, in 1 + |x|
SPREAD = 64  # points of X that are looked at where nothing feasible is found from the start
BOTTOMLESS = "f seems unbounded below"
OVER = (INTERRUPTED, TIME_IS_UP, "stopped by callback", "communication limit reached", "budget spent")


class SpentError(Exception):
    """A limit that leaves no further run, by its column."""


class Slopes(NamedTuple):
    """How much f and the conditions change by a unit of x around the start."""

    objective: float
    conditions: float

    @property
    def penalty(self) -> float:
        if not (np.isfinite(self.objective) and self.conditions > 0):
            return 1.0
        return float(np.clip(GUESS * self.objective / self.conditions, LEAST, LARGEST))


class Measured(NamedTuple):
    """f at an x, oriented for minimisation, and what is violated; the evaluation where the lower level is solved here."""

    value: float
    violations: Violations
    evaluation: Evaluation | None

    @classmethod
    def at(cls, compiled: CompiledProblem, x: np.ndarray, required: bool = False) -> Measured | None:
        """Both at x, the lower level solved here; None where f has no value, and none is required."""
        try:
            evaluation = compiled.exact.at(x)
        except HierflError:
            if required:
                raise
            return None
        assert evaluation.solution is not None
        return cls(float(evaluation.value), Violations.at(compiled, x, evaluation.solution.y), evaluation)


class Ended(NamedTuple):
    """A run on the penalised objective, and what f and the conditions are where it ended."""

    result: Result
    rho: float
    objective: float
    x: np.ndarray
    value: float
    violations: Violations
    evaluation: Evaluation | None

    @property
    def excess(self) -> float:
        worst = self.violations.excess
        return float("inf") if np.isnan(worst) else worst

    def violated(self, sign: float) -> float:
        """What the penalty weighs, by the value of the penalised objective."""
        return (sign * self.result.value - self.objective * self.value) / self.rho

    @property
    def usable(self) -> bool:
        return not np.isnan(self.violations.excess) and self.result.ended != BOTTOMLESS


def run_with_conditions(
    compiled: CompiledProblem, solver: Any, settings: RunSettings, limits: Limits, chosen: str | None = None
) -> Result | Runs:
    """Run a solver on a problem some of whose constraints mention y; errors as for :meth:`hierfl.Problem.solve`."""
    if getattr(solver, "keeps_conditions", False):
        return _with_violations(compiled, run(compiled, solver, settings, limits, chosen))
    goal = penalised_problem(compiled)
    _require_supported(compiled, solver, settings)
    if not settings.several:
        result = _Rounds(compiled, goal, solver, settings, limits, chosen).result()
        assigned(compiled, result)
        _warn(result)
        return result
    seeds, results, errors = settings.all_seeds, list[Result | None](), list[DivergedError | None]()
    count = 1 if settings.restarts is None else len(seeds)
    starts = np.broadcast_to(start_points(goal, settings.x0, count, settings.seed), (len(seeds), goal.upper.size))
    for seed, start in zip(seeds, starts):
        own = replace(settings, seed=seed, seeds=None, restarts=None, x0=compiled.upper.unflatten(start))
        try:
            results.append(_Rounds(compiled, goal, solver, own, limits, chosen).result())
            errors.append(None)
        except DivergedError as error:
            results.append(error.result)
            errors.append(error)
    over = "seeds" if settings.restarts is None else "starts"
    runs = gathered_runs(compiled, call_text(solver), seeds, errors, results, over)
    _warn(runs.best, len(runs))
    return runs


def _with_violations(compiled: CompiledProblem, told: Result | Runs) -> Result | Runs:
    """The results of a method that takes the conditions as they are, with what is violated at its end."""

    def of_one(result: Result) -> Result:
        x = compiled.upper.flatten(result.x, "x")
        solution = compiled.exact.at(x).solution
        return result if solution is None else replace(result, violation=Violations.at(compiled, x, solution.y))

    if isinstance(told, Result):
        told = of_one(told)
        _warn(told)
        return told
    runs = replace(told, results=tuple(map(of_one, told.results)))
    _warn(runs.best, len(runs))
    return runs


def _require_supported(compiled: CompiledProblem, solver: Any, settings: RunSettings) -> None:
    """Refuse, by name, what rounds of runs do not carry yet."""
    first, noise = compiled.coupled.conditions[0].text, getattr(settings.runtime, "noise", None)
    require_one_run(noise, solver, settings)
    if settings.penalty is None and (noise is not None or settings.checkpoint is not None):
        one = "checkpoint=... keeps one run" if noise is None else "noise=... tells the epsilon of one run"
        said = f"{one}, and a problem with conditions on y ({first}) is solved by several, with ever larger penalties"
        raise SettingError(f"{said}: name the penalty, such as penalty=100, which makes it one.")
    means = [one for one in compiled.coupled.conditions if one.is_mean]
    if means and not getattr(solver, "prices_means", False):
        raise IncompatibleSolverError(
            f"the constraint {means[0].text} is one on a mean, and what it violates is no sum over rows or clients, which {type(solver).__name__} adds up: "
            f"use ImplicitBundle, which has all data in this process, FedRZO, ZOHFL or ImplicitGradient, which ask for means first, or give each row, or "
            f"client, a condition of its own."
        )


@double_precision
def slopes_of(compiled: CompiledProblem, x0: Any, seed: int) -> Slopes:
    """The largest along random directions, at the start and where X is bounded and answers are quick at points spread over it.

    They are told by values, which every problem has.
    """
    if compiled.elsewhere:
        return Slopes(float("nan"), 0.0)
    random = np.random.default_rng(seed)
    start = on_upper_set(compiled, start_points(compiled, x0, 1, seed))
    bases = np.concatenate([start, spread_over(compiled, x0, PLACES, seed)])
    ways = random.standard_normal((AROUND * len(bases), start.shape[1]))
    lengths = STEP * (1.0 + np.linalg.norm(bases, axis=1).repeat(AROUND)) / np.linalg.norm(ways, axis=1)
    beside = on_upper_set(compiled, bases.repeat(AROUND, axis=0) + lengths[:, None] * ways)
    objective = conditions = 0.0
    for place, base in enumerate(bases):
        here = _value_and_excesses(compiled, base)
        for point in beside[place * AROUND : (place + 1) * AROUND] if here is not None else ():
            there, length = _value_and_excesses(compiled, point), float(np.linalg.norm(point - base))
            if here is not None and there is not None and length > 0:
                objective = max(objective, abs(there[0] - here[0]) / length)
                conditions = max(conditions, float(np.abs(there[1] - here[1]).max()) / length)
    return Slopes(objective, conditions)


def spread_over(compiled: CompiledProblem, x0: Any, count: int, seed: int) -> np.ndarray:
    """Points spread over X (k, n); none where it is unbounded, or answers take time."""
    method, box = compiled.exact.method, box_around(compiled, start_points(compiled, x0, 1, seed)[0])
    if not box.bounded or method is None or SPREAD * method.structure.oracles.owners > method.solutions_in_a_second:
        return np.zeros((0, compiled.upper.size))
    return on_upper_set(compiled, sobol_points(box, count, seed))


def _value_and_excesses(compiled: CompiledProblem, x: np.ndarray) -> tuple[float, np.ndarray] | None:
    """f at an x and all that the conditions are beyond, flat; None where f has no value."""
    found = Measured.at(compiled, x)
    if found is None:
        return None
    assert found.evaluation is not None and found.evaluation.solution is not None
    sides = sides_at(compiled, x, found.evaluation.solution.y)
    return found.value, np.concatenate([np.ravel(left - right) for left, right in sides])


@dataclass
class _Rounds:
    """The runs of one start."""

    compiled: CompiledProblem
    goal: CompiledProblem
    solver: Any
    settings: RunSettings
    limits: Limits
    chosen: str | None
    made: list[Ended] = field(default_factory=list)
    least: Ended | None = None  # of the runs without f
    slack: float = 0.0  # what a method that smooths may leave violated

    def __post_init__(self) -> None:
        self.x0, penalty = self.settings.x0, self.goal.declaration.penalty
        assert penalty is not None
        self.penalty: Penalty = penalty

    def result(self) -> Result:
        if self.settings.penalty is not None:
            return self._told(self._run(float(self.settings.penalty)), gave_up=False)
        try:
            return self._sought()
        except SpentError as error:
            told = self._told(self._nearest(), gave_up=False)
            return told if told.ended == "diverged" else replace(told, ended=spent_on(str(error), self.settings))

    def _sought(self) -> Result:
        """The result of the run with the first penalty for which the conditions hold, or else of the nearest."""
        try:
            slopes = slopes_of(self.compiled, self.x0, self.settings.seed)
        except CutShort:  # a run ends where it would have begun
            slopes = Slopes(float("nan"), 0.0)
        self.slack = slopes.conditions * float(getattr(self.solver, "smoothing", 0.0))
        rho, before = slopes.penalty, float("inf")
        for tried in range(MOST + 1):
            ended = self._run(rho, last=tried == MOST)
            if ended.result.ended.startswith(OVER) or (ended.usable and self._near(ended)):
                return self._told(ended, gave_up=False)
            exact = "ended_by_itself" in ended.result.settings
            if self.compiled.elsewhere and not ended.usable:
                return self._told(ended, gave_up=False)  # nobody tells
            if not exact and (tried == FEW or (tried > 1 and ended.usable and ended.excess > HELPS * before)):
                return self._told(self._nearest(), gave_up=False)
            before, growth = ended.excess, RAISE if exact else SLOWLY
            if ended.usable and self.least is None:
                found = self._find_feasible(exact)
                if not found and (exact or self.made[-1].result.ended.startswith(OVER)):
                    return self._told(self._nearest(), gave_up=not self.made[-1].result.ended.startswith(OVER))
                rho = max(rho, self._enough(ended) / growth)
            rho *= growth
        return self._told(self._nearest(), gave_up=True)

    def _near(self, ended: Ended) -> bool:
        """Whether the conditions hold, or as nearly as the method can see."""
        return ended.excess <= 1.0 or ended.violations.worst <= self.slack

    def _nearest(self) -> Ended:
        return min(self.made, key=lambda one: (not one.usable, one.excess))

    def _enough(self, ended: Ended) -> float:
        """A rho that makes the x that violates least, as far as is known, better than where a run ended."""
        if self.least is None:
            return 0.0
        gained = self.least.value - ended.value
        lost = ended.violated(self.goal.sign) - self.least.violated(self.goal.sign)
        return GUESS * gained / lost if lost > 0 and np.isfinite(gained / lost) else 0.0

    def _find_feasible(self, exact: bool) -> bool:
        """Whether minimising what is violated, f left out, comes to a feasible point: from the latest x, else from the start, and the best of many."""
        starts: list[Any] = [self.x0, *([self.settings.x0, *self._spread()] if exact else ())]
        for start in starts:
            self.x0 = start
            ended = self._run(1.0, objective=0.0)
            self.least = min(self.least or ended, ended, key=lambda one: one.excess)
            if ended.usable and self._near(ended):
                return True
            if ended.result.ended.startswith(OVER):
                return False
        return False

    def _spread(self) -> list[Any]:
        """The point of X that violates least, of many spread over it."""
        points = spread_over(self.compiled, self.settings.x0, SPREAD, self.settings.seed)
        looks = (Measured.at(self.compiled, point) for point in points)
        seen = [(one.violations.excess, place) for place, one in enumerate(looks) if one is not None]
        return [self.compiled.upper.unflatten(points[min(seen)[1]])] if seen else []

    def _run(self, rho: float, objective: float = 1.0, last: bool = False) -> Ended:
        """One run, from where the latest ended."""
        (limits, settings), required = self._left(), last or self.settings.penalty is not None
        self.penalty.weigh(rho, objective)
        try:
            result = run(self.goal, self.solver, settings, limits, self.chosen)
        except DivergedError as error:
            if required or error.result is None:
                raise
            result = error.result
        assert isinstance(result, Result)
        x = self.compiled.upper.flatten(result.x, "x")
        seen = self._measured(result, x, required) if result.ended != "diverged" else self._not_measured
        ended = Ended(result, rho, objective, x, *seen)
        if ended.usable:
            self.x0 = result.x
        self.made.append(ended)
        return ended

    def _measured(self, result: Result, x: np.ndarray, required: bool) -> Measured:
        """What f and the conditions are where a run ended, if that is found in time; a run that was to end already has not long."""
        try:
            with heeded(max(self.limits.until, time.perf_counter()) + QUICKLY, LATE, anew=True):
                seen = self._asked(result) if self.compiled.elsewhere else Measured.at(self.compiled, x, required)
        except CutShort:
            seen = None
        return seen or self._not_measured

    @property
    def _not_measured(self) -> Measured:
        unknown = [Violation(one.text, float("nan"), ALLOWED) for one in self.compiled.coupled.conditions]
        return Measured(float("nan"), Violations(unknown), None)

    @double_precision
    def _asked(self, result: Result) -> Measured | None:
        """The same as clients tell it who hold their data elsewhere: by the values of two runs of one round, on f and on what is violated; NaN where they tell none."""
        if getattr(self.settings.runtime, "noise", None) is not None:
            return None  # they would withhold both, and send more messages than the run's epsilon is of
        solver = replace(self.solver, step_size=FIRST) if wants_step(self.solver) else self.solver
        algorithm, told = solver.bind(self.goal, 1, self.settings.queries), []
        x, block = np.asarray(self.compiled.upper.flatten(result.x, "x"), float), self.settings.evaluate_every
        for weights in ((0.0, 1.0), (1.0, 0.0)):
            self.penalty.weigh(*weights)
            outcome = self.settings.runtime.execute(self.goal, algorithm, x, 1, self.settings.seed, block, go_on)
            word = outcome.own_value
            told.append(float("nan") if word is None else float(word(jnp.asarray(x)).value))
        texts = [one.text for one in self.compiled.coupled.conditions]
        return Measured(told[0], Violations.of_all(texts, told[1]), None)

    def _left(self) -> tuple[Limits, RunSettings]:
        """What the next run may spend, earlier trials and rounds counted; the clock goes on. Raises ``SpentError`` where that is less than the latest trials took."""
        budget, took = self.settings.budget, dict[str, int]()
        left = {**self.limits.counts} if budget is None or budget.rounds is None else {**self.limits.counts, "rounds": budget.rounds}
        for one in self.made:
            took = one.result.settings.get("auto", {}).get("took", {})
            spent = {**one.result.history, "rounds": one.result.settings["rounds_done"]}
            left = {n: rest - np.sum(spent.get(n, 0)) - took.get(n, 0) for n, rest in left.items()}
        if self.made and (short := [n for n, rest in left.items() if rest <= took.get(n, 0)]):
            raise SpentError(short[0])
        rounds = min(self.settings.most_rounds, int(left.pop("rounds"))) if "rounds" in left else self.settings.rounds
        return replace(self.limits, counts=left), replace(self.settings, x0=self.x0, rounds=rounds)

    def _told(self, ended: Ended, gave_up: bool) -> Result:
        """The result: f and what is violated where it ended, said aloud if anything is."""
        compiled, result, violations = self.compiled, ended.result, ended.violations
        rho = max(one.rho for one in self.made if one.objective) if gave_up or not ended.objective else ended.rho
        self.penalty.weigh(rho)
        rounds = [
            {
                "penalty": one.rho,
                "weight of f": one.objective,
                "violation": one.violations.worst,
                "value": compiled.sign * one.value,
                "rounds": int(one.result.settings["rounds_done"]),
                "ended": one.result.ended,
            }
            for one in self.made
        ]
        settings = {**result.settings, "penalty": rho, "penalty_rounds": rounds, "penalty_gave_up": gave_up}
        own = {"x0": self.made[0].result.x0, "settings": settings, "violation": violations, "own_value": None}
        own["communication"] = _together([one.result.communication for one in self.made])
        own["value"] = compiled.sign * ended.value
        if ended.evaluation is not None and np.isfinite(result.value):
            assert ended.evaluation.solution is not None
            own |= {
                "y": public_response(compiled, ended.evaluation.solution.y),
                "certificate": Certificate.of(compiled, ended.x, ended.evaluation),
            }
        return replace(result, **own)


def _warn(result: Result, among: int = 1) -> None:
    if not result.violation.feasible:
        which = "" if among == 1 else f"the best of {among} runs: "
        told = not_feasible(result.violation, result.settings)
        warn(FeasibilityWarning(f"{which}{told}."))


def _together(counts: Sequence[dict[str, float]]) -> dict[str, float]:
    """What all runs sent."""
    names = dict.fromkeys(name for one in counts for name in one)
    summed = {n: sum(one.get(n, 0) for one in counts) for n in names if not n.endswith("_per_round")}
    rounds = max(1, summed.get("rounds", 0))
    means = {n: summed[n.removesuffix("_per_round")] / rounds for n in names if n.removesuffix("_per_round") in summed and n.endswith("_per_round")}
    means |= {"participants_per_round": counts[-1]["participants_per_round"]} if "participants_per_round" in names else {}
    return {n: means[n] if n in means else summed[n] for n in names}

"""Runs on problems with conditions on the answers: on f plus rho times what is violated, with rho raised until nothing is.

The penalty is exact: from some rho on, minima of the penalised objective are those of f where the conditions hold (Han and Mangasarian,
1979), so that no rho has to grow without end. The first one is a guess from how f and the conditions change around the start. Each
run begins where the one before it ended. Where raising does not help a method that solves its problem, what is violated is minimised by itself: if
that does not come to a feasible point either, the problem is infeasible as far as was found. Methods by values near a point end near the
edge of what is feasible, on either side: for them rho is raised only as long as that helps.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem, penalised_problem
from hierfl.compiler.lower_level.certificate import Evaluation
from hierfl.compiler.public_response import public_response
from hierfl.compiler.starting_points import on_upper_set, start_points
from hierfl.errors import DivergedError, FeasibilityWarning, HierflError, IncompatibleSolverError, SettingError
from hierfl.jaxtools.interruption import INTERRUPTED, TIME_IS_UP
from hierfl.jaxtools.precision import double_precision
from hierfl.language.coupled import Penalty
from hierfl.language.printing.card import call_text
from hierfl.result import Result
from hierfl.run_settings import RunSettings
from hierfl.run_standing import not_feasible
from hierfl.runs import Runs
from hierfl.runtime.in_process.execution import InProcess
from hierfl.runtime.records import Limits
from hierfl.runtime.run import assigned, gathered_runs, run
from hierfl.value_certificate import Certificate
from hierfl.violations import Violations, sides_at

RAISE, MOST, FEW = 10.0, 9, 3  # by what rho is raised, and how often at most; by methods that end near the edge
HELPS = 0.5  # of what was violated, that a raise has to leave
GUESS, LEAST, LARGEST = 2.0, 1e-4, 1e8  # the first rho, in slopes of f by those of the conditions, and its bounds
AROUND, STEP = 8, 1e-4  # points around the start, and how far away, in 1 + |x|
BOTTOMLESS = "f seems unbounded below"
OVER = (INTERRUPTED, TIME_IS_UP, "stopped by callback", "communication limit reached")


class Slopes(NamedTuple):
    """How much f and the conditions change by a unit of x around the start."""

    objective: float
    conditions: float

    @property
    def penalty(self) -> float:
        """The rho to begin with."""
        if not (np.isfinite(self.objective) and self.conditions > 0):
            return 1.0
        return float(np.clip(GUESS * self.objective / self.conditions, LEAST, LARGEST))


class Ended(NamedTuple):
    """A run on the penalised objective, and what f and the conditions are where it ended."""

    result: Result
    rho: float
    x: np.ndarray
    evaluation: Evaluation | None
    violations: Violations

    @property
    def excess(self) -> float:
        return float("inf") if self.evaluation is None else self.violations.excess

    @property
    def usable(self) -> bool:
        return self.evaluation is not None and self.result.ended != BOTTOMLESS


def run_with_conditions(
    compiled: CompiledProblem, solver: Any, settings: RunSettings, limits: Limits, chosen: str | None = None
) -> Result | Runs:
    """Run a solver on a problem some of whose constraints mention y; errors as for :meth:`hierfl.Problem.solve`."""
    goal = penalised_problem(compiled)
    _require_supported(compiled, solver, settings)
    if not settings.several:
        result = _Rounds(compiled, goal, solver, settings, limits, chosen).result()
        assigned(compiled, result)
        return result
    seeds, results, errors = settings.all_seeds, list[Result | None](), list[DivergedError | None]()
    count = 1 if settings.restarts is None else len(seeds)
    starts = np.broadcast_to(start_points(goal, settings.x0, count, settings.seed), (len(seeds), goal.upper.size))
    for seed, start in zip(seeds, starts):
        x0 = compiled.upper.unflatten(start)
        own = replace(settings, seed=seed, seeds=None, restarts=None, x0=x0)
        try:
            results.append(_Rounds(compiled, goal, solver, own, limits, chosen).result())
            errors.append(None)
        except DivergedError as error:
            results.append(error.result)
            errors.append(error)
    over = "seeds" if settings.restarts is None else "starts"
    return gathered_runs(compiled, call_text(solver), seeds, errors, results, over)


def _require_supported(compiled: CompiledProblem, solver: Any, settings: RunSettings) -> None:
    """Refuse, by name, what rounds of runs do not carry yet."""
    first = compiled.coupled.conditions[0].text
    if settings.checkpoint is not None and settings.penalty is None:
        raise SettingError(
            f"checkpoint=... keeps one run, and a problem with conditions on y ({first}) is solved by several, with ever larger penalties: name the "
            f"penalty, such as penalty=100, which makes it one."
        )
    means = [one for one in compiled.coupled.conditions if one.is_mean]
    if means and not (isinstance(settings.runtime or InProcess(), InProcess) and hasattr(solver, "accuracy") and not hasattr(solver, "smoothing")):
        raise IncompatibleSolverError(
            f"the constraint {means[0].text} is one on a mean, and what it violates is no sum over rows or clients, which {type(solver).__name__} adds up: "
            f"use ImplicitBundle, which has all data in this process, or give each row, or client, a condition of its own."
        )
    if compiled.elsewhere:
        raise IncompatibleSolverError(
            f"the constraint {first} mentions y, and clients hold their data elsewhere (hf.Elsewhere): what is violated there is asked by nobody yet. "
            f"Write penalty * hf.E(cp.pos(left - right)), or without hf.E, into the clients' term."
        )


class _Rounds:
    """The runs of one start."""

    def __init__(
        self,
        compiled: CompiledProblem,
        goal: CompiledProblem,
        solver: Any,
        settings: RunSettings,
        limits: Limits,
        chosen: str | None,
    ) -> None:
        self.compiled, self.goal, self.solver, self.settings = compiled, goal, solver, settings
        self.limits, self.chosen = limits, chosen
        self.x0, self.made = settings.x0, list[Ended]()
        self.slack = 0.0  # what a method that smooths may leave violated
        penalty = goal.declaration.penalty
        assert penalty is not None
        self.penalty: Penalty = penalty

    def result(self) -> Result:
        """Run until the conditions hold, or nothing helps."""
        if self.settings.penalty is not None:
            return self._told(self._run(float(self.settings.penalty)), gave_up=False)
        slopes = self._slopes()
        self.slack = slopes.conditions * float(getattr(self.solver, "smoothing", 0.0))
        rho, before, best = slopes.penalty, float("inf"), None
        for tried in range(MOST + 1):
            ended = self._run(rho, last=tried == MOST)
            best = ended if best is None or not best.usable else min(best, ended, key=lambda one: (max(one.excess, 1.0), -one.rho))
            if ended.usable and (ended.excess <= 1.0 or ended.violations.worst <= self.slack):
                return self._told(ended, gave_up=False)
            if ended.result.ended in OVER:
                return self._told(ended, gave_up=False)
            by_itself = "ended_by_itself" in ended.result.settings
            helped = not ended.usable or ended.excess <= HELPS * before
            if not by_itself and (tried == FEW or not helped):
                return self._told(best, gave_up=False)
            if by_itself and not helped and tried > 1:
                least = self._run(1.0, objective=0.0)
                if not least.excess <= 1.0:
                    return self._told(min(best, least, key=lambda one: one.excess), gave_up=True)
                before = 0.0  # x is feasible now: whatever rho it takes to stay so
            else:
                before = ended.excess if ended.usable and before else before
            rho *= RAISE
        return self._told(best, gave_up=True)

    def _run(self, rho: float, objective: float = 1.0, last: bool = False) -> Ended:
        """One run, from where the latest ended."""
        self.penalty.weigh(rho, objective)
        try:
            result = run(self.goal, self.solver, replace(self.settings, x0=self.x0), self._limits(), self.chosen)
        except DivergedError as error:
            if last or self.settings.penalty is not None or error.result is None:
                raise
            result = error.result
        assert isinstance(result, Result)
        x = self.compiled.upper.flatten(result.x, "x")
        try:
            evaluation = self.compiled.exact.at(x)
        except HierflError:
            if last or self.settings.penalty is not None:
                raise
            evaluation = None
        answers = None if evaluation is None or evaluation.solution is None else evaluation.solution.y
        violations = Violations() if answers is None else Violations.at(self.compiled, x, answers)
        if result.ended == "diverged":
            evaluation = None
        ended = Ended(result, rho, x, evaluation, violations)
        if ended.usable:
            self.x0 = result.x
        self.made.append(ended)
        return ended

    def _limits(self) -> Limits:
        """What is left of the scalars that may be sent; the clock goes on."""
        if self.limits.communication is None:
            return self.limits
        spent = sum(np.sum(one.result.history.get("scalars", 0)) for one in self.made)
        return replace(self.limits, communication=max(1.0, self.limits.communication - float(spent)))

    @double_precision
    def _slopes(self) -> Slopes:
        """Those along a few random directions at the start; by values, which every problem has."""
        compiled, random = self.compiled, np.random.default_rng(self.settings.seed)
        start = start_points(compiled, self.x0, 1, self.settings.seed)[0]
        start = on_upper_set(compiled, start[None])[0]
        reach = STEP * (1.0 + float(np.linalg.norm(start)))
        ways = random.standard_normal((AROUND, start.size))
        ways /= np.linalg.norm(ways, axis=1, keepdims=True)
        told = [self._looked_at(point) for point in (start, *on_upper_set(compiled, start + reach * ways))]
        if told[0] is None:
            return Slopes(float("nan"), 0.0)
        seen = [(one, np.linalg.norm(one[0] - told[0][0])) for one in told[1:] if one is not None]
        seen = [(one, length) for one, length in seen if length > 0]
        objective = max((abs(one[1] - told[0][1]) / length for one, length in seen), default=float("nan"))
        conditions = max((np.abs(one[2] - told[0][2]).max() / length for one, length in seen), default=0.0)
        return Slopes(float(objective), float(conditions))

    def _looked_at(self, x: np.ndarray) -> tuple[np.ndarray, float, np.ndarray] | None:
        """(x, f, all excesses, flat); None where f has no value."""
        try:
            evaluation = self.compiled.exact.at(x)
        except HierflError:
            return None
        assert evaluation.solution is not None
        sides = sides_at(self.compiled, x, evaluation.solution.y)
        return x, float(evaluation.value), np.concatenate([np.ravel(left - right) for left, right in sides])

    def _told(self, ended: Ended, gave_up: bool) -> Result:
        """The result: f and what is violated where it ended, said aloud if anything is."""
        compiled, result, violations = self.compiled, ended.result, ended.violations
        self.penalty.weigh(ended.rho)
        rounds = [
            {
                "penalty": one.rho,
                "violation": one.violations.worst,
                "value": float("nan") if one.evaluation is None else compiled.sign * float(one.evaluation.value),
                "rounds": int(one.result.settings["rounds_done"]),
                "ended": one.result.ended,
            }
            for one in self.made
        ]
        settings = {**result.settings, "penalty": ended.rho, "penalty_rounds": rounds, "penalty_gave_up": gave_up}
        own = {"x0": self.made[0].result.x0, "settings": settings, "violation": violations, "own_value": None}
        own["communication"] = _together([one.result.communication for one in self.made])
        if ended.evaluation is not None and np.isfinite(result.value):
            assert ended.evaluation.solution is not None
            own |= {
                "value": compiled.sign * float(ended.evaluation.value),
                "y": public_response(compiled, ended.evaluation.solution.y),
                "certificate": Certificate.of(compiled, ended.x, ended.evaluation),
            }
        told = replace(result, **own)
        if violations.violated:
            warnings.warn(f"{not_feasible(violations, settings)}.", FeasibilityWarning, stacklevel=4)
        return told


def _together(counts: Sequence[dict[str, float]]) -> dict[str, float]:
    """What all runs sent."""
    names = dict.fromkeys(name for one in counts for name in one)
    summed = {n: sum(one.get(n, 0) for one in counts) for n in names if not n.endswith("_per_round")}
    rounds = max(1, summed.get("rounds", 0))
    means = {n: summed[n.removesuffix("_per_round")] / rounds for n in names if n.removesuffix("_per_round") in summed and n.endswith("_per_round")}
    means |= {"participants_per_round": counts[-1]["participants_per_round"]} if "participants_per_round" in names else {}
    return {n: means[n] if n in means else summed[n] for n in names}

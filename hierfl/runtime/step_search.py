"""``step_size="auto"``: a step that a few short trial runs have found good, from the run's own start.

Trials differ in the step alone, so that they are one compiled program, and they share their draws. The first step moves x by a
hundredth of its scale in a round, as an all but still run says; then steps are made four times as large, or as small, for as long as
the objective's estimates over the second half of a trial come out lower.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.starting_points import on_upper_set
from hierfl.errors import SettingError
from hierfl.jaxtools.interruption import heed
from hierfl.near_names import suggests_names
from hierfl.progress import Waiting
from hierfl.run_settings import RunSettings
from hierfl.runtime.in_process.execution import InProcess
from hierfl.runtime.records import SCALARS, History, Limits, spending, together

AUTO = "auto"
TRIAL = 20  # rounds
HELD = 1000  # a fifth of so many rounds is all but constant, where the number of rounds is open
FACTOR, MOST = 4.0, 14  # between two steps, and how many are tried in a direction
STILL, FIRST = 1e-9, 0.01  # the step that measures the gradient, and the first trial's move, relative to max(1, |x|)
TOO_LARGE = 1e50
AWAY = 0.1  # from X, relative to 1 + |x|


@suggests_names
@dataclass(frozen=True)
class Settling:
    """``c / sqrt(1 + r / hold)`` at round r: as good as constant over the first ``hold`` rounds, then as c sqrt(hold / r); what ``step_size="auto"`` takes.

    Examples
    --------
    >>> from hierfl.solvers import FedAvg, Settling
    >>> solver = FedAvg(step_size=Settling(c=0.1, hold=100))
    """

    c: float
    hold: int

    def __post_init__(self) -> None:
        if not (isinstance(self.c, Real) and isinstance(self.hold, Real) and np.isfinite(float(self.c)) and 0 < self.hold < np.inf):
            raise SettingError(f"Settling(c={self.c!r}, hold={self.hold!r}): a number, and a positive number of rounds.")

    def __call__(self, r: int) -> float:
        """The value at a round r = 0, 1, ..."""
        return float(self.c / np.sqrt(1.0 + r / self.hold))


@dataclass(frozen=True)
class FoundStep:
    """A step and how it was found: the schedule that it is used in, the rounds that were spent on trials, and what these took, by column."""

    step: float
    schedule: float | Settling
    rounds: int
    took: dict[str, int]

    @property
    def stored(self) -> list[Any]:
        return [self.step, self.schedule.hold if isinstance(self.schedule, Settling) else None, self.rounds, self.took]

    @classmethod
    def of_stored(cls, stored: Any) -> FoundStep:
        step, hold, rounds, took = stored
        return cls(step, step if hold is None else Settling(step, hold), rounds, took)

    @property
    def told(self) -> dict[str, Any]:
        return {"step_size": self.step, "trial_rounds": self.rounds, "took": self.took}


def wants_step(solver: object) -> bool:
    """Whether the solver's step is to be found."""
    step = getattr(solver, "step_size", None)
    return isinstance(step, str) and step == AUTO


class TrialsError(SettingError):
    """Trial runs found no step: none keeps the objective finite, or they took all that the run might take."""


def require_left(found: FoundStep, limits: Limits) -> None:
    """Something is left to be spent after the trials. Raises ``TrialsError``, naming what they took."""
    for name, limit in limits.counts.items():
        if (took := found.took.get(name, 0)) >= limit:
            what = "floats" if name == SCALARS else name
            said = f"step_size='auto': its trial runs took {took:,} {what}, and the limit is {limit:,.0f}, trials included"
            raise TrialsError(f"{said}: give step_size=..., such as {found.step:.3g}, which they found, or a larger limit.")


def find_step(compiled: CompiledProblem, solver: Any, settings: RunSettings, start: np.ndarray) -> FoundStep:
    """Find a step for ``step_size="auto"``. Raises ``TrialsError`` if none that was tried keeps the objective finite."""
    trials = _Trials(compiled, solver, settings, start)
    with Waiting("trial runs for step_size='auto'", settings.progress):
        best = trials.search()
        one, other = (trials.trial(best, seed)[0]["objective"] for seed in (trials.seed, trials.seed ^ 1))
    alike = np.max(np.abs(one - other)) <= 1e-9 * (1.0 + np.max(np.abs(one)))  # NaN is noise as well
    constant = getattr(type(solver), "constant_step", False) or alike
    hold = max(TRIAL, (HELD if settings.rounds is None else settings.rounds) // 5)
    return FoundStep(best, best if constant else Settling(best, hold), trials.rounds, trials.took)


class _Trials:
    """Short runs that differ in the step; ``rounds`` and ``took`` count them all."""

    def __init__(self, compiled: CompiledProblem, solver: Any, settings: RunSettings, start: np.ndarray) -> None:
        if not isinstance(getattr(solver, "participation", 1.0), Real):
            solver = replace(solver, participation=1.0)  # a script is of the run's rounds; trials have others
        self.compiled, self.solver, self.settings, self.start = compiled, solver, settings, start
        self.runtime = settings.runtime or InProcess()
        self.rounds, self.took, self.seed = 0, dict[str, int](), settings.all_seeds[0]

    def search(self) -> float:
        length = float(np.max(self.trial(STILL, self.seed)[0]["move"])) / STILL
        scale = FIRST * max(1.0, float(np.linalg.norm(self.start)))
        step = scale / length if np.isfinite(length) and length > 0 else FIRST
        levels = {step: self.level(step)}
        for factor in (FACTOR, 1.0 / FACTOR):
            for _ in range(MOST):
                tried = factor * (max(levels) if factor > 1 else min(levels))
                levels[tried] = self.level(tried)
                others = min(level for s, level in levels.items() if s != tried)
                if not levels[tried] < others and not (factor < 1 and np.isinf(others)):  # until one of the smaller ones is finite
                    break
            if min(levels, key=lambda s: levels[s]) > step:
                break  # larger ones were better: smaller ones are not tried
        best = min(levels, key=lambda s: levels[s])
        if not np.isfinite(levels[best]):
            steps = f"with any step from {min(levels):.1e} to {max(levels):.1e} from this start"
            raise TrialsError(f"step_size='auto': the objective is not finite {steps}. Give x0, or step_size.")
        return best

    def level(self, step: float) -> float:
        """The mean objective over the second half of a trial, to be made small; infinite where it fails, or x leaves X for good."""
        history, x = self.trial(step, self.seed)
        values = self.compiled.sign * np.asarray(history["objective"], float)
        if not np.all(np.abs(x) <= TOO_LARGE):
            return float("inf")
        inside = on_upper_set(self.compiled, x[None])[0]
        if np.linalg.norm(x - inside) > AWAY * (1.0 + np.linalg.norm(inside)):
            return float("inf")
        good = np.all(np.abs(values) <= TOO_LARGE) and np.all(history["fault"] < 0) and np.all(history["empty"] < 0)
        return float(np.mean(values[len(values) // 2 :])) if good else float("inf")

    def trial(self, step: float, seed: int) -> tuple[History, np.ndarray]:
        """The records of a trial, and x at its end."""
        bind: Callable[..., Any] = replace(self.solver, step_size=step).bind
        algorithm = bind(self.compiled, TRIAL, self.settings.queries)
        block = self.settings.evaluate_every
        self.rounds += TRIAL
        outcome = self.runtime.execute(self.compiled, algorithm, self.start, TRIAL, seed, block, lambda *_: None)
        heed()  # a trial that was cut short is none
        self.took = together(self.took, spending(outcome.history))
        return outcome.history, np.asarray(algorithm.decision(outcome.state), float)

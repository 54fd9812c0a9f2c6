"""What ``schedule="theory"`` needs: constants that ``problem.check()`` proved, or an error that names the missing one."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from hierfl.analysis.theorems import Prescription
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import SettingError
from hierfl.inspect.assumptions.check import check
from hierfl.inspect.assumptions.examination import Examination
from hierfl.inspect.assumptions.findings import CheckReport
from hierfl.inspect.assumptions.lower_curvature import upper_spectra

SCHEDULES = ("practical", "theory")
AS_PRINTED = "theory-as-printed"
UPPER_SCHEDULES = (*SCHEDULES, AS_PRINTED)
Starts = tuple[tuple[float, ...], ...]  # flat points, in which a run begins


def report(
    problem: CompiledProblem,
    smoothing: float = 0.1,
    epsilon: float = 1e-2,
    starts: Starts | None = None,
    local_steps: int | None = None,
) -> CheckReport:
    """The problem's check, made once for each smoothing, accuracy, starts and H, and for the values that parameters have."""
    return problem.programs.keep(
        ("check", smoothing, epsilon, starts, local_steps, problem.parameter_values),
        lambda: check(
            problem,
            smoothing=smoothing,
            epsilon=epsilon,
            starts=None if starts is None else np.array(starts),
            local_steps=local_steps,
            progress=False,
        ),
    )


BY_HAND = "the step sizes yourself (schedule='practical')"


def lower_constants(
    problem: CompiledProblem, solver: str, *, of_each: bool = False, give: str = BY_HAND
) -> tuple[float, float]:
    """(mu, L) of the lower level, in federation scope those of the mean over the clients; ``give`` says what is written without them.

    With ``of_each`` they hold for every client, as methods need whose clients step by themselves between averages
    ([2S] Assumption 2 (ii)): the least mu_i and the largest L_i.

    Raises ``SettingError``, naming the constant that could not be proved, or that rests on data that are elsewhere.
    """
    if problem.elsewhere:  # or at a site, which knows its own clients alone
        raise SettingError(
            f"{solver} needs the lower level's modulus of strong convexity and smoothness, which would be made of all clients' data, and these "
            f"are not in this process: give {give}."
        )
    constants, level = report(problem).constants, problem.declaration.lower_level
    letter = "h" if level is None else level.letter
    mean = problem.scope == "federation" and not of_each
    mu, smooth = (
        constants.get(f"{name} of the mean" if mean else name) or constants.get(name)
        for name in (f"mu_{letter}", f"L_{letter}")
    )
    if mu is None or not float(mu) > 0:
        raise SettingError(
            f"{solver} needs the modulus mu_{letter} of strong convexity for its theory schedule, and none could be proved: add a "
            f"strongly convex term to the lower level, or give {give}."
        )
    if smooth is None or not np.isfinite(float(smooth)):
        raise SettingError(
            f"{solver} needs the smoothness L_{letter} of the lower level for its theory schedule, and none could be proved: give {give}."
        )
    return float(mu), float(smooth)


def upper_constants(problem: CompiledProblem, solver: str) -> tuple[float, float]:
    """(mu, L) of the clients' terms in x: every f_i is mu-strongly convex and L-smooth.

    Raises ``SettingError``, naming the constant that could not be proved.
    """
    study = Examination(problem, smoothing=1.0, samples=4, seed=0)
    spectra = problem.programs.keep(("upper spectra", problem.parameter_values), lambda: upper_spectra(study))
    lows, highs = [s.low for s in spectra], [s.high for s in spectra]
    mu = min(0.0 if low is None else low.value for low in lows)
    smooth = max(np.inf if high is None else high.value for high in highs)
    for known, what in ((mu > 0, "the modulus mu of strong convexity"), (np.isfinite(smooth), "the smoothness L")):
        if not known:
            raise SettingError(
                f"{solver} needs {what} of every client's term, and none could be proved (rows of data, smooth atoms and "
                f"bounds on X help): give the number yourself."
            )
    return float(mu), float(smooth)


def prescription(solver: Any, problem: CompiledProblem, local_steps: int | None = None) -> Prescription:
    """What the class's theorem prescribes for the solver's ``smoothing`` and ``accuracy``, all hypotheses proved.

    With ``schedule="theory"`` its gaps are closed, with ``"theory-as-printed"`` they are not; ``local_steps`` is an H that is asked
    for, None the theorem's.

    Raises ``SettingError`` for a class whose theorem is about another solver, absent clients, an H that it does not
    cover, or naming the hypotheses that could not be proved.
    """
    name, fitting = type(solver).__name__, "ZOHFL" if problem.scope == "client" else "FedRZO"
    asked = report(problem, float(solver.smoothing), float(solver.accuracy), solver.starts, local_steps)
    theorem, how = asked.theorems[0], f"schedule={solver.schedule!r} of {name}"
    if name != fitting:
        raise SettingError(
            f"{how}: the theorem for this class, {theorem.name}, is about {fitting}. Write "
            f"{fitting}(schedule={solver.schedule!r}), or give step_size and local_steps yourself."
        )
    if callable(solver.participation) or np.ndim(solver.participation) or solver.participation != 1:
        raise SettingError(
            f"{how}: {theorem.name} is about rounds in which all clients take part, but "
            f"participation is {solver.participation!r}. Write participation=1, or give step_size and local_steps yourself."
        )
    found = theorem.printed if solver.schedule == AS_PRINTED else theorem.predicted
    if found is None and theorem.printed is not None:
        raise SettingError(
            f"{how} with local_steps={local_steps}: {theorem.name} is proved for one local step a round only (see the gaps that "
            f"problem.check() names). Leave local_steps out, or take schedule={AS_PRINTED!r}, which claims what is printed."
        )
    if theorem.applies and found is None:
        raise SettingError(
            f"{how}: {theorem.name} prescribes nothing, since f(x_0) - inf f is not bounded for "
            f"{theorem.start}. Bound X, or give step_size and local_steps yourself."
        )
    if found is None:
        raise SettingError(
            f"{how}: {theorem.name} prescribes nothing, since not proved are "
            f"{', '.join(theorem.missing)} (see problem.check()). Give step_size and local_steps yourself."
        )
    if not np.isfinite(found.rounds):
        raise SettingError(
            f"{how}: no horizon below 1e300 reaches accuracy={solver.accuracy:g} by {theorem.name}. Take a "
            f"larger accuracy or smoothing, or give step_size and local_steps yourself."
        )
    return found


def require_covered(solver: Any, queries: str) -> None:
    """Check that a run by theory is one that the theorem is about.

    Averages of several directions, and minibatches, are covered: their second moments are no larger than those of one.

    Raises ``SettingError``, naming the setting that is not.
    """
    name = type(solver).__name__
    uncovered = {
        "queries": (queries, "projected", "its constants hold on X, where f is then queried"),
        "control_variate": (getattr(solver, "control_variate", False), False, "its estimates have no memory"),
        "estimator": (getattr(solver, "estimator", "forward"), "forward", "its estimates are forward differences"),
    }
    for setting, (value, covered, why) in uncovered.items():
        if value != covered:
            raise SettingError(
                f"schedule={solver.schedule!r} of {name} with {setting}={value!r}: the theorem does not cover it, since {why}. Write "
                f"{setting}={covered!r}, or give step_size and local_steps yourself."
            )


def require_left_out(settings: Any, *names: str) -> None:
    """Check that with another schedule than ``"practical"`` nobody gives what that chooses. Raises ``SettingError``, naming the setting."""
    default = {field.name: field.default for field in fields(settings)}
    given = [name for name in names if not _is_default(getattr(settings, name), default[name])]
    if settings.schedule != "practical" and given:
        raise SettingError(
            f"schedule={settings.schedule!r} of {type(settings).__name__} chooses {' and '.join(given)} itself: leave {'it' if len(given) == 1 else 'them'} "
            f"out, or write schedule='practical'."
        )


def _is_default(value: Any, default: Any) -> bool:
    """Whether nobody gave it; a number that has been copied to another process is another object."""
    return value is default or (type(value) is type(default) and np.isscalar(value) and value == default)

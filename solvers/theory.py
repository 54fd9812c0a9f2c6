"""What ``schedule="theory"`` needs: constants that ``problem.check()`` proved, or an error that names the missing one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from hierfl.analysis.theorems import Prescription
from hierfl.compiler.compiled import CompiledProblem
from hierfl.errors import SettingError

if TYPE_CHECKING:
    from hierfl.inspect.findings import CheckReport


def report(problem: CompiledProblem, smoothing: float = 0.1, epsilon: float = 1e-2) -> CheckReport:
    """The problem's check, made once for each smoothing and accuracy."""
    found: CheckReport = problem.keep(
        ("check", smoothing, epsilon),
        lambda: problem.problem.check(smoothing=smoothing, epsilon=epsilon, progress=False),
    )
    return found


def lower_constants(problem: CompiledProblem, solver: str) -> tuple[float, float]:
    """(mu, L) of the lower level, in federation scope those of the mean over the clients.

    Raises
    ------
    SettingError
        Naming the constant that could not be proved.
    """
    constants = report(problem).constants
    mean = problem.scope == "federation"
    mu, smooth = (
        constants.get(f"{name} of the mean" if mean else name) or constants.get(name) for name in ("mu_h", "L_h")
    )
    if mu is None or not float(mu) > 0:
        raise SettingError(
            f"{solver} needs the modulus mu_h of strong convexity for its theory schedule, and none could be proved: add a "
            f"strongly convex term to the lower level, or give the step sizes yourself (schedule='practical')."
        )
    if smooth is None or not np.isfinite(float(smooth)):
        raise SettingError(
            f"{solver} needs the smoothness L_h of the lower level for its theory schedule, and none could be proved: give "
            f"the step sizes yourself (schedule='practical')."
        )
    return float(mu), float(smooth)


def prescription(problem: CompiledProblem, smoothing: float, epsilon: float, solver: str) -> Prescription:
    """What the class's theorem prescribes, all hypotheses proved.

    Raises
    ------
    SettingError
        Naming the hypotheses that could not be proved.
    """
    theorem = report(problem, smoothing, epsilon).theorems[0]
    if theorem.predicted is None:
        raise SettingError(
            f"schedule='theory' of {solver}: {theorem.name} prescribes nothing, since not proved are "
            f"{', '.join(theorem.missing)} (see problem.check()). Give step_size and local_steps yourself."
        )
    return theorem.predicted

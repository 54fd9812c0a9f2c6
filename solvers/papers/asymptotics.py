"""[HFL] Theorem 2 for a given schedule, and Proposition 1 (ii) for the lower solver's: which of their conditions on the steps hold, and why.

liminf |grad f^eta(x_r)| = 0 almost surely, where sum gamma_r = inf, sum gamma_r^2 < inf, gamma_r <= eta / (4 (eta L_1 + L_0^imp sqrt(n))),
and sum gamma_r (mean over i of eps_{i,r}) < inf, eps_{i,r} bounding E|y_i - y_i(x)|^2. For gamma_r = c / (r + 1)^p that is p in (1/2, 1],
and for eps_{i,r} of order (r + 1)^-q it is p + q > 1 (Remark 3). A client's projected SGD at one x comes to y_i(x) almost surely where its own steps
are nonsummable and square-summable (Proposition 1 (ii)): the same p in (1/2, 1], of the local step t.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, sqrt
from typing import Any, NamedTuple

import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import SettingError
from hierfl.inspect.assumptions.findings import CheckReport, Finding, Status, Theorem
from hierfl.solvers.lower import Exact, ProjectedSGD
from hierfl.solvers.parts.step_schedules import Decay

NAME, BELOW = "[HFL] Theorem 2", "[HFL] Proposition 1 (ii)"
EXPERIMENTS = "the paper's own experiments have p = 1/2 too"
LOWER = (
    "lower level is an argmin",
    "strong convexity",
    "strong monotonicity",  # as that is called of an equilibrium
    "smoothness",
    "lower gradient Lipschitz in x",
    "unbiased samples",
    "bounded variance of the lower gradient",
    "Y(x) closed and convex",
)  # Assumption 1 (ii), (iv)
GAP = "the paper's own experiments, with gamma_r = 0.01 / sqrt(r + 1), do not meet it: p = 1/2 is not in (1/2, 1]."


class Power(NamedTuple):
    """c / (r + 1)^p."""

    c: float
    p: float


def proposition_1(lower: Any, report: CheckReport) -> Theorem | None:
    """Proposition 1 (ii) for a lower solver: of projected SGD alone, None of others; about the steps of a client that never ends them."""
    if not isinstance(lower, ProjectedSGD):
        return None
    power = Power(1.0, 1.0) if lower.schedule == "theory" else power_of(lower.step_size)
    own = "" if lower.schedule != "theory" else " (Proposition 1 (i)'s)"
    asked = [one for one in report.theorems[0].hypotheses if one.name in LOWER]
    steps = (_nonsummable(power, "t", BELOW), _square_summable(power, "t", BELOW))
    said = "as given" if power is None else _power(power, "t")
    return Theorem(BELOW, f"y_t -> y_i(x) almost surely as t grows, at every x, steps {said}{own}", (*asked, *steps), (), solver="ProjectedSGD")


def power_of(schedule: Any) -> Power | None:
    """A number or ``Decay`` as a power of r + 1; None for a callable, of which only values are known."""
    if isinstance(schedule, Decay):
        return Power(schedule.c, schedule.p)
    if callable(schedule) or isinstance(schedule, str):
        return None
    return Power(float(schedule), 0.0)


def theorem_2(solver: Any, steps: Any, lower: Any, problem: CompiledProblem, report: CheckReport) -> Theorem:
    """The theorem for ``steps`` gamma_r and a lower solver, with the report's hypotheses and those on the steps.

    Raises ``SettingError`` for a class of problem that it is not about.
    """
    if problem.scope != "client":
        raise SettingError(
            f"check(solver=ZOHFL(...)): {NAME} is about lower levels of client scope, for which ZO-HFL is made."
        )
    power = power_of(steps)
    on_steps = (
        _everybody(solver.participation),
        _nonsummable(power),
        _square_summable(power),
        _small_enough(power, _limit(solver.smoothing, problem, report)),
        _errors_summable(power, lower),
    )
    statement = f"liminf |grad f^eta(x_r)| = 0 almost surely, eta = {solver.smoothing:g}, gamma_r = {_said(steps)}"
    return Theorem(NAME, statement, (*report.theorems[0].hypotheses, *on_steps), (GAP,), solver="ZOHFL")


def _limit(smoothing: float, problem: CompiledProblem, report: CheckReport) -> float:
    """eta / (4 (eta L_1^{f_1} + L_0^imp sqrt(n))), 0 where a constant is not known."""
    smooth, lipschitz = (float(report.constants[name]) for name in ("L_1^{f_1}", "L0_imp"))
    below = 4 * (smoothing * smooth + lipschitz * sqrt(problem.upper.size))
    return 0.0 if not np.isfinite(below) else smoothing / below if below > 0 else inf


def _finding(name: str, verdict: Status, reason: str, of: str = NAME) -> Finding:
    return Finding(name, verdict, reason, of)


def _everybody(participation: Any) -> Finding:
    name = "all clients take part"
    if not callable(participation) and not np.ndim(participation) and participation == 1:
        return _finding(name, "proved", "participation=1")
    return _finding(name, "not covered", "the theorem's mean is over all clients in every round: participation=1")


def _nonsummable(power: Power | None, index: str = "r", of: str = NAME) -> Finding:
    name = "steps nonsummable" if of == NAME else "lower steps nonsummable"
    if power is None:
        return _unknown(name, "whether the steps sum to infinity", of)
    if power.p <= 1:
        return _finding(name, "proved", f"sum of {_power(power, index)} is infinite, as p <= 1", of)
    where = "x cannot move far" if of == NAME else "y cannot move far"
    return _finding(name, "violated", f"sum of {_power(power, index)} is finite, as p > 1: {where}", of)


def _square_summable(power: Power | None, index: str = "r", of: str = NAME) -> Finding:
    name = "steps square-summable" if of == NAME else "lower steps square-summable"
    if power is None:
        return _unknown(name, "whether the squares of the steps have a finite sum", of)
    if power.p > 0.5:
        return _finding(name, "proved", f"sum of the squares of {_power(power, index)} is finite, as p > 1/2", of)
    own = f"; {EXPERIMENTS}" if power.p == 0.5 and of == NAME else ""
    reason = f"the squares of {_power(power, index)} sum to infinity, as p <= 1/2: take Decay({power.c:g}, p) with p in (1/2, 1]{own}"
    return _finding(name, "violated", reason, of)


def _small_enough(power: Power | None, limit: float) -> Finding:
    name = "steps below their limit"
    if power is None:
        return _unknown(name, "whether every step is below the limit")
    if limit == 0:
        return _finding(name, "unknown", "L_1^{f_1} or L0_imp is not bounded on the declared sets")
    if power.p < 0:
        return _finding(name, "violated", f"{_power(power)} grows, and the limit is {limit:.4g}")
    first, bound = f"the first step, {power.c:g}, is", "eta / (4 (eta L_1 + L0_imp sqrt(n)))"
    if power.c <= limit:
        return _finding(name, "proved", f"{first} at most {bound} = {limit:.4g}")
    return _finding(name, "violated", f"{first} above {bound} = {limit!r}")


def _errors_summable(power: Power | None, lower: Any) -> Finding:
    """sum gamma_r eps_r, where eps_r falls with the lower solver's steps."""
    name = "lower errors summable with the steps"
    if isinstance(lower, Exact):
        return _finding(name, "proved", "the lower level is solved exactly, to a certified error")
    rate = _error_rate(lower)
    if rate is None:
        reason = (
            f"no rate is proved for {lower}: take Exact(), or ProjectedSGD(steps=Decay(tau, -q), schedule='theory')"
        )
        return _finding(name, "unknown", reason)
    if power is None:
        return _unknown(name, "the sum of steps times errors")
    if power.p + rate > 1:
        return _finding(name, "proved", f"errors of order (r + 1)^-{rate:g} (Proposition 1), and p + {rate:g} > 1")
    reason = f"errors of order (r + 1)^-{rate:g} (Proposition 1), and p + {rate:g} <= 1: more local steps, as ceil(tau (r + 1)^q) with q > {1 - power.p:g}"
    return _finding(name, "unknown", reason)


def _error_rate(lower: Any) -> float | None:
    """q of eps_{i,r} = O((r + 1)^-q) by a proved rate: C / (H_{i,r} + Gamma) of Proposition 1; None where none is proved."""
    if not isinstance(lower, ProjectedSGD) or lower.schedule != "theory":
        return None
    steps = lower.steps
    several = list(steps) if isinstance(steps, (Sequence, np.ndarray)) and not isinstance(steps, str) else [steps]
    powers = [power_of(each) for each in several]
    known = [0.0 if power.c == 0 else max(0.0, -power.p) for power in powers if power is not None]
    return min(known) if len(known) == len(powers) else None


def _unknown(name: str, what: str, of: str = NAME) -> Finding:
    return _finding(name, "unknown", f"{what} is not known of this schedule: give a number or Decay(c, p)", of)


def _power(power: Power, index: str = "r") -> str:
    return f"{power.c:g}" if power.p == 0 else f"{power.c:g} / ({index} + 1)^{power.p:g}"


def _said(steps: Any) -> str:
    power = power_of(steps)
    return "as given" if power is None else _power(power)

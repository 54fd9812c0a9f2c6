"""``problem.check()``: which of the papers' assumptions hold, how that is known, and what the theorem then says.

What rests on convexity that the user asserted with ``hf.Function(..., convex=True)`` is reported as asserted, never as proved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.starting_points import require_start_in_x
from hierfl.errors import SettingError
from hierfl.inspect.assumptions.findings import CheckReport, Constant, Finding
from hierfl.inspect.assumptions.lipschitz_checks import lipschitz
from hierfl.inspect.assumptions.lower_curvature import moduli
from hierfl.inspect.assumptions.lower_set_checks import has_a_solution, lower_sets, upper_sets
from hierfl.inspect.assumptions.study import Study
from hierfl.inspect.assumptions.theorem_numbers import form_of_declaration, randomness, theorem
from hierfl.jaxtools.precision import double_precision
from hierfl.language.function import asserted_convex
from hierfl.progress import RunProgress

Part = TypeVar("Part")

_TITLES = {
    "nn": "nonsmooth nonconvex federated problem without a lower level: [NN], [2S] section 2",
    "bl": "bilevel problem, one lower level of the federation: [2S] section 3",
    "mm": "minimax problem, one lower level of the federation: [2S] section 4",
    "2s": "two-stage problem, a lower level for each sample: [2S] section 5",
    "hfl": "hierarchical problem, a lower level of each client: [HFL]",
}


@double_precision
def check(
    compiled: CompiledProblem,
    *,
    epsilon: float = 1e-2,
    smoothing: float = 0.1,
    samples: int = 64,
    seed: int = 0,
    starts: np.ndarray | None = None,
    local_steps: int | None = None,
    progress: bool = True,
) -> CheckReport:
    """Examine a problem, for starts (k, n) or for every one, and for local steps that are given or the theorem's; other arguments as for ``Problem.check``."""
    if not epsilon > 0 or not smoothing > 0 or samples < 1:
        raise SettingError(
            f"check needs epsilon > 0, smoothing > 0 and samples >= 1; got epsilon={epsilon}, smoothing={smoothing}, samples={samples}."
        )
    for start in () if starts is None else starts:
        require_start_in_x(compiled, start, "check(x0=...)")
    study = Study(compiled, smoothing, samples, seed, starts, local_steps)
    findings: list[Finding] = []
    constants: list[Constant] = []
    with RunProgress(6 if study.level is not None else 4, "check", progress, "stages") as bar:
        stage = _Stages(bar)
        upper = stage("X", lambda: upper_sets(study))
        findings += [*upper.findings, *form_of_declaration(study)]
        curvature = None
        if study.level is not None:
            sets = stage("Y(x)", lambda: lower_sets(study))
            findings += sets
            curvature = stage("curvature", lambda: moduli(study))
            findings += [*curvature.findings, has_a_solution(study, curvature.own_mu, sets[0])]
            constants += curvature.constants
        slopes = stage("Lipschitz constants", lambda: lipschitz(study, curvature))
        draws = stage("samples", lambda: randomness(study))
        findings += [*slopes.findings, *draws.findings]
        constants += [*slopes.constants, *upper.constants, *draws.constants]
        findings, constants = marked(study, findings), marked_constants(study, constants)
        by_name = {c.name: c for c in constants}
        result = stage("theorem", lambda: theorem(study, {f.name: f for f in findings}, by_name, epsilon))
    title = f"{_TITLES[study.problem_class]}; n = {study.compiled.upper.size}, m = {study.compiled.num_clients}"
    return CheckReport(title, tuple(findings), by_name, (result,))


class _Stages:
    """Does one part of the check after another, and says so on a progress bar."""

    def __init__(self, bar: RunProgress) -> None:
        self._bar, self._done = bar, 0

    def __call__(self, what: str, work: Callable[[], Part]) -> Part:
        self._bar.update(self._done, what)
        part = work()
        self._done += 1
        self._bar.update(self._done, what)
        return part


OF_X = frozenset({"X nonempty, closed and convex"})
OF_SETS = frozenset({"Y(x) closed and convex"})
OF_Y = frozenset(
    {
        *("strong convexity", "strong monotonicity", "lower level has a solution"),
        *("y(x) Lipschitz", "implicit function Lipschitz", "y(x) unique", "y(x) differentiable"),
    }
)
CONSTANTS = frozenset({*("mu_h", "mu_h of the mean", "mu_F", "mu_F of the mean", "kappa_F"), *("L_y", "L0_imp", "L_f")})


def marked(study: Study, findings: Sequence[Finding]) -> list[Finding]:
    """The findings, those that rest on assertions with that status and the functions' names."""
    return [_marked_finding(finding, resting(study, finding.name)) for finding in findings]


def marked_constants(study: Study, constants: Sequence[Constant]) -> list[Constant]:
    """The constants, with the functions whose convexity they rest on."""
    names = _of_lower_level(study)
    if not names:
        return list(constants)
    return [replace(c, reason=f"{c.reason}; {_said(names)}") if c.name in CONSTANTS else c for c in constants]


def resting(study: Study, name: str) -> tuple[str, ...]:
    """The functions that a finding of this name rests on."""
    declared = study.compiled.declaration
    if name in OF_X:
        return asserted_convex(declared.constraints, study.compiled.upper.variables)
    if study.level is None:
        return ()
    if name in OF_SETS:
        return asserted_convex(study.level.constraints, study.level.variables)
    return _of_lower_level(study) if name in OF_Y else ()


def _of_lower_level(study: Study) -> tuple[str, ...]:
    level = study.level
    return () if level is None else asserted_convex([*level.expressions, *level.constraints], level.variables)


def _marked_finding(finding: Finding, names: tuple[str, ...]) -> Finding:
    if not names or finding.status not in ("proved", "sampled"):
        return finding
    return replace(finding, status="asserted", reason=f"{finding.reason}; {_said(names)}")


def _said(names: tuple[str, ...]) -> str:
    return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} convex as asserted"

"""``problem.check()``: which of the papers' assumptions hold, how that is known, and what the theorem then says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import SettingError
from hierfl.inspect.assumptions.findings import CheckReport, Constant, Finding
from hierfl.inspect.assumptions.lipschitz_checks import lipschitz
from hierfl.inspect.assumptions.lower_checks import moduli
from hierfl.inspect.assumptions.set_checks import bounded_below, lower_sets, upper_sets
from hierfl.inspect.assumptions.study import Study
from hierfl.inspect.assumptions.theorem_checks import randomness, setting, theorem
from hierfl.jaxtools.precision import double_precision
from hierfl.progress import RunProgress

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
    progress: bool = True,
) -> CheckReport:
    """The report; arguments as for ``Problem.check``."""
    if not epsilon > 0 or not smoothing > 0 or samples < 1:
        raise SettingError(
            f"check needs epsilon > 0, smoothing > 0 and samples >= 1; got epsilon={epsilon}, smoothing={smoothing}, samples={samples}."
        )
    study = Study(compiled, smoothing, samples, seed)
    findings: list[Finding] = []
    constants: list[Constant] = []
    stages = 6 if study.level is not None else 4
    done = 0
    with RunProgress(stages, "check", progress, "stages") as bar:

        def stage(what: str, work: Callable[[], Any]) -> Any:
            nonlocal done
            bar.update(done, what)
            result = work()
            done += 1
            bar.update(done, what)
            return result

        upper = stage("X", lambda: upper_sets(study))
        findings += [*upper.findings, *setting(study)]
        curvature = None
        if study.level is not None:
            findings += stage("Y(x)", lambda: lower_sets(study))
            curvature = stage("curvature", lambda: moduli(study))
            findings += [*curvature.findings, bounded_below(study, curvature.own_mu)]
            constants += curvature.constants
        slopes = stage("Lipschitz constants", lambda: lipschitz(study, curvature))
        samples_found = stage("samples", lambda: randomness(study))
        findings += [*slopes.findings, *samples_found.findings]
        constants += [*slopes.constants, *upper.constants, *samples_found.constants]
        by_name = {c.name: c for c in constants}
        result = stage("theorem", lambda: theorem(study, {f.name: f for f in findings}, by_name, epsilon))
    title = f"{_TITLES[study.problem_class]}; n = {study.compiled.upper.size}, m = {study.compiled.num_clients}"
    return CheckReport(title, tuple(findings), by_name, (result,))

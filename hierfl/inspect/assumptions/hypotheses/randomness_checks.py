"""Samples as the theorems ask for them: unbiased, of bounded variance; and the smoothness of the server's term."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hierfl.inspect.assumptions.curvature.hessians import Curvature
from hierfl.inspect.assumptions.findings import Constant, Finding
from hierfl.inspect.assumptions.holders import Holder
from hierfl.inspect.assumptions.slopes.lipschitz_checks import gradient_size, spread
from hierfl.inspect.assumptions.study import Study
from hierfl.language.sample import Sample


@dataclass(frozen=True)
class Randomness:
    """What is known of the samples, with the constants nu^2, sigma^2, sigma_i^2 and L_1^{f_1}."""

    findings: tuple[Finding, ...]
    constants: tuple[Constant, ...]


def randomness(study: Study) -> Randomness:
    """Examine the samples: unbiasedness, variances, and the smoothness of the server's term."""
    clients, problem = study.holders.clients, study.compiled.declaration
    first = study.assumption("(ii)") if study.problem_class == "nn" else ""
    findings = [
        Finding(
            "unbiased samples",
            "proved",
            "minibatches are drawn uniformly with replacement, or from the law itself",
            first,
        )
    ]
    constants: list[Constant] = []
    if study.problem_class == "nn":
        nu = max(spread(study, problem.objective.clients, h) for h in clients)
        constants.append(Constant("nu^2", nu, "<=", "a quarter of the range of f squared (Popoviciu)"))
        findings.append(_bounded(study, "bounded variance of f", nu, first))
    if study.problem_class == "hfl":
        hierarchical = _of_hierarchical(study)
        findings += hierarchical.findings
        constants += hierarchical.constants
    return Randomness(tuple(findings), tuple(constants))


def _of_hierarchical(study: Study) -> Randomness:
    """What [HFL] asks for beside unbiased samples: variances, a smooth server's term, and a clients' term without samples."""
    clients, objective = study.holders.clients, study.compiled.declaration.objective
    lower = max(_lower_variance(study, h) for h in clients)
    smooth, server = _server(study)
    constants = (
        Constant("sigma_i^2", lower, "<=", "the mean square of one sample's gradient in y"),
        Constant("sigma^2", server, "<=", "the mean square of one sample's gradient of the server's term"),
        Constant("L_1^{f_1}", smooth, "<=", "curvature of the server's term"),
    )
    free = (
        not any(isinstance(p, Sample) for p in objective.clients.parameters())
        if objective.clients is not None
        else True
    )
    findings = (
        _bounded(study, "bounded variance of the lower gradient", lower, "[HFL] Assumption 1 (ii)"),
        _bounded(study, "bounded variance of the server gradient", server, "[HFL] Assumption 1 (iii)"),
        _bounded(study, "server term smooth", smooth, "[HFL] Assumption 1 (iii)"),
        Finding(
            "client term without samples",
            "proved" if free else "not covered",
            "f_2 is evaluated, not sampled, in [HFL] (1)",
            "[HFL] (1)",
        ),
    )
    return Randomness(findings, constants)


def _lower_variance(study: Study, holder: Holder) -> float:
    """Bound sigma_i^2: 0 without samples, else by the mean square of one sample's gradient in y."""
    level = study.below
    if not any(isinstance(p, Sample) for p in level.expression.parameters()):
        return 0.0
    return gradient_size(study, level.expression, level.variables, holder) ** 2


def _server(study: Study) -> tuple[float, float]:
    """Bound (L_1^{f_1}, sigma^2) of the server's term; zeros without one."""
    term, holder = study.compiled.declaration.objective.server, study.holders.server
    if term is None or holder is None:
        return 0.0, 0.0
    upper = study.compiled.upper.variables
    spectrum = Curvature(study.compiled, term, upper, holder.known).spectrum(holder)
    ends = [end for end in (spectrum.low, spectrum.high) if end is not None]
    smooth = max(abs(end.value) for end in ends) if len(ends) == 2 else np.inf
    random = any(isinstance(p, Sample) for p in term.parameters())
    return float(smooth), gradient_size(study, term, upper, holder) ** 2 if random else 0.0


def _bounded(study: Study, name: str, value: float, assumption: str) -> Finding:
    if np.isfinite(value):
        return Finding(name, "proved", f"at most {value:.6g}", assumption)
    return Finding(name, "unknown", f"no bound on the declared sets{study.unbounded}", assumption)

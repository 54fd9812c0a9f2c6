"""Whether the declaration has the form of the papers' class."""

from __future__ import annotations

import numpy as np

from hierfl.inspect.assumptions.findings import Finding
from hierfl.inspect.assumptions.study import Study


def form_of_declaration(study: Study) -> tuple[Finding, ...]:
    """Compare the declaration with the form of the papers' class."""
    problem = study.compiled.declaration
    weights = study.holders.data.clients.weights
    equal = bool(np.allclose(weights, 1.0 / len(weights), rtol=1e-12))
    findings = [Finding("uniform weights", "proved" if equal else "not covered", "the papers' weights are 1/m")]
    if study.level is not None and study.problem_class != "2s":
        argmin = study.level.kind != "equilibrium"
        reason = "the theorem is about minimisers" + (
            "" if argmin else "; for an equilibrium of this scope none is stated"
        )
        findings.append(Finding("lower level is an argmin", "proved" if argmin else "not covered", reason))
    if study.problem_class == "hfl":
        free = not study.compiled.upper_set.blocks and study.compiled.private_set is None
        reason = (
            "as in [HFL] (1)" if free else "[HFL] (1) has no constraints on x: a projected server step is not covered"
        )
        findings.append(Finding("x unconstrained", "proved" if free else "not covered", reason, "[HFL] (1)"))
    else:
        absent = problem.objective.server is None
        reason = (
            "the class has no server term" if absent else "the papers' class has no server term, this problem has one"
        )
        findings.append(Finding("no server term", "proved" if absent else "not covered", reason))
    return tuple(findings)

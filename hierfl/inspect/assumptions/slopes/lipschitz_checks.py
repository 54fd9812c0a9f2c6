"""Lipschitz constants of f, of the lower level's gradient, of y(x) and of the implicit function, on the declared sets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hierfl.inspect.assumptions.curvature.lower_curvature import Moduli
from hierfl.inspect.assumptions.findings import Constant, Finding
from hierfl.inspect.assumptions.slopes.gradient_sizes import worst_gradient
from hierfl.inspect.assumptions.slopes.mixed_derivatives import mixed_constant
from hierfl.inspect.assumptions.slopes.response_checks import differentiability, response_constant, uniqueness
from hierfl.inspect.assumptions.study import Study

_FIRST = {
    "nn": "[NN] Assumption 1 (i)",
    "bl": "[2S] Assumption 2 (i)",
    "mm": "[2S] Assumption 2 (i)",
    "2s": "[2S] Assumption 3 (i)",
    "hfl": "[HFL] Assumption 1 (i)",
}
_SECOND = {"bl": "[2S] Assumption 2 (ii)", "mm": "[2S] Assumption 2 (ii)", "2s": "", "hfl": "[HFL] Assumption 1 (ii)"}


@dataclass(frozen=True)
class Lipschitz:
    """What is known of the slopes of f, of the lower gradient and of y(x); constants are infinite where unknown."""

    findings: tuple[Finding, ...]
    constants: tuple[Constant, ...]
    f_x: float
    f_y: float
    slope: float
    implicit: float


def lipschitz(study: Study, moduli: Moduli | None) -> Lipschitz:
    """Bound the constants of Assumption (i), of y(x) and of the implicit function."""
    term, level = study.compiled.declaration.objective.clients, study.level
    assumption = _FIRST[study.problem_class]
    upper, lower = study.compiled.upper.variables, study.compiled.lower.variables
    f_x, who_x, each_x = worst_gradient(study, term, upper)
    constants = [_gradient_constant("L_{f,x}", f_x, who_x, each_x)]
    in_x = _bound_finding("f Lipschitz in x", f_x, "the gradient of the clients' term in x", assumption)
    if level is None or moduli is None:
        return Lipschitz((in_x,), tuple(constants), f_x, 0.0, 0.0, f_x)
    f_y, who_y, each_y = worst_gradient(study, term, lower)
    mixed = mixed_constant(study)
    constants += [
        _gradient_constant("L_{f,y}", f_y, who_y, each_y),
        Constant("L_{grad h,x}", mixed, "<=", "second derivatives in (x, y)"),
    ]
    slope, how = response_constant(study, moduli, mixed)
    implicit = f_x if f_y == 0 or slope == 0 else f_y * slope + f_x
    constants += [
        Constant("L_y", slope, "<=", how.removeprefix("unknown: ")),
        Constant(
            "L0_imp",
            implicit,
            "<=",
            "L_{f,y} L_y + L_{f,x}" if np.isfinite(implicit) else "one of its factors is unknown",
        ),
    ]
    findings = (
        in_x,
        _bound_finding("f Lipschitz in y", f_y, "the gradient of the clients' term in y", assumption),
        _bound_finding(
            "lower gradient Lipschitz in x", mixed, "second derivatives in (x, y)", _SECOND[study.problem_class]
        ),
        _bound_finding("y(x) Lipschitz", slope, how, "", moduli.proved),
        _bound_finding("implicit function Lipschitz", implicit, "L_{f,y} L_y + L_{f,x}", assumption, moduli.proved),
        uniqueness(study, moduli),
        differentiability(study, moduli),
    )
    return Lipschitz(findings, tuple(constants), f_x, f_y, slope, implicit)


def _gradient_constant(name: str, value: float, who: str, each: tuple[float, ...]) -> Constant:
    many = len(each) > 1
    reason = (
        "the largest gradient on the declared sets"
        if np.isfinite(value)
        else "the gradient is not bounded on the declared sets"
    )
    return Constant(name, value, "<=", reason, who if many else "", each if many else ())


def _bound_finding(name: str, value: float, how: str, assumption: str, proved: bool = True) -> Finding:
    if np.isfinite(value):
        return Finding(name, "proved" if proved else "sampled", f"constant at most {value:.6g}, by {how}", assumption)
    reason = (
        how if how.startswith("unknown: ") else f"no bound on {how} over the declared sets (are X and Y(x) bounded?)"
    )
    return Finding(name, "unknown", reason.removeprefix("unknown: "), assumption)

"""What rests on convexity that the user asserted with ``hf.Function(..., convex=True)`` is reported as asserted, never as proved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hierfl.inspect.assumptions.findings import Constant, Finding
from hierfl.inspect.assumptions.study import Study
from hierfl.language.function import asserted_convex

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

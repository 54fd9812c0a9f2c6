"""The theorem for the declared class, with its numbers where every hypothesis is proved."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from hierfl.inspect.assumptions.findings import Constant, Finding, Theorem
from hierfl.inspect.assumptions.hypotheses.declared_form import form_of_declaration
from hierfl.inspect.assumptions.hypotheses.theorem_numbers import prescribed, range_of_f, theorem_constants
from hierfl.inspect.assumptions.hypotheses.theorem_statements import GAPS, NEEDED, PROJECTED, STATEMENT
from hierfl.inspect.assumptions.study import Study


def theorem(
    study: Study, findings: Mapping[str, Finding], constants: Mapping[str, Constant], epsilon: float
) -> Theorem:
    """State the class's theorem, with numbers where every hypothesis is proved."""
    kind = "bl" if study.problem_class == "mm" else study.problem_class
    name, needed = NEEDED[kind]
    name = f"{name} (Corollary 1)" if study.problem_class == "mm" else name
    renamed = [_same_role(n, findings) for n in needed]
    hypotheses = [findings[n] for n in (*renamed, *(f.name for f in form_of_declaration(study)))]
    hypotheses.append(_bounded_below(study, kind, constants))
    statement = f"{STATEMENT.format(eta=study.smoothing, epsilon=epsilon)}; {PROJECTED}"
    without_numbers = Theorem(name, statement, tuple(hypotheses), GAPS[kind])
    if not without_numbers.applies:
        return without_numbers
    numbers = theorem_constants(study, constants)
    without_numbers = replace(without_numbers, fall=numbers.gap, start=_starts_of(study))
    if not np.isfinite(numbers.gap):
        return without_numbers
    predicted, printed = prescribed(kind, numbers, epsilon, study.local_steps)
    return replace(without_numbers, predicted=predicted, printed=printed)


def _starts_of(study: Study) -> str:
    """Which x_0 the bound on f(x_0) - inf f is for."""
    if study.starts is None:
        return "every x_0 in X"
    if len(study.starts) > 1:
        return f"{len(study.starts)} starts"
    return f"x_0 = {np.array2string(study.starts[0], threshold=6, precision=6)}"


def _bounded_below(study: Study, kind: str, constants: Mapping[str, Constant]) -> Finding:
    """Whether inf f (for [HFL] Theorem 1, corrected, also sup f) is finite, by intervals or Lipschitz continuity on a bounded X."""
    name = "f bounded" if kind == "hfl" else "f bounded below"
    lipschitz = (constants.get("L_f") or constants["L_{f,x}" if study.level is None else "L0_imp"]).value
    if np.isfinite(lipschitz) and study.x_box.is_bounded:
        return Finding(name, "proved", "Lipschitz on a bounded X")
    low, high = range_of_f(study)
    if np.isfinite(low) and (kind != "hfl" or np.isfinite(high)):
        return Finding(name, "proved", f"f lies in [{low:.6g}, {high:.6g}] on X")
    return Finding(name, "unknown", "no bound on f follows on X")


def _same_role(name: str, findings: Mapping[str, Finding]) -> str:
    """The name under which a hypothesis was examined: strong convexity and strong monotonicity play one role."""
    if name in findings:
        return name
    return {"strong convexity": "strong monotonicity", "strong monotonicity": "strong convexity"}.get(name, name)

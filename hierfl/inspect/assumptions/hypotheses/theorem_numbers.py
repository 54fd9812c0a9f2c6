"""The theorems' constants of a problem, and what they then prescribe."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from hierfl.analysis.enclosure import enclose
from hierfl.analysis.lipschitz import one_sample
from hierfl.analysis.theorems import (
    Constants,
    Prescription,
    prescribe_2s,
    prescribe_bl,
    prescribe_bl_corrected,
    prescribe_hfl,
    prescribe_nn,
)
from hierfl.atoms.intervals import Interval
from hierfl.inspect.assumptions.feasibility.set_diameter import diameter
from hierfl.inspect.assumptions.findings import Constant
from hierfl.inspect.assumptions.study import Study


def prescribed(
    kind: str, c: Constants, epsilon: float, given: float | None = None
) -> tuple[Prescription | None, Prescription]:
    """(what the theorem prescribes with its gaps closed, what it prescribes as printed), for ``given`` local steps if they are.

    With its gaps closed [2S] Theorem 1 covers one local step a round alone: None for more.
    """
    if kind == "nn":
        return prescribe_nn(c, epsilon, True, given), prescribe_nn(c, epsilon, False, given)
    if kind == "bl":
        corrected = prescribe_bl_corrected(c, epsilon) if given in (None, 1) else None
        return corrected, prescribe_bl(c, epsilon, given)
    if kind == "2s":
        return prescribe_2s(c, epsilon, True, given), prescribe_2s(c, epsilon, False, given)
    return prescribe_hfl(c, epsilon, corrected=True), prescribe_hfl(c, epsilon, corrected=False)


def theorem_constants(study: Study, constants: Mapping[str, Constant]) -> Constants:
    """Gather the theorems' constants; f's range on X comes from intervals, or from its Lipschitz constant and the size of X."""

    def get(name: str, otherwise: float = 0.0) -> float:
        return constants[name].value if name in constants else otherwise

    nn = study.level is None
    letter = "h" if study.level is None else study.level.letter
    implicit = get("L_{f,x}") if nn else get("L0_imp")
    whole = get("L_f", implicit)
    fall, highest, lowest = fall_of_f(study, whole)
    box = study.x_box
    low, high = range_of_f(study)
    swing = _least(high - low, _times(whole, float(np.linalg.norm(box.hi - box.lo))))
    margin = whole * study.smoothing
    return Constants(
        n=study.compiled.upper.size,
        m=study.compiled.num_clients,
        smoothing=study.smoothing,
        gap=fall + margin,
        lipschitz=implicit,
        lipschitz_y=get("L_{f,y}"),
        slope=0.0 if nn else get("L_y"),
        variance=get("nu^2"),
        b1=get("B_1"),
        b2=get("B_2"),
        mu=get(f"mu_{letter}"),
        smooth=get(f"L_{letter}", np.inf),
        start=np.inf if nn else diameter(study) ** 2,
        server_smooth=get("L_1^{f_1}"),
        server_variance=get("sigma^2"),
        lower_variance=get("sigma_i^2"),
        swing=swing,
        value=highest + margin,
        lowest=abs(lowest),
    )


def fall_of_f(study: Study, lipschitz: float) -> tuple[float, float, float]:
    """(a bound on f(x_0) - inf f, one on |f(x_0)|, a lower bound of f): for the study's starts, or for every x_0 in X."""
    low, high = range_of_f(study)
    box, somewhere = study.x_box, study.project_x(np.zeros(study.compiled.upper.size))
    starts = somewhere[None] if study.starts is None else study.starts
    values = np.array([float(study.compiled.exact.at(start).value) for start in starts])
    reach = np.array([np.linalg.norm(np.maximum(np.abs(box.hi - x), np.abs(x - box.lo))) for x in starts])
    change = np.array([_times(lipschitz, r) for r in reach])
    falls = np.minimum(values - low, change)
    lowest = float(np.max(values - falls))
    if study.starts is not None:
        return float(np.max(falls)), float(np.max(np.abs(values))), lowest
    highest = min(high, float(np.min(values + change)))
    width = float(np.linalg.norm(box.hi - box.lo))
    return _least(highest - lowest, _times(lipschitz, width)), max(abs(highest), abs(lowest)), lowest


def range_of_f(study: Study) -> tuple[float, float]:
    """Bound f over X, oriented for minimisation: (low, high)."""
    compiled, objective = study.compiled, study.compiled.declaration.objective
    parts: list[tuple[float, Interval]] = []
    if objective.clients is not None:
        term = compiled.sign * objective.clients
        for holder in study.holders.clients:
            weight = float(study.holders.data.clients.weights[holder.index])
            parts.append((weight, enclose(one_sample(term, holder.count), holder.known)))
    server = study.holders.server
    if objective.server is not None and server is not None:
        parts.append((1.0, enclose(one_sample(compiled.sign * objective.server, server.count), server.known)))
    low = sum(w * float(np.min(p.lo)) for w, p in parts)
    high = sum(w * float(np.max(p.hi)) for w, p in parts)
    return low - 1e-12 * abs(low), high + 1e-12 * abs(high)


def _least(*values: float) -> float:
    known = [value for value in values if np.isfinite(value)]
    return min(known) if known else np.inf


def _times(first: float, second: float) -> float:
    return first * second if np.isfinite(first) and np.isfinite(second) else np.inf

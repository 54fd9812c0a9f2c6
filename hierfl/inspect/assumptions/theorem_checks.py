"""The theorem for the declared class: its remaining hypotheses, and its numbers where all of them are proved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

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
from hierfl.inspect.assumptions.findings import Constant, Finding, Theorem
from hierfl.inspect.assumptions.hessians import Curvature
from hierfl.inspect.assumptions.lipschitz_checks import gradient_size, spread
from hierfl.inspect.assumptions.set_checks import diameter
from hierfl.inspect.assumptions.study import Study
from hierfl.language.sample import Sample

_STATEMENT = "a bound on E|grad f^eta(x_k*)|^2 at a random iterate k*, eta = {eta:g}, accuracy {epsilon:g}"
_PROJECTED = "queries='projected': f is queried on X, so that constants on X suffice"

_NEEDED: dict[str, tuple[str, tuple[str, ...]]] = {
    "nn": (
        "[NN] Proposition 1 ([2S] Proposition 1)",
        (
            "f Lipschitz in x",
            "unbiased samples",
            "bounded variance of f",
            "X nonempty, closed and convex",
            "set dissimilarity",
        ),
    ),
    "bl": (
        "[2S] Theorem 1",
        (
            *("f Lipschitz in x", "f Lipschitz in y", "implicit function Lipschitz", "strong convexity", "smoothness"),
            *("lower gradient Lipschitz in x", "y(x) Lipschitz", "X nonempty, closed and convex", "set dissimilarity"),
            *("Y(x) nonempty", "Y(x) closed and convex", "unbiased samples"),
        ),
    ),
    "2s": (
        "[2S] Theorem 2",
        (
            *(
                "f Lipschitz in y",
                "implicit function Lipschitz",
                "strong monotonicity",
                "smoothness",
                "unbiased samples",
            ),
            *("X nonempty, closed and convex", "set dissimilarity"),
            *("Y(x) nonempty", "Y(x) closed and convex", "Y(x) bounded"),
        ),
    ),
    "hfl": (
        "[HFL] Theorem 1",
        (
            *("f Lipschitz in x", "f Lipschitz in y", "implicit function Lipschitz", "strong convexity", "smoothness"),
            *("lower gradient Lipschitz in x", "unbiased samples", "bounded variance of the lower gradient"),
            *("server term smooth", "bounded variance of the server gradient", "client term without samples"),
            *("Y(x) nonempty", "Y(x) closed and convex", "Y(x) bounded"),
        ),
    ),
}
_GAPS = {
    "nn": (),
    "bl": (
        "[2S] Lemma 9 treats a direction shared by all clients and by H local steps as if independent: no linear speed-up in m is "
        "proved. Prescribed is one local step a round, without division by m.",
        "the proof's factor (L_{grad h,x} / mu_h)^2 in Theta_3 belongs to the drift only; the lower level's error is weighed without it.",
    ),
    "2s": ("the proof needs gamma <= 1 / (sqrt(24) H) (Lemma 13 (ii)), which the statement omits; it is imposed.",),
    "hfl": (
        "Theta_1 telescopes over a non-constant 1 / gamma_r: it is 16 L^f (sup_r E f^eta(x_r) - f*), with the range of f on X here.",
        "Theta_3 must be multiplied by the mean over clients of C_i / tau_i, C_i the numerator of Proposition 1; tau is chosen so that it is at most 1.",
    ),
}


@dataclass(frozen=True)
class Randomness:
    """Findings and constants about samples: nu^2, sigma^2, sigma_i^2, L_1^{f_1}."""

    findings: tuple[Finding, ...]
    constants: tuple[Constant, ...]


def randomness(study: Study) -> Randomness:
    """Unbiasedness, variances, and the smoothness of the server's term."""
    clients, problem = study.holders.clients, study.compiled.declaration
    first = "[NN] Assumption 1 (ii)" if study.problem_class == "nn" else ""
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
        findings.append(_bounded("bounded variance of f", nu, first))
    if study.problem_class != "hfl":
        return Randomness(tuple(findings), tuple(constants))
    lower = max(_lower_variance(study, h) for h in clients)
    smooth, server = _server(study)
    constants += [
        Constant("sigma_i^2", lower, "<=", "the mean square of one sample's gradient in y"),
        Constant("sigma^2", server, "<=", "the mean square of one sample's gradient of the server's term"),
        Constant("L_1^{f_1}", smooth, "<=", "curvature of the server's term"),
    ]
    free = (
        not any(isinstance(p, Sample) for p in problem.objective.clients.parameters())
        if problem.objective.clients is not None
        else True
    )
    findings += [
        _bounded("bounded variance of the lower gradient", lower, "[HFL] Assumption 1 (ii)"),
        _bounded("bounded variance of the server gradient", server, "[HFL] Assumption 1 (iii)"),
        _bounded("server term smooth", smooth, "[HFL] Assumption 1 (iii)"),
        Finding(
            "client term without samples",
            "proved" if free else "violated",
            "f_2 is evaluated, not sampled, in [HFL] (1)",
            "[HFL] (1)",
        ),
    ]
    return Randomness(tuple(findings), tuple(constants))


def setting(study: Study) -> tuple[Finding, ...]:
    """Whether the declaration has the form of the papers' class."""
    problem = study.compiled.declaration
    weights = study.holders.data.clients.weights
    equal = bool(np.allclose(weights, 1.0 / len(weights), rtol=1e-12))
    findings = [Finding("uniform weights", "proved" if equal else "violated", "the papers' weights are 1/m")]
    if study.level is not None and study.problem_class != "2s":
        argmin = study.level.kind != "equilibrium"
        reason = "the theorem is about minimisers" + (
            "" if argmin else "; for an equilibrium of this scope none is stated"
        )
        findings.append(Finding("lower level is an argmin", "proved" if argmin else "violated", reason))
    if study.problem_class == "hfl":
        free = not study.compiled.upper_set.blocks and study.compiled.private_set is None
        reason = (
            "as in [HFL] (1)" if free else "[HFL] (1) has no constraints on x: a projected server step is not covered"
        )
        findings.append(Finding("x unconstrained", "proved" if free else "violated", reason, "[HFL] (1)"))
    else:
        absent = problem.objective.server is None
        reason = (
            "the class has no server term" if absent else "the papers' class has no server term, this problem has one"
        )
        findings.append(Finding("no server term", "proved" if absent else "violated", reason))
    return tuple(findings)


def theorem(
    study: Study, findings: Mapping[str, Finding], constants: Mapping[str, Constant], epsilon: float
) -> Theorem:
    """The class's theorem, with numbers where every hypothesis is proved."""
    kind = "bl" if study.problem_class == "mm" else study.problem_class
    name, needed = _NEEDED[kind]
    name = f"{name} (Corollary 1)" if study.problem_class == "mm" else name
    renamed = [_same_role(n, findings) for n in needed]
    hypotheses = [findings[n] for n in (*renamed, *(f.name for f in setting(study)))]
    hypotheses.append(_bounded_below(study, kind, constants))
    statement = f"{_STATEMENT.format(eta=study.smoothing, epsilon=epsilon)}; {_PROJECTED}"
    found = Theorem(name, statement, tuple(hypotheses), _GAPS[kind])
    if not found.applies:
        return found
    predicted, printed = _prescribed(kind, _values(study, constants), epsilon)
    return Theorem(name, statement, tuple(hypotheses), _GAPS[kind], predicted, printed)


def _bounded_below(study: Study, kind: str, constants: Mapping[str, Constant]) -> Finding:
    """Whether inf f (for [HFL] Theorem 1, corrected, also sup f) is finite, by intervals or Lipschitz continuity on a bounded X."""
    name = "f bounded" if kind == "hfl" else "f bounded below"
    lipschitz = constants["L_{f,x}" if study.level is None else "L0_imp"].value
    if np.isfinite(lipschitz) and study.x_box.is_bounded:
        return Finding(name, "proved", "Lipschitz on a bounded X")
    low, high = _range(study)
    if np.isfinite(low) and (kind != "hfl" or np.isfinite(high)):
        return Finding(name, "proved", f"f lies in [{low:.6g}, {high:.6g}] on X")
    return Finding(name, "unknown", "no bound on f follows on X")


def _same_role(name: str, findings: Mapping[str, Finding]) -> str:
    """Strong convexity and strong monotonicity play one role."""
    if name in findings:
        return name
    return {"strong convexity": "strong monotonicity", "strong monotonicity": "strong convexity"}.get(name, name)


def _prescribed(kind: str, c: Constants, epsilon: float) -> tuple[Prescription, Prescription | None]:
    if kind == "nn":
        return prescribe_nn(c, epsilon), None
    if kind == "bl":
        return prescribe_bl_corrected(c, epsilon), prescribe_bl(c, epsilon)
    if kind == "2s":
        return prescribe_2s(c, epsilon, corrected=True), prescribe_2s(c, epsilon, corrected=False)
    return prescribe_hfl(c, epsilon, corrected=True), prescribe_hfl(c, epsilon, corrected=False)


def _values(study: Study, constants: Mapping[str, Constant]) -> Constants:
    """The theorems' constants; f's range on X from intervals, or from its Lipschitz constant and the size of X."""

    def get(name: str, otherwise: float = 0.0) -> float:
        return constants[name].value if name in constants else otherwise

    nn = study.level is None
    implicit = get("L_{f,x}") if nn else get("L0_imp")
    low, high = _range(study)
    x = study.project_x(np.zeros(study.compiled.upper.size))
    value = float(study.compiled.exact.at(x).value)
    box = study.x_box
    reach = float(np.linalg.norm(np.maximum(np.abs(box.hi - x), np.abs(x - box.lo))))
    width = float(np.linalg.norm(box.hi - box.lo))
    fall = _least(value - low, _times(implicit, reach))
    swing = _least(high - low, _times(implicit, width))
    margin = implicit * study.smoothing
    lowest = value - fall
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
        mu=get("mu_h"),
        smooth=get("L_h", np.inf),
        start=np.inf if nn else diameter(study) ** 2,
        server_smooth=get("L_1^{f_1}"),
        server_variance=get("sigma^2"),
        lower_variance=get("sigma_i^2"),
        swing=swing,
        value=abs(value) + margin,
        lowest=abs(lowest),
    )


def _range(study: Study) -> tuple[float, float]:
    """Bounds on f over X, oriented for minimisation."""
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


def _lower_variance(study: Study, holder: Any) -> float:
    """sigma_i^2: 0 without samples, else the mean square of one sample's gradient in y."""
    level = study.level
    assert level is not None
    if not any(isinstance(p, Sample) for p in level.expression.parameters()):
        return 0.0
    return gradient_size(study, level.expression, level.variables, holder) ** 2


def _server(study: Study) -> tuple[float, float]:
    """(L_1^{f_1}, sigma^2) of the server's term; zeros without one."""
    term, holder = study.compiled.declaration.objective.server, study.holders.server
    if term is None or holder is None:
        return 0.0, 0.0
    upper = study.compiled.upper.variables
    found = Curvature(study.compiled, term, upper, holder.known).spectrum(holder)
    ends: Sequence[Any] = (found.low, found.high)
    smooth = np.inf if any(end is None for end in ends) else max(abs(end.value) for end in ends)
    random = any(isinstance(p, Sample) for p in term.parameters())
    return float(smooth), gradient_size(study, term, upper, holder) ** 2 if random else 0.0


def _bounded(name: str, value: float, assumption: str) -> Finding:
    if np.isfinite(value):
        return Finding(name, "proved", f"at most {value:.6g}", assumption)
    return Finding(name, "unknown", "no bound on the declared sets (are X and Y(x) bounded?)", assumption)


def _least(*values: float) -> float:
    known = [value for value in values if np.isfinite(value)]
    return min(known) if known else np.inf


def _times(first: float, second: float) -> float:
    return first * second if np.isfinite(first) and np.isfinite(second) else np.inf

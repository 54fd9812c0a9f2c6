"""``problem.check()``: which of the papers' assumptions hold, how that is known, and what the theorem then says.

The theorem for the declared class: what it bounds, which hypotheses it needs, its known gaps, and whether the declaration has its form. Among
its hypotheses are samples that are unbiased and of bounded variance, and a smooth server's term. Where every hypothesis is proved, the
theorem's constants of the problem, and what they then prescribe. What rests on convexity that the user asserted with
``hf.Function(..., convex=True)`` is reported as asserted, never as proved.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import TypeVar

import numpy as np

from hierfl.analysis import theorems
from hierfl.analysis.enclosure import enclose
from hierfl.analysis.lipschitz import one_sample
from hierfl.analysis.variable_bounds import require_continuous
from hierfl.atoms.intervals import Interval
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.starting_points import require_start_in_x
from hierfl.errors import SettingError
from hierfl.inspect.argument_checks import require_positive, require_whole
from hierfl.inspect.assumptions.examination import Examination
from hierfl.inspect.assumptions.findings import CheckReport, Constant, Examined, Finding, Theorem
from hierfl.inspect.assumptions.lipschitz_checks import gradient_size, is_random, lipschitz, spread, times
from hierfl.inspect.assumptions.lower_curvature import moduli, spectrum_in_x
from hierfl.inspect.assumptions.lower_set_checks import diameter, has_a_solution, lower_sets, upper_sets
from hierfl.jaxtools.precision import double_precision
from hierfl.language.function import asserted_convex
from hierfl.progress import RunProgress


def _randomness(study: Examination) -> Examined:
    first = study.assumption("(ii)") if study.problem_class == "nn" else ""
    unbiased = Finding("unbiased samples", "proved", "minibatches are drawn uniformly with replacement, or from the law itself", first)
    if study.problem_class == "nn":
        nu = max(spread(study.compiled.declaration.objective.clients, h) for h in study.holders.clients)
        constant = Constant("nu^2", nu, "<=", "a quarter of the range of f squared (Popoviciu)")
        return Examined((unbiased, _bounded(study, "bounded variance of f", nu, first)), (constant,))
    findings, constants = _of_hierarchical(study) if study.problem_class == "hfl" else ((), ())
    return Examined((unbiased, *findings), constants)


def _of_hierarchical(study: Examination) -> Examined:
    """What [HFL] asks for beside unbiased samples: variances, a smooth server's term, and a clients' term without samples."""
    level, objective, holder = study.below, study.compiled.declaration.objective, study.holders.server
    lower = smooth = server = 0.0
    if is_random(level.expression):
        lower = max(gradient_size(study, level.expression, level.variables, h) for h in study.holders.clients) ** 2
    if objective.server is not None and holder is not None:
        ends = spectrum_in_x(study, objective.server, holder)
        smooth = float(max(np.inf if end is None else abs(end.value) for end in ends))
        if is_random(objective.server):
            server = gradient_size(study, objective.server, study.compiled.upper.variables, holder) ** 2
    constants = (
        Constant("sigma_i^2", lower, "<=", "the mean square of one sample's gradient in y"),
        Constant("sigma^2", server, "<=", "the mean square of one sample's gradient of the server's term"),
        Constant("L_1^{f_1}", smooth, "<=", "curvature of the server's term"),
    )
    free = not is_random(objective.clients)
    findings = (
        _bounded(study, "bounded variance of the lower gradient", lower, "[HFL] Assumption 1 (ii)"),
        _bounded(study, "bounded variance of the server gradient", server, "[HFL] Assumption 1 (iii)"),
        _bounded(study, "server term smooth", smooth, "[HFL] Assumption 1 (iii)"),
        Finding("client term without samples", "proved" if free else "not covered", "f_2 is evaluated, not sampled, in [HFL] (1)", "[HFL] (1)"),
    )
    return Examined(findings, constants)


def _bounded(study: Examination, name: str, value: float, assumption: str) -> Finding:
    if np.isfinite(value):
        return Finding(name, "proved", f"at most {value:.6g}", assumption)
    return Finding(name, "unknown", "no bound on the declared sets", assumption, advice=study.unbounded)


def _prescribed(kind: str, c: theorems.Constants, epsilon: float, given: float | None) -> tuple[theorems.Prescription | None, theorems.Prescription]:
    """(what the theorem prescribes with its gaps closed, what it prescribes as printed), for ``given`` local steps if they are.

    With its gaps closed [2S] Theorem 1 covers one local step a round alone: None for more.
    """
    if kind == "bl":
        return theorems.prescribe_bl_corrected(c, epsilon) if given in (None, 1) else None, theorems.prescribe_bl(c, epsilon, given)
    if kind == "hfl":
        return theorems.prescribe_hfl(c, epsilon, corrected=True), theorems.prescribe_hfl(c, epsilon, corrected=False)
    prescribe = theorems.prescribe_nn if kind == "nn" else theorems.prescribe_2s
    return prescribe(c, epsilon, True, given), prescribe(c, epsilon, False, given)


def _theorem_constants(study: Examination, constants: Mapping[str, Constant]) -> theorems.Constants:
    """Gather the theorems' constants; f's range on X comes from intervals, or from its Lipschitz constant and the size of X."""

    def get(name: str, otherwise: float = 0.0) -> float:
        return constants[name].value if name in constants else otherwise

    nn = study.level is None
    letter = "h" if study.level is None else study.level.letter
    implicit = get("L_{f,x}") if nn else get("L0_imp")
    whole = get("L_f", implicit)
    fall, highest, lowest = _fall_of_f(study, whole)
    low, high = _range_of_f(study)
    swing = min(high - low, times(whole, _width(study)))
    margin = whole * study.smoothing
    names = {"lipschitz_y": "L_{f,y}", "variance": "nu^2", "b1": "B_1", "b2": "B_2", "mu": f"mu_{letter}"}
    names |= {"server_smooth": "L_1^{f_1}", "server_variance": "sigma^2", "lower_variance": "sigma_i^2"}
    return theorems.Constants(
        n=study.compiled.upper.size,
        m=study.compiled.num_clients,
        smoothing=study.smoothing,
        gap=fall + margin,
        lipschitz=implicit,
        slope=0.0 if nn else get("L_y"),
        smooth=get(f"L_{letter}", np.inf),
        start=np.inf if nn else diameter(study) ** 2,
        swing=swing,
        value=highest + margin,
        lowest=abs(lowest),
        **{of: get(name) for of, name in names.items()},
    )


def _fall_of_f(study: Examination, lipschitz: float) -> tuple[float, float, float]:
    """(a bound on f(x_0) - inf f, one on |f(x_0)|, a lower bound of f): for the study's starts, or for every x_0 in X."""
    low, high = _range_of_f(study)
    box, somewhere = study.x_box, study.project_x(np.zeros(study.compiled.upper.size))
    starts = somewhere[None] if study.starts is None else study.starts
    values = np.array([float(study.compiled.exact.at(start).value) for start in starts])
    reach = np.array([np.linalg.norm(np.maximum(np.abs(box.hi - x), np.abs(x - box.lo))) for x in starts])
    change = np.array([times(lipschitz, r) for r in reach])
    falls = np.minimum(values - low, change)
    lowest = float(np.max(values - falls))
    if study.starts is not None:
        return float(np.max(falls)), float(np.max(np.abs(values))), lowest
    highest = min(high, float(np.min(values + change)))
    return min(highest - lowest, times(lipschitz, _width(study))), max(abs(highest), abs(lowest)), lowest


def _width(study: Examination) -> float:
    """The diameter of the box around X."""
    return float(np.linalg.norm(study.x_box.hi - study.x_box.lo))


def _range_of_f(study: Examination) -> tuple[float, float]:
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
    low = sum(times(w, float(np.min(p.lo))) for w, p in parts)
    high = sum(times(w, float(np.max(p.hi))) for w, p in parts)
    return low - 1e-12 * abs(low), high + 1e-12 * abs(high)


STATEMENT = "a bound on E|grad f^eta(x_k*)|^2 at a random iterate k*, eta = {eta:g}, accuracy {epsilon:g}"
PROJECTED = "queries='projected': f is queried on X, so that constants on X suffice"
_SETS = ("Y(x) nonempty", "Y(x) closed and convex")
_SLOPES = ("f Lipschitz in y", "implicit function Lipschitz")
_X = ("X nonempty, closed and convex", "set dissimilarity")
_BELOW = ("f Lipschitz in x", *_SLOPES, "strong convexity", "smoothness", "lower gradient Lipschitz in x")
_VARIANCES = ("bounded variance of the lower gradient", "server term smooth", "bounded variance of the server gradient", "client term without samples")
NEEDED: dict[str, tuple[str, tuple[str, ...]]] = {
    "nn": ("[NN] Proposition 1 ([2S] Proposition 1)", ("f Lipschitz in x", "unbiased samples", "bounded variance of f", *_X)),
    "bl": ("[2S] Theorem 1", (*_BELOW, "y(x) Lipschitz", *_X, *_SETS, "unbiased samples")),
    "2s": ("[2S] Theorem 2", (*_SLOPES, "strong monotonicity", "smoothness", "unbiased samples", *_X, *_SETS, "Y(x) bounded")),
    "hfl": ("[HFL] Theorem 1", (*_BELOW, "unbiased samples", *_VARIANCES, *_SETS, "Y(x) bounded")),
}
_SAME_ROLE = {"strong convexity": "strong monotonicity", "strong monotonicity": "strong convexity"}
GAPS = {
    "nn": ("the proof shows f^eta to be (L_0 n + 1) / eta-smooth and then writes L_0 n / (2 eta); predicted is with the former.",),
    "bl": (
        "[2S] Lemma 9 treats a direction shared by all clients and by H local steps as if independent: no linear speed-up in m is "
        "proved. Prescribed is one local step a round, without division by m.",
        "Theta_5 prints (96 B_2^2 + 1) L^2 n^2 where Lemma 11 (ii) gives 24 (4 B_2^2 + 1) L^2 n^2: 24 times as much at B_2 = 0. With one local "
        "step a round, as is prescribed, Theta_5 does not enter.",
        "Algorithm 3 makes 2 a_r ln a_r local steps, linearly many in r, where (ii) asks for m^-1 (r + 1)^(2/3) only; its rate is proved for "
        "clients with data of one distribution. No error of the lower level is computed in a run: with lower=Exact() there is none.",
        "for clients whose data differ [2S] names LFD, quoting the order of its local steps and no step sizes: a run by theory does not take it.",
        "the proof's factor (L_{grad h,x} / mu_h)^2 in Theta_3 belongs to the drift only; the lower level's error is weighed without it.",
    ),
    "2s": ("the proof needs gamma <= 1 / (sqrt(24) H) (Lemma 13 (ii)), which the statement omits; it is imposed.",),
    "hfl": (
        "Theta_1 telescopes over a non-constant 1 / gamma_r: it is 16 L^f (sup_r E f^eta(x_r) - f*), with the range of f on X here.",
        "Theta_3 must be multiplied by the mean over clients of C_i / tau_i, C_i the numerator of Proposition 1; tau is chosen so that it is at most 1.",
        "Theorem 2 (almost sure convergence) asks for sum gamma_r^2 < inf, p in (1/2, 1] of c / (r + 1)^p, which the steps of Theorem 1 and of "
        "the paper's experiments, p = 1/2, do not meet: check(solver=ZOHFL(...)) tells which of its conditions hold for a schedule.",
    ),
}


def _form_of_declaration(study: Examination) -> tuple[Finding, ...]:
    problem, weights, level = study.compiled.declaration, study.holders.data.clients.weights, study.level
    findings: list[Finding] = []

    def told(name: str, covered: bool, reason: str, otherwise: str, assumption: str = "") -> None:
        findings.append(Finding(name, "proved" if covered else "not covered", reason if covered else otherwise, assumption))

    ours = "the papers' weights are 1/m"
    told("uniform weights", bool(np.allclose(weights, 1.0 / len(weights), rtol=1e-12, atol=0.0)), ours, ours)
    if problem.coupled:
        texts = ", ".join(one.text for one in problem.coupled)
        other = f"no theorem has conditions on y(x), as {texts}: runs descend on f + penalty * violation, which is another f"
        told("constraints on x alone", False, "", other)
    if level is not None and study.problem_class != "2s":
        about = "the theorem is about minimisers"
        told("lower level is an argmin", level.kind != "equilibrium", about, f"{about}; for an equilibrium of this scope none is stated")
    if study.problem_class == "hfl":
        free, projected = not study.compiled.upper_set.blocks and study.compiled.private_set is None, "a projected server step is not covered"
        told("x unconstrained", free, "as in [HFL] (1)", f"[HFL] (1) has no constraints on x: {projected}", "[HFL] (1)")
    else:
        absent = problem.objective.server is None
        told("no server term", absent, "the class has no server term", "the papers' class has no server term, this problem has one")
    if level is not None and level.prices:
        named = ", ".join(price.name() for price in level.prices)
        told("no prices", False, "", f"{named}: the papers' f has no multipliers of the lower level in it")
    return tuple(findings)


def _theorem(study: Examination, findings: Mapping[str, Finding], constants: Mapping[str, Constant], epsilon: float) -> Theorem:
    """State the class's theorem, with numbers where every hypothesis is proved."""
    kind = "bl" if study.problem_class == "mm" else study.problem_class
    name, needed = NEEDED[kind]
    name = f"{name} (Corollary 1)" if study.problem_class == "mm" else name
    examined = [n if n in findings else _SAME_ROLE[n] for n in needed]
    hypotheses = [findings[n] for n in (*examined, *(f.name for f in _form_of_declaration(study)))]
    hypotheses.append(_bounded_below(study, kind, findings, constants))
    statement = f"{STATEMENT.format(eta=study.smoothing, epsilon=epsilon)}; {PROJECTED}"
    solver = "ZOHFL" if kind == "hfl" else "FedRZO"
    without_numbers = Theorem(name, statement, tuple(hypotheses), GAPS[kind], solver=solver)
    if not without_numbers.applies:
        return without_numbers
    numbers = _theorem_constants(study, constants)
    where = "every x_0 in X"
    if study.starts is not None:
        x0 = f"x_0 = {np.array2string(study.starts[0], threshold=6, precision=6)}"
        where = x0 if len(study.starts) == 1 else f"{len(study.starts)} starts"
    without_numbers = replace(without_numbers, fall=numbers.gap, start=where)
    if not np.isfinite(numbers.gap):
        return without_numbers
    predicted, printed = _prescribed(kind, numbers, epsilon, study.local_steps)
    return replace(without_numbers, predicted=predicted, printed=printed)


def _bounded_below(study: Examination, kind: str, findings: Mapping[str, Finding], constants: Mapping[str, Constant]) -> Finding:
    """Whether inf f (for [HFL] Theorem 1, corrected, also sup f) is finite, by intervals or Lipschitz continuity on a bounded X."""
    name, (low, high) = "f bounded" if kind == "hfl" else "f bounded below", _range_of_f(study)
    if np.isfinite(low) and (kind != "hfl" or np.isfinite(high)):
        return Finding(name, "proved", f"f lies in [{low:.6g}, {high:.6g}] on X")
    lipschitz = (constants.get("L_f") or constants["L_{f,x}" if study.level is None else "L0_imp"]).value
    if np.isfinite(lipschitz) and study.x_box.is_bounded:
        slope = findings["f Lipschitz in x" if study.level is None else "implicit function Lipschitz"]
        return Finding(name, slope.status, f"Lipschitz on a bounded X, which is {slope.status}: {slope.reason}")
    return Finding(name, "unknown", "no bound on f follows on X")


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
    require_positive("epsilon", epsilon)
    require_positive("smoothing", smoothing)
    require_whole("samples", samples, 1)
    require_whole("seed", seed, 0)
    require_continuous(compiled.upper.variables, "what check() asks about")
    if compiled.several:
        why = "check() looks for constants and theorems of one lower level, and here are several in sequence, which no theorem of the papers covers"
        raise SettingError(f"{why}: check each by itself, with the answers before it as cp.Parameter.")
    for start in () if starts is None else starts:
        require_start_in_x(compiled, start, "check(x0=...)")
    study = Examination(compiled, smoothing, samples, seed, starts, local_steps)
    findings: list[Finding] = []
    constants: list[Constant] = []
    with RunProgress(6 if study.level is not None else 4, "check", progress, "stages") as bar:
        done = count()

        def stage(what: str, work: Callable[[], Part]) -> Part:
            bar.update(next(done), what)
            return work()

        upper = stage("X", lambda: upper_sets(study))
        findings += [*upper.findings, *_form_of_declaration(study)]
        curvature = None
        if study.level is not None:
            sets = stage("Y(x)", lambda: lower_sets(study))
            findings += sets
            curvature = stage("curvature", lambda: moduli(study))
            findings += [*curvature.findings, has_a_solution(study, curvature, sets[0])]
            constants += curvature.constants
        slopes = stage("Lipschitz constants", lambda: lipschitz(study, curvature))
        draws = stage("samples", lambda: _randomness(study))
        findings += [*slopes.findings, *draws.findings]
        constants += [*slopes.constants, *upper.constants, *draws.constants]
        findings, constants = _marked(study, findings, constants)
        by_name = {c.name: c for c in constants}
        result = stage("theorem", lambda: _theorem(study, {f.name: f for f in findings}, by_name, epsilon))
        bar.update(next(done), "theorem")
    title = f"{_TITLES[study.problem_class]}; {_counted(study.compiled.upper.size, 'decision')}, {_counted(study.compiled.num_clients, 'client')}"
    remarks = tuple(filter(None, [compiled.declaration.strays_text]))
    return CheckReport(title, tuple(findings), by_name, (result,), remarks)


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


_OF_Y = (
    *("strong convexity", "strong monotonicity", "lower level has a solution"),
    *("y(x) Lipschitz", "implicit function Lipschitz", "y(x) unique", "y(x) differentiable"),
)
_CONSTANTS = ("mu_h", "mu_h of the mean", "mu_F", "mu_F of the mean", "kappa_F", "L_y", "L0_imp", "L_f")


def _marked(study: Examination, findings: Sequence[Finding], constants: Sequence[Constant]) -> tuple[list[Finding], list[Constant]]:
    """The same, those that rest on assertions with that status and the functions' names."""
    declared, level = study.compiled.declaration, study.level
    resting = {"X nonempty, closed and convex": asserted_convex(declared.constraints, study.compiled.upper.variables)}
    of_level: tuple[str, ...] = ()
    if level is not None:
        of_level = asserted_convex([*level.expressions, *level.constraints], level.variables)
        resting |= {"Y(x) closed and convex": asserted_convex(level.constraints, level.variables), **dict.fromkeys(_OF_Y, of_level)}

    def said(names: tuple[str, ...]) -> str:
        return f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} convex as asserted"

    told = []
    for f in findings:
        names = resting.get(f.name) if f.status == "proved" else None
        told.append(replace(f, status="asserted", reason=f"{f.reason}; {said(names)}") if names else f)
    return told, [replace(c, reason=f"{c.reason}; {said(of_level)}") if of_level and c.name in _CONSTANTS else c for c in constants]

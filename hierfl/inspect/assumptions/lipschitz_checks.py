"""Lipschitz constants of f, of the lower level's gradient, of y(x) and of the implicit function, on the declared sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.elementwise.power import Power, PowerApprox
from cvxpy.constraints import Equality

from hierfl.analysis.enclosure import enclose
from hierfl.analysis.hoist import hoist
from hierfl.analysis.lipschitz import gradient_bound, mixed_bound, one_sample
from hierfl.analysis.variable_attributes import attribute_constraints
from hierfl.atoms.families.powers import exponent_of
from hierfl.inspect.assumptions.findings import Constant, Finding
from hierfl.inspect.assumptions.hessians import Curvature
from hierfl.inspect.assumptions.holders import Holder
from hierfl.inspect.assumptions.lower_checks import Moduli
from hierfl.inspect.assumptions.study import Study
from hierfl.language.addends import addends
from hierfl.language.calculus.derivative import depends
from hierfl.language.function import UserAtom
from hierfl.language.sample import Sample

_FIRST = {
    "nn": "[NN] Assumption 1 (i)",
    "bl": "[2S] Assumption 2 (i)",
    "mm": "[2S] Assumption 2 (i)",
    "2s": "[2S] Assumption 3 (i)",
    "hfl": "[HFL] Assumption 1 (i)",
}
_SECOND = {"bl": "[2S] Assumption 2 (ii)", "mm": "[2S] Assumption 2 (ii)", "2s": "", "hfl": "[HFL] Assumption 1 (ii)"}
_SMOOTH = (cp.log_sum_exp, cp.logistic, cp.exp, cp.QuadForm, cp.quad_over_lin)


@dataclass(frozen=True)
class Lipschitz:
    """Findings and constants; infinite where unknown."""

    findings: tuple[Finding, ...]
    constants: tuple[Constant, ...]
    f_x: float
    f_y: float
    slope: float
    implicit: float


def lipschitz(study: Study, moduli: Moduli | None) -> Lipschitz:
    """The constants of Assumption (i), of y(x) and of the implicit function."""
    term, level = study.compiled.declaration.objective.clients, study.level
    assumption = _FIRST[study.problem_class]
    upper, lower = study.compiled.upper.variables, study.compiled.lower.variables
    f_x, who_x, each_x = _worst(study, term, upper)
    constants = [_found("L_{f,x}", f_x, who_x, each_x)]
    in_x = _bound_finding("f Lipschitz in x", f_x, "the gradient of the clients' term in x", assumption)
    if level is None or moduli is None:
        return Lipschitz((in_x,), tuple(constants), f_x, 0.0, 0.0, f_x)
    f_y, who_y, each_y = _worst(study, term, lower)
    mixed = _mixed(study)
    constants += [
        _found("L_{f,y}", f_y, who_y, each_y),
        Constant("L_{grad h,x}", mixed, "<=", "second derivatives in (x, y)"),
    ]
    slope, how = _response(study, moduli, mixed)
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
        _unique(study, moduli),
        _differentiable(study, moduli),
    )
    return Lipschitz(findings, tuple(constants), f_x, f_y, slope, implicit)


def _worst(study: Study, term: Any, variables: Sequence[cp.Variable]) -> tuple[float, str, tuple[float, ...]]:
    """max over clients of the root mean square over samples of a bound on the gradient's norm."""
    if term is None:
        return 0.0, "", ()
    values = tuple(gradient_size(study, term, variables, holder) for holder in study.holders.clients)
    return max(values), study.holders.clients[int(np.argmax(values))].label, values


def gradient_size(study: Study, term: Any, variables: Sequence[cp.Variable], holder: Holder) -> float:
    """Root mean square over a party's samples of a bound on the norm of one sample's gradient."""
    if not depends(term, {v.id for v in variables}):
        return 0.0
    samples = tuple(p.id for p in term.parameters() if isinstance(p, Sample))
    alone = one_sample(term, holder.count)
    rough = gradient_bound(alone, variables, holder.known)
    if not np.isfinite(rough) or not samples:
        return rough
    squares = [
        (share, gradient_bound(alone, variables, known) ** 2) for share, known in study.holders.groups(holder, samples)
    ]
    return float(np.sqrt(sum(share * square for share, square in squares))) * (1 + 1e-12)


def spread(study: Study, term: Any, holder: Holder) -> float:
    """A bound on the variance over samples of one sample's value of the term: a quarter of its range squared (Popoviciu)."""
    if term is None or not any(isinstance(p, Sample) for p in term.parameters()):
        return 0.0
    found = enclose(one_sample(term, holder.count), holder.known)
    return float(np.max(0.25 * (found.hi - found.lo) ** 2)) * (1 + 1e-12)


def _mixed(study: Study) -> float:
    """L_{grad h,x}: by the Jacobian's entries, or for large jointly convex quadratics by |H_xy|^2 <= |H_xx| |H_yy|."""
    level, compiled = study.level, study.compiled
    assert level is not None
    upper, lower = compiled.upper.variables, level.variables
    worst = 0.0
    for holder in study.holders.clients:
        if level.kind == "equilibrium":
            found = mixed_bound(level.expressions, upper, holder.known)
        else:
            found = mixed_bound([one_sample(level.expression, holder.count)], upper, holder.known, lower)
        worst = max(worst, found)
        if not np.isfinite(worst):
            break
    if np.isfinite(worst) or level.kind == "equilibrium":
        return worst
    x_ids, y_ids = ({v.id for v in group} for group in (upper, lower))
    terms = [t for t in addends(level.expression) if depends(t, x_ids) and depends(t, y_ids)]
    joint = level.sign * sum(terms[1:], start=terms[0])
    (hoisted,) = hoist([joint], [*upper, *lower], compiled.declaration.known_bounds).expressions
    if not hoisted.is_convex():
        return np.inf
    halves = [Curvature(compiled, joint, group, study.holders.clients[0].known) for group in (upper, lower)]
    if not all(half.bounds.exact for half in halves):
        return np.inf
    worst = 0.0
    for holder in study.holders.clients:
        ends = [half.spectrum(holder).high for half in halves]
        worst = max(worst, *(np.inf if end is None else 0.0 for end in ends), _root(ends))
    return worst


def _root(ends: Sequence[Any]) -> float:
    return float(np.sqrt(np.prod([max(end.value, 0.0) for end in ends if end is not None]))) * (1 + 1e-12)


def _response(study: Study, moduli: Moduli, mixed: float) -> tuple[float, str]:
    """The Lipschitz constant of y(x) ([2S] Lemma 2; for translated sets with the translation)."""
    mu = moduli.own_mu
    if not mu > 0:
        return np.inf, "unknown: no modulus of strong convexity (monotonicity)"
    if study.movement.kind == "moving":
        return (
            np.inf,
            "unknown: Y(x) changes with x by more than a translation, and y(x) may not be Lipschitz (as for y^2 <= x)",
        )
    if study.movement.kind == "fixed":
        return mixed / mu * (1 + 1e-12), "L_{grad h,x} / mu_h ([2S] Lemma 2): Y does not move"
    shift = study.movement.shift
    value = shift + (mixed + moduli.smooth * shift) / mu
    return value * (1 + 1e-12), "|A| + (L_{grad h,x} + L_h |A|) / mu_h for the translated set Y(x) = A x + C"


def _unique(study: Study, moduli: Moduli) -> Finding:
    name = "y(x) unique"
    if not moduli.own_mu > 0:
        return Finding(name, "unknown", "no modulus of strong convexity (monotonicity)")
    reason = f"strongly convex (monotone) with mu = {moduli.own_mu:.6g}, where Y(x) is not empty"
    return Finding(name, "proved" if moduli.proved else "sampled", reason)


def _differentiable(study: Study, moduli: Moduli) -> Finding:
    """By the implicit function theorem: F continuously differentiable, and y free or on an affine set that at most shifts."""
    level, name = study.level, "y(x) differentiable"
    assert level is not None
    if not (moduli.own_mu > 0 and moduli.proved):
        return Finding(name, "unknown", "y(x) is not known to be unique")
    rough = next((node for node in (_not_smooth(e) for e in level.expressions) if node is not None), None)
    if rough is not None:
        reason = f"{type(rough).__name__} is not known to be twice continuously differentiable"
        return Finding(name, "unknown", reason)
    constraints = [*level.constraints, *attribute_constraints(level.variables)]
    if not constraints:
        reason = "unconstrained, smooth and strongly convex (monotone): implicit function theorem"
        return Finding(name, "proved", reason)
    if all(isinstance(c, Equality) for c in constraints) and study.movement.kind != "moving":
        reason = f"smooth and strongly convex (monotone) on a {study.movement.kind} affine set"
        return Finding(name, "proved", reason)
    reason = "constraints become active and inactive as x moves: kinks are possible"
    reason += ", y(x) is Lipschitz all the same" if study.movement.kind != "moving" else ""
    return Finding(name, "unknown", reason)


def _not_smooth(node: Any) -> Any:
    if not node.args or not node.variables():
        return None
    if isinstance(node, UserAtom):
        return node
    power = isinstance(node, (Power, PowerApprox)) and (exponent_of(node) or 0) >= 2
    if not (power or isinstance(node, (AffAtom, *_SMOOTH))):
        return node
    return next((found for a in node.args for found in [_not_smooth(a)] if found is not None), None)


def _found(name: str, value: float, who: str, each: tuple[float, ...]) -> Constant:
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

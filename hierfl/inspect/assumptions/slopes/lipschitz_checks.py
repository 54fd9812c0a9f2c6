"""Lipschitz constants of f, of the lower level's gradient, of y(x) and of the implicit function, on the declared sets.

They rest on bounds of gradients, of their spread over a party's samples, and of how the lower level's gradient moves with x.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cvxpy as cp
import numpy as np

from hierfl.analysis.curvature_bounds import is_quadratic
from hierfl.analysis.enclosure import enclose
from hierfl.analysis.hoist import hoist
from hierfl.analysis.lipschitz import gradient_bound, mixed_bound, one_sample
from hierfl.analysis.spectrum import Edge
from hierfl.analysis.variable_attributes import attribute_constraints
from hierfl.atoms.algebra import addends
from hierfl.inspect.assumptions.curvature.hessians import Curvature
from hierfl.inspect.assumptions.curvature.lower_curvature import Moduli
from hierfl.inspect.assumptions.findings import Constant, Finding
from hierfl.inspect.assumptions.holders import Holder
from hierfl.inspect.assumptions.slopes.response_checks import differentiability, response_constant, uniqueness
from hierfl.inspect.assumptions.study import Study
from hierfl.language.calculus.derivative import depends
from hierfl.language.printing.text import expression_text
from hierfl.language.sample import Sample


def worst_gradient(
    study: Study, term: cp.Expression | None, variables: Sequence[cp.Variable]
) -> tuple[float, str, tuple[float, ...]]:
    """The largest over clients of :func:`gradient_size`, whose it is, and those of all clients."""
    if term is None:
        return 0.0, "", ()
    values = tuple(gradient_size(study, term, variables, holder) for holder in study.holders.clients)
    return max(values), study.holders.clients[int(np.argmax(values))].label, values


def gradient_size(study: Study, term: cp.Expression, variables: Sequence[cp.Variable], holder: Holder) -> float:
    """The root mean square over a party's samples of a bound on the norm of one sample's gradient."""
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


def steep_addend(study: Study, term: cp.Expression, variables: Sequence[cp.Variable]) -> cp.Expression | None:
    """An addend whose slope is not bounded on the whole space, where convexity keeps the others from making up for it; else None."""
    wanted = {v.id for v in variables}
    moving = [part for part in addends(term) if depends(part, wanted)]
    known = study.compiled.declaration.known_bounds
    alone = [(part, hoist([part], variables, known).expressions[0]) for part in moving]
    if not (all(e.is_convex() for _, e in alone) or all(e.is_concave() for _, e in alone)):
        return None
    return next((part for part, e in alone if is_quadratic(e) and not e.is_affine()), None)


def spread(study: Study, term: cp.Expression | None, holder: Holder) -> float:
    """A bound on the variance over samples of one sample's value of the term: a quarter of its range squared (Popoviciu)."""
    if term is None or not any(isinstance(p, Sample) for p in term.parameters()):
        return 0.0
    values = enclose(one_sample(term, holder.count), holder.known)
    return float(np.max(0.25 * (values.hi - values.lo) ** 2)) * (1 + 1e-12)


def mixed_constant(study: Study) -> float:
    """Bound L_{grad h,x}: by the Jacobian's entries, or for large jointly convex quadratics by |H_xy|^2 <= |H_xx| |H_yy|."""
    level, compiled = study.below, study.compiled
    upper, lower = compiled.upper.variables, level.variables
    worst = 0.0
    for holder in study.holders.clients:
        if level.kind == "equilibrium":
            bound = mixed_bound(level.expressions, upper, holder.known)
        else:
            bound = mixed_bound([one_sample(level.expression, holder.count)], upper, holder.known, lower)
        worst = max(worst, bound)
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


def _root(ends: Sequence[Edge | None]) -> float:
    """The geometric mean of two ends, moved outward by the rounding."""
    return float(np.sqrt(np.prod([max(end.value, 0.0) for end in ends if end is not None]))) * (1 + 1e-12)


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
    assumption = study.assumption("(i)")
    upper, lower = study.compiled.upper.variables, study.compiled.lower.variables
    f_x, who_x, each_x = worst_gradient(study, term, upper)
    constants = [_gradient_constant("L_{f,x}", f_x, who_x, each_x)]
    in_x = _slope_finding(study, "x", upper, f_x, assumption)
    if level is None or moduli is None:
        whole = f_x + _server_gradient(study, upper)
        return Lipschitz((in_x,), (*constants, *_of_the_whole(study, whole)), f_x, 0.0, 0.0, f_x)
    f_y, who_y, each_y = worst_gradient(study, term, lower)
    mixed = mixed_constant(study)
    constants += [
        _gradient_constant("L_{f,y}", f_y, who_y, each_y),
        Constant("L_{F,x}" if level.letter == "F" else "L_{grad h,x}", mixed, "<=", "second derivatives in (x, y)"),
    ]
    slope, how = response_constant(study, moduli, mixed)
    if level.letter == "F":
        how = how.replace("L_{grad h,x}", "L_{F,x}").replace("L_h", "L_F").replace("mu_h", "mu_F")
    implicit = f_x + _times(f_y, slope)
    whole = _server_gradient(study, upper) + f_x + _times(_server_gradient(study, lower) + f_y, slope)
    constants += [
        Constant("L_y", slope, "<=", how.removeprefix("unknown: ")),
        Constant(
            "L0_imp",
            implicit,
            "<=",
            "L_{f,y} L_y + L_{f,x}" if np.isfinite(implicit) else "one of its factors is unknown",
        ),
        *_of_the_whole(study, whole),
    ]
    findings = (
        in_x,
        _slope_finding(study, "y", lower, f_y, assumption),
        _bound_finding(
            study, "lower gradient Lipschitz in x", mixed, "second derivatives in (x, y)", study.assumption("(ii)", "2s")
        ),
        _bound_finding(study, "y(x) Lipschitz", slope, how, "", moduli.proved),
        _implicit(study, implicit, whole, assumption, moduli.proved),
        uniqueness(study, moduli),
        differentiability(study, moduli),
    )
    return Lipschitz(findings, tuple(constants), f_x, f_y, slope, implicit)


def _slope_finding(study: Study, name: str, variables: Sequence[cp.Variable], value: float, assumption: str) -> Finding:
    """Whether the clients' term is Lipschitz in x, or in y."""
    title, term = f"f Lipschitz in {name}", study.compiled.declaration.objective.clients
    level, free = study.level, not study.compiled.upper_set.blocks
    if name == "y":
        free = level is not None and not level.constraints and not attribute_constraints(variables)
    if np.isfinite(value) or term is None or not free:
        return _bound_finding(study, title, value, f"the gradient of the clients' term in {name}", assumption)
    steep = steep_addend(study, term, variables)
    if steep is None:
        return _bound_finding(study, title, value, f"the gradient of the clients' term in {name}", assumption)
    reason = f"{expression_text(steep)} is quadratic, and {name} is not bounded: its slope grows without end"
    return Finding(title, "violated", reason, assumption)


def _implicit(study: Study, implicit: float, whole: float, assumption: str, proved: bool) -> Finding:
    """Whether f is Lipschitz, the server's term included; in [HFL], whose server's term is smooth, whether the clients' part is."""
    name, how = "implicit function Lipschitz", "L_{f,y} L_y + L_{f,x}"
    if study.compiled.declaration.objective.server is None:
        return _bound_finding(study, name, implicit, how, assumption, proved)
    if study.problem_class == "hfl":
        return _bound_finding(study, name, implicit, f"{how}, for the clients' part", assumption, proved)
    return _bound_finding(study, name, whole, f"{how}, the server's gradients added", assumption, proved)


def _server_gradient(study: Study, variables: Sequence[cp.Variable]) -> float:
    """A bound on the gradient of the server's term, 0 without one."""
    term, holder = study.compiled.declaration.objective.server, study.holders.server
    return 0.0 if term is None or holder is None else gradient_size(study, term, variables, holder)


def _of_the_whole(study: Study, whole: float) -> tuple[Constant, ...]:
    if study.compiled.declaration.objective.server is None:
        return ()
    return (Constant("L_f", whole, "<=", "L0_imp and the gradients of the server's term"),)


def _times(first: float, second: float) -> float:
    """The product of bounds, where 0 makes up for none."""
    return 0.0 if first == 0 or second == 0 else first * second


def _gradient_constant(name: str, value: float, who: str, each: tuple[float, ...]) -> Constant:
    many = len(each) > 1
    reason = (
        "the largest gradient on the declared sets"
        if np.isfinite(value)
        else "the gradient is not bounded on the declared sets"
    )
    return Constant(name, value, "<=", reason, who if many else "", each if many else ())


def _bound_finding(study: Study, name: str, value: float, how: str, assumption: str, proved: bool = True) -> Finding:
    if np.isfinite(value):
        return Finding(name, "proved" if proved else "sampled", f"constant at most {value:.6g}, by {how}", assumption)
    reason = how if how.startswith("unknown: ") else f"no bound on {how} over the declared sets{study.unbounded}"
    return Finding(name, "unknown", reason.removeprefix("unknown: "), assumption)

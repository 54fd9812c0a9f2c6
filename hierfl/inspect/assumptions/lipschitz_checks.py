"""Lipschitz constants of f, of the lower level's gradient, of y(x) and of the implicit function, on the declared sets.

They rest on bounds of gradients, of their spread over a party's samples, and of how the lower level's gradient moves with x. Of the
response y(x) also whether it is unique and differentiable.
"""

from __future__ import annotations

from collections.abc import Sequence

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.constraints import Equality

from hierfl.analysis.curvature_bounds import is_quadratic
from hierfl.analysis.enclosure import enclose
from hierfl.analysis.hoist import hoist
from hierfl.analysis.lipschitz import gradient_bound, mixed_bound, one_sample
from hierfl.analysis.spectrum import Edge
from hierfl.analysis.variable_attributes import attribute_constraints
from hierfl.atoms.algebra import addends
from hierfl.atoms.table import row_of
from hierfl.inspect.assumptions.findings import Constant, Examined, Finding
from hierfl.inspect.assumptions.holders import Holder
from hierfl.inspect.assumptions.lower_curvature import Moduli
from hierfl.inspect.assumptions.lower_spectra import Curvature
from hierfl.inspect.assumptions.moving_polyhedra import NoShiftError, side_shift
from hierfl.inspect.assumptions.study import Study
from hierfl.language.calculus.derivative import depends
from hierfl.language.function import UserAtom
from hierfl.language.printing.text import expression_text
from hierfl.language.sample import Sample


def response_constant(study: Study, moduli: Moduli, mixed: float) -> tuple[float, str]:
    """(Lipschitz constant of y(x), how it is known), by [2S] Lemma 2; for translated sets with the translation."""
    mu = moduli.own_mu
    if not mu > 0:
        return np.inf, "unknown: no modulus of strong convexity (monotonicity)"
    if not np.isfinite(mixed):
        return (
            np.inf,
            "unknown: L_{grad h,x} is not known: no bound on second derivatives in (x, y) over the declared sets",
        )
    if study.movement.kind == "fixed":
        return mixed / mu * (1 + 1e-12), "L_{grad h,x} / mu_h ([2S] Lemma 2): Y does not move"
    along_sides = _over_moving_sides(study, moduli, mixed)
    if study.movement.kind == "moving":
        return along_sides
    shift = study.movement.shift
    value = (shift + (mixed + moduli.smooth * shift) / mu) * (1 + 1e-12)
    translated = value, "|A| + (L_{grad h,x} + L_h |A|) / mu_h for the translated set Y(x) = A x + C"
    return min(translated, along_sides, key=lambda way: way[0])


def _over_moving_sides(study: Study, moduli: Moduli, mixed: float) -> tuple[float, str]:
    """The constant where Y(x) is a polyhedron of which only the sides move.

    For minima the translation counts sqrt(L_h / mu_h)-fold: the point that is nearest in the norm of the Hessian moves.
    """
    try:
        shift = side_shift(study)
    except NoShiftError as reason:
        return np.inf, f"unknown: {reason}"
    if shift is None:
        return (
            np.inf,
            "unknown: Y(x) changes with x by more than a translation, and y(x) may not be Lipschitz (as for y^2 <= x)",
        )
    mu, level = moduli.own_mu, study.below
    if level.kind == "equilibrium":
        value, how = shift + (mixed + moduli.smooth * shift) / mu, "a + (L_{grad h,x} + L_h a) / mu_h"
    else:
        value, how = (moduli.smooth / mu) ** 0.5 * shift + mixed / mu, "sqrt(L_h / mu_h) a + L_{grad h,x} / mu_h"
    rows = f"a = {shift:.6g} the largest |A_S^+ C_S| over independent rows S of A y <= b + C x"
    return value * (1 + 1e-12), f"{how}, {rows}"


def uniqueness(study: Study, moduli: Moduli) -> Finding:
    """Whether y(x) is unique, which strong convexity (monotonicity) says."""
    name = "y(x) unique"
    if not moduli.own_mu > 0:
        return Finding(name, "unknown", "no modulus of strong convexity (monotonicity)")
    reason = f"strongly convex (monotone) with mu = {moduli.own_mu:.6g}, where Y(x) is not empty"
    return Finding(name, "proved" if moduli.proved else "sampled", reason)


def differentiability(study: Study, moduli: Moduli) -> Finding:
    """Whether y(x) is differentiable, by the implicit function theorem.

    F must be continuously differentiable, and y free or on an affine set that at most shifts.
    """
    level, name = study.below, "y(x) differentiable"
    if not (moduli.own_mu > 0 and moduli.proved):
        return Finding(name, "unknown", "y(x) is not known to be unique")
    rough = next((node for node in (_not_smooth(e) for e in level.expressions) if node is not None), None)
    if rough is not None:
        reason = f"{type(rough).__name__} is not known to be twice continuously differentiable"
        return Finding(name, "unknown", reason)
    constraints = study.lower_constraints
    if not constraints:
        reason = "unconstrained, smooth and strongly convex (monotone): implicit function theorem"
        return Finding(name, "proved", reason)
    if all(isinstance(c, Equality) for c in constraints) and study.movement.kind != "moving":
        reason = f"smooth and strongly convex (monotone) on a {study.movement.kind} affine set"
        return Finding(name, "proved", reason)
    reason = "constraints become active and inactive as x moves: kinks are possible"
    reason += ", y(x) is Lipschitz all the same" if study.movement.kind != "moving" else ""
    return Finding(name, "unknown", reason)


def _not_smooth(node: cp.Expression) -> cp.Expression | None:
    """The first atom in a tree that is not known to be twice continuously differentiable."""
    if not node.args or not node.variables():
        return None
    rule = row_of(node).twice_smooth
    if isinstance(node, UserAtom) or not (isinstance(node, AffAtom) if rule is None else rule(node)):
        return node
    return next((rough for a in node.args for rough in [_not_smooth(a)] if rough is not None), None)


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


def lipschitz(study: Study, moduli: Moduli | None) -> Examined:
    """Bound the constants of Assumption (i), of y(x) and of the implicit function."""
    term, level = study.compiled.declaration.objective.clients, study.level
    assumption = study.assumption("(i)")
    upper, lower = study.compiled.upper.variables, study.compiled.lower.variables
    f_x, who_x, each_x = worst_gradient(study, term, upper)
    constants = [_gradient_constant("L_{f,x}", f_x, who_x, each_x)]
    in_x = _slope_finding(study, "x", upper, f_x, assumption)
    if level is None or moduli is None:
        whole = f_x + _server_gradient(study, upper)
        return Examined((in_x,), (*constants, *_of_the_whole(study, whole)))
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
            study,
            "lower gradient Lipschitz in x",
            mixed,
            "second derivatives in (x, y)",
            study.assumption("(ii)", "2s"),
        ),
        _bound_finding(study, "y(x) Lipschitz", slope, how, "", moduli.proved),
        _implicit(study, implicit, whole, assumption, moduli.proved),
        uniqueness(study, moduli),
        differentiability(study, moduli),
    )
    return Examined(findings, tuple(constants))


def _slope_finding(study: Study, name: str, variables: Sequence[cp.Variable], value: float, assumption: str) -> Finding:
    """Whether the clients' term is Lipschitz in x, or in y."""
    title, term = f"f Lipschitz in {name}", study.compiled.declaration.objective.clients
    level, free = study.level, not study.compiled.upper_set.blocks
    if name == "y":
        free = level is not None and not level.constraints and not attribute_constraints(variables)
    steep = None if np.isfinite(value) or term is None or not free else steep_addend(study, term, variables)
    if steep is None:
        return _bound_finding(study, title, value, f"the gradient of the clients' term in {name}", assumption)
    reason = f"{expression_text(steep)} is quadratic, and {name} is not bounded: its slope grows without end"
    return Finding(title, "violated", reason, assumption)


def _implicit(study: Study, implicit: float, whole: float, assumption: str, proved: bool) -> Finding:
    """Whether f is Lipschitz, the server's term included; in [HFL], whose server's term is smooth, whether the clients' part is."""
    how, value = "L_{f,y} L_y + L_{f,x}", implicit
    if study.compiled.declaration.objective.server is not None:
        hierarchical = study.problem_class == "hfl"
        value = implicit if hierarchical else whole
        how += ", for the clients' part" if hierarchical else ", the server's gradients added"
    return _bound_finding(study, "implicit function Lipschitz", value, how, assumption, proved)


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

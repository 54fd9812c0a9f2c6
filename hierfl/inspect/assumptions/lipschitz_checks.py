"""Lipschitz constants of f, of the lower level's gradient, of y(x) and of the implicit function, on the declared sets.

How far y(x) moves where Y(x) = {y : A y <= b + C x} has normals that stay and sides that move: at every x some independent rows S hold with
equality at y(x) and carry all multipliers, so that y(x) = y_S(x), the solution over the affine set A_S y = b_S + C_S x alone. There are
finitely many S and y(x) is continuous: the largest Lipschitz constant of a y_S is one of y(x) (Robinson, 1979, for quadratic programs). That
affine set is a translated one, by |A_S^+ C_S| for each unit of x.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, islice
from math import comb

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.constraints import Equality, Inequality
from cvxpy.constraints.constraint import Constraint
from jaxtyping import Float

from hierfl.analysis.curvature_bounds import is_quadratic
from hierfl.analysis.enclosure import enclose
from hierfl.analysis.hoist import hoist
from hierfl.analysis.lipschitz import gradient_bound, mixed_bound, one_sample
from hierfl.atoms.algebra import addends, depends, nodes_of
from hierfl.atoms.table import row_of
from hierfl.compiler.parametric.level_form import LevelForm
from hierfl.compiler.parametric.template import LevelTemplate
from hierfl.compiler.programs.cones import ZERO
from hierfl.compiler.programs.small_and_sparse import as_array
from hierfl.inspect.assumptions.examination import Examination, Holder, known_of_all
from hierfl.inspect.assumptions.findings import Constant, Examined, Finding, Status
from hierfl.inspect.assumptions.lower_curvature import Curvature, Moduli, data_exact
from hierfl.language.function import UserAtom
from hierfl.language.printing.text import expression_text
from hierfl.language.sample import ClientParameter, Sample

SUBSETS = 300_000  # of rows that are looked at, some seconds
TOGETHER = 20_000  # of them in memory at once
DEPENDENT, EXACTLY = 1e-11, 1e-14  # of a row of length 1: up to the first it is nearly dependent, up to the second it is, but for rounding


class NoShiftError(Exception):
    """The sides move, and by how much cannot be told; the message says why."""


def _side_shift(study: Examination) -> float | None:
    """The largest |A_S^+ C_S| over the owners and the independent sets of rows; None where rows do not move like this. Raises ``NoShiftError``."""
    level, constraints = study.below, (*study.lower_constraints, *study.domain)
    if not all(map(_affine, constraints)):
        return None
    if any(isinstance(leaf, Sample | ClientParameter) for row in study.domain for leaf in row.parameters()):
        raise NoShiftError("data enter the domain of the objective, in which y(x) stays")
    used = {leaf.id for constraint in constraints for leaf in constraint.parameters()}
    if not data_exact(study, used):
        raise NoShiftError("the rows of Y(x) hold a distribution, or more samples of a client than are looked at")
    form = LevelTemplate.of(None, constraints, level.variables, study.compiled.declaration.known_bounds)
    equations = sum(cone.size for cone in form.cones if cone.kind == ZERO)
    return max(_largest_shift(*_rows(study, form, owner[0][1].own), equations) for _, owner in study.set_owners)


def _affine(constraint: Constraint) -> bool:
    """Whether a constraint is affine in x and y together, so that its normals do not depend on x."""
    return isinstance(constraint, Equality | Inequality) and bool(constraint.expr.is_affine())


def _rows(study: Examination, form: LevelTemplate, own: dict[int, object]) -> tuple[Float[np.ndarray, "rows size"], Float[np.ndarray, "rows n"]]:
    """(A, C) of the rows A y + C x + b, each of length 1 in y; rows without y are the upper level's."""

    def theta(x: jax.Array) -> jax.Array:
        return form.theta_at(study.compiled.environment(x, None, own))

    at = jnp.zeros(study.compiled.upper.size)
    here, moves = np.asarray(theta(at), float), np.asarray(jax.jacfwd(theta)(at), float)
    normals = as_array(LevelForm(form, ()).program([here]).a)
    sides = np.zeros((form.height, at.size))
    sides[form.offset.rows] = form.offset.linear @ moves
    sizes = np.linalg.norm(normals, axis=1, keepdims=True)
    sizes = np.where(sizes > 0, sizes, 1.0)
    return normals / sizes, sides / sizes


def _largest_shift(normals: np.ndarray, sides: np.ndarray, equations: int) -> float:
    size = normals.shape[1]
    always = _independent(normals[:equations])
    kept = _different(normals, sides, equations)
    free = min(size - len(always), len(kept))
    count = sum(comb(len(kept), k) for k in range(free + 1))
    if count > SUBSETS:
        many = f"{count:.2g}" if count < 1e300 else f"10^{len(str(count)) - 1}"
        sets = f"{many} sets of {len(kept)} rows, more than the {SUBSETS:,} that are looked at"
        raise NoShiftError(f"the sides of Y(x) move, for which the constant is that of {sets}")
    worst = 0.0
    for more in range(free + 1):
        chosen = combinations(kept, more)
        while some := list(islice(chosen, TOGETHER)):
            rows = np.concatenate([np.tile(always, (len(some), 1)), np.array(some).reshape(len(some), more)], axis=1)
            worst = max(worst, _shift(normals[rows.astype(int)], sides[rows.astype(int)]))
    return worst


def _shift(normals: np.ndarray, sides: np.ndarray) -> float:
    """The largest |A_S^+ C_S| of a stack of rows, those that depend on each other left out."""
    if not normals.shape[1]:
        return 0.0
    left, singular, right = np.linalg.svd(normals, full_matrices=False)
    good = singular[:, -1] > EXACTLY * normals.shape[1]
    if (singular[good, -1] <= DEPENDENT).any():
        raise NoShiftError("the sides of Y(x) move, and some of its rows are nearly dependent: by rounding alone y may move without bound")
    if not good.any():
        return 0.0
    left, singular, right = left[good], singular[good], right[good]
    moves = (np.swapaxes(left, 1, 2) @ sides[good]) / singular[..., None]
    return float(np.linalg.norm(moves, ord=2, axis=(1, 2)).max())


def _independent(rows: np.ndarray) -> np.ndarray:
    """Indices of equations from which all of them follow."""
    found: list[int] = []
    for k in range(len(rows)):
        if np.linalg.matrix_rank(rows[[*found, k]], tol=DEPENDENT) > len(found):
            found.append(k)
    return np.array(found, int)


def _different(normals: np.ndarray, sides: np.ndarray, equations: int) -> list[int]:
    """Inequalities with y in them, of those that are the same up to their constants only one."""
    first: dict[bytes, int] = {}
    for k in range(equations, len(normals)):
        if normals[k].any():
            first.setdefault(np.concatenate([normals[k], sides[k]]).round(14).tobytes(), k)
    return list(first.values())


def _response_constant(study: Examination, moduli: Moduli, mixed: float) -> tuple[float, str]:
    """(Lipschitz constant of y(x), how it is known), by [2S] Lemma 2; for translated sets with the translation."""
    mu = moduli.own_mu / (study.compiled.total_weight if study.compiled.scope == "federation" else 1.0)  # beside L of one client
    if not mu > 0:
        return np.inf, "unknown: no modulus of strong convexity (monotonicity)"
    if not np.isfinite(mixed):
        why = "L_{grad h,x} is not known: no bound on second derivatives in (x, y) over the declared sets"
        return np.inf, f"unknown: {why}"
    if study.movement.kind == "fixed":
        return mixed / mu * (1 + 1e-12), "L_{grad h,x} / mu_h ([2S] Lemma 2): Y does not move"
    along_sides = _over_moving_sides(study, mu, moduli.smooth, mixed)
    if study.movement.kind == "moving":
        return along_sides
    shift = study.movement.shift
    value = (shift + (mixed + times(moduli.smooth, shift)) / mu) * (1 + 1e-12)
    translated = value, "|A| + (L_{grad h,x} + L_h |A|) / mu_h for the translated set Y(x) = A x + C"
    return min(translated, along_sides, key=lambda way: way[0])


def _over_moving_sides(study: Examination, mu: float, smooth: float, mixed: float) -> tuple[float, str]:
    """The constant where Y(x) is a polyhedron of which only the sides move.

    For minima the translation counts sqrt(L_h / mu_h)-fold: the point that is nearest in the norm of the Hessian moves.
    """
    try:
        shift = _side_shift(study)
    except NoShiftError as reason:
        return np.inf, f"unknown: {reason}"
    if shift is None:
        why = "Y(x) changes with x by more than a translation, and y(x) may not be Lipschitz (as for y^2 <= x)"
        return np.inf, f"unknown: {why}"
    if study.below.kind == "equilibrium":
        value, how = shift + (mixed + times(smooth, shift)) / mu, "a + (L_{grad h,x} + L_h a) / mu_h"
    else:
        value, how = times((smooth / mu) ** 0.5, shift) + mixed / mu, "sqrt(L_h / mu_h) a + L_{grad h,x} / mu_h"
    rows = f"a = {shift:.6g} the largest |A_S^+ C_S| over independent rows S of A y <= b + C x"
    return value * (1 + 1e-12), f"{how}, {rows}"


def _differentiability(study: Examination, moduli: Moduli) -> Finding:
    """Whether y(x) is differentiable, by the implicit function theorem.

    F must be continuously differentiable, and y free or on an affine set that at most shifts.
    """
    constraints, moves = study.lower_constraints, study.movement.kind
    rough = next((node for node in map(_not_smooth, study.below.expressions) if node is not None), None)
    status: Status = "unknown"
    if not (moduli.own_mu > 0 and moduli.proved):
        reason = "y(x) is not known to be unique"
    elif rough is not None:
        reason = f"{type(rough).__name__} is not known to be twice continuously differentiable"
    elif not constraints:
        status, reason = "proved", "unconstrained, smooth and strongly convex (monotone): implicit function theorem"
    elif all(isinstance(c, Equality) for c in constraints) and moves != "moving":
        status, reason = "proved", f"smooth and strongly convex (monotone) on a {moves} affine set"
    else:
        reason = "constraints become active and inactive as x moves: kinks are possible"
        reason += "" if moves == "moving" else ", y(x) is Lipschitz all the same"
    return Finding("y(x) differentiable", status, reason)


def _not_smooth(node: cp.Expression) -> cp.Expression | None:
    """The first atom in a tree that is not known to be twice continuously differentiable."""
    for part in nodes_of(node):
        if part.args and part.variables():
            rule = row_of(part).twice_smooth
            if isinstance(part, UserAtom) or not (isinstance(part, AffAtom) if rule is None else rule(part)):
                return part
    return None


def _gradient_constant(study: Examination, name: str, variables: Sequence[cp.Variable]) -> Constant:
    """The largest over clients of :func:`gradient_size` of their term, whose it is, and those of all clients."""
    term, clients = study.compiled.declaration.objective.clients, study.holders.clients
    each = () if term is None else tuple(gradient_size(study, term, variables, holder) for holder in clients)
    value = max(each, default=0.0)
    reason = f"the {'largest gradient' if np.isfinite(value) else 'gradient is not bounded'} on the declared sets"
    return Constant(name, value, "<=", reason, *((clients[int(np.argmax(each))].label, each) if len(each) > 1 else ()))


def gradient_size(study: Examination, term: cp.Expression, variables: Sequence[cp.Variable], holder: Holder) -> float:
    """The root mean square over a party's samples of a bound on the norm of one sample's gradient."""
    if not depends(term, {v.id for v in variables}):
        return 0.0
    samples = tuple(p.id for p in term.parameters() if isinstance(p, Sample))
    alone = one_sample(term, holder.count)
    rough = gradient_bound(alone, variables, holder.known)
    if not np.isfinite(rough) or not samples:
        return rough
    groups = study.holders.groups(holder, samples)
    return float(np.sqrt(sum(share * gradient_bound(alone, variables, known) ** 2 for share, known in groups))) * (1 + 1e-12)


def _steep_addend(study: Examination, term: cp.Expression, variables: Sequence[cp.Variable]) -> cp.Expression | None:
    """An addend whose slope is not bounded on the whole space, where convexity keeps the others from making up for it; else None."""
    wanted = {v.id for v in variables}
    moving = [part for part in addends(term) if depends(part, wanted)]
    alone = [(part, hoist([part], variables, study.compiled.declaration.known_bounds).expressions[0]) for part in moving]
    if not (all(e.is_convex() for _, e in alone) or all(e.is_concave() for _, e in alone)):
        return None
    return next((part for part, e in alone if is_quadratic(e) and not e.is_affine() and _curves(study, part, variables)), None)


def _curves(study: Examination, part: cp.Expression, variables: Sequence[cp.Variable]) -> bool:
    """Whether a quadratic has a Hessian of numbers at some client that is not 0, as where factors are 0 or cancel; without samples in sample scope none is asked for."""
    curvature, clients = Curvature(study.compiled, part, tuple(variables), known_of_all(study.holders.clients)), study.holders.clients
    known = curvature.bounds.exact and (study.compiled.scope != "sample" or is_random(part))
    return known and any(end is not None and end.value != 0 for one in clients for end in curvature.spectrum(one))


def is_random(term: cp.Expression | None) -> bool:
    """Whether there are samples in a term."""
    return term is not None and any(isinstance(p, Sample) for p in term.parameters())


def spread(term: cp.Expression | None, holder: Holder) -> float:
    """A bound on the variance over samples of one sample's value of the term: a quarter of its range squared (Popoviciu)."""
    if term is None or not is_random(term):
        return 0.0
    values = enclose(one_sample(term, holder.count), holder.known)
    return float(np.max(0.25 * (values.hi - values.lo) ** 2)) * (1 + 1e-12)


def _mixed_constant(study: Examination) -> float:
    """Bound L_{grad h,x}: by the Jacobian's entries, or for large jointly convex quadratics by |H_xy|^2 <= |H_xx| |H_yy|."""
    level, compiled = study.below, study.compiled
    upper, lower = compiled.upper.variables, level.variables
    if level.kind == "equilibrium":
        return max(mixed_bound(level.expressions, upper, holder.known) for holder in study.holders.clients)
    entries = [one_sample(level.expression, holder.count) for holder in study.holders.clients]
    worst = max(mixed_bound([entry], upper, holder.known, lower) for entry, holder in zip(entries, study.holders.clients))
    if np.isfinite(worst):
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
        in_x, in_y = (half.spectrum(holder).high for half in halves)
        squared = np.inf if in_x is None or in_y is None else max(in_x.value, 0.0) * max(in_y.value, 0.0)
        worst = max(worst, float(np.sqrt(squared)) * (1 + 1e-12))
    return worst


def lipschitz(study: Examination, moduli: Moduli | None) -> Examined:
    """Bound the constants of Assumption (i), of y(x) and of the implicit function."""
    level, assumption = study.level, study.assumption("(i)")
    upper, lower, weight = study.compiled.upper.variables, study.compiled.lower.variables, study.compiled.total_weight
    in_x = _gradient_constant(study, "L_{f,x}", upper)
    x_finding = _slope_finding(study, "x", upper, in_x.value, assumption)
    if level is None or moduli is None:
        whole = weight * in_x.value + _server_gradient(study, upper)
        return Examined((x_finding,), (in_x, *_of_the_whole(study, whole)))
    in_y, mixed, second = _gradient_constant(study, "L_{f,y}", lower), _mixed_constant(study), "second derivatives in (x, y)"
    slope, how = _response_constant(study, moduli, mixed)
    if level.letter == "F":
        how = how.replace("L_{grad h,x}", "L_{F,x}").replace("L_h", "L_F").replace("mu_h", "mu_F")
    implicit = weight * (in_x.value + times(in_y.value, slope))
    whole = implicit + _server_gradient(study, upper) + times(_server_gradient(study, lower), slope)
    formula = "L_{f,y} L_y + L_{f,x}" if np.isclose(weight, 1) else f"{weight:.6g} (L_{{f,y}} L_y + L_{{f,x}}), by the weights of all clients"
    made_of = formula if np.isfinite(implicit) else "one of its factors is unknown"
    constants = (
        in_x,
        in_y,
        Constant("L_{F,x}" if level.letter == "F" else "L_{grad h,x}", mixed, "<=", second),
        Constant("L_y", slope, "<=", how.removeprefix("unknown: ")),
        Constant("L0_imp", implicit, "<=", made_of),
        *_of_the_whole(study, whole),
    )
    of_f = implicit, formula
    if study.compiled.declaration.objective.server is not None:  # smooth in [HFL], where the clients' part is asked about
        of_f = (implicit, f"{of_f[1]}, for the clients' part") if study.problem_class == "hfl" else (whole, f"{of_f[1]}, the server's gradients added")
    unique = Finding("y(x) unique", "unknown", "no modulus of strong convexity (monotonicity)")
    if moduli.own_mu > 0:
        reason = f"strongly convex (monotone) with mu = {moduli.own_mu:.6g}, where Y(x) is not empty"
        unique = Finding("y(x) unique", "proved" if moduli.proved else "sampled", reason)
    findings = (
        x_finding,
        _slope_finding(study, "y", lower, in_y.value, assumption),
        _bound_finding(study, "lower gradient Lipschitz in x", mixed, second, study.assumption("(ii)", "2s")),
        _bound_finding(study, "y(x) Lipschitz", slope, how, "", moduli.proved),
        _bound_finding(study, "implicit function Lipschitz", *of_f, assumption, moduli.proved),
        unique,
        _differentiability(study, moduli),
    )
    return Examined(findings, constants)


def _slope_finding(study: Examination, name: str, variables: Sequence[cp.Variable], value: float, assumption: str) -> Finding:
    title, term = f"f Lipschitz in {name}", study.compiled.declaration.objective.clients
    own_set = study.compiled.lower_set if name == "y" else study.compiled.client_upper_set
    steep = None if np.isfinite(value) or term is None or own_set.blocks else _steep_addend(study, term, variables)
    if steep is None:
        return _bound_finding(study, title, value, f"the gradient of the clients' term in {name}", assumption)
    reason = f"{expression_text(steep)} is quadratic, and {name} is not bounded: its slope grows without end"
    return Finding(title, "violated", reason, assumption)


def _server_gradient(study: Examination, variables: Sequence[cp.Variable]) -> float:
    """A bound on the gradient of the server's term, 0 without one."""
    term, holder = study.compiled.declaration.objective.server, study.holders.server
    return 0.0 if term is None or holder is None else gradient_size(study, term, variables, holder)


def _of_the_whole(study: Examination, whole: float) -> tuple[Constant, ...]:
    if study.compiled.declaration.objective.server is None:
        return ()
    return (Constant("L_f", whole, "<=", "L0_imp and the gradients of the server's term"),)


def times(first: float, second: float) -> float:
    """The product of bounds, where 0 makes up for none."""
    return 0.0 if first == 0 or second == 0 else first * second


def _bound_finding(study: Examination, name: str, value: float, how: str, assumption: str, proved: bool = True) -> Finding:
    if np.isfinite(value):
        return Finding(name, "proved" if proved else "sampled", f"constant at most {value:.6g}, by {how}", assumption)
    if how.startswith("unknown: "):
        return Finding(name, "unknown", how.removeprefix("unknown: "), assumption)
    return Finding(name, "unknown", f"no bound on {how} over the declared sets", assumption, advice=study.unbounded)

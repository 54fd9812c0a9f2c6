"""The sets Y(x), nonempty for every x of X, closed and convex, bounded; and X_i, and how much they differ from each other.

A search for an x of X whose Y(x) is empty has CVXPY's second opinion, of Y(x) with numbers for everything but y. The size of Y(x) is known
by intervals, and by the balls among its constraints. Whether the lower level attains a minimum rests on these: it may also fall without
end along a direction that stays in Y(x).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.unary_operators import NegExpression
from cvxpy.constraints import Inequality
from cvxpy.constraints.constraint import Constraint

from hierfl.analysis.conic_solving import status_of
from hierfl.analysis.enclosure import Enclosure, Known, enclose
from hierfl.analysis.hoist import hoist, instantiate
from hierfl.analysis.variable_bounds import attribute_constraints, bounds_of
from hierfl.atoms.algebra import sides_of
from hierfl.atoms.intervals import Interval
from hierfl.inspect.assumptions.examination import Examination, Weighted
from hierfl.inspect.assumptions.findings import Constant, Examined, Finding
from hierfl.inspect.assumptions.lower_curvature import Moduli, of_every_holder
from hierfl.language.printing.text import expression_text


def instantiated(study: Examination, x: np.ndarray, owner: Weighted) -> tuple[list[Constraint], list[cp.Variable]]:
    """Put numbers into Y(x)'s constraints for everything but y: (constraints on twins of the variables, the twins)."""
    values = {v.id: np.asarray(a) for v, a in zip(study.compiled.upper.variables, study.compiled.upper.split(x).values())}
    numbers = values | {leaf: np.asarray(v) for leaf, v in owner[0][1].own.items()}
    mentioned = [leaf for c in study.lower_constraints for leaf in (*c.variables(), *c.parameters())]
    leaves = {leaf: numbers[leaf.id] for leaf in mentioned if leaf.id in numbers}
    hoisted = hoist(instantiate(study.lower_constraints, leaves), study.below.variables)
    return list(hoisted.expressions), [hoisted.twins[v] for v in study.below.variables]


def is_infeasible(study: Examination, x: np.ndarray, owner: Weighted) -> bool:
    """Whether CVXPY, too, finds Y(x) empty."""
    constraints, _ = instantiated(study, x, owner)
    return status_of(cp.Problem(cp.Minimize(0), constraints)) in (cp.INFEASIBLE, cp.INFEASIBLE_INACCURATE)


OWNERS = 12
_ASCENTS, _STEPS = 4, 30


def search_empty_set(study: Examination, name: str, assumption: str) -> Finding:
    """Look for an x of X with an empty Y(x): at points of X, then by ascent on the gap from the worst of them."""
    owners = study.set_owners[:OWNERS]
    exact = study.compiled.lower_set.is_exact
    points = study.x_points if exact else study.x_points[:8]
    worst: list[tuple[float, np.ndarray, str, Weighted]] = []
    for label, owner in owners:
        worst += [(study.lower.gap(x, owner), x, label, owner) for x in points]
    worst.sort(key=lambda entry: -entry[0])
    tried, doubtful = len(worst), False
    for gap, x, label, owner in worst[:_ASCENTS]:  # gaps allow for rounding themselves
        if gap <= 0 and exact:
            gap, x, steps = _ascend(study, x, owner)
            tried += steps
        if gap > 0 and is_infeasible(study, x, owner):
            return empty_set_finding(study, x, label, assumption)
        doubtful = doubtful or gap > 0
    seen = tried, worst[0][0]
    if doubtful:
        return Finding(name, "unknown", "at a point of X the projection misses Y(x), but CVXPY does not find Y(x) empty there", assumption, *seen)
    return Finding(name, "sampled", "a point of Y(x) was found at every point of X that was tried", assumption, *seen)


def _ascend(study: Examination, x: np.ndarray, owner: Weighted) -> tuple[float, np.ndarray, int]:
    """Climb on the gap by projected gradients with growing steps: (the gap, its point, how many steps it took)."""
    gap, own = study.lower.gap_function, owner[0][1].own
    slope = jax.jit(jax.grad(gap))
    best = float(gap(jnp.asarray(x), own))
    step, used = 1.0, 0
    while used < _STEPS:
        used += 1
        direction = np.asarray(slope(jnp.asarray(x), own))
        if not np.isfinite(direction).all() or not direction.any() or best > 0:
            break
        other = study.project_x(x + step * direction / np.linalg.norm(direction))
        value = float(gap(jnp.asarray(other), own))
        step = 2 * step if value > best else 0.25 * step
        if value > best:
            best, x = value, other
    return best, x, used


def empty_set_finding(study: Examination, x: np.ndarray, label: str, assumption: str) -> Finding:
    """Say that Y(x) is empty at x for the owner of that label."""
    witness = {"x": study.compiled.upper.unflatten(x), "client": label}
    return Finding("Y(x) nonempty", "violated", "Y(x) is empty at a point of X", assumption, witness=witness)


def diameter(study: Examination) -> float:
    """The largest distance between two points of any Y(x), infinity where Y(x) may be unbounded."""
    variables, constraints = study.below.variables, study.lower_constraints
    sizes = []
    for holder in study.holders.clients:
        boxes: Known = holder.known
        if study.movement.kind != "moving":  # a translation does not change it: look at x = 0
            here = {v.id: Interval.of(np.zeros(v.shape)) for v in study.compiled.upper.variables}
            free = {leaf: box for leaf, box in holder.known.items() if leaf not in {v.id for v in variables}}
            boxes = bounds_of(constraints, variables, {**free, **here})
        box = float(np.linalg.norm([np.linalg.norm(boxes[v.id].hi - boxes[v.id].lo) for v in variables]))
        balls = [2 * _radius(constraint, variables, boxes) for constraint in constraints]
        sizes.append(min([box, *balls]))
    return float(np.max(sizes)) * (1 + 1e-12)


def _radius(constraint: Constraint, variables: Sequence[cp.Variable], known: Known) -> float:
    """The largest radius of a constraint that puts all of y into a ball, infinity for other constraints."""
    if not isinstance(constraint, Inequality) or len(variables) != 1:
        return np.inf
    ball, limit = constraint.args
    if any(v.id == variables[0].id for v in limit.variables()):
        return np.inf
    sizes = np.broadcast_to(np.maximum(enclose(limit, known).hi, 0.0), constraint.shape)  # several with an axis
    if isinstance(ball, cp.Pnorm) and ball.p == 2 and _shifted(ball.args[0], variables[0]):
        return float(np.linalg.norm(sizes))
    squared = isinstance(ball, cp.quad_over_lin) and ball.args[1].is_constant() and ball.args[1].value == 1
    return float(np.sqrt(np.sum(sizes))) if squared and _shifted(ball.args[0], variables[0]) else np.inf


def _shifted(expression: cp.Expression, y: cp.Variable) -> bool:
    """Whether the expression is y, or y plus and minus what does not depend on y."""
    if expression is y:
        return True
    if isinstance(expression, NegExpression):
        return _shifted(expression.args[0], y)
    if not isinstance(expression, AddExpression) or expression.shape != y.shape:
        return False
    moving = [argument for argument in expression.args if any(v.id == y.id for v in argument.variables())]
    return len(moving) == 1 and moving[0].shape == y.shape and _shifted(moving[0], y)


def lower_sets(study: Examination) -> tuple[Finding, ...]:
    """Examine Y(x): whether it is nonempty for all x of X, closed and convex, bounded."""
    assumption = study.assumption("(iv)")
    convex = Finding("Y(x) closed and convex", "proved", "by CVXPY's rules, for every x of X", assumption)
    needed, size = assumption if study.problem_class == "2s" else "", diameter(study)
    bounded = Finding("Y(x) bounded", "unknown", "no bounds on y follow from its constraints on X", needed)
    if np.isfinite(size):
        bounded = Finding("Y(x) bounded", "proved", f"of diameter at most {size:.6g} for each x of X", needed)
    return _nonempty(study, assumption), convex, bounded


def _nonempty(study: Examination, assumption: str) -> Finding:
    name = "Y(x) nonempty"
    compiled = study.compiled
    if not compiled.lower_set.blocks:
        return Finding(name, "proved", "y is unconstrained", assumption)
    x = study.x_points[0]
    here = [(label, owner, study.lower.gap(x, owner)) for label, owner in study.set_owners]
    empty = next(((label, owner) for label, owner, gap in here if gap > 0), None)
    if empty is not None and is_infeasible(study, x, empty[1]):
        return empty_set_finding(study, x, empty[0], assumption)
    below, above = ({v.id for v in layout.variables} for layout in (compiled.lower, compiled.upper))
    of_x = any(above & said and not below & said for c in study.lower_constraints for said in [{v.id for v in c.variables()}])
    if empty is None and study.movement.kind != "moving" and not of_x and of_every_holder(study, compiled.lower_set.depends_on):
        return Finding(name, "proved", f"Y(x) is {study.movement.kind}, and a point of it was found", assumption)
    point = _common_point(study) if empty is None else None
    if point is not None:
        reason = f"y = {np.array2string(point, threshold=6, precision=4)} lies in Y(x) for every x of X"
        return Finding(name, "proved", reason, assumption)
    return search_empty_set(study, name, assumption)


def _common_point(study: Examination, defined: Sequence[cp.Expression] = ()) -> np.ndarray | None:
    """Find a y that intervals prove to lie in Y(x) for all x of X and every owner, where expressions are defined; None if none of a few does."""
    size = study.compiled.lower.size
    candidates = [np.zeros(size)]
    for x in study.x_points[:4]:
        candidates += [study.lower.project(x, np.zeros(size), owner) for _, owner in study.set_owners[:4]]
    for candidate in candidates:
        values = {leaf: Interval.of(np.asarray(v)) for leaf, v in study.compiled.lower.split(candidate).items()}
        every = [{**holder.known, **values} for holder in study.holders.clients]
        inside = all(_holds(c, known) for known in every for c in study.lower_constraints)
        if inside and all(Enclosure(known, definite=True).defined(e) for known in every for e in defined):
            return candidate
    return None


def _holds(constraint: Constraint, known: Known) -> bool:
    """Whether intervals prove that the constraint holds."""
    if (compared := sides_of(constraint)) is None:
        return False
    *sides, equal = compared
    left, right = (enclose(side, known) for side in sides)
    return bool((left.hi <= right.lo).all()) and (not equal or bool((left.lo >= right.hi).all()))


def upper_sets(study: Examination) -> Examined:
    """Examine the X_i: whether they have a point in common, and the constants B_1 and B_2 of their dissimilarity (inequality (2) of [2S])."""
    compiled, assumption = study.compiled, study.assumption("(iii)", "hfl")
    name, known = "X nonempty, closed and convex", compiled.known_upper_set
    if known.has_point(compiled.laid_out().clients.public):
        nonempty = Finding(name, "proved", "a point of X was found; convex by CVXPY's rules", assumption)
    else:
        written = ", ".join(map(expression_text, known.constraints))
        nonempty = Finding(name, "violated", f"X is empty: no x satisfies {written}", assumption)
    b1, b2, rule, reason = _dissimilarity(study)
    alike = Finding("set dissimilarity", "proved" if rule else "unknown", reason, assumption)
    constants = (Constant("B_1", b1, "<=", rule or "unknown"), Constant("B_2", b2, "<=", rule or "unknown"))
    return Examined((nonempty, alike), constants)


def _dissimilarity(study: Examination) -> tuple[float, float, str, str]:
    """(B_1, B_2, by which rule, empty where nothing is known, and all that in words)."""
    if study.compiled.private_set is None:
        free = not study.compiled.upper_set.blocks
        b2, rule = (0.0, "no constraints on x") if free else (1.0, "all X_i are the same set")
        return 0.0, b2, rule, f"B_1 = 0, B_2 = {b2:.0f}: {rule}"
    # the diameter D of a box around all X_i, by which dist(x, X_i) <= |x - mean of P_i(x)| + D
    problem, ends = study.compiled.declaration, []
    constraints = [*problem.constraints, *attribute_constraints(problem.roles.upper)]
    for variable in problem.roles.upper:
        boxes = [bounds_of(constraints, problem.roles.upper, h.known)[variable.id] for h in study.holders.clients]
        ends.append(np.ravel(np.max([b.hi for b in boxes], axis=0) - np.min([b.lo for b in boxes], axis=0)))
    width = float(np.linalg.norm(np.concatenate(ends)))
    if not np.isfinite(width):
        return np.inf, np.inf, "", "private sets X_i that are not bounded"
    rule = f"all X_i lie in a box of diameter {width:.6g}"
    b1, b2 = np.sqrt(2) * width * (1 + 1e-12), float(np.nextafter(np.sqrt(2), 2))
    return b1, b2, rule, f"B_1^2 = 2 D^2, B_2^2 = 2: {rule}"


_FAR = (1.0, 1e2, 1e4, 1e6)


def has_a_solution(study: Examination, moduli: Moduli, nonempty: Finding) -> Finding:
    """Whether the lower level attains a minimum for every x: Y(x) is nonempty, and there is one where it is."""
    name = "lower level has a solution"
    if nonempty.status == "violated":
        return replace(nonempty, name=name, assumption="")
    attained = _attained(study, moduli, name)
    if nonempty.status != "proved" and attained.status == "proved":
        reason = f"{attained.reason}; that Y(x) is nonempty is {nonempty.status}: {nonempty.reason}"
        return replace(nonempty, name=name, assumption="", reason=reason)
    return attained


def _attained(study: Examination, moduli: Moduli, name: str) -> Finding:
    """By strong convexity, by a compact Y(x), or else look for a direction to infinity."""
    level, compact = study.below, bool(np.isfinite(diameter(study)))
    if moduli.own_mu > 0 or compact:
        why = "continuous over a compact convex set" if compact else "strongly convex (monotone) over a closed convex set"
        known = [Enclosure(holder.known, definite=True) for holder in study.holders.clients]
        if all(one.defined(e) for one in known for e in level.expressions) or _common_point(study, level.expressions) is not None:
            return Finding(name, "proved", why) if compact or moduli.proved else Finding(name, "sampled", f"{why}, by what stands for the data")
        return Finding(name, "unknown", f"{why}, and no y of Y(x) is known at which it has a value for every x of X")
    hoisted = hoist(level.expressions, level.variables, study.compiled.declaration.known_bounds).expressions
    if level.kind == "equilibrium" or not hoisted[0].is_affine():
        return Finding(name, "unknown", "neither strongly convex nor over a bounded set")
    points = 0
    for label, owner in study.owners[:OWNERS]:
        for x in study.x_points[:3]:
            escape = _recession(study, x, owner)
            points += 1
            if escape is not None:
                start, direction, slope = escape
                shaped = study.compiled.lower.unflatten
                witness = {"client": label, "x": study.compiled.upper.unflatten(x), "y": shaped(start), "direction": shaped(direction), "slope": slope}
                reason = f"the linear objective falls without end: its slope along a direction that never leaves Y(x) is {slope:.6g}"
                return Finding(name, "violated", reason, witness=witness)
    return Finding(name, "sampled", "no direction of descent that stays in Y(x)", points=points)


def _recession(study: Examination, x: np.ndarray, owner: Weighted) -> tuple[np.ndarray, np.ndarray, float] | None:
    """Look for (y, d, slope) with y + t d in Y(x) for all t that are tried, while the linear objective falls along d."""
    size = study.compiled.lower.size
    slope = study.lower.operator(x, np.zeros(size), owner)
    constraints, twins = instantiated(study, x, owner)
    flat = cp.hstack([cp.reshape(twin, (twin.size,), order="C") for twin in twins])
    start = study.lower.project(x, np.zeros(size), owner)
    far = []
    for radius in (1e2, 2e2):
        problem = cp.Problem(cp.Minimize(slope @ flat), [*constraints, cp.norm_inf(flat - start) <= radius])
        if status_of(problem) not in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE):
            return None
        far.append(np.asarray(flat.value, dtype=float))
    direction = (far[1] - far[0]) / 1e2
    direction[np.abs(direction) < 1e-6] = 0.0
    if not direction.any() or slope @ direction >= -1e-9 * np.linalg.norm(slope):
        return None
    direction /= np.linalg.norm(direction)
    for length in _FAR:
        point, begin = start + length * direction, 0
        for twin in twins:
            twin.save_value(point[begin : begin + twin.size].reshape(twin.shape))
            begin += twin.size
        if max((float(np.max(c.violation())) for c in constraints), default=0.0) > 1e-6 * (1.0 + length):
            return None
    return start, direction, float(slope @ direction)

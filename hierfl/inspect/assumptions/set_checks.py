"""The sets X and Y(x): nonempty, closed and convex, bounded; and lower levels that are unbounded below."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
from cvxpy.constraints import Equality, Inequality, NonNeg, NonPos, Zero

from hierfl.analysis.enclosure import Known, enclose
from hierfl.analysis.hoist import hoist, instantiate
from hierfl.analysis.variable_attributes import attribute_constraints
from hierfl.analysis.variable_bounds import bounds_of
from hierfl.atoms.intervals import Interval
from hierfl.inspect.assumptions.findings import Constant, Finding
from hierfl.inspect.assumptions.lower_map import Weighted
from hierfl.inspect.assumptions.study import Study
from hierfl.language.sample import ClientParameter

_SETS = {
    "nn": "",
    "bl": "[2S] Assumption 2 (iv)",
    "mm": "[2S] Assumption 2 (iv)",
    "2s": "[2S] Assumption 3 (iv)",
    "hfl": "[HFL] Assumption 1 (iv)",
}
_UPPER = {
    "nn": "[NN] Assumption 1 (iii)",
    "bl": "[2S] Assumption 2 (iii)",
    "mm": "[2S] Assumption 2 (iii)",
    "2s": "[2S] Assumption 3 (iii)",
    "hfl": "",
}
_TOLERANCE = 0.0  # gaps allow for rounding themselves
_OWNERS, _ASCENTS, _STEPS = 12, 4, 30
_FAR = (1.0, 1e2, 1e4, 1e6)


# --- X ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Dissimilarity:
    """The findings about X and the constants B_1, B_2 (infinite where unknown)."""

    findings: tuple[Finding, ...]
    constants: tuple[Constant, ...]
    b1: float
    b2: float


def upper_sets(study: Study) -> Dissimilarity:
    """Whether the X_i are nonempty, and their dissimilarity (inequality (2) of [2S])."""
    compiled, assumption = study.compiled, _UPPER[study.problem_class]
    own = study.holders.clients[0].own
    gap = float(np.max(compiled.upper_set.gap(own)))
    nonempty = Finding(
        "X nonempty, closed and convex", "proved", "a point of X was found; convex by CVXPY's rules", assumption
    )
    if not gap <= _TOLERANCE:
        nonempty = Finding(
            nonempty.name, "violated", f"X is empty: its constraints miss each other by {gap:.3g}", assumption
        )
    name = "set dissimilarity"
    if compiled.private_set is None:
        free = not compiled.upper_set.blocks
        b2, rule = (0.0, "no constraints on x") if free else (1.0, "all X_i are the same set")
        return _dissimilar(
            nonempty, Finding(name, "proved", f"B_1 = 0, B_2 = {b2:.0f}: {rule}", assumption), 0.0, b2, rule
        )
    width = _spread_of_sets(study)
    if not np.isfinite(width):
        return _dissimilar(
            nonempty, Finding(name, "unknown", "private sets X_i that are not bounded", assumption), np.inf, np.inf, ""
        )
    rule = f"all X_i lie in a box of diameter {width:.6g}"
    return _dissimilar(
        nonempty,
        Finding(name, "proved", f"B_1^2 = 2 D^2, B_2^2 = 2: {rule}", assumption),
        np.sqrt(2) * width * (1 + 1e-12),
        float(np.nextafter(np.sqrt(2), 2)),
        rule,
    )


def _dissimilar(nonempty: Finding, finding: Finding, b1: float, b2: float, rule: str) -> Dissimilarity:
    constants = (Constant("B_1", b1, "<=", rule or "unknown"), Constant("B_2", b2, "<=", rule or "unknown"))
    return Dissimilarity((nonempty, finding), constants, b1, b2)


def _spread_of_sets(study: Study) -> float:
    """Diameter D of a box around all X_i: dist(x, X_i) <= |x - mean of P_i(x)| + D."""
    problem = study.compiled.declaration
    constraints = [*problem.constraints, *attribute_constraints(problem.roles.upper)]
    parts = []
    for variable in problem.roles.upper:
        boxes = [bounds_of(constraints, problem.roles.upper, h.known)[variable.id] for h in study.holders.clients]
        low, high = np.min([b.lo for b in boxes], axis=0), np.max([b.hi for b in boxes], axis=0)
        parts.append(float(np.linalg.norm(high - low)))
    return float(np.linalg.norm(parts))


# --- Y(x) ------------------------------------------------------------------------------------------------------


def lower_sets(study: Study) -> tuple[Finding, ...]:
    """Whether Y(x) is nonempty on X, closed and convex, bounded."""
    assumption = _SETS[study.problem_class]
    convex = Finding("Y(x) closed and convex", "proved", "by CVXPY's rules, for every x of X", assumption)
    return (_nonempty(study, assumption), convex, _bounded(study, assumption))


def diameter(study: Study) -> float:
    """The largest distance between two points of any Y(x), infinity where Y(x) may be unbounded."""
    assert study.level is not None
    variables = study.level.variables
    constraints = [*study.level.constraints, *attribute_constraints(variables)]
    sizes = []
    for holder in study.holders.clients:
        boxes: Known = holder.known
        if study.movement.kind != "moving":  # a translation does not change it: look at x = 0
            here = {v.id: Interval.of(np.zeros(v.shape)) for v in study.compiled.upper.variables}
            free = {leaf: box for leaf, box in holder.known.items() if leaf not in {v.id for v in variables}}
            boxes = bounds_of(constraints, variables, {**free, **here})
        sizes.append(np.linalg.norm([np.linalg.norm(boxes[v.id].hi - boxes[v.id].lo) for v in variables]))
    return float(np.max(sizes)) * (1 + 1e-12)


def _bounded(study: Study, assumption: str) -> Finding:
    needed = assumption if study.problem_class == "2s" else ""
    size = diameter(study)
    if np.isfinite(size):
        return Finding("Y(x) bounded", "proved", f"in a box of diameter {size:.6g} for each x of X", needed)
    return Finding("Y(x) bounded", "unknown", "no bounds on y follow from its constraints on X", needed)


def _nonempty(study: Study, assumption: str) -> Finding:
    name = "Y(x) nonempty"
    compiled = study.compiled
    if compiled.lower_set is None or not compiled.lower_set.blocks:
        return Finding(name, "proved", "y is unconstrained", assumption)
    x = study.x_points[0]
    here = [(label, owner, study.lower.gap(x, owner)) for label, owner in study.set_owners]
    empty = next(((label, owner) for label, owner, gap in here if gap > _TOLERANCE), None)
    if empty is not None and _infeasible(study, x, empty[1]):
        return _empty(study, x, empty[0], assumption)
    if empty is None and study.movement.kind != "moving" and not _leaves_out_samples(study):
        return Finding(name, "proved", f"Y(x) is {study.movement.kind}, and a point of it was found", assumption)
    point = _common_point(study) if empty is None else None
    if point is not None:
        return Finding(
            name,
            "proved",
            f"y = {np.array2string(point, threshold=6, precision=4)} lies in Y(x) for every x of X",
            assumption,
        )
    return _search_empty(study, name, assumption)


def _leaves_out_samples(study: Study) -> bool:
    """Whether the set depends on samples of which only some were looked at."""
    if study.compiled.lower_set is None or study.compiled.scope != "sample" or study.holders.every_sample:
        return False
    samples = {leaf for table in study.holders.data.clients.tables for leaf in table.samples}
    return bool(samples & study.compiled.lower_set.depends_on)


def _common_point(study: Study) -> np.ndarray | None:
    """A y that intervals prove to lie in Y(x) for all x of X and every owner."""
    level = study.level
    assert level is not None
    constraints = [*level.constraints, *attribute_constraints(level.variables)]
    size = study.compiled.lower.size
    candidates = [np.zeros(size)]
    for x in study.x_points[:4]:
        candidates += [study.lower.project(x, np.zeros(size), owner) for _, owner in study.set_owners[:4]]
    for candidate in candidates:
        values = {leaf: Interval.of(np.asarray(v)) for leaf, v in study.compiled.lower.split(candidate).items()}
        if all(_holds(c, {**h.known, **values}) for h in study.holders.clients for c in constraints):
            return candidate
    return None


def _holds(constraint: Any, known: Known) -> bool:
    """Whether intervals prove the constraint."""
    if isinstance(constraint, (Inequality, Equality)):
        left, right = (enclose(argument, known) for argument in constraint.args)
        below = bool((left.hi <= right.lo).all())
        return below and (isinstance(constraint, Inequality) or bool((left.lo >= right.hi).all()))
    if isinstance(constraint, (NonNeg, NonPos, Zero)):
        found = enclose(constraint.args[0], known)
        low = isinstance(constraint, NonPos) or bool((found.lo >= 0).all())
        return low and (isinstance(constraint, NonNeg) or bool((found.hi <= 0).all()))
    return False


def _search_empty(study: Study, name: str, assumption: str) -> Finding:
    """Look for x in X with an empty Y(x): points of X, then ascent on the gap from the worst of them."""
    owners = study.set_owners[:_OWNERS]
    exact = study.compiled.lower_set is not None and study.compiled.lower_set.is_exact
    points = study.x_points if exact else study.x_points[:8]
    worst: list[tuple[float, np.ndarray, str, Weighted]] = []
    for label, owner in owners:
        worst += [(study.lower.gap(x, owner), x, label, owner) for x in points]
    worst.sort(key=lambda entry: -entry[0])
    tried = len(worst)
    doubtful = False
    for gap, x, label, owner in worst[:_ASCENTS]:
        if gap <= _TOLERANCE and exact:
            gap, x, steps = _ascend(study, x, owner)
            tried += steps
        if gap > _TOLERANCE and _infeasible(study, x, owner):
            return _empty(study, x, label, assumption)
        doubtful = doubtful or gap > _TOLERANCE
    if doubtful:
        reason = "at a point of X the projection misses Y(x), but CVXPY does not find Y(x) empty there"
        return Finding(name, "unknown", reason, assumption, tried, worst[0][0])
    reason = "a point of Y(x) was found at every point of X that was tried"
    return Finding(name, "sampled", reason, assumption, tried, worst[0][0])


def _ascend(study: Study, x: np.ndarray, owner: Weighted) -> tuple[float, np.ndarray, int]:
    """Projected gradient ascent on the gap, with growing steps."""
    gap, own = study.lower.gap_function, owner[0][1].own
    slope = jax.jit(jax.grad(gap))
    best = float(gap(jnp.asarray(x), own))
    step, used = 1.0, 0
    while used < _STEPS:
        used += 1
        direction = np.asarray(slope(jnp.asarray(x), own))
        if not np.isfinite(direction).all() or not direction.any() or best > _TOLERANCE:
            break
        other = study.project_x(x + step * direction / np.linalg.norm(direction))
        value = float(gap(jnp.asarray(other), own))
        step = 2 * step if value > best else 0.25 * step
        if value > best:
            best, x = value, other
    return best, x, used


def _empty(study: Study, x: np.ndarray, label: str, assumption: str) -> Finding:
    witness = {"x": study.compiled.upper.unflatten(x), "client": label}
    return Finding("Y(x) nonempty", "violated", "Y(x) is empty at a point of X", assumption, witness=witness)


def _instantiated(study: Study, x: np.ndarray, owner: Weighted) -> tuple[list[Any], list[cp.Variable]]:
    """Y(x)'s constraints with numbers for everything but y, over twins."""
    level = study.level
    assert level is not None
    holders = [holder for _, holder in owner]
    values = {
        **{v.id: np.asarray(a) for v, a in zip(study.compiled.upper.variables, study.compiled.upper.split(x).values())}
    }
    built: list[Any] = []
    for holder in holders:
        numbers = values | {leaf: np.asarray(v) for leaf, v in holder.own.items()}
        constraints = [*level.constraints, *attribute_constraints(level.variables)]
        leaves = {
            leaf: numbers[leaf.id]
            for c in constraints
            for leaf in [*c.variables(), *c.parameters()]
            if leaf.id in numbers
        }
        private = [c for c in constraints if any(isinstance(p, ClientParameter) for p in c.parameters())]
        built += instantiate(constraints if not built else private, leaves)
    hoisted = hoist(built, level.variables)
    return [c for c in hoisted.expressions if c.variables()], [hoisted.twins[v] for v in level.variables]


def _infeasible(study: Study, x: np.ndarray, owner: Weighted) -> bool:
    """CVXPY's second opinion."""
    constraints, _ = _instantiated(study, x, owner)
    if not constraints:
        return True
    problem = cp.Problem(cp.Minimize(0), constraints)
    return _status(problem) in (cp.INFEASIBLE, cp.INFEASIBLE_INACCURATE)


def _status(problem: cp.Problem) -> str:
    """How CVXPY's solve ended; a solver that gives up has shown nothing."""
    try:
        problem.solve(solver=cp.CLARABEL)
    except cp.SolverError:
        return str(cp.SOLVER_ERROR)
    return str(problem.status)


# --- bounded below ---------------------------------------------------------------------------------------------


def bounded_below(study: Study, mu: float) -> Finding:
    """Whether the lower level attains a minimum: strong convexity, a compact Y(x), or else a recession direction."""
    name = "lower level has a solution"
    level = study.level
    assert level is not None
    if mu > 0:
        return Finding(name, "proved", "strongly convex (monotone) over a closed convex set")
    if np.isfinite(diameter(study)):
        return Finding(name, "proved", "continuous over a compact convex set")
    hoisted = hoist(level.expressions, level.variables, study.compiled.declaration.known_bounds).expressions
    if level.kind == "equilibrium" or not hoisted[0].is_affine():
        return Finding(name, "unknown", "neither strongly convex nor over a bounded set")
    points = 0
    for label, owner in study.owners[:_OWNERS]:
        for x in study.x_points[:3]:
            found = _recession(study, x, owner)
            points += 1
            if found is not None:
                start, direction, slope = found
                lower = study.compiled.lower
                witness = {
                    "client": label,
                    "x": study.compiled.upper.unflatten(x),
                    "y": lower.unflatten(start),
                    "direction": lower.unflatten(direction),
                    "slope": slope,
                }
                reason = f"the linear objective falls without end: its slope along a direction that never leaves Y(x) is {slope:.6g}"
                return Finding(name, "violated", reason, witness=witness)
    return Finding(name, "sampled", "no direction of descent that stays in Y(x)", points=points)


def _recession(study: Study, x: np.ndarray, owner: Weighted) -> tuple[np.ndarray, np.ndarray, float] | None:
    """(y, d, slope): y + t d in Y(x) for all t that were tried, while the linear objective falls along d."""
    size = study.compiled.lower.size
    slope = study.lower.operator(x, np.zeros(size), owner)
    constraints, twins = _instantiated(study, x, owner)
    flat = cp.hstack([cp.reshape(twin, (twin.size,), order="C") for twin in twins])
    start = study.lower.project(x, np.zeros(size), owner)
    far = []
    for radius in (1e2, 2e2):
        problem = cp.Problem(cp.Minimize(slope @ flat), [*constraints, cp.norm_inf(flat - start) <= radius])
        if _status(problem) not in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE):
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

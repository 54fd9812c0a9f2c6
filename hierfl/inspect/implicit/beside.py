"""Whether f has a gradient at a point, as gradients next to it say, and whether it jumps next to where it is best.

Formulas for y(x), and atoms with kinks, have a derivative everywhere by some convention, one between two slopes where f has two. Next
to the point, there and back along directions without anything special, they have their own; where f is differentiable these tend
to one limit, which is the gradient even where the convention says otherwise. A smooth piece that bends steeply differs ever less
over ever shorter steps, a kink does not. All that is asked only where a switch of such a kink is near zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import cvxpy as cp
import numpy as np
from jaxtyping import Bool, Float

from hierfl.analysis.convexity import kinked_atom
from hierfl.analysis.enclosure import Enclosure
from hierfl.atoms.table import holds_code
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.implicit_differentiation import evaluated_with_gradient, unchecked_gradient
from hierfl.compiler.lower_level.certificate import Evaluation
from hierfl.compiler.lower_level.diagnosis import require_gradient, warn_of_several
from hierfl.compiler.oracles import lower_constraints
from hierfl.compiler.starting_points import on_upper_set
from hierfl.descent.implicit_oracle import FAILURES
from hierfl.inspect.implicit.points import KEPT_LIMIT, Points
from hierfl.inspect.implicit.smoothing import opposite_ways
from hierfl.jaxtools.cheap_jit import quick_jit
from hierfl.jaxtools.precision import double_precision

STEPS = 1e-9, 1e-10  # relative to 1 + |x|
LONGER = 1e3  # times as long at most, where y is so much larger than x
LEAP = 1e-8  # of a gradient, and of f, that may change over a step
FLAT = 1e-2  # of 1 + |f|, below which the size of a gradient is rounding
LASTING = 0.2  # by how much what stays of a leap over a shorter step may differ from it
ALIKE = 1e-6  # of a gradient, up to which two are one
NEAR = 1e-6  # a switch, relative to 1 + the largest, that may be at zero
MORE = 6  # ways, where what is beside the point is not what the point is said to have


@double_precision
def gradient_beside(problem: CompiledProblem, x: np.ndarray) -> np.ndarray:
    """The gradient of f at x, oriented for minimisation; ``NoGradientError`` where f has none, other errors as for ``ExactLower.at``."""
    evaluation, gradient = evaluated_with_gradient(problem, x)
    require_gradient(problem, x, evaluation, gradient)
    method, key = problem.exact.method, ("unseen kinks", problem.parameter_values)
    told = method is None or method.tells_kinks  # where y(x) has kinks
    iterated = method is not None and method.iterative  # y is known to the tolerance then, and kinks are not looked for
    may_have = not iterated and problem.programs.keep(key, lambda: _has_kinks(problem, told))
    if may_have and _is_near_kinks(problem, x, evaluation, told):
        beside = Beside(partial(unchecked_gradient, problem), np.asarray(x, float), evaluation, gradient)
        gradient = beside.gradient()
        require_gradient(problem, x, evaluation, gradient)
    warn_of_several(problem, evaluation.solution, problem.exact.method)
    return gradient


def _is_near_kinks(problem: CompiledProblem, x: np.ndarray, evaluation: Evaluation, told: bool) -> bool:
    """Whether the switch of a kink that nothing tells is near zero, or may be."""
    switches = Points(problem).switches
    if switches.opaque or switches.entries > KEPT_LIMIT:
        return True
    asked = problem.programs.keep("switches at", lambda: quick_jit(switches.values))
    answers = None if evaluation.solution is None else evaluation.solution.y
    values = np.abs(asked(x, answers, problem.data()))
    level = problem.declaration.lower_level
    if told and (level is None or level.kind not in ("equilibrium", "sequence")):  # whose own map may have kinks, as gradients have none
        values = values[~switches.of_answers]
    return bool((values <= NEAR * (1.0 + values.max(initial=0.0))).any()) or not np.isfinite(values).all()


def _has_kinks(problem: CompiledProblem, told: bool) -> bool:
    """Whether anything in a declaration has kinks, but for those of y(x) if they are ``told``."""
    declaration, level = problem.declaration, problem.declaration.lower_level
    upper, both = problem.upper.variables, (*problem.upper.variables, *problem.lower.variables)
    enclosure = Enclosure(declaration.known_bounds)

    def kinked(expression: Any, variables: Sequence[cp.Variable]) -> bool:
        return kinked_atom(expression, variables, enclosure) is not None or holds_code(expression)

    if any(kinked(term, both) for term in declaration.objective.terms):
        return True
    if level is None:
        return False
    if not told and problem.lower_set.kind != "free":
        return True
    sides = [argument for constraint in lower_constraints(declaration) for argument in constraint.args]
    of_level = [(part, both if level.kind in ("equilibrium", "sequence") else upper) for part in level.expressions]
    parts = [*of_level, *((side, both if level.kind == "sequence" else upper) for side in sides)]
    return any(kinked(part, own if told else both) for part, own in parts)


@dataclass(frozen=True, eq=False)
class Beside:
    """f next to ``x``, where ``ask`` has its evaluation and gradient, and at x, as it is ``said`` to be."""

    ask: Callable[[np.ndarray], tuple[Evaluation, np.ndarray]]
    x: Float[np.ndarray, " n"]
    evaluation: Evaluation
    said: Float[np.ndarray, " n"]

    def gradient(self) -> Float[np.ndarray, " n"]:
        """f's gradient at x, NaN where it has none; sides on which f has no value do not count."""
        found = self._leaps(self._ways(min(self.x.size, 2)))
        if not found.any():
            return self.said
        if self.x.size > 1 and self._is_limit(found):
            found = np.concatenate([found, self._leaps(self._ways(MORE))])
        return self.said + found[:, :-1].mean(axis=0) if self._is_limit(found) else np.full_like(self.said, np.nan)

    def _ways(self, count: int) -> Float[np.ndarray, "k n"]:
        """So many directions without anything special, and back; the first two have the signs + + + ... and + - + ...."""
        random = np.random.default_rng(count)
        signs = random.choice([-1.0, 1.0], (count, self.x.size))
        signs[0], signs[1:2, ::2], signs[1:2, 1::2] = 1.0, 1.0, -1.0
        y = 0.0 if self.evaluation.solution is None else np.abs(self.evaluation.solution.y).max(initial=0.0)
        longer = np.clip(y / (1.0 + np.abs(self.x).max(initial=0.0)), 1.0, LONGER)
        ways = longer * (1.0 + np.abs(self.x)) * signs * random.uniform(0.5, 1.0, signs.shape)
        return np.concatenate([ways, -ways])

    def _leaps(self, ways: Float[np.ndarray, "k n"]) -> Float[np.ndarray, "m n+1"]:
        """How far gradients, and values, next to x are from what is said of x however close they are; 0 where they tend to it."""
        near = self._changes(ways, STEPS[1])
        if not self._exceed(near).any():
            return np.zeros_like(near)
        far = self._changes(ways, STEPS[0])
        with np.errstate(invalid="ignore"):
            stay = self._exceed(near) & (_sizes(near - far) <= LASTING * _sizes(near))
        leaps = np.where(np.repeat(stay, [self.x.size, 1], axis=1), near, 0.0)
        return leaps[np.isfinite(near).all(axis=1)]

    def _changes(self, ways: Float[np.ndarray, "k n"], step: float) -> Float[np.ndarray, "k n+1"]:
        """By what gradients, and values beyond the slope's, differ a step away from what is said of x; NaN without a value."""
        changes = np.full((len(ways), self.x.size + 1), np.nan)
        for change, way in zip(changes, ways):
            there, slope = self.ask(self.x + step * way)
            if (there.gap <= 0).all() and (there.solution is None or there.solution.converged.all()):
                moved = float(there.value - self.evaluation.value) - step * float(slope @ way)
                change[:] = np.append(slope - self.said, moved)
        return changes

    def _exceed(self, changes: Float[np.ndarray, "k n+1"]) -> Bool[np.ndarray, "k 2"]:
        """Which are more than rounding: of the gradient, and of the value."""
        size = 1.0 + abs(float(self.evaluation.value))
        steep = np.maximum(np.abs(changes[:, :-1] + self.said).max(axis=1), np.abs(self.said).max())
        usual = np.stack([np.maximum(steep, FLAT * size), np.full(len(changes), size)], axis=1)
        with np.errstate(invalid="ignore"):
            return np.asarray(_sizes(changes) > LEAP * usual)

    def _is_limit(self, leaps: Float[np.ndarray, "k n+1"]) -> bool:
        """Whether gradients have one limit, and f does not jump."""
        slopes = self.said + leaps[:, :-1]
        apart = np.ptp(slopes, axis=0).max(initial=0.0)
        return not leaps[:, -1].any() and bool(apart <= ALIKE * np.abs(slopes).max(initial=0.0))


def _sizes(changes: Float[np.ndarray, "k n+1"]) -> Float[np.ndarray, "k 2"]:
    """Of the gradient's part of each, and of the value's."""
    return np.stack([np.abs(changes[:, :-1]).max(axis=1), np.abs(changes[:, -1])], axis=1)


NEXT_TO = 1e-4  # of 1 + |x|: how far from x a jump is looked for
PAIRS = 4  # of opposite directions, one of which crosses a jump
LARGE = 1e-3  # of 1 + |f|: a change over that distance that is a jump, if it stays over ever shorter ones
TOGETHER = 1e-12  # of 1 + |x|: how near to each other the sides are brought, if the lower level is solved so near to its tie


def jump_beside(compiled: CompiledProblem, x: np.ndarray, value: float) -> str:
    """Say that f, ``value`` at x, is worse beyond a jump next to x (n,), on whose very place x is not; empty where no jump is seen.

    With ``selection="optimistic"`` nothing is said: f is lower semicontinuous then, so that the best of a bounded X is attained.
    """
    level = compiled.declaration.lower_level
    if level is None or level.selection == "optimistic" or not np.isfinite(value):
        return ""
    directions = opposite_ways(np.random.default_rng(0), PAIRS, x.size)
    far = NEXT_TO * (1.0 + float(np.linalg.norm(x))) * np.concatenate([directions, -directions])
    others = on_upper_set(compiled, x + far)
    try:
        values = np.array([float(one.value) for one in compiled.exact.at_each(others)])
    except FAILURES:  # where f has values on one side alone, runs say so
        return ""
    large, size = LARGE * (1.0 + abs(value)), 1.0 + float(np.linalg.norm(x))
    place = int(np.argmax(values))
    here, near, beyond, worse = x, value, others[place], float(values[place])
    while large < worse - near < np.inf and np.linalg.norm(here - beyond) > TOGETHER * size:
        middle = 0.5 * (here + beyond)
        try:
            between = float(compiled.exact.at(middle).value)
        except FAILURES:
            break
        if between - near < worse - between:
            here, near = middle, between
        else:
            beyond, worse = middle, between
    may_attain = here is x and level.selection != "pessimistic"  # a worst value is upper semicontinuous: at the jump itself it is that beyond
    if not large < worse - near < np.inf or may_attain:
        return ""
    sides = f"from {compiled.sign * near + 0.0:.6g} to {compiled.sign * worse + 0.0:.6g}, at x = {np.array2string(beyond, precision=6, threshold=6)}"
    attains = ". selection='optimistic' attains it" if level.selection is None else ""
    return f"f jumps next to x, {sides}: f(x) may be a limit that no x attains{attains}"

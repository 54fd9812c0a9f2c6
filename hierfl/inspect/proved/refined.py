"""The end of a search, with what holds there holding to rounding: a tie of the lower level, met to 1e-9 only, would be none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy.sparse as sp
from scipy.optimize import minimize

from hierfl.compiler.programs.saddle import Saddle
from hierfl.compiler.programs.small_and_sparse import diagonal
from hierfl.inspect.proved.polynomials import Definition, Polynomial
from hierfl.inspect.proved.single_level import SingleLevel

NEAR = 1e-7  # of 1 + its size: how near to a bound, or to equality, what holds is
FAR = 1e-5  # of 1 + |value|: a step that leads so far is not taken
STEPS, MOST = 4, 30_000  # of Newton's method, and unknowns that it is tried for
SMALL, FINAL, MOST_STEPS = 60, 1e-15, 30  # unknowns up to which a descent is tried, to which fall of the objective, relative to 1 and to it, and its steps


def refined(program: SingleLevel, values: np.ndarray) -> np.ndarray:
    """The nearest values at which all holds that nearly holds; the same ones where there are none so near."""
    unknowns = program.unknowns
    if len(values) > MOST:
        return values
    low, high = np.array(unknowns.low), np.array(unknowns.high)
    found = np.where(unknowns.whole, np.round(values), values)
    for end in (low, high):
        with np.errstate(invalid="ignore"):
            found = np.where(np.isfinite(end) & (np.abs(found - end) <= NEAR * (1.0 + np.abs(end))), end, found)
    fixed = np.array(unknowns.whole, bool) | (found == low) | (found == high)
    free = np.flatnonzero(~fixed)
    tight = [one for one in program.inequalities if abs(one.at(found)) <= NEAR * (1.0 + abs(one.terms.get((), 0.0)))]
    equations = [*program.all_equations, *tight]
    for _ in range(STEPS):
        with np.errstate(all="ignore"):
            rows = [(one.at(found), one.slopes(found)) for one in equations]
            rows += [one.misses(found) for one in unknowns.definitions]
            left = np.array([value for value, _ in rows])
        entries = [(k, place, slope) for k, (_, slopes) in enumerate(rows) for place, slope in slopes.items() if not fixed[place]]
        if not (np.isfinite(left).all() and np.isfinite([slope for _, _, slope in entries]).all()):
            return values
        if not entries or np.abs(left).max() == 0.0:
            break
        k, place, slope = (np.array(each) for each in zip(*entries))
        matrix = sp.csr_array((slope, (k, place)), (len(rows), len(found)))[:, free]
        shortest = Saddle(diagonal(np.ones(len(free)), matrix), matrix)
        found[free] -= shortest.solve(np.zeros(len(free)), left)[0]
    return found if (np.abs(found - values) <= FAR * (1.0 + np.abs(values))).all() else values


def descended(program: SingleLevel, values: np.ndarray) -> np.ndarray:
    """The end of sequential quadratic programming from some values, the one of every pair that is nearer to 0 held there: the digits that a gap does not ask
    for. The same values where there are too many, or it fails.
    """
    unknowns = program.unknowns
    if len(values) > SMALL:
        return values
    low, high, size = np.array(unknowns.low), np.array(unknowns.high), 1.0 + abs(program.objective.at(values))
    for first, second in program.pairs:
        place = first if values[first] <= values[second] else second
        low[place] = high[place] = 0.0
    start = np.where(unknowns.whole, np.round(values), values)
    low, high = (np.where(unknowns.whole, start, end) for end in (low, high))

    def rows(some: Sequence[Polynomial | Definition], at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(values, derivatives) of rows."""
        found = [one.misses(at) if isinstance(one, Definition) else (one.at(at), one.slopes(at)) for one in some]
        matrix = np.zeros((len(found), len(at)))
        for k, (_, slopes) in enumerate(found):
            matrix[k, list(slopes)] = list(slopes.values())
        return np.array([value for value, _ in found]), matrix

    equal, least = [*program.all_equations, *unknowns.definitions], program.inequalities
    asked = [
        {"type": kind, "fun": lambda at, some=some: rows(some, at)[0], "jac": lambda at, some=some: rows(some, at)[1]}
        for kind, some in (("eq", equal), ("ineq", least))
        if some
    ]
    goal = [program.objective]
    with np.errstate(all="ignore"):
        end = minimize(
            lambda at: rows(goal, at)[0][0] / size,
            np.clip(start, low, high),
            jac=lambda at: rows(goal, at)[1][0] / size,
            bounds=np.stack([low, high], axis=1),
            constraints=asked,
            method="SLSQP",
            options={"ftol": FINAL, "maxiter": MOST_STEPS},
        )
    return end.x if np.isfinite(end.x).all() else values

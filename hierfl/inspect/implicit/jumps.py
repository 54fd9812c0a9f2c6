"""Whether f jumps next to where it is best: what is on one side of a jump may be attained nowhere."""

from __future__ import annotations

import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.starting_points import on_upper_set
from hierfl.descent.answers import FAILURES
from hierfl.inspect.implicit.smoothing import sphere_points

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
    directions = np.ones((1, 1)) if x.size == 1 else sphere_points(np.random.default_rng(0), PAIRS, x.size)
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

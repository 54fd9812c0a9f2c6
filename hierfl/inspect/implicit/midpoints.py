"""A search for a violated midpoint inequality: a witness that f is not convex, where it is maximised that it is not concave."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import SettingError
from hierfl.inspect.argument_checks import require_positive, require_whole
from hierfl.inspect.implicit.points import REASONS, Points
from hierfl.inspect.implicit.smoothing import ball_points, rounding
from hierfl.inspect.window import require_inside
from hierfl.jaxtools.precision import double_precision
from hierfl.language.printing.text import point_text
from hierfl.progress import RunProgress

ROUNDS, SHRINK = 12, 0.7
NOISE = 1e-8  # of |f|, for what the lower level's tolerance leaves
NEAR = 8  # points of a witness at which rounding is measured


@dataclass(frozen=True)
class Midpoints:
    """The worst pair found: ``violation`` = f((a + b) / 2) - (f(a) + f(b)) / 2, positive where f is not convex.

    Where f is maximised, ``sense`` "maximize", it is (f(a) + f(b)) / 2 - f((a + b) / 2), positive where f is not concave.
    ``a``, ``b`` and ``middle`` are in the shapes of x; ``pairs`` is how many were compared, ``undefined`` how many more could not be
    because f has no value at one of the three points. ``violated`` asks for more than rounding and the lower level's tolerance may
    make of f there (rounding is measured). No violation proves nothing.
    """

    a: Any
    b: Any
    middle: Any
    violation: float
    violated: bool
    pairs: int
    undefined: int = 0
    sense: str = "minimize"

    def __str__(self) -> str:
        wanted, side = ("convex", "above") if self.sense == "minimize" else ("concave", "below")
        if not self.violated:
            lost = f" ({self.undefined:,} more have no value at one of their points)" if self.undefined else ""
            return f"no midpoint inequality is violated among {self.pairs:,} pairs{lost}, which does not prove that f is {wanted}"
        a, b = (f"({point_text(end)})" if isinstance(end, dict) else point_text(end) for end in (self.a, self.b))
        return f"not {wanted}: f at the middle of a = {a} and b = {b} is {self.violation:.4g} {side} the mean of f at the two"

    __repr__ = __str__


@double_precision
def midpoints_of(compiled: CompiledProblem, center: Any, radius: float, samples: int, seed: int, progress: bool) -> Midpoints:
    """Search the ball; arguments and errors as for ``ImplicitFunction.convexity``."""
    radius = require_positive("radius", radius)
    samples, seed = require_whole("samples", samples, 1), require_whole("seed", seed, 0)
    centre = compiled.upper.flatten(center, "center")
    require_inside(compiled, centre)
    rng, size = np.random.default_rng(seed), centre.size
    best: tuple[float, np.ndarray] = (-np.inf, np.stack([centre, centre]))
    compared, values = 0, np.zeros(0)
    with RunProgress(3 * samples * (ROUNDS + 1) + 3, "midpoints", progress, "points") as bar:
        points = Points(compiled, progress=bar)
        for turn in range(ROUNDS + 1):  # all over the ball, then around the worst so far, ever closer
            shift = best[1] - centre + SHRINK**turn * radius * ball_points(rng, 2 * samples, size).reshape(samples, 2, size)
            length = np.linalg.norm(shift, axis=-1, keepdims=True)
            pairs = centre + shift * np.minimum(1.0, radius / np.where(length > 0, length, 1.0))
            pairs = points.projected(pairs.reshape(-1, size)).reshape(pairs.shape)
            violation, noise, seen = _violations(points, pairs)
            values = seen if turn == 0 else values
            compared += int(np.sum(np.isfinite(violation)))
            worst = int(np.argmax(violation - noise))
            if violation[worst] - noise[worst] > best[0]:
                best = float(violation[worst] - noise[worst]), pairs[worst]
        if compared == 0:
            reason = REASONS[int(points.values(centre[None]).reason[0])]
            raise SettingError(
                f"f has no value at one or more points of every one of the {samples * (ROUNDS + 1):,} pairs within radius={radius:g} of center"
                f"{reason and f': at center {reason}'}. Take a center where f has a value, or another radius."
            )
        violation, noise, _ = _violations(points, best[1][None])
    beyond = float(violation[0] - noise[0])
    violated = beyond > 0 and beyond > _rounding(points, best[1], values)
    a, b, middle = (compiled.upper.unflatten(x) for x in (*best[1], best[1].mean(axis=0)))
    undefined, sense = samples * (ROUNDS + 1) - compared, compiled.declaration.objective.sense
    return Midpoints(a, b, middle, float(violation[0]), violated, compared, undefined, sense)


def _rounding(points: Points, pair: np.ndarray, values: np.ndarray) -> float:
    """Measure what rounding may make of the violation of a pair (2, n), measured at points of the segment, where numbers are not round."""
    shares = np.random.default_rng(0).random((NEAR, 1))
    return 2 * rounding(points.compiled, np.concatenate([pair, pair[0] + shares * (pair[1] - pair[0])]), values)


def _violations(points: Points, pairs: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Evaluate (f(middle) - mean of f, what the lower level's tolerance may make of it, all values of f) of pairs (k, 2, n).

    Here f is what is minimised: the declared objective, negated where that is maximised. Minus infinity where one of the three has no value.
    """
    triples = np.concatenate([pairs, pairs.mean(axis=1, keepdims=True)], axis=1)
    value = points.compiled.sign * points.values(triples.reshape(-1, pairs.shape[-1])).value.reshape(-1, 3)
    violation = value[:, 2] - value[:, :2].mean(axis=1)
    good = np.isfinite(violation)
    noise = NOISE * (1.0 + np.max(np.abs(np.where(good[:, None], value, 0)), axis=1))
    return np.where(good, violation, -np.inf), noise, value.ravel()

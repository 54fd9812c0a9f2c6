"""f^eta(x) = E f(x + eta u), u uniform in the unit ball, by antithetic Monte Carlo, f queried on X as algorithms ask; and f's noise.

Then a search for a violated midpoint inequality: a witness that f is not convex, where it is maximised that it is not concave.

How far computed values of f may be from exact ones is measured, since what cancels inside f does not show in f. Rounding in single
precision is that of double precision, 2^29 times enlarged: the two differ by what rounding makes of f. Single precision may also lose a
small term in a large one altogether; then the values in double precision are multiples of the large one's last digit, a power of two far
above their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from scipy.special import stdtrit

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import SettingError
from hierfl.inspect.argument_checks import is_number, require_positive, require_whole
from hierfl.inspect.implicit.points import REASONS, Points
from hierfl.inspect.window import require_inside
from hierfl.jaxtools.precision import double_precision
from hierfl.language.printing.text import point_text
from hierfl.progress import RunProgress

ENLARGED = 2.0**29
EPS = float(np.finfo(float).eps)
SAFETY = 32  # errors of a sum of many, at points where they happen to be small
LEAST_LEVELS = 256  # fewer are the values of a step function


def rounding(compiled: CompiledProblem, at: np.ndarray, values: np.ndarray) -> float:
    """Measure what rounding may make of f near the points (k, n), y(x) given; infinite where single precision has no value.

    ``values`` are any more of f, in a larger neighbourhood, in which its last digit shows.
    """
    exact, data = compiled.exact, compiled.data()
    weights = np.asarray(data.clients.weights)
    with jax.enable_x64(False):
        short = compiled.data()
    largest = [last_digit(values)]
    for x in at:
        one = exact.compiled_evaluation(x, data)
        y = None if one.solution is None else np.asarray(one.solution.y).astype(np.float32)
        with jax.enable_x64(False):
            server, clients = exact.compiled_value_at(x.astype(np.float32), y, short)
        apart = abs(float(one.value) - float(server) - weights @ np.asarray(clients, float))
        terms = abs(float(one.server)) + weights @ np.abs(np.asarray(one.clients))
        largest += [apart / ENLARGED, EPS * terms]
    return SAFETY * float(np.max(largest)) if np.isfinite(largest).all() else np.inf


def last_digit(values: np.ndarray) -> float:
    """Find the largest power of two of which all values are multiples; 0 for those of a step function."""
    finite = values[np.isfinite(values) & (values != 0)]
    if not len(finite):
        return 0.0
    fractions, exponents = np.frexp(finite)
    whole = (fractions * 2.0**53).astype(np.int64)
    digit = float(np.min(np.ldexp((whole & -whole).astype(float), exponents - 53)))
    return digit if np.ptp(values[np.isfinite(values)]) >= LEAST_LEVELS * digit else 0.0


LEAST_SAMPLES = 4
UNLIKELY = float(np.log(1 / 0.05))


@double_precision
def smoothed_at(compiled: CompiledProblem, x: Any, eta: float, samples: int, seed: int) -> float:
    """Evaluate f^eta at one point; errors as for ``ImplicitFunction.smoothed``."""
    require_whole("seed", seed, 0)
    (radius,) = radii([eta], samples)
    points, centre = Points(compiled), compiled.upper.flatten(x, "x")
    value = float(smoothed_values(points, centre[None], radius, samples, seed)[0][0])
    if not np.isfinite(value):
        shifts = radius * ball_points(np.random.default_rng(seed), (samples + 1) // 2, centre.size)
        for at in points.projected(centre + np.concatenate([shifts, -shifts])):
            compiled.exact.at(at)  # says what is wrong at the first point without a value
    return value


def smoothed_values(points: Points, centres: np.ndarray, eta: float, samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Estimate (f^eta (k,), half the width of its 95% interval (k,)) at centres (k, n): the same antithetic pairs for every centre.

    The interval is that of the pairs' mean, wider by what a piece that no pair met, of probability up to -log(0.05) / pairs, could add if f is no
    further there from its mean than at the pairs. Of steeper pieces that none met it knows nothing.
    """
    shifts = eta * ball_points(np.random.default_rng(seed), (samples + 1) // 2, centres.shape[1])
    at = (centres[:, None, None] + np.stack([shifts, -shifts], axis=1)).reshape(-1, centres.shape[1])
    values = points.values(points.projected(at)).value.reshape(len(centres), len(shifts), 2).mean(axis=2)
    quantile = float(stdtrit(len(shifts) - 1, 0.975))
    mean = values.mean(axis=1)
    unmet = UNLIKELY / len(shifts) * np.abs(values - mean[:, None]).max(axis=1)
    return mean, quantile * values.std(axis=1, ddof=1) / np.sqrt(len(shifts)) + unmet


def gradient_norm(
    compiled: CompiledProblem, eta: float, ways: np.ndarray, at: np.ndarray, values: np.ndarray, guess: Any = 0.0, steepest: float = 0.0
) -> tuple[float, float, float]:
    """Estimate ||grad (f o P_X)^eta||, and the ends of its 95% interval, by (n / 2 eta) E (f(x + eta v) - f(x - eta v)) v.

    The values are those at the projections ``at`` (2 k, n) of x + eta v, then of x - eta v, for ways v (k, n); they count jumps as well.
    What ``guess`` (n,), drawn independently, says of the differences is taken off, and added to the mean, which it does not change. In one
    dimension the two values say it all, up to rounding. In more, the interval is the tail bound of Laurent and Massart (2000) for a weighted
    sum of squares, wider by what a piece that no pair met, of probability up to -log(0.05) / k, could add if f is no steeper there than
    ``steepest`` and between the pairs.
    """
    count, size = ways.shape
    slopes = (values[:count] - values[count:]) / (2 * eta)
    if size == 1:
        norm, radius = abs(float(slopes[0])), rounding(compiled, at, values) / eta
    else:
        guess = np.broadcast_to(guess, size)
        estimates = guess + size * (slopes - ways @ guess)[:, None] * ways
        norm = float(np.linalg.norm(estimates.mean(axis=0)))
        radius = _tail(estimates) + UNLIKELY / count * max(steepest, float(np.max(np.abs(slopes))))
    return norm, max(0.0, norm - radius), norm + radius


def _tail(estimates: np.ndarray) -> float:
    """Bound how far the mean of vectors (k, n) is from its expectation, with 95% confidence."""
    count = len(estimates)
    spread = np.linalg.svd(estimates - estimates.mean(axis=0), compute_uv=False) ** 2 / (count - 1)
    squared = np.sum(spread) + 2 * np.sqrt(UNLIKELY * np.sum(spread**2)) + 2 * UNLIKELY * np.max(spread, initial=0.0)
    return float(np.sqrt(squared / count))


def sphere_points(rng: np.random.Generator, count: int, size: int) -> np.ndarray:
    """Draw uniformly from the unit sphere, ``(count, size)``."""
    normal = rng.standard_normal((count, size))
    return np.asarray(normal / np.linalg.norm(normal, axis=1, keepdims=True))


def ball_points(rng: np.random.Generator, count: int, size: int) -> np.ndarray:
    """Draw uniformly from the unit ball, ``(count, size)``."""
    return sphere_points(rng, count, size) * rng.random((count, 1)) ** (1 / size)


def opposite_ways(rng: np.random.Generator, count: int, size: int) -> np.ndarray:
    """Directions to look along there and back, ``(count, size)``; of a number there is one."""
    return sphere_points(rng, count, size) if size > 1 else np.ones((1, 1))


def radii(smoothing: Any, samples: Any) -> tuple[float, ...]:
    """Check one eta or several, and give them as numbers, none for None; raises ``SettingError``, naming the argument."""
    given = smoothing if isinstance(smoothing, (Sequence, np.ndarray)) and np.ndim(smoothing) else [smoothing]
    etas = () if smoothing is None else tuple(given)
    if not all(is_number(eta) and 0 < eta < np.inf for eta in etas):
        raise SettingError(f"smoothing={smoothing!r}: radii eta, finite numbers above 0.")
    require_whole("samples", samples, LEAST_SAMPLES)
    return tuple(map(float, etas))


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
            where = f"every one of the {samples * (ROUNDS + 1):,} pairs within radius={radius:g} of center{reason and f': at center {reason}'}"
            raise SettingError(f"f has no value at one or more points of {where}. Take a center where f has a value, or another radius.")
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

"""f^eta(x) = E f(x + eta u), u uniform in the unit ball, by antithetic Monte Carlo, f queried on X as algorithms ask; and f's noise.

How far computed values of f may be from exact ones is measured, since what cancels inside f does not show in f. Rounding in single
precision is that of double precision, 2^29 times enlarged: the two differ by what rounding makes of f. Single precision may also lose a
small term in a large one altogether; then the values in double precision are multiples of the large one's last digit, a power of two far
above their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from scipy.special import stdtrit

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import SettingError
from hierfl.inspect.argument_checks import require_whole
from hierfl.inspect.implicit.points import Points
from hierfl.jaxtools.precision import double_precision

ENLARGED = 2.0**29
EPS = float(np.finfo(float).eps)
SAFETY = 32  # errors of a sum of many, at points where they happen to be small
LEAST_LEVELS = 256  # fewer are the values of a step function


def rounding(compiled: CompiledProblem, at: np.ndarray, values: np.ndarray) -> float:
    """Measure what rounding may make of f near the points (k, n), y(x) given; infinite where single precision has no value.

    ``values`` are any more of f, in a larger neighbourhood, in which its last digit shows.
    """
    exact, data = compiled.exact, compiled.data()
    evaluations = [exact.compiled_evaluation(x, data) for x in at]
    answers = [None if one.solution is None else np.asarray(one.solution.y) for one in evaluations]
    with jax.enable_x64(False):
        short = compiled.data()
        single = [
            exact.compiled_value_at(x.astype(np.float32), None if y is None else y.astype(np.float32), short)
            for x, y in zip(at, answers)
        ]
    weights = np.asarray(data.clients.weights)
    apart = [
        abs(float(one.value) - float(s) - weights @ np.asarray(c, float)) for one, (s, c) in zip(evaluations, single)
    ]
    terms = [abs(float(one.server)) + weights @ np.abs(np.asarray(one.clients)) for one in evaluations]
    largest = max(float(np.max(apart)) / ENLARGED, EPS * float(np.max(terms)), last_digit(values))
    return SAFETY * largest if np.isfinite(largest) else np.inf


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


def smoothed_values(
    points: Points, centres: np.ndarray, eta: float, samples: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Estimate (f^eta (k,), half the width of its 95% interval (k,)) at centres (k, n): the same antithetic pairs for every centre."""
    shifts = eta * ball_points(np.random.default_rng(seed), (samples + 1) // 2, centres.shape[1])
    at = (centres[:, None, None] + np.stack([shifts, -shifts], axis=1)).reshape(-1, centres.shape[1])
    values = points.values(points.projected(at)).value.reshape(len(centres), len(shifts), 2).mean(axis=2)
    quantile = float(stdtrit(len(shifts) - 1, 0.975))
    return values.mean(axis=1), quantile * values.std(axis=1, ddof=1) / np.sqrt(len(shifts))


def smoothed_gradient(
    points: Points,
    centre: np.ndarray,
    eta: float,
    pairs: int,
    guess: np.ndarray,
    steepest: float,
    rng: np.random.Generator,
) -> tuple[float, tuple[float, float]]:
    """Estimate (||grad (f o P_X)^eta||, its 95% interval) from values on the sphere: (n / 2 eta) E (f(x + eta v) - f(x - eta v)) v.

    They count jumps as well. What ``guess`` (n,), drawn independently, says of the differences is taken off, and added to the mean,
    which it does not change. In one dimension the two values say it all, up to rounding. In more, the interval is the tail bound of
    Laurent and Massart (2000) for a weighted sum of squares, wider by what a piece that no pair met, of probability up to
    -log(0.05) / pairs, could add if f is no steeper there than ``steepest`` and between the pairs.

    Raises ``SettingError`` if f has no value at one of the points.
    """
    directions = sphere_points(rng, pairs, centre.size) if centre.size > 1 else np.ones((1, 1))
    at = points.projected(centre + eta * np.concatenate([directions, -directions]))
    values = points.values(at).value
    if not np.isfinite(values).all():
        raise SettingError(f"f has no value at some of the points within eta={eta:g} of x: take a smaller eta.")
    return gradient_norm(points.compiled, at, values, eta, directions, guess, steepest)


def gradient_norm(
    compiled: CompiledProblem,
    at: np.ndarray,
    values: np.ndarray,
    eta: float,
    directions: np.ndarray,
    guess: np.ndarray,
    steepest: float,
) -> tuple[float, tuple[float, float]]:
    """(||grad (f o P_X)^eta||, its 95% interval) as for ``smoothed_gradient``, from values at x + eta v, then at x - eta v, for all v."""
    slopes = (values[: len(directions)] - values[len(directions) :]) / (2 * eta)
    if directions.shape[1] == 1:
        norm, radius = abs(float(slopes[0])), rounding(compiled, at, values) / eta
    else:
        estimates = guess + directions.shape[1] * (slopes - directions @ guess)[:, None] * directions
        norm = float(np.linalg.norm(estimates.mean(axis=0)))
        radius = _tail(estimates) + UNLIKELY / len(directions) * max(steepest, float(np.max(np.abs(slopes))))
    return norm, (max(0.0, norm - radius), norm + radius)


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
    normal = rng.standard_normal((count, size))
    return np.asarray(rng.random((count, 1)) ** (1 / size) * normal / np.linalg.norm(normal, axis=1, keepdims=True))


def radii(smoothing: Any, samples: Any) -> tuple[float, ...]:
    """Check one eta or several, and give them as numbers; none for None.

    Raises ``SettingError``, naming the argument.
    """
    given = smoothing if isinstance(smoothing, (Sequence, np.ndarray)) and np.ndim(smoothing) else [smoothing]
    etas = () if smoothing is None else tuple(given)
    if not all(isinstance(eta, (int, float, np.number)) and not isinstance(eta, bool) for eta in etas) or not all(
        0 < eta < np.inf for eta in etas
    ):
        raise SettingError(f"smoothing={smoothing!r}: radii eta, finite numbers above 0.")
    require_whole("samples", samples, LEAST_SAMPLES)
    return tuple(map(float, etas))

"""How stationary a point is: Goldstein's subdifferential by sampling, and the gradient of f^eta with its confidence.

The Goldstein subdifferential d_eta f(x) of a locally Lipschitz f is the convex hull of its gradients at those points of X within eta
of x where it is differentiable; x is (eta, d)-stationary on X where d = dist(0, d_eta f(x) + N_X(p)) is small for one point p of X
within eta of x, N_X(p) the normal cone of X there. Gradients at sampled points and a normal that a projection on X leaves are elements
of the two, so their shortest combination bounds d from above (as in gradient sampling: Burke, Lewis and Overton, 2005): a small
bound certifies, a large one proves nothing. Normals at several points do not count together: two sides of a wedge, both within eta
of x, would make every point near its middle line stationary for every f.

Automatic differentiation is right almost everywhere on X, relative to its affine hull, but not at x itself, which may be a kink,
nor on faces of X, which may lie on one: only points drawn from the relative interior of X are used.

Nor does any of it hold where f jumps. Where f is Lipschitz with constant L, f(b) - f(a) differs from the mean of the two ends' derivatives
along b - a by at most 2 L ||b - a||. So a segment is halved, always keeping the half on which they differ more: the difference dies out at
a kink and at a steep slope, and stays where f jumps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import IncompatibleSolverError, SettingError
from hierfl.inspect.argument_checks import require_positive, require_tolerance, require_whole
from hierfl.inspect.implicit.neighbourhood import Neighbourhood
from hierfl.inspect.implicit.points import Points, shown
from hierfl.inspect.implicit.smoothing import ball_points, rounding, smoothed_gradient
from hierfl.jaxtools.precision import double_precision

HALVINGS = 24
SCREENED, KEPT = 6, 8  # after so many halvings, go on with so many segments, on which the difference is steepest
SHORTEST = 1e3 * np.finfo(float).eps  # of 1 + ||x||
NOISE = 1e-8  # of |f|, for what the lower level's tolerance leaves
STEEPER = 4.0  # times the steepest slope seen: twice the bound


class SegmentJump(NamedTuple):
    """f changes by ``size``, which its slopes do not explain, between two points ``apart`` from each other."""

    size: float
    apart: float


class _Ends(NamedTuple):
    """Points (k, n) with f's values (k,) and gradients (k, n)."""

    at: np.ndarray
    value: np.ndarray
    gradient: np.ndarray

    def chosen(self, which: np.ndarray) -> _Ends:
        return _Ends(*(part[which] for part in self))

    def or_else(self, other: _Ends, first: np.ndarray) -> _Ends:
        return _Ends(
            np.where(first[:, None], self.at, other.at),
            np.where(first, self.value, other.value),
            np.where(first[:, None], self.gradient, other.gradient),
        )


def largest_jump(points: Points, at: np.ndarray, value: np.ndarray, gradient: np.ndarray) -> SegmentJump | None:
    """Find the largest jump on segments from the first of the points (k, n) to the others; None where there is none.

    A jump between any two of the points is one between the first and one of them. Segments on which f has no gradient somewhere are
    left out, and jumps below 1e-8 (1 + |f|), or below what rounding makes of f, do not count.
    """
    far = _Ends(at[1:], value[1:], gradient[1:])
    near = _Ends(at[:1], value[:1], gradient[:1]).chosen(np.zeros(len(at) - 1, int))
    noise = NOISE * (1 + float(np.max(np.abs(value))))
    steepest, shortest = float(np.max(np.linalg.norm(gradient, axis=1))), SHORTEST * (1 + float(np.linalg.norm(at[0])))
    for turn in range(HALVINGS):
        live = _unexplained(near, far) > noise
        if turn == SCREENED:
            live &= _is_among_largest(_unexplained(near, far) / _lengths(near, far), KEPT)
        near, far = near.chosen(live), far.chosen(live)
        if float(np.max(_lengths(near, far), initial=0.0)) <= shortest:
            break
        middle = 0.5 * (near.at + far.at)
        between = _Ends(middle, *points.gradients(middle))
        good = np.isfinite(between.value) & np.isfinite(between.gradient).all(axis=1)
        near, far, between = near.chosen(good), far.chosen(good), between.chosen(good)
        steepest = max(steepest, float(np.max(np.linalg.norm(between.gradient, axis=1), initial=0.0)))
        first = _unexplained(near, between) >= _unexplained(between, far)
        near, far = near.or_else(between, first), between.or_else(far, first)
    size, apart = _unexplained(near, far), _lengths(near, far)
    jumps = size > noise + STEEPER * steepest * apart
    if not jumps.any():
        return None
    place = int(np.argmax(np.where(jumps, size, 0)))
    ends = np.stack([near.at[place], far.at[place]])
    jump = SegmentJump(float(size[place]), float(apart[place]))
    return jump if jump.size > rounding(points.compiled, ends, value) else None


def _unexplained(near: _Ends, far: _Ends) -> np.ndarray:
    mean = 0.5 * (near.gradient + far.gradient)
    return np.asarray(np.abs(far.value - near.value - np.sum(mean * (far.at - near.at), axis=1)))


def _lengths(near: _Ends, far: _Ends) -> np.ndarray:
    return np.asarray(np.linalg.norm(far.at - near.at, axis=1))


def _is_among_largest(values: np.ndarray, count: int) -> np.ndarray:
    return np.argsort(np.argsort(-values)) < count


LEAST_SAMPLES = 64
PAIRS = 4  # of values for the gradient of f^eta, for each gradient
HALVED = 2  # gradients taken for each sampled one, where f is piecewise smooth, to see whether it jumps


@dataclass(frozen=True)
class Stationarity:
    """The picture of f within eta of x.

    Attributes
    ----------
    distance
        Upper bound on the least dist(0, d_eta f(x) + N_X(p)) over points p of X within eta of x: the norm of
        ``weights @ gradients + multipliers @ normals`` (for a maximum, of ``-weights @ gradients + multipliers @ normals``).
    gradients
        The sampled gradients (k, n), oriented as declared; ``weights`` (k,) of the shortest combination sum to 1.
    normals
        A unit normal of X (1, n) at one of its points within eta of x, with ``multipliers`` (1,); or none, (0, n) and (0,).
    jump
        The largest jump of f seen between the sampled points, None where none was. With one, Goldstein's subdifferential says nothing,
        and ``distance`` is infinite.
    smoothed_norm, smoothed_interval
        Estimate of ||grad (f o P_X)^eta(x)|| from values of f, and its 95% interval: exact up to rounding for one scalar x; else for
        pieces that the samples met, and others as rare as the samples allow if f is no steeper there than anywhere seen.
    verdict
        What this says, in words.
    """

    eta: float
    distance: float
    gradients: np.ndarray
    weights: np.ndarray
    normals: np.ndarray
    multipliers: np.ndarray
    jump: SegmentJump | None
    smoothed_norm: float
    smoothed_interval: tuple[float, float]
    verdict: str

    def __str__(self) -> str:
        low, high = self.smoothed_interval
        return (
            f"{self.verdict}\n||grad f^eta|| = {self.smoothed_norm:.3g}, 95% interval [{low:.3g}, {high:.3g}], "
            f"eta = {self.eta:g}, {len(self.gradients)} gradients"
        )


@double_precision
def stationarity_of(
    compiled: CompiledProblem, x: Any, eta: float, *, samples: int | None, tolerance: float, seed: int, progress: bool
) -> Stationarity:
    """Look at f within eta of x; arguments and errors as for ``ImplicitFunction.stationarity``.

    ``tolerance`` is compared with ``distance`` itself, a slope in units of f per unit of x.
    """
    eta, tolerance = require_positive("eta", eta), require_tolerance("tolerance", tolerance)
    seed = require_whole("seed", seed, 0)
    centre = compiled.upper.flatten(x, "x")
    enough = max(LEAST_SAMPLES, 2 * centre.size)
    count = enough if samples is None else require_whole("samples", samples, 2)
    with shown(HALVED * count + 2 * PAIRS * enough, "points", progress) as bar:
        points = Points(compiled, progress=bar)
        if not points.differentiable:
            raise IncompatibleSolverError(
                "stationarity needs gradients of f, which this lower level has not: use implicit.slice, which needs values only."
            )
        near = Neighbourhood.of(points, centre, eta)
        rng = np.random.default_rng(seed)
        around = near.base + eta * ball_points(rng, max(count, enough), centre.size)
        drawn = near.generic(around, count, rng)
        values, gradients = points.gradients(drawn)
        good = np.isfinite(values) & np.isfinite(gradients).all(axis=1)
        if not good.any():
            raise SettingError(f"f has no gradient at any of the points within eta={eta:g} of x: take a smaller eta.")
        jump = largest_jump(points, drawn[good], values[good], gradients[good])
        normals, combination = near.shortest(compiled.sign * gradients[good], around)
        longest = float(np.max(np.linalg.norm(gradients[good], axis=1)))
        norm, interval = smoothed_gradient(
            points, near.base, eta, PAIRS * enough, gradients[good].mean(axis=0), longest, rng
        )
    distance = np.inf if jump else combination.length
    verdict = _no_verdict(jump, eta) if jump else _verdict(distance, eta, tolerance, longest, int(np.sum(~good)))
    return Stationarity(
        eta,
        distance,
        gradients[good],
        combination.weights,
        normals,
        combination.multipliers,
        jump,
        norm,
        interval,
        verdict,
    )


def _no_verdict(jump: SegmentJump, eta: float) -> str:
    return (
        f"not certified: f jumps within {eta:g} of x, by {jump.size:.3g} between two points of X that are {jump.apart:.1g} apart; what its "
        f"gradients say of it does not hold across a jump"
    )


def _verdict(distance: float, eta: float, tolerance: float, longest: float, lost: int) -> str:
    """The certificate in words, or that there is none."""
    note = f" ({lost} of the points have no gradient and were left out)" if lost else ""
    units = f"tolerance={tolerance:g}, an absolute slope in units of f per unit of x; the longest gradient has {longest:.3g}"
    if distance <= tolerance:
        return (
            f"stationary: a convex combination of gradients of f at points of X within {eta:g} of x, plus a normal of X at one such "
            f"point, has norm {distance:.3g}, at most the tolerance ({units}); no jump of f was seen between them{note}"
        )
    return (
        f"not certified: the shortest combination found of gradients of f at points of X within {eta:g} of x, plus a normal of X at "
        f"one such point, has norm {distance:.3g}, above the tolerance ({units}); this proves nothing, more samples may find a "
        f"shorter one{note}"
    )

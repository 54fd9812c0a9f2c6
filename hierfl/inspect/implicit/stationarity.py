"""How stationary a point is: Goldstein's subdifferential by sampling, and the gradient of f^eta with its confidence.

The Goldstein subdifferential d_eta f(x) of a locally Lipschitz f is the convex hull of its gradients at those points of X within eta
of x where it is differentiable; x is (eta, d)-stationary on X where d = dist(0, d_eta f(x) + N_X(p)) is small for one point p of X
within eta of x, N_X(p) the normal cone of X there. Gradients at sampled points and a normal that a projection on X leaves are elements
of the two, so their shortest combination bounds d from above (as in gradient sampling: Burke, Lewis and Overton, 2005): a small
bound certifies, a large one proves nothing. Normals at several points do not count together: two sides of a wedge, both within eta
of x, would make every point near its middle line stationary for every f.

Automatic differentiation is right almost everywhere on X, relative to its affine hull, but not at x itself, which may be a kink,
nor on faces of X, which may lie on one: only points drawn from the relative interior of X are used. What a projection takes off is a
normal of X at the one point where it lands, and every normal of X is of that kind.

Nor does any of it hold where f jumps. Where f is Lipschitz with constant L, f(b) - f(a) differs from the mean of the two ends' derivatives
along b - a by at most 2 L ||b - a||. So a segment is halved, always keeping the half on which they differ more: the difference dies out at
a kink and at a steep slope, and stays where f jumps.

The shortest element of conv(G) + cone(N) for finitely many vectors is found exactly at every scale: with s the sum of the convex
weights, min ||G'w + N'u||^2 + r^2 (s - 1)^2 over w, u >= 0 has the value r^2 D^2 / (r^2 + D^2), D the distance sought, and after
division by s the shortest element itself: one nonnegative least-squares problem (Lawson and Hanson, 1974). Rounding leaves D right to
about sqrt(r) 1e-7; it is solved again with r near D until D no longer falls.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import scipy.optimize

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import IncompatibleSolverError, SettingError
from hierfl.inspect.argument_checks import require_positive, require_tolerance, require_whole
from hierfl.inspect.implicit.points import OUTSIDE, Points
from hierfl.inspect.implicit.smoothing import ball_points, gradient_norm, opposite_ways, rounding
from hierfl.jaxtools.precision import double_precision
from hierfl.language.printing.card import Card, Shown, size_text
from hierfl.progress import RunProgress

PASSES = 12
FALL = 0.9  # another pass while it shortens by more than a tenth
SMALLEST_LEVEL = 1e-15
OPTIMAL = 1e-9  # of the longest gradient


class Combination(NamedTuple):
    """``rest`` (n,) = weights @ gradients + multipliers @ normals; weights (k,) sum to 1, nothing is negative."""

    weights: np.ndarray
    multipliers: np.ndarray
    rest: np.ndarray

    @property
    def length(self) -> float:
        return float(np.linalg.norm(self.rest))


def shortest(gradients: np.ndarray, normals: np.ndarray) -> Combination:
    """Find the shortest element of conv(gradients) + cone(normals), given as rows (k, n) and (j, n), j may be 0.

    Raises ``SettingError`` if the conditions of optimality do not hold to 1e-9 of the longest gradient.
    """
    size, count = float(np.max(np.linalg.norm(gradients, axis=1))), len(gradients)
    if size == 0:
        return Combination(np.full(count, 1 / count), np.zeros(len(normals)), np.zeros_like(gradients[0]))
    lengths = np.linalg.norm(normals, axis=1)
    scaled, units = gradients / size, normals / lengths[:, None]
    level, passes = 1.0, [_solved(scaled, units, 1.0)]
    while passes[-1].length > SMALLEST_LEVEL and len(passes) < PASSES:
        if passes[-1].length >= FALL * level and _gap(passes[-1], scaled, units) <= OPTIMAL:
            break
        level = passes[-1].length
        passes.append(_solved(scaled, units, level))
    gaps = [_gap(combination, scaled, units) for combination in passes]
    if min(gaps) > OPTIMAL:
        raise _unsolved(len(gradients), f"its optimality conditions are violated by {min(gaps):.3g}")
    best = min((one for one, gap in zip(passes, gaps) if gap <= OPTIMAL), key=lambda one: one.length)
    return Combination(best.weights, best.multipliers * size / lengths, best.rest * size)


def _solved(gradients: np.ndarray, normals: np.ndarray, level: float) -> Combination:
    """Solve for r = level, the columns scaled to unit length."""
    count = len(gradients)
    matrix = np.vstack([np.hstack([gradients.T / level, normals.T]), np.repeat([1.0, 0.0], [count, len(normals)])])
    lengths = np.linalg.norm(matrix, axis=0)
    target = np.append(np.zeros(gradients.shape[1]), 1.0)
    try:
        solution, _ = scipy.optimize.nnls(matrix / lengths, target, maxiter=50 * len(lengths))
    except RuntimeError as error:
        raise _unsolved(count, str(error)) from error
    scaled = solution / lengths
    total = np.sum(scaled[:count])
    if not total > 0:
        raise _unsolved(count, "no weight is positive")
    weights, multipliers = scaled[:count] / total, scaled[count:] * level / total
    return Combination(weights, multipliers, weights @ gradients + multipliers @ normals)


def _gap(combination: Combination, gradients: np.ndarray, normals: np.ndarray) -> float:
    """Measure how far the conditions of optimality fail: no gradient shorter along ``rest`` than ``rest``, no normal against it."""
    length = combination.length
    if length <= OPTIMAL:  # nothing is shorter than 0
        return 0.0
    shorter = length - float(np.min(gradients @ combination.rest)) / length
    return max(shorter, -float(np.min(normals @ combination.rest, initial=0.0)))


def _unsolved(count: int, why: str) -> SettingError:
    said = f"the shortest combination of the {count} sampled gradients was not found ({why})"
    return SettingError(f"{said}: take another samples=... or seed=....")


SMALLEST_ETA = 1e-12  # of 1 + ||x||: below, rounding leaves no ball to draw from
CLOSE, SMALLEST_CLOSE, CLOSE_POINTS = 1e-4, 1e-10, 2  # how much closer to x a few more gradients are taken
ROUNDING = 4 * np.finfo(float).eps
BESIDE = 1e-3  # of eta: what counts as one point while normals are looked for
LENGTHS = 64  # of the steps along which a point with a better normal is looked for
TURNS, WALK = 100, 20
SETTLED = 1e-12


class Neighbourhood(NamedTuple):
    """The points of X within eta of ``base``, a point of X."""

    points: Points
    base: np.ndarray
    eta: float

    @classmethod
    def of(cls, points: Points, x: np.ndarray, eta: float) -> Neighbourhood:
        """Make the one around x; raises ``SettingError`` if that is not in X up to the tolerance of projections, or if eta is lost in its rounding."""
        scale = 1.0 + float(np.linalg.norm(x))
        if eta < SMALLEST_ETA * scale:
            raise SettingError(f"eta={eta!r}: at this x at least {SMALLEST_ETA * scale:.3g}, less is lost in rounding.")
        base = points.projected(x[None])[0]
        away = float(np.linalg.norm(x - base))
        if away > OUTSIDE * scale:
            raise SettingError(f"x is {away:.3g} outside X: give a point of X, such as the projection result.x.")
        return cls(points, base, eta)

    @property
    def scale(self) -> float:
        """What rounding is relative to."""
        return 1.0 + float(np.linalg.norm(self.base))

    def generic(self, around: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
        """Draw ``count`` points, and a few far closer to the base, in the relative interior of X almost surely.

        Points of ``around`` (at least 64, within eta) that are in X stay. Others are projected, and then moved towards the mean of all
        projections: that is in the relative interior of X as soon as no face of X holds them all, and with it the segment to it.
        """
        feet = self.points.projected(around)
        outside = np.linalg.norm(feet - around, axis=1) > ROUNDING * self.scale
        share = rng.random((len(around), 1)) * outside[:, None]
        inner = np.where(outside[:, None], feet + share * (feet.mean(axis=0) - feet), around)
        shrink = min(1.0, max(CLOSE, SMALLEST_CLOSE * self.scale / self.eta))
        shifts = shrink * (inner[:CLOSE_POINTS] - self.base)
        mirrored = self.base - shifts  # gradients of a smooth f cancel in pairs
        gone = np.linalg.norm(self.points.projected(mirrored) - mirrored, axis=1) > ROUNDING * self.scale
        return np.concatenate([inner[:count], self.base + shifts, mirrored[~gone]])

    def normals(self, outside: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find (points of X (j, n), a unit normal of X at each (j, n)), j <= k, where points (k, n) are projected to within eta of the base.

        What a projection takes off a point close by is mostly rounding if it is short. So points are moved out along it, further
        than eta: where the projection comes back to within eta of the base, the way there is a normal, exact to rounding.
        """
        feet = self.points.projected(outside)
        off, reach = outside - feet, 4 * self.eta + 0.01 * self.scale
        for _ in range(2):  # the second with the direction that the first made exact
            length = np.linalg.norm(off, axis=1, keepdims=True)
            far = feet + reach * off / np.where(length > 0, length, 1.0)
            landed = self.points.projected(far)
            off = far - landed
        length = np.linalg.norm(off, axis=1)
        kept = (length > 0.25 * reach) & (np.linalg.norm(landed - self.base, axis=1) <= self.eta)
        return landed[kept], off[kept] / length[kept, None]

    def shortest(self, gradients: np.ndarray, around: np.ndarray) -> tuple[np.ndarray, Combination]:
        """Find (a normal (0 or 1, n) of X at one point, the shortest combination seen of it and the gradients).

        A walk from the base: each step first finds the weights that are best with all normals at the present point, then goes where
        projections of steps against their mean gradient land, and of ``around`` (k, n), with the normal that shortens most. Whatever
        the last step, the length is an upper bound.
        """
        here, normal = self.base, self.base[None][:0]
        best = shortest(gradients, normal)
        lengths = np.geomspace(BESIDE * self.eta, 1e3 * (self.eta + 0.01 * self.scale), LENGTHS)[:, None]
        for _ in range(WALK):
            mean = self._at(here, gradients).weights @ gradients
            size = float(np.linalg.norm(mean))
            if size == 0 or best.length == 0:
                break
            landed, normals = self.normals(np.concatenate([here - lengths * mean / size, around]))
            if not len(landed):
                break
            rests = mean + np.maximum(0, -normals @ mean)[:, None] * normals
            place = int(np.argmin(np.linalg.norm(rests, axis=1)))
            better = shortest(gradients, normals[[place]])
            if better.length >= (1 - SETTLED) * best.length:
                break
            here, normal, best = landed[place], normals[[place]], better
        return normal, best

    def _at(self, here: np.ndarray, gradients: np.ndarray) -> Combination:
        """Find the shortest combination with normals of X at points as good as ``here``.

        Each turn adds the one that the projection of a short step against the rest takes off: where X is a polyhedron around the
        point, that is the one of all normals that shortens most, and there is none where nothing does.
        """
        close = max(BESIDE * self.eta, 16 * ROUNDING * self.scale)
        normals = here[None][:0]
        present, scale = shortest(gradients, normals), float(np.max(np.linalg.norm(gradients, axis=1)))
        for _ in range(TURNS):
            if present.length <= SETTLED * scale:
                break
            landed, more = self.normals(here - 0.5 * close / present.length * present.rest[None])
            near = np.linalg.norm(landed - here, axis=1) <= close
            more = more[near & (more @ present.rest < -SETTLED * present.length)]
            if not len(more):
                break
            normals = np.concatenate([normals, more])
            better = shortest(gradients, normals)
            if better.length >= (1 - SETTLED) * present.length:
                break
            present = better
        return present


HALVINGS = 24
SCREENED, KEPT = 6, 8  # after so many halvings, go on with so many segments, on which the difference is steepest
SHORTEST = 1e3 * np.finfo(float).eps  # of 1 + ||x||
NOISE = 1e-8  # of |f|, for what the lower level's tolerance leaves
STEEPER = 4.0  # times the steepest slope seen: twice the bound


class SegmentJump(NamedTuple):
    """f changes by ``size``, which its slopes do not explain, between two points ``apart`` from each other."""

    size: float
    apart: float


def _largest_jump(points: Points, at: np.ndarray, value: np.ndarray, gradient: np.ndarray) -> SegmentJump | None:
    """Find the largest jump on segments from the first of the points (k, n) to the others; None where there is none.

    A jump between any two of the points is one between the first and one of them. Segments on which f has no gradient somewhere are
    left out, and jumps below 1e-8 (1 + |f|), or below what rounding makes of f, do not count.
    """
    n, rows = at.shape[1], np.column_stack([at, value, gradient])
    near, far = np.repeat(rows[:1], len(at) - 1, axis=0), rows[1:]

    def seen(near: np.ndarray, far: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(by how much f changes that slopes do not explain, over what length)."""
        step, mean = far[:, :n] - near[:, :n], 0.5 * (near[:, n + 1 :] + far[:, n + 1 :])
        return np.abs(far[:, n] - near[:, n] - np.sum(mean * step, axis=1)), np.linalg.norm(step, axis=1)

    noise = NOISE * (1 + float(np.max(np.abs(value))))
    steepest, shortest = float(np.max(np.linalg.norm(gradient, axis=1))), SHORTEST * (1 + float(np.linalg.norm(at[0])))
    for turn in range(HALVINGS):
        size, apart = seen(near, far)
        live = size > noise
        if turn == SCREENED:
            live &= np.argsort(np.argsort(-size / apart)) < KEPT
        near, far = near[live], far[live]
        if float(np.max(apart[live], initial=0.0)) <= shortest:
            break
        middle = 0.5 * (near[:, :n] + far[:, :n])
        between = np.column_stack([middle, *points.gradients(middle)])
        good = np.isfinite(between).all(axis=1)
        near, far, between = near[good], far[good], between[good]
        steepest = max(steepest, float(np.max(np.linalg.norm(between[:, n + 1 :], axis=1), initial=0.0)))
        first = (seen(near, between)[0] >= seen(between, far)[0])[:, None]
        near, far = np.where(first, near, between), np.where(first, between, far)
    size, apart = seen(near, far)
    jumps = size > noise + STEEPER * steepest * apart
    if not jumps.any():
        return None
    place = int(np.argmax(np.where(jumps, size, 0)))
    ends = np.stack([near[place, :n], far[place, :n]])
    jump = SegmentJump(float(size[place]), float(apart[place]))
    return jump if jump.size > rounding(points.compiled, ends, value) else None


LEAST_SAMPLES = 64
PAIRS = 4  # of values for the gradient of f^eta, for each gradient
HALVED = 2  # gradients taken for each sampled one, where f is piecewise smooth, to see whether it jumps


@dataclass(frozen=True, repr=False)
class Stationarity(Shown):
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
        return f"{self.verdict}\n||grad f^eta|| = {self._slope_text}, {len(self.gradients)} gradients"

    @property
    def _slope_text(self) -> str:
        low, high = self.smoothed_interval
        return f"{self.smoothed_norm:.3g}, 95% interval [{low:.3g}, {high:.3g}], eta = {self.eta:g}"

    def _card(self) -> Card:
        verdict, _, why = self.verdict.partition(": ")
        distance = f"{size_text(self.distance, '.3g')} at most, of 0 from the slopes of f within {self.eta:g} of x"
        seen = f"{len(self.gradients)} gradients" + ("" if self.jump is None else f"; f jumps: {self.jump}")
        rows = [("because", why), ("distance", distance), ("f^eta", f"slope {self._slope_text}"), ("from", seen)]
        return Card(verdict, rows, [("in words", str(self))])


@double_precision
def stationarity_of(
    compiled: CompiledProblem, x: Any, eta: float, samples: int | None, tolerance: float, seed: int, progress: bool
) -> Stationarity:
    """Look at f within eta of x; arguments and errors as for ``ImplicitFunction.stationarity``.

    ``tolerance`` is compared with ``distance`` itself, a slope in units of f per unit of x.
    """
    eta, tolerance = require_positive("eta", eta), require_tolerance("tolerance", tolerance)
    seed = require_whole("seed", seed, 0)
    centre = compiled.upper.flatten(x, "x")
    enough = max(LEAST_SAMPLES, 2 * centre.size)
    count = enough if samples is None else require_whole("samples", samples, 2)
    with RunProgress(HALVED * count + 2 * PAIRS * enough, "points", progress, "points") as bar:
        points = Points(compiled, progress=bar)
        if not points.differentiable:
            raise IncompatibleSolverError("stationarity needs gradients of f, which this lower level has not: use implicit.slice, which needs values only.")
        near = Neighbourhood.of(points, centre, eta)
        rng = np.random.default_rng(seed)
        around = near.base + eta * ball_points(rng, max(count, enough), centre.size)
        drawn = near.generic(around, count, rng)
        values, gradients = points.gradients(drawn)
        good = np.isfinite(values) & np.isfinite(gradients).all(axis=1)
        if not good.any():
            raise SettingError(f"f has no gradient at any of the points within eta={eta:g} of x: take a smaller eta.")
        jump = _largest_jump(points, drawn[good], values[good], gradients[good])
        normals, combination = near.shortest(compiled.sign * gradients[good], around)
        longest = float(np.max(np.linalg.norm(gradients[good], axis=1)))
        ways = opposite_ways(rng, PAIRS * enough, centre.size)
        at = points.projected(near.base + eta * np.concatenate([ways, -ways]))
        ends = points.values(at).value
        if not np.isfinite(ends).all():
            raise SettingError(f"f has no value at some of the points within eta={eta:g} of x: take a smaller eta.")
        norm, *interval = gradient_norm(compiled, eta, ways, at, ends, gradients[good].mean(axis=0), longest)
    distance = np.inf if jump else combination.length
    verdict = _verdict(jump, distance, eta, tolerance, longest, int(np.sum(~good)))
    seen = gradients[good], combination.weights, normals, combination.multipliers
    return Stationarity(eta, distance, *seen, jump, norm, (interval[0], interval[1]), verdict)


def _verdict(jump: SegmentJump | None, distance: float, eta: float, tolerance: float, longest: float, lost: int) -> str:
    if jump is not None:
        jumps = f"f jumps within {eta:g} of x, by {jump.size:.3g} between two points of X that are {jump.apart:.1g} apart"
        return f"not certified: {jumps}; what its gradients say of it does not hold across a jump"
    note = f" ({lost} of the points have no gradient and were left out)" if lost else ""
    units = f"tolerance={tolerance:g}, an absolute slope in units of f per unit of x; the longest gradient has {longest:.3g}"
    of = f"gradients of f at points of X within {eta:g} of x, plus a normal of X at one such point, has norm {size_text(distance, '.3g')}"
    if distance <= tolerance:
        return f"stationary: a convex combination of {of}, at most the tolerance ({units}); no jump of f was seen between them{note}"
    above = f"above the tolerance ({units}); this proves nothing, more samples may find a shorter one{note}"
    return f"not certified: the shortest combination found of {of}, {above}"

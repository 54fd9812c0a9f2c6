"""How stationary a point is: Goldstein's subdifferential by sampling, and the gradient of f^eta with its confidence.

The Goldstein subdifferential d_eta f(x) is the convex hull of the gradients of f at those points of X within eta of x where f is
differentiable, N_eta(x) the cone spanned by the normals of X at points of X within eta of x; x is (eta, d)-stationary on X where
d = dist(0, d_eta f(x) + N_eta(x)) is small. Gradients at sampled points and normals that projections on X leave are elements of the
two, so their shortest combination bounds d from above (as in gradient sampling: Burke, Lewis and Overton, 2005): a small bound
certifies, a large one proves nothing.

Automatic differentiation is right almost everywhere on X, relative to its affine hull, but not at x itself, which may be a kink,
nor on faces of X, which may lie on one: only points drawn from the relative interior of X are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hierfl.compiler.precision import double_precision
from hierfl.errors import IncompatibleSolverError, SettingError
from hierfl.inspect.points import OUTSIDE, Points, shown
from hierfl.inspect.settings import require_positive, require_tolerance, require_whole
from hierfl.inspect.shortest import Combination, shortest
from hierfl.inspect.smoothing import ball_points

if TYPE_CHECKING:
    from hierfl.problem import Problem

CONFIDENCE = 0.95
LEAST_SAMPLES = 64
SMALLEST_ETA = 1e-12  # of 1 + ||x||: below, rounding leaves no ball to draw from
CLOSE, SMALLEST_CLOSE, CLOSE_POINTS = 1e-4, 1e-10, 2  # how much closer to x a few more gradients are taken
ROUNDING = 4 * np.finfo(float).eps
TURNS = 100
SETTLED = 1e-12


@dataclass(frozen=True)
class Stationarity:
    """The picture of f within eta of x.

    Attributes
    ----------
    distance
        Upper bound on dist(0, d_eta f(x) + N_eta(x)), N_eta(x) spanned by the normals of X at its points within eta of x: the norm of
        ``weights @ gradients + multipliers @ normals`` (for a maximum, of ``-weights @ gradients + multipliers @ normals``).
    gradients
        The sampled gradients (k, n), oriented as declared; ``weights`` (k,) of the shortest combination sum to 1.
    normals
        Unit normals of X (j, n) at its points within eta of x, with ``multipliers`` (j,).
    smoothed_norm, smoothed_interval
        Estimate of ||grad (f o P_X)^eta(x)||, and its 95% interval.
    verdict
        What this says, in words.
    """

    eta: float
    distance: float
    gradients: np.ndarray
    weights: np.ndarray
    normals: np.ndarray
    multipliers: np.ndarray
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
    problem: Problem, x: Any, eta: float, *, samples: int | None, tolerance: float, seed: int, progress: bool
) -> Stationarity:
    """The picture; arguments and errors as for ``ImplicitFunction.stationarity``.

    ``tolerance`` is compared with ``distance`` itself, a slope in units of f per unit of x.
    """
    eta, tolerance = require_positive("eta", eta), require_tolerance("tolerance", tolerance)
    seed = require_whole("seed", seed, 0)
    compiled = problem.compile()
    centre = compiled.upper.flatten(x, "x")
    enough = max(LEAST_SAMPLES, 2 * centre.size)
    count = enough if samples is None else require_whole("samples", samples, 2)
    with shown(2 * count + 2 * CLOSE_POINTS, "gradients", progress) as bar:
        points = Points(compiled, progress=bar)
        if not points.differentiable:
            raise IncompatibleSolverError(
                "stationarity needs gradients of f, but the lower level goes to CVXPY: use implicit.slice, which needs values only."
            )
        near = Neighbourhood.of(points, centre, eta)
        rng = np.random.default_rng(seed)
        around = near.base + eta * ball_points(rng, max(count, enough), centre.size)
        _, through = points.gradients_through(around[:count])
        _, gradients = points.gradients(near.generic(around, count, rng))
    good = np.isfinite(gradients).all(axis=1)
    if not good.any() or not np.isfinite(through).all():
        raise SettingError(f"f has no gradient at some of the points within eta={eta:g} of x: take a smaller eta.")
    normals, found = _shortest(near, compiled.sign * gradients[good], near.normals(around - near.base))
    norm, interval = _confidence(through)
    longest = float(np.max(np.linalg.norm(gradients[good], axis=1)))
    verdict = _verdict(found.length, eta, tolerance, longest, int(np.sum(~good)))
    return Stationarity(
        eta, found.length, gradients[good], found.weights, normals, found.multipliers, norm, interval, verdict
    )


class Neighbourhood(NamedTuple):
    """The points of X within eta of ``base``, a point of X, known through projections on X only."""

    points: Points
    base: np.ndarray
    eta: float

    @classmethod
    def of(cls, points: Points, x: np.ndarray, eta: float) -> Neighbourhood:
        """Around x, which is in X up to the tolerance of projections.

        Raises
        ------
        SettingError
            If it is not, or if eta is lost in the rounding of x.
        """
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
        """``count`` points, and a few far closer to the base, in the relative interior of X almost surely.

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

    def normals(self, shifts: np.ndarray) -> np.ndarray:
        """Unit normals (j, n), j <= k, of X at projections of base + shifts (k, n), shifts no longer than eta.

        What a projection takes off a point close by is mostly rounding if it is short. So points are moved out along it, further
        than eta: where the projection comes back to within eta of the base, the way there is a normal, exact to rounding.
        """
        feet = self.points.projected(self.base + shifts)
        off, reach = self.base + shifts - feet, 4 * self.eta + 0.01 * self.scale
        for _ in range(2):  # the second with the direction that the first made exact
            length = np.linalg.norm(off, axis=1, keepdims=True)
            far = feet + reach * off / np.where(length > 0, length, 1.0)
            landed = self.points.projected(far)
            off = far - landed
        length = np.linalg.norm(off, axis=1)
        kept = (length > 0.25 * reach) & (np.linalg.norm(landed - self.base, axis=1) <= self.eta)
        return np.asarray(off[kept] / length[kept, None])


def _shortest(near: Neighbourhood, gradients: np.ndarray, pool: np.ndarray) -> tuple[np.ndarray, Combination]:
    """(normals, shortest combination of them and the gradients), with normals added as long as they shorten it.

    Each turn adds the normal of the pool that points most against the rest, and the one that the projection of
    base - (eta / 2) rest / ||rest|| takes off: where X is a polyhedron around the base, that is the one of all normals that shortens
    most, and there is none where nothing does. Whatever the last turn, the length is an upper bound.
    """
    normals = pool[:0]
    found, scale = shortest(gradients, normals), float(np.max(np.linalg.norm(gradients, axis=1)))
    for _ in range(TURNS):
        if found.length <= SETTLED * scale:
            break
        more = np.concatenate([near.normals(-0.5 * near.eta / found.length * found.rest[None]), pool])
        against = more @ found.rest
        chosen = (
            [0, int(np.argmin(against))] if len(more) > len(pool) else [int(np.argmin(against))] if len(more) else []
        )
        more = more[[i for i in dict.fromkeys(chosen) if against[i] < -SETTLED * found.length]]
        together = np.concatenate([normals, more])
        better = shortest(gradients, together) if len(more) else found
        if better.length >= (1 - SETTLED) * found.length:
            break
        normals, found = together, better
    return normals, found


def _confidence(gradients: np.ndarray) -> tuple[float, tuple[float, float]]:
    """Norm of the mean, and its interval by the tail bound of Laurent and Massart (2000) for a weighted sum of squares."""
    count, mean = len(gradients), gradients.mean(axis=0)
    spread = np.linalg.svd(gradients - mean, compute_uv=False) ** 2 / (count - 1)
    tail = np.log(1 / (1 - CONFIDENCE))
    squared = np.sum(spread) + 2 * np.sqrt(tail * np.sum(spread**2)) + 2 * tail * np.max(spread, initial=0.0)
    radius, norm = float(np.sqrt(squared / count)), float(np.linalg.norm(mean))
    return norm, (max(0.0, norm - radius), norm + radius)


def _verdict(distance: float, eta: float, tolerance: float, longest: float, lost: int) -> str:
    """The certificate in words, or that there is none."""
    note = f" ({lost} of the points have no gradient and were left out)" if lost else ""
    units = f"tolerance={tolerance:g}, an absolute slope in units of f per unit of x; the longest gradient has {longest:.3g}"
    if distance <= tolerance:
        return (
            f"stationary: a convex combination of gradients of f, with normals of X, all at points of X within {eta:g} of x, has norm "
            f"{distance:.3g}, at most the tolerance ({units}){note}"
        )
    return (
        f"not certified: the shortest combination of the sampled gradients of f, with normals of X, all at points of X within {eta:g} "
        f"of x, has norm {distance:.3g}, above the tolerance ({units}); this proves nothing, more samples may find a shorter "
        f"one{note}"
    )

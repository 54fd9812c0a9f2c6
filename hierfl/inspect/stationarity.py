"""How stationary a point is: Goldstein's subdifferential by sampling, and the gradient of f^eta with its confidence.

The Goldstein subdifferential d_eta f(x) of a locally Lipschitz f is the convex hull of its gradients at those points of X within eta
of x where it is differentiable; x is (eta, d)-stationary on X where d = dist(0, d_eta f(x) + N_X(p)) is small for one point p of X
within eta of x, N_X(p) the normal cone of X there. Gradients at sampled points and a normal that a projection on X leaves are elements
of the two, so their shortest combination bounds d from above (as in gradient sampling: Burke, Lewis and Overton, 2005): a small
bound certifies, a large one proves nothing. Normals at several points do not count together: two sides of a wedge, both within eta
of x, would make every point near its middle line stationary for every f.

Automatic differentiation is right almost everywhere on X, relative to its affine hull, but not at x itself, which may be a kink,
nor on faces of X, which may lie on one: only points drawn from the relative interior of X are used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hierfl.compiler.precision import double_precision
from hierfl.errors import IncompatibleSolverError, SettingError
from hierfl.inspect.neighbourhood import CLOSE_POINTS, Neighbourhood
from hierfl.inspect.points import Points, shown
from hierfl.inspect.settings import require_positive, require_tolerance, require_whole
from hierfl.inspect.smoothing import ball_points

if TYPE_CHECKING:
    from hierfl.problem import Problem

CONFIDENCE = 0.95
LEAST_SAMPLES = 64


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
    normals, found = near.shortest(compiled.sign * gradients[good], around)
    norm, interval = _confidence(through)
    longest = float(np.max(np.linalg.norm(gradients[good], axis=1)))
    verdict = _verdict(found.length, eta, tolerance, longest, int(np.sum(~good)))
    return Stationarity(
        eta, found.length, gradients[good], found.weights, normals, found.multipliers, norm, interval, verdict
    )


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
            f"stationary: a convex combination of gradients of f at points of X within {eta:g} of x, plus a normal of X at one such "
            f"point, has norm {distance:.3g}, at most the tolerance ({units}){note}"
        )
    return (
        f"not certified: the shortest combination found of gradients of f at points of X within {eta:g} of x, plus a normal of X at "
        f"one such point, has norm {distance:.3g}, above the tolerance ({units}); this proves nothing, more samples may find a "
        f"shorter one{note}"
    )

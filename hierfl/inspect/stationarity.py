"""How stationary a point is: Goldstein's subdifferential by sampling, and the gradient of f^eta with its confidence.

The Goldstein subdifferential d_eta f(x) is the convex hull of the generalised gradients within eta of x; x is (eta, d)-stationary
on X where its distance d to the normal cone, dist(0, d_eta f(x) + N_X(x)), is small. Gradients at sampled points are elements
of it, so the shortest convex combination of them bounds d from above (as in gradient sampling: Burke, Lewis and Overton,
2005): a small bound certifies, a large one proves nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import scipy.optimize

from hierfl.compiler.precision import double_precision
from hierfl.errors import IncompatibleSolverError, SettingError
from hierfl.inspect.points import Points, shown
from hierfl.inspect.slice import require_inside, require_window
from hierfl.inspect.smoothing import ball_points

if TYPE_CHECKING:
    from hierfl.problem import Problem

CONFIDENCE = 0.95
TANGENT_STEP = 1e-6


@dataclass(frozen=True)
class Stationarity:
    """The picture of f within eta of x.

    Attributes
    ----------
    distance
        Upper bound on dist(0, d_eta f(x) + N_X(x)).
    gradients
        The sampled gradients (k, n), oriented as declared; ``weights`` (k,) of the shortest combination.
    smoothed_norm, smoothed_interval
        Estimate of ||grad (f o P_X)^eta(x)||, and its 95% interval.
    verdict
        What this says, in words.
    """

    eta: float
    distance: float
    gradients: np.ndarray
    weights: np.ndarray
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
    """The picture; arguments and errors as for ``ImplicitFunction.stationarity``."""
    compiled = problem.compile()
    require_window(eta, 5)
    centre = compiled.upper.flatten(x, "x")
    require_inside(compiled, centre)
    count = max(64, 2 * centre.size) if samples is None else samples
    if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 2:
        raise SettingError(f"samples={samples!r}: a whole number of at least 2.")
    around = centre + eta * ball_points(np.random.default_rng(seed), count, centre.size)
    with shown(2 * count, "gradients", progress) as bar:
        points = Points(compiled, progress=bar)
        if not points.differentiable:
            raise IncompatibleSolverError(
                "stationarity needs gradients of f, but the lower level goes to CVXPY: use implicit.slice, which needs values only."
            )
        inside = points.projected(around)
        _, through = points.gradients_through(around)
        _, gradients = points.gradients(inside)
        here = points.gradients(centre[None])[1]
    gradients = np.concatenate([here, gradients])
    good = np.isfinite(gradients).all(axis=1)
    if not good.any() or not np.isfinite(through).all():
        raise SettingError(f"f has no gradient at some of the points within eta={eta:g} of x: take a smaller eta.")
    minimised = compiled.sign * gradients[good]
    weights, distance = _shortest(points, centre, minimised)
    norm, interval = _confidence(through)
    return Stationarity(
        eta, distance, gradients[good], weights, norm, interval, _verdict(distance, eta, tolerance, int(np.sum(~good)))
    )


def _shortest(points: Points, x: np.ndarray, gradients: np.ndarray) -> tuple[np.ndarray, float]:
    """(weights, norm) of the shortest element of conv(gradients) + N_X(x): any weights give an upper bound.

    The distance of -g to the normal cone is the length of its projection on the tangent cone, here the change of P_X along a
    short step; its square is a convex function of the weights.
    """
    step = TANGENT_STEP * (1.0 + float(np.linalg.norm(x)))

    def tangential(direction: np.ndarray) -> np.ndarray:
        length = float(np.linalg.norm(direction))
        if length == 0:
            return direction
        moved = points.projected((x + step / length * direction)[None])[0] - x
        return np.asarray(moved * (length / step))

    def squared(weights: np.ndarray) -> tuple[float, np.ndarray]:
        left = tangential(-weights @ gradients)
        return 0.5 * float(left @ left), -gradients @ left

    count = len(gradients)
    found = scipy.optimize.minimize(
        squared,
        np.full(count, 1.0 / count),
        jac=True,
        method="SLSQP",
        bounds=[(0.0, 1.0)] * count,
        constraints={"type": "eq", "fun": lambda w: np.sum(w) - 1.0, "jac": lambda w: np.ones(count)},
        options={"maxiter": 500, "ftol": 1e-16},
    )
    weights = np.clip(found.x, 0.0, None)
    weights /= np.sum(weights)
    return weights, float(np.linalg.norm(tangential(-weights @ gradients)))


def _confidence(gradients: np.ndarray) -> tuple[float, tuple[float, float]]:
    """Norm of the mean, and its interval by the tail bound of Laurent and Massart (2000) for a weighted sum of squares."""
    count, mean = len(gradients), gradients.mean(axis=0)
    spread = np.linalg.svd(gradients - mean, compute_uv=False) ** 2 / (count - 1)
    tail = np.log(1 / (1 - CONFIDENCE))
    squared = np.sum(spread) + 2 * np.sqrt(tail * np.sum(spread**2)) + 2 * tail * np.max(spread, initial=0.0)
    radius, norm = float(np.sqrt(squared / count)), float(np.linalg.norm(mean))
    return norm, (max(0.0, norm - radius), norm + radius)


def _verdict(distance: float, eta: float, tolerance: float, lost: int) -> str:
    note = f" ({lost} of the points have no gradient and were left out)" if lost else ""
    if distance <= tolerance:
        return (
            f"stationary: a convex combination of gradients within {eta:g} of x, with the normal cone of X, has norm "
            f"{distance:.3g}, at most the tolerance {tolerance:g}{note}"
        )
    return (
        f"not certified: the shortest combination of the sampled gradients, with the normal cone of X, has norm {distance:.3g}, "
        f"above the tolerance {tolerance:g}; this proves nothing, more samples may find a shorter one{note}"
    )

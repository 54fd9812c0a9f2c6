"""Lines and planes through X, and the part of them that a picture shows: its centre, its directions, its radius; what is refused of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.starting_points import on_upper_set
from hierfl.errors import SettingError
from hierfl.inspect.argument_checks import require_positive, require_whole
from hierfl.inspect.implicit.points import OUTSIDE
from hierfl.result import Result
from hierfl.runs import Runs


class Line(NamedTuple):
    """x(t) = centre + t direction, t in [-radius, radius]."""

    centre: np.ndarray
    direction: np.ndarray
    radius: float

    def at(self, t: np.ndarray | float) -> np.ndarray:
        """The points ``(k, n)`` at places (k,)."""
        return np.asarray(self.centre + np.asarray(t)[..., None] * self.direction)


class Plane(NamedTuple):
    """x(s, t) = centre + s directions[0] + t directions[1], |s|, |t| <= radius; the directions are orthonormal."""

    centre: np.ndarray
    directions: np.ndarray
    radius: float

    def at(self, coordinates: np.ndarray) -> np.ndarray:
        """The points ``(k, n)`` at coordinates ``(k, 2)``."""
        return np.asarray(self.centre + coordinates @ self.directions)


def bisected(
    inside: np.ndarray, outside: np.ndarray, is_inside: Callable[[np.ndarray], np.ndarray], width: float
) -> tuple[np.ndarray, np.ndarray]:
    """Edges between places (k,) of either side, all at once, to within a width: (the last ones inside, the first ones outside)."""
    while np.max(np.abs(outside - inside), initial=0.0) > width:
        middle = 0.5 * (inside + outside)
        same = is_inside(middle)
        inside, outside = np.where(same, middle, inside), np.where(same, outside, middle)
    return inside, outside


def grid_of(plane: Plane, s: np.ndarray) -> np.ndarray:
    """The points (p * p, n) of a plane at all pairs of coordinates (p,)."""
    return plane.at(np.stack([part.ravel() for part in np.meshgrid(s, s, indexing="ij")], axis=1))


AROUND, NEAR = 16, 0.05  # directions that are looked along for one into X, and the share of the window in which a line has to stay


def centre_of(compiled: CompiledProblem, center: Any) -> np.ndarray:
    """The flat centre of a window: a point of X, a result's x, or the projection of 0 on X; raises ``SettingError`` for a point outside X."""
    if center is None:
        return on_upper_set(compiled, np.zeros((1, compiled.upper.size)))[0]
    centre: np.ndarray = compiled.upper.flatten(center.x if isinstance(center, Result) else center, "center")
    require_inside(compiled, centre)
    return centre


def direction_of(
    compiled: CompiledProblem, direction: Any, run: Result | None, seed: int, centre: np.ndarray, radius: float
) -> tuple[str, np.ndarray]:
    """(how it was chosen, unit vector) of a line: the given one, x itself where that is a scalar, the run's leading principal one, or a random one in X."""
    if direction is not None:
        return "the given direction, made a unit vector", unit_vector(compiled.upper.flatten(direction, "direction"))
    if compiled.upper.size == 1:
        return "x itself", np.ones(1)
    if (known := principal_directions(path_of(run, compiled), 1)) is not None:
        return f"the leading principal direction {known[0]}", known[1][0]
    normals = np.random.default_rng(seed).standard_normal((AROUND, compiled.upper.size))
    vectors = normals / np.linalg.norm(normals, axis=1, keepdims=True)
    ends = centre + NEAR * radius * np.array([vectors[0], -vectors[0]])
    if (np.abs(on_upper_set(compiled, ends) - ends).max(axis=1) > OUTSIDE * (1 + np.linalg.norm(centre))).all():
        inward = (on_upper_set(compiled, centre + radius * vectors) - centre).mean(axis=0)
        if np.linalg.norm(inward) > OUTSIDE * (1 + np.linalg.norm(centre)):
            return f"into X, which a random direction leaves on both sides (seed {seed})", unit_vector(inward)
    return f"a random unit vector (seed {seed})", vectors[0]


def path_of(run: Result | None, compiled: CompiledProblem) -> np.ndarray:
    """A run's iterates (k, n); none without a run."""
    none = np.zeros((0, compiled.upper.size))
    return none if run is None else run.trajectory.get("x", none)


def principal_directions(path: np.ndarray, count: int) -> tuple[str, np.ndarray] | None:
    """(how much of their variance they are, in words, the first principal directions (count, n)) of iterates; None where these do not move along as many."""
    if len(path) <= count:
        return None
    _, strength, axes = np.linalg.svd(path - path.mean(axis=0), full_matrices=False)
    if not strength[count - 1] > 1e-9 * strength[0] > 0:
        return None
    share = 100 * np.sum(strength[:count] ** 2) / np.sum(strength**2)
    return f"of the run's iterates ({share:.0f}% of their variance)", axes[:count]


def unit_vector(flat: np.ndarray) -> np.ndarray:
    """Scale a vector to length 1, also where the square of a length would overflow or vanish; raises ``SettingError`` if it is zero."""
    largest = float(np.max(np.abs(flat)))
    if largest == 0:
        raise SettingError("direction is zero: give a direction in the space of x.")
    _, exponent = np.frexp(largest)
    scaled = np.ldexp(flat, -int(exponent))  # exact, so that an ordinary direction is divided as it was
    return scaled / np.linalg.norm(scaled)


def run_of(compiled: CompiledProblem, center: Any) -> Result | None:
    """The run of the problem whose result is the centre; None for a point.

    Raises ``SettingError`` if it is a run of another problem, or was loaded without its problem; for several runs.
    """
    if isinstance(center, Runs):
        raise SettingError("center holds the runs of several seeds: give one of them, such as runs.best or runs[0].")
    if not isinstance(center, Result):
        return None
    if center.require_problem("a picture of a result").compile() is not compiled:
        raise SettingError("this result belongs to another problem: use result.problem.implicit.")
    return center


def require_window(radius: Any, points: Any) -> None:
    """Require a positive radius and at least 5 points; errors as for ``require_positive``."""
    require_positive("radius", radius)
    require_whole("points", points, 5)


def require_inside(compiled: CompiledProblem, centre: np.ndarray) -> None:
    """Require that the centre is in X; raises ``SettingError``, naming the distance."""
    away = float(np.linalg.norm(centre - on_upper_set(compiled, centre[None])[0]))
    if away > OUTSIDE * (1 + float(np.linalg.norm(centre))):
        raise SettingError(f"center is {away:.3g} outside X: give a point of X, such as the x of a result.")

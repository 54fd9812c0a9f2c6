"""The implicit function over a plane, with the curves along which it has kinks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hierfl.compiler.exact import TOLERANCE
from hierfl.compiler.precision import double_precision
from hierfl.errors import SettingError
from hierfl.inspect.one_sided import OneSided
from hierfl.inspect.points import REASONS, Points, Sampled, shown
from hierfl.inspect.settings import require_positive, require_whole
from hierfl.inspect.slice import centre_of, require_same_problem, require_window
from hierfl.result import Result

if TYPE_CHECKING:
    from hierfl.problem import Problem

HALVINGS = 12
EDGES_LIMIT = 20_000


class Plane(NamedTuple):
    """x(s, t) = centre + s directions[0] + t directions[1], |s|, |t| <= radius; the directions are orthonormal."""

    centre: np.ndarray
    directions: np.ndarray
    radius: float

    def at(self, coordinates: np.ndarray) -> np.ndarray:
        """Points ``(k, n)`` at coordinates ``(k, 2)``."""
        return np.asarray(self.centre + coordinates @ self.directions)


@dataclass(frozen=True, eq=False)
class Surface:
    """f on a grid of a plane.

    Attributes
    ----------
    s
        The coordinates along either direction (p,).
    value
        f, (p, p): ``value[i, j]`` at (s[i], s[j]); NaN where it has none.
    sampled
        Everything evaluated, p * p points.
    chosen
        How the directions were chosen.
    iterates
        (s, t) of a run's iterates.
    """

    problem: Problem
    plane: Plane
    chosen: str
    s: np.ndarray
    sampled: Sampled
    iterates: np.ndarray
    tolerance: float

    @property
    def value(self) -> np.ndarray:
        """f, ``(p, p)``."""
        return self.sampled.value.reshape(len(self.s), len(self.s))

    @property
    def gaps(self) -> dict[str, int]:
        """How many points have no value, by reason."""
        reasons, counts = np.unique(self.sampled.reason[self.sampled.reason != 0], return_counts=True)
        return {REASONS[reason]: int(count) for reason, count in zip(reasons, counts)}

    @cached_property
    @double_precision
    def kink_points(self) -> np.ndarray:
        """(s, t) of places where f has a kink across an edge of the grid, (k, 2): samples of the kink curves.

        Edges along which a switch changes are bisected, and the slopes on either side are compared. Edges in a direction
        along which f is smooth show nothing; those in the other one do. What has no switch (a ``Function``'s inside) is not
        seen.
        """
        points = self._points
        if not self.sampled.signature.size:
            return np.zeros((0, 2))
        low, high = self._edges()
        low, high = self._narrowed(points, low[:EDGES_LIMIT], high[:EDGES_LIMIT])
        if not len(low):
            return np.zeros((0, 2))
        middle, along = 0.5 * (low + high), high - low
        along /= np.linalg.norm(along, axis=1, keepdims=True)
        eye = OneSided(points)
        width = np.full(len(middle), 2.0 * (self.s[1] - self.s[0]) / 2**HALVINGS)
        directions = along @ self.plane.directions
        first, *_, last = eye.distances
        far = eye.look(self.plane.at(middle), directions, np.maximum(width * 10, first * self.plane.radius))
        near = eye.look(self.plane.at(middle), directions, np.maximum(width, last * self.plane.radius))
        return np.asarray(middle[near.bends(far, eye.least_jump) | near.steps(far, width)])

    @property
    def _points(self) -> Points:
        return Points(self.problem.compile(), self.tolerance)

    def _edges(self) -> tuple[np.ndarray, np.ndarray]:
        """Both ends, as coordinates (k, 2), of the grid's edges along which a switch changes."""
        count = len(self.s)
        signature = self.sampled.signature.reshape(count, count, -1)
        good = (self.sampled.reason == 0).reshape(count, count)
        ends = []
        for axis in (0, 1):
            a = (slice(None, -1), slice(None)) if axis == 0 else (slice(None), slice(None, -1))
            b = (slice(1, None), slice(None)) if axis == 0 else (slice(None), slice(1, None))
            here = np.argwhere((signature[a] != signature[b]).any(axis=2) & good[a] & good[b])
            ends.append((self.s[here], self.s[np.add(here, (1 - axis, axis))]))
        return np.concatenate([low for low, _ in ends]), np.concatenate([high for _, high in ends])

    def _narrowed(self, points: Points, low: np.ndarray, high: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Bisect the edges, towards the first change on each."""
        if not len(low):
            return low, high
        left = points.values(self.plane.at(low)).signature
        for _ in range(HALVINGS):
            middle = 0.5 * (low + high)
            same = (points.values(self.plane.at(middle)).signature == left).all(axis=1)[:, None]
            low, high = np.where(same, middle, low), np.where(same, high, middle)
        return low, high

    @cached_property
    @double_precision
    def kink_values(self) -> np.ndarray:
        """f at ``kink_points``, (k,)."""
        points = Points(self.problem.compile(), self.tolerance)
        if not len(self.kink_points):
            return np.zeros(0)
        return points.values(self.plane.at(self.kink_points)).value

    def plot(self, ax: Any = None, kind: str = "contour", **style: Any) -> Any:
        """Contours with the kink curves, or the surface in space with them, ``kind="3d"``; returns the figure.

        Parameters
        ----------
        ax
            Axes of matplotlib to draw on, of the projection "3d" for that kind; a new figure by default.
        kind
            ``"contour"`` or ``"3d"``.
        style
            Keywords of matplotlib's ``contourf`` or ``plot_surface``, such as ``cmap`` and ``alpha``.

        Raises
        ------
        SettingError
            For another kind, other axes, or an unknown keyword.
        """
        from hierfl.inspect.surface_plot import plot_surface

        return plot_surface(self, ax, kind, **style)

    def __str__(self) -> str:
        where, finite = f"f on {len(self.s)} x {len(self.s)} points", self.value[np.isfinite(self.value)]
        if not finite.size:
            why = "; ".join(f"{reason} (at {count:,} points)" for reason, count in self.gaps.items())
            return f"{where} along {self.chosen}: f has no value at any of them: {why}"
        lines = [f"{where}, from {finite.min():.6g} to {finite.max():.6g}, along {self.chosen}"]
        lines += [f"no value at {count:,} points: {reason}" for reason, count in self.gaps.items()]
        lines.append(f"{len(self.kink_points)} kinks across the edges of the grid")
        opaque = self._points.switches.opaque
        if opaque:
            lines.append(f"kinks inside {', '.join(opaque)} are not looked for: use slices")
        return "\n".join(lines)

    __repr__ = __str__


@double_precision
def surface_of(
    problem: Problem,
    center: Any,
    directions: Any = None,
    radius: float = 1.0,
    points: int = 101,
    *,
    seed: int = 0,
    tolerance: float = TOLERANCE,
    progress: bool = True,
) -> Surface:
    """The surface; arguments and errors as for ``ImplicitFunction.surface``."""
    require_whole("seed", seed, 0)
    require_positive("tolerance", tolerance)
    compiled = problem.compile()
    run = center if isinstance(center, Result) else None
    if run is not None:
        require_same_problem(problem, run)
    require_window(radius, points)
    if compiled.upper.size < 2:
        raise SettingError("a surface needs an x of at least two scalars; this one has one: use implicit.slice.")
    start = centre_of(compiled, center)
    chosen, along = _directions(compiled, directions, run, seed)
    plane, s = Plane(start, along, float(radius)), np.linspace(-radius, radius, points)
    grid = np.stack([part.ravel() for part in np.meshgrid(s, s, indexing="ij")], axis=1)
    with shown(len(grid), "surface", progress) as bar:
        sampled = Points(compiled, tolerance, bar).values(plane.at(grid))
    path = np.zeros((0, 2))
    if run is not None and len(run.trajectory.get("x", ())):
        path = (run.trajectory["x"] - start) @ along.T
    return Surface(problem, plane, chosen, s, sampled, path, tolerance)


def _directions(compiled: Any, directions: Any, run: Result | None, seed: int) -> tuple[str, np.ndarray]:
    """(how they were chosen, two orthonormal directions (2, n))."""
    size = compiled.upper.size
    if directions is not None:
        if not isinstance(directions, (list, tuple, np.ndarray)) or len(directions) != 2:
            raise SettingError("directions: two of them, each in the shapes of x.")
        flat = np.stack([compiled.upper.flatten(one, "direction") for one in directions])
        if np.linalg.matrix_rank(flat) < 2:
            raise SettingError("directions: two that are not parallel, and not zero.")
        first = flat[0] / np.linalg.norm(flat[0])
        second = flat[1] - (flat[1] @ first) * first
        return "the given directions, made orthonormal", np.stack([first, second / np.linalg.norm(second)])
    if size == 2:
        return "the two coordinates of x", np.eye(2)
    if run is not None and len(run.trajectory.get("x", ())) > 2:
        path = run.trajectory["x"] - run.trajectory["x"].mean(axis=0)
        _, strength, axes = np.linalg.svd(path, full_matrices=False)
        if strength[1] > 1e-9 * strength[0] > 0:
            share = 100 * np.sum(strength[:2] ** 2) / np.sum(strength**2)
            return f"the two principal directions of the run's iterates ({share:.0f}% of their variance)", axes[:2]
    normal = np.random.default_rng(seed).standard_normal((size, 2))
    return f"two random orthonormal directions (seed {seed})", np.linalg.qr(normal)[0].T

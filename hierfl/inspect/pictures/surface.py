"""The implicit function over a plane, with the curves along which it has kinks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from scipy.spatial import cKDTree

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.lower_level.certificate import TOLERANCE
from hierfl.errors import SettingError
from hierfl.inspect.argument_checks import require_positive, require_whole
from hierfl.inspect.implicit.points import REASONS, Points, Sampled, shown
from hierfl.inspect.kinks.kink_places import EACH_PLACE, MERGE
from hierfl.inspect.kinks.one_sided import OneSided, judge
from hierfl.inspect.pictures.slice import centre_of, require_window, run_of, unit_vector
from hierfl.jaxtools.precision import double_precision
from hierfl.result import Result

PARALLEL = 1e-12  # the sine of the angle between two directions
CLOSE = 1e-9  # in radii: to within this a change on an edge is found


class Plane(NamedTuple):
    """x(s, t) = centre + s directions[0] + t directions[1], |s|, |t| <= radius; the directions are orthonormal."""

    centre: np.ndarray
    directions: np.ndarray
    radius: float

    def at(self, coordinates: np.ndarray) -> np.ndarray:
        """Points ``(k, n)`` at coordinates ``(k, 2)``."""
        return np.asarray(self.centre + coordinates @ self.directions)


class Edges(NamedTuple):
    """Edges of a grid: both ends' coordinates (k, 2), and the signs there of the switches ``names``, (k, switches)."""

    low: np.ndarray
    high: np.ndarray
    before: np.ndarray
    after: np.ndarray
    names: np.ndarray

    @property
    def length(self) -> float:
        """Of an edge."""
        return float(np.linalg.norm(self.high[0] - self.low[0]))

    def halvings(self, plane: Plane) -> int:
        """How often an edge is halved."""
        return int(np.ceil(np.log2(self.length / (CLOSE * plane.radius))))

    def crossings(self, points: Points, plane: Plane) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(places (k, 2), unit vectors along their edges (k, 2), how far the next place or end is (k,)).

        All changes on an edge are bisected, each half for itself.
        """
        length = self.length
        unit = (self.high - self.low) / length
        edge, left, right = np.arange(len(unit)), self.before, self.after
        start, width = np.zeros(len(unit)), length
        for _ in range(self.halvings(plane)):
            width *= 0.5
            middle = points.values(plane.at(self.low[edge] + (start + width)[:, None] * unit[edge]))
            here = middle.signature[:, self.names]
            first, second = (left != here).any(axis=1), (here != right).any(axis=1)
            edge = np.concatenate([edge[first], edge[second]])
            start = np.concatenate([start[first], start[second] + width])
            left, right = np.concatenate([left[first], here[second]]), np.concatenate([here[first], right[second]])
        order = np.lexsort((start, edge))
        edge, at = edge[order], start[order] + 0.5 * width
        apart = np.where(np.diff(edge) == 0, np.diff(at), np.inf)
        apart = np.where(apart > MERGE * plane.radius, apart, np.inf)  # both ends of one switch's zero
        beside = np.minimum(np.append(np.inf, apart), np.append(apart, np.inf))
        return self.low[edge] + at[:, None] * unit[edge], unit[edge], np.minimum(beside, length)


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
    progress
        Whether a search for kinks shows a progress bar if it takes long.
    """

    compiled: CompiledProblem
    plane: Plane
    chosen: str
    s: np.ndarray
    sampled: Sampled
    iterates: np.ndarray
    tolerance: float
    progress: bool = False

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
        """(s, t) of places where f has a kink or a jump along an edge of the grid, (k, 2): samples of the kink curves.

        Every change of a switch along an edge is looked at as on a slice. What changes twice between the ends of an edge, comes
        to zero without changing its sign, or has no switch (a ``Function``'s inside) is not seen; nor is a kink across the edge.
        """
        edges = self._edges()
        if not len(edges.low):
            return np.zeros((0, 2))
        with shown(len(edges.low) * (edges.halvings(self.plane) + EACH_PLACE), "kinks", self.progress) as bar:
            points = Points(self.compiled, self.tolerance, bar)
            at, along, apart = edges.crossings(points, self.plane)
            width, directions = np.full(len(at), CLOSE * self.plane.radius), along @ self.plane.directions
            eye = OneSided.of(points, self.sampled, grid_of(self.plane, self.s), directions[0], self.plane.radius)
            seen = judge(eye, self.plane.at(at), directions, self.plane.radius, width, 0.1 * apart)
        found = (at + seen.shift[:, None] * along)[seen.kinks | seen.jumps]
        zero = max(MERGE, 4 * points.switches.tolerance) * self.plane.radius
        twice = cKDTree(found).query_pairs(zero, output_type="ndarray") if len(found) else np.zeros((0, 2), int)
        return np.delete(found, twice[:, 1], axis=0)

    @property
    def _points(self) -> Points:
        return Points(self.compiled, self.tolerance)

    def _edges(self) -> Edges:
        """The grid's edges along which a switch changes, a distribution's sample left out."""
        count, switches = len(self.s), self._points.switches
        names = np.flatnonzero(~switches.sampled)[: self.sampled.signature.shape[1]]
        signature = self.sampled.signature[:, names]
        names = names[(signature != signature[0]).any(axis=0)]
        signature = self.sampled.signature[:, names].reshape(count, count, -1)
        good = (self.sampled.reason == 0).reshape(count, count)
        ends = []
        for axis in (0, 1):
            a = (slice(None, -1), slice(None)) if axis == 0 else (slice(None), slice(None, -1))
            b = (slice(1, None), slice(None)) if axis == 0 else (slice(None), slice(1, None))
            here = np.argwhere((signature[a] != signature[b]).any(axis=2) & good[a] & good[b])
            there = np.add(here, (1 - axis, axis))
            ends.append((self.s[here], self.s[there], signature[tuple(here.T)], signature[tuple(there.T)]))
        low, high, before, after = (np.concatenate(parts) for parts in zip(*ends))
        return Edges(low, high, before, after, names)

    @cached_property
    @double_precision
    def kink_values(self) -> np.ndarray:
        """f at ``kink_points``, (k,)."""
        points = Points(self.compiled, self.tolerance)
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
        from hierfl.inspect.pictures.surface_plot import plot_surface

        return plot_surface(self, ax, kind, **style)

    def __str__(self) -> str:
        where, finite = f"f on {len(self.s)} x {len(self.s)} points", self.value[np.isfinite(self.value)]
        if not finite.size:
            why = "; ".join(f"{reason} (at {count:,} points)" for reason, count in self.gaps.items())
            return f"{where} along {self.chosen}: f has no value at any of them: {why}"
        lines = [f"{where}, from {finite.min():.6g} to {finite.max():.6g}, along {self.chosen}"]
        lines += [f"no value at {count:,} points: {reason}" for reason, count in self.gaps.items()]
        found = f"{len(self.kink_points)} kinks and jumps along the edges of the grid"
        lines.append(f"{found}; what changes twice within an edge, or only touches it, is not seen")
        opaque = self._points.switches.opaque
        if opaque:
            lines.append(f"kinks inside {', '.join(opaque)} are not looked for: use slices")
        return "\n".join(lines)

    __repr__ = __str__


@double_precision
def surface_of(
    compiled: CompiledProblem,
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
    run = run_of(compiled, center)
    require_window(radius, points)
    if compiled.upper.size < 2:
        raise SettingError("a surface needs an x of at least two scalars; this one has one: use implicit.slice.")
    start = centre_of(compiled, center)
    chosen, along = _directions(compiled, directions, run, seed)
    plane, s = Plane(start, along, float(radius)), np.linspace(-radius, radius, points)
    with shown(points**2, "surface", progress) as bar:
        sampled = Points(compiled, tolerance, bar).values(grid_of(plane, s))
    path = np.zeros((0, 2))
    if run is not None and len(run.trajectory.get("x", ())):
        path = (run.trajectory["x"] - start) @ along.T
    return Surface(compiled, plane, chosen, s, sampled, path, tolerance, progress)


def grid_of(plane: Plane, s: np.ndarray) -> np.ndarray:
    """Points (p * p, n) of a plane at all pairs of coordinates (p,)."""
    return plane.at(np.stack([part.ravel() for part in np.meshgrid(s, s, indexing="ij")], axis=1))


def _directions(compiled: Any, directions: Any, run: Result | None, seed: int) -> tuple[str, np.ndarray]:
    """(how they were chosen, two orthonormal directions (2, n))."""
    size = compiled.upper.size
    if directions is not None:
        if not isinstance(directions, (list, tuple, np.ndarray)) or len(directions) != 2:
            raise SettingError("directions: two of them, each in the shapes of x.")
        first, second = (unit_vector(compiled.upper.flatten(one, "direction")) for one in directions)
        second = second - (second @ first) * first
        if np.linalg.norm(second) < PARALLEL:
            raise SettingError("directions: two that are not parallel.")
        return "the given directions, made orthonormal", np.stack([first, unit_vector(second)])
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

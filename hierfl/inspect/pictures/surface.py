"""The implicit function sampled over a plane, with kinks along the edges of its grid, which are samples of the curves along which f has them; its pictures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.spatial import cKDTree

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import SettingError
from hierfl.house_style import COLOURS, COLUMN, HATCHES, house_figure, house_style, require_axes, require_known
from hierfl.inspect import window
from hierfl.inspect.argument_checks import require_positive, require_whole
from hierfl.inspect.implicit.points import REASONS, Points, Sampled
from hierfl.inspect.kinks.kink import EACH_PLACE, MERGE
from hierfl.inspect.kinks.one_sided import OneSided, judge
from hierfl.inspect.kinks.switches import TOLERANCE as ZERO
from hierfl.inspect.kinks.switches import Switches
from hierfl.inspect.pictures.convergence import plain
from hierfl.jaxtools.precision import double_precision
from hierfl.language.printing.card import Card, Shown
from hierfl.progress import RunProgress
from hierfl.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from mpl_toolkits.mplot3d import Axes3D


CLOSE_ON_EDGE = 1e-9  # in radii: to within this a change on an edge is found


def _changing_edges(switches: Switches, s: np.ndarray, sampled: Sampled) -> tuple[np.ndarray, ...]:
    """Edges of the grid (s, s), where f has been sampled, along which a switch changes, a distribution's sample left out.

    They are both ends' coordinates (k, 2), the signs there of some switches, (k, switches) each, and which switches these are.
    """
    count = len(s)
    names = np.flatnonzero(~switches.sampled)[: sampled.signature.shape[1]]
    names = names[(sampled.signature[:, names] != sampled.signature[0, names]).any(axis=0)]
    signature = sampled.signature[:, names].reshape(count, count, -1)
    good = (sampled.reason == 0).reshape(count, count)
    ends = []
    for axis, step in enumerate(np.eye(2, dtype=int)):
        changes = (np.diff(signature, axis=axis) != 0).any(axis=2)
        both = np.logical_and(*(np.take(good, np.arange(count - 1) + k, axis) for k in (0, 1)))
        here = np.argwhere(changes & both)
        there = here + step
        ends.append((s[here], s[there], signature[tuple(here.T)], signature[tuple(there.T)]))
    return *(np.concatenate(parts) for parts in zip(*ends)), names


def kinks_on_grid(points: Points, plane: window.Plane, s: np.ndarray, sampled: Sampled, progress: bool) -> np.ndarray:
    """Find the places (k, 2) at which f has a kink or a jump along an edge of the grid (s, s) on which it has been sampled."""
    low, high, left, right, names = _changing_edges(points.switches, s, sampled)
    if not len(low):
        return np.zeros((0, 2))
    length = float(np.linalg.norm(high[0] - low[0]))  # the same for all
    unit, edge, start, width = (high - low) / length, np.arange(len(low)), np.zeros(len(low)), length
    halvings = int(np.ceil(np.log2(length / (CLOSE_ON_EDGE * plane.radius))))
    with RunProgress(len(low) * (halvings + EACH_PLACE), "kinks", progress, "points") as bar:
        points = replace(points, progress=bar)
        for _ in range(halvings):  # all changes on an edge are bisected, each half for itself
            width *= 0.5
            here = points.values(plane.at(low[edge] + (start + width)[:, None] * unit[edge])).signature[:, names]
            first, second = (left != here).any(axis=1), (here != right).any(axis=1)
            edge = np.concatenate([edge[first], edge[second]])
            start = np.concatenate([start[first], start[second] + width])
            left, right = np.concatenate([left[first], here[second]]), np.concatenate([here[first], right[second]])
        order = np.lexsort((start, edge))
        edge, along = edge[order], start[order] + 0.5 * width
        apart = np.where(np.diff(edge) == 0, np.diff(along), np.inf)
        apart = np.where(apart > MERGE * plane.radius, apart, np.inf)  # both ends of one switch's zero
        beside = np.minimum(np.minimum(np.append(np.inf, apart), np.append(apart, np.inf)), length)
        at, way = low[edge] + along[:, None] * unit[edge], unit[edge]
        directions = way @ plane.directions
        eye = OneSided.of(points, sampled, window.grid_of(plane, s), directions[0], plane.radius)
        widths = np.full(len(at), CLOSE_ON_EDGE * plane.radius)
        seen = judge(eye, plane.at(at), directions, plane.radius, widths, 0.1 * beside)
    kinks = (at + seen.shift[:, None] * way)[seen.kinks | seen.jumps]
    zero = max(MERGE, 4 * ZERO) * plane.radius
    twice = cKDTree(kinks).query_pairs(zero, output_type="ndarray") if len(kinks) else np.zeros((0, 2), int)
    return np.delete(kinks, twice[:, 1], axis=0)


@dataclass(frozen=True, eq=False, repr=False)
class Surface(Shown):
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

    Examples
    --------
    >>> patch = problem.implicit.surface(np.zeros(2), radius=1.0, points=5, progress=False)
    """

    compiled: CompiledProblem
    plane: window.Plane
    chosen: str
    s: np.ndarray
    sampled: Sampled
    iterates: np.ndarray
    points: Points
    progress: bool = False

    @property
    def value(self) -> np.ndarray:
        return self.sampled.value.reshape(len(self.s), len(self.s))

    @property
    def gaps(self) -> dict[str, int]:
        """How many points have no value, by reason."""
        reasons, counts = np.unique(self.sampled.reason[self.sampled.reason != 0], return_counts=True)
        return {REASONS[reason]: int(count) for reason, count in zip(reasons, counts)}

    @cached_property
    @double_precision
    def violated(self) -> dict[str, np.ndarray]:
        """Where y(x) violates an upper constraint that mentions y, (p, p) flags by constraint, of those that are violated somewhere on the grid."""
        flags = self.points.violated(window.grid_of(self.plane, self.s), self.sampled)
        texts = [one.text for one in self.compiled.coupled.conditions]
        return {text: own.reshape(self.value.shape) for text, own in zip(texts, flags.T) if own.any()}

    @cached_property
    @double_precision
    def kink_points(self) -> np.ndarray:
        """(s, t) of places where f has a kink or a jump along an edge of the grid, (k, 2), which are samples of the kink curves.

        Every change of a switch along an edge is looked at as on a slice. What changes twice between the ends of an edge, comes
        to zero without changing its sign, or has no switch (a ``Function``'s inside) is not seen; nor is a kink across the edge.
        """
        return kinks_on_grid(self.points, self.plane, self.s, self.sampled, self.progress)

    @cached_property
    @double_precision
    def kink_values(self) -> np.ndarray:
        """f at ``kink_points``, (k,)."""
        if not len(self.kink_points):
            return np.zeros(0)
        return self.points.values(self.plane.at(self.kink_points)).value

    def plot(self, ax: Axes | None = None, kind: str = "contour", *, style: str = "screen", **look: Any) -> Figure:
        """Contours with the kink curves, or the surface in space with them, ``kind="3d"``; returns the figure.

        Parameters
        ----------
        ax
            Axes of matplotlib to draw on, of the projection "3d" for that kind; a new figure by default.
        kind
            ``"contour"`` or ``"3d"``.
        style
            ``"screen"``, or ``"paper"``, as for slices.
        look
            Keywords of matplotlib's ``contourf`` or ``plot_surface``, such as ``cmap`` and ``alpha``.

        Raises
        ------
        SettingError
            For another kind, other axes, or an unknown keyword or style.
        """
        import matplotlib.pyplot as plt

        if kind not in ("contour", "3d"):
            raise SettingError(f"kind={kind!r}: write 'contour' or '3d'.")
        require_axes(ax, "3d" if kind == "3d" else "rectilinear")
        require_known(look, STYLE[kind], STYLE[kind][:5])
        with house_style(style):
            if ax is None:
                projection = {"subplot_kw": {"projection": "3d"}} if kind == "3d" else {}
                size = (COLUMN, 2.9) if style == "paper" else (6.0, 4.8)
                figure, panel = plt.subplots(figsize=size, FigureClass=house_figure(), **projection)
            else:
                figure, panel = ax.figure, ax
            (first, second), shift = _frame(self)
            across, up = self.s + shift[:, None]
            (_contours if kind == "contour" else _in_space)(figure, panel, self, look, shift)
            panel.set(xlabel=first, ylabel=second, title="implicit function", xlim=(across[0], across[-1]), ylim=(up[0], up[-1]))
        return figure

    def __str__(self) -> str:
        where, finite = f"f on {len(self.s)} x {len(self.s)} points", self.value[np.isfinite(self.value)]
        if not finite.size:
            why = "; ".join(f"{reason} (at {count:,} points)" for reason, count in self.gaps.items())
            return f"{where} along {self.chosen}: f has no value at any of them: {why}"
        lines = [f"{where}, from {finite.min():.6g} to {finite.max():.6g}, along {self.chosen}"]
        lines += [f"no value at {count:,} points: {reason}" for reason, count in self.gaps.items()]
        lines += [f"not feasible at {flags.sum():,} points: {text} is violated" for text, flags in self.violated.items()]
        if tied := np.count_nonzero(self.sampled.tied):
            lines.append(f"several lower solutions at {tied:,} points, of which f is that of one: slices say whose")
        kinks = f"{len(self.kink_points)} kinks and jumps along the edges of the grid"
        lines.append(f"{kinks}; what changes twice within an edge, or only touches it, is not seen")
        opaque = self.points.switches.opaque
        if opaque:
            lines.append(f"kinks inside {', '.join(opaque)} are not looked for: use slices")
        return "\n".join(lines)

    def _card(self) -> Card:
        title, *rest = str(self).splitlines()
        return Card(title, [("", line) for line in rest], [("in words", str(self))])


PARALLEL = 1e-12  # the sine of the angle between two directions


@double_precision
def surface_of(
    compiled: CompiledProblem, center: Any, directions: Any, radius: float, points: int, seed: int, tolerance: float, progress: bool
) -> Surface:
    """Sample f over a plane; arguments and errors as for ``ImplicitFunction.surface``."""
    require_whole("seed", seed, 0)
    require_positive("tolerance", tolerance)
    run = window.run_of(compiled, center)
    window.require_window(radius, points)
    if compiled.upper.size < 2:
        raise SettingError("a surface needs an x of at least two scalars; this one has one: use implicit.slice.")
    start = window.centre_of(compiled, center)
    chosen, along = _directions(compiled, directions, run, seed)
    plane, s = window.Plane(start, along, float(radius)), np.linspace(-radius, radius, points)
    with RunProgress(points**2, "surface", progress, "points") as bar:
        evaluate = Points(compiled, tolerance, bar)
        sampled = evaluate.values(window.grid_of(plane, s))
    iterates = (window.path_of(run, compiled) - start) @ along.T
    return Surface(compiled, plane, chosen, s, sampled, iterates, replace(evaluate, progress=None), progress)


def _directions(compiled: CompiledProblem, directions: Any, run: Result | None, seed: int) -> tuple[str, np.ndarray]:
    """Choose (in words how, two orthonormal directions (2, n))."""
    size = compiled.upper.size
    if directions is not None:
        if not isinstance(directions, (list, tuple, np.ndarray)) or len(directions) != 2:
            raise SettingError("directions: two of them, each in the shapes of x.")
        given = [window.unit_vector(compiled.upper.flatten(one, "direction")) for one in directions]
        orthonormal, sizes = np.linalg.qr(np.transpose(given))
        if abs(sizes[1, 1]) < PARALLEL:
            raise SettingError("directions: two that are not parallel.")
        return "the given directions, made orthonormal", np.sign(np.diag(sizes))[:, None] * orthonormal.T
    if size == 2:
        return "the two coordinates of x", np.eye(2)
    if (known := window.principal_directions(window.path_of(run, compiled), 2)) is not None:
        return f"the two principal directions {known[0]}", known[1]
    normal = np.random.default_rng(seed).standard_normal((size, 2))
    return f"two random orthonormal directions (seed {seed})", np.linalg.qr(normal)[0].T


LEVELS = 24
STYLE = {
    "contour": ("levels", "cmap", "norm", "alpha", "hatches", "colors", "vmin", "vmax", "extend", "locator", "antialiased",
                "corner_mask", "algorithm", "nchunk", "zorder"),
    "3d": ("cmap", "alpha", "linewidth", "edgecolor", "shade", "color", "norm", "vmin", "vmax", "rcount", "ccount", "rstride",
           "cstride", "lightsource", "antialiased", "zorder"),
}  # fmt: skip


def _frame(shown: Surface) -> tuple[Iterable[str], np.ndarray]:
    """(names of the axes, what they count from): x itself where the plane is that of its two coordinates, else s and t."""
    if np.array_equal(shown.plane.directions, np.eye(2)):
        return map(plain, shown.compiled.upper.entries), shown.plane.centre
    return ("s   (along the first direction)", "t   (along the second)"), np.zeros(2)


def _contours(figure: Figure, panel: Axes, shown: Surface, style: dict[str, Any], shift: np.ndarray) -> None:
    from matplotlib.patheffects import withStroke

    panel.grid(False)
    panel.set_facecolor("0.85")
    if np.isfinite(shown.value).any():
        # values at and beyond the last level have its colour, not that of places without a value; levels that are given are kept to
        beyond = "neither" if np.ndim(style.get("levels", 0)) else "both"
        low, high = np.nanmin(shown.value), np.nanmax(shown.value)
        levels = LEVELS if high > low else low + (1.0 + abs(low)) * np.array([-0.1, 0.1])  # about the value that f has everywhere
        look = {"levels": levels, "cmap": "cividis", "extend": beyond, **style}
        filled = panel.contourf(*(shown.s + shift[:, None]), _without_rounding(shown.value.T), **look)
        figure.colorbar(filled, ax=panel, label="f")
    if len(shown.kink_points):
        places = shown.kink_points + shift
        panel.plot(places[:, 0], places[:, 1], ".", color=COLOURS[1], markersize=3, label="kinks")
    if len(shown.iterates):
        path = shown.iterates + shift
        rim = [withStroke(linewidth=3, foreground="black")]  # white on dark colours, rimmed on light ones and in the legend
        line: dict[str, Any] = {"color": "white", "markersize": 2.5, "linewidth": 1.2, "path_effects": rim}
        panel.plot(path[:, 0], path[:, 1], "-o", label="iterates", **line)
    if shown.gaps:
        panel.plot([], [], "s", color="0.85", label="no value: " + ", ".join(shown.gaps))
    for hatch, (text, flags) in zip(cycle(HATCHES), shown.violated.items()):
        panel.contourf(*(shown.s + shift[:, None]), flags.T, levels=[0.5, 1.5], colors="none", hatches=[hatch])
        panel.fill_between([], [], facecolor="none", edgecolor="0.2", linewidth=0, hatch=hatch, label=plain(f"violated: {text}"))
    if panel.get_legend_handles_labels()[0]:
        panel.legend(loc="upper left", bbox_to_anchor=(0, -0.12), ncols=3)


def _in_space(figure: Figure, panel: Axes3D, shown: Surface, style: dict[str, Any], shift: np.ndarray) -> None:
    grid = np.meshgrid(*(shown.s + shift[:, None]), indexing="ij")
    look = {"linewidth": 0.15, "edgecolor": "0.3", "rcount": 60, "ccount": 60, "zorder": 1, **style}
    if np.isfinite(shown.value).any():
        panel.plot_surface(*grid, shown.value, **({} if "color" in style else {"cmap": "cividis"}), **look)
    if len(shown.kink_points):
        panel.computed_zorder = False  # else matplotlib hides dots on the surface behind it
        places = shown.kink_points + shift
        dots: dict[str, Any] = {"color": COLOURS[1], "markersize": 2, "zorder": 2, "label": "kinks"}
        panel.plot(places[:, 0], places[:, 1], shown.kink_values, ".", **dots)
    for note in [f"no value: {reason}" for reason in shown.gaps] + [f"violated at places: {text}" for text in shown.violated]:
        panel.plot([], [], [], " ", label=plain(note))
    if panel.get_legend_handles_labels()[0]:
        panel.legend(loc="upper left")
    panel.set(zlabel="f")
    panel.view_init(elev=28, azim=-128)


def _without_rounding(value: np.ndarray) -> np.ndarray:
    """Round values to nine digits of their range: where f is constant, rounding errors would draw stripes at a level."""
    low, span = np.nanmin(value), np.nanmax(value) - np.nanmin(value)
    return np.asarray(low + span * np.round((value - low) / span, 9) if span > 0 else value)

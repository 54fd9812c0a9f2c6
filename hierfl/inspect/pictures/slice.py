"""The implicit function sampled along a line: values, terms, responses, active constraints, kinks, smoothing; and its picture.

Its gaps are where f has no value, its ties where it is that of one of several lower solutions, and stretches where y(x) violates an upper
constraint; all have edges. The picture shows f, its
kinks with one-sided tangents, gaps, smoothings, a run's iterates, and y(x) in a panel below; before it what every picture of a slice needs:
curves broken at jumps, and the words along the axis.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import cvxpy as cp
import jax.numpy as jnp
import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.lower_level.diagnosis import owner_name
from hierfl.errors import SettingError
from hierfl.house_style import COLOURS, COLUMN, GAPS, HATCHES, TIED, house_figure, house_style, line_style, require_axes
from hierfl.inspect.argument_checks import require_positive, require_whole
from hierfl.inspect.implicit.points import REASONS, Points, Sampled
from hierfl.inspect.implicit.smoothing import radii, smoothed_values
from hierfl.inspect.kinks.kink import Kinks
from hierfl.inspect.kinks.kink_search import effort, find_kinks
from hierfl.inspect.kinks.switch_changes import Branches
from hierfl.inspect.pictures.convergence import legend_outside, name_curves, plain
from hierfl.inspect.window import Line, bisected, centre_of, direction_of, path_of, require_window, run_of
from hierfl.jaxtools.interruption import PATIENCE, CutShort, heeded
from hierfl.jaxtools.precision import double_precision
from hierfl.language.printing.card import Card, Shown
from hierfl.progress import RunProgress

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D



EDGE = 1e-7  # in radii: to within this an edge is found


class Gap(NamedTuple):
    """f has no value for t in [low, high]; ``reason`` says why."""

    low: float
    high: float
    reason: str

    def __str__(self) -> str:
        return f"t in [{self.low:.6g}, {self.high:.6g}]: {self.reason}"


class Violated(NamedTuple):
    """For t in [low, high] y(x) violates the upper ``constraint``, so that x is not feasible."""

    low: float
    high: float
    constraint: str

    def __str__(self) -> str:
        return f"t in [{self.low:.6g}, {self.high:.6g}]: {self.constraint} is violated"


class Tie(NamedTuple):
    """For t in [low, high] an owner's lower level has several solutions that f tells apart.

    Which is ``taken`` depends on the method. Where the declaration has ``selected`` among them, whether it has is not known.
    """

    low: float
    high: float
    owner: str
    selected: bool
    taken: str

    def __str__(self) -> str:
        where = f"t = {self.low:.6g}" if self.high == self.low else f"t in [{self.low:.6g}, {self.high:.6g}]"
        if self.selected:
            return f"{where}: whether the lower level of {self.owner} has one solution or several is not known, so that none is chosen"
        return f"{where}: the lower level of {self.owner} has several solutions, and y is {self.taken}"


class Stretch(NamedTuple):
    """What is drawn behind f for t in [low, high], and its name in legends; ``over`` is drawn over other bands, in lines."""

    low: float
    high: float
    name: str
    colour: str
    hatch: str
    over: bool = False


def stretches(shown: Slice) -> list[Stretch]:
    """Grey bands where f has no value, shaded ones where it is that of one of several lower solutions, hatched ones where x is not feasible.

    Each reason, and each constraint, has a look of its own; bands at single places have no width.
    """
    greys = {reason: GAPS[k % len(GAPS)] for k, reason in enumerate(dict.fromkeys(gap.reason for gap in shown.gaps))}
    found = [Stretch(gap.low, gap.high, f"no value: {gap.reason}", *greys[gap.reason]) for gap in shown.gaps]
    found += [Stretch(tie.low, tie.high, "several lower solutions", TIED, "") for tie in shown.ties]
    texts = list(dict.fromkeys(one.constraint for one in shown.violated))
    for one in shown.violated:
        number = texts.index(one.constraint)
        look = COLOURS[(3 + number) % len(COLOURS)], HATCHES[number % len(HATCHES)]
        found.append(Stretch(one.low, one.high, f"violated: {one.constraint}", *look, over=True))
    return found


def _draw_stretches(panel: Axes, shown: Slice) -> None:
    """Draw each band, as a line where it has no width; a name is in the legend once."""
    named: set[str] = set()
    for one in stretches(shown):
        look: dict[str, Any] = {"facecolor": "none" if one.over else one.colour, "edgecolor": one.colour, "linewidth": 1}
        if one.high > one.low:
            look |= {"hatch": one.hatch, "linewidth": 0} | ({"alpha": 0.4} if one.over else {"edgecolor": "white"})
        panel.axvspan(one.low, one.high, zorder=0, label=None if one.name in named else plain(one.name), **look)
        named.add(one.name)


class Smoothed(NamedTuple):
    """f^eta on the slice's points by Monte Carlo, with half the width of its 95% interval at each."""

    eta: float
    value: np.ndarray
    half_width: np.ndarray


KINKS_SHOWN = 3  # on the card
TIES_SHOWN = 5  # in words


@dataclass(frozen=True, eq=False, repr=False)
class Slice(Shown):
    """f(centre + t direction) for t in [-radius, radius].

    Attributes
    ----------
    t, value
        The points, and f there (k,); NaN in ``gaps``.
    server, clients
        The server's term (k,), and each client's own, unweighted (k, m).
    answers
        y(x): (k, owners, size), flat; ``response(variable)`` has the variable's shape.
    residual, error_bound
        How well the lower level is solved at each point: its natural residual, and a bound on the error of y, worst over the
        owners of a y.
    progress
        Whether a search for kinks shows a progress bar if it takes long.
    time_limit, without_kinks
        Seconds that a search for kinks may take; why there is to be none, empty where it is made.
    centre, direction, chosen
        The line: x at t = 0 and a unit vector, flat, and how the direction was chosen.
    smoothed
        f^eta for every eta asked for.
    iterates
        (t, distance from the line, round) of a run's iterates, (k, 3); empty without a run.

    Examples
    --------
    >>> line = problem.implicit.slice(np.array([0.25, -0.5]), direction=np.array([1.0, 0.0]))
    >>> [round(kink.t, 3) for kink in line.kinks]
    [-0.25]
    """

    compiled: CompiledProblem
    line: Line
    chosen: str
    t: np.ndarray
    sampled: Sampled
    smoothed: tuple[Smoothed, ...]
    iterates: np.ndarray
    points: Points
    branches: Branches | None
    progress: bool = False
    time_limit: float | None = None
    without_kinks: str = ""

    @property
    def value(self) -> np.ndarray:
        return self.sampled.value

    @property
    def server(self) -> np.ndarray:
        return self.sampled.server

    @property
    def clients(self) -> np.ndarray:
        return self.sampled.clients

    @property
    def answers(self) -> np.ndarray:
        return self.sampled.answers

    @property
    def residual(self) -> np.ndarray:
        return self.sampled.residual

    @cached_property
    @double_precision
    def error_bound(self) -> np.ndarray:
        return self.points.error_bounds(self.line.at(self.t), self.sampled)

    @property
    def centre(self) -> np.ndarray:
        return self.line.centre

    @property
    def direction(self) -> np.ndarray:
        return self.line.direction

    @cached_property
    @double_precision
    def kinks(self) -> Kinks:
        """The kinks in the window, in order; see :class:`hierfl.inspect.kinks.kink.Kinks`. Computed when first asked for.

        None are told where the search is cut short, by the slice's ``time_limit`` or by Ctrl-C; ``str`` says so.
        """
        if self.without_kinks:
            return Kinks.none(self.without_kinks)
        until = math.inf if self.time_limit is None else perf_counter() + self.time_limit
        with RunProgress(effort(self.t, self.sampled), "kinks", self.progress, "points") as bar, heeded(until, PATIENCE) as wish:
            points = replace(self.points, progress=bar)
            branches = None if self.branches is None else replace(self.branches, points=points)
            try:
                return find_kinks(points, self.line, self.t, self.sampled, branches)
            except CutShort:
                return Kinks.none(f"the search for kinks was given up: {wish.reason}; take fewer points, a smaller window, or a longer time_limit")

    @cached_property
    @double_precision
    def gaps(self) -> tuple[Gap, ...]:
        """Where f has no value, to 1e-7 radii, and why."""
        found = self._stretches(self.sampled.reason, lambda places: self._at(places).reason)
        return tuple(Gap(low, high, REASONS[reason]) for low, high, reason in found)

    @cached_property
    @double_precision
    def ties(self) -> tuple[Tie, ...]:
        """Where the lower level has several solutions that f tells apart, to 1e-7 radii, and of which owner of a y."""
        found = self._stretches(self.sampled.tied, lambda places: self._at(places).tied)
        selected, method = getattr(self.compiled.declaration.lower_level, "selection", None) is not None, self.compiled.exact.method
        taken = "" if method is None else method.of_several
        return tuple(Tie(low, high, owner_name(self.compiled, who - 1), selected, taken) for low, high, who in found)

    @cached_property
    @double_precision
    def violated(self) -> tuple[Violated, ...]:
        """Where y(x) violates an upper constraint that mentions y, to 1e-7 radii, and which."""
        found, flags = list[Violated](), self.points.violated(self.line.at(self.t), self.sampled)
        for place, one in enumerate(self.compiled.coupled.conditions):
            stretches = self._stretches(flags[:, place], partial(self._violated_at, place))
            found += [Violated(low, high, one.text) for low, high, _ in stretches]
        return tuple(sorted(found))

    def _at(self, places: np.ndarray) -> Sampled:
        return self.points.values(self.line.at(places))

    def _violated_at(self, condition: int, places: np.ndarray) -> np.ndarray:
        return self.points.violated(self.line.at(places), self._at(places))[:, condition]

    def _stretches(self, codes: np.ndarray, ask: Callable[[np.ndarray], np.ndarray]) -> Iterator[tuple[float, float, int]]:
        """(low, high, code) of every stretch with one code but 0, whose edges are bisected, all at once."""
        t, changes = self.t, np.flatnonzero(np.diff(codes) != 0)
        left, right = t[changes], t[changes + 1]
        inside, outside = np.column_stack([left, right]).ravel(), np.column_stack([right, left]).ravel()  # each edge is looked for from both of its sides
        wanted = np.column_stack([codes[changes], codes[changes + 1]]).ravel()
        inside, _ = bisected(inside, outside, lambda places: ask(places) == wanted, EDGE * self.line.radius)
        ends = [t[0], *inside, t[-1]]
        starts = [0, *(changes + 1), len(codes)]
        for number, (first, _) in enumerate(pairwise(starts)):
            if codes[first] != 0:
                yield float(ends[2 * number]), float(ends[2 * number + 1]), int(codes[first])

    @double_precision
    def response(self, variable: cp.Variable | None = None) -> np.ndarray:
        """y(x) of one lower variable (the only one by default): ``(k, owners, *shape)``.

        Raises
        ------
        SettingError
            For what is no variable of the lower level; without a lower level, or where y has more than 100,000 scalars at
            a point.
        """
        lower = self.compiled.lower
        if not lower.size or not self.answers.shape[-1]:
            raise SettingError("this slice holds no response: there is no lower level, or y has over 100,000 scalars.")
        chosen = lower.variables[0] if variable is None else variable
        parts = lower.split(jnp.asarray(self.answers))
        if not isinstance(chosen, cp.Variable) or chosen.id not in parts:
            names = ", ".join(declared.name() for declared in lower.variables)
            raise SettingError(f"variable={chosen}: a variable of the lower level, here {names}.")
        return np.asarray(parts[chosen.id])

    def active(self, place: int) -> tuple[str, ...]:
        """The constraints of Y(x) that hold with equality at ``t[place]``, in words.

        Raises
        ------
        SettingError
            If ``place`` is no index of ``t``.
        """
        count = len(self.t)
        if isinstance(place, bool) or not isinstance(place, (int, np.integer)) or not -count <= place < count:
            raise SettingError(f"place={place!r}: an index of the slice's {count} points, 0 to {count - 1}.")
        switches, signature = self.points.switches, self.sampled.signature[place]
        if not signature.size or self.sampled.reason[place] != 0:
            return ()
        return tuple(str(switches.place(int(e))) for e in np.flatnonzero((signature == 0) & switches.slacks))

    def plot(
        self, ax: Axes | None = None, *, response: bool | None = None, style: str = "screen", **line: Any
    ) -> Figure:
        """f on the line with its kinks, one-sided tangents, gaps and smoothings, and y(x) below; returns the figure.

        Parameters
        ----------
        ax
            Axes of matplotlib to draw on; a new figure by default.
        response
            Whether y(x) has a panel below f; by default where y has at most 8 scalars and ``ax`` is left out.
        style
            ``"screen"``, or ``"paper"``: a column of 3.4 inches, type of 8 points, fonts that publishers take.
        line
            Of the line of f: keywords of matplotlib's lines, such as ``color``, ``linestyle``, ``linewidth``.

        Raises
        ------
        SettingError
            If ``ax`` is something else, for an unknown keyword or style, and for a response that there is not, or on ``ax``.
        """
        import matplotlib.pyplot as plt

        require_axes(ax)
        look, below = line_style(line), None
        with_response = _shows_response(self, response, ax is not None)
        with house_style(style):
            if ax is not None:
                figure, panel = ax.figure, ax
            elif with_response:
                size = (COLUMN, 3.2) if style == "paper" else (6.4, 5.4)
                layout: dict[str, Any] = {"sharex": True, "height_ratios": (3, 2), "figsize": size}
                figure, (panel, below) = plt.subplots(2, 1, FigureClass=house_figure(), **layout)
            else:
                size = (COLUMN, 2.2) if style == "paper" else (6.4, 4.0)
                figure, panel = plt.subplots(figsize=size, FigureClass=house_figure())
            drawn = curve(self)
            panel.plot(drawn.t, drawn.value, **{"color": COLOURS[0], "label": "f", **look})
            for place, smooth in enumerate(self.smoothed):
                colour = COLOURS[1 + place % (len(COLOURS) - 1)]
                panel.plot(self.t, smooth.value, "--", color=colour, label=f"$f^\\eta$, η = {smooth.eta:g}")
                low, high = smooth.value - smooth.half_width, smooth.value + smooth.half_width
                panel.fill_between(self.t, low, high, color=colour, alpha=0.2, linewidth=0)
            _draw_kinks(panel, self)
            _draw_stretches(panel, self)
            if len(self.iterates):
                inside = self.iterates[np.abs(self.iterates[:, 0]) <= self.line.radius]
                panel.plot(inside[:, 0], np.interp(inside[:, 0], drawn.t, drawn.value), ".", color="0.45", label="iterates, projected on the line")
            panel.set(ylabel="f", title=plain(_line_title(self)))
            (panel if below is None else below).set_xlabel(plain(line_label(self)))
            if ax is None and style == "paper":  # within the panel it would cover the curve
                legend_outside(cast("Figure", figure), "upper", *panel.get_legend_handles_labels())
            else:
                panel.legend(frameon=True, facecolor="white", framealpha=0.9, edgecolor="none")
            if below is not None and 0 < len(curves := _draw_response(below, self)) <= NAMED:
                name_curves([below], [list(curves.values())], list(curves))
        return cast("Figure", figure)

    def __str__(self) -> str:
        where = f"f on {len(self.t)} points, t in [{self.t[0]:.4g}, {self.t[-1]:.4g}], along {self.chosen}"
        gaps = [f"no value for {gap}" for gap in self.gaps]
        gaps += [f"not feasible for {one}" for one in self.violated]
        if not (self.sampled.reason == 0).any():
            return "\n".join([where, *gaps])
        drawn = curve(self)  # with the values at kinks, which may lie between the points
        rounding = 1e-15 * np.nanmax(np.abs(drawn.value))
        ends = [(drawn.value[k], drawn.t[k]) for k in (np.nanargmin(drawn.value), np.nanargmax(drawn.value))]
        span = "from " + " to ".join(f"{value if abs(value) > rounding else 0.0:.6g} (t = {t:.4g})" for value, t in ends)
        ties = list(map(str, self.ties[:TIES_SHOWN]))
        more = len(self.ties) - len(ties)
        ties += [f"and {more} more such {'stretch' if more == 1 else 'stretches'} of t"] if more else []
        return "\n".join([where, span, *gaps, *ties, str(self.kinks)])

    def to_pandas(self) -> pd.DataFrame:
        """The points of the line as a table: ``t``, every scalar of x by its name, ``f``, and ``f^eta`` for each eta. NaN where f has no value. Needs pandas."""
        import pandas as pd

        x = dict(zip(self.compiled.upper.entries, self.line.at(self.t).T))
        return pd.DataFrame({"t": self.t, **x, "f": self.value, **{f"f^{s.eta:g}": s.value for s in self.smoothed}})

    def _card(self) -> Card:
        lines, all_kinks = str(self).splitlines(), [("kink", str(one)) for one in self.kinks]
        all_kinks += [("jump", str(one)) for one in self.kinks.jumps]
        rows = [("f", lines[1])] if (self.sampled.reason == 0).any() else []
        rows += [("no value", f"for {gap}") for gap in self.gaps[:2]]
        rows += [("not feasible", f"for {one}") for one in self.violated[:2]]
        rows += [("several y", str(tie)) for tie in self.ties[:2]]
        rows += all_kinks[:KINKS_SHOWN]
        if len(all_kinks) > KINKS_SHOWN:
            rows.append(("", f"and {len(all_kinks) - KINKS_SHOWN} more kinks and jumps"))
        if not all_kinks:
            rows.append(("kinks", self.kinks.unknown or str(self.kinks.sampled or "none")))
        return Card(lines[0], rows, [("all kinks", str(self))])


@double_precision
def slice_of(
    compiled: CompiledProblem,
    center: Any,
    direction: Any,
    radius: float,
    points: int,
    smoothing: float | Sequence[float] | None,
    samples: int,
    seed: int,
    tolerance: float,
    progress: bool,
    time_limit: float | None,
) -> Slice:
    """Sample f along a line; arguments and errors as for ``ImplicitFunction.slice``."""
    require_whole("seed", seed, 0)
    require_positive("tolerance", tolerance)
    if time_limit is not None:
        require_positive("time_limit", time_limit)
    run = run_of(compiled, center)
    require_window(radius, points)
    etas = radii(smoothing, samples)
    start = centre_of(compiled, center)
    chosen, along = direction_of(compiled, direction, run, seed, start, float(radius))
    line = Line(start, along, float(radius))
    t = line.radius * ((np.arange(points) * 2 - (points - 1)) / (points - 1))  # linspace may miss 0 by a rounding
    with RunProgress(points + points * samples * len(etas), "slice", progress, "points") as bar:
        evaluate = Points(compiled, tolerance, bar)
        branches = Branches(evaluate, line) if evaluate.follows else None
        sampled = evaluate.values(line.at(t)) if branches is None else branches.look(t)[0]
        inside = np.where(sampled.reason == 1, np.nan, 1.0)
        means = [smoothed_values(evaluate, line.at(t), eta, samples, seed) for eta in etas]
        smoothed = tuple(Smoothed(eta, inside * mean, half) for eta, (mean, half) in zip(etas, means))
    moved = path_of(run, compiled) - start
    at = moved @ along
    rounds = at if run is None or not len(at) else run.trajectory["round"]
    iterates = np.stack([at, np.linalg.norm(moved - at[:, None] * along, axis=1), rounds], axis=1)
    return Slice(compiled, line, chosen, t, sampled, smoothed, iterates, replace(evaluate, progress=None), branches, progress, time_limit)


SAME_PLACE = 1e-6  # in radii: a point so near to a jump is on it
ON_THE_LINE = 1e-12  # of a unit vector's entry
SHOWN_ENTRIES = 4  # of a direction in a title


class BrokenCurve(NamedTuple):
    """f to be drawn as a line: (k,) each, NaN where the line is broken; ``point`` is the slice's, -1 for what was put in."""

    t: np.ndarray
    value: np.ndarray
    point: np.ndarray


def curve(shown: Slice) -> BrokenCurve:
    """f along the slice, through its kinks. At a jump the line ends at its left value and begins again at its right one."""
    jumps = [jump.t for jump in shown.kinks.jumps]
    near = np.min(np.abs(np.subtract.outer(shown.t, jumps)), axis=1, initial=np.inf) <= SAME_PLACE * shown.line.radius
    put_in = [(kink.t, kink.value) for kink in shown.kinks]
    put_in += [(jump.t, value) for jump in shown.kinks.jumps for value in (jump.left, np.nan, jump.right)]
    at, values = np.reshape(put_in, (-1, 2)).T
    t = np.concatenate([shown.t[~near], at])
    point = np.concatenate([np.flatnonzero(~near), np.full(len(at), -1)])
    order = np.argsort(t, kind="stable")
    return BrokenCurve(t[order], np.concatenate([shown.value[~near], values])[order], point[order])


def broken(shown: Slice, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(t, values) of a term (k,) along the slice, broken by NaN at each jump of f."""
    jumps = [jump.t for jump in shown.kinks.jumps]
    place = np.searchsorted(shown.t, jumps)
    return np.insert(shown.t, place, jumps), np.insert(values, place, np.nan)


def _line_title(shown: Slice) -> str:
    """Along which line f is drawn: by name where one scalar moves, by the unit vector where x is small, else how it was chosen."""
    layout = shown.compiled.upper
    (moving,) = np.nonzero(np.abs(shown.line.direction) > ON_THE_LINE)
    if len(moving) == 1:
        return f"f along {layout.entries[moving[0]]}"
    if layout.size <= SHOWN_ENTRIES:
        return f"f along ({', '.join(f'{entry:.3g}' for entry in shown.line.direction)})"
    return f"f along {shown.chosen}"


def line_label(shown: Slice) -> str:
    """What t is, in the declared names: ``t   (x = 0.3 + t)`` where one scalar moves, else with centre and direction."""
    layout = shown.compiled.upper
    (moving,) = np.nonzero(np.abs(shown.line.direction) > ON_THE_LINE)
    if len(moving) > 1:
        names = ", ".join(variable.name() for variable in layout.variables)
        return f"t   ({names} = centre + t · direction)"
    (place,) = moving
    name, start = layout.entries[place], float(f"{shown.line.centre[place]:.4g}")
    sign = "+" if shown.line.direction[place] > 0 else "−"
    moved = f"{start:g} {sign} t" if start else "t" if sign == "+" else "−t"
    return f"t   ({name} = {moved}{', the rest fixed' if layout.size > 1 else ''})"


READABLE = COLOURS[:-1]  # names in yellow cannot be read
FEW = 8  # scalars of y that are drawn without being asked for
NAMED = 12  # curves that have a name at their end
LINES = ("-", "--", ":", "-.")  # of the owners, where an entry of y has several


def _shows_response(shown: Slice, asked: bool | None, own_axes: bool) -> bool:
    """Whether to draw y(x) as well: where asked for, or where y is small and there is room for a panel.

    Raises ``SettingError`` if it is asked for where there is none, or on axes of the caller's.
    """
    scalars = int(np.prod(shown.answers.shape[1:]))
    if asked and not scalars:
        raise SettingError("response=True: this slice holds no y(x): no lower level, or over 100,000 scalars.")
    if asked and own_axes:
        raise SettingError("response=True draws a panel of its own: leave out ax=, or draw slice.response() on axes of yours.")
    return not own_axes and 0 < scalars <= FEW if asked is None else asked


def _draw_response(panel: Axes, shown: Slice) -> dict[str, Line2D]:
    """Draw the curves of all scalars of y; returns those that have a value, by name."""
    import matplotlib as mpl

    owners, size = shown.answers.shape[1:]
    names, declaration = shown.compiled.lower.entries, shown.compiled.declaration
    called = [str(owner) for owner in range(owners)]
    if shown.compiled.scope == "client" and declaration.federation is not None:
        called = [client.name or number for client, number in zip(declaration.federation.clients, called, strict=True)]
    curves: dict[str, Line2D] = {}
    for owner, place in np.ndindex(owners, size):
        t, values = broken(shown, shown.answers[:, owner, place])
        colour = READABLE[(owner if size == 1 else place) % len(READABLE)]
        style = "-" if size == 1 else LINES[owner % len(LINES)]
        label = names[place] if owners == 1 else f"{names[place]}, {called[owner]}"
        (line,) = panel.plot(t, values, style, label=label, color=colour, linewidth=0.9 * mpl.rcParams["lines.linewidth"])
        if np.isfinite(values).any():
            curves[label] = line
    panel.set_ylabel("y(x)")
    panel.margins(y=0.08)
    return curves


TANGENT = 0.08  # half the length of a tangent, in radii
KINKS_DRAWN = 40
DOT, FAINT_DOT = 4.5, 2.0  # sizes of dots
SCREEN_MARKER = 6.0  # matplotlib's own size
FAINT = 1e-3  # of the sharpest kink's leap of slope, below which a kink has a small dot


def _draw_kinks(panel: Axes, shown: Slice) -> None:
    """Draw dots, and the tangents on either side; where there are very many, those of the sharpest kinks."""
    import matplotlib as mpl

    kinks = sorted(shown.kinks, key=lambda kink: -kink.sharpness)[:KINKS_DRAWN]
    apart = np.diff([kink.t for kink in shown.kinks])
    scale = mpl.rcParams["lines.markersize"] / SCREEN_MARKER
    reach = min(TANGENT * shown.line.radius, max(2 * float(np.min(apart, initial=np.inf)), 0.02 * shown.line.radius))
    count = len(shown.kinks)
    name: str | None = f"{count} kink{'s' if count != 1 else ''}{f', the {KINKS_DRAWN} sharpest' if count > KINKS_DRAWN else ''}"
    for kink in kinks:
        size = scale * (DOT if kink.sharpness >= FAINT * kinks[0].sharpness else FAINT_DOT)
        panel.plot(kink.t, kink.value, "o", color=COLOURS[1], markersize=size, zorder=4, label=name)
        name = None  # in the legend once
        for slope, far in ((kink.left_slope, reach), (kink.right_slope, -reach)):
            if np.isinf(slope):
                continue  # the curve itself is upright there
            # each tangent is carried past the kink, where it leaves the curve
            at = np.array([kink.t, kink.t + far])
            panel.plot(at, kink.value + slope * (at - kink.t), color=COLOURS[1], linewidth=1.0, linestyle=":", zorder=3)
    for number, jump in enumerate(shown.kinks.jumps):
        look: dict[str, Any] = {"color": COLOURS[6], "linestyle": ":", "label": None if number else "jump"}
        panel.plot([jump.t, jump.t], [jump.left, jump.right], **look)

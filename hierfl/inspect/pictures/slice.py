"""The implicit function sampled along a line: values, terms, responses, active constraints, kinks, smoothing.

Its gaps are where f has no value, its ties where it is that of one of several lower solutions; both have edges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import cvxpy as cp
import jax.numpy as jnp
import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.lower_level.certificate import TOLERANCE
from hierfl.errors import SettingError
from hierfl.inspect.argument_checks import require_positive, require_whole
from hierfl.inspect.implicit.points import REASONS, Points, Sampled, owner_called, shown
from hierfl.inspect.implicit.smoothing import radii, smoothed_values
from hierfl.inspect.kinks.kink import Kinks
from hierfl.inspect.kinks.kink_search import KinkSearch, effort
from hierfl.inspect.window import Line, centre_of, direction_of, require_window, run_of
from hierfl.jaxtools.precision import double_precision
from hierfl.language.printing.card import Card, Shown
from hierfl.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


EDGE = 1e-7  # in radii: to within this an edge is found


class Gap(NamedTuple):
    """f has no value for t in [low, high]; ``reason`` says why."""

    low: float
    high: float
    reason: str

    def __str__(self) -> str:
        return f"t in [{self.low:.6g}, {self.high:.6g}]: {self.reason}"


class Tie(NamedTuple):
    """For t in [low, high] an owner's lower level has several solutions that f tells apart.

    Where the declaration has ``selected`` among them, whether it has is not known.
    """

    low: float
    high: float
    owner: str
    selected: bool

    def __str__(self) -> str:
        where = f"t = {self.low:.6g}" if self.high == self.low else f"t in [{self.low:.6g}, {self.high:.6g}]"
        if self.selected:
            return f"{where}: whether the lower level of {self.owner} has one solution or several is not known, so that none is chosen"
        return f"{where}: the lower level of {self.owner} has several solutions, and f is that of least norm"


class Smoothed(NamedTuple):
    """f^eta on the slice's points by Monte Carlo, with half the width of its 95% interval at each."""

    eta: float
    value: np.ndarray
    half_width: np.ndarray


def gaps_between(points: Points, line: Line, t: np.ndarray, sampled: Sampled) -> tuple[Gap, ...]:
    """Find the gaps between places ``t`` of a line that have been sampled."""
    found = _stretches(line, t, sampled.reason, lambda places: points.values(line.at(places)).reason)
    return tuple(Gap(low, high, REASONS[reason]) for low, high, reason in found)


def ties_between(points: Points, line: Line, t: np.ndarray, sampled: Sampled) -> tuple[Tie, ...]:
    """Find the ties between places ``t`` of a line that have been sampled."""
    found = _stretches(line, t, sampled.tied, lambda places: points.values(line.at(places)).tied)
    selected = getattr(points.compiled.declaration.lower_level, "selection", None) is not None
    return tuple(Tie(low, high, owner_called(points.compiled, who - 1), selected) for low, high, who in found)


def _stretches(
    line: Line, t: np.ndarray, codes: np.ndarray, ask: Callable[[np.ndarray], np.ndarray]
) -> Iterator[tuple[float, float, int]]:
    """(low, high, code) of every stretch with one code but 0, whose edges are bisected, all at once."""
    changes = np.flatnonzero(np.diff(codes) != 0)
    here, there = (np.repeat([t[changes], t[changes + 1]], 2, axis=1)[k] for k in (0, 1))
    other = np.arange(len(here)) % 2 == 1  # each edge is looked for from both of its sides
    inside, outside = np.where(other, there, here), np.where(other, here, there)
    wanted = np.repeat(codes[changes], 2)
    wanted[1::2] = codes[changes + 1]
    while len(inside) and np.max(np.abs(outside - inside)) > EDGE * line.radius:
        middle = 0.5 * (inside + outside)
        same = ask(middle) == wanted
        inside, outside = np.where(same, middle, inside), np.where(same, outside, middle)
    ends = [t[0], *inside, t[-1]]
    starts = [0, *(changes + 1), len(codes)]
    for number, (first, _) in enumerate(pairwise(starts)):
        if codes[first] != 0:
            yield float(ends[2 * number]), float(ends[2 * number + 1]), int(codes[first])


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
    centre, direction, chosen
        The line: x at t = 0 and a unit vector, flat, and how the direction was chosen.
    smoothed
        f^eta for every eta asked for.
    iterates
        (t, distance from the line, round) of a run's iterates, (k, 3); empty without a run.
    """

    compiled: CompiledProblem
    line: Line
    chosen: str
    t: np.ndarray
    sampled: Sampled
    smoothed: tuple[Smoothed, ...]
    iterates: np.ndarray
    tolerance: float
    progress: bool = False

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
        return Points(self.compiled, self.tolerance).error_bounds(self.line.at(self.t), self.sampled)

    @property
    def centre(self) -> np.ndarray:
        return self.line.centre

    @property
    def direction(self) -> np.ndarray:
        return self.line.direction

    @cached_property
    @double_precision
    def kinks(self) -> Kinks:
        """The kinks in the window, in order; see :class:`hierfl.inspect.kinks.kink.Kinks`. Computed when first asked for."""
        with shown(effort(self.t, self.sampled), "kinks", self.progress) as bar:
            points = Points(self.compiled, self.tolerance, bar)
            return KinkSearch(points, self.line).find(self.t, self.sampled)

    @cached_property
    @double_precision
    def gaps(self) -> tuple[Gap, ...]:
        """Where f has no value, to 1e-7 radii, and why."""
        return gaps_between(Points(self.compiled, self.tolerance), self.line, self.t, self.sampled)

    @cached_property
    @double_precision
    def ties(self) -> tuple[Tie, ...]:
        """Where the lower level has several solutions that f tells apart, to 1e-7 radii, and of which owner of a y."""
        return ties_between(Points(self.compiled, self.tolerance), self.line, self.t, self.sampled)

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
        switches, signature = Points(self.compiled).switches, self.sampled.signature[place]
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
        from hierfl.inspect.pictures.slice_plot import plot_slice

        return plot_slice(self, ax, response, style, **line)

    def __str__(self) -> str:
        where = f"f on {len(self.t)} points, t in [{self.t[0]:.4g}, {self.t[-1]:.4g}], along {self.chosen}"
        gaps = [f"no value for {gap}" for gap in self.gaps]
        if not (self.sampled.reason == 0).any():
            return "\n".join([where, *gaps])
        best = int(np.nanargmin(self.value))
        span = f"from {np.nanmin(self.value):.6g} (t = {self.t[best]:.4g}) to {np.nanmax(self.value):.6g}"
        ties = list(map(str, self.ties[:TIES_SHOWN]))
        more = len(self.ties) - len(ties)
        ties += [f"and {more} more such {'stretch' if more == 1 else 'stretches'} of t"] if more else []
        return "\n".join([where, span, *gaps, *ties, str(self.kinks)])

    def _card(self) -> Card:
        lines = str(self).splitlines()
        kinks = [*map(str, (*self.kinks, *self.kinks.jumps)[:KINKS_SHOWN])] if (self.sampled.reason == 0).any() else []
        more = len(self.kinks) + len(self.kinks.jumps) - len(kinks) if kinks else 0
        rows = [
            *([("f", lines[1])] if (self.sampled.reason == 0).any() else []),
            *(("no value", f"for {gap}") for gap in self.gaps[:2]),
            *(("several y", str(tie)) for tie in self.ties[:2]),
            *(("kink" if " slope " in line else "jump", line) for line in kinks),
            *([("", f"and {more} more kinks and jumps")] if more else []),
            *([] if kinks else [("kinks", "none" if self.kinks.sampled is None else str(self.kinks.sampled))]),
        ]
        return Card(lines[0], rows, [("all kinks", str(self))])


@double_precision
def slice_of(
    compiled: CompiledProblem,
    center: Any,
    direction: Any = None,
    radius: float = 1.0,
    points: int = 401,
    smoothing: float | Sequence[float] | None = None,
    *,
    samples: int = 256,
    seed: int = 0,
    tolerance: float = TOLERANCE,
    progress: bool = True,
) -> Slice:
    """Sample f along a line; arguments and errors as for ``ImplicitFunction.slice``."""
    require_whole("seed", seed, 0)
    require_positive("tolerance", tolerance)
    run = run_of(compiled, center)
    require_window(radius, points)
    etas = radii(smoothing, samples)
    start = centre_of(compiled, center)
    chosen, along = direction_of(compiled, direction, run, seed, start, float(radius))
    line = Line(start, along, float(radius))
    t = float(radius) * ((np.arange(points) * 2 - (points - 1)) / (points - 1))  # linspace may miss 0 by a rounding
    with shown(points + points * samples * len(etas), "slice", progress) as bar:
        evaluate = Points(compiled, tolerance, bar)
        sampled = evaluate.values(line.at(t))
        inside = np.where(sampled.reason == 1, np.nan, 1.0)
        means = [smoothed_values(evaluate, line.at(t), eta, samples, seed) for eta in etas]
        smoothed = tuple(Smoothed(eta, inside * mean, half) for eta, (mean, half) in zip(etas, means))
    return Slice(compiled, line, chosen, t, sampled, smoothed, _iterates_along(line, run), tolerance, progress)


def _iterates_along(line: Line, run: Result | None) -> np.ndarray:
    """(t, distance from the line, round) of a run's iterates, (k, 3)."""
    if run is None or not len(run.trajectory.get("x", ())):
        return np.zeros((0, 3))
    moved = run.trajectory["x"] - line.centre
    t = moved @ line.direction
    return np.stack([t, np.linalg.norm(moved - t[:, None] * line.direction, axis=1), run.trajectory["round"]], axis=1)

"""The implicit function along a line: values, terms, responses, active constraints, kinks, smoothing."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import cvxpy as cp
import jax.numpy as jnp
import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import SettingError
from hierfl.inspect.implicit.points import Points, Sampled, shown
from hierfl.inspect.kinks.kink import Kinks
from hierfl.inspect.kinks.kink_search import KinkSearch
from hierfl.inspect.kinks.place_search import effort
from hierfl.inspect.line import Line
from hierfl.inspect.pictures.drawable import Gap, Smoothed, Tie
from hierfl.inspect.pictures.gaps import gaps_between, ties_between
from hierfl.jaxtools.precision import double_precision
from hierfl.language.printing.card import Card, Shown

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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

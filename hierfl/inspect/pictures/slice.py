"""The implicit function along a line: values, terms, responses, active constraints, kinks, smoothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import cvxpy as cp
import jax.numpy as jnp
import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.lower_level.certificate import TOLERANCE
from hierfl.compiler.starting_points import project_on_all
from hierfl.errors import SettingError
from hierfl.inspect.argument_checks import require_positive, require_whole
from hierfl.inspect.implicit.points import OUTSIDE, REASONS, Points, Sampled, shown
from hierfl.inspect.implicit.smoothing import radii, smoothed_values
from hierfl.inspect.kinks.kink import Kinks, Line
from hierfl.inspect.kinks.kink_places import effort
from hierfl.inspect.kinks.kink_search import KinkSearch
from hierfl.jaxtools.precision import double_precision
from hierfl.result import Result
from hierfl.runs import Runs

GAP_WIDTH = 1e-7


class Gap(NamedTuple):
    """f has no value for t in [low, high]; ``reason`` says why."""

    low: float
    high: float
    reason: str

    def __str__(self) -> str:
        return f"t in [{self.low:.6g}, {self.high:.6g}]: {self.reason}"


class Smoothed(NamedTuple):
    """f^eta on the slice's points by Monte Carlo, with half the width of its 95% interval at each."""

    eta: float
    value: np.ndarray
    half_width: np.ndarray


@dataclass(frozen=True, eq=False)
class Slice:
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
        How well the lower level is solved at each point, worst over the owners of a y.
    progress
        Whether a search for kinks shows a progress bar if it takes long.
    centre, direction, chosen
        The line, flat, and how its direction was chosen.
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
        """f at the points, NaN in gaps."""
        return self.sampled.value

    @property
    def server(self) -> np.ndarray:
        """The server's term."""
        return self.sampled.server

    @property
    def clients(self) -> np.ndarray:
        """Each client's term, unweighted."""
        return self.sampled.clients

    @property
    def answers(self) -> np.ndarray:
        """y(x), flat."""
        return self.sampled.answers

    @property
    def residual(self) -> np.ndarray:
        """Natural residual of the lower level, worst over the owners."""
        return self.sampled.residual

    @property
    def error_bound(self) -> np.ndarray:
        """Bound on the error of y, worst over the owners."""
        return self.sampled.error_bound

    @property
    def centre(self) -> np.ndarray:
        """x at t = 0, flat."""
        return self.line.centre

    @property
    def direction(self) -> np.ndarray:
        """Unit vector, flat."""
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
        reason, found = self.sampled.reason, []
        points = Points(self.compiled, self.tolerance)
        edges = [0, *(np.flatnonzero(np.diff(reason) != 0) + 1), len(reason)]
        for first, last in pairwise(edges):
            if reason[first] != 0:
                low = self.t[first] if first == 0 else self._edge(points, self.t[first], self.t[first - 1])
                high = self.t[-1] if last == len(reason) else self._edge(points, self.t[last - 1], self.t[last])
                found.append(Gap(float(low), float(high), REASONS[reason[first]]))
        return tuple(found)

    def _edge(self, points: Points, inside: float, outside: float) -> float:
        """Where the reason at ``inside`` ends, towards ``outside``."""
        reason = points.values(self.line.at(np.array([inside]))).reason[0]
        while abs(outside - inside) > GAP_WIDTH * self.line.radius:
            middle = 0.5 * (inside + outside)
            same = points.values(self.line.at(np.array([middle]))).reason[0] == reason
            inside, outside = (middle, outside) if same else (inside, middle)
        return float(inside)

    @double_precision
    def response(self, variable: Any = None) -> np.ndarray:
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
            names = ", ".join(known.name() for known in lower.variables)
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

    def plot(self, ax: Any = None, **style: Any) -> Any:
        """f on the line with its kinks, one-sided tangents, gaps and smoothings; returns the figure.

        Parameters
        ----------
        ax
            Axes of matplotlib to draw on; a new figure by default.
        style
            Of the line of f: keywords of matplotlib's lines, such as ``color``, ``linestyle``, ``linewidth``.

        Raises
        ------
        SettingError
            If ``ax`` is something else, or for an unknown keyword.
        """
        from hierfl.inspect.pictures.slice_plot import plot_slice

        return plot_slice(self, ax, **style)

    def __str__(self) -> str:
        where = f"f on {len(self.t)} points, t in [{self.t[0]:.4g}, {self.t[-1]:.4g}], along {self.chosen}"
        gaps = [f"no value for {gap}" for gap in self.gaps]
        if not (self.sampled.reason == 0).any():
            return "\n".join([where, *gaps])
        best = int(np.nanargmin(self.value))
        span = f"from {np.nanmin(self.value):.6g} (t = {self.t[best]:.4g}) to {np.nanmax(self.value):.6g}"
        return "\n".join([where, span, *gaps, str(self.kinks)])

    __repr__ = __str__


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
    """The slice; arguments and errors as for ``ImplicitFunction.slice``."""
    require_whole("seed", seed, 0)
    require_positive("tolerance", tolerance)
    run = run_of(compiled, center)
    require_window(radius, points)
    etas = radii(smoothing, samples)
    start = centre_of(compiled, center)
    chosen, along = direction_of(compiled, direction, run, seed)
    line = Line(start, along, float(radius))
    t = float(radius) * ((np.arange(points) * 2 - (points - 1)) / (points - 1))  # linspace may miss 0 by a rounding
    with shown(points + points * samples * len(etas), "slice", progress) as bar:
        evaluate = Points(compiled, tolerance, bar)
        sampled = evaluate.values(line.at(t))
        inside = np.where(sampled.reason == 1, np.nan, 1.0)
        found = [smoothed_values(evaluate, line.at(t), eta, samples, seed) for eta in etas]
        smoothed = tuple(Smoothed(eta, inside * mean, half) for eta, (mean, half) in zip(etas, found))
    return Slice(compiled, line, chosen, t, sampled, smoothed, _projected(line, run), tolerance, progress)


def centre_of(compiled: Any, center: Any) -> np.ndarray:
    """The flat centre: a point of X, a result's x, or the projection of 0 on X.

    Raises
    ------
    SettingError
        For a point outside X.
    """
    if center is None:
        return np.asarray(project_on_all(compiled, np.zeros(compiled.upper.size)))
    centre: np.ndarray = compiled.upper.flatten(center.x if isinstance(center, Result) else center, "center")
    require_inside(compiled, centre)
    return centre


def direction_of(compiled: Any, direction: Any, run: Result | None, seed: int) -> tuple[str, np.ndarray]:
    """(how it was chosen, unit vector): the given direction, the run's leading principal one, or a random one."""
    if direction is not None:
        return "the given direction, made a unit vector", unit_vector(compiled.upper.flatten(direction, "direction"))
    if run is not None and len(run.trajectory.get("x", ())) > 1:
        path = run.trajectory["x"] - run.trajectory["x"].mean(axis=0)
        if np.linalg.norm(path) > 0:
            _, strength, axes = np.linalg.svd(path, full_matrices=False)
            share = 100 * strength[0] ** 2 / np.sum(strength**2)
            return f"the leading principal direction of the run's iterates ({share:.0f}% of their variance)", axes[0]
    if compiled.upper.size == 1:
        return "x itself", np.ones(1)
    normal = np.random.default_rng(seed).standard_normal(compiled.upper.size)
    return f"a random unit vector (seed {seed})", normal / np.linalg.norm(normal)


def unit_vector(flat: np.ndarray) -> np.ndarray:
    """Of length 1, also where the square of a length would overflow or vanish.

    Raises
    ------
    SettingError
        If it is zero.
    """
    largest = float(np.max(np.abs(flat)))
    if largest == 0:
        raise SettingError("direction is zero: give a direction in the space of x.")
    _, exponent = np.frexp(largest)
    scaled = np.ldexp(flat, -int(exponent))  # exact, so that an ordinary direction is divided as it was
    unit: np.ndarray = scaled / np.linalg.norm(scaled)
    return unit


def _projected(line: Line, run: Result | None) -> np.ndarray:
    """(t, distance, round) of a run's iterates."""
    if run is None or not len(run.trajectory.get("x", ())):
        return np.zeros((0, 3))
    moved = run.trajectory["x"] - line.centre
    t = moved @ line.direction
    return np.stack([t, np.linalg.norm(moved - t[:, None] * line.direction, axis=1), run.trajectory["round"]], axis=1)


# --- what is refused --------------------------------------------------------------------------------------------------


def run_of(compiled: CompiledProblem, center: Any) -> Result | None:
    """The centre as a run of the problem; None for a point.

    Raises
    ------
    SettingError
        If it is a run of another problem, or was loaded without its problem; for several runs.
    """
    if isinstance(center, Runs):
        raise SettingError("center holds the runs of several seeds: give one of them, such as runs.best or runs[0].")
    if not isinstance(center, Result):
        return None
    if center.require_problem("a picture of a result").compile() is not compiled:
        raise SettingError("this result belongs to another problem: use result.problem.implicit.")
    return center


def require_window(radius: Any, points: Any) -> None:
    """A positive radius, at least 5 points; errors as for ``require_positive``."""
    require_positive("radius", radius)
    require_whole("points", points, 5)


def require_inside(compiled: Any, centre: np.ndarray) -> None:
    """The centre is in X.

    Raises
    ------
    SettingError
        Naming the distance.
    """
    away = float(np.linalg.norm(centre - np.asarray(project_on_all(compiled, centre))))
    if away > OUTSIDE * (1 + float(np.linalg.norm(centre))):
        raise SettingError(f"center is {away:.3g} outside X: give a point of X, such as its projection result.x.")

"""What a study gave: tables with intervals, curves over anything that was counted, performance and data profiles."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from jaxtyping import Float

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import SettingError
from hierfl.house_style import house_style, panels, require_axes
from hierfl.inspect.implicit.points import Points
from hierfl.inspect.pictures.convergence import DASHES, SCALES, name_curves
from hierfl.jaxtools.precision import double_precision
from hierfl.language.printing.card import Card, Shown
from hierfl.near_names import near_names
from hierfl.result import Result
from hierfl.run_settings import COLUMNS, Budget
from hierfl.runs import aligned

AXES = {**COLUMNS, "rounds": "rounds", "seconds": "seconds"}  # a unit, and its column
KEPT = 120  # points of a curve


@dataclass(frozen=True)
class Curve:
    """f along the run of a seed, and how it ended.

    ``counts`` ``{column: (points,)}`` are what had been taken by each point, never less than before; ``value`` (points,) is f there, as declared, the lower
    level solved exactly, at the projection on X, NaN where it has no value or the answer violates an upper constraint, and where nothing is known
    yet; ``final`` is f at what the run gives as its answer, NaN where it has none.
    """

    seed: int
    status: str
    counts: dict[str, Float[np.ndarray, " points"]]
    value: Float[np.ndarray, " points"]
    final: float

    @classmethod
    @double_precision
    def of_run(cls, compiled: CompiledProblem, result: Result, whole: bool) -> Curve:
        """Of a run that counts its rounds; ``whole`` keeps what seconds they took."""
        took = result.settings.get("auto", {}).get("took", {})
        done = int(result.settings["rounds_done"])
        path = result.trajectory
        rounds, xs = np.asarray(path.get("round", np.zeros(0)), int), np.asarray(path.get("x", np.zeros((0, compiled.upper.size))), float)
        some = rounds <= done
        rounds, xs = rounds[some], xs[some]
        if not len(rounds) or rounds[-1] != done:
            rounds, xs = np.append(rounds, done), np.concatenate([xs, compiled.upper.flatten(result.iterate, "x")[None]])
        if len(rounds) > KEPT:  # as many early as late on a logarithmic axis, and evenly
            places = np.concatenate([np.linspace(0, len(rounds) - 1, KEPT // 2), np.geomspace(1, len(rounds) - 1, KEPT // 2)])
            chosen = np.unique(np.r_[0, places.round().astype(int), len(rounds) - 1])
            rounds, xs = rounds[chosen], xs[chosen]
        points = Points(compiled)
        inside = points.projected(xs)
        sampled = points.values(inside)
        violated = points.violated(inside, sampled).any(axis=1)
        names = [name for name in COLUMNS.values() if name in result.history or not done]  # nothing was taken where no round was made
        counts = {name: took.get(name, 0) + np.concatenate([[0.0], np.cumsum(result.history.get(name, np.zeros(done)))])[rounds] for name in names}
        counts["rounds"] = rounds.astype(float)
        if whole:
            counts["seconds"] = np.concatenate([[0.0], np.cumsum(result.history.get("seconds", np.zeros(done)))])[rounds]
        final = float(result.value) if result.violation.feasible else float("nan")
        return cls(result.settings["seed"], result.status, counts, np.where(violated, np.nan, sampled.value), final)

    def to_json(self) -> dict[str, Any]:
        """Plain numbers, from which :meth:`of_json` makes the very same again."""
        counts = {name: values.tolist() for name, values in self.counts.items()}
        return {**vars(self), "counts": counts, "value": self.value.tolist()}

    @classmethod
    def of_json(cls, told: dict[str, Any]) -> Curve:
        counts = {name: np.array(values, float) for name, values in told["counts"].items()}
        return cls(told["seed"], told["status"], counts, np.array(told["value"], float), float(told["final"]))


if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RESAMPLES, LEVEL = 10_000, 0.95
UNITS = {"floats": "scalars sent", "rounds": "rounds", "seconds": "seconds"}


@dataclass(frozen=True)
class Cell:
    """One solver on one problem: a curve for each seed, or why it does not fit; ``notes`` are the warnings of its runs, each once."""

    curves: tuple[Curve, ...]
    refused: str = ""
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {"curves": [curve.to_json() for curve in self.curves], "refused": self.refused, "notes": list(self.notes)}

    @classmethod
    def of_json(cls, told: Mapping[str, Any]) -> Cell:
        return cls(tuple(map(Curve.of_json, told["curves"])), told["refused"], tuple(told["notes"]))


@dataclass(frozen=True, repr=False)
class Comparison(Shown):
    """The runs of a study.

    Attributes
    ----------
    cells
        ``{(problem, solver): Cell}``.
    budgets
        What each run might take, by problem.
    seeds
        Of the runs, alike for all pairs.

    Examples
    --------
    >>> from hierfl.solvers import FedRZO
    >>> compared = hf.Study(problem, {"one": FedRZO(step_size=0.1), "other": FedRZO(step_size=0.01)}, seeds=4, budget=hf.Budget(values=200)).run(progress=False)
    >>> bool(compared.difference("one", "other").median < 0)
    True
    """

    cells: Mapping[tuple[str, str], Cell]
    budgets: Mapping[str, Budget]
    seeds: tuple[int, ...]
    senses: Mapping[str, str]
    sizes: Mapping[str, tuple[int, int]]

    # --- what there is -----------------------------------------------------------------------------------------------

    @property
    def problems(self) -> list[str]:
        """Their names."""
        return list(dict.fromkeys(problem for problem, _ in self.cells))

    @property
    def solvers(self) -> list[str]:
        """Their names."""
        return list(dict.fromkeys(solver for _, solver in self.cells))

    @property
    def unit(self) -> str:
        """What the budget counts."""
        return next(iter(next(iter(self.budgets.values())).limits))

    @property
    def notes(self) -> list[str]:
        """Who did not fit, and what runs warned of, a line each."""
        told = {pair: [f"does not fit: {cell.refused}"] if cell.refused else cell.notes for pair, cell in self.cells.items()}
        return [f"{solver} on {problem}: {text}" for (problem, solver), texts in told.items() for text in texts]

    def final(self, problem: str | None = None, *, name: str) -> Float[np.ndarray, " seeds"]:
        """f at the answers of a solver's runs, by seed; NaN for a run without one, and where no answer is feasible."""
        found = {curve.seed: curve.final for curve in self._cell(self._problem(problem), name).curves}
        return np.array([found.get(seed, math.nan) for seed in self.seeds])

    def difference(self, one: str, other: str, problem: str | None = None) -> PairedDifference:
        """How much larger f is at the answers of ``one`` than at those of ``other``, seed by seed: the median, and its bootstrap interval (95%).

        Runs without an answer are left out, in pairs, and counted. An interval of n pairs holds with a probability of 1 - 2^(1-n) at most: 87% of
        four, 94% of five.
        """
        named = self._problem(problem)
        larger, less = self.final(named, name=one), self.final(named, name=other)
        gaps = larger - less
        gaps[np.abs(gaps) <= 1e-14 * np.minimum(np.abs(larger), np.abs(less))] = 0.0  # rounding
        known = gaps[np.isfinite(gaps)]
        if not len(known):
            return PairedDifference(math.nan, math.nan, math.nan, 0, len(gaps))
        random = np.random.default_rng(0)
        drawn = np.median(known[random.integers(len(known), size=(RESAMPLES, len(known)))], axis=1)
        low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]) if len(known) > 1 else (math.nan, math.nan)
        return PairedDifference(float(np.median(known)), float(low), float(high), len(known), len(gaps))

    # --- tables ------------------------------------------------------------------------------------------------------

    def table(self, problem: str | None = None, *, against: str | None = None) -> str:
        """Write a line for each solver: median and quartiles of f at the runs' answers, the paired difference to ``against``, what was taken.

        Runs without an answer count as worse than all others, and are told beside how the runs ended.

        ``against`` is a solver's name, by default the one with the best median. With several problems there is a table for each, unless one is named.
        """
        named = self.problems if problem is None else [self._problem(problem)]
        parts = []
        for one in named:
            head = [f"{one}:"] if len(self.problems) > 1 else []
            parts.append("\n".join([*head, aligned(self._rows(one, against))]))
        return "\n\n".join(parts)

    def latex(self, problem: str | None = None, *, against: str | None = None) -> str:
        """The same as LaTeX: a ``tabular`` with the rules of the package booktabs; several problems stand below each other."""
        named = self.problems if problem is None else [self._problem(problem)]
        lines: list[str] = []
        head: list[str] = []
        for one in named:
            head, *rows = self._rows(one, against)
            if len(named) > 1:
                lines += [rf"\multicolumn{{{len(head)}}}{{l}}{{{_tex(one)}}} \\"]
            lines += [" & ".join(map(_tex, row)) + r" \\" for row in rows]
            lines.append(r"\midrule")
        start = [rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}", r"\toprule", " & ".join(map(_tex, head)) + r" \\", r"\midrule"]
        return "\n".join([*start, *lines[:-1], r"\bottomrule", r"\end{tabular}"])

    def _rows(self, problem: str, against: str | None) -> list[list[str]]:
        sign = self._sign(problem)
        # a run without an answer is worse than all that have one
        found = {name: np.where(np.isfinite(values), sign * values, np.inf) for name in self.solvers for values in [self.final(problem, name=name)]}
        if against is None:
            against = min(found, key=lambda name: (_quantiles(found[name])[1], float(np.isinf(found[name]).mean())))
        self._require_solver(against)
        rows = [["solver", "median f(x)", "quartiles", f"minus {against}, 95% interval", self.unit, "ended"]]
        for name in self.solvers:
            cell, known = self._cell(problem, name), found[name]
            answered = int(np.isfinite(known).sum())
            if not answered:
                rows.append([name, "none", "", "", "", "does not fit" if cell.refused else _ended(cell)])
                continue
            low, middle, high = (_told(sign * value) for value in _quantiles(known))
            quartiles = (low, high) if sign > 0 else (high, low)
            ended = _ended(cell) + (f"; {answered} of {len(known)} answers" if answered < len(known) else "")
            gap = "" if name == against else str(self.difference(name, against, problem))
            taken = float(np.median([curve.counts[AXES[self.unit]][-1] for curve in cell.curves if AXES[self.unit] in curve.counts] or [math.nan]))
            rows.append([name, middle, f"[{', '.join(quartiles)}]", gap, f"{taken:,.0f}" if self.unit != "seconds" else f"{taken:.2f}", ended])
        return rows

    def to_pandas(self) -> pd.DataFrame:
        """Give all points of all curves: problem, solver, seed, f, and what had been taken. Needs pandas."""
        import pandas as pd

        whose = [({"problem": pair[0], "solver": pair[1]}, curve) for pair, cell in self.cells.items() for curve in cell.curves]
        parts = [pd.DataFrame({**pair, "seed": curve.seed, "value": curve.value, **curve.counts}) for pair, curve in whose]
        return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame()

    # --- curves ------------------------------------------------------------------------------------------------------

    def band(self, problem: str | None = None, *, name: str, axis: str | None = None, best: bool = False) -> Quartiles:
        """Median and quartiles over the seeds of f along a solver's runs, over an axis (``"values"``, ``"floats"``, ``"rounds"``, ...).

        ``best`` takes the best f until then in place of f itself; methods from outside have no other.
        """
        named, axis = self._problem(problem), self.unit if axis is None else axis
        if axis not in AXES:
            raise SettingError(f"axis={axis!r}: {near_names(axis, tuple(AXES))}")
        curves = self._cell(named, name).curves
        if missing := [curve for curve in curves if AXES[axis] not in curve.counts]:
            known = ", ".join(one for one, column in AXES.items() if column in missing[0].counts)
            why = ": seeds run together have no seconds of their own, unless the budget is in seconds" if axis == "seconds" else ""
            raise SettingError(f"axis={axis!r}: {name} has counted {known}{why}.")
        places = [curve.counts[AXES[axis]] for curve in curves]
        at = np.unique(np.concatenate(places)) if places else np.zeros(0)
        rows, sign = [], self._sign(named)
        for curve, own in zip(curves, places):
            values = sign * np.fmin.accumulate(sign * curve.value) if best else curve.value
            found = values[np.maximum(np.searchsorted(own, at, side="right") - 1, 0)]
            rows.append(np.where(at >= own[0], found, np.nan))
        with np.errstate(all="ignore"):
            stacked = np.array(rows) if rows else np.full((1, 0), np.nan)
            shown = np.isfinite(stacked).any(axis=0)
            rule: Literal["inverted_cdf", "linear"] = "inverted_cdf" if np.isinf(stacked).any() else "linear"  # between a number and infinity there is none
            low, middle, high = np.nanquantile(stacked[:, shown], [0.25, 0.5, 0.75], axis=0, method=rule) if shown.any() else np.zeros((3, 0))
        return Quartiles(at[shown], low, middle, high)

    def plot(
        self, problem: str | None = None, ax: Axes | None = None, *, axis: str | None = None, scale: str = "linear", best: bool = False, style: str = "screen"
    ) -> Figure:
        """Draw f of every solver over what was counted: medians with quartiles. Returns the figure.

        ``axis`` as for :meth:`band`; ``scale`` is ``"linear"``, ``"log"``, or ``"gap"``, the distance to the best f that any run saw, on a logarithmic
        axis; ``style`` ``"screen"``, or ``"paper"`` for a column of 3.4 inches, which ``figure.savefig("f.pdf")`` keeps as vectors.
        """
        return plot_curves(self, self._problem(problem), ax, self.unit if axis is None else axis, scale, best, style)

    # --- profiles ----------------------------------------------------------------------------------------------------

    def solved(self, tolerance: float = 1e-3, best: Mapping[str, float] | None = None) -> dict[str, Float[np.ndarray, "problems seeds"]]:
        """What each solver's runs had taken when they first came to f <= f* + tolerance (f_0 - f*); infinite for those that never did. Solvers that fit no problem are left out.

        f* is the best f that any run saw on a problem, or what ``best`` knows of it, f_0 the largest f at a start of the seed. Solvers by name,
        ``(problems, seeds)`` each, in the budget's unit. (Moré and Wild, Benchmarking derivative-free optimization algorithms, 2009.)

        Raises ``SettingError`` for a tolerance outside (0, 1), and for ``best`` of a problem that there is not.
        """
        if isinstance(tolerance, bool) or not isinstance(tolerance, (int, float, np.floating)) or not 0 < tolerance < 1:
            raise SettingError(f"tolerance={tolerance!r}: a share of the way, in (0, 1), such as 1e-3.")
        if unknown := [name for name in best or {} if name not in self.problems]:
            raise SettingError(f"best: there is no problem {unknown[0]!r}; there are {', '.join(self.problems)}.")
        least_taken = 1e-9 if self.unit == "seconds" else 1.0  # where the start is good enough: ratios are taken of it
        fitting = [name for name in self.solvers if any(not self.cells[problem, name].refused for problem in self.problems)]
        column, took = AXES[self.unit], {name: np.full((len(self.problems), len(self.seeds)), np.inf) for name in fitting}
        for row, problem in enumerate(self.problems):
            sign = self._sign(problem)
            cells = {name: self._cell(problem, name) for name in fitting}
            seen = [np.nanmin(sign * curve.value) for cell in cells.values() for curve in cell.curves if np.isfinite(curve.value).any()]
            least = min(seen, default=math.nan)
            if problem in (best or {}):
                least = min(least, sign * (best or {})[problem])
            for place, seed in enumerate(self.seeds):
                own = {name: curve for name, cell in cells.items() for curve in cell.curves if curve.seed == seed}
                starts = [sign * curve.value[np.isfinite(curve.value)][0] for curve in own.values() if np.isfinite(curve.value).any()]
                goal = least + tolerance * (max(starts, default=math.nan) - least)
                for name, curve in own.items():
                    there = np.flatnonzero(sign * curve.value <= goal)
                    if len(there) and column in curve.counts:
                        took[name][row, place] = max(curve.counts[column][there[0]], least_taken)
        return took

    def performance_profile(self, tolerance: float = 1e-3, best: Mapping[str, float] | None = None) -> dict[str, Profile]:
        """The share of pairs of problem and seed that each solver solves within a factor of the quickest. (Dolan and Moré, 2002.)"""
        took = self.solved(tolerance, best)
        quickest = np.min(np.stack(list(took.values())), axis=0) if took else np.zeros(0)
        with np.errstate(invalid="ignore"):
            return {name: Profile.of(np.where(np.isfinite(own), own / quickest, np.inf)) for name, own in took.items()}

    def data_profile(self, tolerance: float = 1e-3, best: Mapping[str, float] | None = None) -> dict[str, Profile]:
        """The share of pairs of problem and seed that each solver solves within a budget.

        In units of n + 1 values of f (m values of a client's term each) for budgets in values, of n + 1 gradients of f, of what n + 1 values send for
        floats, and in the budget's own unit else.
        """
        took = self.solved(tolerance, best)
        return {name: Profile.of(own / self.scales[:, None]) for name, own in took.items()}

    @property
    def scales(self) -> Float[np.ndarray, " problems"]:
        """What the budget's unit is divided by in a data profile, by problem."""
        each = {"values": lambda n, m: m * (n + 1), "gradients": lambda n, m: m * (n + 1), "floats": lambda n, m: m * (n + 1) * (n + 1)}
        scale = each.get(self.unit, lambda n, m: 1.0)
        return np.array([float(scale(*self.sizes[name])) for name in self.problems])

    def plot_profile(
        self, ax: Axes | None = None, *, kind: str = "data", tolerance: float | Sequence[float] = 1e-3, best: Mapping[str, float] | None = None, style: str = "screen"
    ) -> Figure:
        """Draw ``data_profile`` or ``performance_profile`` (``kind="performance"``), a panel for each tolerance. Returns the figure."""
        if kind not in ("data", "performance"):
            raise SettingError(f"kind={kind!r}: 'data' or 'performance'.")
        tolerances: list[Any] = list(tolerance) if isinstance(tolerance, (list, tuple, np.ndarray)) and len(tolerance) else [tolerance]
        of = self.data_profile if kind == "data" else self.performance_profile
        return plot_profiles({one: of(one, best) for one in tolerances}, ax, kind, self.profile_unit, style)

    @property
    def profile_unit(self) -> str:
        """What a data profile's axis counts, in words."""
        if self.unit in ("values", "gradients", "floats"):
            return {"values": "values of f", "gradients": "gradients of f", "floats": "what n + 1 values send"}[self.unit] + ("" if self.unit == "floats" else ", in n + 1")
        return UNITS.get(self.unit, self.unit.replace("_", " "))

    # --- inside ------------------------------------------------------------------------------------------------------

    @property
    def _limits(self) -> str:
        """The budgets, in words."""
        told = list(dict.fromkeys(map(str, sorted(self.budgets.values(), key=lambda one: one.limits[self.unit]))))
        return told[0] if len(told) == 1 else f"{told[0]} to {told[-1]}, by problem"

    def _sign(self, problem: str) -> float:
        return 1.0 if self.senses[problem] == "minimize" else -1.0

    def _problem(self, problem: str | None) -> str:
        if problem is None and len(self.problems) == 1:
            return self.problems[0]
        if problem not in self.problems:
            raise SettingError(f"problem={problem!r}: name one of {', '.join(map(repr, self.problems))}.")
        return str(problem)

    def _require_solver(self, name: str) -> None:
        if name not in self.solvers:
            raise SettingError(f"there is no solver {name!r}: {near_names(name, tuple(self.solvers))}")

    def _cell(self, problem: str, name: str) -> Cell:
        self._require_solver(name)
        return self.cells[problem, name]

    def _card(self) -> Card:
        solvers, seeds, notes = len(self.solvers), len(self.seeds), len(self.notes)
        title = f"{solvers} solver{'s' * (solvers != 1)}, {seeds} seed{'s' * (seeds != 1)} each, {self._limits}"
        rows = []
        for problem in self.problems:
            head, *cells = self._rows(problem, None)
            of = f"{problem}, " * (len(self.problems) > 1)
            rows += [(of + row[0], "; ".join(f"{what} {cell}" for what, cell in zip(head[1:], row[1:]) if cell)) for row in cells]
        rows += [(f"{notes} note{'s' * (notes != 1)}", "what did not fit, and warnings: .notes")] * (notes > 0)
        return Card(title, rows, [("side by side", self.table())])

    def __str__(self) -> str:
        notes = self.notes
        told = [f"{len(notes)} note{'s' * (len(notes) != 1)}, in .notes: {notes[0]}{' ...' if len(notes) > 1 else ''}"] if notes else []
        return "\n".join([f"each run: {self._limits}, {len(self.seeds)} seed{'s' * (len(self.seeds) != 1)}", self.table(), *told])


@dataclass(frozen=True)
class PairedDifference:
    """A median of paired differences with its bootstrap interval (95%), over ``pairs`` of ``seeds``."""

    median: float
    low: float
    high: float
    pairs: int
    seeds: int

    def __str__(self) -> str:
        if not self.pairs:
            return "none"
        left_out = "" if self.pairs == self.seeds else f", {self.pairs} of {self.seeds} seeds"
        interval = "" if math.isnan(self.low) else f" [{self.low:.2g}, {self.high:.2g}]"
        return f"{self.median:{'+' if self.median else ''}.2g}{interval}{left_out}"


@dataclass(frozen=True)
class Quartiles:
    """Median and quartiles, ``(points,)`` each, and where."""

    at: Float[np.ndarray, " points"]
    low: Float[np.ndarray, " points"]
    middle: Float[np.ndarray, " points"]
    high: Float[np.ndarray, " points"]


@dataclass(frozen=True)
class Profile:
    """A step function: the share solved, ``share`` from ``at`` on, ``(steps,)`` each; 0 before the first."""

    at: Float[np.ndarray, " steps"]
    share: Float[np.ndarray, " steps"]

    @classmethod
    def of(cls, took: np.ndarray) -> Profile:
        """Of what all runs took, infinite for those that never came there."""
        known = np.sort(took[np.isfinite(took)])
        return cls(known, np.arange(1, len(known) + 1) / took.size)

    def __call__(self, budget: float) -> float:
        """The share solved within a budget."""
        return float(np.sum(self.at <= budget) / max(1, len(self.at)) * (self.share[-1] if len(self.share) else 0.0))


def _tex(text: str) -> str:
    """Words and numbers as LaTeX sets them as text."""
    escaped = "".join(f"\\{c}" if c in "&%$#_{}" else {"~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "\\": r"\textbackslash{}"}.get(c, c) for c in text)
    return escaped.replace("-", "$-$") if text[:1] in "+-[" or text[:2] == "0 " else escaped


def _quantiles(values: Float[np.ndarray, " runs"]) -> tuple[float, float, float]:
    """Lower quartile, median and upper quartile; between a number and infinity there is none."""
    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75], method="linear" if np.isfinite(values).all() else "inverted_cdf")
    return float(low), float(middle), float(high)


def _told(value: float) -> str:
    return f"{value:.6g}" if math.isfinite(value) else "none"


def _ended(cell: Cell) -> str:
    counts = Counter(curve.status for curve in cell.curves)
    return ", ".join(status if len(counts) == 1 else f"{status} ({count})" for status, count in counts.items())


def plot_curves(compared: Comparison, problem: str, ax: Axes | None, axis: str, scale: str, best: bool, style: str) -> Figure:
    """A line and its quartiles for each solver; errors as for ``Comparison.plot``."""
    require_axes(ax)
    if scale not in SCALES:
        raise SettingError(f"scale={scale!r}: {near_names(scale, SCALES)}")
    bands = {name: compared.band(problem, name=name, axis=axis, best=best) for name in compared.solvers if not compared.cells[problem, name].refused}
    sign = 1.0 if compared.senses[problem] == "minimize" else -1.0
    seen = [curve.value for name in bands for curve in compared.cells[problem, name].curves]
    least = sign * min((float(np.nanmin(sign * values)) for values in seen if np.isfinite(values).any()), default=np.nan)

    def drawn(values: np.ndarray) -> np.ndarray:
        if scale != "gap":
            return values
        gap = sign * (values - least)
        return np.where(gap > 0, gap, np.nan)

    with house_style(style):
        figure, axes = panels(1, 5.2, 3.6, style) if ax is None else (cast("Figure", ax.figure), [ax])
        panel, lines, names = axes[0], [], []
        for place, (name, band) in enumerate(bands.items()):
            if not len(band.at):
                continue
            (line,) = panel.plot(band.at, drawn(band.middle), DASHES[place], drawstyle="steps-post", label=name)
            panel.fill_between(band.at, drawn(band.low), drawn(band.high), step="post", color=line.get_color(), alpha=0.2, linewidth=0)
            lines.append(line)
            names.append(name)
        what = "best f(x) so far" if best else "f(x)"
        panel.set(xlabel=UNITS.get(axis, axis.replace("_", " ")), ylabel=f"{what} - the best seen" if scale == "gap" else what)
        if scale != "linear":
            panel.set_yscale("log", nonpositive="mask")
        _named(figure, panel, lines, names, ax is None, beside=True)
    return figure


def plot_profiles(of: Mapping[float, Mapping[str, Profile]], ax: Axes | None, kind: str, unit: str, style: str) -> Figure:
    """A panel for each tolerance, a step function for each solver; errors as for ``Comparison.plot_profile``."""
    require_axes(ax)
    if ax is not None and len(of) != 1:
        raise SettingError("ax=...: one tolerance for one panel; leave ax out for several.")
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    with house_style(style):
        figure, axes = panels(len(of), 4.4, 3.4, style) if ax is None else (cast("Figure", ax.figure), [ax])
        for panel, (tolerance, profiles) in zip(axes, of.items()):
            ends = [float(profile.at[-1]) for profile in profiles.values() if len(profile.at)]
            begins = [float(profile.at[0]) for profile in profiles.values() if len(profile.at)]
            last, lines = 1.05 * max(ends, default=1.0), []
            first = min(begins, default=1.0)
            for place, (name, profile) in enumerate(profiles.items()):
                at, share = np.r_[first, profile.at, last], np.r_[0.0, profile.share, profile.share[-1] if len(profile.share) else 0.0]
                lines += panel.plot(at, share, DASHES[place], drawstyle="steps-post", label=name)
            panel.set(xlabel=unit if kind == "data" else "factor of the quickest", ylabel="share solved", ylim=(-0.02, 1.02), xscale="log")
            if last < 100 * first:  # where powers of ten would be one label, or none
                panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            panel.xaxis.set_minor_formatter(NullFormatter())
            panel.set_title(f"to {tolerance:g} of the way")
            if panel is axes[-1]:
                _named(figure, panel, lines, list(profiles), ax is None, beside=len(of) == 1)
    return figure


def _named(figure: Figure, panel: Axes, lines: list[Any], names: list[str], ours: bool, beside: bool) -> None:
    """Names beside the curves of a single panel, below several, and within a panel of somebody else's figure."""
    if ours and beside and len(lines) > 1:
        name_curves([panel], [lines], names)
    elif ours and len(lines) > 1:
        figure.legend(lines, names, loc="outside lower center", ncols=min(len(names), 4))
    elif lines:
        panel.legend()

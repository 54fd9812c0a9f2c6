"""Several runs of one solver, seed by seed, with means and confidence bands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hierfl.errors import SettingError
from hierfl.language.printing.card import Card, brief
from hierfl.near_names import no_such_attribute
from hierfl.result import Reported, Result
from hierfl.run_standing import AT_REST, OUT_OF_ROUNDS

if TYPE_CHECKING:
    import pandas as pd

    from hierfl.problem import Problem

FINAL = ("value", "own_value")
OF_BEST = ("x", "y", "value", "status", "ended", "rest", "certificate", "gap", "save")


@dataclass(frozen=True, repr=False)
class Runs(Reported):
    """The results of a solver's runs with several seeds; behaves as a sequence of them.

    Means and bands are taken over the runs that did not diverge, and over the rounds that all of these made. ``x``, ``y``, ``value``,
    ``status``, ``ended``, ``rest``, ``certificate``, ``gap`` and ``save`` are those of ``best``, the run whose x the variables receive.

    Attributes
    ----------
    results
        One ``Result`` for each seed.
    solver
        The solver, by the settings that differ from its defaults.
    sense
        ``"minimize"`` or ``"maximize"``.
    over
        In what the runs differ: ``"seeds"``, or ``"starts"`` (and seeds) for ``solve(restarts=...)``.

    Examples
    --------
    >>> from hierfl.solvers import ImplicitGradient
    >>> runs = problem.solve(ImplicitGradient(), rounds=50, seeds=2, progress=False)
    >>> len(runs), round(runs.mean(), 3)
    (2, 0.0)
    """

    results: tuple[Result, ...]
    solver: str
    sense: str = "minimize"
    over: str = "seeds"

    def __len__(self) -> int:
        return len(self.results)

    def __getitem__(self, place: int) -> Result:
        return self.results[place]

    def __iter__(self) -> Iterator[Result]:
        return iter(self.results)

    def _attach(self, problem: Problem) -> None:
        for result in self.results:
            result._attach(problem)

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(result.settings["seed"] for result in self.results)

    @property
    def finished(self) -> tuple[Result, ...]:
        """The runs that did not diverge."""
        return tuple(result for result in self.results if result.status != "diverged")

    @property
    def best(self) -> Result:
        """The run with the best exact value, of those that are feasible if any is."""
        sign = 1.0 if self.sense == "minimize" else -1.0
        runs = self.finished or self.results
        valued = [result for result in runs if not np.isnan(result.value)]  # others ended before they were evaluated
        feasible = [result for result in valued if result.violation.feasible]
        return min(feasible or valued or runs, key=lambda result: sign * result.value)

    def __getattr__(self, name: str) -> Any:
        """The best run's x, y, value, status, ...; what else a single result has is an error that names ``best``."""
        if name in OF_BEST:
            return getattr(self.best, name)
        one = next(iter(vars(self).get("results", ())), None)
        if name[0] != "_" and hasattr(one, name):
            raise AttributeError(f"Runs has no attribute {name!r}: runs.best.{name} is that of the best run")
        return no_such_attribute(self, name)

    def values(self, name: str = "value") -> np.ndarray:
        """Gather a quantity of every finished run: ``(seeds,)`` for ``"value"`` and ``"own_value"``, else ``(seeds, rounds)``.

        Parameters
        ----------
        name
            ``"value"``, ``"own_value"``, a column of the history, or a metric (``(seeds, evaluations)``).

        Raises
        ------
        SettingError
            Naming what there is.
        """
        runs = self.finished
        if name in FINAL:
            return np.array([getattr(run, name) for run in runs], dtype=float)
        if any(name not in run.history and name not in run.metrics for run in runs):
            known = ", ".join((*FINAL, *runs[0].history, *(m for m in runs[0].metrics if m != "round")))
            raise SettingError(f"there is no {name!r} in these runs; there are {known}.")
        at = self.rounds(name)
        if all(name in run.history for run in runs):
            return np.array([run.history[name][at - 1] for run in runs])
        return np.array([run.metrics[name][np.isin(run.metrics["round"], at)] for run in runs])

    def rounds(self, name: str = "objective") -> np.ndarray:
        """Give the rounds of ``values(name)``: those that every finished run has of a column of the history, or of a metric."""
        counted = (run.history.get(name) for run in self.finished)
        made = [run.metrics["round"] if own is None else np.arange(1, len(own) + 1) for run, own in zip(self.finished, counted)]
        common = made[0] if made else np.zeros(0)
        for own in made[1:]:
            common = common[np.isin(common, own)]
        return np.asarray(common, int)

    def mean(self, name: str = "value") -> Any:
        """Average over the seeds: a number for ``"value"`` and ``"own_value"``, else an array by round."""
        mean = np.mean(self.values(name), axis=0)
        return float(mean) if mean.ndim == 0 else mean

    def half_width(self, name: str = "value", level: float = 0.95) -> Any:
        """Compute half the width of Student's confidence interval for the mean; NaN for fewer than two runs."""
        return half_width(self.values(name), level)

    def band(self, name: str = "value", level: float = 0.95) -> tuple[Any, Any]:
        """Compute (low, high) of Student's confidence interval for the mean, by round."""
        middle, half = self.mean(name), self.half_width(name, level)
        return middle - half, middle + half

    def table(self) -> str:
        """Write one line for each seed: status, rounds, the exact value and, where the solver keeps a y, its own, scalars sent."""
        own = any(run.own_value is not None for run in self.results)
        rows = [["seed", "status", "rounds", "f(x)", *["own value"] * own, "scalars"]]
        for run in self.results:
            values = ["" if value is None else run._shown(value) for value in (run.value, *[run.own_value] * own)]
            made = str(run.settings["seed"]), run.status, str(run.settings["rounds_done"])
            rows.append([*made, *values, f"{scalars(run):,}"])
        return aligned(rows)

    def to_pandas(self) -> pd.DataFrame:
        """Give all histories, one row for each seed and round. Needs pandas."""
        import pandas as pd

        return pd.concat({run.settings["seed"]: run.to_pandas() for run in self.results}, names=["seed"])

    def _curves(self) -> Any:
        return {"": self}

    def _told(self) -> tuple[Result, Any]:
        return self.best, self

    def _card(self) -> Card:
        best = self.best
        counts = Counter(result.status for result in self.results)
        values = [("f(x)", f"{summary(self)}, mean and 95% interval")] if self.over == "seeds" else []
        rounds = sorted({int(result.settings["rounds_done"]) for result in self.results})
        rows = [
            *values,
            (".best", f"{best._shown(best.value, 8)}, seed {best.settings['seed']}, x = {brief(best.x)}"),
            ("how sure", str(best.certificate)),
            ("ended", ", ".join(f"{status} ({count})" for status, count in counts.items())),
            ("rounds", f"{rounds[0]}" if len(rounds) == 1 else f"{rounds[0]} to {rounds[-1]}"),
            *(("standing", line) for line in self._standing()),
        ]
        return Card(f"{self.solver}: {len(self)} {self.over}", rows, [("every seed", self.table())])

    def _standing(self) -> list[str]:
        """How many runs were still on their way, and where the best one stands, in lines."""
        verdicts = [AT_REST if result.rest is None else result.rest.verdict for result in self.results]
        best, moving = self.best, sum(verdict not in (AT_REST, OUT_OF_ROUNDS) for verdict in verdicts)
        lines = [f"{moving} of {len(self)} runs were not at rest"] if moving else []
        told = [*([best.standing] if best.standing else []), *best.where()]
        return [*lines, *(f"{line} (the best run)" for line in told)]

    def __str__(self) -> str:
        return "\n".join([self._summary(), *self._standing()])

    def _summary(self) -> str:
        if self.over == "starts":  # no sample of anything: no interval
            return f"{self.solver}: {len(self)} starts, best f(x) = {self.best._shown(self.best.value)} (.best, seed {self.best.settings['seed']})\n{self.table()}"
        return f"{self.solver}: {len(self)} seeds, f(x) = {summary(self)}; .best is that of seed {self.best.settings['seed']}\n{self.table()}"


def half_width(values: np.ndarray, level: float = 0.95) -> Any:
    """Half the width of Student's interval for the mean over the first axis; the ``level`` is in (0, 1), or a ``SettingError``."""
    from scipy.special import stdtrit

    if not 0 < level < 1:
        raise SettingError(f"level={level!r}: a confidence in (0, 1), such as 0.95.")
    count = len(values)
    if count < 2:
        return np.full(np.shape(values)[1:], np.nan)[()]
    return stdtrit(count - 1, 0.5 + level / 2) * np.std(values, axis=0, ddof=1) / np.sqrt(count)


def scalars(result: Result) -> int:
    """Count all scalars that a run sent down and up, those of the lower level's solver and between edges and the cloud included."""
    ways = (level + way for level in ("", "lower_", "cloud_") for way in ("scalars_down", "scalars_up"))
    return int(sum(result.communication.get(way, 0) for way in ways))


def summary(runs: Runs) -> str:
    """Write the final value's mean and half-width, and how many runs diverged."""
    lost = len(runs) - len(runs.finished)
    note = f" ({lost} of {len(runs)} diverged)" if lost else ""
    if not runs.finished:
        return "none" + note
    mean, rounding = runs.mean(), max(run._rounding for run in runs.finished)
    half = "" if len(runs.finished) < 2 else f" ± {_beyond(runs.half_width(), max(rounding, 1e-12 * abs(mean))):.2g}"
    return f"{_beyond(mean, rounding):.6g}{half}{note}"


def _beyond(value: float, rounding: float) -> float:
    """0 where it is rounding."""
    return 0.0 if abs(value) <= rounding else value


def interval(values: Sequence[float] | np.ndarray, digits: int = 2) -> str:
    """Write the mean with half its 95 % interval, which two values or more have; nothing where there are none."""
    if not len(values):
        return ""
    half = f" ± {half_width(np.asarray(values)):.{digits}f}" if len(values) > 1 else ""
    return f"{np.mean(values):.{digits}f}{half}"


def aligned(rows: Sequence[Sequence[str]]) -> str:
    """Put rows of text into columns: the first column to the left, the others to the right."""
    first, *others = [max(map(len, column)) for column in zip(*rows)]
    lines = ("  ".join([row[0].ljust(first), *map(str.rjust, row[1:], others)]) for row in rows)
    return "\n".join(line.rstrip() for line in lines)

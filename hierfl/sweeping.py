"""``sweep``: several solvers on one problem, each with the same seeds, and what they gave side by side."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

from hierfl.atoms.writing.latex_pen import escaped
from hierfl.errors import DivergedError, SettingError
from hierfl.jaxtools.interruption import INTERRUPTED
from hierfl.language.printing.card import Card, call_text
from hierfl.near_names import suggests_names
from hierfl.result import Plotted
from hierfl.run_settings import Checkpoint, RunSettings, SolveSettings
from hierfl.runs import Runs, aligned, scalars, summary

if TYPE_CHECKING:
    import pandas as pd

    from hierfl.problem import Problem


@dataclass(frozen=True, repr=False)
class Sweep(Plotted):
    """Runs by solver's name; behaves as a mapping.

    Attributes
    ----------
    runs
        ``{name: Runs}``.
    seconds
        ``{name: seconds}`` for all seeds together, compilation and final values included.

    Examples
    --------
    >>> from hierfl.solvers import ImplicitBundle
    >>> table = hf.sweep(problem, {"bundle": ImplicitBundle()}, seeds=1, rounds=20, progress=False)
    >>> abs(round(table.runs["bundle"].mean(), 6))
    0.0
    """

    runs: dict[str, Runs]
    seconds: dict[str, float]

    def __getitem__(self, name: str) -> Runs:
        return self.runs[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.runs)

    def __len__(self) -> int:
        return len(self.runs)

    def table(self) -> str:
        """Write one line for each solver: final f(x) as mean and half-width (95%), scalars sent by a run, seconds of all runs."""
        return aligned(self._cells())

    def _cells(self) -> list[list[str]]:
        told = ((name, runs, _mean_scalars(runs)) for name, runs in self.runs.items())
        rows = [[name, summary(runs), f"{sent:,.0f}", f"{self.seconds[name]:.1f}"] for name, runs, sent in told]
        return [["solver", "f(x)", "scalars", "seconds"], *rows]

    def latex(self) -> str:
        """The table as LaTeX: a ``tabular`` with the rules of the package booktabs."""
        head, *rows = self._cells()
        lines = [" & ".join(escaped(cell).replace("±", r"$\pm$") for cell in row) + r" \\" for row in (head, *rows)]
        return "\n".join([rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}", r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule", r"\end{tabular}"])

    def to_pandas(self) -> pd.DataFrame:
        """Give one row for each solver and seed: status, rounds, values, scalars. Needs pandas."""
        import pandas as pd

        columns = ["solver", "seed", "status", "rounds", "value", "own_value", "scalars"]
        rows = []
        for name, run in ((name, run) for name, runs in self.runs.items() for run in runs):
            made = run.settings["seed"], run.status, run.settings["rounds_done"]
            rows.append((name, *made, run.value, run.own_value, scalars(run)))
        return pd.DataFrame(rows, columns=columns)

    def _curves(self) -> Any:
        return self.runs

    def _card(self) -> Card:
        best_first = sorted(self.runs.items(), key=lambda item: _rank(item[1]))
        rows = [(name, f"f(x) = {summary(runs)}, {self.seconds[name]:.1f} s") for name, runs in best_first]
        seeds = len(next(iter(self.runs.values()))) if self.runs else 0
        every = "\n\n".join(f"{name}\n{runs.table()}" for name, runs in self.runs.items())
        title = f"{len(self)} solver{'s' * (len(self) != 1)}, {seeds} seed{'s' * (seeds != 1)} each, the best first: mean f(x) and its 95% interval"
        return Card(title, rows, [("side by side", self.table()), ("every seed", every)])

    def __str__(self) -> str:
        return self.table()


@suggests_names
def sweep(
    problem: Problem,
    solvers: Mapping[str, Any] | Sequence[Any],
    *,
    seeds: int | Sequence[int] = 10,
    **settings: Unpack[SolveSettings],
) -> Sweep:
    """Solve a problem with several solvers, all seeds of each as one compiled program.

    What was compiled for a solver is forgotten when the next one has no use for it, so that a long sweep needs the memory of one;
    solvers that differ in step sizes or smoothing alone, one after another, are compiled once.

    Parameters
    ----------
    problem
        What is to be solved.
    solvers
        ``{name: solver}``, or a list of solvers, which are then named by the settings that they were given.
    seeds, settings
        As for :meth:`hierfl.Problem.solve`; with a checkpoint every solver has a folder of its own in the one that is given, 1, 2, ....
        Diverged runs do not end a sweep: the table counts them. Ctrl-C does, after the runs that it ends: solvers that had not begun are
        missing; the same sweep with its checkpoint and ``resume=True`` goes on.

    Raises
    ------
    SettingError
        If there is no solver, or two of a list are the same.
    HierflError
        As by ``solve``, but for divergence.

    Examples
    --------
    >>> from hierfl.solvers import ImplicitBundle, ImplicitGradient
    >>> table = hf.sweep(problem, [ImplicitBundle(), ImplicitGradient()], seeds=1, rounds=20, progress=False)
    >>> sorted(table.runs)
    ['ImplicitBundle()', 'ImplicitGradient()']
    """
    RunSettings.require_known(settings, "sweep")
    named = named_solvers(solvers, "sweep")
    runs, seconds, kept = dict[str, Runs](), dict[str, float](), settings.get("checkpoint")
    with problem.compile(progress=settings.get("progress", True)).programs.forgetting_runs() as forget_unused:
        for place, (name, solver) in enumerate(named.items(), 1):
            began = time.perf_counter()
            if kept is not None:
                settings["checkpoint"] = Checkpoint.of(kept).inside(str(place))
            runs[name] = _solved(problem, solver, seeds, settings)
            forget_unused()
            seconds[name] = time.perf_counter() - began
            if any(run.status == INTERRUPTED for run in runs[name]):
                break
    return Sweep(runs, seconds)


def _solved(problem: Problem, solver: Any, seeds: int | Sequence[int], settings: SolveSettings) -> Runs:
    try:
        return problem.solve(solver, seeds=seeds, **settings)
    except DivergedError as error:
        if error.runs is None:
            raise
        return error.runs


def named_solvers(solvers: Any, who: str, called: Callable[[Any], str] = call_text) -> dict[str, Any]:
    """Solvers by name: those that they are given, or those that they are called by. Raises ``SettingError`` for no solvers, or two of a name."""
    if isinstance(solvers, Mapping):
        named = {str(name): one for name, one in solvers.items()}
    elif isinstance(solvers, Sequence) and not isinstance(solvers, str):
        names = [called(solver) for solver in solvers]
        if twice := [name for name in names if names.count(name) > 1]:
            raise SettingError(f"{who} was given {twice[0]} twice: leave one out, or name them, {{'name': solver}}.")
        named = dict(zip(names, solvers))
    else:
        raise SettingError(f"{who} over {solvers!r}: {{'name': solver, ...}}, or a list of solvers.")
    if not named:
        raise SettingError(f"{who} needs at least one solver: {{'name': FedRZO(...), ...}} or a list.")
    return named


def _rank(runs: Runs) -> float:
    """Order by the mean value, the best first; where no run ended, last."""
    if not runs.finished:
        return float("inf")
    return float(runs.mean()) * (1.0 if runs.sense == "minimize" else -1.0)


def _mean_scalars(runs: Runs) -> float:
    finished = runs.finished
    return sum(map(scalars, finished)) / len(finished) if finished else float("nan")

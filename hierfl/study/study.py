"""``Study``: every solver on every problem, to the same budget, several seeds each; kept in a folder, so that it can go on."""

from __future__ import annotations

import json
import math
import pickle
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from copy import copy
from dataclasses import dataclass, replace
from itertools import groupby
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from hierfl.compiler.content_marks import content_mark
from hierfl.compiler.starting_points import start_points
from hierfl.errors import (
    CheckpointError,
    DivergedError,
    EmptyLowerSetError,
    IncompatibleSolverError,
    LowerLevelError,
    NoGradientError,
    SettingError,
)
from hierfl.inspect.argument_checks import require_whole
from hierfl.jaxtools.interruption import INTERRUPTED, CutShort
from hierfl.jaxtools.precision import double_precision
from hierfl.language.printing.card import Card, Shown, call_text
from hierfl.near_names import as_given
from hierfl.problem import Problem
from hierfl.progress import RunProgress
from hierfl.run_settings import Budget, Checkpoint, RunSettings
from hierfl.runs import Runs
from hierfl.runtime.checkpoints import differences, identity_of, stored_identity
from hierfl.runtime.on_dask.dask_runtime import require_guard
from hierfl.runtime.records import NotCountedError, counted
from hierfl.runtime.step_search import TrialsError
from hierfl.study.comparison import Cell, Comparison, Curve
from hierfl.study.counted_function import CountedFunction, OutsideMethod
from hierfl.sweeping import named_solvers

MOST = 1_000_000  # rounds
LOOKS = 100  # points along a run at which f is looked at
PILOT = 3  # rounds by which it is guessed how many a budget pays for
FULLY = 0.9  # of a budget: a run that ends out of rounds with less of it spent is given more
MORE = 6  # times that it is
STARTS = ("same", "spread")


class Study(Shown):
    """Solvers compared on problems at equal budgets.

    Parameters
    ----------
    problems
        One ``hf.Problem``, or ``{name: problem}``.
    solvers
        ``{name: solver}``, or a list of solvers. A solver is one of ``hierfl.solvers`` or of somebody else's in their manner, None for what ``solve()``
        takes without settings, or a method from outside by ``hf.study.adapter``.
    seeds
        How many runs of each solver on each problem, with seeds 0, 1, ..., or a sequence of seeds.
    budget
        ``hf.Budget`` with one limit, what every run may take; or ``{name of problem: budget}``, all in one unit.
    starts
        ``"same"``: all runs begin at the projection of 0 on X, or at ``x0``. ``"spread"``: each seed has a start of its own, the same for all
        solvers: that one, then points spread over the known bounds of X.
    x0
        ``{name of problem: start}``, or a start for a single problem.
    settings
        More of ``Problem.solve``, for hierfl's solvers: ``queries``, ``runtime``, ``penalty``.

    Raises
    ------
    SettingError
        For what is none of these; a budget with several limits.

    Notes
    -----
    f is looked at along a run, at up to 120 of its points, with the lower level solved exactly: that costs nothing, and no method is told.

    Examples
    --------
    >>> from hierfl.solvers import FedRZO, ZOHFL
    >>> solvers = {"FedRZO": FedRZO(smoothing=0.1, step_size=0.05), "ZO-HFL": ZOHFL(smoothing=0.1, step_size=0.05)}
    >>> compared = hf.Study(problem, solvers, seeds=3, budget=hf.Budget(values=300)).run(progress=False)
    >>> all(compared.final(name=name).max() < 0.2 for name in compared.solvers)
    True
    """

    def __init__(
        self,
        problems: Problem | Mapping[str, Problem],
        solvers: Mapping[str, Any] | Sequence[Any],
        *,
        seeds: int | Sequence[int] = 10,
        budget: Budget | Mapping[str, Budget],
        starts: str = "same",
        x0: Any = None,
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self.problems = _named_problems(problems)
        self.solvers = _named_solvers(solvers)
        self.budgets = dict(budget) if isinstance(budget, Mapping) else dict.fromkeys(self.problems, budget)
        units = [one.limits for one in self.budgets.values() if isinstance(one, Budget) and len(one.limits) == 1]
        if len(units) != len(self.problems) or set(self.budgets) != set(self.problems) or len({next(iter(unit)) for unit in units}) != 1:
            raise SettingError(
                f"budget={budget}: a hf.Budget with one limit, such as hf.Budget(floats=1e6), which is what curves are drawn over; or one for every problem, in one unit."
            )
        if starts not in STARTS:
            raise SettingError(f"starts={starts!r}: {' or '.join(map(repr, STARTS))}.")
        self.starts = starts
        if not isinstance(settings, Mapping | None):
            raise SettingError(f"settings={settings!r}: a mapping of keywords of solve(), such as {{'queries': 'raw'}}.")
        if seeds is None:
            raise SettingError("seeds=None: how many runs there are of each solver on each problem, or a list of seeds.")
        given = {"seeds": seeds, **(settings or {})}
        taken = {"budget", "communication_limit", "time_limit", "rounds", "evaluate_every", "checkpoint", "resume", "progress", "x0", "restarts", "seed"} & set(given)
        if taken:
            raise SettingError(f"settings: {min(taken)!r} is the study's own.")
        self.settings = given
        self.seeds = RunSettings.of(given).all_seeds
        one = len(self.problems) == 1 and not (isinstance(x0, Mapping) and set(x0) <= set(self.problems))
        self.x0: dict[str, Any] = {next(iter(self.problems)): x0} if one else dict(x0 or {})
        if unknown := [name for name in self.x0 if name not in self.problems]:
            raise SettingError(f"x0: there is no problem {unknown[0]!r}; there are {', '.join(self.problems)}.")

    def run(self, folder: str | Path | None = None, *, processes: int = 1, progress: bool = True) -> Comparison:
        """Run what has not been run yet.

        Parameters
        ----------
        folder
            Where every pair of a problem and a solver is kept once its runs are made, and hierfl's own runs while they go on. The same study with the
            same folder goes on from there, after Ctrl-C or in another session, to the same numbers (seconds apart).
        processes
            How many pairs run side by side, each in a process of its own. Problems and solvers are sent there by pickle, by cloudpickle where that is
            installed (functions of a notebook or a script need it).
        progress
            Show a progress bar.

        Returns
        -------
        Comparison
            Tables, curves and profiles.

        Raises
        ------
        CheckpointError
            If the folder holds runs of another study, naming what differs, or files that cannot be read, or may not be written.
        SiteError
            If a script starts processes that would run its lines again, with what to write.
        KeyboardInterrupt
            At Ctrl-C; what was finished is in the folder.
        """
        require_whole("processes", processes, 1)
        home = None if folder is None else Checkpoint(folder).path
        if home is not None:
            try:
                home.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise CheckpointError(f"folder={str(home)!r}: no runs can be kept there ({error.strerror}). Give a folder that may be written.") from error
        if processes > 1:
            require_guard(f"processes={processes}")
        jobs = {(problem, solver): self._job(problem, solver, home) for problem in self.problems for solver in self.solvers}
        cells: dict[tuple[str, str], Cell] = {}
        with RunProgress(len(jobs), "study", progress, unit="pairs of problem and solver") as bar:
            for pair, cell in self._made(jobs, processes):
                cells[pair] = cell
                bar.update(len(cells), f"{pair[1]} on {pair[0]}")
        ordered = {pair: cells[pair] for pair in jobs}
        senses = {name: problem.objective.sense for name, problem in self.problems.items()}
        sizes = {name: (problem.compile(progress=False).upper.size, problem.compile(progress=False).num_clients) for name, problem in self.problems.items()}
        return Comparison(ordered, self.budgets, self.seeds, senses, sizes)

    def _job(self, problem: str, solver: str, home: Path | None) -> Job:
        asked = Job(self.problems[problem], self.solvers[solver], self.budgets[problem], self.starts, self.x0.get(problem), dict(self.settings), None)
        return asked if home is None else replace(asked, kept=home / f"{_plain(problem)}--{_plain(solver)}")

    @staticmethod
    def _made(jobs: Mapping[tuple[str, str], Job], processes: int) -> Iterator[tuple[tuple[str, str], Cell]]:
        if processes == 1:
            for _, of_one in groupby(jobs.items(), lambda one: one[0][0]):
                problem = None
                for pair, job in of_one:
                    problem = problem or copy(job.problem)  # what is compiled for it is gone with it: a process has room for some hundred programs
                    yield pair, replace(job, problem=problem).cell()
            return
        with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
            waiting = {pool.submit(_cell_of, _packed(pair, job)): pair for pair, job in jobs.items()}
            try:
                for done in as_completed(waiting):
                    yield waiting[done], done.result()
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _card(self) -> Card:
        rows = [("problems", ", ".join(self.problems)), ("solvers", ", ".join(self.solvers)), ("seeds", str(len(self.seeds))), ("each run", " or ".join(dict.fromkeys(map(str, self.budgets.values()))))]
        return Card("A study: run() makes the runs", rows)


@dataclass(frozen=True)
class Job:
    """One solver on one problem: all seeds. ``kept`` is where, without an ending."""

    problem: Problem
    solver: Any
    budget: Budget
    starts: str
    x0: Any
    settings: dict[str, Any]
    kept: Path | None

    @double_precision
    def cell(self) -> Cell:
        if self.kept is None:
            return self._run()
        file, identity = self.kept.with_name(self.kept.name + ".json"), self._identity()
        if file.exists():
            try:
                told = json.loads(file.read_text())
            except ValueError as error:
                raise CheckpointError(f"{file} cannot be read ({error}). Delete it, and its runs are made again.") from error
            if other := list(differences(told["identity"], identity)):
                raise CheckpointError(f"{file} holds runs of another study: {'; '.join(other)}. Take another folder.")
            return Cell.of_json(told)
        cell = self._run()
        part = file.with_suffix(".part")
        part.write_text(json.dumps({"identity": stored_identity(identity), **cell.to_json()}))
        part.replace(file)
        return cell

    def _identity(self) -> Any:
        asked = RunSettings.of({**self.settings, "rounds": None, "progress": False})
        beside = f"{self.budget}, starts={self.starts!r}, x0={None if self.x0 is None else np.asarray(self._starts()).tolist()}"
        solver = "the default" if self.solver is None else self.solver
        if isinstance(solver, OutsideMethod):  # by its code, and what it has closed over
            beside += f", {solver.name} {content_mark(solver.minimise)}"
        found = identity_of(self.problem.compile(progress=False), solver, asked)
        return found | {"study": replace(found["rounds"], name="the budget and the starts", shown=beside, mark=beside, key="study")}

    def _starts(self) -> np.ndarray:
        seeds = RunSettings.of(self.settings).all_seeds
        points = start_points(self.problem.compile(progress=False), self.x0, len(seeds) if self.starts == "spread" else 1, seeds[0])
        return np.broadcast_to(points, (len(seeds), points.shape[1]))

    def _run(self) -> Cell:
        with warnings.catch_warnings(record=True) as heard:
            warnings.simplefilter("always")
            try:
                curves = self._outside() if isinstance(self.solver, OutsideMethod) else self._own()
            except (IncompatibleSolverError, NotCountedError, TrialsError, EmptyLowerSetError, LowerLevelError, NoGradientError) as error:
                return Cell((), refused=str(error).split("\n")[0])
        return Cell(tuple(curves), notes=tuple(dict.fromkeys(str(one.message).split("\n")[0] for one in heard)))

    def _outside(self) -> list[Curve]:
        compiled = self.problem.compile(progress=False)
        seconds = self.budget.seconds or math.inf
        found = []
        for seed, start in zip(RunSettings.of(self.settings).all_seeds, self._starts()):
            CountedFunction(compiled, {}, start)(start)  # compiled before the clock begins
            f = CountedFunction(compiled, self.budget.counts, start, seconds, seed)
            if self.budget.rounds is not None:
                raise NotCountedError("a method from outside has no rounds: give the budget in values, gradients, floats, lower_solves or seconds.")
            try:
                found.append(self.solver.run(f, seed))
            except Exception as error:
                error.add_note(f"It was raised by {self.solver.name}, seed {seed}, in a study.")
                raise
        return found

    def _own(self) -> list[Curve]:
        compiled, seeds = self.problem.compile(progress=False), RunSettings.of(self.settings).all_seeds
        compiled.require_all_here("a study, which looks at f along the runs")
        in_turn = list(seeds) == list(range(seeds[0], seeds[0] + len(seeds)))
        groups: list[tuple[Sequence[int], Any]] = [(seeds, self.x0)]
        if self.budget.seconds is not None or (self.starts == "spread" and not in_turn):
            groups = [([seed], compiled.upper.unflatten(start)) for seed, start in zip(seeds, self._starts())]
        rounds, curves, compiled_for = self._rounds(*groups[0]), list[Curve](), 0
        for own, start in groups:
            for _ in range(MORE):
                if self.budget.seconds is not None and rounds > compiled_for:  # before the clock begins
                    self._unheard({**self._asked(rounds, own, start), "budget": Budget(floats=1)})
                    compiled_for = rounds
                name = f"{own[0]}-{rounds}"
                kept = {} if self.kept is None else {"checkpoint": Checkpoint(self.kept / name), "resume": True}
                runs = self._solved_by(self._asked(rounds, own, start) | {"budget": self.budget} | kept)
                short = [run for run in runs if run.ended == "completed" and self._share(run) < FULLY]
                if not short or rounds >= MOST or self.budget.rounds is not None:
                    break
                rounds = min(MOST, math.ceil(1.1 * rounds / max(0.05, min(map(self._share, short)))))
            curves += [Curve.of_run(compiled, run, self.budget.seconds is not None) for run in runs]
        return curves

    def _asked(self, rounds: int, seeds: Sequence[int], x0: Any) -> dict[str, Any]:
        return {**self._runs(seeds), "x0": x0, "rounds": rounds, "evaluate_every": max(1, math.ceil(rounds / LOOKS))}

    def _unheard(self, asked: Mapping[str, Any]) -> Runs:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self._solved_by(asked)

    def _solved_by(self, asked: Mapping[str, Any]) -> Runs:
        """The runs, those too that diverged; Ctrl-C ends the study."""
        try:
            runs: Runs = self.problem.solve(self.solver, progress=False, **asked)
        except DivergedError as error:
            if error.runs is None or not len(error.runs):
                raise
            runs = error.runs
        except CutShort:
            raise KeyboardInterrupt from None
        if any(run.status == INTERRUPTED for run in runs):
            raise KeyboardInterrupt
        return runs

    def _runs(self, seeds: Sequence[int]) -> dict[str, Any]:
        """The settings by which these seeds run together, each from its start."""
        spread = self.starts == "spread" and len(seeds) > 1
        beside = {name: value for name, value in self.settings.items() if name != "seeds"}
        return beside | ({"restarts": len(seeds), "seed": seeds[0]} if spread else {"seeds": list(seeds)})

    def _share(self, run: Any) -> float:
        """Of the budget that a run has spent."""
        ((name, limit),) = self.budget.limits.items()
        if name == "rounds":
            return 1.0
        if name == "seconds":
            return float(np.sum(run.history.get("seconds", 0.0))) / limit
        (column,) = self.budget.counts
        took = run.settings.get("auto", {}).get("took", {}).get(column, 0)
        return (took + float(np.sum(run.history.get(column, 0)))) / limit

    def _rounds(self, seeds: Sequence[int], x0: Any) -> int:
        """How many rounds the budget pays for, as the first few say, of the runs that will be made: their program is compiled once."""
        if self.budget.rounds is not None:
            return self.budget.rounds
        pilot = self._unheard({**self._runs(seeds), "x0": x0, "rounds": PILOT, "evaluate_every": PILOT})[0]
        if not pilot.settings["rounds_done"]:  # it diverges, or rests, at once: so will the run
            return PILOT
        ((name, limit),) = self.budget.limits.items()
        if name == "seconds":
            return min(MOST, max(PILOT, math.ceil(1.5 * limit / max(float(pilot.history["seconds"][-1]), 1e-6))))
        (column,) = self.budget.counts
        counted(pilot.history, column)  # or it says that it does not
        took = pilot.settings.get("auto", {}).get("took", {}).get(column, 0)
        each = pilot.history[column]
        return min(MOST, max(PILOT, math.ceil(max(0.0, limit - took) / max(1.0, float(each[-1]) if len(each) else 1.0)) + 1))


def _packed(pair: tuple[str, str], job: Job) -> bytes:
    try:
        from cloudpickle import dumps
    except ImportError:
        dumps = pickle.dumps
    try:
        return bytes(dumps(job))
    except Exception as error:  # whatever an object's own __reduce__ raises
        raise SettingError(f"{pair[1]} on {pair[0]} cannot be sent to another process ({error}): take processes=1.") from error


def _cell_of(packed: bytes) -> Cell:
    job: Job = pickle.loads(packed)
    return job.cell()


def _plain(name: str) -> str:
    """A name as files may have it; what differs stays apart."""
    written = re.sub(r"[^A-Za-z0-9._-]+", "_", name)
    return written if written == name else f"{written}-{sum(256**k * b for k, b in enumerate(name.encode())) % 16**8:08x}"


def _named_problems(problems: Any) -> dict[str, Problem]:
    named = dict(problems) if isinstance(problems, Mapping) else {"the problem": problems}
    if not named or not all(isinstance(one, Problem) for one in named.values()):
        raise SettingError("problems: a hf.Problem, or {'name': hf.Problem(...), ...}.")
    return {str(name): one for name, one in named.items()}


def _called(solver: Any) -> str:
    return "solve()" if solver is None else solver.name if isinstance(solver, OutsideMethod) else call_text(solver)


def _named_solvers(solvers: Any) -> dict[str, Any]:
    named = named_solvers(solvers, "a study", _called)
    for name, one in named.items():
        if one is not None and not isinstance(one, OutsideMethod) and (isinstance(one, type) or not hasattr(one, "bind")):
            outside = callable(one) and not isinstance(one, type)
            instead = f"hf.study.adapter({getattr(one, '__name__', 'minimise')})" if outside else "hf.study.adapter(function)"
            raise SettingError(f"solver {name!r} is {as_given(one)}: an instance of a solver such as FedRZO(), None for solve()'s own choice, or a method from outside by {instead}.")
    return named

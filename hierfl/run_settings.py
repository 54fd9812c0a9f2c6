"""The settings of a run, beside its solver: one frozen object, checked once; where and how often it is kept, and what it may take."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from inspect import Parameter, Signature, signature
from numbers import Real
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from hierfl.errors import SettingError
from hierfl.near_names import as_given, near_names, require_names, suggests_names

MOST_ROUNDS = 100_000_000
OPEN_ENDED = 100_000  # rounds, at most, of a run that goes on until it stagnates
SEEDS = 2**64  # so many there are
SECONDS = 30.0  # between two checkpoints
Metrics = Mapping[str, Callable[..., float]]


# what each unit is called in a run's history; rounds and seconds are no columns of counts
COLUMNS = {
    "floats": "scalars",
    **{name: name for name in ("values", "gradients", "products", "projections", "lower_gradients", "lower_solves")},
}
HISTORY_COLUMNS = {"round", "objective", "gradient_norm", "lower_residual", "step_size", "seconds", "participants", *COLUMNS.values()}


@suggests_names
@dataclass(frozen=True)
class Checkpoint:
    """Settings of checkpoints, for ``Problem.solve(checkpoint=...)``; a folder's name alone stands for ``Checkpoint(folder)``.

    A run is kept when it begins, when either of the two is due at the end of a block of ``evaluate_every`` rounds, and when it ends.
    The two latest checkpoints stay in the folder.

    Parameters
    ----------
    folder
        A folder for this run alone; made if there is none.
    every_seconds
        A checkpoint is due after so many seconds; None leaves it to ``every_rounds``.
    every_rounds
        A checkpoint is due after so many rounds; None leaves it to ``every_seconds``.

    Raises
    ------
    SettingError
        For a setting out of range.

    Examples
    --------
    >>> kept = hf.Checkpoint("runs/first", every_seconds=60)
    >>> result = problem.solve(checkpoint=kept)  # doctest: +SKIP
    """

    folder: str | os.PathLike[str]
    every_seconds: float | None = SECONDS
    every_rounds: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.folder, (str, os.PathLike)) or not str(self.folder):
            raise SettingError(f'checkpoint={self.folder!r}: the name of a folder, such as "run/", or a hf.Checkpoint.')
        seconds, rounds = self.every_seconds, self.every_rounds
        if seconds is not None and (
            isinstance(seconds, bool) or not isinstance(seconds, Real) or not float(seconds) >= 0
        ):
            raise SettingError(f"every_seconds={seconds!r} of Checkpoint: a number of at least 0, or None.")
        if rounds is not None and (isinstance(rounds, bool) or not isinstance(rounds, (int, np.integer)) or rounds < 1):
            raise SettingError(f"every_rounds={rounds!r} of Checkpoint: a whole number of at least 1, or None.")
        if seconds is None and rounds is None:
            raise SettingError("Checkpoint: every_seconds and every_rounds are both None; give one of them.")

    @classmethod
    def of(cls, given: Any) -> Checkpoint:
        """What ``checkpoint=...`` stands for."""
        return given if isinstance(given, Checkpoint) else cls(given)

    @property
    def path(self) -> Path:
        return Path(self.folder).expanduser()

    def inside(self, name: str) -> Checkpoint:
        """The same in a folder of its own below."""
        return replace(self, folder=self.path / name)


@suggests_names
@dataclass(frozen=True, kw_only=True)
class Budget:
    """A limit for a run, or several, whichever is reached first; never exceeded, trial runs for ``step_size="auto"`` included.

    Parameters
    ----------
    floats
        Scalars sent down and up, those of the lower level's solver included. An exact answer that all clients share, and an adjoint of one, count as
        the data that they are made of, sent once.
    values, gradients
        Evaluations of f_i at a point, and of its gradient (in x, or in y of methods that move y along), on a minibatch or on all rows of one client:
        a value of f counts as many as there are clients. A gradient counts no value beside.
    products
        Products of a client's second derivatives with a vector.
    projections
        On X, X_i and Y(x).
    lower_gradients
        Evaluations of the lower level's F by a client. Exact answers have no such number: their solvers are refused.
    lower_solves
        Lower levels solved, one y at one point each.
    rounds, seconds
        Communication rounds, and seconds with compilation.

    Raises
    ------
    SettingError
        Without any limit, and for one that is no positive number.

    Examples
    --------
    >>> from hierfl.solvers import FedRZO
    >>> result = problem.solve(FedRZO(smoothing=0.1, step_size=0.05), rounds=500, budget=hf.Budget(values=100), progress=False)
    >>> result.status, int(result.history["values"].sum())
    ('budget spent: values', 100)
    """

    floats: float | None = None
    values: float | None = None
    gradients: float | None = None
    products: float | None = None
    projections: float | None = None
    lower_gradients: float | None = None
    lower_solves: float | None = None
    rounds: int | None = None
    seconds: float | None = None

    def __post_init__(self) -> None:
        if not self.limits:
            raise SettingError("Budget(): give a limit, such as Budget(values=1000) or Budget(floats=1e6).")
        for name, value in self.limits.items():
            if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < float("inf"):
                raise SettingError(f"Budget({name}={value!r}): a positive number.")
        if self.rounds is not None and self.rounds != int(self.rounds):
            raise SettingError(f"Budget(rounds={self.rounds!r}): a whole number.")

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are given, by name."""
        return {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not None}

    @property
    def counts(self) -> dict[str, float]:
        """Those of columns of the history, by column."""
        return {COLUMNS[name]: value for name, value in self.limits.items() if name in COLUMNS}

    def __repr__(self) -> str:
        return f"Budget({', '.join(f'{name}={value:.12g}' for name, value in self.limits.items())})"


class SolveSettings(TypedDict, total=False):
    """The keywords of ``Problem.solve`` beside ``seeds`` and ``restarts``, for type-checkers."""

    rounds: int | None
    seed: int
    x0: Any
    runtime: Any
    queries: str
    metrics: Metrics | None
    evaluate_every: int
    callback: Callable[..., Any] | None
    tolerance: float | None
    time_limit: float | None
    communication_limit: float | None
    budget: Budget | None
    penalty: float | None
    checkpoint: Any
    resume: bool
    progress: bool


@dataclass(frozen=True, eq=False)
class RunSettings:
    """What ``Problem.solve`` was asked for, as it explains. Raises ``SettingError`` for what is not to be had."""

    rounds: int | None = 500
    seed: int = 0
    seeds: int | Sequence[int] | None = None
    restarts: int | None = None
    x0: Any = None
    runtime: Any = None
    queries: str = "projected"
    metrics: Metrics | None = None
    evaluate_every: int = 10
    callback: Callable[..., Any] | None = None
    tolerance: float | None = None
    time_limit: float | None = None
    communication_limit: float | None = None
    budget: Budget | None = None
    penalty: float | None = None
    checkpoint: Any = None
    resume: bool = False
    progress: bool = True
    all_seeds: tuple[int, ...] = field(init=False, repr=False)  # the seed of each run
    most_rounds: int = field(init=False, repr=False)  # the rounds, or a limit for a run that goes on until it stagnates

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> RunSettings:
        """The settings of these keywords; a keyword that there is not is refused, as by :meth:`require_known`."""
        cls.require_known(given, "solve")
        return cls(**given)

    @classmethod
    def require_known(cls, given: Iterable[str], function: str) -> None:
        """Each name is a setting. Raises ``UnknownNameError``, naming the function called, and the nearest settings."""
        require_names(given, [setting.name for setting in fields(cls) if setting.init], function)

    @classmethod
    def signature(cls) -> Signature:
        """Write the signature of ``Problem.solve``, which takes these settings as keywords."""
        positional, keyword = Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY
        settings = [Parameter(s.name, keyword, default=s.default, annotation=s.type) for s in fields(cls) if s.init]
        solver = Parameter("solver", positional, default=None, annotation=Any)
        return Signature([Parameter("self", positional), solver, *settings], return_annotation="Result | Runs")

    def __post_init__(self) -> None:
        _require_limits(self)
        _require_numbers(self)
        _require_callables(self)
        if self.queries not in ("projected", "raw"):
            raise SettingError(f"queries={self.queries!r}: {near_names(self.queries, ('projected', 'raw'))}")
        object.__setattr__(self, "all_seeds", tuple(_all_seeds(self.seed, self.seeds, self.restarts)))
        if self.tolerance is not None and self.evaluate_every < 2:
            said = "tolerance=... is tested on a block of rounds"
            raise SettingError(f"{said}: take evaluate_every of at least 2, better 10.")
        if self.checkpoint is not None:
            object.__setattr__(self, "checkpoint", Checkpoint.of(self.checkpoint))
        if not isinstance(self.resume, bool):
            raise SettingError(f"resume={self.resume!r}: True or False; the folder is checkpoint=....")
        if self.resume and self.checkpoint is None:
            raise SettingError('resume=True: name the folder to go on from, checkpoint="run/".')
        if self.several and self.callback is not None:
            raise SettingError("callback=... follows one run: leave it out with seeds and restarts, or solve one by one.")
        # whole numbers of NumPy become Python's
        object.__setattr__(self, "evaluate_every", int(self.evaluate_every))
        within = [rounds for rounds in (self.rounds, None if self.budget is None else self.budget.rounds) if rounds is not None]
        object.__setattr__(self, "rounds", int(min(within)) if within else None)
        object.__setattr__(self, "most_rounds", OPEN_ENDED if self.rounds is None else self.rounds)
        if self.most_rounds > MOST_ROUNDS:
            raise SettingError(
                f"rounds={self.rounds}: at most {MOST_ROUNDS:,}, for all of which step sizes are tabulated; go on with x0=result.x."
            )

    @property
    def several(self) -> bool:
        """Whether several runs were asked for, be it one."""
        return self.seeds is not None or self.restarts is not None


def _all_seeds(seed: int, seeds: int | Sequence[int] | None, restarts: int | None) -> list[int]:
    if restarts is not None:
        if seeds is not None:
            raise SettingError("seeds and restarts: give one of them; every restart has a seed of its own.")
        if isinstance(restarts, bool) or not isinstance(restarts, (int, np.integer)) or restarts < 1:
            raise SettingError(f"restarts={restarts!r}: a whole number of at least 1.")
        numbers: list[Any] = list(range(seed, seed + int(restarts)))
    elif seeds is None:
        numbers = [seed]
    elif isinstance(seeds, (int, np.integer)) and not isinstance(seeds, bool):
        numbers = list(range(seed, seed + int(seeds)))
    elif isinstance(seeds, (Sequence, np.ndarray)) and not isinstance(seeds, str) and seed == 0:
        numbers = list(seeds)
    else:
        raise SettingError(f"seeds={seeds!r}: how many (from seed on), or a sequence of seeds in place of seed.")
    whole = all(isinstance(s, (int, np.integer)) and not isinstance(s, bool) and s >= 0 for s in numbers)
    if not numbers or not whole or len(set(numbers)) < len(numbers):
        raise SettingError(f"seeds={seeds!r}: at least one, each a whole number of at least 0 and given once.")
    if max(numbers) >= SEEDS:
        raise SettingError(f"a seed of {max(numbers)}: seeds are below 2^64.")
    return [int(s) for s in numbers]


def _require_limits(settings: RunSettings) -> None:
    for name in ("tolerance", "time_limit", "communication_limit", "penalty"):
        value = getattr(settings, name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, Real) or not float(value) > 0):
            raise SettingError(f"{name}={value!r}: a positive number, or None.")
    budget = settings.budget
    if budget is not None and not isinstance(budget, Budget):
        raise SettingError(f"budget={budget!r}: a hf.Budget, such as hf.Budget(values=1000).")
    if budget is not None and budget.floats is not None and settings.communication_limit is not None:
        raise SettingError("communication_limit and Budget(floats=...) are the same: give one of them.")


def _require_numbers(settings: RunSettings) -> None:
    for name, least in (("rounds", 0), ("evaluate_every", 1), ("seed", 0)):
        value = getattr(settings, name)
        if value is None and name == "rounds":
            continue
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise SettingError(f"{name}={value!r}: a whole number of at least {least}.")


def _takes(function: Callable[..., Any], count: int) -> bool:
    """Whether a function can be called with so many arguments, as far as its signature is known."""
    try:
        signature(function).bind(*range(count))
    except TypeError:
        return False
    except ValueError:  # of functions written in C
        return True
    return True


def _require_callables(settings: RunSettings) -> None:
    metrics, callback, runtime = settings.metrics, settings.callback, settings.runtime
    if metrics is not None and not (isinstance(metrics, Mapping) and all(callable(m) for m in metrics.values())):
        raise SettingError("metrics: a mapping {'name': function(x, y) -> number}.")
    taken = HISTORY_COLUMNS & set(metrics or ())
    if taken:
        raise SettingError(f"metric name {min(taken)!r} is a column of the history; choose another name.")
    if callback is not None and not (callable(callback) and _takes(callback, 3)):
        raise SettingError(f"callback={as_given(callback)}: it is called with three arguments, callback(round, x, y).")
    if runtime is not None and (isinstance(runtime, type) or not hasattr(runtime, "execute")):
        raise SettingError(f"runtime={as_given(runtime)}: a runtime such as hierfl.runtime.InProcess().")

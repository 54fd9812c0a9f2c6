"""What every runtime counts of a round's clients, records of a run, and gives back at its end; and when by these records a run may end early."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.compiler.lower_level.certificate import Evaluation
from hierfl.errors import SettingError
from hierfl.run_settings import RunSettings
from hierfl.runtime.contract import SENT, Algorithm, Ending, OwnValue

# what the parties did in a round, all together: terms f_i evaluated at a point, gradients of them in x (their values with them), products of second
# derivatives with a vector, projections on X, X_i and Y(x), evaluations of the lower level's F, and lower levels solved, one y at one point each
WORK = ("values", "gradients", "products", "projections", "lower_gradients", "lower_solves")
SCALARS = "scalars"  # sent, down and up
ANSWERED = WORK[-2:]  # those of which the clients tell, where lower levels are theirs
History = dict[str, np.ndarray]
BlockEnd = Callable[[int, Any, Any, History], Ending | None]  # with ``ends_within(history)``, where runs may end within a block
MOTION = ("move", "extent")
WITHHELD = "withheld"  # a column of rounds in which clients told nothing of their objectives


def as_tables(tables: Any) -> Any:
    """An algorithm's tables as programs take them."""
    return jax.tree.map(lambda table: jnp.asarray(table, float if table.dtype.kind == "f" else int), tables)


class Outcome(NamedTuple):
    """The final state, the clients' memories (leading axis m), the history per round, and the run's own value at any x.

    ``ended`` says why a run has ended by itself; None where its rounds were made, or something else ended it. ``told`` is what a
    runtime has to tell of the run, for the result's settings; ``evaluation`` is f at the state, where the method had it evaluated.
    """

    state: Any
    memory: Any
    history: History
    own_value: Callable[[Array], OwnValue] | None
    ended: str | None = None
    told: dict[str, Any] = {}  # noqa: RUF012
    evaluation: Evaluation | None = None


class Begun(NamedTuple):
    """Where a run goes on: the rounds made, the state after them, and the leaves of what the runtime gave as the clients' memories.

    A runtime whose ``execute`` takes ``begun`` (``execute_many`` one for each run, None for those at their start) makes the rounds from
    there on, and its outcome has the history of these alone. Where memories stay with the clients, it gives None for them at the
    end of a block, and has a method ``memories()`` by which they are kept for a checkpoint: they, or what finds them again. Memories that are
    no tree of arrays have a method ``kept(rounds)``, which gives the arrays that a checkpoint after so many rounds keeps.
    """

    rounds: int
    state: Any
    memory: list[np.ndarray]


def motion(algorithm: Algorithm, before: Any, after: Any) -> dict[str, Array]:
    """Measure what a runtime adds to a round's record: the length of x's move, and the largest entry of the new x."""
    old, new = algorithm.decision(before), algorithm.decision(after)
    return {"move": jnp.linalg.norm(new - old), "extent": jnp.max(jnp.abs(new), initial=0.0)}


CONFIDENCE = 0.95


@dataclass(frozen=True)
class Limits:
    """The limits that ``solve`` was given; None where there is none, ``counts`` by column. ``began`` is when the clock started."""

    tolerance: float | None = None
    seconds: float | None = None
    counts: Mapping[str, float] = field(default_factory=dict)
    began: float = field(default_factory=time.perf_counter)

    @classmethod
    def of(cls, settings: RunSettings) -> Limits:
        budget, floats = settings.budget, settings.communication_limit
        counts = {**({} if budget is None else budget.counts), **({} if floats is None else {SCALARS: float(floats)})}
        seconds = [one for one in (settings.time_limit, None if budget is None else budget.seconds) if one is not None]
        return cls(settings.tolerance, min(seconds, default=None), counts)

    @property
    def until(self) -> float:
        return math.inf if self.seconds is None else self.began + self.seconds

    def affordable(self, spent: Mapping[str, float], history: History) -> tuple[int, str]:
        """How many rounds of a block fit, so much of each column spent before, and by which limit; as :func:`counted`."""
        kept, by = len(history["objective"]), ""
        for name, limit in self.counts.items():
            fitting = int(np.sum(spent.get(name, 0) + np.cumsum(counted(history, name)) <= limit))
            if fitting < kept:
                kept, by = fitting, name
        return kept, by

    def exhausted(self, spent: Mapping[str, float]) -> str:
        """The column whose limit is met exactly, "" for none."""
        return next((name for name, limit in self.counts.items() if spent.get(name, 0) == limit), "")


class NotCountedError(SettingError):
    """A limit in what a run does not count."""


def counted(history: History, name: str) -> np.ndarray:
    """A column by round. Raises ``SettingError`` for one that the run does not count, naming those that it does."""
    if name == SCALARS:
        return scalars_sent(history)
    if name not in history:
        known = ", ".join([*(column for column in WORK if column in history), "floats", "rounds", "seconds"])
        exact = ": the lower level is answered exactly" if name == "lower_gradients" and "lower_solves" in history else ""
        raise NotCountedError(f"budget: this solver does not count {name}{exact}; it counts {known}.")
    return np.asarray(history[name])


def spending(history: History) -> dict[str, int]:
    """What rounds took, by column."""
    return {name: int(np.sum(counted(history, name))) for name in (SCALARS, *WORK) if name == SCALARS or name in history}


def together(*spent: Mapping[str, int]) -> dict[str, int]:
    """Sums by column."""
    return {name: sum(one.get(name, 0) for one in spent) for name in dict.fromkeys(name for one in spent for name in one)}


def scalars_sent(history: History) -> np.ndarray:
    """Count the scalars down and up by round, those of the lower level's solver included."""
    rounds = len(history.get("objective", ()))
    return np.sum([np.broadcast_to(history.get(name, 0), (rounds,)) for name in SENT], axis=0)


def gradient_bound(
    before: np.ndarray, after: np.ndarray, history: History, local_steps: np.ndarray | float = 1.0
) -> float:
    """Compute the upper end of the confidence interval (95%) for the norm of a block's mean gradient; infinite without one.

    Round r's gradient is g_r = (x_r - x_{r+1}) / (step size * local steps): with a projection, the gradient mapping. Their
    mean, weighted by step size, is the block's move over its total step, and their variance follows from the lengths of the
    moves; Student's t times the standard error bounds the noise's norm (whatever its covariance, for normal noise).

    x was ``before`` and ``after`` the block. Raises ``SettingError`` if the runtime does not record the moves.
    """
    from scipy.special import stdtrit

    if MOTION[0] not in history:
        raise SettingError("tolerance=... needs the length of each round's move, which this runtime does not record.")
    steps = history["step_size"] * local_steps
    total = float(np.sum(steps))
    if total <= 0 or len(steps) < 2 or np.any(steps <= 0):
        return float("inf")
    shares = steps / total
    mean = float(np.linalg.norm(after - before)) / total
    variance = max(0.0, float(shares @ (history[MOTION[0]] / steps) ** 2) - mean**2)
    squares = float(shares @ shares)
    error = np.sqrt(variance * squares / (1.0 - squares))
    return mean + float(stdtrit(len(steps) - 1, 0.5 + CONFIDENCE / 2)) * error

"""Step sizes and local steps as functions of the round: a number, ``Decay(c, p)``, or any callable."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from inspect import signature
from numbers import Real
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.errors import SettingError
from hierfl.near_names import suggests_names
from hierfl.solvers.parts.step_tables import row

MOST = 10_000_000  # steps between two messages
Schedule = (
    float | Callable[[int], float] | Literal["auto"]
)  # "auto" where a run finds a step: hierfl.runtime.step_search
StepCounts = Schedule | Sequence[Schedule] | np.ndarray  # of all clients, or one of each client


@suggests_names
@dataclass(frozen=True)
class Decay:
    """``c / (r + 1)**p`` at round (or local step) r; a negative ``p`` grows, as in ``ceil(tau * sqrt(r + 1))``."""

    c: float
    p: float = 0.5

    def __post_init__(self) -> None:
        for name in ("c", "p"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, (Real, np.number)) or not np.isfinite(float(value)):
                raise SettingError(f"Decay(c, p) with {name}={value!r}: two finite numbers, as in Decay(0.1, 0.5).")

    def __call__(self, r: int) -> float:
        """The value at a round r = 0, 1, ..."""
        return float(self.c / (r + 1) ** self.p)

    def table(self, count: int) -> np.ndarray:
        """The values at 0, ..., count - 1."""
        return np.asarray(self.c * np.arange(1.0, count + 1) ** -self.p)


@suggests_names
@dataclass(frozen=True)
class LogGrowth:
    """``ceil(tau * ln(k + 1))`` steps at the local step k, counted over all rounds from 1 ([2S] Algorithm 5)."""

    tau: float

    def __call__(self, k: int) -> float:
        """The value at a local step k = 0, 1, ..., which the paper counts as k + 1."""
        return float(np.ceil(self.tau * np.log(k + 2) - 1e-9))

    def table(self, count: int) -> np.ndarray:
        """The values at 0, ..., count - 1."""
        return np.asarray(np.ceil(self.tau * np.log(np.arange(2.0, count + 2)) - 1e-9))


def require_schedule(schedule: Any, what: str, *, counts: bool = False, auto: bool = False) -> None:
    """Check a schedule where it is given: ``counts`` of steps may be 0 where a step size may not, and ``auto`` allows ``"auto"``.

    Raises ``SettingError``, naming the setting and what to write instead; values that only a round tells are checked by
    :func:`tabulate`.
    """
    if (auto and isinstance(schedule, str) and schedule == "auto") or (
        callable(schedule) and not isinstance(schedule, type)
    ):
        if not counts and type(schedule) is Decay and schedule.c == 0:
            raise SettingError(f"{what}=Decay(0, {schedule.p:g}): a step of 0 moves nothing; give a positive c.")
        return
    if isinstance(schedule, (Sequence, np.ndarray)) and not isinstance(schedule, str) and np.ndim(schedule):
        raise SettingError(
            f"{what}={schedule!r} is no schedule: write a callable of the round, such as lambda r: values[min(r, len(values) - 1)]."
        )
    number = _number(schedule, what)
    if not np.isfinite(number) or number < 0 or (number == 0 and not counts):
        why = "a step of 0 moves nothing" if number == 0 else "it must be finite and not negative"
        raise SettingError(
            f"{what}={schedule!r}: {why}. Give {'a number of steps' if counts else 'a positive number'}."
        )


def tabulate(schedule: Schedule, count: int, what: str) -> np.ndarray:
    """The schedule's values at 0, ..., count - 1, as floats ``(count,)``.

    Raises ``SettingError`` if the schedule is neither a number nor a callable of the round that returns one, or a value
    is negative, NaN or infinite; names the place.
    """
    if type(schedule) is Decay or type(schedule) is LogGrowth:
        values = schedule.table(count)
    elif callable(schedule) and not isinstance(schedule, type):
        require_one_argument(schedule, what, "lambda r: 0.1 / (r + 1)")
        values = np.array([_number(schedule(r), what) for r in range(count)], dtype=float).reshape(count)
    else:
        values = np.broadcast_to(_number(schedule, what), (count,))
    bad = np.flatnonzero(~np.isfinite(values) | (values < 0))
    if bad.size:
        raise SettingError(f"{what} is {values[bad[0]]} at {bad[0]}: it must be finite and not negative.")
    return values


def tabulate_steps(steps: StepCounts, rounds: int, clients: int, what: str = "local_steps") -> np.ndarray:
    """Local steps H_{i,r} as integers, rounded up: ``(rounds, 1)`` where all clients do alike, else ``(rounds, clients)``.

    ``steps`` is a number or schedule for all clients, or a sequence with one number or schedule per client.

    Raises ``SettingError`` for a wrong number of entries, a negative, non-finite or huge value, or no steps for anybody
    at any round.
    """
    if isinstance(steps, (Sequence, np.ndarray)) and not isinstance(steps, str):
        if len(steps) != clients:
            raise SettingError(
                f"{what} has {len(steps)} entries for {clients} clients: give one number, or one per client."
            )
        table = np.stack([tabulate(s, rounds, f"{what} of client {i}") for i, s in enumerate(steps)], axis=1)
    else:
        table = tabulate(steps, rounds, what)[:, None]
    table = whole(table, what)
    if (table == table[:, :1]).all():
        table = table[:, :1]
    if table.size and not table.any():
        raise SettingError(f"{what} is 0 for every client at every round: nobody would ever answer.")
    return table


def whole(values: np.ndarray, what: str) -> np.ndarray:
    """Numbers of steps as integers, rounded up.

    Raises ``SettingError`` if there are more than anybody would wait for; names the setting.
    """
    if values.size and values.max() > MOST:
        raise SettingError(f"{what}={values.max():g}: at most {MOST:,} steps.")
    return np.ceil(values - 1e-9).astype(int)


def steps_of(table: np.ndarray | Array, r: Array | int, clients: Array | int) -> Array:
    """H of a client in a round, or of several clients, from the table of ``tabulate_steps``; traceable."""
    own = row(table, r)
    if own.shape == (1,):  # not a function of the client: loops side by side then share their count
        return jnp.broadcast_to(own[0], jnp.shape(clients))
    return own[clients]


def _number(value: Any, what: str) -> float:
    if type(value) is float:
        return value
    number = isinstance(value, (Real, np.number, np.ndarray, jax.Array)) and not isinstance(value, bool)
    if not number or np.ndim(value) != 0 or not np.isreal(value):
        raise SettingError(f"{what} must be a number, Decay(c, p), or a callable of the round; got {value!r}.")
    return float(value)


def require_one_argument(schedule: Callable[[int], Any], what: str, example: str) -> None:
    """Check that a callable can be called with a round; what it raises by itself is the user's to see.

    Raises ``SettingError``, naming the setting, with the example.
    """
    try:
        signature(schedule).bind(0)
    except TypeError as error:
        raise SettingError(f"{what} is called with the round, as in {example}: {error}.") from None
    except ValueError:
        pass  # a callable of C without a signature

"""Step sizes and local steps as functions of the round, as tables that a program takes as arguments; settings as its key.

Equal settings have equal keys, arrays included. Another step size, decay, number of rounds or radius of smoothing is another table and
not another program. Numbers of local steps that never change stay constants of the program, which is then compiled for loops of that length.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from inspect import signature
from numbers import Real
from typing import Any, ClassVar, Literal, NoReturn, Self, TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.errors import SettingError
from hierfl.near_names import suggests_names


def settings_key(value: Any) -> Hashable:
    """Make a key of a solver, or of one of its settings, by value: what is compiled for it is kept, and found again."""
    if isinstance(value, np.generic):
        return (type(value), value.item())
    if isinstance(value, np.ndarray):
        return (np.ndarray, value.shape, value.dtype.str, value.tobytes())
    if isinstance(value, list | tuple):
        return (type(value), *map(settings_key, value))
    if isinstance(value, Mapping):
        return (type(value), *((name, settings_key(part)) for name, part in value.items()))
    if is_dataclass(value) and not isinstance(value, type) and type(value).__eq__ is not object.__eq__:
        return (type(value), *(settings_key(getattr(value, field.name)) for field in fields(value)))
    return value


LEAST = 64  # entries of a table as a program sees it; longer ones double, so that few lengths are compiled for
PADDED = 1_000_000  # scalars of a table that is brought to such a length


def constant(table: np.ndarray) -> np.ndarray:
    """A table of whole numbers, by its first row alone where all rows are the same."""
    return table[:1] if len(table) and (table == table[:1]).all() else table


def row(table: np.ndarray | Array, r: Array | int) -> Array:
    """A table's entry at a round (or local step); a table of one row has the same at all. Traceable."""
    return jnp.asarray(table, float if table.dtype.kind == "f" else int)[0 if len(table) == 1 else r]


def rows(table: np.ndarray, first: int, last: int) -> np.ndarray:
    """The entries at first, ..., last - 1."""
    return np.broadcast_to(table, (last - first, *table.shape[1:])) if len(table) == 1 else table[first:last]


class Tabulated:
    """A dataclass whose array fields are tables: it runs on any others in a program that was traced for it.

    ``tabulated`` names the settings that traced code knows by these tables alone. Whatever else the fields hold is a constant of
    the program, and part of its key.
    """

    tabulated: ClassVar[tuple[str, ...]] = ()

    @property
    def tables(self) -> dict[str, Any]:
        """The tables that are arguments of a program, by field: all but whole numbers that never change."""
        tables: dict[str, Any] = {}
        for name, value in self._own():
            if isinstance(value, Tabulated):
                tables[name] = value.tables
            elif _is_argument(value):
                tables[name] = _padded(value)
        return tables

    def with_tables(self, given: dict[str, Any]) -> Self:
        new = {
            name: getattr(self, name).with_tables(table) if isinstance(getattr(self, name), Tabulated) else table
            for name, table in given.items()
        }
        if self.tabulated and (settings := getattr(self, "settings", None)) is not None:
            new["settings"] = _without(settings, type(self).__name__, self.tabulated)
        return replace(self, **new) if new else self  # type: ignore[type-var]

    @cached_property
    def program_key(self) -> Hashable:
        """All that a traced program depends on beside the problem and the tables.

        Raises ``TypeError`` for a setting among ``tabulated`` that no table tells: True or False.
        """
        return (type(self), *((name, self._part(name, value)) for name, value in self._own() if name != "problem"))

    @property
    def known_by_tables(self) -> tuple[str, ...]:
        return self.tabulated

    def _part(self, name: str, value: Any) -> Hashable:
        if isinstance(value, Tabulated):
            return value.program_key
        if _is_argument(value):
            return _padded(value).shape
        if name == "settings":
            for each in self.tabulated:
                if isinstance(getattr(value, each, None), bool):
                    raise TypeError(f"{type(self).__name__}.tabulated has {each!r}, of which no table tells: leave it out, or name a setting that is numbers.")
            left = [f.name for f in fields(value) if f.name not in self.known_by_tables]
            return (type(value), *((each, settings_key(getattr(value, each))) for each in left))
        return settings_key(value)

    def _own(self) -> list[tuple[str, Any]]:
        return [(f.name, getattr(self, f.name)) for f in fields(self)]  # type: ignore[arg-type]


def _without(settings: Any, name: str, tabulated: tuple[str, ...]) -> Any:
    """Settings of which a traced round reads all but those that it knows by tables, another value of which needs no other program: a ``TypeError``."""
    kind = type(settings)
    if kind.__dict__.get("_without") == tabulated:
        return settings

    def refusing(each: str) -> property:
        def read(self: Any) -> NoReturn:
            raise TypeError(f"{name}.tabulated has {each!r}, and a round reads settings.{each}: read its table, or leave it out of tabulated.")

        return property(read)

    made = type(kind.__name__, (kind,), {"_without": tabulated, "__module__": kind.__module__, **{each: refusing(each) for each in tabulated}})
    copy: Any = object.__new__(made)
    copy.__dict__.update(vars(settings))
    return copy


def _is_argument(value: object) -> TypeGuard[np.ndarray]:
    """Whether a field is a table that programs take as an argument."""
    return isinstance(value, np.ndarray) and (value.dtype.kind == "f" or len(value) > 1)


def _padded(table: np.ndarray) -> np.ndarray:
    """Its last entry repeated, up to a length that few tables differ in."""
    if table.ndim == 0:
        return table
    length = max(LEAST, 1 << (len(table) - 1).bit_length()) if len(table) else 0
    if length * table[:1].size > PADDED:
        return table
    return np.concatenate([table, np.broadcast_to(table[-1:], (length - len(table), *table.shape[1:]))])


MOST = 10_000_000  # steps between two messages
MANY, LAST_PHASE, LATEST = 5, 0.75, 200  # local steps, and where the phase of one begins: of the rounds, and at the latest
Schedule = (
    float | Callable[[int], float] | Literal["auto"]
)  # "auto" where a run finds a step: hierfl.runtime.step_search
StepCounts = Schedule | Sequence[Schedule] | np.ndarray  # of all clients, or one of each client


@suggests_names
@dataclass(frozen=True)
class Decay:
    """``c / (r + 1)**p`` at round (or local step) r; a negative ``p`` grows, as in ``ceil(tau * sqrt(r + 1))``.

    Examples
    --------
    >>> from hierfl.solvers import Decay, ZOHFL
    >>> solver = ZOHFL(step_size=Decay(c=0.1, p=0.5))
    """

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
    """``ceil(tau * ln(k + 1))`` steps at the local step k, counted over all rounds from 1 ([2S] Algorithm 5).

    Examples
    --------
    >>> from hierfl.solvers import LogGrowth, ZOHFL, ProjectionMethod
    >>> solver = ZOHFL(lower=ProjectionMethod(steps=LogGrowth(tau=10)))
    """

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
        if type(schedule) is Decay and (schedule.c < 0 or (schedule.c == 0 and not counts)):
            why = "it must not be negative" if schedule.c else "a step of 0 moves nothing"
            raise SettingError(f"{what}=Decay({schedule.c:g}, {schedule.p:g}): {why}; give a positive c.")
        return
    if isinstance(schedule, (Sequence, np.ndarray)) and not isinstance(schedule, str) and np.ndim(schedule):
        raise SettingError(
            f"{what}={schedule!r} is no schedule: write a callable of the round, such as lambda r: values[min(r, len(values) - 1)]."
        )
    number = _number(schedule, what, auto)
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
    if isinstance(steps, np.ndarray) and not steps.ndim:
        steps = steps.item()
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


def in_phases(steps: StepCounts, rounds: int) -> StepCounts:
    """Local steps as given; ``"auto"`` stands for several, and single ones at last, for with several the limit is near the optimum only."""
    if not isinstance(steps, str) or steps != "auto":
        return steps
    last = min(LAST_PHASE * rounds, LATEST)
    return lambda r: MANY if r < last else 1


def whole(values: np.ndarray, what: str) -> np.ndarray:
    """Numbers of steps as integers, rounded up. Raises ``SettingError`` if there are more than anybody would wait for; names the setting."""
    if values.size and values.max() > MOST:
        raise SettingError(f"{what}={values.max():g}: at most {MOST:,} steps.")
    return np.ceil(values - 1e-9).astype(int)


def steps_of(table: np.ndarray | Array, r: Array | int, clients: Array | int) -> Array:
    """H of a client in a round, or of several clients, from the table of ``tabulate_steps``; traceable."""
    own = row(table, r)
    if own.shape == (1,):  # not a function of the client: loops side by side then share their count
        return jnp.broadcast_to(own[0], jnp.shape(clients))
    return own[clients]


def _number(value: Any, what: str, auto: bool = False) -> float:
    if type(value) is float:
        return value
    number = isinstance(value, (Real, np.number, np.ndarray, jax.Array))
    if not number or np.ndim(value) != 0 or np.asarray(value).dtype.kind in "bcSU":
        automatic = '"auto", ' if auto else ""
        raise SettingError(f"{what} must be a number, Decay(c, p), {automatic}or a callable of the round; got {value!r}.")
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

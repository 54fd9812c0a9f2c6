"""Who takes part in which round: a fraction of the clients, drawn by chance, or a script, as the papers' sets S_r.

A program is compiled for the most clients that a round has. In rounds of a script that have fewer, the first participant
stands in the other places once more: it does the same again, and counts once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import SettingError
from hierfl.runtime.contract import Clients, Cohort, cohort_size, draw_participants
from hierfl.solvers.parts.requirements import require_number
from hierfl.solvers.parts.step_schedules import Tabulated, constant, require_one_argument, row, rows

# a fraction of the clients; the clients of a round r = 0, 1, ... by index; or booleans (rounds, clients)
Participation = float | Callable[[int], Sequence[int] | np.ndarray] | np.ndarray | Sequence[Sequence[bool]]
MOST_ENTRIES = 50_000_000  # of a script, whose participants are tabulated for all rounds
FORMS = "a fraction in (0, 1], a callable of the round that returns the indices of clients, or an array of booleans (rounds, clients)"


def require_participation(value: Any) -> None:
    """Check a solver's ``participation`` where it is given; what depends on the problem is checked by :func:`cohorts_of`.

    Raises ``SettingError``, saying which forms there are.
    """
    if callable(value) and not isinstance(value, type):
        return
    if (isinstance(value, Sequence) and not isinstance(value, str)) or (isinstance(value, np.ndarray) and value.ndim):
        try:
            array = np.asarray(value)
        except ValueError as error:
            raise SettingError(
                f"participation={value!r} has rows of several lengths: write an array of booleans (rounds, clients), or, for lists of "
                f"clients by round, a callable such as lambda r: lists[r]."
            ) from error
        if array.ndim != 2 or array.dtype != bool:
            raise SettingError(
                f"participation is an array of {array.dtype} of shape {array.shape}: a script is one of booleans, of shape (rounds, "
                f"clients). Convert numbers by .astype(bool), or give a callable of the round that returns the indices of clients."
            )
        return
    if isinstance(value, (str, type)) or value is None or np.ndim(value):
        raise SettingError(f"participation={value!r}: {FORMS}.")
    require_number(value, "participation", 0, 1)


def cohorts_of(settings: Any, problem: CompiledProblem, rounds: int) -> DrawnCohorts | ScriptedCohorts:
    """Who takes part in each of the rounds.

    Raises ``SettingError`` for a script of another shape, a round in which nobody takes part, or clients that there are
    not; names the round.
    """
    given, clients = settings.participation, problem.num_clients
    if callable(given):
        require_one_argument(given, "participation", "lambda r: [r % 10]")
        members = [_members(given(r), r, clients) for r in range(rounds)]
    elif isinstance(given, (Sequence, np.ndarray)):
        script = np.asarray(given)
        if script.shape[1] != clients or script.shape[0] < rounds:
            raise SettingError(
                f"participation has the shape {script.shape}, but this run has {rounds:,} rounds and the problem {clients:,} clients: give "
                f"an array of shape ({rounds}, {clients}), or a callable of the round."
            )
        members = [np.flatnonzero(present) for present in script[:rounds]]
    else:
        return DrawnCohorts(clients, cohort_size(float(given), clients))
    return _scripted(members, clients)


@dataclass(frozen=True, eq=False)
class DrawnCohorts(Tabulated):
    """``size`` of the ``clients`` in every round, drawn without replacement by the round's key."""

    clients: int
    size: int
    by_chance: ClassVar[bool] = True

    @property
    def everybody(self) -> bool:
        return self.size == self.clients

    def of(self, round_key: Array, index: Array) -> Cohort:
        return Cohort(draw_participants(round_key, self.size, self.clients), self.size)

    def counts(self, rounds: int) -> np.ndarray:
        return np.full(rounds, self.size)


@dataclass(frozen=True, eq=False)
class ScriptedCohorts(Tabulated):
    """Those that a script names. ``members`` (rounds or 1, size): their indices; ``numbers`` (rounds or 1,): how many they are.

    ``everybody`` says whether all clients take part in every round, and ``even`` whether as many do in all rounds.
    """

    members: np.ndarray
    numbers: np.ndarray
    everybody: bool
    even: bool
    by_chance: ClassVar[bool] = False  # a script is not drawn: participants' terms times m/|S| are then not unbiased

    @property
    def size(self) -> int:
        return self.members.shape[1]

    def of(self, round_key: Array, index: Array) -> Cohort:
        return Cohort(row(self.members, index), self.size if self.even else row(self.numbers, index))

    def counts(self, rounds: int) -> np.ndarray:
        return rows(self.numbers, 0, rounds)


def present_weights(problem: CompiledProblem, clients: Clients) -> Array:
    """The weights of the participants as they stand, made to sum to one, ``(S,)``; 0 in places of nobody."""
    own = jnp.asarray(problem.declaration.client_weights)[clients.participants]
    weights = jnp.where(clients.present, own, 0.0)
    together = jnp.sum(weights)
    return weights / jnp.where(together > 0, together, 1.0)


def _members(given: Any, r: int, clients: int) -> np.ndarray:
    """The clients of a round in order, as a callable returned them."""
    listed = list(given) if isinstance(given, (set, frozenset, range)) else given
    array = (
        np.atleast_1d(np.asarray(listed)) if isinstance(listed, (Sequence, np.ndarray, Integral)) else np.array(None)
    )
    where = f"participation of round {r}"
    if array.size == 0 and array.ndim == 1:
        return array.astype(int)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        hint = " (np.flatnonzero makes them of booleans)" if array.dtype == bool else ""
        raise SettingError(f"{where} is {given!r}: a list of the indices of clients, such as [0, 2]{hint}.")
    if array.min() < 0 or array.max() >= clients:
        wrong = array[(array < 0) | (array >= clients)][0]
        raise SettingError(f"{where} names client {wrong}: the clients are 0, ..., {clients - 1}.")
    members = np.unique(array)
    if members.size < array.size:
        twice = members[np.unique(array, return_counts=True)[1] > 1][0]
        raise SettingError(f"{where} names client {twice} twice: a client takes part once in a round.")
    return members.astype(int)


def _scripted(members: list[np.ndarray], clients: int) -> ScriptedCohorts:
    """The rounds' members as tables; the first of a round stands in the places that nobody takes."""
    numbers = np.array([own.size for own in members], dtype=int)
    if not numbers.all():
        raise SettingError(
            f"participation of round {int(np.argmin(numbers))} is empty: at least one client takes part in every round."
        )
    size = int(numbers.max(initial=1))
    if size * len(members) > MOST_ENTRIES:
        raise SettingError(
            f"participation is scripted for {len(members):,} rounds of up to {size:,} clients: at most {MOST_ENTRIES:,} in all are kept. "
            f"Run fewer rounds at a time (x0=result.x), or give a fraction."
        )
    table = np.zeros((len(members), size), dtype=int)
    for r, own in enumerate(members):
        table[r] = own[0]
        table[r, : own.size] = own
    even = bool((numbers == size).all())
    everybody = even and size == clients
    return ScriptedCohorts(constant(table), constant(numbers), everybody, even)

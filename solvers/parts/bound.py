"""A solver bound to one problem: what all of them have, and what most of them do alike.

The server's state is x, or has it by this name; where all clients share a y, that stands beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple, Self

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from hierfl.analysis.theorems import Prescription
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.language.printing.card import count_text
from hierfl.runtime.contract import Clients, Known, OwnValue, Work
from hierfl.runtime.records import History, gradient_bound
from hierfl.solvers.lower.exact import BoundExact
from hierfl.solvers.lower.lower_solver import Clock
from hierfl.solvers.parts.client_oracle import ClientOracle
from hierfl.solvers.parts.participation import DrawnCohorts, ScriptedCohorts
from hierfl.solvers.parts.round_monitor import RoundMonitor
from hierfl.solvers.parts.step_schedules import Tabulated

ABSENT = ("unbiased", "renormalise", "zero")
SMALL, BATCH = 10_000, 32  # rows of a client that are taken all at once, and of the minibatches of more


def batches_of_small_tables(problem: CompiledProblem, samples: set[int]) -> int | None:
    """What ``batch_size="auto"`` is: None, all rows, where the tables that hold these samples are small."""
    sides = [problem.static_data.clients, *([] if problem.static_data.server is None else [problem.static_data.server])]
    counts = [np.max(table.counts) for side in sides for table in side.tables if samples & set(table.samples)]
    return None if max(counts, default=0) <= SMALL else BATCH


class SharedState(NamedTuple):
    """x and the y that all clients share, of the server or of a client on its way; y is empty where they share none."""

    x: Float[Array, " n"]
    y: Float[Array, " size"]


@dataclass(frozen=True, eq=False)
class Bound(Tabulated):
    """The problem, the settings, how a client evaluates its term, and who takes part in which round."""

    problem: CompiledProblem
    settings: Any
    oracle: ClientOracle
    cohorts: DrawnCohorts | ScriptedCohorts = field(kw_only=True)
    stays_in_upper_set: ClassVar[bool] = True
    slope_of: ClassVar[str] = "at most, over the last {rounds} rounds (95% confidence)"
    advice: ClassVar[str] = "Give the lower solver more or larger steps (lower=...), or take lower=Exact()."

    def init(self, x0: Array) -> Any:
        """The server begins at x0, and at 0 for a y that clients share."""
        return SharedState(x0, jnp.zeros(self.problem.lower.size if self.federated else 0, x0.dtype))

    def memory(self, x0: Array) -> Any:
        """A client remembers its last y, for a warm start, where it has one of its own."""
        return self.oracle.first_answer(x0)

    def decision(self, state: Any) -> Array:
        return getattr(state, "x", state)

    def response(self, state: Any, memory: Any) -> Array | None:
        """The latest y: the clients', which is their memory or first in it, or the one that they share."""
        if self.oracle.alone:
            return memory[0] if isinstance(memory, tuple) else memory
        return state.y[None] if self.federated else None

    def clock(self, r: Array) -> Clock:
        return Clock(r, r)

    def own_value(self, clients: Clients, state: Any, x: Array, key: Array) -> OwnValue:
        """All terms at x with y by this run's lower solver; of a run that moves y along with x, with that y."""
        clock, y = self.clock(clients.round), None
        if self.federated and not self.oracle.alone:
            y = state.y
            if self.lower is not None:
                y = self.lower.federation(clients, Known(x[None]), y, clock, key).y[0]
        return self.oracle.own_value(clients, x, y, clock, key)

    def with_prices(self, clients: Clients, x: Array, y: Array | None, told: Any) -> Any:
        """A round's broadcast with the prices of violated means, where upper constraints are on any: see ``ClientOracle.with_prices``."""
        return self.oracle.with_prices(clients, x, y, self.clock(clients.round), told, clients.key)

    @property
    def lower(self) -> Any:
        return self.oracle.lower

    @property
    def queries(self) -> str:
        return self.oracle.queries

    @property
    def known_by_tables(self) -> tuple[str, ...]:
        """Settings that are no part of the key: the lower solver too, which has a key of its own."""
        lower = ("lower",) if isinstance(self.lower, Tabulated) else ()
        return (*self.tabulated, "participation", "published_as", *lower)

    @property
    def theory(self) -> Prescription | None:
        """What the class's theorem prescribes, where the settings ask for it, and the lower solver."""
        asked = getattr(self.settings, "prescribed", None)
        prescribed: Prescription | None = None if asked is None else asked(self.problem)
        if prescribed is None or self.lower is None:
            return prescribed
        return replace(prescribed, lower=str(self.lower.settings))

    def anew(self, state: Any, forgotten: bool) -> Any | None:
        """Nothing is lost with a client's memory but time, unless the server's state is about the memories of all."""
        return None

    def cut_short(self, last: int, steps: int) -> Self:
        """Those whose theorems are about local steps say how they are cut short."""
        raise AssertionError(f"{type(self).__name__} has no theorem about local steps")

    def caveat(self, rounds: int) -> str | None:
        """What keeps the method's theory from holding in a run of so many rounds, or a published mode from being the paper's."""
        mode = getattr(self.settings, "published_as", None)
        if mode is not None and (departure := mode.departure(self.problem, self.queries)) is not None:
            return str(departure)
        if self.theory is None or rounds >= self.theory.rounds:
            return None
        what = "proved" if self.settings.schedule == "theory" else "reached, by what is printed,"
        return f"schedule={self.settings.schedule!r}: the accuracy is {what} after {count_text(self.theory.rounds)} rounds, not after {rounds}."

    @property
    def absent(self) -> str:
        return self.settings.absent

    @property
    def work(self) -> Work:
        lower, settings = self.lower, self.settings
        at_once = isinstance(lower, BoundExact) and lower.exact.method is not None and lower.exact.method.at_once
        level: Any = getattr(lower, "settings", None)
        sizes = [given.batch_size for given in (settings, level) if hasattr(given, "batch_size")]
        without_batches = lower is not None and self.problem.scope != "sample" and not hasattr(level, "batch_size")
        if without_batches and self.problem.lower_samples:
            sizes.append(None)
        rows = None if None in sizes else max(sizes, default=None)
        return Work(at_once, rows, getattr(settings, "directions", 1))

    def gradient_steps(self, first: int, last: int) -> np.ndarray | None:
        """How many steps along -grad f the moves of rounds first, ..., last - 1 amount to; None where they are none.

        A round's gradient is its move over the step size times this: what ``tolerance`` is compared with.
        """
        everyone_counts = self.cohorts.everybody or (self.cohorts.by_chance and self.absent == "unbiased")
        return np.ones(last - first) if everyone_counts else None

    def rests(self, state: Any) -> bool:
        """Most methods do not know when they are at rest."""
        return False

    def descends(self, rounds: int) -> bool:
        return self.gradient_steps(0, rounds) is not None

    def gradient_at_most(self, before: np.ndarray, after: np.ndarray, history: History, first: int) -> float | None:
        """The upper end of a confidence interval for the length of a block's mean gradient: see ``gradient_bound``."""
        steps = self.gradient_steps(first, first + len(history["objective"]))
        return None if steps is None else gradient_bound(before, after, history, steps)

    @property
    def federated(self) -> bool:
        return self.problem.scope == "federation"

    def charge_pooled(self, clients: Clients) -> None:
        """Count what an exact answer that clients share, or an adjoint, would have them send: the data that it is made of, once."""
        clients.everyone.charge("up", jnp.where(clients.round == 0, self.problem.lower_scalars, 0))

    # --- what a round took, for its record -------------------------------------------------------------------------

    def of_present(self, clients: Clients, counts: Array) -> Array:
        """The sum of numbers of the participants, ``(participants,)``."""
        return jnp.sum(jnp.where(clients.present, counts, 0))

    def above(self, projections: Any, points: Any = 0) -> Any:
        """Projections on X: those that a method makes, and of the points that it asks for, if these are projected."""
        if self.problem.upper_set.kind == "free" and self.problem.private_set is None:
            return 0
        return projections + (points if self.queries == "projected" else 0)

    def below(self, monitor: RoundMonitor) -> Any:
        """Projections on Y(x) by a lower solver of client or sample scope, one more in every call than evaluations of F; 0 by others."""
        if monitor.evaluations is None or monitor.solves is None or self.federated or self.problem.lower_set.kind == "free":
            return 0
        return monitor.evaluations + monitor.solves

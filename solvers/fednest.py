"""FedNest (Tarzanagh, Li, Thrampoulidis and Oymak, 2022): bilevel and minimax problems by variance-reduced local gradient steps.

For min over x of sum_i w_i f_i(x, y(x)) with y(x) = argmin over y of sum_i w_i g_i(x, y), no constraints on y (its Algorithms 1 to 4):

    FedInn, T times     q = mean of grad_y g_i(x, y);   y_i  <-  y_i - beta (grad_y g_i(x, y_i) - grad_y g_i(x, y) + q);   y <- mean of y_i
    FedIHGP             p = (N / l) mean of grad_y f_i(x, y);   N' times, N' uniform on 0, ..., N - 1:   p  <-  p - mean of (grad_yy g_i p) / l
    FedOut              h = mean of grad_x f_i(x, y) - grad_xy g_i p;   x_i  <-  x_i - alpha (grad_x f_i(x_i, y) - grad_x f_i(x, y) + h)

p estimates [grad_yy g]^-1 grad_y f by a Neumann series cut at random, whose mean is the series' first N terms. In a minimax problem,
g_i = -f_i, grad_y f is 0 where y is right: p is left out there, as in the source.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Party
from hierfl.compiler.expressions.program import Rows
from hierfl.errors import IncompatibleSolverError, SettingError
from hierfl.jaxtools.keyed_random import fold_in, row_numbers, split
from hierfl.near_names import suggests_names
from hierfl.runtime.contract import Clients, Message, Received
from hierfl.solvers.papers.theory import lower_constants
from hierfl.solvers.parts.bound import Bound, SharedState
from hierfl.solvers.parts.client_oracle import ClientOracle
from hierfl.solvers.parts.common_settings import require_common
from hierfl.solvers.parts.participation import Participation, cohorts_of
from hierfl.solvers.parts.requirements import is_opposed, require_gradients, require_number, require_public_set
from hierfl.solvers.parts.round_monitor import RoundMonitor, first_fault, move_rate
from hierfl.solvers.parts.step_schedules import Schedule, StepCounts, constant, row, steps_of, tabulate, tabulate_steps


@suggests_names
@dataclass(frozen=True)
class FedNest:
    """Settings of FedNest.

    The means are over the round's participants, with the clients' weights made to sum to one. x is projected on X by the server, which
    the source, without constraints, does not treat.

    Parameters
    ----------
    step_size
        alpha of a local step on x: a number, ``Decay(c, p)`` or a callable of the round. The source's theorems divide it by the local steps.
    inner_step
        beta of a local step on y, likewise.
    local_steps, inner_steps
        tau: local steps of a client on x, and on y in each call of FedInn: number, schedule, or one per client.
    inner_rounds
        T: calls of FedInn in a round.
    neumann
        N: the terms of the Neumann series that p is in the mean.
    lipschitz
        l >= the Lipschitz constant of grad_y g_i in y; None is a certified one. The series diverges for a smaller one.
    participation
        Who takes part in a round: a fraction of the clients, a callable of the round, or an array (rounds, clients).
    batch_size
        Rows of every minibatch, each drawn anew; None uses all.

    Raises
    ------
    SettingError
        For a setting out of range, or l that is left to be certified and cannot be.
    IncompatibleSolverError
        When bound to a lower level of another scope or with constraints on y, an equilibrium, a server term, a black box, or private
        constraints on x.

    Examples
    --------
    >>> from hierfl.solvers import FedNest
    >>> free = hf.Problem(hf.Minimize(clients=cp.sum_squares(x + y - 2)), hf.ArgMin(y, cp.sum_squares(y - x)))
    >>> free.solve(FedNest(step_size=0.05, inner_step=0.2), rounds=50, progress=False).x.round(1)
    array([1., 1.])
    """

    step_size: Schedule = 0.01
    inner_step: Schedule = 0.01
    local_steps: StepCounts = 1
    inner_steps: StepCounts = 5
    inner_rounds: int = 1
    neumann: int = 10
    lipschitz: float | None = None
    participation: Participation = 1.0
    batch_size: int | None = 32

    def __post_init__(self) -> None:
        require_common(self)
        if self.lipschitz is not None:
            require_number(self.lipschitz, "lipschitz", 0, np.inf)

    def bind(self, problem: CompiledProblem, rounds: int, queries: str = "projected") -> BoundFedNest:
        """The algorithm for one problem, schedules tabulated.

        Raises
        ------
        IncompatibleSolverError, SettingError
            Naming what the solver needs and what the problem has.
        """
        _require_nested(problem)
        require_gradients(self, problem)
        require_public_set(self, problem)
        m = problem.num_clients
        minimax = is_opposed(problem)
        size = 1.0 if minimax else self.lipschitz or _certified(problem)
        return BoundFedNest(
            problem,
            self,
            ClientOracle(problem, None, self.batch_size, queries, alone=False),
            tabulate(self.step_size, rounds, "step_size"),
            tabulate(self.inner_step, rounds, "inner_step"),
            constant(tabulate_steps(self.local_steps, rounds, m)),
            constant(tabulate_steps(self.inner_steps, rounds, m, "inner_steps")),
            np.array(size, float),
            minimax,
            cohorts=cohorts_of(self, problem, rounds),
        )


def _certified(problem: CompiledProblem) -> float:
    """l of every client."""
    try:
        return lower_constants(problem, "FedNest", of_each=True, give="lipschitz=...")[1]
    except SettingError as error:
        if problem.elsewhere:
            raise
        raise SettingError(
            "FedNest needs l, at least the Lipschitz constant of grad_y g_i in y, of a strongly convex lower level, and it could not be "
            "proved: give lipschitz=..., if the lower level is smooth and strongly convex, or use FedRZO."
        ) from error


def _require_nested(problem: CompiledProblem) -> None:
    """One y of all clients, which minimises without constraints, and clients' terms alone."""
    level = problem.declaration.lower_level
    if level is None or problem.scope != "federation":
        has = "no lower level" if level is None else f"one of {problem.scope} scope"
        nested = "FedRZO" if problem.scope == "sample" else "ZOHFL"
        instead = "FedAvg or SCAFFOLD" if level is None else f"{nested} or ImplicitGradient"
        raise IncompatibleSolverError(
            f"FedNest needs a lower level of federation scope, whose y all clients share, but this problem has {has}: use {instead}."
        )
    if level.kind == "equilibrium":
        raise IncompatibleSolverError(
            "FedNest needs a lower level that minimises or maximises, but this one is an equilibrium: use FedRZO or ImplicitGradient."
        )
    if problem.lower_set is not None and problem.lower_set.kind != "free":
        raise IncompatibleSolverError(
            "FedNest differentiates y(x) as that of a lower level without constraints, but y has some: use FedRZO or ImplicitGradient, "
            "which see them."
        )
    if problem.client_program is None or problem.server_program is not None:
        raise IncompatibleSolverError(
            "FedNest has terms of the clients alone: use FedRZO or ImplicitGradient, or give the server's data to a client."
        )


class NestedPoint(NamedTuple):
    """What a map is told: x and y, where the steps begin, and the direction q, p or h of all clients; empty where there is none."""

    x: Float[Array, " n"]
    y: Float[Array, " size"]
    shared: Array


@dataclass(frozen=True, eq=False)
class BoundFedNest(Bound):
    """FedNest on one problem: the algorithm of the runtime contract.

    ``sizes``, ``inner_sizes`` (rounds,): alpha and beta; ``counts``, ``inner_counts`` (rounds or 1, clients or 1); ``smooth`` (): l.
    """

    sizes: np.ndarray
    inner_sizes: np.ndarray
    counts: np.ndarray
    inner_counts: np.ndarray
    smooth: np.ndarray
    minimax: bool
    absent = "renormalise"
    tabulated: ClassVar[tuple[str, ...]] = (
        "step_size",
        "inner_step",
        "local_steps",
        "inner_steps",
        "lipschitz",
    )
    advice: ClassVar[str] = "Take more inner_rounds or inner_steps, or a larger inner_step."

    def caveat(self, rounds: int) -> str | None:
        """The series, and the theorems, are those of a smooth and strongly convex lower level."""
        if self.problem.elsewhere:
            return "whether the lower level is smooth and strongly convex for every client was not looked at: their data are elsewhere."
        try:
            _, smooth = lower_constants(self.problem, "FedNest", of_each=True)
        except SettingError:
            return (
                "the lower level is not proved smooth and strongly convex for every client; where it is not, neither the theorems hold nor is "
                "the move of x a step along the gradient of f (compare result.gap or problem.implicit.gradient)."
            )
        if self.minimax or self.smooth >= smooth:
            return None
        return (
            f"lipschitz={float(self.smooth):g} is less than the certified {smooth:.3g}: the Neumann series may diverge."
        )

    def gradient_steps(self, first: int, last: int) -> np.ndarray | None:
        """Steps at a y that is not y(x) are in general no step along -grad f."""
        return None

    def round(self, clients: Clients, state: SharedState, key: Array) -> tuple[SharedState, dict[str, Array]]:
        """Algorithm 1 of the source: T calls of FedInn, then FedOut."""
        inner_key, series_key, slope_key, step_key = split(key, 4)
        x, nothing = state.x, jnp.zeros(0, state.x.dtype)

        def inner(t: Array, y: Array) -> Array:
            first, second = split(fold_in(inner_key, t))
            q = self._mean(clients, clients.map(self.inner_slope, NestedPoint(x, y, nothing), key=first).payload)
            moves = clients.map(self.inner_move, NestedPoint(x, y, q), key=second).payload
            return y + self._mean(clients, moves)

        y = clients.loop(self.settings.inner_rounds, inner, state.y)
        p = jnp.zeros_like(y) if self.minimax else self._series(clients, x, y, series_key)
        slopes = clients.map(self.outer_slope, NestedPoint(x, y, nothing if self.minimax else p), key=slope_key)
        h = self._mean(clients, slopes.payload)
        messages = clients.map(self.outer_move, NestedPoint(x, y, h), key=step_key)
        move = self._mean(clients, messages.payload)
        size = row(self.sizes, clients.round)
        watched = RoundMonitor(
            clients.mean(slopes.monitor["value"]),
            jnp.linalg.norm(self._mean(clients, slopes.monitor["force"])),
            jnp.zeros(()),
            first_fault(clients, messages),
            jnp.full((), -1),
        )
        record = watched.record(self.problem.sign, size, move_rate(move, size))
        return SharedState(self.problem.project_upper(x + move, clients.public), y), record

    def _mean(self, clients: Clients, values: Any) -> Any:
        return jax.tree.map(lambda value: value / self.problem.total_weight, clients.mean(values))

    def _series(self, clients: Clients, x: Array, y: Array, key: Array) -> Array:
        """FedIHGP: Algorithm 3 of the source."""
        first, other, drawn = split(key, 3)
        terms, nothing = self.settings.neumann, jnp.zeros(0, x.dtype)
        slope = self._mean(clients, clients.map(self.answer_slope, NestedPoint(x, y, nothing), key=first).payload)

        def factor(n: Array, p: Array) -> Array:
            products = clients.map(self.curved, NestedPoint(x, y, p), key=fold_in(other, n)).payload
            return p - self._mean(clients, products) / self.smooth

        cut = row_numbers(drawn, 0, 0, 1, jnp.asarray(terms))[0]
        p: Array = clients.loop(cut, factor, terms / self.smooth * slope)
        return p

    # --- a participant -----------------------------------------------------------------------------------------------

    def inner_slope(self, party: Party, memory: Array, received: Received, key: Array) -> tuple[Array, Message]:
        """grad_y g_i(x, y)."""
        x, y, _ = received.broadcast
        return memory, Message(self._force(x, y, party, key), {})

    def inner_move(self, party: Party, memory: Array, received: Received, key: Array) -> tuple[Array, Message]:
        """FedInn, Algorithm 4 of the source: the client's local steps on y."""
        (x, y, q), r = received.broadcast, received.round
        count = steps_of(self.inner_counts, r, party.index)

        def slopes(at: Array, rows: Rows) -> Array:
            force: Array = self.problem.operator(x, at, party.environment, rows)
            return force

        return memory, self._corrected(party, slopes, self.problem.lower_samples, y, q, row(self.inner_sizes, r), count, key)

    def _corrected(
        self,
        party: Party,
        slope: Callable[[Array, Rows], Array],
        samples: tuple[int, ...],
        start: Array,
        shared: Array,
        size: Array,
        count: Array,
        key: Array,
    ) -> Message:
        """The move of so many steps z <- z - size (slope(z) - slope(start) + shared), both slopes on the same minibatch."""

        def step(t: Array, own: Array) -> Array:
            def slopes(rows: Rows) -> tuple[Array, Array]:
                return slope(own, rows), slope(start, rows)

            now, then = party.estimate(slopes, samples, key, self.settings.batch_size, t)
            return own - size * (now - then + shared)

        return Message(jax.lax.fori_loop(0, count, step, start) - start, {})

    def answer_slope(self, party: Party, memory: Array, received: Received, key: Array) -> tuple[Array, Message]:
        """grad_y f_i(x, y)."""
        x, y, _ = received.broadcast
        slope = self._upper(
            lambda rows: jax.grad(lambda v: self.problem.client_value(x, v, party.environment, rows))(y), party, key
        )
        return memory, Message(slope, {})

    def curved(self, party: Party, memory: Array, received: Received, key: Array) -> tuple[Array, Message]:
        """grad_yy g_i(x, y) p."""
        x, y, p = received.broadcast

        def product(rows: Rows) -> Array:
            out: Array = jax.jvp(lambda v: self.problem.operator(x, v, party.environment, rows), (y,), (p,))[1]
            return out

        return memory, Message(self._lower(product, party, key), {})

    def outer_slope(self, party: Party, memory: Array, received: Received, key: Array) -> tuple[Array, Message]:
        """Line 8 of Algorithm 2 of the source: grad_x f_i(x, y) - grad_xy g_i(x, y) p."""
        x, y, p = received.broadcast
        upper_key, lower_key = split(key)
        value, slope = self._upper(lambda rows: self._value_and_slope(x, y, party, rows), party, upper_key)
        monitor = {"value": value, "force": self._force(x, y, party, lower_key)}
        if self.minimax:
            return memory, Message(slope, monitor)

        def mixed(rows: Rows) -> Array:
            return jax.grad(lambda z: self.problem.operator(z, y, party.environment, rows) @ p)(x)

        return memory, Message(slope - self._lower(mixed, party, lower_key), monitor)

    def outer_move(self, party: Party, memory: Array, received: Received, key: Array) -> tuple[Array, Message]:
        """FedOut, Algorithm 2 of the source: the client's local steps on x."""
        (x, y, h), r = received.broadcast, received.round
        count = steps_of(self.counts, r, party.index)

        def slope(at: Array, rows: Rows) -> Array:
            return self._value_and_slope(at, y, party, rows)[1]

        return memory, self._corrected(party, slope, self.problem.upper_samples, x, h, row(self.sizes, r), count, key)

    def _value_and_slope(self, x: Array, y: Array, party: Party, rows: Rows) -> tuple[Array, Array]:
        """f_i and its gradient in x."""
        return jax.value_and_grad(lambda z: self.problem.client_value(z, y, party.environment, rows))(x)

    def _force(self, x: Array, y: Array, party: Party, key: Array) -> Array:
        force: Array = self._lower(lambda rows: self.problem.operator(x, y, party.environment, rows), party, key)
        return force

    def _upper(self, function: Callable[[Rows], Any], party: Party, key: Array) -> Any:
        return party.estimate(function, self.problem.upper_samples, key, self.settings.batch_size)

    def _lower(self, function: Callable[[Rows], Any], party: Party, key: Array) -> Any:
        return party.estimate(function, self.problem.lower_samples, key, self.settings.batch_size)

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
from typing import Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Party
from hierfl.compiler.expressions.program import Rows
from hierfl.jaxtools.keyed_random import fold_in, row_numbers, split
from hierfl.near_names import suggests_names
from hierfl.runtime.contract import Clients, Message, Received
from hierfl.solvers.parts.bound import SharedState
from hierfl.solvers.parts.nested import (
    BoundNested,
    NestedPoint,
    NestedSettings,
    certified_smoothness,
    require_nested,
    too_small,
)
from hierfl.solvers.parts.participation import Participation
from hierfl.solvers.parts.requirements import is_opposed
from hierfl.solvers.parts.step_schedules import Schedule, StepCounts, constant, row, steps_of, tabulate_steps


@dataclass(frozen=True, eq=False)
class BoundFedNest(BoundNested):
    """FedNest on one problem: the algorithm of the runtime contract.

    ``counts``, ``inner_counts`` (rounds or 1, clients or 1); ``smooth`` (): l.
    """

    counts: np.ndarray
    inner_counts: np.ndarray
    smooth: np.ndarray
    minimax: bool
    tabulated: ClassVar[tuple[str, ...]] = ("step_size", "inner_step", "local_steps", "inner_steps", "lipschitz")
    advice: ClassVar[str] = "Take more inner_rounds or inner_steps, or a larger inner_step."

    def beyond(self, smooth: float) -> str | None:
        return None if self.minimax else too_small(float(self.smooth), smooth)

    def round(self, clients: Clients, state: SharedState, key: Array) -> tuple[SharedState, dict[str, Array]]:
        """Algorithm 1 of the source: T calls of FedInn, then FedOut."""
        inner_key, series_key, slope_key, step_key = split(key, 4)
        x, nothing = state.x, jnp.zeros(0, state.x.dtype)

        def inner(t: Array, y: Array) -> Array:
            first, second = split(fold_in(inner_key, t))
            q = self.mean(clients, clients.map(self.inner_slope, NestedPoint(x, y, nothing), key=first).payload)
            moves = clients.map(self.inner_move, NestedPoint(x, y, q), key=second).payload
            return y + self.mean(clients, moves)

        y = clients.loop(self.settings.inner_rounds, inner, state.y)
        p, cut = (jnp.zeros_like(y), 0) if self.minimax else self._series(clients, x, y, series_key)
        slopes = clients.map(self.outer_slope, NestedPoint(x, y, nothing if self.minimax else p), key=slope_key)
        h = self.mean(clients, slopes.payload)
        messages = clients.map(self.outer_move, NestedPoint(x, y, h), key=step_key)
        move = self.mean(clients, messages.payload)
        x = self.problem.project_upper(x + move, clients.public)
        above, below = (self.of_present(clients, 2 * steps_of(counts, clients.round, clients.participants)) for counts in (self.counts, self.inner_counts))
        work = {
            "gradients": above + clients.count * (1 if self.minimax else 2),
            "products": clients.count * (0 if self.minimax else cut + 1),
            "lower_gradients": self.settings.inner_rounds * (below + clients.count) + clients.count,
        }
        return SharedState(x, y), self.record(clients, move, slopes, messages, **work)

    def _series(self, clients: Clients, x: Array, y: Array, key: Array) -> tuple[Array, Array]:
        """FedIHGP: Algorithm 3 of the source; with the factors of its product."""
        first, other, drawn = split(key, 3)
        terms, nothing = self.settings.neumann, jnp.zeros(0, x.dtype)
        slope = self.mean(clients, clients.map(self.answer_slope, NestedPoint(x, y, nothing), key=first).payload)

        def factor(n: Array, p: Array) -> Array:
            products = clients.map(self.curved, NestedPoint(x, y, p), key=fold_in(other, n)).payload
            return p - self.mean(clients, products) / self.smooth

        cut = row_numbers(drawn, 0, 0, 1, jnp.asarray(terms))[0]
        return clients.loop(cut, factor, terms / self.smooth * slope), cut

    # --- a participant -----------------------------------------------------------------------------------------------

    def inner_slope(self, party: Party, memory: Array, received: Received, key: Array) -> tuple[Array, Message]:
        """grad_y g_i(x, y)."""
        x, y, _ = received.broadcast
        return memory, Message(self.lower_gradient(x, y, party, key), {})

    def inner_move(self, party: Party, memory: Array, received: Received, key: Array) -> tuple[Array, Message]:
        """FedInn, Algorithm 4 of the source: the client's local steps on y."""
        (x, y, q), r = received.broadcast, received.round
        count = steps_of(self.inner_counts, r, party.index)

        def slope(at: Array, rows: Rows) -> Array:
            return self.problem.operator(x, at, party.environment, rows)

        return memory, self._corrected(party, slope, self.problem.lower_samples, y, q, row(self.inner_sizes, r), count, key)

    def answer_slope(self, party: Party, memory: Array, received: Received, key: Array) -> tuple[Array, Message]:
        """grad_y f_i(x, y)."""
        x, y, _ = received.broadcast
        return memory, Message(self.upper_gradient_in_y(x, y, party, key), {})

    def curved(self, party: Party, memory: Array, received: Received, key: Array) -> tuple[Array, Message]:
        """grad_yy g_i(x, y) p."""
        x, y, p = received.broadcast
        return memory, Message(self.hessian_product(x, y, p, party, key), {})

    def outer_slope(self, party: Party, memory: Array, received: Received, key: Array) -> tuple[Array, Message]:
        """Line 8 of Algorithm 2 of the source: grad_x f_i(x, y) - grad_xy g_i(x, y) p."""
        at, (upper_key, lower_key) = received.broadcast, split(key)
        if self.minimax:
            value, slope = self.upper_gradient(at.x, at.y, party, upper_key)
        else:
            value, slope = self.hypergradient(at, party, key)
        return memory, Message(slope, {"value": value, "slope": self.lower_gradient(at.x, at.y, party, lower_key)})

    def outer_move(self, party: Party, memory: Array, received: Received, key: Array) -> tuple[Array, Message]:
        """FedOut, Algorithm 2 of the source: the client's local steps on x."""
        (x, y, h), r = received.broadcast, received.round
        count = steps_of(self.counts, r, party.index)

        def slope(at: Array, rows: Rows) -> Array:
            return jax.grad(lambda z: self.problem.client_value(z, y, party.environment, rows))(at)

        return memory, self._corrected(party, slope, self.problem.upper_samples, x, h, row(self.sizes, r), count, key)

    def _corrected(
        self, party: Party, slope: Callable[[Array, Rows], Array], samples: tuple[int, ...], start: Array, shared: Array, size: Array, count: Array, key: Array
    ) -> Message:
        """The move of so many steps z <- z - size (slope(z) - slope(start) + shared), both slopes on the same minibatch."""

        def step(t: Array, own: Array) -> Array:
            def slopes(rows: Rows) -> tuple[Array, Array]:
                return slope(own, rows), slope(start, rows)

            now, then = party.estimate(slopes, samples, key, self.settings.batch_size, t)
            return own - size * (now - then + shared)

        return Message(jax.lax.fori_loop(0, count, step, start) - start, {})


@suggests_names
@dataclass(frozen=True)
class FedNest(NestedSettings):
    """Settings of FedNest.

    The means are over the round's participants, with the clients' weights made to sum to one. x is projected on X by the server, which
    the source, without constraints, does not treat.

    Parameters
    ----------
    step_size
        alpha of a local step on x: a number, ``Decay(c, p)`` or a callable of the round. The source's theorems divide it by the local steps.
    inner_step
        beta of a local step on y, likewise; None is 1 / l, l certified.
    local_steps, inner_steps
        tau: local steps of a client on x, and on y in each call of FedInn: number, schedule, or one per client.
    inner_rounds
        T: calls of FedInn in a round.
    neumann
        N: the terms of the Neumann series that p is in the mean.
    lipschitz
        l >= the Lipschitz constant of grad_y g_i in y; None is a certified one, or, where there is none, twice the largest curvature at the
        start, which a warning tells. The series diverges for a smaller one; a minimax problem has none.
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
    inner_step: Schedule | None = 0.01
    local_steps: StepCounts = 1
    inner_steps: StepCounts = 5
    inner_rounds: int = 1
    neumann: int = 10
    lipschitz: float | None = None
    participation: Participation = 1.0
    batch_size: int | None = 32
    _algorithm = BoundFedNest

    def settled(self, problem: CompiledProblem, starts: np.ndarray) -> Self:
        require_nested(self, problem)
        return self if self.inner_step is not None and is_opposed(problem) else super().settled(problem, starts)

    def _tables(self, problem: CompiledProblem, rounds: int) -> dict[str, Any]:
        m = problem.num_clients
        minimax = is_opposed(problem)
        smooth = 1.0 if minimax else self.lipschitz or certified_smoothness(self, problem)
        return {
            "counts": constant(tabulate_steps(self.local_steps, rounds, m)),
            "inner_counts": constant(tabulate_steps(self.inner_steps, rounds, m, "inner_steps")),
            "smooth": np.array(smooth, float),
            "minimax": minimax,
        }

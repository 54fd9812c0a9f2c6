"""Local steps at the clients, averaged by the server: the ground that the baselines share.

A baseline is said by three things: the gradient g_i that a client uses, what it adds to it (a proximal term, a control
variate), and what the server makes of the mean. Everything here is for problems without a lower level, whose clients'
terms f_i(x) hold all there is to know; X enters by projecting the server's new x on it, while the local iterates may leave
it.

The server averages with the weights of the objective, made to sum to one. Its own term f_1, where a method has a place for
it, is one more client of weight one that takes part in every round.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from hierfl.compiler.data.tables import Party
from hierfl.compiler.expressions.program import Environment, Rows
from hierfl.jaxtools.keyed_random import fold_in
from hierfl.runtime.contract import Clients
from hierfl.solvers.parts.bound import Bound
from hierfl.solvers.parts.round_monitor import RoundMonitor, move_rate
from hierfl.solvers.parts.step_schedules import row

Value = TypeVar("Value")


class Term(NamedTuple):
    """One side's term: ``value(x, y, environment, rows)``, and the samples that it averages over."""

    value: Callable[[Array, Array | None, Environment, Rows], Array]
    samples: tuple[int, ...]

    def mean(self, function: Callable[[Rows], Value], party: Party, key: Array, batch_size: int | None) -> Value:
        """A function of the rows, affine in their means, on a minibatch or on all rows of a party."""
        return party.estimate(function, self.samples, key, batch_size)

    def passing(
        self, function: Callable[[Rows], Value], party: Party, key: Array, batch_size: int | None, step: Array
    ) -> Value:
        """The same on the ``step``-th batch of shuffled passes over the rows of a party."""
        if not self.samples or batch_size is None:
            return self.mean(function, party, key, None)
        return function(party.passing(key, batch_size, self.samples, step))


class CorrectedState(NamedTuple):
    """The server's x, and the mean of the control variates by which clients correct their steps."""

    x: Float[Array, " n"]
    control: Float[Array, " n"]


@dataclass(frozen=True, eq=False)
class LocalSteps(Bound):
    """What all baselines do alike on one problem. ``sizes``: the step size of each round, (rounds,)."""

    sizes: np.ndarray

    def init(self, x0: Array) -> Any:
        return x0

    def gradient_steps(self, first: int, last: int) -> np.ndarray | None:
        """Corrected and averaged local steps are in general no step along -grad f."""
        return None

    @property
    def client_term(self) -> Term:
        return Term(self.problem.client_value, self.problem.upper_samples)

    @property
    def server_term(self) -> Term:
        return Term(self.problem.server_value, self.problem.server_samples)

    def size(self, r: Array) -> Array:
        return row(self.sizes, r)

    def gradient(self, term: Term, x: Array, party: Party, key: Array, t: Array) -> tuple[Array, Array]:
        """Value and gradient of a term at x, on the minibatch of local step t."""

        def at(rows: Rows) -> tuple[Array, Array]:
            return jax.value_and_grad(lambda z: term.value(z, None, party.environment, rows))(x)

        value, gradient = self.sampled(term, at, party, key, t)
        return value, gradient

    def sampled(self, term: Term, function: Callable[[Rows], Value], party: Party, key: Array, t: Array) -> Value:
        """A function of the rows on the minibatch of local step t."""
        return term.mean(function, party, self.sample_key(key, t), self.settings.batch_size)

    def sample_key(self, key: Array, t: Array) -> Array:
        """Seeds local step t: by default every step draws samples of its own."""
        return fold_in(key, t)

    def descend(
        self, term: Term, party: Party, start: Array, count: Array, size: Array, pull: Callable[[Array], Array], key: Array
    ) -> tuple[Array, Array]:
        """(end, the term's value at the start) of ``count`` steps z <- z - size (g(z) + pull(z)) from ``start``.

        A client without steps of its own still tells the value.
        """

        def step(t: Array, own: tuple[Array, Array]) -> tuple[Array, Array]:
            z, first = own
            value, gradient = self.gradient(term, z, party, key, t)
            moved = z - size * (gradient + pull(z))
            return jnp.where(t < count, moved, z), jnp.where(t == 0, value, first)

        end, value = jax.lax.fori_loop(0, jnp.maximum(count, 1), step, (start, jnp.zeros((), start.dtype)))
        return end, value

    def record(self, clients: Clients, move: Array, value: Array, fault: Array, steps: Any) -> dict[str, Array]:
        """The round's record, of all parties' local steps; the gradient's norm is the move's over the step size, for all of these together."""
        size, monitor = self.size(clients.round), RoundMonitor.quiet(move)._replace(value=value, fault=fault)
        return monitor.record(self.problem.sign, size, move_rate(move, size), **self.steps_work(steps))

    def steps_work(self, steps: Any) -> dict[str, Any]:
        """What so many local steps take, and the server's projection."""
        return {"gradients": steps, "projections": self.above(1)}

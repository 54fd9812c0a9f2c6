"""What a run watches beside its steps: the objective's estimate, how well lower levels were solved, and who is at fault.

A client keeps a ``LocalMonitor`` over its local steps and sends it along with its message; the server makes a ``RoundMonitor`` of
all of them, which becomes the round's record.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from hierfl.runtime.contract import Clients, Message


class LocalMonitor(NamedTuple):
    """A client's value of f_i where it began, the largest natural residual and gap of Y(x) in its lower levels, and how many it solved."""

    value: Float[Array, ""]
    residual: Float[Array, ""]
    gap: Float[Array, ""]
    solves: Int[Array, ""]

    @classmethod
    def before_steps(cls, x: Float[Array, " n"]) -> LocalMonitor:
        """Nothing has been evaluated yet."""
        zero = jnp.zeros((), x.dtype)
        return cls(zero, zero, zero - jnp.inf, jnp.zeros((), int))

    def after(self, t: Int[Array, ""], now: LocalMonitor) -> LocalMonitor:
        """The monitor with what local step t saw; the value is that of step 0."""
        value = jnp.where(t == 0, now.value, self.value)
        worst = jnp.maximum(self.residual, now.residual), jnp.maximum(self.gap, now.gap)
        return LocalMonitor(value, *worst, self.solves + now.solves)


class RoundMonitor(NamedTuple):
    """What a round's record says.

    ``value`` estimates the objective; ``residual`` is the largest natural residual of a lower level; ``gap`` is positive where
    the federation's own Y(x) is empty; ``fault`` and ``empty`` are the first participant whose message is not finite, and whose
    Y(x) is empty, or -1. ``solves`` counts the lower levels that were solved, one y at one point each; None where a method moves y
    along with x and solves none.
    """

    value: Float[Array, ""]
    residual: Float[Array, ""]
    gap: Float[Array, ""]
    fault: Int[Array, ""]
    empty: Int[Array, ""]
    solves: Int[Array, ""] | None = None

    @classmethod
    def quiet(cls, x: Float[Array, " n"]) -> RoundMonitor:
        """There is nothing to report yet."""
        nobody = jnp.full((), -1)
        return cls(jnp.zeros((), x.dtype), jnp.zeros(()), jnp.zeros(()), nobody, nobody, jnp.zeros((), int))

    def with_federation(self, residual: Float[Array, " points"], gap: Float[Array, " points"]) -> RoundMonitor:
        """The monitor with how well all clients together have solved their common lower level, at each of some points."""
        return self._replace(residual=jnp.max(residual), gap=jnp.max(gap), solves=jnp.full((), residual.size))

    def with_clients(
        self, clients: Clients, finite: Bool[Array, " participants"], told: dict[str, Array]
    ) -> RoundMonitor:
        """The monitor with what the participants told (their ``LocalMonitor`` as a dictionary), and whose messages are ``finite``."""
        solves = jnp.sum(jnp.where(clients.present, told["solves"], 0))
        return self._replace(
            value=clients.mean(told["value"]),
            residual=jnp.maximum(self.residual, jnp.max(told["residual"])),
            fault=first_flagged(clients.participants, ~finite),
            empty=first_flagged(clients.participants, ~(jnp.maximum(told["gap"], self.gap) <= 0)),
            solves=solves if self.solves is None else self.solves + solves,
        )

    def with_server(self, value: Float[Array, ""]) -> RoundMonitor:
        """The monitor with the server's term, whose y is the federation's."""
        empty = jnp.where(self.gap > 0, jnp.maximum(self.empty, 0), self.empty)
        return self._replace(value=self.value + value, empty=empty)

    def record(self, sign: float, step_size: Array, gradient_norm: Array) -> dict[str, Array]:
        """The round's record; ``sign`` is -1 where the declaration maximises."""
        counted = {} if self.solves is None else {"lower_solves": self.solves}
        return {
            "objective": sign * self.value,
            "gradient_norm": gradient_norm,
            "step_size": step_size,
            "lower_residual": self.residual,
            **counted,
            "fault": self.fault,
            "empty": self.empty,
        }


def move_rate(move: Float[Array, " n"], step_size: Float[Array, ""]) -> Float[Array, ""]:
    """Length of a move over its step size: the gradient's norm, of all local steps together."""
    return jnp.linalg.norm(move) / jnp.where(step_size > 0, step_size, 1.0)


def first_flagged(participants: Int[Array, " participants"], flags: Bool[Array, " participants"]) -> Int[Array, ""]:
    """The first participant with a flag, or -1."""
    return jnp.where(flags.any(), participants[jnp.argmax(flags)], -1)


def first_fault(clients: Clients, messages: Message) -> Int[Array, ""]:
    """The first participant whose message is not finite, or too large to have a norm, or -1."""
    leaves = jax.tree.leaves((messages.payload, messages.monitor))
    finite = [jnp.isfinite(jnp.sum(leaf.reshape(leaf.shape[0], -1) ** 2, axis=1)) for leaf in leaves]
    return first_flagged(clients.participants, ~jnp.stack(finite).all(axis=0))

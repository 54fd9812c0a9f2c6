"""What a run watches beside its steps: the objective's estimate, how well lower levels were solved, and who is at fault.

A client keeps a ``LocalMonitor`` over its local steps and sends it along with its message; the server makes a ``RoundMonitor`` of
all of them, which becomes the round's record.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

from hierfl.runtime.contract import Clients, Message
from hierfl.solvers.lower.lower_solver import Clock, LowerAnswer


class LocalMonitor(NamedTuple):
    """A client's value of f_i where it began, the largest natural residual and gap of Y(x) in its lower levels, how many it solved, and how often
    it evaluated F for them."""

    value: Float[Array, ""]
    residual: Float[Array, ""]
    gap: Float[Array, ""]
    solves: Int[Array, ""]
    evaluations: Int[Array, ""]

    @classmethod
    def told(cls, value: Array, residual: Array, gap: Array, solves: Any = 0, evaluations: Any = 0) -> dict[str, Array]:
        return cls(value, residual, gap, jnp.asarray(solves, int), jnp.asarray(evaluations, int))._asdict()

    @classmethod
    def before_steps(cls, x: Float[Array, " n"]) -> LocalMonitor:
        zero = jnp.zeros((), x.dtype)
        return cls(zero, zero, zero - jnp.inf, *(jnp.zeros((), int) for _ in range(2)))

    def after(self, t: Int[Array, ""], now: LocalMonitor) -> LocalMonitor:
        """The monitor with what local step t saw; the value is that of step 0."""
        value = jnp.where(t == 0, now.value, self.value)
        worst = jnp.maximum(self.residual, now.residual), jnp.maximum(self.gap, now.gap)
        return LocalMonitor(value, *worst, self.solves + now.solves, self.evaluations + now.evaluations)


class RoundMonitor(NamedTuple):
    """What a round's record says.

    ``value`` estimates the objective; ``residual`` is the largest natural residual of a lower level; ``gap`` is positive where
    the federation's own Y(x) is empty; ``fault`` and ``empty`` are the first participant whose message is not finite, and whose
    Y(x) is empty, or -1. ``solves`` counts the lower levels that were solved, one y at one point each; None where a method moves y
    along with x and solves none. ``evaluations`` counts those of F in them; None where nobody knows, of exact answers.
    """

    value: Float[Array, ""]
    residual: Float[Array, ""]
    gap: Float[Array, ""]
    fault: Int[Array, ""]
    empty: Int[Array, ""]
    solves: Int[Array, ""] | None = None
    evaluations: Int[Array, ""] | None = None

    @classmethod
    def quiet(cls, x: Float[Array, " n"], lower: Any = None) -> RoundMonitor:
        """There is nothing to report yet; ``lower`` is the bound lower solver, if there is one."""
        nobody, none = jnp.full((), -1), jnp.zeros((), int)
        counted = None if lower is None else none, none if hasattr(lower, "evaluations") else None
        return cls(jnp.zeros((), x.dtype), jnp.zeros(()), jnp.zeros(()), nobody, nobody, *counted)

    def with_federation(self, answer: LowerAnswer, lower: Any, clock: Clock) -> RoundMonitor:
        """The monitor with how well all clients together have solved their common lower level, at each of some points."""
        solves = answer.residual.size
        evaluations = None if self.evaluations is None else jnp.asarray(solves * lower.evaluations(clock, 0), int)
        return self._replace(
            residual=jnp.max(answer.residual), gap=jnp.max(answer.gap), solves=jnp.full((), solves), evaluations=evaluations
        )

    def with_clients(
        self, clients: Clients, finite: Bool[Array, " participants"], told: dict[str, Array]
    ) -> RoundMonitor:
        """The monitor with what the participants told (their ``LocalMonitor`` as a dictionary), and whose messages are ``finite``."""
        solves, evaluations = (jnp.sum(jnp.where(clients.present, told[name], 0)) for name in ("solves", "evaluations"))
        return self._replace(
            value=clients.mean(told["value"]),
            residual=jnp.maximum(self.residual, jnp.max(told["residual"])),
            fault=first_flagged(clients.participants, ~finite),
            empty=first_flagged(clients.participants, ~(jnp.maximum(told["gap"], self.gap) <= 0)),
            solves=None if self.solves is None else self.solves + solves,
            evaluations=None if self.evaluations is None else self.evaluations + evaluations,
        )

    def with_server(self, value: Float[Array, ""]) -> RoundMonitor:
        """The monitor with the server's term, whose y is the federation's."""
        empty = jnp.where(self.gap > 0, jnp.maximum(self.empty, 0), self.empty)
        return self._replace(value=self.value + value, empty=empty)

    def record(self, sign: float, step_size: Array, gradient_norm: Array, **work: Any) -> dict[str, Array]:
        """The round's record; ``sign`` is -1 where the declaration maximises, ``work`` what the method says of its own (see ``WORK`` of the records)."""
        counted = {"lower_solves": self.solves, "lower_gradients": self.evaluations} | work
        return {
            "objective": sign * self.value,
            "gradient_norm": gradient_norm,
            "step_size": step_size,
            "lower_residual": self.residual,
            **{name: jnp.asarray(count, int) for name, count in counted.items() if count is not None},
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

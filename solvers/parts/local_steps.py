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
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Party
from hierfl.compiler.expressions.program import Array, Rows
from hierfl.errors import IncompatibleSolverError
from hierfl.jaxtools.keyed_random import fold_in
from hierfl.language.function import uses_black_box
from hierfl.runtime.contract import Clients, Message
from hierfl.solvers.lower.lower_solver import Clock
from hierfl.solvers.parts.bound import Bound
from hierfl.solvers.parts.client_oracle import first_flagged
from hierfl.solvers.parts.step_tables import row


class Term(NamedTuple):
    """One side's term: ``value(x, y, environment, rows)``, and the samples that it averages over."""

    value: Callable[..., Array]
    samples: tuple[int, ...]

    def mean(self, function: Callable[[Rows], Any], party: Party, key: Array, batch_size: int | None) -> Any:
        """A function of the rows, affine in their means, on a minibatch or on all rows of a party."""
        return party.estimate(function, self.samples, key, batch_size)


@dataclass(frozen=True, eq=False)
class LocalSteps(Bound):
    """What all baselines do alike on one problem. ``sizes``: the step size of each round, (rounds,)."""

    sizes: np.ndarray

    def init(self, x0: Array) -> Any:
        """The state is x alone."""
        return x0

    def memory(self, x0: Array) -> Any:
        """Clients remember nothing."""
        return jnp.zeros(0, x0.dtype)

    def gradient_steps(self, first: int, last: int) -> np.ndarray | None:
        """Corrected and averaged local steps are in general no step along -grad f."""
        return None

    def decision(self, state: Any) -> Array:
        """x."""
        found: Array = state
        return found

    def response(self, state: Any, memory: Any) -> Array | None:
        """There is no y."""
        return None

    def own_value(self, clients: Clients, state: Any, x: Array, key: Array) -> Array:
        """All terms at x."""
        return self.oracle.own_value(clients, x, None, Clock(clients.round, clients.round), key)

    @property
    def client_term(self) -> Term:
        """f_i."""
        return Term(self.problem.client_value, self.problem.upper_samples)

    @property
    def server_term(self) -> Term:
        """f_1."""
        return Term(self.problem.server_value, self.problem.server_samples)

    def size(self, r: Array) -> Array:
        """Step size of a round."""
        return row(self.sizes, r)

    def gradient(self, term: Term, x: Array, party: Party, key: Array) -> tuple[Array, Array]:
        """Value and gradient of a term at x, on a minibatch."""

        def at(rows: Rows) -> tuple[Array, Array]:
            return jax.value_and_grad(lambda z: term.value(z, None, party.environment, rows))(x)

        value, gradient = term.mean(at, party, key, self.settings.batch_size)
        return value, gradient

    def sample_key(self, key: Array, t: Array) -> Array:
        """Seeds local step t: by default every step draws samples of its own."""
        return fold_in(key, t)

    def descend(
        self,
        term: Term,
        party: Party,
        start: Array,
        count: Array,
        size: Array,
        pull: Callable[[Array], Array],
        key: Array,
    ) -> tuple[Array, Array]:
        """(end, the term's value at the start) of ``count`` steps z <- z - size (g(z) + pull(z)) from ``start``.

        A client without steps of its own still tells the value.
        """

        def step(t: Array, own: tuple[Array, Array]) -> tuple[Array, Array]:
            z, first = own
            value, gradient = self.gradient(term, z, party, self.sample_key(key, t))
            moved = z - size * (gradient + pull(z))
            return jnp.where(t < count, moved, z), jnp.where(t == 0, value, first)

        end, value = jax.lax.fori_loop(0, jnp.maximum(count, 1), step, (start, jnp.zeros((), start.dtype)))
        return end, value

    def record(self, clients: Clients, move: Array, value: Array, fault: Array) -> dict[str, Array]:
        """The round's record; the gradient's norm is the move's over the step size, for all local steps together."""
        size = self.size(clients.round)
        return {
            "objective": self.problem.sign * value,
            "gradient_norm": jnp.linalg.norm(move) / jnp.where(size > 0, size, 1.0),
            "step_size": size,
            "lower_residual": jnp.zeros(()),
            "fault": fault,
            "empty": jnp.full((), -1),
        }


def first_fault(clients: Clients, messages: Message) -> Array:
    """The first participant whose message is not finite, or too large to have a norm, or -1."""
    leaves = jax.tree.leaves((messages.payload, messages.monitor))
    finite = [jnp.isfinite(jnp.sum(leaf.reshape(leaf.shape[0], -1) ** 2, axis=1)) for leaf in leaves]
    return first_flagged(clients.participants, ~jnp.stack(finite).all(axis=0))


# --- what a baseline cannot treat -------------------------------------------------------------------------------------

FITTING = {
    "federation": "FedRZO or ImplicitGradient (LocalSGDA for a minimax problem)",
    "client": "ZOHFL, FedRZO or ImplicitGradient",
    "sample": "ZOHFL or FedRZO",
}


def require_single_level(solver: Any, problem: CompiledProblem) -> None:
    """No lower level.

    Raises
    ------
    IncompatibleSolverError
        Naming the solvers that treat its scope.
    """
    if problem.scope is not None:
        raise IncompatibleSolverError(
            f"{type(solver).__name__} needs clients' terms of x alone, but this problem has a lower level of {problem.scope} "
            f"scope: f depends on x through y(x) too, and local steps on f_i at a fixed y would not descend on it. Use "
            f"{FITTING[problem.scope]}."
        )


def require_gradients(solver: Any, problem: CompiledProblem) -> None:
    """No term of values only.

    Raises
    ------
    IncompatibleSolverError
        Naming the term's black box.
    """
    for side, term in (("server", problem.problem.objective.server), ("clients'", problem.problem.objective.clients)):
        box = uses_black_box([term]) if term is not None else None
        if box is not None:
            raise IncompatibleSolverError(
                f"{type(solver).__name__} differentiates the {side} term, but {box.name()} is a BlackBox (values only): use "
                f"FedZO, FedRZO or ZOHFL, which evaluate the clients' terms, or write it as a hf.Function."
            )


def require_public_set(solver: Any, problem: CompiledProblem) -> None:
    """No client's private constraints on x.

    Raises
    ------
    IncompatibleSolverError
        Naming the solver that treats them.
    """
    if problem.private_set is not None:
        raise IncompatibleSolverError(
            f"{type(solver).__name__} projects x on X at the server, which cannot know a client's private constraints: use "
            f"FedRZO, whose clients pull x towards sets of their own, or write the constraints without hf.ClientParameter."
        )


def require_clients_alone(solver: Any, problem: CompiledProblem) -> None:
    """No server term.

    Raises
    ------
    IncompatibleSolverError
        Naming the solvers that treat one.
    """
    if problem.server_program is not None:
        raise IncompatibleSolverError(
            f"{type(solver).__name__} corrects the clients' steps by control variates and has no place for a term of the "
            f"server: use FedAvg or FedProx, or give the server's data to a client."
        )

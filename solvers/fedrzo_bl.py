"""FedRZO_bl: all clients compute y together, once a round ([2S] Algorithm 2; minimax problems included). Chosen by ``FedRZO``.

The server draws v for the whole round, all clients together compute y at x + eta v and at x, and the local steps use these
delayed answers: recomputing them would take communication in every step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from hierfl.compiler.data.tables import Party
from hierfl.jaxtools.keyed_random import split
from hierfl.runtime.contract import Clients, Known, Message, Received
from hierfl.solvers.lower.lower_solver import Clock, LowerAnswer
from hierfl.solvers.parts.client_oracle import Evaluated
from hierfl.solvers.parts.directions import Directions
from hierfl.solvers.parts.estimators import shifts_of
from hierfl.solvers.parts.round_monitor import RoundMonitor
from hierfl.solvers.parts.zeroth_order_steps import FedRZOMemory, FedRZOState, LocalGradient, ZerothOrderSteps


class DelayedAnswers(NamedTuple):
    """What the server broadcasts: (x, the round's directions), which the lower-level solver has sent, and y at each of ``shifts_of``."""

    known: Known
    y: Float[Array, "points size"]


@dataclass(frozen=True, eq=False)
class BoundFedRZObl(ZerothOrderSteps):
    """FedRZO_bl on one problem: the algorithm of the runtime contract."""

    def round(self, clients: Clients, state: FedRZOState, key: Array) -> tuple[FedRZOState, dict[str, Array]]:
        """Lines 3 to 11: the server draws v, all clients answer at x + eta v and x, the participants step, the server averages."""
        (x, y, ledger), (v_key, y_key) = state, split(key)
        v = self.steps.draw(v_key)  # line 3
        answers = self._answers(clients, x, v, y, y_key)  # line 4
        ledger = self.uplink.charge(clients, ledger, self.steps)
        delayed = DelayedAnswers(Known((x, v)), answers.y)  # line 5
        monitor = RoundMonitor.quiet(x).with_federation(answers.residual, answers.gap)
        x, record = self.averaged(clients, x, delayed, monitor, v)  # lines 6 to 11
        return FedRZOState(x, answers.y[0], ledger), record

    def _answers(self, clients: Clients, x: Array, v: Directions, start: Array, key: Array) -> LowerAnswer:
        """y at x and at each shifted x, by the lower-level federated solver."""
        everyone, settings = clients.everyone, self.settings
        self.uplink.send_directions(everyone, (1 + v.count) * v.size * self.problem.num_clients)

        def point(direction: Array, length: Array) -> Array:
            return self.oracle.query(x + length * direction, clients.public)

        points = v.each(point, *shifts_of(v.count, self.steps.smoothing, settings.estimator))
        clock = self.clock(clients.round)
        calls = None if settings.common_random_numbers else jnp.arange(len(points))
        answers: LowerAnswer = self.lower.federation(everyone, Known(points), start, clock, key, calls)
        return answers

    def local_steps(
        self, party: Party, memory: FedRZOMemory, received: Received, key: Array
    ) -> tuple[FedRZOMemory, Message]:
        """Lines 6 to 10 of one client, for k = T_r, ..., T_{r+1} - 1."""
        delayed: DelayedAnswers = received.broadcast
        start, v = delayed.known.values

        def local_gradient(x: Array, memory: FedRZOMemory, clock: Clock, keys: Array) -> LocalGradient:
            sample_key = keys[1]  # line 7: xi

            def delayed_term(z: Array, y: Array) -> Evaluated:
                return self.oracle.at(z, party, memory.y, clock, sample_key, y)

            values = self.around(x, v, party.environment, delayed_term, delayed.y)  # line 8: at x_i, with the round's y
            return self.estimated(v, values, memory)

        return self.descend(party, start, memory, received, key, local_gradient)  # line 9

    def server_steps(self, party: Party, received: Received, key: Array) -> tuple[Array, Array]:
        """The server's own local steps on f_1, along the round's directions and with its answers; (its move, f_1 at x)."""
        (x, v), y = received.broadcast.known.values, received.broadcast.y
        return self.server_descent(party, x, received, key, lambda _: v, y)

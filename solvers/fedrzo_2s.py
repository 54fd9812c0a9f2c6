"""FedRZO_2s: every client solves lower levels of its own ([2S] Algorithm 4; client scope too). Chosen by ``FedRZO``.

Where there is no lower level, the same lines are FedRZO_nn ([NN] Algorithm 1, which is [2S] Algorithm 1), without the answers of line 5.
The lower-level solver is the paper's Algorithm 5 in ``lower=ProjectionMethod(steps=LogGrowth(tau), start="zero")``. In client
scope a client keeps its y, the mean of those at the points of a step, for a warm start.
"""

from __future__ import annotations

from dataclasses import dataclass

import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from hierfl.compiler.data.tables import Party
from hierfl.runtime.contract import Clients, Message, Received
from hierfl.solvers.lower.lower_solver import Clock
from hierfl.solvers.parts.client_oracle import Evaluated
from hierfl.solvers.parts.round_monitor import RoundMonitor
from hierfl.solvers.parts.uplink import arrived
from hierfl.solvers.parts.zeroth_order_steps import FedRZOMemory, FedRZOState, LocalGradient, ZerothOrderSteps


@dataclass(frozen=True, eq=False)
class BoundFedRZO2s(ZerothOrderSteps):
    """FedRZO_2s, or FedRZO_nn, on one problem: the algorithm of the runtime contract."""

    def round(self, clients: Clients, state: FedRZOState, key: Array) -> tuple[FedRZOState, dict[str, Array]]:
        """Lines 3 to 9: the server broadcasts x, the participants answer and step by themselves, the server averages."""
        ledger = self.uplink.charge(clients, state.ledger, self.steps)
        broadcast = self.uplink.announced(state.x)  # line 3
        x, record = self.averaged(clients, state.x, broadcast, RoundMonitor.quiet(state.x))  # lines 4 to 9
        return FedRZOState(x, state.y, ledger), record

    def local_steps(
        self, party: Party, memory: FedRZOMemory, received: Received, key: Array
    ) -> tuple[FedRZOMemory, Message]:
        """Lines 4 to 8 of one client, for k = T_r, ..., T_{r+1} - 1."""

        def local_gradient(x: Array, memory: FedRZOMemory, clock: Clock, keys: Array) -> LocalGradient:
            v_key, sample_key = keys
            v = self.steps.draw(v_key)  # line 5: eta v; the key of the samples is that of xi

            def answered_term(z: Array, place: Array) -> Evaluated:  # line 5: y(z, xi) by the client's own lower solver
                call = None if self.settings.common_random_numbers else place
                return self.oracle.at(z, party, memory.y, clock, sample_key, call=call)

            values = self.around(x, v, party.environment, answered_term)  # line 6: f_i(x + eta v, xi) and f_i(x, xi)
            return self.estimated(v, values, self._keeping(memory, values.y))

        return self.descend(party, arrived(received.broadcast), memory, received, key, local_gradient)  # line 7

    def _keeping(self, memory: FedRZOMemory, answers: Float[Array, "points size"]) -> FedRZOMemory:
        """Keep the answer: in client scope the next step begins at the mean of this step's answers."""
        return memory._replace(y=jnp.mean(answers, axis=0)) if self.oracle.alone else memory

"""FedRZO_nn: no lower level ([NN] Algorithm 1, which is [2S] Algorithm 1). Chosen by ``FedRZO``; the lines are the papers'."""

from __future__ import annotations

from dataclasses import dataclass

from jax import Array

from hierfl.compiler.data.tables import Party
from hierfl.runtime.contract import Clients, Message, Received
from hierfl.solvers.lower.lower_solver import Clock
from hierfl.solvers.parts.client_oracle import Evaluated
from hierfl.solvers.parts.round_monitor import RoundMonitor
from hierfl.solvers.parts.uplink import arrived
from hierfl.solvers.parts.zeroth_order_steps import FedRZOMemory, FedRZOState, LocalGradient, ZerothOrderSteps


@dataclass(frozen=True, eq=False)
class BoundFedRZOnn(ZerothOrderSteps):
    """FedRZO_nn on one problem: the algorithm of the runtime contract."""

    def round(self, clients: Clients, state: FedRZOState, key: Array) -> tuple[FedRZOState, dict[str, Array]]:
        """Lines 3 to 9: the server broadcasts x, the participants step, the server averages."""
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

            def term(z: Array, _: Array) -> Evaluated:
                return self.oracle.at(z, party, memory.y, clock, sample_key)

            values = self.around(x, v, party.environment, term)  # line 6: f_i(x + eta v, xi) and f_i(x, xi)
            return self.estimated(v, values, memory)

        return self.descend(party, arrived(received.broadcast), memory, received, key, local_gradient)  # line 7

"""SCAFFOLD (Karimireddy, Kale, Mohri, Reddi, Stich and Suresh, 2020, Algorithm 1, options I and II).

Control variates c_i, one at each client, and their mean c at the server correct for the drift of the clients:

    x_i  <-  x_i - gamma (g_i(x_i) - c_i + c)                       H steps from x
    c_i  <-  g_i(x)    (option I)   or   c_i - c + (x - x_i) / (H gamma)    (option II)
    x    <-  P_X [ x + gamma_g  mean over participants of (x_i - x) ],      c  <-  c + mean over all of the changes of c_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from jax import Array

from hierfl.compiler.data.tables import Party
from hierfl.near_names import suggests_names
from hierfl.runtime.contract import Clients, Message, Received
from hierfl.solvers.fedavg import BoundFedAvg, require_first_order
from hierfl.solvers.parts.common_settings import FederatedSettings
from hierfl.solvers.parts.local_steps import CorrectedState
from hierfl.solvers.parts.participation import Participation
from hierfl.solvers.parts.requirements import require_choice, require_clients_alone
from hierfl.solvers.parts.round_monitor import first_fault
from hierfl.solvers.parts.step_schedules import Schedule, StepCounts, steps_of


@dataclass(frozen=True, eq=False)
class BoundSCAFFOLD(BoundFedAvg):
    """SCAFFOLD on one problem; a client's memory is its c_i."""

    averages_gradients: ClassVar[bool] = False

    absent = "unbiased"

    def init(self, x0: Array) -> CorrectedState:
        return CorrectedState(x0, jnp.zeros_like(x0))

    def memory(self, x0: Array) -> Array:
        return jnp.zeros_like(x0)

    def anew(self, state: CorrectedState, forgotten: bool) -> CorrectedState | None:
        """Without one's c_i, c would be the mean of the c_i no more, and the fixed point another one."""
        return self.init(state.x) if forgotten else None

    def round(self, clients: Clients, state: CorrectedState, key: Array) -> tuple[CorrectedState, dict[str, Array]]:  # type: ignore[override]
        messages = clients.map(self.local_steps, state)
        moves, changes = messages.payload
        move = self.settings.server_step * clients.mean(moves) / self.problem.total_weight
        present = clients.count / self.problem.num_clients
        control = state.control + present * clients.mean(changes) / self.problem.total_weight
        steps = self.made(clients) + clients.count * (self.settings.option == "I")  # whose control variate takes a gradient on all data
        record = self.record(clients, move, clients.mean(messages.monitor["value"]), first_fault(clients, messages), steps)
        return CorrectedState(self.problem.project_upper(state.x + move, clients.public), control), record

    def local_steps(self, party: Party, memory: Array, received: Received, key: Array) -> tuple[Array, Message]:
        """A participant's H corrected steps; it sends its move and the change of its c_i."""
        (x, control), r = received.broadcast, received.round
        count, size = steps_of(self.counts, r, party.index), self.size(r)
        end, value = self.descend(self.client_term, party, x, count, size, lambda _: control - memory, key)
        length = count * size
        if self.settings.option == "I":
            change = jnp.where(length > 0, self._full_gradient(x, party) - memory, 0.0)
        else:
            change = jnp.where(length > 0, (x - end) / jnp.where(length > 0, length, 1.0) - control, 0.0)
        return memory + change, Message((end - x, change), {"value": value})

    def _full_gradient(self, x: Array, party: Party) -> Array:
        """g_i(x) on all data of a client."""
        term = self.client_term
        return party.mean(
            lambda rows: jax.grad(lambda z: term.value(z, None, party.environment, rows))(x), term.samples
        )


@suggests_names
@dataclass(frozen=True)
class SCAFFOLD(FederatedSettings):
    """Settings of SCAFFOLD.

    The participants' moves count as in the source, without bias (times m/|S|). Upper constraints: the server projects its
    step on X; the limit is exact where no constraint is active, else near the solution for small H gamma.

    Parameters
    ----------
    step_size
        gamma, the clients' step: a number, ``Decay(c, p)``, a callable of the round, or ``"auto"``, which short trial runs find.
    local_steps
        H: number, schedule, or one per client; the control variate of a client that makes none stays.
    server_step
        gamma_g > 0.
    participation
        Who takes part in a round, as for :class:`FedAvg`.
    batch_size
        Rows of the minibatches; None uses all. ``"auto"``: all, where no client has more than 10,000, else 32.
    option
        ``"II"``: the new c_i is the mean of the gradients that the client's steps have used; ``"I"``: the gradient of f_i at the server's
        x, for which a client makes one more pass over all its data.

    Raises
    ------
    SettingError
        For a setting out of range.
    IncompatibleSolverError
        When bound to a problem with a lower level, a server term, a black box, or private constraints on x.

    Examples
    --------
    >>> from hierfl.solvers import SCAFFOLD
    >>> smooth = hf.Problem(hf.Minimize(clients=cp.sum_squares(x - 1)))
    >>> smooth.solve(SCAFFOLD(step_size=0.1), rounds=50, progress=False).x.round(1)
    array([1., 1.])
    """

    step_size: Schedule = "auto"
    local_steps: StepCounts = 5
    server_step: float = 1.0
    participation: Participation = 1.0
    batch_size: int | Literal["auto"] | None = "auto"
    option: str = "II"
    epochs: ClassVar[None] = None
    _requirements = (require_first_order, require_clients_alone)
    _algorithm = BoundSCAFFOLD

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice(self.option, "option", ("I", "II"))

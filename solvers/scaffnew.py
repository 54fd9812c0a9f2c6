"""Scaffnew: ProxSkip for federated learning (Mishchenko, Malinovsky, Stich and Richtarik, 2022, Algorithms 1 and 2).

Every iteration all clients step, x_i <- x_i - gamma (g_i(x_i) - h_i); with probability p they then communicate: the x_i are
replaced by their mean x, and h_i <- h_i + (p / gamma) (x - x_i). A round here is what happens up to one communication, so
that the number of its local steps, the same for all clients, is geometric with mean 1/p.

With constraints, the proximal operator of Algorithm 1 is the projection on {x_1 = ... = x_m in X}, at the x_i - (gamma / p) h_i:
x = P_X [mean of the x_i - (gamma / p) h], h the mean of the h_i, which the server can follow by itself. Without constraints
h stays 0, and this is Algorithm 2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Party
from hierfl.jaxtools.keyed_random import geometric
from hierfl.near_names import suggests_names
from hierfl.runtime.contract import Clients, Message, Received
from hierfl.solvers.fedavg import require_first_order
from hierfl.solvers.papers.theory import upper_constants
from hierfl.solvers.parts.client_oracle import ClientOracle
from hierfl.solvers.parts.local_steps import CorrectedState, LocalSteps
from hierfl.solvers.parts.participation import DrawnCohorts
from hierfl.solvers.parts.requirements import require_choice, require_clients_alone, require_count, require_number
from hierfl.solvers.parts.round_monitor import first_fault


@suggests_names
@dataclass(frozen=True)
class Scaffnew:
    """Settings of Scaffnew. All clients take part in every round: the method has no partial participation.

    Parameters
    ----------
    step_size
        gamma > 0, one number: the h_i are meant for a constant step (at most 1/L); or ``"auto"``, which short trial runs find.
    probability
        p in (0, 1], of communicating after a local step, or ``"theory"``: the source's sqrt(mu / L), for certified constants of the
        clients' terms. Its step is 1/L, which is not chosen with it.
    batch_size
        Rows of the minibatches; None uses all.

    Raises
    ------
    SettingError
        For a setting out of range; with ``probability="theory"``, naming the constant that could not be proved.
    IncompatibleSolverError
        When bound to a problem with a lower level, a server term, a black box, or private constraints on x.

    Examples
    --------
    >>> from hierfl.solvers import Scaffnew
    >>> smooth = hf.Problem(hf.Minimize(clients=cp.sum_squares(x - 1)))
    >>> smooth.solve(Scaffnew(step_size=0.1, probability=0.2), rounds=50, progress=False).x.round(1)
    array([1., 1.])
    """

    step_size: float | Literal["auto"] = 0.01
    constant_step: ClassVar[bool] = True  # what step_size="auto" finds is used throughout
    probability: float | Literal["theory"] = 0.2
    batch_size: int | None = 32

    def __post_init__(self) -> None:
        if self.step_size != "auto":
            if isinstance(self.step_size, str):
                require_choice(self.step_size, "step_size", ("auto",))
            require_number(self.step_size, "step_size", 0, np.inf)
        if isinstance(self.probability, str):
            require_choice(self.probability, "probability", ("theory",))
        else:
            require_number(self.probability, "probability", 0, 1)
        require_count(self.batch_size, "batch_size", or_none=True)

    def bind(self, problem: CompiledProblem, rounds: int, queries: str = "projected") -> BoundScaffnew:
        """The algorithm for one problem. Raises ``IncompatibleSolverError``, naming what the solver needs and what the problem has."""
        require_first_order(self, problem)
        require_clients_alone(self, problem)
        oracle = ClientOracle(problem, None, self.batch_size, queries, alone=False)
        step, probability = np.array(self.step_size, float), self.probability
        if isinstance(probability, str):
            mu, smooth = upper_constants(problem, "Scaffnew(probability='theory')")
            probability = min(1.0, float(np.sqrt(mu / smooth)))
        everybody = DrawnCohorts(problem.num_clients, problem.num_clients)
        return BoundScaffnew(problem, self, oracle, np.full(rounds, step), step, float(probability), cohorts=everybody)


class ScaffnewMemory(NamedTuple):
    """A client's h_i, and its x_i before the last communication: h_i is brought up to date when the next x arrives."""

    control: Float[Array, " n"]
    last: Float[Array, " n"]


@dataclass(frozen=True, eq=False)
class BoundScaffnew(LocalSteps):
    """Scaffnew on one problem: the algorithm of the runtime contract. ``step`` () is gamma, ``probability`` p."""

    step: np.ndarray
    probability: float
    tabulated: ClassVar[tuple[str, ...]] = ("step_size",)

    absent = "unbiased"

    @property
    def rate(self) -> Array:
        """p / gamma, by which the control variates move."""
        return self.probability / jnp.asarray(self.step, float)

    def init(self, x0: Array) -> CorrectedState:
        return CorrectedState(x0, jnp.zeros_like(x0))

    def memory(self, x0: Array) -> ScaffnewMemory:
        """A client begins at x_i = x0, with no control variate."""
        return ScaffnewMemory(jnp.zeros_like(x0), x0)

    def anew(self, state: CorrectedState, forgotten: bool) -> CorrectedState:
        """Whoever misses a round misses the x that its h_i is updated with; then the h_i do not sum to h any more."""
        return self.init(state.x)

    def round(self, clients: Clients, state: CorrectedState, key: Array) -> tuple[CorrectedState, dict[str, Array]]:
        count = geometric(key, self.probability)
        messages = clients.map(self.local_steps, (state.x, count))
        mean = state.x + clients.mean(messages.payload) / self.problem.total_weight
        x = self.problem.project_upper(mean - state.control / self.rate, clients.public)
        told = clients.mean(messages.monitor["value"]), first_fault(clients, messages)
        record = self.record(clients, mean - state.x, *told, clients.count * count)
        return CorrectedState(x, state.control + self.rate * (x - mean)), record

    def local_steps(
        self, party: Party, memory: ScaffnewMemory, received: Received, key: Array
    ) -> tuple[ScaffnewMemory, Message]:
        """The update of h_i that the new x allows, then the local steps; the client sends its move."""
        x, count = received.broadcast
        control = memory.control + self.rate * (x - memory.last)
        size = self.size(received.round)
        end, value = self.descend(self.client_term, party, x, count, size, lambda _: -control, key)
        return ScaffnewMemory(control, end), Message(end - x, {"value": value})

"""HierFAVG (Liu, Zhang, Song and Letaief, 2020): hierarchical averaging over clients, edge servers and the cloud.

In a round every edge e begins at the cloud's x, and makes kappa_2 edge rounds: each of its clients sets x_i = x_e and takes kappa_1 steps

    x_i  <-  x_i - gamma g_i(x_i)                                                         g_i the gradient of f_i on a minibatch,

and the edge takes x_e <- mean of its x_i. Then the cloud takes x <- P_X [ mean of the x_e ], each with the weights of its clients together.
With one edge, or kappa_2 = 1, the clients' steps are those of FedAvg. What clients and edges exchange is counted as ``scalars_down`` and
``scalars_up`` of ``result.communication``, what edges and the cloud exchange as ``cloud_scalars_down`` and ``cloud_scalars_up``.

As it is read here: the source's weights, numbers of rows, are those of ``weights="samples"``. Of absent clients, which the source has not,
its authors' code is followed: means are over those present, and an edge without any has no part in the round.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Party
from hierfl.errors import IncompatibleSolverError
from hierfl.jaxtools.keyed_random import fold_in
from hierfl.near_names import suggests_names
from hierfl.runtime.contract import Clients, Message, Received
from hierfl.solvers.fedavg import BoundFedAvg, require_first_order
from hierfl.solvers.parts.common_settings import FederatedSettings
from hierfl.solvers.parts.participation import Participation, present_weights
from hierfl.solvers.parts.requirements import require_clients_alone
from hierfl.solvers.parts.round_monitor import first_fault
from hierfl.solvers.parts.step_schedules import Schedule, StepCounts


@dataclass(frozen=True, eq=False)
class BoundHierFAVG(BoundFedAvg):
    """HierFAVG on one problem. ``edge_of`` (clients,): where each client hangs; ``edges``: how many there are."""

    edge_of: np.ndarray
    edges: int
    averages_gradients: ClassVar[bool] = False
    absent = "renormalise"

    def round(self, clients: Clients, state: Array, key: Array) -> tuple[Array, dict[str, Array]]:
        edge = jnp.asarray(self.edge_of)[clients.participants]
        weights = present_weights(self.problem, clients)
        of_edges = jax.ops.segment_sum(weights, edge, self.edges)
        shares = weights / jnp.where(of_edges > 0, of_edges, 1.0)[edge]
        nothing = jnp.zeros((), state.dtype), jnp.full((), -1)

        def edge_round(t: Array, own: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            models, value, fault = own
            messages = clients.map(self.edge_steps, (), each=models[edge], key=fold_in(key, t))
            moves = jax.ops.segment_sum(shares[:, None] * messages.payload, edge, self.edges)
            value = jnp.where(t == 0, clients.mean(messages.monitor["value"]), value)
            return models + moves, value, jnp.where(fault < 0, first_fault(clients, messages), fault)

        begun = jnp.broadcast_to(state, (self.edges, *state.shape))
        models, value, fault = clients.loop(self.settings.edge_rounds, edge_round, (begun, *nothing))
        taking_part = jax.ops.segment_sum(clients.present.astype(int), edge, self.edges) > 0
        for way in ("down", "up"):
            clients.charge(way, jnp.sum(taking_part) * state.size, tier="cloud_")
        steps = self.settings.edge_rounds * self.made(clients)
        move = of_edges @ models - state * jnp.sum(of_edges)
        return self.problem.project_upper(state + move, clients.public), self.record(clients, move, value, fault, steps)

    def edge_steps(self, party: Party, memory: Array, received: Received, key: Array) -> tuple[Array, Message]:
        """A participant's local steps from its edge's x; it sends its move to the edge."""
        return self.local_steps(party, memory, received._replace(broadcast=received.own), key)


@suggests_names
@dataclass(frozen=True)
class HierFAVG(FederatedSettings):
    """Settings of HierFAVG, for a federation that is a :meth:`tree <hierfl.Federation.tree>`.

    Upper constraints: the server projects x0 and its means on X.

    Parameters
    ----------
    step_size
        gamma: a number, ``Decay(c, p)``, a callable of the round, or ``"auto"``, a step that short trial runs find.
    local_steps
        kappa_1, between two means of an edge: number, schedule, or one per client. ``"auto"``: 5, and 1 in the last quarter of the rounds, from
        round 200 on at the latest.
    edge_rounds
        kappa_2, means of an edge between two of the cloud.
    participation
        Who takes part in a round, as for :class:`FedAvg`.
    batch_size
        Rows of the minibatches; None uses all. ``"auto"``: all, where no client has more than 10,000, else 32.

    Raises
    ------
    SettingError
        For a setting out of range.
    IncompatibleSolverError
        When bound to a federation without edges, a problem with a lower level, a server term, a black box, or private constraints on x.

    Examples
    --------
    >>> from hierfl.solvers import HierFAVG
    >>> b = hf.ClientParameter(2, name="b")
    >>> clients = [hf.Client(parameters={b: np.full(2, value)}) for value in (0.0, 1.0, 5.0)]
    >>> tree = hf.Federation.tree({"north": clients[:2], "south": clients[2:]})
    >>> smooth = hf.Problem(hf.Minimize(clients=cp.sum_squares(x - b)), federation=tree)
    >>> result = smooth.solve(HierFAVG(step_size=0.1, local_steps=2, edge_rounds=3), rounds=40, progress=False)
    >>> result.x.round(1), result.communication["scalars_up_per_round"], result.communication["cloud_scalars_up_per_round"]
    (array([2., 2.]), 18, 4)
    """

    step_size: Schedule = "auto"
    local_steps: StepCounts | Literal["auto"] = "auto"
    edge_rounds: int = 2
    participation: Participation = 1.0
    batch_size: int | Literal["auto"] | None = "auto"
    epochs: ClassVar[None] = None
    _requirements = (require_first_order, require_clients_alone)
    _algorithm = BoundHierFAVG

    def _tables(self, problem: CompiledProblem, rounds: int) -> dict[str, Any]:
        federation = problem.declaration.federation
        if federation is None or federation.edges is None:
            raise IncompatibleSolverError(
                "HierFAVG averages at edges, and this federation has none: declare hf.Federation.tree({'north': [...], 'south': [...]}), or use FedAvg."
            )
        edge_of = np.zeros(problem.num_clients, int)
        for place, own in enumerate(federation.edges.values()):
            edge_of[list(own)] = place
        return {"edge_of": edge_of, "edges": len(federation.edges)}

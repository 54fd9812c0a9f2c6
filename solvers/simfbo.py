"""SimFBO and ShroFBO (Yang, Xiao and Ji, 2023): a single loop on x, y and v, and the server's own steps along what clients add up.

In a round client i begins at the server's (x, y, v) and makes tau_i steps of all three at once, which are FedBiO's (v is its u):

    y_i  <-  y_i - eta_y grad_y g_i          v_i  <-  v_i - eta_v (grad_yy g_i v_i - grad_y f_i)
    x_i  <-  x_i - eta_x (grad_x f_i - grad_xy g_i v_i)

It sends q_i, the sums of its tau_i directions, for each of the three. With p_i the participants' weights, times n / |C|, the server steps

    SimFBO     x  <-  x - gamma_x sum_i p_i q_i                             (y and v likewise, each with its own gamma)
    ShroFBO    x  <-  x - gamma_x (sum_i p_i tau_i) sum_i p_i q_i / tau_i

and keeps v in a ball, v <- min(1, R / |v|) v. Sums weigh clients by their numbers of steps: where these differ, SimFBO ends at the optimum
of another mean of clients, and ShroFBO does not.

The source's full text was not at hand when this was written; compare it before citing numbers as its. As it is read here: the source's coefficients a_i of a client's steps are 1, plain SGD's; every direction has minibatches of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.errors import SettingError
from hierfl.near_names import suggests_names
from hierfl.runtime.contract import Clients
from hierfl.solvers.fedbio import BoundFedBiO, FedBiO
from hierfl.solvers.parts.nested import NestedPoint
from hierfl.solvers.parts.requirements import require_number
from hierfl.solvers.parts.step_schedules import steps_of


@dataclass(frozen=True, eq=False)
class BoundSimFBO(BoundFedBiO):
    """SimFBO on one problem: what the server makes of the clients' sums, which are their moves over -eta."""

    absent = "unbiased"

    def round(self, clients: Clients, state: NestedPoint, key: Array) -> tuple[NestedPoint, dict[str, Array]]:
        (x, y, v), record = super().round(clients, state, key)
        radius = self.settings.radius
        if radius is not None:
            length = jnp.linalg.norm(v)
            v = v * jnp.where(length > radius, radius / length, 1.0)
        return NestedPoint(x, y, v), record

    def move(self, clients: Clients, moves: NestedPoint) -> NestedPoint:
        steps = NestedPoint(*np.broadcast_to(self.settings.server_steps, 3).tolist())
        if self.settings.normalise:
            counts = steps_of(self.counts, clients.round, clients.participants)
            each = 1.0 / jnp.maximum(counts, 1)
            moves = jax.tree.map(lambda move: move * each[:, None] * self.mean(clients, counts.astype(each.dtype)), moves)
        return jax.tree.map(jnp.multiply, steps, self.mean(clients, moves))


@suggests_names
@dataclass(frozen=True)
class SimFBO(FedBiO):
    """Settings of SimFBO, and of ShroFBO; those of :class:`FedBiO` are here eta_x, eta_y, eta_v (``linear_step``) and tau (``local_steps``).

    Parameters
    ----------
    step_size, inner_step, linear_step, local_steps, participation, batch_size
        As for :class:`FedBiO`.
    server_steps
        gamma / eta, how long the server's steps are, in the clients' steps: a number, or three, for x, y and v. 1 takes the mean of the
        clients' ends, where all make as many steps.
    normalise
        Whether it is ShroFBO, for clients of which some make more steps than others.
    radius
        R of the ball that v is kept in; None leaves v free.

    Raises
    ------
    SettingError, IncompatibleSolverError
        As for :class:`FedBiO`.

    Examples
    --------
    >>> from hierfl.solvers import SimFBO
    >>> free = hf.Problem(hf.Minimize(clients=cp.sum_squares(x + y - 2)), hf.ArgMin(y, cp.sum_squares(y - x)))
    >>> free.solve(SimFBO(step_size=0.05, server_steps=1.5), rounds=50, progress=False).x.round(1)
    array([1., 1.])
    """

    server_steps: float | Sequence[float] = 1.0
    normalise: bool = False
    radius: float | None = None
    _algorithm = BoundSimFBO

    def __post_init__(self) -> None:
        steps = self.server_steps
        if np.ndim(steps) and np.shape(steps) != (3,):
            raise SettingError(f"server_steps={steps!r}: a number, or three, for x, y and v.")
        for step in np.atleast_1d(steps).tolist():
            require_number(step, "server_steps", 0, np.inf)
        super().__post_init__()

"""FedMSPP, minibatch stochastic proximal point (Yuan and Li, 2022, "On convergence of FedProx").

Round t: every participant draws *one* minibatch B and sends an inexact minimiser of

    f_i(z; B)  +  (1 / (2 eta_t)) ||z - x||^2;

the server takes the mean. Unlike in FedProx the samples stay fixed for the round, so that the subproblem can be solved to
any accuracy: here by H gradient steps on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import SettingError
from hierfl.near_names import suggests_names
from hierfl.solvers.fedavg import BoundFedAvg, FedAvg
from hierfl.solvers.parts.step_schedules import Schedule, StepCounts, row, tabulate


@dataclass(frozen=True, eq=False)
class BoundFedMSPP(BoundFedAvg):
    """FedMSPP on one problem. ``proximal_steps`` (rounds,): eta_t."""

    proximal_steps: np.ndarray
    averages_gradients: ClassVar[bool] = False
    tabulated: ClassVar[tuple[str, ...]] = (*BoundFedAvg.tabulated, "proximal_step")

    def pull(self, point: Array, start: Array, r: Array) -> Array:
        return (point - start) / row(self.proximal_steps, r)

    def sample_key(self, key: Array, t: Array) -> Array:
        """One minibatch for the whole round."""
        return key


@suggests_names
@dataclass(frozen=True)
class FedMSPP(FedAvg):
    """Settings of FedMSPP: those of :class:`FedAvg`, and

    Parameters
    ----------
    step_size, local_steps
        Of the gradient method that solves the subproblem.
    proximal_step
        eta_t > 0, the learning rate of the source: a number, ``Decay(c, p)`` or callable of the round.
        The subproblem's steps are stable for ``step_size`` below 2 / (L + 1/eta_t).

    Examples
    --------
    >>> from hierfl.solvers import FedMSPP
    >>> smooth = hf.Problem(hf.Minimize(clients=cp.sum_squares(x - 1)))
    >>> smooth.solve(FedMSPP(step_size=0.1), rounds=50, progress=False).x.round(1)
    array([1., 1.])
    """

    local_steps: StepCounts = 20
    proximal_step: Schedule = 0.1
    takes_epochs: ClassVar[bool] = False
    _algorithm = BoundFedMSPP

    def _tables(self, problem: CompiledProblem, rounds: int) -> dict[str, Any]:
        proximal_steps = tabulate(self.proximal_step, rounds, "proximal_step")
        if not np.all(proximal_steps > 0):
            raise SettingError(f"proximal_step is 0 at {np.argmin(proximal_steps)}: it must be above 0.")
        return {"proximal_steps": proximal_steps}

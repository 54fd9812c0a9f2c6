"""FedProx (Li, Sahu, Zaheer, Sanjabi, Talwalkar and Smith, 2020, Algorithm 2).

As FedAvg, but a participant works on f_i(x_i) + (mu/2) ||x_i - x||^2, which keeps it near the round's x:

    x_i  <-  x_i - gamma (g_i(x_i) + mu (x_i - x)).

The source asks for an inexact minimiser of that sum; H such steps are one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from jax import Array

from hierfl.near_names import suggests_names
from hierfl.solvers.fedavg import BoundFedAvg, FedAvg


@dataclass(frozen=True, eq=False)
class BoundFedProx(BoundFedAvg):
    """FedProx on one problem."""

    averages_gradients: ClassVar[bool] = False

    def pull(self, point: Array, start: Array, r: Array) -> Array:
        return self.settings.proximal * (point - start)


@suggests_names
@dataclass(frozen=True)
class FedProx(FedAvg):
    """Settings of FedProx: those of :class:`FedAvg`, and

    Parameters
    ----------
    proximal
        mu > 0, the weight of the proximal term; FedAvg is mu = 0.

    Examples
    --------
    >>> from hierfl.solvers import FedProx
    >>> smooth = hf.Problem(hf.Minimize(clients=cp.sum_squares(x - 1)))
    >>> smooth.solve(FedProx(step_size=0.1, proximal=0.5), rounds=50, progress=False).x.round(1)
    array([1., 1.])
    """

    proximal: float = 1.0
    _algorithm = BoundFedProx

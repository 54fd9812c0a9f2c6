"""FedZO (Fang, Yu, Jiang, Shi, Jones and Zhou, 2022, Algorithm 1): FedAvg with gradients estimated from values.

Every local step draws b1 samples and b2 directions v_n, uniform on the unit sphere, and uses

    g_i  =  1/(b1 b2)  sum_m sum_n  (d / eta) (f_i(x_i + eta v_n; xi_m) - f_i(x_i; xi_m)) v_n.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Party
from hierfl.jaxtools.keyed_random import split
from hierfl.near_names import suggests_names
from hierfl.solvers.fedavg import BoundFedAvg, FedAvg
from hierfl.solvers.parts.directions import Directions, average_along, shifts_of, slopes
from hierfl.solvers.parts.local_steps import Term
from hierfl.solvers.parts.requirements import require_public_set, require_single_level


@dataclass(frozen=True, eq=False)
class BoundFedZO(BoundFedAvg):
    """FedZO on one problem. ``smoothing`` () is eta."""

    smoothing: np.ndarray
    tabulated: ClassVar[tuple[str, ...]] = (*BoundFedAvg.tabulated, "smoothing")

    def steps_work(self, steps: Any) -> dict[str, Any]:
        values = steps * (1 + self.settings.directions)
        return {"values": values, "projections": self.above(1, values)}

    def gradient(self, term: Term, x: Array, party: Party, key: Array, t: Array) -> tuple[Array, Array]:
        """Value and estimated gradient of a term at x: the same b1 samples at all points."""
        settings = self.settings
        v_key, sample_key = split(self.sample_key(key, t))
        directions = Directions.draw(v_key, settings.directions, self.problem.upper.size, "independent")

        def value(direction: Array, length: Array) -> Array:
            z = self.oracle.query(x + length * direction, party.environment)
            return term.mean(
                lambda rows: term.value(z, None, party.environment, rows), party, sample_key, settings.batch_size
            )

        values = directions.each(value, *shifts_of(settings.directions, self.smoothing, "forward"))
        return values[0], average_along(directions, slopes(values, self.smoothing, "forward"))


@suggests_names
@dataclass(frozen=True)
class FedZO(FedAvg):
    """Settings of FedZO: those of :class:`FedAvg`, ``batch_size`` being b1, and

    Parameters
    ----------
    smoothing
        eta > 0, the length of the differences.
    directions
        b2, the number of directions of a step.

    Notes
    -----
    The source assumes smooth f_i and no lower level; :class:`FedRZO` is the same skeleton for nonsmooth and hierarchical
    problems. Black boxes are welcome. Queries outside X are projected on it unless ``queries="raw"``.

    Examples
    --------
    >>> from hierfl.solvers import FedZO
    >>> smooth = hf.Problem(hf.Minimize(clients=cp.sum_squares(x - 1)))
    >>> smooth.solve(FedZO(step_size=0.1), rounds=50, progress=False).x.round(1)
    array([1., 1.])
    """

    smoothing: float = 1e-3
    directions: int = 20
    takes_epochs: ClassVar[bool] = False
    _requirements = (require_single_level, require_public_set)  # black boxes are allowed
    _algorithm = BoundFedZO

    def _tables(self, problem: CompiledProblem, rounds: int) -> dict[str, Any]:
        return {"smoothing": np.array(self.smoothing, float)}

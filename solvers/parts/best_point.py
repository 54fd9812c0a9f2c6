"""What methods share that search for the best point by themselves, asking all clients: their state is that point, and they claim no theorem."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from jaxtyping import Float

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.solvers.parts.participation import DrawnCohorts


class BestPoint(NamedTuple):
    """The best point so far, and y there, for every owner; y is None until somebody asks for it at the start."""

    x: Float[np.ndarray, " n"]
    y: Float[np.ndarray, "owners size"] | None


@dataclass(frozen=True, eq=False)
class BoundSearch:
    """Such a method on one problem."""

    problem: CompiledProblem
    absent: ClassVar[str] = "unbiased"
    stays_in_upper_set: ClassVar[bool] = True
    advice: ClassVar[str] = ""
    theory: ClassVar[None] = None

    @property
    def cohorts(self) -> DrawnCohorts:
        return DrawnCohorts(self.problem.num_clients, self.problem.num_clients)

    def init(self, x0: Any) -> BestPoint:
        return BestPoint(np.asarray(x0, float), None)

    def memory(self, x0: Any) -> Float[np.ndarray, " 0"]:
        return np.zeros(0)

    def decision(self, state: BestPoint) -> Float[np.ndarray, " n"]:
        return state.x

    def response(self, state: BestPoint, memory: Any) -> Float[np.ndarray, "owners size"] | None:
        if state.y is not None or not self.problem.lower.size:
            return state.y
        return np.asarray(self.problem.exact.at(state.x).solution.y)  # type: ignore[union-attr]

    def rests(self, state: BestPoint) -> bool:
        """Its last visit says so."""
        return False

    def caveat(self, rounds: int) -> str | None:
        return None

    def sent(self, asked: int = 1, gradients: bool = True) -> dict[str, int]:
        """What so many questions to all clients send: x down; their value, and its gradient if it is asked for, up."""
        shared = self.problem.lower.size if self.problem.scope == "federation" else 0  # y down, and gradients in it up
        clients, size = asked * self.problem.num_clients, self.problem.upper.size + shared
        return {"scalars_down": clients * size, "scalars_up": clients * (gradients * size + 1), "monitor_scalars": clients}

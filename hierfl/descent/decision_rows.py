"""X as rows over cones, for the small programs that a step of descent solves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import jax
import numpy as np
from jaxtyping import Float

from hierfl.analysis.hoist import instantiate
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.oracles import constraints_of_all_clients, lower_constraints
from hierfl.compiler.parametric.level_form import LevelForm
from hierfl.compiler.parametric.template import LevelTemplate
from hierfl.compiler.programs.cones import NONNEGATIVE, ZERO, Cone, NoStandardFormError
from hierfl.compiler.programs.convex_program import ConvexProgram
from hierfl.compiler.programs.small_and_sparse import as_array
from hierfl.compiler.programs.solve_program import solve_program

TINY = 1e-300
LARGEST = 300  # scalars of x and of all its responses together

Matrix = Float[np.ndarray, "n n"]
Vector = Float[np.ndarray, " n"]


@dataclass(frozen=True, eq=False)
class DecisionRows:
    """x, with what its cones need beside it, is in X where a u + b is in the cones; x is the start of u."""

    a: Float[np.ndarray, "rows width"]
    b: Float[np.ndarray, " rows"]
    cones: Sequence[Cone]
    size: int

    @property
    def polyhedral(self) -> bool:
        """Whether X is one."""
        return all(cone.kind in (ZERO, NONNEGATIVE) for cone in self.cones)

    @classmethod
    def of(cls, problem: CompiledProblem) -> DecisionRows:
        """X itself, the private parts of all clients included.

        Raises ``NoStandardFormError`` if X needs a cone that the host engine does not know.
        """
        return cls._made(problem, constraints_of_all_clients(problem.declaration), problem.upper.variables)

    @classmethod
    def with_answers(cls, problem: CompiledProblem) -> DecisionRows | None:
        """The points of X where nobody's Y(x) is empty: beside x there are a y of each owner and its constraints.

        None where these are not jointly convex in x and y, or too many.
        """
        declaration = problem.declaration
        on_y, owners = lower_constraints(declaration), _leaves_of_owners(problem)
        if declaration.lower_level is None or owners is None:
            return None
        if problem.upper.size + len(owners) * problem.lower.size > LARGEST:
            return None
        constraints = list(constraints_of_all_clients(declaration))
        copies: list[cp.Variable] = []
        for leaves in owners:
            own = {y: cp.Variable(y.shape) for y in problem.lower.variables}
            copies += own.values()
            constraints += instantiate(on_y, {**leaves, **own})
        try:
            return cls._made(problem, constraints, [*problem.upper.variables, *copies])
        except NoStandardFormError:
            return None

    @classmethod
    def _made(cls, problem: CompiledProblem, constraints: list[Any], variables: Sequence[cp.Variable]) -> DecisionRows:
        template = LevelTemplate.of(None, constraints, variables)
        with jax.enable_x64(True):
            theta = np.asarray(template.theta_at(problem.data().clients.public), float)
        program = LevelForm(template, ()).program([theta])
        return cls(as_array(program.a), program.b, program.cones, problem.upper.size)

    def lowest(
        self,
        curvature: Matrix,
        x: Vector,
        slopes: Float[np.ndarray, "k n"],
        offsets: Float[np.ndarray, " k"],
        length: float,
        units: Vector,
    ) -> tuple[Vector, float] | None:
        """d and v with the least v + d' curvature d / 2 such that x + d is in X and v >= slopes d - offsets; None where that fails.

        ``length`` is about the length of d in the ``units`` of the variables; the program is written for d / (length units), and for v
        in units of the steepest slope.
        """
        width, count = self.a.shape[1], len(slopes)
        steep = max(float(np.linalg.norm(slopes * units, axis=1).max(initial=0.0)), TINY)
        h, g = np.zeros((width + 1, width + 1)), np.zeros(width + 1)
        h[: self.size, : self.size], g[width] = (length / steep) * units[:, None] * curvature * units, 1.0
        above = np.zeros((count, width + 1))
        above[:, : self.size], above[:, width] = -slopes * units / steep, 1.0
        own = np.hstack([self.a, np.zeros((len(self.a), 1))])
        own[:, : self.size] *= units
        room = (self.a[:, : self.size] @ x + self.b) / length
        a, b = np.vstack([own, above]), np.append(room, offsets / (length * steep))
        if not all(np.isfinite(array).all() for array in (h, a, b)):
            return None
        with np.errstate(all="ignore"):
            answer = solve_program(ConvexProgram.of(h, g, a, b, [*self.cones, Cone(NONNEGATIVE, count)]))
        if not answer.solved:
            return None
        return length * units * answer.u[: self.size], length * steep * float(answer.u[width])


def _leaves_of_owners(problem: CompiledProblem) -> list[dict[Any, Any]] | None:
    """The values of samples and client parameters that each owner of a y has; None where they are distributions."""
    declaration = problem.declaration
    parties = declaration.parties
    if problem.scope == "federation":
        return [{}]
    if problem.scope == "client":
        return [dict(party.parameters) for party in parties]
    place = problem.row_table(problem.static_data.clients)
    samples = declaration.roles.client_tables[place]
    if any(party.is_distribution(sample) for sample in samples for party in parties):
        return None
    return [
        {**party.parameters, **{sample: np.asarray(party.samples[sample])[row] for sample in samples}}
        for party in parties
        for row in range(len(party.samples[samples[0]]))
    ]

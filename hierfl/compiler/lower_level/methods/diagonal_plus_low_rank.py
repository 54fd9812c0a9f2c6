"""Diagonal plus low rank: an equation in a few unknowns, whatever the size of y."""

from __future__ import annotations

from functools import partial
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from hierfl.compiler.lower_level.certificate import LowerSolution
from hierfl.compiler.lower_level.low_rank_map import LowRank
from hierfl.compiler.lower_level.methods.low_rank_equation import across, solve_box
from hierfl.compiler.lower_level.methods.method import ExactMethod, Question, Verdict
from hierfl.compiler.lower_level.methods.semismooth_newton import newton_from
from hierfl.compiler.lower_level.methods.step_sizes import POWER_STEPS
from hierfl.compiler.lower_level.structure import LowerStructure

STEEPEST = 1e6  # of a coupling of rank 2 and more: Newton's method in theta stalls beyond
STEEP = 1e4  # rounding errors of theta that reach V'y are then up to 1e-12 of it
REFINEMENTS = 5


class DiagonalPlusLowRank(ExactMethod):
    """The method for an affine F over a box, or free, whose Jacobian is diag(d) + U V'."""

    name: ClassVar[str] = "diagonal plus low rank"
    cost: ClassVar[str] = "some steps of O(n)"
    at_once: ClassVar[bool] = True

    @classmethod
    def verdict(cls, structure: LowerStructure) -> Verdict:
        jacobian, skeleton = structure.jacobian, structure.jacobian.skeleton
        # Newton's method in theta stalls on skew parts of rank 2 and more
        steep = jacobian.parts is not None and jacobian.steepness > STEEPEST
        solvable = skeleton is not None and (skeleton.rank == 1 or (structure.pattern.symmetric and not steep))
        if skeleton is None or not (structure.affine and structure.separable_set and solvable):
            return Verdict(
                False,
                "needs an affine F over a box (or no constraints) whose Jacobian is diagonal plus rank 1, or symmetric and "
                "diagonal plus a rank of up to 8, in at least 8 variables and 4 for each rank",
            )
        otherwise = (
            ""
            if never_stops_short(structure)
            else "; by Newton's method on y where it is not, or where that of low rank stops short"
        )
        return Verdict(
            True, f"the Jacobian is diagonal plus rank {skeleton.rank}, over a {structure.kind} set{otherwise}"
        )

    def answer(self, question: Question) -> LowerSolution:
        owner, start, jacobian = question.owner, question.warm, self.structure.jacobian
        known = self.structure.low_rank(owner.multiply, start.size)
        parts = LowRank(*(jnp.asarray(part, start.dtype) for part in known))
        q, ladder = owner.operator(jnp.zeros_like(start)), jacobian.ladder
        limits = owner.limits()
        theta = across(parts.right, jnp.clip(start, *limits)) if ladder is None else ladder.start(q)
        y, iterations = solve_box(parts, q, *limits, theta)
        solution = question.certified_directly(y, 1.0 / parts.size(), iterations)
        if jacobian.steepness > STEEP:  # theta = V'y may be too coarse an unknown
            solution = _refined(question, parts, solution)
        return solution if never_stops_short(self.structure) else self._otherwise(question, solution)

    def _otherwise(self, question: Question, first: LowerSolution) -> LowerSolution:
        """Newton's method on y where this owner's J is not diagonal plus low rank after all, or its method stopped short."""
        start = jnp.where(jnp.isfinite(first.y).all(), first.y, question.warm)
        # where nothing is left to do: side by side both are computed
        wanted = jnp.where(first.converged, jnp.inf, question.tolerance)
        power_steps = jnp.where(first.converged, 0, POWER_STEPS)
        asked = question._replace(tolerance=wanted)
        again = newton_from(asked, start, self.structure.is_gradient, power_steps)
        again = again._replace(iterations=again.iterations + first.iterations)
        return jax.tree.map(partial(jnp.where, first.converged), first, again)


def never_stops_short(structure: LowerStructure) -> bool:
    """Whether J is diagonal plus rank one everywhere: then its method always ends at the solution."""
    return structure.jacobian.parts is not None and structure.jacobian.parts.left.shape[1] == 1


def _refined(question: Question, parts: LowRank, first: LowerSolution) -> LowerSolution:
    """Iterative refinement of a y that is no solution: what it lacks solves the same problem around it, with small numbers.

    Diagonals small beside the coupling cost theta, and y(theta) with it, their digits.
    """
    owner = question.owner

    def unfinished(state: tuple[LowerSolution, Array]) -> Array:
        solution, count = state
        return ~solution.converged & (count < REFINEMENTS)

    def refine(state: tuple[LowerSolution, Array]) -> tuple[LowerSolution, Array]:
        solution, count = state
        lower, upper = (bound - solution.y for bound in owner.limits())
        lacking, steps = solve_box(parts, owner.operator(solution.y), lower, upper, jnp.zeros_like(parts.right[0]))
        y = owner.project(solution.y + lacking)
        return question.certified_directly(y, 1.0 / parts.size(), solution.iterations + steps), count + 1

    return jax.lax.while_loop(unfinished, refine, (first, jnp.zeros((), int)))[0]

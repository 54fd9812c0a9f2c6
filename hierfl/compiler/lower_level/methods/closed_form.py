"""Closed form: the projection of the unconstrained solution."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp

from hierfl.compiler.lower_level.certificate import LowerSolution
from hierfl.compiler.lower_level.methods.method import ExactMethod, Question, Verdict
from hierfl.compiler.lower_level.structure import LowerStructure


class ClosedForm(ExactMethod):
    """The method for an affine F whose Jacobian is a positive multiple of the identity, or a positive diagonal over a box."""

    name: ClassVar[str] = "closed form"
    cost: ClassVar[str] = "one projection"
    at_once: ClassVar[bool] = True

    @classmethod
    def verdict(cls, structure: LowerStructure) -> Verdict:
        pattern = structure.pattern
        separable = pattern.isotropic or (pattern.diagonal and structure.separable_set)
        if structure.affine and pattern.positive and separable:
            return Verdict(True, "a projection of the unconstrained solution: the Hessian is diagonal")
        return Verdict(
            False,
            "needs an affine F with a positive multiple of the identity, or a positive diagonal over a box, as its Jacobian",
        )

    def answer(self, question: Question) -> LowerSolution:
        owner, start = question.owner, question.start
        diagonal, force = owner.multiply(jnp.ones_like(start)), owner.operator(jnp.zeros_like(start))
        curved = diagonal > 0
        flat = jnp.where(force == 0, start, -jnp.sign(force) * jnp.inf)  # an entry without curvature is at a bound
        y = owner.project(jnp.where(curved, -force / jnp.where(curved, diagonal, 1.0), flat))
        y = jnp.where(jnp.isfinite(y), y, start)  # if it has one; else the certificate tells a force from rounding
        steepest = jnp.max(jnp.abs(diagonal))
        step = 1.0 / jnp.where(steepest > 0, steepest, 1.0)
        solution = question.certified_directly(y, step, jnp.zeros((), int))
        # a sign that holds on X only may fail outside, or with other values of parameters
        solved = diagonal >= 0 if self.structure.separable_set else curved
        return solution._replace(converged=solution.converged & jnp.all(solved))

    def unsolved(self, solution: LowerSolution, owner: int) -> str:
        return (
            "its closed form divides by the curvature in y, which is not positive there. Keep it positive, bound y, or take "
            "Exact(method='semismooth Newton')."
        )

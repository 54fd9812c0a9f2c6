"""Closed form: the projection of the unconstrained solution."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

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
        owner, warm = question.owner, question.warm
        diagonal, force = owner.multiply(jnp.ones_like(warm)), owner.operator(jnp.zeros_like(warm))
        curved, steepest = diagonal > 0, jnp.max(jnp.abs(diagonal))
        step = 1.0 / jnp.where(steepest > 0, steepest, 1.0)
        centre = -force / jnp.where(curved, diagonal, 1.0)
        none = jnp.zeros((), int)
        if not self.structure.separable_set:
            solution, solved = question.judged_directly(*_two_steps(question, centre, step), step, none), curved
        else:
            start = jnp.clip(warm, *owner.limits())
            flat = jnp.where(force == 0, start, -jnp.sign(force) * jnp.inf)  # an entry without curvature is at a bound
            y = owner.project(jnp.where(curved, centre, flat))
            y = jnp.where(jnp.isfinite(y), y, start)  # if it has one; else the certificate tells a force from rounding
            solution, solved = question.certified_directly(y, step, none), diagonal >= 0
        # a sign that holds on X only may fail outside, or with other values of parameters
        return solution._replace(converged=solution.converged & jnp.all(solved))

    def unsolved(self, solution: LowerSolution, owner: int) -> str:
        return (
            "its closed form divides by the curvature in y, which is not positive there. Keep it positive, bound y, or take "
            "Exact(method='semismooth Newton')."
        )


def _two_steps(question: Question, centre: Array, step: Array) -> tuple[Array, Array, Array, Array]:
    """(y, F(y), y+, F(y+)) for the projection y of a point and a step from it, in a loop that projects at one place."""

    def trip(ahead: Array, _: None) -> tuple[Array, tuple[Array, Array]]:
        nearest = question.asked.project(ahead)
        force = question.asked.operator(nearest)
        return nearest - step * force, (nearest, force)

    points, forces = jax.lax.scan(trip, centre, length=2)[1]
    return points[0], forces[0], points[1], forces[1]

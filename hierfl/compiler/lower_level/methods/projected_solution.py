"""Projection: y(x) is the projection on Y(x) of the unconstrained solution, however that projection is found."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array

from hierfl.compiler.lower_level.certificate import LowerSolution, certify_direct
from hierfl.compiler.lower_level.methods.method import INEXACT_TOLERANCE, ExactMethod, Question, Verdict
from hierfl.compiler.lower_level.structure import LowerStructure

UNCURVED = (
    "its formula divides by the curvature in y, which is not positive there. Keep it positive, bound y, or take "
    "Exact(method='semismooth Newton')."
)


class ProjectedSolution(ExactMethod):
    """The method for an affine F whose Jacobian is a positive multiple of the identity."""

    name: ClassVar[str] = "projection"
    cost: ClassVar[str] = "one projection on Y(x), and one more to certify it"
    at_once: ClassVar[bool] = True

    @classmethod
    def verdict(cls, structure: LowerStructure) -> Verdict:
        if not (structure.affine and structure.pattern.positive and structure.pattern.isotropic):
            return Verdict(False, "needs an affine F with a positive multiple of the identity as its Jacobian")
        return Verdict(True, "of the unconstrained solution on Y(x): the Jacobian of F is a multiple of the identity")

    @property
    def accuracy(self) -> str:
        return "exactly" if self.structure.exact_projection else f"to {INEXACT_TOLERANCE:g}"

    def answer(self, question: Question) -> LowerSolution:
        diagonal, force, step = divisors(question)
        curved = diagonal > 0
        centre = -force / jnp.where(curved, diagonal, 1.0)
        solution = certify_direct(*_two_steps(question, centre, step), step, jnp.zeros((), int), question.wanted)
        # a sign that holds on X only may fail outside, or with other values of parameters
        return solution._replace(converged=solution.converged & jnp.all(curved))

    def unsolved(self, solution: LowerSolution, owner: int) -> str:
        return UNCURVED


def divisors(question: Question) -> tuple[Array, Array, Array]:
    """(the diagonal of F's Jacobian, F at 0, a step of at most 1 / L)."""
    owner, warm = question.owner, question.warm
    diagonal, force = owner.multiply(jnp.ones_like(warm)), owner.operator(jnp.zeros_like(warm))
    steepest = jnp.max(jnp.abs(diagonal))
    return diagonal, force, 1.0 / jnp.where(steepest > 0, steepest, 1.0)


def _two_steps(question: Question, centre: Array, step: Array) -> tuple[Array, Array, Array, Array]:
    """(y, F(y), y+, F(y+)) for the projection y of a point and a step from it, in a loop that projects at one place."""

    def trip(ahead: Array, _: None) -> tuple[Array, tuple[Array, Array]]:
        nearest = question.asked.project(ahead)
        force = question.asked.operator(nearest)
        return nearest - step * force, (nearest, force)

    points, forces = jax.lax.scan(trip, centre, length=2)[1]
    return points[0], forces[0], points[1], forces[1]

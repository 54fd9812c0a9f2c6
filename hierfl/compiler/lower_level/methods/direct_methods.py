"""Formulas for y(x), where F is affine: the unconstrained solution clipped or projected, and where y is free a linear system."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from hierfl.compiler.lower_level.certificate import LowerSolution, certify_direct
from hierfl.compiler.lower_level.methods.method import INEXACT_TOLERANCE, ExactMethod, Question, Verdict
from hierfl.compiler.lower_level.structure import LowerStructure


def _short_of(solution: LowerSolution, owner: int) -> str:
    """Why a formula's y is none."""
    return (
        f"its formula divides by the curvature in y, which is not positive there, or Y(x) is so badly scaled that rounding leaves a "
        f"residual of {float(solution.residual[owner]):.1e}. Keep the curvature positive, bound y, or take "
        f"Exact(method='semismooth Newton')."
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
        diagonal, force, step = _divisors(question)
        curved = diagonal > 0
        centre = -force / jnp.where(curved, diagonal, 1.0)
        solution = certify_direct(*_two_steps(question, centre, step), step, jnp.zeros((), int), question.wanted)
        # a sign that holds on X only may fail outside, or with other values of parameters
        return solution._replace(converged=solution.converged & jnp.all(curved))

    def unsolved(self, solution: LowerSolution, owner: int) -> str:
        return _short_of(solution, owner)


def _divisors(question: Question) -> tuple[Array, Array, Array]:
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


class ClosedForm(ExactMethod):
    """The method for an affine F whose Jacobian is a positive diagonal, over a box or all of space."""

    name: ClassVar[str] = "closed form"
    cost: ClassVar[str] = "one division and one clipping of each entry"
    at_once: ClassVar[bool] = True

    @classmethod
    def verdict(cls, structure: LowerStructure) -> Verdict:
        if structure.affine and structure.pattern.positive and structure.pattern.diagonal and structure.separable_set:
            clipped = "" if structure.kind == "free" else ", clipped to the bounds"
            return Verdict(True, f"the unconstrained solution{clipped}: the Jacobian of F is diagonal")
        return Verdict(False, "needs an affine F with a positive diagonal as its Jacobian, over a box or all of space")

    def answer(self, question: Question) -> LowerSolution:
        owner, warm = question.owner, question.warm
        diagonal, force, step = _divisors(question)
        curved = diagonal > 0
        start = jnp.clip(warm, *owner.limits())
        flat = jnp.where(force == 0, start, -jnp.sign(force) * jnp.inf)  # an entry without curvature is at a bound
        y = owner.project(jnp.where(curved, -force / jnp.where(curved, diagonal, 1.0), flat))
        y = jnp.where(jnp.isfinite(y), y, start)  # if it has one; else the certificate tells a force from rounding
        solution = question.certified_directly(y, step, jnp.zeros((), int))
        # a sign that holds on X only may fail outside, or with other values of parameters
        return solution._replace(converged=solution.converged & jnp.all(diagonal >= 0))

    def unsolved(self, solution: LowerSolution, owner: int) -> str:
        return _short_of(solution, owner)


SYSTEM_LIMIT = 1000  # scalars of y whose matrix is factorised


class LinearSystem(ExactMethod):
    """The method for an affine F without constraints: its solution of least norm."""

    name: ClassVar[str] = "linear system"
    cost: ClassVar[str] = "a factorisation, O(n^3)"
    at_once: ClassVar[bool] = True

    @classmethod
    def verdict(cls, structure: LowerStructure) -> Verdict:
        if structure.affine and structure.kind == "free" and structure.size <= SYSTEM_LIMIT:
            return Verdict(True, "F is affine and y is unconstrained")
        return Verdict(False, f"needs an affine F, no constraints, and at most {SYSTEM_LIMIT} variables")

    def answer(self, question: Question) -> LowerSolution:
        owner, start = question.owner, question.warm
        matrix = jax.vmap(owner.multiply, in_axes=1, out_axes=1)(jnp.eye(start.size, dtype=start.dtype))
        right = -owner.operator(jnp.zeros_like(start))
        y = _least_norm_solution(matrix, right, self.structure.pattern.symmetric)
        size = jnp.linalg.norm(matrix)
        step = jnp.where(size > 0, 1.0 / jnp.where(size > 0, size, 1.0), 1.0)
        return question.certified_directly(y, step, jnp.zeros((), int))


def _least_norm_solution(matrix: Float[Array, "n n"], right: Float[Array, " n"], symmetric: bool) -> Float[Array, " n"]:
    """The solution of least norm; of a symmetric matrix by its eigenvalues, those of rounding size left out."""
    if not symmetric:
        return jnp.linalg.lstsq(matrix, right)[0]
    values, vectors = jnp.linalg.eigh(0.5 * (matrix + matrix.T))
    cut = jnp.finfo(matrix.dtype).eps * matrix.shape[0] * jnp.abs(values).max()
    safe = jnp.where(jnp.abs(values) > cut, values, jnp.inf)
    return vectors @ ((vectors.T @ right) / safe)

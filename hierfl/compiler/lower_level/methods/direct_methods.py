"""Formulas for y(x), where F is affine: the unconstrained solution clipped or projected, and where y is free a linear system.

Diagonal plus rank one is an equation in one unknown, whatever the size of y: with theta = v'y the problem on a box separates,
y_j = clip(-(q_j + u_j theta) / d_j), and theta - v'y(theta) = 0 is what remains, O(n) a step.
"""

from __future__ import annotations

import math
from functools import partial
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from hierfl.compiler.lower_level.certificate import LowerSolution, certify_direct
from hierfl.compiler.lower_level.jacobian import RankOne, dense
from hierfl.compiler.lower_level.methods.method import INEXACT_TOLERANCE, ExactMethod, Question, Verdict, told_apart
from hierfl.compiler.lower_level.methods.walk import POWER_STEPS, newton_from
from hierfl.compiler.lower_level.structure import LowerStructure
from hierfl.compiler.programs.convex_program import ONE, SEVERAL


class Divided(ExactMethod):
    """A formula that divides by the curvature in y."""

    at_once: ClassVar[bool] = True

    def unsolved(self, solution: LowerSolution, owner: int) -> str:
        return (
            f"its formula divides by the curvature in y, which is not positive there, or Y(x) is so badly scaled that rounding leaves a "
            f"residual of {float(solution.residual[owner]):.1e}. Keep the curvature positive, bound y, or take "
            f"Exact(method='semismooth Newton')."
        )


class ProjectedSolution(Divided):
    """The method for an affine F whose Jacobian is a positive multiple of the identity."""

    name: ClassVar[str] = "projection"
    cost: ClassVar[str] = "one projection on Y(x), and one more to certify it"

    @classmethod
    def verdict(cls, structure: LowerStructure) -> Verdict:
        if not (structure.affine and structure.pattern.positive and structure.pattern.isotropic):
            return Verdict(False, "needs an affine F with a positive multiple of the identity as its Jacobian")
        return Verdict(True, "of the unconstrained solution on Y(x): the Jacobian of F is a multiple of the identity")

    @property
    def accuracy(self) -> str:
        return "exactly" if self.structure.lower_set.is_exact else f"to {INEXACT_TOLERANCE:g}"

    def answer(self, question: Question) -> LowerSolution:
        diagonal, force, step = _divisors(question)
        curved = diagonal > 0
        centre = -force / jnp.where(curved, diagonal, 1.0)
        solution = certify_direct(*_two_steps(question, centre, step), step, 0, question.wanted)
        # a sign that holds on X only may fail outside, or with other values of parameters
        return solution._replace(converged=solution.converged & jnp.all(curved))


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


class ClosedForm(Divided):
    """The method for an affine F whose Jacobian is a positive diagonal, over a box or all of space."""

    name: ClassVar[str] = "closed form"
    cost: ClassVar[str] = "one division and one clipping of each entry"

    @classmethod
    def verdict(cls, structure: LowerStructure) -> Verdict:
        if structure.affine and structure.pattern.positive and structure.pattern.diagonal and structure.separable_set:
            clipped = "" if structure.lower_set.kind == "free" else ", clipped to the bounds"
            return Verdict(True, f"the unconstrained solution{clipped}: the Jacobian of F is diagonal")
        return Verdict(False, "needs an affine F with a positive diagonal as its Jacobian, over a box or all of space")

    def answer(self, question: Question) -> LowerSolution:
        owner = question.owner
        diagonal, force, step = _divisors(question)
        curved, (low, high) = diagonal > 0, owner.limits()
        nearest = jnp.clip(jnp.zeros_like(force), low, high)
        flat = jnp.where(force == 0, nearest, -jnp.sign(force) * jnp.inf)  # an entry without curvature is at a bound
        y = owner.project(jnp.where(curved, -force / jnp.where(curved, diagonal, 1.0), flat))
        y = jnp.where(jnp.isfinite(y), y, nearest)  # if it has one; else the certificate tells a force from rounding
        found = question.certified_directly(y, step)
        # a sign that holds on X only may fail outside, or with other values of parameters
        found = found._replace(converged=found.converged & jnp.all(diagonal >= 0))
        if self.structure.strict:
            return found
        free = (diagonal == 0) & (force == 0) & (low < high)
        ends = jnp.stack([jnp.where(free, end, y) for end in (jnp.maximum(low, y - FAR), jnp.minimum(high, y + FAR))])
        unique = jnp.where(free.any(), SEVERAL, ONE)
        return found._replace(unique=told_apart(unique, y, ends, owner))


FAR = 1.0  # from y, along what has no bound, where others of several solutions are looked at
SYSTEM_LIMIT = 1000  # scalars of y whose matrix is factorised


class LinearSystem(ExactMethod):
    """The method for an affine F without constraints: its solution of least norm."""

    name: ClassVar[str] = "linear system"
    cost: ClassVar[str] = "a factorisation, O(n^3)"
    at_once: ClassVar[bool] = True

    @classmethod
    def verdict(cls, structure: LowerStructure) -> Verdict:
        if structure.affine and structure.lower_set.kind == "free" and structure.size <= SYSTEM_LIMIT:
            return Verdict(True, "F is affine and y is unconstrained")
        return Verdict(False, f"needs an affine F, no constraints, and at most {SYSTEM_LIMIT} variables")

    def answer(self, question: Question) -> LowerSolution:
        owner, start = question.owner, question.warm
        matrix = dense(owner.multiply, start.size, start.dtype)
        right = -owner.operator(jnp.zeros_like(start))
        size = jnp.linalg.norm(matrix)
        step = 1.0 / jnp.where(size > 0, size, 1.0)
        if not self.structure.pattern.symmetric:
            return question.certified_directly(jnp.linalg.lstsq(matrix, right)[0], step)
        y, flat = _least_norm_solution(matrix, right)
        found = question.certified_directly(y, step)
        if self.structure.strict:
            return found
        unique = jnp.where((flat != 0).any(), SEVERAL, ONE)
        return found._replace(unique=told_apart(unique, y, jnp.stack([y + flat, y - flat]), question.owner))


def _least_norm_solution(matrix: Float[Array, "n n"], right: Float[Array, " n"]) -> tuple[Float[Array, " n"], Float[Array, " n"]]:
    """(the solution of least norm, a way to others) of a symmetric matrix, by its eigenvalues, those of rounding size left out."""
    values, vectors = jnp.linalg.eigh(0.5 * (matrix + matrix.T))
    cut = jnp.finfo(matrix.dtype).eps * matrix.shape[0] * jnp.abs(values).max()
    regular = jnp.abs(values) > cut
    y = vectors @ ((vectors.T @ right) / jnp.where(regular, values, jnp.inf))
    return y, vectors @ jnp.where(regular, 0.0, jnp.cos(jnp.arange(1.0, len(right) + 1.0) ** 2)) * (1.0 + jnp.linalg.norm(y))


STEEP = 1e4  # rounding errors of theta that reach v'y are then up to 1e-12 of it
LIMIT = 200  # steps


class DiagonalPlusRankOne(ExactMethod):
    """The method for an affine F over a box, or free, whose Jacobian is diag(d) + u v'."""

    name: ClassVar[str] = "diagonal plus rank one"
    cost: ClassVar[str] = "some steps of O(n)"
    at_once: ClassVar[bool] = True

    @classmethod
    def verdict(cls, structure: LowerStructure) -> Verdict:
        if structure.jacobian.skeleton is None or not (structure.affine and structure.separable_set):
            return Verdict(
                False,
                "needs an affine F over a box (or no constraints) whose Jacobian is diagonal plus rank one, in at least 8 variables",
            )
        otherwise = "" if _is_sure(structure) else "; by Newton's method on y where it is not, or where rounding is in its way"
        return Verdict(True, f"the Jacobian is diagonal plus rank one, over a {structure.lower_set.kind} set{otherwise}")

    def answer(self, question: Question) -> LowerSolution:
        owner, start = question.owner, question.warm
        known = self.structure.rank_one(owner.multiply)
        parts = RankOne(*(jnp.asarray(part, start.dtype) for part in known))
        limits = owner.limits()
        theta = parts.right @ jnp.clip(start, *limits)
        y, iterations = solve_box(parts, owner.operator(jnp.zeros_like(start)), *limits, theta)
        solution = question.certified_directly(y, 1.0 / parts.size(), iterations)
        return solution if _is_sure(self.structure) else self._otherwise(question, solution)

    def _otherwise(self, question: Question, first: LowerSolution) -> LowerSolution:
        """Newton's method on y where this owner's J is not diagonal plus rank one after all, or theta too coarse an unknown."""
        start = jnp.where(jnp.isfinite(first.y).all(), first.y, question.warm)
        # where nothing is left to do: side by side both are computed
        wanted = jnp.where(first.converged, jnp.inf, question.tolerance)
        power_steps = jnp.where(first.converged, 0, POWER_STEPS)
        asked = question._replace(tolerance=wanted)
        again = newton_from(asked, start, self.structure.is_gradient, power_steps)
        again = again._replace(iterations=again.iterations + first.iterations)
        return jax.tree.map(partial(jnp.where, first.converged), first, again)


def _is_sure(structure: LowerStructure) -> bool:
    """Whether J is diagonal plus rank one everywhere, and theta as good an unknown as y."""
    return structure.jacobian.parts is not None and structure.jacobian.steepness <= STEEP


class Response(NamedTuple):
    """y(theta) = clip(-(q + u theta) / d) on a box, and the residual theta - v'y(theta); a monotone J makes its zero unique."""

    parts: RankOne
    inverse: Array  # of d
    q: Array
    lower: Array
    upper: Array

    def unbounded(self, theta: Array) -> Array:
        """y(theta) without the box."""
        return -(self.q + self.parts.left * theta) * self.inverse

    def residual(self, theta: Array) -> tuple[Array, Array]:
        """theta - v'y(theta), and what rounding alone makes of its size."""
        reached = self.parts.right @ jnp.clip(self.unbounded(theta), self.lower, self.upper)
        rounded = 8 * self.parts.steepness() * jnp.abs(theta)
        units = (8 + math.sqrt(self.q.size)) * (jnp.abs(theta) + jnp.abs(reached)) + rounded  # reached is a sum of n terms
        return theta - reached, jnp.finfo(theta.dtype).eps * units

    def newton_step(self, theta: Array, value: Array) -> Array:
        """The step that the slope of the residual at theta asks for."""
        _, u, v = self.parts
        raw = self.unbounded(theta)
        free = jnp.where((raw > self.lower) & (raw < self.upper), self.inverse, 0.0)
        return value / (1.0 + jnp.sum(v * free * u))


def solve_box(
    parts: RankOne, q: Float[Array, " n"], lower: Float[Array, " n"], upper: Float[Array, " n"], start: Float[Array, ""]
) -> tuple[Float[Array, " n"], Array]:
    """(y, steps): 0 in q + J y + N(y) over a box, from a theta: Newton's steps within a bracket, which every third step halves.

    A rounding of theta moves v'y by sum |u v / d| of it; hence a last step in y itself. The caller's certificate says how well
    the zero was met.
    """
    answer = Response(parts, 1.0 / parts.diagonal, q, lower, upper)

    def unfinished(state: tuple[Array, ...]) -> Array:
        *_, known, done = state
        return ~done & (known[2] < LIMIT)

    def advance(state: tuple[Array, ...]) -> tuple[Array, ...]:
        theta, value, known, _ = state
        low, high = jnp.where(value < 0, theta, known[0]), jnp.where(value > 0, theta, known[1])
        full, middle = theta - answer.newton_step(theta, value), 0.5 * (low + high)
        inside = (full > low) & (full < high) & (known[2] % 3 != 2)
        new = jnp.where(inside | ~jnp.isfinite(middle), full, middle)
        new_value, rounding = answer.residual(new)
        done = ~(jnp.abs(new_value) > rounding) | (new == low) | (new == high)  # NaN ends it as well
        return new, new_value, jnp.stack([low, high, known[2] + 1]), done

    value, rounding = answer.residual(start)
    # the bracket and the steps are one array, since every array that a loop begins with costs as much as a sum over y
    known, done = jnp.array([-jnp.inf, jnp.inf, 0.0], start.dtype), ~(jnp.abs(value) > rounding)
    first: tuple[Array, ...] = start, value, known, done
    theta, value, known, _ = jax.lax.while_loop(unfinished, advance, first)
    # a last correction, too small for theta's own digits but not for those of q + u theta; anything larger comes of a singular J
    last = answer.newton_step(theta, value)
    small = jnp.abs(last) <= 1e3 * jnp.finfo(theta.dtype).eps * jnp.abs(theta)
    correction = parts.left * jnp.where(small, last, 0.0) * answer.inverse
    return jnp.clip(answer.unbounded(theta) + correction, lower, upper), known[2].astype(int)

"""Solving 0 in F(y) + N_Y(y) by a semismooth Newton method, safeguarded by first-order steps.

The unknown is z of the normal map G(z) = (z - P(z)) / s + F(P(z)), y = P(z), with s about 1 / L: unscaled maps may cycle. With
D = DP(z) and H = DF(y) a Newton step solves (H D + (I - D) / s) dz = -G. In v = D dz this is (I - D + s D H) v = -s D G, and
dz = v - s (G + H v). For gradients v = D u makes it symmetric and positive, (D - D^2 + s D H D) u = -s D G, so that conjugate
gradients solve it from products alone (Milzarek and Ulbrich, 2014); small systems are solved densely, other maps by GMRES.

A Newton step counts if it halves |G|, which bounds the natural residual. A few that do not may lead to one that does, since |G|
may grow while the active set settles; else some steps of the safeguard are taken from the best point, so that the method is never
much worse than its safeguard and needs no line search (a watchdog: Chamberlain, Powell, Lemarechal and Pedersen, 1982).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jax.scipy.sparse.linalg import cg, gmres
from jaxtyping import Bool, Float, Int

from hierfl.compiler.lower_level.certificate import LowerSolution, Map, target
from hierfl.compiler.lower_level.methods.first_order_steps import (
    AcceleratedSteps,
    ExtragradientSteps,
    Extrapolated,
    Halfway,
)
from hierfl.compiler.lower_level.methods.method import IterativeMethod, Question, Verdict
from hierfl.compiler.lower_level.methods.walk import POWER_STEPS, Iteration, Onward, if_wanted, one_of_two, walked
from hierfl.compiler.lower_level.structure import LowerStructure

DENSE_LIMIT = 64
LIMIT = 200
PATIENCE = 3  # Newton steps that may fail to count, one after another
SAFE_STEPS = 50
ROUGHLY = 3  # power steps
KRYLOV_STEPS = 400


class SemismoothNewton(IterativeMethod):
    """The method for smooth maps F over sets with an exact projection."""

    name: ClassVar[str] = "semismooth Newton"
    cost: ClassVar[str] = "some Newton steps; each takes tens of products with the Hessian, of the cost of a gradient"

    @classmethod
    def verdict(cls, structure: LowerStructure) -> Verdict:
        if structure.obstacle is not None:
            return Verdict(False, structure.obstacle)
        how = "Newton-CG" if structure.kind == "free" and structure.is_gradient else "on the normal map"
        safeguard = "accelerated gradient" if structure.is_gradient else "extragradient"
        return Verdict(True, f"F is smooth and Y(x) has an exact projection ({how}); safeguarded by {safeguard}")

    def answer(self, question: Question) -> LowerSolution:
        # where nothing is projected, Newton steps are the same whatever s is: a rough one will do
        steps = ROUGHLY if self.structure.kind == "free" else POWER_STEPS
        return newton_from(question, question.warm, self.structure.is_gradient, steps)


def newton_from(
    question: Question, start: Array, gradient: bool, power_steps: Array | int = POWER_STEPS
) -> LowerSolution:
    """The solution of a question by Newton's method, from a start of its own; ``gradient`` says whether F is one."""
    rule = AcceleratedSteps if gradient else ExtragradientSteps
    safeguard = rule(question.mu, question.tolerance, SAFE_STEPS)
    newton = NewtonSteps(safeguard, question.owner.operator, gradient, question.mu, question.tolerance)
    return walked(question, newton, start, power_steps)


class Safeguarded(NamedTuple):
    """A stand of Newton's method: the best y with F there, and ``error``, |G| at the z that it comes from.

    The point ahead is a trial z where ``newton`` is set, ``failed`` of which have not counted since the best, else it is the
    safeguard's. A ``fresh`` trial, that of the first z or the first after the safeguard, counts whatever its error.
    """

    y: Float[Array, " size"]
    force: Float[Array, " size"]
    step: Float[Array, ""]
    error: Float[Array, ""]
    newton: Bool[Array, ""]
    fresh: Bool[Array, ""]
    failed: Int[Array, ""]
    safe: Extrapolated | Halfway
    taken: Int[Array, ""]


@dataclass(frozen=True)
class NewtonSteps(Iteration[Safeguarded]):
    """Semismooth Newton steps on the normal map, or those of the ``safeguard`` for a while after a trial that failed."""

    safeguard: Iteration[Any]
    operator: Map
    symmetric: bool
    mu: Array
    tolerance: Array | float

    def begin(self, y: Array, force: Array, step: Array) -> Safeguarded:
        yes, none, error = jnp.ones((), bool), jnp.zeros((), int), jnp.full((), jnp.inf, y.dtype)
        return Safeguarded(y, force, step, error, yes, yes, none, self.safeguard.begin(y, force, step), none)

    def project(self, project: Map, ahead: Array) -> tuple[Array, Map]:
        return jax.linearize(project, ahead)

    def arrive(self, stand: Safeguarded, nearest: Array) -> tuple[Safeguarded, Array]:
        safe, point = one_of_two(stand.newton, (stand.safe, nearest), self.safeguard.arrive(stand.safe, nearest))
        return stand._replace(safe=safe), point

    def depart(
        self, stand: Safeguarded, ahead: Array, point: Array, force: Array, slope: Map, stepping: Array
    ) -> Onward[Safeguarded]:
        after_trial = self._after_trial(stand, ahead, point, force, slope, stepping)
        after_safe_step = self._after_safe_step(stand, ahead, point, force, stepping)
        return one_of_two(stand.newton, after_trial, after_safe_step)

    def _after_trial(
        self, stand: Safeguarded, ahead: Array, point: Array, force: Array, slope: Map, stepping: Array
    ) -> Onward[Safeguarded]:
        y, best_force, step, best, newton, fresh, failed, _, taken = stand
        g = (ahead - point) / step + force
        error = jnp.linalg.norm(g)
        enough = target(point, force, step, self.mu, self.tolerance)
        good = fresh | (error <= jnp.maximum(0.5 * best, enough))
        # what the safeguard has solved is given a Newton step, which gains digits
        met_at_first = (taken == 0) & (error <= enough)
        last = jnp.where(fresh, met_at_first | ~jnp.isfinite(error), jnp.minimum(error, best) <= enough)
        again = ~last & (good | (jnp.isfinite(error) & (failed < PATIENCE)))
        shrunk = jnp.where(fresh, 1.0, error / best)
        forcing = jnp.clip(0.5 * shrunk**2, 1e-6, 0.1)  # Eisenstat and Walker (1996), choice 2

        def newton_step() -> Array:
            return _newton_step(slope, self.operator, point, g, step, forcing, self.symmetric)

        move = if_wanted(stepping & newton & again, newton_step, jnp.zeros_like(point))
        y, best_force, best = one_of_two(good, (point, force, error), (y, best_force, best))
        failed, taken, no = jnp.where(good, 0, failed + 1), taken + good, jnp.zeros((), bool)
        safe = self.safeguard.begin(y, best_force, step)
        onward = jnp.where(again, ahead + move, y - step * best_force)
        moved = Safeguarded(y, best_force, step, best, again, no, failed, safe, taken)
        return Onward(moved, onward, last | (taken >= LIMIT))

    def _after_safe_step(
        self, stand: Safeguarded, ahead: Array, point: Array, force: Array, stepping: Array
    ) -> Onward[Safeguarded]:
        safe, onward, done = self.safeguard.depart(stand.safe, ahead, point, force, None, stepping)
        best = stand.y, stand.force, stand.step
        y, best_force, step = one_of_two(done, (safe.y, safe.force, safe.step), best)
        taken, none = stand.taken + done, jnp.zeros((), int)
        moved = Safeguarded(y, best_force, step, stand.error, done, done, none, safe, taken)
        return Onward(moved, jnp.where(done, y - step * best_force, onward), taken >= LIMIT)


def _newton_step(
    derivative: Map, operator: Map, point: Array, g: Array, step: Array, forcing: Array, symmetric: bool
) -> Array:
    """dz for the normal map's value g at a point; 0 where it is not finite, which the next trial does not count."""
    right = -step * derivative(g)
    if g.size <= DENSE_LIMIT:
        # pushed forward side by side, in one pass over the data that keeps nothing: linearised first, it would keep every row's slopes
        identity, h = jnp.eye(g.size, dtype=g.dtype), jax.jacfwd(operator)(point)
        d = jax.vmap(derivative, out_axes=1)(identity)
        v = jnp.linalg.solve(identity - d + step * (d @ h), right)
        return _finite(v - step * (g + h @ v))
    hessian = jax.linearize(operator, point)[1]
    if symmetric:

        def product(u: Array) -> Array:
            du = derivative(u)
            return derivative(u - du + step * hessian(du))

        v = derivative(cg(product, right, tol=forcing, maxiter=KRYLOV_STEPS)[0])
    else:

        def mixed(v: Array) -> Array:
            return v - derivative(v - step * hessian(v))

        v = gmres(mixed, right, tol=forcing, restart=30, maxiter=KRYLOV_STEPS // 30)[0]
    return _finite(v - step * (g + hessian(v)))


def _finite(dz: Array) -> Array:
    return jnp.where(jnp.isfinite(dz).all(), dz, 0.0)

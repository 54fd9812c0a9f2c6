"""The certificate of a lower-level solution: how far y can be from y(x), from F and the projection on Y(x) as black boxes.

For y+ = P_Y(y - s F(y)) the vector e = (y - y+)/s + F(y+) - F(y) lies in F(y+) + N_Y(y+); if F is mu-strongly monotone,
||y+ - y*|| <= ||e|| / mu whatever s is, and so ||y - y*|| <= ||y - y+|| + ||e|| / mu. For gradients and s = 1/L the latter is at
most 2 kappa ||y - y*||: ||e|| <= (L - mu) ||y - y+|| and ||y - y+|| <= 2 ||y - y*||.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

Map = Callable[[Array], Array]
TOLERANCE = 1e-9  # of y, relative, that is asked for unless somebody says otherwise
LONG = 1e6  # ||y|| from which its rounding may hide that F is not met, and is no excuse where no modulus is known


class LowerSolution(NamedTuple):
    """A lower-level solution with its evidence; arrays, so that it batches.

    ``residual`` is the natural residual ``||y - P_Y(y - F(y))||`` (an upper bound of it where y takes no iterations; CVXPY's: that
    of the optimality conditions, or NaN); ``error_bound`` bounds ``||y - y(x)||`` (infinity when no modulus of strong monotonicity
    is known, NaN from a method that tells it only ``with_bounds``); ``converged`` says whether the tolerance was met, ``empty`` that Y(x) is empty as far as the method has found out,
    ``unique`` whether there is no other solution (1), there are others (0), or that is not known (-1; -2 where the map is not monotone).
    """

    y: Float[Array, " size"]
    residual: Float[Array, ""]
    error_bound: Float[Array, ""]
    strong_convexity: Float[Array, ""]
    iterations: Int[Array, ""]
    converged: Bool[Array, ""]
    empty: Bool[Array, ""] | bool = False
    unique: Int[Array, ""] | int = -1


class Wanted(NamedTuple):
    """What a certificate goes by: the modulus ``mu``, 0 where unknown, the tolerance that is asked for, and the projection.

    ``condition`` is that of the projection: what it makes of a rounding error in its data.
    """

    mu: Array
    tolerance: Array | float
    exact_projection: bool
    condition: Array | float = 1.0

    def error_of(self, length: Array) -> Array:
        """What a vector of F + N of this length proves of the distance to the solution."""
        return length / jnp.where(self.mu > 0, self.mu, 1.0)


class Judgement(NamedTuple):
    """The optimality conditions of a y, evaluated anew on the data of whoever holds them, whatever gave the y and said of it.

    ``residual`` is the natural residual, or ``||y - prox(y)||`` where the objective is not smooth in y or Y(x) has no exact projection:
    0 at solutions alone, and NaN where it cannot be evaluated; ``error_bound`` bounds ``||y - y(x)||`` (infinity where nothing is proved).
    """

    residual: Any
    error_bound: Any

    @classmethod
    def of_step(
        cls, y: Array, operator: Map, project: Map, mu: Array, exact_projection: bool, condition: Array
    ) -> Judgement:
        """From F and P_Y, by a projected step of length one and F at its end."""
        force = operator(y)
        ahead = project(y - force)
        wanted = Wanted(mu, TOLERANCE, exact_projection, condition)
        found = certify_direct(y, force, ahead, operator(ahead), jnp.ones((), y.dtype), 0, wanted)
        return cls.known(found.residual, found.error_bound)

    @classmethod
    def of_proximal_step(cls, y: Array, nearest: Array, mu: Array) -> Judgement:
        """From z = prox(y), which has y - z among its slopes, so that ||z - y(x)|| <= ||y - z|| / mu."""
        residual, rounding = jnp.linalg.norm(y - nearest), 4 * jnp.finfo(y.dtype).eps * jnp.linalg.norm(y)
        bound = (residual + rounding) * (1.0 + 1.0 / jnp.where(mu > 0, mu, 1.0))
        return cls.known(residual, jnp.where(mu > 0, bound, jnp.inf))

    @classmethod
    def known(cls, residual: Array, error_bound: Array | float = jnp.inf) -> Judgement:
        """Where a number is not finite, nothing is known: F or the projection is not defined there."""
        known = jnp.isfinite(residual)
        bound = jnp.where(known & ~jnp.isnan(error_bound), error_bound, jnp.inf)
        return cls(jnp.where(known, residual, jnp.nan), bound)


class Evidence(NamedTuple):
    """What projected steps from an approximate solution show, one look after another: ``looks`` counts them.

    The first ends at ``final``, the y that is certified, with F there and an element of F + N_Y of length ``error``; the second
    bounds the distance of ``final`` to the solution again; the third is the natural ``residual``, and the last one.
    """

    final: Float[Array, " size"]
    force: Float[Array, " size"]
    error: Float[Array, ""]
    second: Float[Array, ""]
    residual: Float[Array, ""]
    looks: Int[Array, ""]

    @classmethod
    def none(cls, like: Float[Array, " size"]) -> Evidence:
        """Before the first look."""
        zero = jnp.zeros((), like.dtype)
        return cls(like, like, zero, zero, zero, jnp.zeros((), int))

    @property
    def complete(self) -> Bool[Array, ""]:
        return self.looks == 3

    def looked(self, ahead: Array, nearest: Array, force: Array, step: Array, wanted: Wanted) -> tuple[Evidence, Array]:
        """The evidence after one more look (P_Y of the point ahead, and F there), and what the next look projects.

        Whatever led to the point ahead, (ahead - nearest) / step lies in N_Y(nearest); with F there it is the vector e.
        """
        first = self.looks == 0
        error = jnp.linalg.norm((ahead - nearest) / step + force)
        moved = jnp.linalg.norm(self.final - nearest)
        final, final_force = jnp.where(first, nearest, self.final), jnp.where(first, force, self.force)
        evidence = Evidence(
            final,
            final_force,
            jnp.where(first, error, self.error),
            # of the end of a second step: at most 2 kappa times the truth if s = 1 / L
            jnp.where(self.looks == 1, moved + wanted.error_of(error), self.second),
            moved,
            self.looks + 1,
        )
        return evidence, final - jnp.where(first, step, 1.0) * final_force

    def judged(self, step: Array, iterations: Any, wanted: Wanted) -> LowerSolution:
        bound = jnp.minimum(wanted.error_of(self.error), self.second)
        return _judged(self.final, self.force, self.residual, self.error, bound, step, iterations, wanted)


def certify_direct(
    y: Array, force: Array, ahead: Array, force_ahead: Array, step: Array, iterations: Any, wanted: Wanted
) -> LowerSolution:
    """The evidence for a y that needs no further step; F is affine, s <= 1 / L.

    ``ahead`` is y+ = P_Y(y - s F(y)). With F at y alone it tells whether the tolerance is met: then e = (I / s - J)(y - y+), and
    a monotone J makes it no longer than sqrt(2) ||y - y+|| / s. As long as nobody asks for the error bound, F at y+ is not
    computed.
    """
    moved = jnp.linalg.norm(y - ahead)
    residual = jnp.maximum(1.0, 1.0 / step) * moved  # a longer step moves no less, and no more than in proportion
    bound = moved + wanted.error_of(jnp.linalg.norm((y - ahead) / step + force_ahead - force))
    return _judged(y, force, residual, math.sqrt(2.0) * moved / step, bound, step, iterations, wanted)


def _judged(
    y: Array, force: Array, residual: Array, error: Array, bound: Array, step: Array, iterations: Any, wanted: Wanted
) -> LowerSolution:
    """Rounding added to a bound on ||y - y(x)||, and the tolerance held against ||e||."""
    mu, tolerance, length, pull = wanted.mu, wanted.tolerance, jnp.linalg.norm(y), jnp.linalg.norm(force)
    rounding = wanted.condition * length + wanted.error_of(length / step + pull)
    proved = (mu > 0) & wanted.exact_projection
    bound = jnp.where(proved, bound + 4 * jnp.finfo(y.dtype).eps * rounding, jnp.inf)
    # where rows are nearly dependent, what rounding in their data makes of a projection is no fault of y's
    excused = jnp.where(mu > 0, length, jnp.minimum(length, LONG))  # a longer y without a modulus is on its way to infinity, or in other units
    floor = _rounding_floor(y.dtype, excused, pull, step) + 4 * jnp.finfo(y.dtype).eps * wanted.condition * excused / step
    met = jnp.where(
        mu > 0,
        error <= jnp.maximum(mu * tolerance * (1.0 + length), floor),
        step * error <= jnp.maximum(tolerance * _bounded_scale(length), step * floor),
    )
    return LowerSolution(y, residual, bound, mu, jnp.asarray(iterations), met)


def target(y: Float[Array, " size"], force: Array, step: Array, mu: Array, tolerance: Array | float) -> Array:
    """The ``||y - P(y - s F(y))|| / s`` at which an iteration may stop, so that the certificate meets the tolerance."""
    length, pull = jnp.linalg.norm(y), jnp.linalg.norm(force)
    wanted = 0.2 * tolerance * jnp.where(mu > 0, mu * (1.0 + length), _bounded_scale(length) / step)
    return jnp.maximum(wanted, 0.5 * _rounding_floor(y.dtype, length, pull, step))


def _bounded_scale(length: Array) -> Array:
    """1 + ||y||, but at most 1000: iterates that run off to infinity must never look converged."""
    return 1.0 + jnp.minimum(length, 999.0)


def _rounding_floor(dtype: Any, length: Array, pull: Array, step: Array) -> Array:
    """What rounding alone makes of the residual, from ||y|| and ||F(y)||: nothing below it can be asked for."""
    return 32 * jnp.finfo(dtype).eps * (length / step + pull)


class Evaluation(NamedTuple):
    """The implicit function at one x; ``value`` is oriented for minimisation, ``solution`` and ``gap`` are per owner."""

    value: Float[Array, ""]
    server: Float[Array, ""]
    clients: Float[Array, " m"]
    solution: LowerSolution | None
    gap: Float[Array, " owners"]

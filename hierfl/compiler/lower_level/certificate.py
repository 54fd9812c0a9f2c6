"""The certificate of a lower-level solution: how far y can be from y(x), from F and the projection on Y(x) as black boxes.

For y+ = P_Y(y - s F(y)) the vector e = (y - y+)/s + F(y+) - F(y) lies in F(y+) + N_Y(y+); if F is mu-strongly monotone,
||y+ - y*|| <= ||e|| / mu whatever s is, and so ||y - y*|| <= ||y - y+|| + ||e|| / mu. For gradients and s = 1/L the latter is at
most 2 kappa ||y - y*||: ||e|| <= (L - mu) ||y - y+|| and ||y - y+|| <= 2 ||y - y*||.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Bool, Float, Int

Map = Callable[[Array], Array]
TOLERANCE = 1e-9  # of y, relative, that is asked for unless somebody says otherwise


class LowerSolution(NamedTuple):
    """A lower-level solution with its evidence; arrays, so that it batches.

    ``residual`` is the natural residual ``||y - P_Y(y - F(y))||`` (an upper bound of it where y takes no iterations; CVXPY's: that
    of the optimality conditions, or NaN); ``error_bound`` bounds ``||y - y(x)||`` (infinity when no modulus of strong monotonicity
    is known); ``converged`` says whether the tolerance was met, ``empty`` that Y(x) is empty as far as the method has found out,
    ``unique`` whether there is no other solution (1), there are others (0), or that is not known (-1).
    """

    y: Float[Array, " size"]
    residual: Float[Array, ""]
    error_bound: Float[Array, ""]
    strong_convexity: Float[Array, ""]
    iterations: Int[Array, ""]
    converged: Bool[Array, ""]
    empty: Bool[Array, ""] | bool = False
    unique: Int[Array, ""] | int = -1


def certify(
    operator: Map,
    project: Map,
    y: Float[Array, " size"],
    step: Float[Array, ""],
    mu: Float[Array, ""],
    iterations: Any,
    tolerance: Array | float,
    exact_projection: bool,
    condition: Array | float = 1.0,
) -> LowerSolution:
    """One last projected step and the evidence for its result; ``mu`` is 0 where unknown.

    ``condition`` is that of the projection: what it makes of a rounding error in its data.
    """

    def look(carry: tuple[Array, Array], place: Array) -> tuple[tuple[Array, Array], tuple[Array, Array, Array]]:
        """F at a point, and the projected step from it; the third projection is the natural residual's."""
        point, unit = carry
        force = operator(point)
        ahead = jnp.where(place < 2, point - step * force, unit)
        nearest = project(ahead)
        return (nearest, point - force), (point, force, nearest)

    seen = jax.lax.scan(look, (y, y), jnp.arange(3))[1]  # F is compiled once
    points, forces, nearest = seen
    final, again, final_force, safe = points[1], points[2], forces[1], jnp.where(mu > 0, mu, 1.0)
    error = jnp.linalg.norm((y - final) / step + final_force - forces[0])
    residual = jnp.linalg.norm(final - nearest[2])
    # a second step bounds the error of the first one's end again: by at most 2 kappa times the truth if s = 1 / L
    moved = jnp.linalg.norm(final - again)
    second = moved + jnp.linalg.norm((final - again) / step + forces[2] - final_force) / safe
    bound = jnp.where(exact_projection, jnp.minimum(error / safe, second), jnp.inf)
    return _judged(final, final_force, residual, error, bound, step, mu, iterations, tolerance, condition)


def certify_direct(
    operator: Map,
    project: Map,
    y: Float[Array, " size"],
    step: Float[Array, ""],
    mu: Float[Array, ""],
    iterations: Any,
    tolerance: Array | float,
    exact_projection: bool,
    condition: Array | float = 1.0,
) -> LowerSolution:
    """The evidence for a y that needs no further step, called as ``certify`` is; F is affine and s <= 1 / L.

    One look at F tells whether the tolerance is met: then e = (I / s - J)(y - y+), and a monotone J makes it no longer than
    sqrt(2) ||y - y+|| / s. As long as nobody asks for the error bound, its second look at F is not computed.
    """
    force = operator(y)
    ahead = project(y - step * force)
    moved = jnp.linalg.norm(y - ahead)
    residual = (
        jnp.maximum(1.0, 1.0 / step) * moved
    )  # a longer step of a projection moves no less, and no more than in proportion
    error = jnp.linalg.norm((y - ahead) / step + operator(ahead) - force)
    bound = jnp.where(exact_projection, moved + error / jnp.where(mu > 0, mu, 1.0), jnp.inf)
    return _judged(y, force, residual, math.sqrt(2.0) * moved / step, bound, step, mu, iterations, tolerance, condition)


def _judged(
    y: Float[Array, " size"],
    force: Float[Array, " size"],
    residual: Array,
    error: Array,
    bound: Array,
    step: Float[Array, ""],
    mu: Float[Array, ""],
    iterations: Any,
    tolerance: Array | float,
    condition: Array | float,
) -> LowerSolution:
    """Rounding added to a bound on ||y - y(x)||, and the tolerance held against ||e||."""
    length, known, safe = jnp.linalg.norm(y), mu > 0, jnp.where(mu > 0, mu, 1.0)
    rounding = condition * length + (length / step + jnp.linalg.norm(force)) / safe
    bound = jnp.where(known, bound + 4 * jnp.finfo(y.dtype).eps * rounding, jnp.inf)
    floor = _rounding_floor(y, force, step)
    met = jnp.where(
        known,
        error <= jnp.maximum(mu * tolerance * (1.0 + length), floor),
        step * error <= jnp.maximum(tolerance * _bounded_scale(y), step * floor),
    )
    return LowerSolution(y, residual, bound, mu, jnp.asarray(iterations), met)


def target(y: Float[Array, " size"], force: Array, step: Array, mu: Array, tolerance: Array | float) -> Array:
    """The ``||y - P(y - s F(y))|| / s`` at which an iteration may stop, so that the certificate meets the tolerance."""
    wanted = 0.2 * tolerance * jnp.where(mu > 0, mu * (1.0 + jnp.linalg.norm(y)), _bounded_scale(y) / step)
    return jnp.maximum(wanted, 0.5 * _rounding_floor(y, force, step))


def _bounded_scale(y: Array) -> Array:
    """1 + ||y||, but at most 1000: iterates that run off to infinity must never look converged."""
    return 1.0 + jnp.minimum(jnp.linalg.norm(y), 999.0)


def _rounding_floor(y: Float[Array, " size"], force: Array, step: Array) -> Array:
    """What rounding alone makes of the residual: nothing below it can be asked for."""
    return 32 * jnp.finfo(y.dtype).eps * (jnp.linalg.norm(y) / step + jnp.linalg.norm(force))

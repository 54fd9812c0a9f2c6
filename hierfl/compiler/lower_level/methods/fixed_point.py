"""Solving 0 in F(y) + N_Y(y) to a residual, with F and the projection on Y as black boxes; and the certificate.

Two iterations: accelerated projected gradient with gradient restart (O'Donoghue and Candes, 2015) where F is a gradient
(or a symmetric affine map), and extragradient (Korpelevich, 1976) for other monotone maps. Neither needs a Lipschitz
constant: the step starts from a power iteration and shrinks when the observed differences of F ask for it.

The certificate needs none either. For y+ = P_Y(y - s F(y)) the vector e = (y - y+)/s + F(y+) - F(y) lies in
F(y+) + N_Y(y+); if F is mu-strongly monotone, ||y+ - y*|| <= ||e|| / mu whatever s is, and so
||y - y*|| <= ||y - y+|| + ||e|| / mu. For gradients and s = 1/L the latter is at most 2 kappa ||y - y*||: ||e|| <= (L - mu) ||y - y+||
and ||y - y+|| <= 2 ||y - y*||.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from hierfl.compiler.expressions.program import Array

Map = Callable[[Array], Array]
POWER_STEPS = 15


class LowerSolution(NamedTuple):
    """A lower-level solution with its evidence; arrays, so that it batches.

    ``residual`` is the natural residual ``||y - P_Y(y - F(y))||`` (an upper bound of it where y takes no iterations; CVXPY's: that
    of the optimality conditions, or NaN); ``error_bound`` bounds ``||y - y(x)||`` (infinity when no modulus of strong monotonicity
    is known); ``converged`` says whether the tolerance was met.
    """

    y: Array
    residual: Array
    error_bound: Array
    strong_convexity: Array
    iterations: Array
    converged: Array


def certify(
    operator: Map,
    project: Map,
    y: Array,
    step: Array,
    mu: Array,
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
    y: Array,
    step: Array,
    mu: Array,
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
    y: Array,
    force: Array,
    residual: Array,
    error: Array,
    bound: Array,
    step: Array,
    mu: Array,
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


def accelerated(
    operator: Map,
    project: Map,
    start: Array,
    force: Array,
    step: Array,
    mu: Array,
    tolerance: Array | float,
    limit: int,
) -> tuple[Array, Array, Array]:
    """Accelerated projected gradient with restart, from a start and F there; returns (y, step, iterations)."""

    def unfinished(state: tuple[Array, ...]) -> Array:
        *_, count, done = state
        return (count < limit) & ~done

    def advance(state: tuple[Array, ...]) -> tuple[Array, ...]:
        y, ahead, momentum, step, last, last_force, count, _ = state
        force = operator(ahead)
        step = _safe_step(step, ahead - last, force - last_force)
        new = project(ahead - step * force)
        gap = jnp.linalg.norm(ahead - new)
        done = gap / step <= target(new, force, step, mu, tolerance)
        restart = jnp.vdot(ahead - new, new - y) > 0
        next_momentum = 0.5 * (1 + jnp.sqrt(1 + 4 * momentum**2))
        push = jnp.where(restart, 0.0, (momentum - 1) / next_momentum)
        next_momentum = jnp.where(restart, 1.0, next_momentum)
        return new, new + push * (new - y), next_momentum, step, ahead, force, count + 1, done

    one = jnp.ones((), start.dtype)
    initial: tuple[Array, ...] = (start, start, one, step, start, force, jnp.zeros((), int), jnp.zeros((), bool))
    final = jax.lax.while_loop(unfinished, advance, initial)
    return final[0], final[3], final[6]


def extragradient(
    operator: Map,
    project: Map,
    start: Array,
    force: Array,
    step: Array,
    mu: Array,
    tolerance: Array | float,
    limit: int,
) -> tuple[Array, Array, Array]:
    """Extragradient with a step that shrinks until it is short of 1/L along the way; returns (y, step, iterations).

    Called as ``accelerated`` is; it does not need F at the start.
    """

    def unfinished(state: tuple[Array, ...]) -> Array:
        *_, count, done = state
        return (count < limit) & ~done

    def advance(state: tuple[Array, ...]) -> tuple[Array, ...]:
        y, step, count, _ = state
        force = operator(y)
        half = project(y - step * force)
        half_force = operator(half)
        moved, changed = jnp.linalg.norm(half - y), jnp.linalg.norm(half_force - force)
        short = step * changed <= 0.9 * moved + _tiny(y)
        new = project(y - step * half_force)
        done = moved / step <= target(half, force, step, mu, tolerance)
        shrunk = jnp.where(short, step, jnp.minimum(0.7 * moved / jnp.where(changed > 0, changed, 1.0), 0.7 * step))
        return jnp.where(short, jnp.where(done, half, new), y), shrunk, count + 1, done

    initial: tuple[Array, ...] = (start, step, jnp.zeros((), int), jnp.zeros((), bool))
    final = jax.lax.while_loop(unfinished, advance, initial)
    return final[0], final[1], final[2]


def first_step(operator: Map, start: Array, iterations: Any = POWER_STEPS) -> tuple[Array, Array]:
    """(1/L from a power iteration on F's Jacobian at the start, F there); L from below, hence the later safeguards."""
    probe = jnp.cos(jnp.arange(1, start.size + 1, dtype=start.dtype) ** 2)

    def multiply(_: Any, state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        direction, _, _ = state
        force, image = jax.jvp(operator, (start,), (direction,))
        size = jnp.linalg.norm(image)
        return image / jnp.where(size > 0, size, 1.0), size, force

    first = (probe / jnp.linalg.norm(probe), jnp.zeros((), start.dtype), jnp.zeros_like(start))
    _, size, force = jax.lax.fori_loop(0, iterations, multiply, first)
    length = jnp.linalg.norm(force)
    # F constant here: any step will do
    flat = 100.0 * (1.0 + jnp.linalg.norm(start)) / jnp.where(length > 0, length, 1.0)
    curved = (size * flat > 1e-6) & jnp.isfinite(size)
    return jnp.where(curved, 1.0 / (1.05 * jnp.where(size > 0, size, 1.0)), flat), force


def target(y: Array, force: Array, step: Array, mu: Array, tolerance: Array | float) -> Array:
    """The ``||y - P(y - s F(y))|| / s`` at which an iteration may stop, so that the certificate meets the tolerance."""
    wanted = 0.2 * tolerance * jnp.where(mu > 0, mu * (1.0 + jnp.linalg.norm(y)), _bounded_scale(y) / step)
    return jnp.maximum(wanted, 0.5 * _rounding_floor(y, force, step))


def _bounded_scale(y: Array) -> Array:
    """1 + ||y||, but at most 1000: iterates that run off to infinity must never look converged."""
    return 1.0 + jnp.minimum(jnp.linalg.norm(y), 999.0)


def _rounding_floor(y: Array, force: Array, step: Array) -> Array:
    """What rounding alone makes of the residual: nothing below it can be asked for."""
    return 32 * jnp.finfo(y.dtype).eps * (jnp.linalg.norm(y) / step + jnp.linalg.norm(force))


def _safe_step(step: Array, moved: Array, changed: Array) -> Array:
    """Shrink the step when ||F(a) - F(b)|| shows a Lipschitz constant above 1/step, beyond rounding."""
    distance, difference = jnp.linalg.norm(moved), jnp.linalg.norm(changed)
    violated = step * difference > 1.0001 * distance + _tiny(moved)
    return jnp.where(violated, 0.95 * distance / jnp.where(difference > 0, difference, 1.0), step)


def _tiny(like: Array) -> Array:
    return jnp.asarray(1e-13 if like.dtype == jnp.float64 else 1e-6, like.dtype)

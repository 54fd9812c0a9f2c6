"""Intersections of any sets with exact projections, by accelerated Dykstra sweeps (Boyle and Dykstra, 1986)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from hierfl.projections.norm import norm
from hierfl.projections.projection import Projection

Corrections: TypeAlias = Float[Array, " sets *shape"]
Sweep: TypeAlias = Callable[[Corrections], Corrections]


class SweepState(NamedTuple):
    """The corrections (one per set), where the next sweep starts, and the momentum that took it there."""

    corrections: Corrections
    ahead: Corrections
    momentum: Float[Array, ""]
    residual: Float[Array, ""]
    sweeps: Int[Array, ""]


def project(
    z: Float[Array, "*shape"], projections: Sequence[Projection], tolerance: float, limit: int
) -> tuple[Float[Array, "*shape"], Float[Array, ""]]:
    """The nearest point to ``z`` of the intersection, and its residual.

    One correction per set, whose sum is z - p, is updated in turn until the residual is at most ``tolerance`` or after
    ``limit`` sweeps. A sweep is a step of alternating minimisation on the dual problem; between sweeps the corrections are
    extrapolated as in Chambolle, Tan and Vaiter (2017), afresh whenever the extrapolation opposes the step (O'Donoghue and
    Candes, 2015): from far away plain sweeps move p by one set's size each.

    The residual is the largest of the last sweep's change of the corrections (the point alone may stall: Birgin and Raydan,
    2005) and the point's distances to what the sweep has met of the sets, relative to 1 + ||z||: it stays large when the
    intersection is empty. Slow sweeps change little, so that the error may exceed the residual. Derivatives are those of the
    fixed point, by the same number of linearised sweeps at most.
    """
    size = 1.0 + norm(jax.lax.stop_gradient(z))

    def sweep(corrections: Corrections) -> tuple[Corrections, Corrections]:
        """The corrections updated in turn, and the points of the sets that they lead to."""
        point = z - jnp.sum(corrections, axis=0)
        updated, points = [], []
        for nearest, correction in zip(projections, corrections):
            shifted = point + correction
            point = nearest(shifted)
            updated.append(shifted - point)
            points.append(point)
        return jnp.stack(updated), jnp.stack(points)

    def solve(_: Sweep, start: Corrections) -> tuple[Corrections, Float[Array, ""]]:
        def unfinished(state: SweepState) -> Bool[Array, ""]:
            return (state.residual > tolerance) & (state.sweeps < limit)

        def advance(state: SweepState) -> SweepState:
            new, points = sweep(state.ahead)
            change = new - state.ahead
            momentum = jnp.where(jnp.sum(change * (new - state.corrections)) < 0, 1.0, state.momentum)
            after = (1.0 + jnp.sqrt(1.0 + 4.0 * momentum**2)) / 2.0
            ahead = new + (momentum - 1.0) / after * (new - state.corrections)
            apart = jax.vmap(norm)(points - (z - jnp.sum(new, axis=0)))
            residual = jnp.maximum(norm(change), jnp.max(apart)) / size
            return SweepState(new, ahead, after.astype(z.dtype), residual, state.sweeps + 1)

        infinite = jnp.full((), jnp.inf, z.dtype)
        first = SweepState(start, start, jnp.ones((), z.dtype), infinite, jnp.zeros((), int))
        end = jax.lax.while_loop(unfinished, advance, first)
        return end.corrections, end.residual

    def tangent_solve(linear: Sweep, right: Corrections) -> Corrections:
        tangent: Corrections = jax.lax.custom_linear_solve(linear, right, linearised_sweeps, linearised_sweeps)
        return tangent

    def linearised_sweeps(matvec: Sweep, b: Corrections) -> Corrections:
        """Solve (J - I) q = b by sweeps q <- J q - b; ``matvec`` applies J - I, or its transpose."""
        enough = tolerance * norm(b)

        def unfinished(state: tuple[Corrections, Corrections, Array]) -> Array:
            _, step, count = state
            return (norm(step) > enough) & (count < limit)

        def advance(state: tuple[Corrections, Corrections, Array]) -> tuple[Corrections, Corrections, Array]:
            q, _, count = state
            step = matvec(q) - b
            return q + step, step, count + 1

        return jax.lax.while_loop(unfinished, advance, (-b, -b, jnp.zeros((), int)))[0]

    start = jnp.zeros((len(projections), *z.shape), z.dtype)
    corrections, residual = jax.lax.custom_root(lambda q: sweep(q)[0] - q, start, solve, tangent_solve, has_aux=True)
    return z - jnp.sum(corrections, axis=0), jax.lax.stop_gradient(residual)

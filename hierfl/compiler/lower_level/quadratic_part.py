"""How strongly monotone a lower level is: a safe modulus mu(x, party) from its quadratic (or affine) part.

By CVXPY's rules every addend of a convex objective is convex by itself, so the Hessian of its quadratic addends alone
bounds the curvature from below. What that Hessian looks like (constant, diagonal, a multiple of the identity,
symmetric) is found on random probes when the problem is compiled; its values are computed where it is used.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.analysis.curvature_bounds import is_quadratic
from hierfl.analysis.enclosure import NOTHING_KNOWN, Known
from hierfl.analysis.hoist import hoist
from hierfl.atoms.algebra import addends
from hierfl.compiler.expressions.program import NO_ROWS, Environment, Program, Rows
from hierfl.compiler.oracles import Oracles
from hierfl.language.levels import LowerLevel, averages_of

DENSE_LIMIT = 400
CONSTANT_DENSE_LIMIT = 2000


@dataclass(frozen=True)
class QuadraticPart:
    """The addends of the lower level that are quadratic (for a mapping: affine) in y, as one program.

    ``complete`` says that nothing else is there: F is affine in y. ``from_data`` says that an average is among them.
    """

    program: Program | None
    gradient_of: float | None  # sign of the objective, or None for a mapping
    complete: bool
    from_data: bool

    def operator(self, oracles: Oracles, x: Array, y: Array, own: Environment, rows: Rows = NO_ROWS) -> Array:
        """The affine map of the quadratic part (a gradient, or the mapping itself)."""
        program, sign = self.program, self.gradient_of
        if program is None:
            return jnp.zeros(oracles.lower.size, x.dtype)
        if sign is None:
            return jnp.concatenate([jnp.ravel(value) for value in program(oracles.environment(x, y, own), rows)])
        return jax.grad(lambda flat: sign * jnp.reshape(program(oracles.environment(x, flat, own), rows)[0], ()))(y)


def quadratic_part(level: LowerLevel, with_data: bool, known: Known = NOTHING_KNOWN) -> QuadraticPart:
    """The quadratic part of a lower level; ``with_data=False`` leaves averages out (a weaker, cheaper bound)."""
    if level.kind == "equilibrium":
        affine = all(e.is_affine() for e in hoist(level.expressions, level.variables, known).expressions)
        from_data = any(True for e in level.expressions for _ in averages_of(e))
        return QuadraticPart(Program(level.expressions) if affine else None, None, affine, from_data)
    terms = addends(level.expression)
    quadratic = [term for term in terms if is_quadratic(hoist([term], level.variables, known).expressions[0])]
    used = quadratic if with_data else [term for term in quadratic if not any(averages_of(term))]
    program = Program([sum(used[1:], start=used[0])]) if used else None
    return QuadraticPart(program, level.sign, len(used) == len(terms), any(True for t in used for _ in averages_of(t)))


@dataclass(frozen=True)
class Pattern:
    """What random probes of the Jacobian of an affine map F showed; ``positive`` is about J times ones (a diagonal J)."""

    diagonal: bool
    isotropic: bool
    symmetric: bool
    positive: bool


def probe(multiply: Any, size: int, seed: int = 0) -> Pattern:
    """The pattern of the linear map ``multiply`` (vector -> vector) from products with random vectors.

    A map that is not diagonal (isotropic, symmetric) is taken for one with probability zero, up to rounding.
    """
    rng = np.random.default_rng(seed)
    u, v = rng.standard_normal((2, size))
    diagonal = np.asarray(multiply(np.ones(size)))
    image_u, image_v = np.asarray(multiply(u)), np.asarray(multiply(v))
    # entry by entry: an off-diagonal entry is negligible only beside the diagonal entries of its row and its column
    is_diagonal = all(
        bool((np.abs(image - diagonal * vector) <= 1e-12 * np.abs(diagonal)).all())
        for vector, image in ((u, image_u), (v, image_v))
    )
    return Pattern(
        diagonal=is_diagonal,
        isotropic=is_diagonal and bool(np.ptp(diagonal) <= 1e-12 * np.abs(diagonal).max()),
        positive=bool((diagonal > 0).all()),
        symmetric=is_diagonal
        or bool(abs(u @ image_v - v @ image_u) <= 1e-12 * np.linalg.norm(u) * np.linalg.norm(image_v)),
    )


def is_symmetric(matrix: np.ndarray) -> bool:
    """Whether opposite entries agree up to the rounding of sums of the diagonal's size."""
    size = np.sqrt(np.abs(np.diagonal(matrix)))
    rounding = 1e-12 * np.maximum(np.outer(size, size), np.maximum(np.abs(matrix), np.abs(matrix.T)))
    return bool((np.abs(matrix - matrix.T) <= rounding).all())


def safe_smallest_eigenvalue(matrix: Array) -> Array:
    """The smallest eigenvalue of the symmetric part, less a bound on the rounding of the eigenvalue solver; at least 0."""
    symmetric = 0.5 * (matrix + matrix.T)
    values = jnp.linalg.eigvalsh(symmetric)
    size = matrix.shape[0]
    return jnp.maximum(values[0] - 8 * size * jnp.finfo(matrix.dtype).eps * jnp.abs(values).max(), 0.0)


def dense(multiply: Any, size: int, dtype: Any = float) -> Array:
    """The matrix of a linear map."""
    return jax.vmap(multiply, in_axes=1, out_axes=1)(jnp.eye(size, dtype=dtype))

"""Convex sets to projections: recognise the pieces, split into independent blocks, choose a closed form for each.

A ``CompiledSet`` lives on the flat decision vector; everything that its bounds, centres and radii depend on comes in
through the environment, so that one compiled projection serves every x, client and sample.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import jax.numpy as jnp
import numpy as np

from hierfl.analysis.hoist import hoist
from hierfl.compiler.block_kinds import Block
from hierfl.compiler.blocks import make_blocks
from hierfl.compiler.cvxpy_set import CvxpyBlock
from hierfl.compiler.pieces import Piece
from hierfl.compiler.program import Array, Program
from hierfl.compiler.recognise import Coefficients, NormBound, Other, coefficients, pieces_of
from hierfl.errors import HierflError
from hierfl.language.text import expression_text

_COMPARE_LIMIT = 100


@dataclass(frozen=True, eq=False)
class CompiledSet:
    """A convex set of flat vectors ``(n,)`` that may move with the environment (leaf id -> array).

    ``kind`` is ``"free"``, ``"box"``, ``"ball"``, ``"halfspace"``, ``"affine"``, ``"simplex"``, ``"cvxpy"`` or
    ``"product of ..."``; ``is_exact`` says that every block has a closed form.
    """

    label: str
    size: int
    blocks: tuple[Block, ...]
    parameters: tuple[cp.Parameter, ...]
    hoisted_program: Program
    depends_on: frozenset[int]
    constraints: tuple[Any, ...]
    variables: tuple[cp.Variable, ...]

    @property
    def kind(self) -> str:
        """Kinds of the blocks."""
        moving = [block for block in self.blocks if len(block.entries)]
        kinds = list(dict.fromkeys(block.kind for block in moving))
        covered = sum(len(block.entries) for block in self.blocks)
        if not kinds:
            return "free"
        if len(moving) == 1 and (covered == self.size or kinds[0] in ("box", "cvxpy")):
            return kinds[0]
        return "product of " + ", ".join([*kinds, *(["free"] if covered < self.size else [])])

    @property
    def is_exact(self) -> bool:
        """Whether every block is projected on in closed form."""
        return all(not isinstance(block, CvxpyBlock) for block in self.blocks)

    @property
    def is_fixed(self) -> bool:
        """Whether the set is the same in every environment."""
        return not self.depends_on

    def values(self, environment: Mapping[int, Any]) -> dict[int, Any]:
        """Values of the hoisted parameters in an environment."""
        return dict(zip((p.id for p in self.parameters), self.hoisted_program(environment)))

    def project(self, z: Array, environment: Mapping[int, Any]) -> Array:
        """The nearest point of the set; where it is empty, see :meth:`gap`."""
        if not self.blocks:
            return z
        values = self.values(environment)
        if len(self.blocks) == 1 and np.array_equal(self.blocks[0].entries, np.arange(self.size)):
            return self.blocks[0].project(z, values).astype(z.dtype)
        for block in self.blocks:
            z = z.at[block.entries].set(block.project(z[block.entries], values).astype(z.dtype))
        return z

    def gap(self, environment: Mapping[int, Any]) -> Array:
        """Positive when the set is empty in this environment."""
        values = self.values(environment)
        gaps = [block.gap(values) for block in self.blocks]
        return jnp.max(jnp.stack([jnp.asarray(g, float) for g in gaps])) if gaps else jnp.asarray(-jnp.inf)

    def explain(self) -> str:
        """One line per block."""
        if not self.blocks:
            return "free (no constraints)"
        return "\n".join(block.explain() for block in self.blocks)

    def verify(self, environment: Mapping[int, Any], seed: int = 0) -> None:
        """Compare with CVXPY at a random point of this environment (small sets) or check the constraints there.

        Raises
        ------
        HierflError
            If they disagree: a defect of hierfl, named with the constraints.
        """
        from hierfl.compiler.cvxpy_set import reference_projection, violation

        if not self.blocks or not self.is_exact or not float(self.gap(environment)) <= 0:
            return
        z = 3 * np.random.default_rng(seed).standard_normal(self.size)
        p = np.asarray(self.project(jnp.asarray(z), environment))
        scale = 1.0 + float(np.linalg.norm(z)) + float(np.linalg.norm(p))
        error = violation(self, p, environment)
        if self.size <= _COMPARE_LIMIT:
            other = reference_projection(self, z, environment)
            if other is not None:
                error = max(
                    error, float(np.linalg.norm(z - p) - np.linalg.norm(z - other)) if np.isfinite(p).all() else np.inf
                )
        if not error <= 1e-5 * scale:
            raise HierflError(
                f"internal error: the {self.kind} projection on {self.label} ({', '.join(map(expression_text, self.constraints))}) is off by "
                f"{error:.1e}. Please report it."
            )


def compile_set(constraints: Sequence[Any], variables: Sequence[cp.Variable], *, label: str) -> CompiledSet:
    """Compile convex constraints on ``variables`` (checked convex before) into a projection.

    Parameters
    ----------
    constraints
        CVXPY constraints; attributes of the variables must be among them explicitly.
    variables
        The decision; its flat vector is each variable in C order, side by side.
    label
        Name of the set in messages.
    """
    size = sum(v.size for v in variables)
    hoisted = hoist(constraints, variables)
    twins = [hoisted.twins[v] for v in variables]
    parameters = tuple(hoisted.parameters)
    pieces: list[Piece] = []
    for original, constraint in zip(constraints, hoisted.expressions):
        if not constraint.variables():
            continue  # nothing about y: a condition on x alone, which the upper level declares
        for found in pieces_of(constraint):
            pieces.append(_compiled_piece(original, constraint, found, twins, parameters, size))
    depends_on = frozenset(
        leaf.id for tree in hoisted.parameters.values() for leaf in [*tree.variables(), *tree.parameters()]
    )
    blocks = make_blocks(pieces, size, twins, parameters)
    return CompiledSet(
        label,
        size,
        tuple(blocks),
        parameters,
        Program([hoisted.parameters[p] for p in parameters]),
        depends_on,
        tuple(constraints),
        tuple(variables),
    )


def _compiled_piece(
    original: Any,
    constraint: Any,
    found: Any,
    twins: Sequence[cp.Variable],
    parameters: Sequence[cp.Parameter],
    size: int,
) -> Piece:
    if isinstance(found, Other):
        return Piece(original, constraint, found, None, None, None, _support(constraint, twins))
    expression = found.argument if isinstance(found, NormBound) else found.expression
    matrix: Coefficients = coefficients(expression, twins, parameters)
    support = np.unique(matrix.matrix.indices)
    if isinstance(found, NormBound):
        if not support.size:
            return Piece(
                original, constraint, Other("a norm that y drops out of"), None, None, None, _support(constraint, twins)
            )
        return Piece(original, constraint, found, matrix, at_zero(expression, twins), _radius(found), support)
    return Piece(original, constraint, found, matrix, at_zero(expression, twins), None, support)


def _radius(found: NormBound) -> Callable[[Mapping[int, Any]], Array]:
    """The bound over the scale; a scale of 0 leaves y free, or nothing at all if the bound is negative."""
    program = Program([found.radius, *([] if found.scale is None else [found.scale])])

    def evaluate(values: Mapping[int, Any]) -> Array:
        radius, *scales = (jnp.reshape(value, ()) for value in program(values))
        if not scales:
            return radius
        scale = scales[0]
        without = jnp.where(radius >= 0, jnp.inf, -jnp.inf)
        return jnp.where(scale > 0, radius / jnp.where(scale > 0, scale, 1.0), without)

    return evaluate


def at_zero(expression: Any, twins: Sequence[cp.Variable]) -> Callable[[Mapping[int, Any], Any], Array]:
    """``(values of the parameters, y) -> expression`` raveled in Fortran order, CVXPY's own; y None is 0."""
    program = Program([expression])
    offsets = np.cumsum([0, *(t.size for t in twins)])

    def evaluate(values: Mapping[int, Any], y: Any = None) -> Array:
        flat = jnp.zeros(int(offsets[-1])) if y is None else y
        decision = {t.id: flat[start:stop].reshape(t.shape) for t, start, stop in zip(twins, offsets, offsets[1:])}
        return jnp.ravel(program({**values, **decision})[0], order="F")

    return evaluate


def _support(constraint: Any, twins: Sequence[cp.Variable]) -> np.ndarray:
    mentioned = {v.id for v in constraint.variables()}
    offsets = np.cumsum([0, *(t.size for t in twins)])
    parts = [np.arange(a, b) for t, a, b in zip(twins, offsets, offsets[1:]) if t.id in mentioned]
    return np.concatenate(parts) if parts else np.zeros(0, int)

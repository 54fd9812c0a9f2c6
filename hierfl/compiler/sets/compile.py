"""Convex constraints to a ``CompiledSet``: recognise the pieces, compile their numbers, choose a projection for each part."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import cvxpy as cp
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from cvxpy.constraints.constraint import Constraint
from cvxpy.expressions.expression import Expression
from jaxtyping import Array, Float

from hierfl.analysis.bounded_terms import AffineRows, Other, terms_of
from hierfl.analysis.enclosure import NOTHING_KNOWN, Known
from hierfl.analysis.hoist import hoist
from hierfl.compiler.expressions.program import Program
from hierfl.compiler.sets.blocks import Block, ConditionBlock, ProgramBlock, choose
from hierfl.compiler.sets.compiled_set import CompiledSet
from hierfl.compiler.sets.components import Member, bands
from hierfl.compiler.sets.families import Membership, membership
from hierfl.compiler.sets.members import (
    AffineMap,
    CompiledMembership,
    CompiledRows,
    Draw,
    EntryBounds,
    Opaque,
    Origin,
    Side,
    Values,
    coefficients,
    product,
    random_draw,
)


def compile_set(
    constraints: Sequence[Constraint], variables: Sequence[cp.Variable], *, label: str, known: Known = NOTHING_KNOWN
) -> CompiledSet:
    """Compile convex constraints on ``variables`` (checked convex before) into a projection.

    Parameters
    ----------
    constraints
        CVXPY constraints; attributes of the variables must be among them explicitly.
    variables
        The decision; its flat vector is each variable in C order, side by side.
    label
        Name of the set in messages.
    known
        Bounds of other leaves, by id.
    """
    hoisted = hoist(constraints, variables, known)
    twins = [hoisted.twins[v] for v in variables]
    parameters = tuple(hoisted.parameters)
    trees = [hoisted.parameters[p] for p in parameters]
    program = Program(trees)
    draws = random_draw(trees, parameters, program, 11), random_draw(trees, parameters, program, 12)
    builder = _Builder(twins, parameters, draws)
    for written, constraint in zip(constraints, hoisted.expressions):
        builder.add(Origin(written, constraint))
    return CompiledSet(
        label,
        builder.size,
        tuple(builder.blocks()),
        parameters,
        program,
        frozenset(leaf.id for tree in trees for leaf in [*tree.variables(), *tree.parameters()]),
        tuple(constraints),
        tuple(variables),
    )


class _Builder:
    """Collects the members of a set, constraint by constraint."""

    def __init__(
        self, twins: Sequence[cp.Variable], parameters: Sequence[cp.Parameter], draws: tuple[Draw, Draw]
    ) -> None:
        self.twins, self.parameters, self.draws = twins, parameters, draws
        self.size = sum(twin.size for twin in twins)
        self.conditions: list[Block] = []
        self.bounds: list[EntryBounds] = []
        self.sides: list[Side] = []
        self.others: list[Member] = []

    def add(self, origin: Origin) -> None:
        """Take the pieces of one constraint apart."""
        for said in terms_of(origin.hoisted):
            if isinstance(said, AffineRows):
                self._add_rows(origin, said)
            elif isinstance(said, Other):
                self._add_opaque(origin, said.reason)
            elif (piece := membership(said)) is not None:
                self._add_membership(origin, piece)
            else:
                self._add_opaque(origin, said.function.refusal)

    def blocks(self) -> list[Block]:
        """The projections; what no rule covers is a program on the host."""
        chosen, left = choose([*bands(self.sides), *self.others], self.bounds)
        return [*self.conditions, *chosen, *([ProgramBlock.of(left, self.twins, self.parameters)] if left else [])]

    def _map(self, expression: Expression, coordinates: sp.csr_array | None = None) -> AffineMap:
        matrix = coefficients(expression, self.twins, self.parameters, self.draws)
        evaluate = _evaluation(expression, self.twins)
        fixed = None if expression.parameters() else _constant(expression, self.twins)
        if coordinates is None:
            return AffineMap(evaluate, matrix, fixed)
        return AffineMap(
            lambda values, y=None: product(coordinates, evaluate(values, y)),
            matrix.mapped(coordinates),
            None if fixed is None else coordinates @ fixed,
        )

    def _add_rows(self, origin: Origin, piece: AffineRows) -> None:
        source = self._map(piece.expression)
        counts = np.diff(source.coefficients.matrix.indptr)
        empty = np.flatnonzero(counts == 0)
        if empty.size and source.fixed is not None:  # conditions that always hold are left out
            b = np.asarray(CompiledRows(source, empty).offsets({}))
            empty = empty[(b != 0) if piece.equality else (b > 0)]
        if empty.size:
            self.conditions.append(ConditionBlock(origin, CompiledRows(source, empty), piece.equality))
        if (counts == 1).any():
            self.bounds.append(EntryBounds(origin, CompiledRows(source, np.flatnonzero(counts == 1)), piece.equality))
        for row in np.flatnonzero(counts > 1):
            self.sides.append(Side(origin, CompiledRows(source, np.array([row])), 1.0, piece.equality))

    def _add_membership(self, origin: Origin, piece: Membership) -> None:
        source = self._map(piece.argument, piece.coordinates)
        radius = None if piece.radius is None else _radius(piece)
        for group, index in enumerate(piece.groups):
            rows = CompiledRows(source, index)
            if not rows.pattern.nnz:
                self._add_opaque(origin, "a norm that y drops out of")
                continue
            self.others.append(CompiledMembership(origin, piece.family, rows, radius, group, piece.squared))

    def _add_opaque(self, origin: Origin, reason: str) -> None:
        mentioned = {v.id for v in origin.hoisted.variables()}
        starts = np.cumsum([0, *(t.size for t in self.twins)])
        parts = [np.arange(a, b) for t, a, b in zip(self.twins, starts, starts[1:]) if t.id in mentioned]
        self.others.append(Opaque.on(origin, reason, np.concatenate(parts), self.size))


def _evaluation(expression: Expression, twins: Sequence[cp.Variable]) -> Callable[..., Array]:
    """``(values of the parameters, y) -> expression`` raveled in Fortran order, CVXPY's own; y None is 0."""
    program = Program([expression])
    starts = np.cumsum([0, *(t.size for t in twins)])

    def evaluate(values: Values, y: Float[Array, " size"] | None = None) -> Float[Array, " rows"]:
        flat = jnp.zeros(int(starts[-1])) if y is None else y
        decision = {t.id: flat[start:stop].reshape(t.shape) for t, start, stop in zip(twins, starts, starts[1:])}
        return jnp.ravel(program({**values, **decision})[0], order="F")

    return evaluate


def _constant(expression: Expression, twins: Sequence[cp.Variable]) -> Float[np.ndarray, " rows"]:
    """The expression at y = 0, by CVXPY: there may be a thousand of them, and to compile one takes 20 ms."""
    for twin in twins:
        twin.save_value(np.zeros(twin.shape))
    value = expression.value
    return np.ravel(value.toarray() if sp.issparse(value) else np.asarray(value, float), order="F")


def _radius(piece: Membership) -> Callable[[Values], Array]:
    """The bound of each group over the scale; a scale of 0 leaves y free, or nothing at all if the bound is negative."""
    program = Program([piece.radius, *([] if piece.scale is None else [piece.scale])])
    count = len(piece.groups)

    def evaluate(values: Values) -> Float[Array, " groups"]:
        radius, *scales = (jnp.broadcast_to(jnp.ravel(value, order="F"), (count,)) for value in program(values))
        if not scales:
            return radius
        scale = scales[0]
        without = jnp.where(radius >= 0, jnp.inf, -jnp.inf)
        return jnp.where(scale > 0, radius / jnp.where(scale > 0, scale, 1.0), without)

    return evaluate

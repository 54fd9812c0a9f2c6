"""``CompiledSet``: the projection on a convex set of flat vectors that may move with x, a client or a sample.

``compile_set`` makes it of convex constraints: recognise the pieces, compile their numbers, choose a projection for each part.
``verify`` holds it against CVXPY: its own evaluation of the constraints, and its own projection.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cvxpy as cp
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from cvxpy.constraints.constraint import Constraint
from cvxpy.expressions.expression import Expression
from jaxtyping import Array, Float

from hierfl.analysis.bounded_terms import AffineRows, Other, terms_of
from hierfl.analysis.conic_solving import status_of
from hierfl.analysis.enclosure import NOTHING_KNOWN, Known
from hierfl.analysis.hoist import hoist, instantiate
from hierfl.compiler import parametric
from hierfl.compiler.expressions.program import Program, sparse_times
from hierfl.compiler.layout import Layout
from hierfl.compiler.programs.cones import NoStandardFormError
from hierfl.compiler.sets.blocks import (
    AffineBlock,
    Block,
    BoxBlock,
    ConditionBlock,
    ImageBlock,
    PolyhedronBlock,
    ProgramBlock,
    choose,
)
from hierfl.compiler.sets.components import Member, bands
from hierfl.compiler.sets.families import Membership, membership
from hierfl.compiler.sets.members import (
    AffineMap,
    Coefficients,
    CompiledMembership,
    CompiledRows,
    Draw,
    EntryBounds,
    Opaque,
    Origin,
    Side,
    Values,
    constraints_text,
    matrix_at,
    random_draw,
)
from hierfl.errors import HierflError
from hierfl.jaxtools.by_numpy.numpy_program import NumpyProgram
from hierfl.jaxtools.cheap_jit import quick_jit, traced_for_numpy
from hierfl.language.printing.text import expression_text

ITERATING = (PolyhedronBlock, ProgramBlock)
HOST_LIMIT = 120  # scalars, for whose matrices the host engine takes about a millisecond


@dataclass(frozen=True, eq=False)
class CompiledSet:
    """A convex set of flat vectors ``(size,)`` that may move with the environment (leaf id -> array).

    The ``blocks`` are projected on in turn; where their entries overlap, their row spaces are orthogonal.
    """

    label: str
    size: int
    blocks: tuple[Block, ...]
    parameters: tuple[cp.Parameter, ...]
    hoisted_program: Program
    depends_on: frozenset[int]
    constraints: tuple[Constraint, ...]
    variables: tuple[cp.Variable, ...]

    @cached_property
    def kind(self) -> str:
        """``"free"``, a family (``"box"``, ``"ball"``, ``"simplex"``, ``"program"``, ...) or ``"product of ..."``."""
        moving = [block for block in self.blocks if len(block.entries)]
        kinds = list(dict.fromkeys(block.kind for block in moving))
        covered = len(np.unique(np.concatenate([b.entries for b in moving]))) if moving else 0
        if not kinds:
            return "free"
        if len(moving) == 1 and (covered == self.size or kinds[0] in ("box", "program")):
            return kinds[0]
        return "product of " + ", ".join([*kinds, *(["free"] if covered < self.size else [])])

    @property
    def is_exact(self) -> bool:
        """Whether every block is projected on exactly, to rounding, so that a certificate may trust it."""
        return not any(isinstance(block, ProgramBlock) for block in self.blocks)

    @cached_property
    def outside(self) -> tuple[str, ...]:
        """The families of its blocks that are not hierfl's own."""
        known = {type(block.family) for block in self.blocks if isinstance(block, ImageBlock)}
        return tuple(sorted(kind.__name__ for kind in known if kind.__module__ != Membership.__module__))

    @cached_property
    def is_direct(self) -> bool:
        """Whether the projection is a formula or one search for a multiplier, not an iteration on several rows or cones."""
        return not any(isinstance(block, ITERATING) for block in self.blocks)

    def values(self, environment: Mapping[int, Any]) -> dict[int, Any]:
        return dict(zip((p.id for p in self.parameters), self.hoisted_program(environment)))

    def project(self, z: Float[Array, " size"], environment: Mapping[int, Any]) -> Float[Array, " size"]:
        """The nearest point of the set; where it is empty, see :meth:`gap`."""
        if traced_for_numpy() and (on_host := self._on_host) is not None:
            return on_host.project(z, self._moving(environment))
        return self._project(z, self.values(environment)) if self.blocks else z

    def point_near(self, z: Float[np.ndarray, " size"], environment: Mapping[int, Any]) -> Float[np.ndarray, " size"]:
        """The nearest point, outside of programs: of a polyhedron by the host engine, for which no search has to be compiled."""
        return np.asarray(self._projected(z, environment))

    def gap(self, environment: Mapping[int, Any]) -> Float[Array, ""]:
        """Positive when the set is empty in this environment."""
        if traced_for_numpy() and (on_host := self._on_host) is not None:
            return on_host.gap(self._moving(environment))
        return self._gap(self.values(environment)) if self.blocks else jnp.asarray(-jnp.inf)

    @property
    def _conditions(self) -> list[ConditionBlock]:
        """What is said of x alone."""
        return [block for block in self.blocks if isinstance(block, ConditionBlock)]

    def condition_gap(self, environment: Mapping[int, Any]) -> Float[Array, ""]:
        """Positive when the set is empty for what is said of x alone."""
        if not self._conditions:
            return jnp.asarray(-jnp.inf)
        values = self.values(environment)
        return jnp.max(jnp.stack([jnp.asarray(block.gap(values), float) for block in self._conditions]))

    def broken_conditions(self, environment: Mapping[int, Any]) -> str:
        """The constraints on x alone that do not hold, in words."""
        values = self.values(environment) if self._conditions else {}
        return constraints_text([block.origin for block in self._conditions if float(block.gap(values)) > 0])

    def has_point(self, environment: Mapping[int, Any]) -> bool:
        return bool(float(quick_jit(self.gap)(environment)) <= 0)

    @cached_property
    def _on_host(self) -> parametric.NearestPoint | None:
        """The projection on a polyhedron by the host engine, which programs that run a few times are quicker with; None for other sets."""
        return self._engine if any(isinstance(block, PolyhedronBlock) for block in self.blocks) else None

    @cached_property
    def _engine(self) -> parametric.NearestPoint | None:
        """The host engine, of a polyhedron that is no box."""
        if self.size <= HOST_LIMIT and self.kind not in ("free", "box"):
            with suppress(NoStandardFormError):
                nearest = parametric.NearestPoint.on(self.constraints, self.variables)
                return nearest if nearest.solver.form.polyhedral else None
        return None

    def _moving(self, environment: Mapping[int, Any]) -> dict[int, Any]:
        return {leaf: environment[leaf] for leaf in sorted(self.depends_on)}

    @cached_property
    def _projected(self) -> Callable[..., Array]:
        engine = self._engine
        return quick_jit(self.project if engine is None else lambda z, at: engine.project(z, self._moving(at)))

    @cached_property
    def _project(self) -> Callable[..., Array]:
        """Traced and lowered once, however often a program calls it: a search inside a Newton method is long."""

        def project(z: Float[Array, " size"], values: Values) -> Float[Array, " size"]:
            for block in self.blocks:
                if np.array_equal(block.entries, np.arange(self.size)):
                    z = block.project(z, values).astype(z.dtype)
                elif len(block.entries):
                    places = block.entries.astype(np.int32)
                    z = z.at[places].set(block.project(z[places], values).astype(z.dtype))
            return z

        return quick_jit(project)

    @cached_property
    def _gap(self) -> Callable[..., Array]:
        def largest(values: Values) -> Float[Array, ""]:
            return jnp.max(jnp.stack([jnp.asarray(block.gap(values), float) for block in self.blocks]))

        return quick_jit(largest)

    def limits(self, environment: Mapping[int, Any]) -> tuple[Float[Array, " size"], Float[Array, " size"]]:
        """(lower, upper) bounds of a set of kind ``"box"`` or ``"free"``."""
        values, lower, upper = self.values(environment), jnp.full(self.size, -jnp.inf), jnp.full(self.size, jnp.inf)
        for block in (block for block in self.blocks if isinstance(block, BoxBlock)):
            low, high = block.limits(values)
            places = block.entries.astype(np.int32)
            lower, upper = lower.at[places].set(low), upper.at[places].set(high)
        return lower, upper

    def condition(self, environment: Mapping[int, Any]) -> Float[Array, ""]:
        """The condition of the equations among the constraints, 1 without: rounding errors grow by it."""
        values = self.values(environment)
        conditions = [block.condition(values) for block in self.blocks if isinstance(block, AffineBlock)]
        return jnp.max(jnp.stack([jnp.ones(()), *conditions]))

    def explain(self) -> str:
        """One line per block."""
        if not self.blocks:
            return "free (no constraints)"
        return "\n".join(block.explain() for block in self.blocks)


def compile_set(
    constraints: Sequence[Constraint], variables: Sequence[cp.Variable], *, label: str, known: Known = NOTHING_KNOWN
) -> CompiledSet:
    """Compile convex constraints on ``variables`` (checked convex before) into a projection; ``known`` bounds other leaves, by id.

    Attributes of the variables must be among the constraints explicitly. The decision's flat vector is each variable in C order, side by side;
    ``label`` names the set in messages.
    """
    hoisted = hoist(constraints, variables, known)
    twins = [hoisted.twins[v] for v in variables]
    parameters, trees = tuple(hoisted.parameters), list(hoisted.parameters.values())
    builder = _Builder(twins, parameters, (random_draw(trees, parameters, 11), random_draw(trees, parameters, 12)))
    for written, constraint in zip(constraints, hoisted.expressions):
        builder.add(Origin(written, constraint))
    return CompiledSet(
        label,
        builder.layout.size,
        tuple(builder.blocks()),
        parameters,
        Program(trees),
        frozenset(leaf.id for tree in trees for leaf in [*tree.variables(), *tree.parameters()]),
        tuple(constraints),
        tuple(variables),
    )


class _Builder:
    """Collects the members of a set, constraint by constraint."""

    def __init__(
        self, twins: Sequence[cp.Variable], parameters: Sequence[cp.Parameter], draws: tuple[Draw, Draw]
    ) -> None:
        self.twins, self.parameters = twins, parameters
        self.draws = [dict(zip((parameter.id for parameter in parameters), draw)) for draw in draws]
        self.layout = Layout(tuple(twins))
        self.places = self.layout.split(np.arange(self.layout.size))
        self.conditions: list[Block] = []
        self.bounds: list[EntryBounds] = []
        self.sides: list[Side] = []
        self.others: list[Member] = []

    def add(self, origin: Origin) -> None:
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
        first = matrix_at(self.draws[0], expression, self.places, self.layout.size)
        moves = bool(expression.parameters())
        matrix = Coefficients((first, matrix_at(self.draws[1], expression, self.places, self.layout.size) if moves else first))
        evaluate = _evaluation(expression, self.layout)
        fixed = None if moves else _constant(expression)
        if coordinates is None:
            return AffineMap(evaluate, matrix, fixed)
        return AffineMap(
            lambda values, y=None: sparse_times(coordinates, evaluate(values, y)),
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
        parts = [np.ravel(own) for leaf, own in self.places.items() if leaf in mentioned]
        self.others.append(Opaque.on(origin, reason, np.concatenate(parts), self.layout.size))


def _evaluation(expression: Expression, layout: Layout) -> Callable[..., Array]:
    """``(values of the parameters, y) -> expression`` raveled in Fortran order, CVXPY's own; y None is 0."""
    program = Program([expression])

    def evaluate(values: Values, y: Float[Array, " size"] | None = None) -> Float[Array, " rows"]:
        decision = layout.split(jnp.zeros(layout.size) if y is None else y)
        return jnp.ravel(program({**values, **decision})[0], order="F")

    return evaluate


def _constant(expression: Expression) -> Float[np.ndarray, " rows"]:
    """The expression at y = 0, by CVXPY: there may be a thousand of them, and to compile one takes 20 ms."""
    for twin in expression.variables():
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


_COMPARE_LIMIT = 100
_SCALES = (3.0, 100.0)  # of the points that are compared
_CONDITION_LIMIT = 1e6  # beyond it the reference, feasible to 1e-8, may be far from the set


def verify(compiled: CompiledSet, environment: Mapping[int, Any]) -> None:
    """Compare with CVXPY at random points of this environment (small sets) or check the constraints there.

    Raises ``HierflError`` if they disagree: a defect of hierfl, or of a family from outside, named with the constraints.
    """
    if not compiled.blocks or not compiled.is_exact:
        return
    if not float(NumpyProgram(compiled.gap, environment)(environment)) <= 0:
        return
    comparable = compiled.size <= _COMPARE_LIMIT
    comparable = comparable and float(NumpyProgram(compiled.condition, environment)(environment)) <= _CONDITION_LIMIT
    project = NumpyProgram(compiled.project, np.zeros(compiled.size), environment)  # by the blocks, as compiled programs have it
    rng = np.random.default_rng(0)
    for scale in _SCALES:
        z = scale * rng.standard_normal(compiled.size)
        p = np.asarray(project(z, environment))
        error = violation(compiled, p, environment) if np.isfinite(p).all() else np.inf
        if comparable:
            other = reference_projection(compiled, z, environment)
            if other is not None:
                error = max(error, float(np.linalg.norm(z - p) - np.linalg.norm(z - other)))
        if not error <= 1e-5 * (1.0 + float(np.linalg.norm(z)) + float(np.linalg.norm(p))):
            on = f"{compiled.label} ({', '.join(map(expression_text, compiled.constraints))}) is off by {error:.1e}"
            if compiled.outside:
                raise HierflError(
                    f"the projection on {on}: {' or '.join(f'{name}.project' for name in compiled.outside)} does not give the nearest point of "
                    f"{{v : d * v in C_radius}}."
                )
            raise HierflError(f"internal error: the {compiled.kind} projection on {on}. Please report it.")


def reference_projection(
    compiled: CompiledSet, z: Float[np.ndarray, " size"], environment: Mapping[int, Any]
) -> Float[np.ndarray, " size"] | None:
    """The projection by CVXPY on freshly instantiated constraints; None where it does not solve."""
    constraints, twins = _instantiated(compiled, environment)
    flat = cp.hstack([cp.reshape(t, (t.size,), order="C") for t in twins])
    problem = cp.Problem(cp.Minimize(cp.sum_squares(flat - z)), constraints)
    return None if status_of(problem) != cp.OPTIMAL else np.asarray(flat.value)


def violation(compiled: CompiledSet, point: Float[np.ndarray, " size"], environment: Mapping[int, Any]) -> float:
    """The largest violation of the constraints at a point, by CVXPY's own evaluation."""
    constraints, twins = _instantiated(compiled, environment)
    Layout(tuple(twins)).assign(point)
    with np.errstate(all="ignore"):  # outside a domain the violation is NaN, which counts as infinite
        violations = [float(np.max(c.violation())) for c in constraints]
    return max((np.inf if np.isnan(v) else v for v in violations), default=0.0)


def _instantiated(compiled: CompiledSet, environment: Mapping[int, Any]) -> tuple[list[Constraint], list[cp.Variable]]:
    """The constraints without x or data, and their variables."""
    variables = list(compiled.variables)
    hoisted = hoist(compiled.constraints, variables)
    values = NumpyProgram(compiled.values, environment)(environment)  # JAX would compile each of its operations
    given = {p: np.asarray(values[q.id]) for p, q in zip(hoisted.parameters, compiled.parameters)}
    constraints = instantiate(hoisted.expressions, given)
    return [c for c in constraints if c.variables()], [hoisted.twins[v] for v in variables]

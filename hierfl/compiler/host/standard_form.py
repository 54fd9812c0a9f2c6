"""A lower level in standard form: over u = (y, t), minimise a smooth cost of (x, y) plus a cost c(x, u) subject to e(x, u) in K.

e is affine in u and K a product of cones. CVXPY's reduction introduces t and the cones for whatever is not smooth in y; its
trees are evaluated by hierfl's own programs, so that everything moves with x, clients and samples, and has derivatives.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cvxpy as cp
import jax.numpy as jnp
import numpy as np
from cvxpy.constraints import PSD, SOC, Equality, Inequality, NonNeg, NonPos, Zero
from cvxpy.constraints.constraint import Constraint
from cvxpy.expressions.expression import Expression
from cvxpy.reductions.dcp2cone.dcp2cone import Dcp2Cone
from jax import Array
from jaxtyping import Float

from hierfl.analysis.enclosure import NOTHING_KNOWN, Known
from hierfl.analysis.hoist import copy_with, hoist
from hierfl.compiler.expressions.program import Program
from hierfl.language.function import UserAtom

ZERO, NONNEGATIVE, SECOND_ORDER, SEMIDEFINITE = "zero", "nonnegative", "second order", "semidefinite"
KINDS = (ZERO, NONNEGATIVE, SECOND_ORDER, SEMIDEFINITE)


class NoStandardFormError(Exception):
    """The problem needs a cone that the host engine has no derivatives for; the message says which."""


@dataclass(frozen=True)
class Cone:
    """Rows of e in one cone: ``size`` rows, or for a semidefinite one the scaled upper triangle of a matrix of this ``order``."""

    kind: str
    size: int
    order: int = 0


@dataclass(frozen=True, eq=False)
class StandardForm:
    """c(x, u) and e(x, u) as programs.

    Attributes
    ----------
    decision
        The twins of y's variables, then bounds that were given, then those that the reduction introduced.
    size
        How many scalars y has; they come first in u, each variable in C order.
    cones
        In the order of the rows of e: equations, inequalities, second-order cones, semidefinite ones.
    raised
        How many scalars after them are bounds that a smooth cost is about.
    rows
        For each constraint as it was given, the rows of e that are its own (empty where it has none).
    """

    decision: tuple[cp.Variable, ...]
    size: int
    cones: tuple[Cone, ...]
    rows: tuple[np.ndarray, ...]
    parameters: tuple[cp.Parameter, ...]
    hoisted: Program
    slack_program: Program
    cost_program: Program | None
    curved_program: Program | None = None
    raised: int = 0

    @classmethod
    def of(
        cls,
        cost: Expression | None,
        constraints: Sequence[Constraint],
        variables: Sequence[cp.Variable],
        known: Known = NOTHING_KNOWN,
        curved: Expression | None = None,
        bounds: Sequence[cp.Variable] = (),
    ) -> StandardForm:
        """Reduce a convex cost (None: zero) and constraints; a smooth cost in ``bounds``, which are in the constraints, stays as it is.

        Raises
        ------
        NoStandardFormError
            If a cone is needed that is none of the four, or CVXPY does not find the problem convex.
        """
        parts = [part for part in (curved, cost) if part is not None]
        hoisted = hoist([*parts, *constraints], (*variables, *bounds), known)
        plain = [cp.Variable(v.shape, name=v.name()) for v in variables]
        trees = _without_attributes(hoisted.expressions, dict(zip((hoisted.twins[v] for v in variables), plain)))
        bent, trees = (None, trees) if curved is None else (trees[0], trees[1:])
        objective, rest = (cp.Constant(0), trees) if cost is None else (trees[0], trees[1:])
        of_y = [c for c in rest if c.variables()]  # others are about x alone, which the upper level declares
        for tree in (objective, *of_y):
            if (code := _user_code(tree)) is not None:
                raise NoStandardFormError(f"{code.name()} is user code, of which no cone is known")
        problem = cp.Problem(cp.Minimize(objective), of_y)
        if not problem.is_dcp():
            raise NoStandardFormError("CVXPY does not find it convex without what attributes of y say")
        try:
            reduced, inverse = Dcp2Cone(quad_obj=True).apply(problem)
        except ValueError as error:  # shapes that CVXPY's own reductions do not fit together, as of xexp of a square
            raise NoStandardFormError(f"CVXPY does not reduce it: {error}") from error
        pieces = [(_piece(c), c.id) for c in reduced.constraints]
        if not (all(piece.expression.is_affine() for piece, _ in pieces) and reduced.objective.expr.is_quadratic()):
            raise NoStandardFormError("it has a function in it that CVXPY has no cones for")
        pieces.sort(key=lambda piece: KINDS.index(piece[0].kind))
        cones = tuple(cone for piece, _ in pieces for cone in piece.cones)
        owner, start = {}, 0
        for piece, own_id in pieces:
            stop = start + sum(cone.size for cone in piece.cones)
            owner[own_id], start = np.arange(start, stop), stop
        nothing = np.zeros(0, int)
        rows = tuple(owner.get(inverse.cons_id_map.get(c.id, c.id), nothing) for c in rest)
        raised = [hoisted.twins[v] for v in bounds]
        known_already = {v.id for v in (*plain, *raised)}
        new = [v for v in reduced.variables() if v.id not in known_already]
        parameters = tuple(hoisted.parameters)
        quadratic = _with_quadratic_forms(reduced.objective.expr)
        return cls(
            decision=(*plain, *raised, *new),
            size=sum(v.size for v in plain),
            cones=cones,
            rows=rows,
            parameters=parameters,
            hoisted=Program([hoisted.parameters[p] for p in parameters]),
            slack_program=Program([piece.expression for piece, _ in pieces]),
            cost_program=None if cost is None else Program([quadratic]),
            curved_program=None if bent is None else Program([bent]),
            raised=sum(v.size for v in raised),
        )

    @cached_property
    def width(self) -> int:
        """How many scalars u has."""
        return sum(v.size for v in self.decision)

    @property
    def bounds(self) -> int:
        """How many entries of u the reduction has introduced: bounds of convex terms."""
        return self.width - self.size

    @property
    def polyhedral(self) -> bool:
        """Whether there are only equations and inequalities."""
        return all(cone.kind in (ZERO, NONNEGATIVE) for cone in self.cones)

    @property
    def costs(self) -> bool:
        """Whether there is a cost."""
        return self.cost_program is not None

    @property
    def curves(self) -> bool:
        """Whether there is a cost that is not quadratic."""
        return self.curved_program is not None

    @cached_property
    def equations(self) -> int:
        """How many rows are equations; they come first."""
        return sum(cone.size for cone in self.cones if cone.kind == ZERO)

    @cached_property
    def height(self) -> int:
        """How many rows e has."""
        return sum(cone.size for cone in self.cones)

    def values(self, environment: Mapping[int, Any]) -> dict[int, Any]:
        """Values of the hoisted parameters."""
        return dict(zip((p.id for p in self.parameters), self.hoisted(environment)))

    def slack(self, values: Mapping[int, Any], u: Float[Array, " width"]) -> Float[Array, " rows"]:
        """e at u; traceable."""
        parts = self.slack_program({**values, **self._split(u)})
        return jnp.concatenate([jnp.zeros(0), *(jnp.ravel(part, order="F") for part in parts)])

    def cost(self, values: Mapping[int, Any], u: Float[Array, " width"]) -> Float[Array, ""]:
        """c at u, what of it is quadratic; traceable."""
        if self.cost_program is None:
            return jnp.zeros(())
        return jnp.reshape(self.cost_program({**values, **self._split(u)})[0], ())

    def curved_cost(self, values: Mapping[int, Any], u: Float[Array, " width"]) -> Float[Array, ""]:
        """What of c is not quadratic, at u; traceable."""
        if self.curved_program is None:
            return jnp.zeros(())
        return jnp.reshape(self.curved_program({**values, **self._split(u)})[0], ())

    def _split(self, u: Array) -> dict[int, Array]:
        ends = np.cumsum([0, *(v.size for v in self.decision)])
        return {v.id: u[a:b].reshape(v.shape) for v, a, b in zip(self.decision, ends, ends[1:])}


@dataclass(frozen=True)
class _Piece:
    """An affine expression, raveled in Fortran order, and the cones that it has to be in."""

    expression: Expression
    cones: tuple[Cone, ...]
    kind: str


def _user_code(tree: Any) -> UserAtom | None:
    """A function of the user's that variables enter, of which CVXPY knows nothing but what is asserted."""
    if isinstance(tree, UserAtom) and tree.variables():
        return tree
    return next((code for argument in tree.args if (code := _user_code(argument)) is not None), None)


def _piece(constraint: Constraint) -> _Piece:
    """A constraint of the reduced problem as rows in a cone."""
    if isinstance(constraint, (Equality, Zero)):
        expression = constraint.expr if isinstance(constraint, Equality) else constraint.args[0]
        return _linear(expression, ZERO)
    if isinstance(constraint, Inequality):
        return _linear(constraint.args[1] - constraint.args[0], NONNEGATIVE)
    if isinstance(constraint, (NonNeg, NonPos)):
        sign = 1 if isinstance(constraint, NonNeg) else -1
        return _linear(sign * constraint.args[0], NONNEGATIVE)
    if isinstance(constraint, SOC):
        return _second_order(constraint)
    if isinstance(constraint, PSD) and len(constraint.args[0].shape) == 2:
        return _semidefinite(constraint.args[0])
    raise NoStandardFormError(f"it needs the cone {type(constraint).__name__}")


def _linear(expression: Expression, kind: str) -> _Piece:
    return _Piece(expression, (Cone(kind, expression.size),), kind)


def _second_order(constraint: SOC) -> _Piece:
    bound, vectors = constraint.args
    if len(vectors.shape) < 2:
        vectors = cp.reshape(vectors, (vectors.size, 1), order="F")
    elif constraint.axis == 1:
        vectors = vectors.T
    count = bound.size
    stacked = cp.vstack([cp.reshape(bound, (1, count), order="F"), vectors])
    return _Piece(stacked, (Cone(SECOND_ORDER, stacked.shape[0]),) * count, SECOND_ORDER)


def _semidefinite(matrix: Expression) -> _Piece:
    order = matrix.shape[0]
    if order == 1:
        return _linear(cp.reshape(matrix, (1,), order="F"), NONNEGATIVE)
    select = triangle(order)
    return _Piece(select @ cp.vec(matrix, order="F"), (Cone(SEMIDEFINITE, select.shape[0], order),), SEMIDEFINITE)


def triangle(order: int) -> np.ndarray:
    """The matrix that takes vec(S) to the upper triangle by columns, off-diagonal entries times sqrt(2), S made symmetric."""
    rows = []
    for column in range(order):
        for row in range(column + 1):
            picked = np.zeros((order, order))
            picked[row, column] += 0.5
            picked[column, row] += 0.5
            rows.append(np.ravel(picked * (1.0 if row == column else np.sqrt(2.0)), order="F"))
    return np.array(rows)


def _without_attributes(trees: Sequence[Any], plain: dict[cp.Variable, cp.Variable]) -> list[Any]:
    """The trees over variables without attributes; what these say is among the constraints."""
    by_id = {old.id: new for old, new in plain.items()}
    memo: dict[int, Any] = {}

    def rebuilt(node: Any) -> Any:
        if id(node) not in memo:
            if isinstance(node, cp.Variable):
                memo[id(node)] = by_id.get(node.id, node)
            elif getattr(node, "args", None) and any(v.id in by_id for v in node.variables()):
                memo[id(node)] = copy_with(node, rebuilt)
            else:
                memo[id(node)] = node
        return memo[id(node)]

    return [rebuilt(tree) for tree in trees]


def _with_quadratic_forms(expression: Any) -> Any:
    """CVXPY's symbolic quadratic forms as the atoms that they stand for."""
    if not getattr(expression, "args", None):
        return expression
    args = [_with_quadratic_forms(a) for a in expression.args]
    if type(expression).__name__ == "SymbolicQuadForm":
        variable, matrix = args
        return cp.square(variable) if expression.shape else cp.QuadForm(cp.vec(variable, order="F"), matrix)
    return expression if all(a is b for a, b in zip(args, expression.args)) else expression.copy(args)

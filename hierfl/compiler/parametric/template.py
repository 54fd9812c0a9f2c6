"""An objective and constraints in y, canonicalised once by CVXPY: every maximal subexpression of x and data is a parameter.

    minimise over u = (y, bounds):  u' P u / 2 + q' u + sum_j weight_j s_j(form_j u + shift_j)   subject to  A u + b in K,

where P, q, A, b, the weights, forms and shifts are affine in theta, the values of those subexpressions: sparse arrays whose pattern is
fixed. Smooth atoms of affine arguments that enter the objective in sums stay what they are (squares first of all): they have
derivatives of their own, and cones would blur them. Everything else CVXPY reduces to cones, bringing in bounds.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cvxpy as cp
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.constraints import PSD, SOC, ExpCone, NonNeg, PowCone3D, Zero
from cvxpy.constraints.constraint import Constraint
from cvxpy.constraints.nonpos import Inequality
from cvxpy.expressions.expression import Expression
from cvxpy.reductions.dcp2cone.canonicalizers import CANON_METHODS
from cvxpy.reductions.dcp2cone.cone_matrix_stuffing import ConeMatrixStuffing, ParamConeProg
from cvxpy.reductions.dcp2cone.dcp2cone import Dcp2Cone
from jax import Array
from jaxtyping import Bool, Float, Int

from hierfl.analysis.conic_solving import judged_here
from hierfl.analysis.enclosure import NOTHING_KNOWN, Known
from hierfl.analysis.hoist import copy_with, hoist
from hierfl.analysis.variable_bounds import attribute_constraints
from hierfl.atoms.algebra import only_compiled
from hierfl.compiler.expressions.program import Program
from hierfl.compiler.parametric.written_for_cvxpy import (
    LinearCost,
    LinearMap,
    SmoothPiece,
    SmoothPieces,
    as_rows,
    factors_collected,
    with_maps,
    without_linear_cost,
)
from hierfl.compiler.programs.cones import (
    EXPONENTIAL,
    NONNEGATIVE,
    POWER,
    SECOND_ORDER,
    SEMIDEFINITE,
    ZERO,
    Cone,
    NoStandardFormError,
    of_kind,
)
from hierfl.compiler.programs.convex_program import merged
from hierfl.compiler.programs.smooth_atoms import SmoothAtom
from hierfl.language.function import user_code_in


@dataclass(frozen=True, eq=False)
class AffineEntries:
    """The entries at (``rows``, ``columns``) of an array of this shape: ``constant + linear @ theta``.

    Entries are sorted by column, then row, and no place occurs twice.
    """

    shape: tuple[int, int]
    rows: Int[np.ndarray, " entries"]
    columns: Int[np.ndarray, " entries"]
    constant: Float[np.ndarray, " entries"]
    linear: Any  # csr (entries, theta)

    @classmethod
    def of(
        cls,
        shape: tuple[int, int],
        rows: np.ndarray,
        columns: np.ndarray,
        parameter: np.ndarray,
        value: np.ndarray,
        count: int,
    ) -> AffineEntries:
        """From contributions ``value`` of entry ``parameter`` of theta to places; parameter ``count`` stands for 1."""
        place, where = np.unique(columns.astype(np.int64) * shape[0] + rows, return_inverse=True)
        fixed = parameter == count
        constant = np.zeros(len(place))
        np.add.at(constant, where[fixed], value[fixed])
        moving = ~fixed
        linear = sp.csr_array((value[moving], (where[moving], parameter[moving])), (len(place), count))
        return cls(shape, place % shape[0], place // shape[0], constant, linear)

    @property
    def moves(self) -> bool:
        """Whether theta enters."""
        return bool(self.linear.nnz)

    def values(self, theta: Float[np.ndarray, "*batch theta"]) -> Float[np.ndarray, "*batch entries"]:
        if not self.moves:
            return np.broadcast_to(self.constant, (*theta.shape[:-1], len(self.constant)))
        return np.asarray((self.linear @ theta.T).T + self.constant)

    @cached_property
    def in_theta(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(entries, numbers of theta, values) of their derivative."""
        coo = self.linear.tocoo()
        return coo.row, coo.col, coo.data

    def spread(self, of_entries: Float[np.ndarray, "k entries"]) -> Float[np.ndarray, "k rows"]:
        """Of a single column: what each of k has for the entries, by rows, and 0 elsewhere."""
        out = np.zeros((len(of_entries), self.shape[0]))
        out[:, self.rows] = of_entries
        return out


@dataclass(frozen=True)
class RowOrder:
    """Where CVXPY's rows go, and by what they are multiplied: second-order cones one after another, triangles of matrices."""

    rows: np.ndarray
    scale: np.ndarray
    cones: tuple[Cone, ...]
    owner: dict[int, np.ndarray]

    @classmethod
    def of(cls, constraints: Sequence[Constraint]) -> RowOrder:
        """Of constraints that come equations first, then inequalities, and the other cones."""
        rows, scale, cones, owner, start = [np.zeros(0, int)], [np.zeros(0)], list[Cone](), {}, 0
        for constraint in constraints:
            place, factor, some = _rows_of(constraint)
            rows.append(start + place)
            scale.append(factor)
            height = sum(cone.size for cone in some)
            owner[constraint.id] = np.arange(start, start + height)
            start += height
            cones += some
        return cls(np.concatenate(rows), np.concatenate(scale), tuple(c for c in merged(cones) if c.size), owner)

    @property
    def height(self) -> int:
        return sum(cone.size for cone in self.cones)

    def rows_of(self, constraint: Constraint, written: Sequence[int]) -> np.ndarray:
        """The rows of a constraint that was written as those with these ids; (k, size) where they are several for each entry."""
        rows = np.concatenate([np.zeros(0, int), *(self.owner[one] for one in written if one in self.owner)])
        several = isinstance(constraint, Inequality) and len(rows) > constraint.size
        return rows.reshape(-1, constraint.size) if several else rows


def _rows_of(constraint: Constraint) -> tuple[np.ndarray, np.ndarray, list[Cone]]:
    """(where the rows of a constraint go among its own, their factors, its cones)."""
    if isinstance(constraint, (Zero, NonNeg)):
        count = constraint.args[0].size
        return np.arange(count), np.ones(count), [Cone(ZERO if isinstance(constraint, Zero) else NONNEGATIVE, count)]
    if isinstance(constraint, SOC):
        bounds, vectors = constraint.args
        count, length = bounds.size, vectors.size // bounds.size
        first = np.arange(count) * (length + 1)
        inner = (first + 1)[:, None] + np.arange(length)
        return np.append(first, inner), np.ones(count * (length + 1)), [Cone(SECOND_ORDER, length + 1)] * count
    if isinstance(constraint, PSD) and len(constraint.args[0].shape) == 2:
        order = constraint.args[0].shape[0]
        row, column = np.indices((order, order)).reshape(2, -1, order="F")
        high, low = np.maximum(row, column), np.minimum(row, column)
        factor = np.where(row == column, 1.0, np.sqrt(0.5))
        size = order * (order + 1) // 2
        cone = Cone(NONNEGATIVE, 1) if order == 1 else Cone(SEMIDEFINITE, size, order)
        return high * (high + 1) // 2 + low, factor, [cone]
    if isinstance(constraint, (ExpCone, PowCone3D)):
        count = constraint.args[0].size
        places = 3 * np.arange(count) + np.arange(3)[:, None]
        shares = np.ravel(constraint.alpha.value) if isinstance(constraint, PowCone3D) else [None] * count
        kind = EXPONENTIAL if isinstance(constraint, ExpCone) else POWER
        return np.ravel(places), np.ones(3 * count), [Cone(kind, 3, share=share) for share in shares]
    raise NoStandardFormError(f"it needs the cone {type(constraint).__name__}")


# scalars of y, and times the arguments of an average, from which it has less of them than a matrix of y by y
WIDE, FEW = 300, 2
FILLED, SMALL_FORM = 8.0, 2_000  # times the entries of a form, and entries that are not worth a thought


@dataclass(frozen=True, eq=False)
class SmoothPart:
    """``weight_k s(form_k u + shift_k)``, summed over the blocks k of ``block`` rows of ``form``."""

    atom: SmoothAtom
    block: int
    form: AffineEntries
    shift: AffineEntries
    weight: AffineEntries


@dataclass(frozen=True, eq=False)
class LevelTemplate:
    """See the module; y comes first in u, each variable in C order, and takes ``size`` scalars of ``width``.

    ``theta`` has the parts of theta, each in Fortran order; ``rows``, for each constraint as it was given, its own rows of A; (k, size) where it is k rows for each of its entries.
    """

    size: int
    width: int
    theta: tuple[cp.Parameter, ...]
    hoisted: Program
    quadratic: AffineEntries
    linear: AffineEntries
    matrix: AffineEntries
    offset: AffineEntries
    cones: tuple[Cone, ...]
    rows: tuple[np.ndarray, ...]
    smooth: tuple[SmoothPart, ...]
    added: tuple[LinearMap | LinearCost, ...] = ()  # whose parameters come after those of ``hoisted``

    @classmethod
    def of(
        cls,
        cost: Expression | None,
        constraints: Sequence[Constraint],
        variables: Sequence[cp.Variable],
        known: Known = NOTHING_KNOWN,
        mapping: Sequence[Expression] = (),
        copies: float = math.inf,
        whole: Collection[int] = (),
        lifted: frozenset[int] | None = None,
    ) -> LevelTemplate:
        """Canonicalise a convex cost (None: zero) and constraints; averages count as their per-sample expressions.

        An affine ``mapping``, one expression for each variable, takes the place of a gradient: its matrix is P, as it is. An average is over
        ``copies`` of the cost: where they are few beside y, arguments of smooth atoms are variables of their own, too, unless it is said which are
        (``lifted``). Constraints at the places in ``whole`` stay one row for each entry.

        Raises ``NoStandardFormError`` where a cone is needed that is not known, or CVXPY does not find the problem convex; says why.
        """
        own = {v.id for v in variables}
        given = [
            *(factors_collected(tree, own) for tree in (*([] if cost is None else [cost]), *constraints)),
            *mapping,
        ]
        hoisted = hoist(given, variables, known)
        plain = {hoisted.twins[v].id: _of_this_sign(v) for v in variables}
        trees = [_over(tree, plain) for tree in hoisted.expressions]
        trees, forces = trees[: len(trees) - len(mapping)], trees[len(trees) - len(mapping) :]
        objective, rest = (cp.Constant(0.0), trees) if cost is None else (trees[0], trees[1:])
        if not all(force.is_affine() for force in forces):
            raise NoStandardFormError("its mapping is not affine in y")
        if not objective.is_convex():
            raise NoStandardFormError("it is not convex in y by CVXPY's rules")
        objective, slope = without_linear_cost(objective)
        maps: list[LinearMap] = []
        objective, *rest = (with_maps(tree, maps) for tree in (objective, *rest))
        forces = [with_maps(force, maps) for force in forces]
        forces = [f if f.variables() else f + 0 * v for f, v in zip(forces, plain.values())]  # CVXPY wants some variable
        parts = SmoothPieces(lifted or frozenset())
        objective = parts.taken_out_of(objective)
        written = [([c] if k in whole else as_rows(c)) if c.variables() else [] for k, c in enumerate(rest)]  # others are about x alone
        written = [[row if row.is_dpp() else parts.bounded(row) for row in rows] for rows in written]
        stuffed, ids = _stuffed(objective, [*(row for rows in written for row in rows), *parts.domain])
        first = tuple(hoisted.parameters)
        added: tuple[LinearMap | LinearCost, ...] = (*maps, *([] if slope is None else [slope]))
        parameters = (*first, *(parameter for one in added for parameter in one.parameters))
        places = _Places.of(stuffed, tuple(plain.values()), parts, parameters)
        order = RowOrder.of(stuffed.constraints)
        quadratic, linear = places.mapping(forces) if forces else places.cost(stuffed, slope)
        matrix, offset = places.rows(stuffed, order)
        made = cls(
            size=places.size,
            width=places.width,
            theta=parameters,
            hoisted=Program([hoisted.parameters[p] for p in first]),
            quadratic=quadratic,
            linear=linear,
            matrix=matrix,
            offset=offset,
            cones=order.cones,
            rows=tuple(order.rows_of(c, [ids.get(row.id, row.id) for row in rows]) for c, rows in zip(rest, written)),
            smooth=tuple(places.smooth_part(stuffed, piece) for piece in parts.pieces),
            added=added,
        )
        if lifted is not None:
            return made
        few = [made.size >= WIDE and FEW * copies * part.form.shape[0] <= made.size for part in made.smooth]
        long = frozenset(k for k, part in enumerate(made.smooth) if few[k] or _fills_in(part.form, 1.0 if math.isinf(copies) else copies))
        return cls.of(cost, constraints, variables, known, mapping, copies, whole, long) if long else made

    @property
    def count(self) -> int:
        """How many scalars theta has."""
        return sum(p.size for p in self.theta)

    @property
    def height(self) -> int:
        return self.matrix.shape[0]

    @cached_property
    def loose(self) -> Bool[np.ndarray, " height"]:
        return of_kind(self.cones, NONNEGATIVE)

    @property
    def is_still(self) -> bool:
        """Whether P and A are the same at every theta, of squares too."""
        moving = [self.quadratic, self.matrix, *(each for part in self.smooth for each in (part.form, part.weight))]
        return not any(entries.moves for entries in moving)

    def theta_at(self, environment: Mapping[int, Any]) -> Float[Array, " theta"]:
        """theta, from the values of x and of data; traceable."""
        values = list(self.hoisted(environment))
        known = dict(zip((p.id for p in self.theta), values))
        for one in self.added:
            values += one.at(known)
        return jnp.concatenate([jnp.zeros(0), *(jnp.ravel(v, order="F") for v in values)])


def _fills_in(form: AffineEntries, copies: float) -> bool:
    """Whether the sum of form' D form over copies has many more entries than all the forms: then arguments are better variables of their own."""
    lengths = np.bincount(form.rows, minlength=1).astype(float)
    return bool(min(float(form.shape[1]) ** 2, float(lengths @ lengths)) > FILLED * max(copies * len(form.rows), SMALL_FORM))


def _of_this_sign(variable: cp.Variable) -> cp.Variable:
    """A variable of which no more is known than a sign, by which CVXPY finds what is convex, or that it is symmetric, as some atoms ask."""
    symmetric = {"symmetric": True} if variable.ndim == 2 and variable.size > 1 and variable.is_symmetric() else {}
    sign = {"nonneg": True} if variable.is_nonneg() else {"nonpos": True} if variable.is_nonpos() else symmetric
    return cp.Variable(variable.shape, name=variable.name(), **sign)


def _over(tree: Any, plain: Mapping[int, cp.Variable]) -> Any:
    """The tree over other variables; what attributes say is among the constraints."""
    memo: dict[int, Any] = {}

    def rebuilt(node: Any) -> Any:
        if id(node) not in memo:
            if isinstance(node, cp.Variable):
                memo[id(node)] = plain.get(node.id, node)
            elif getattr(node, "args", None) and node.variables():
                memo[id(node)] = copy_with(node, rebuilt)
            else:
                memo[id(node)] = node
        return memo[id(node)]

    return rebuilt(tree)


def _stuffed(objective: Expression, constraints: Sequence[Constraint]) -> tuple[ParamConeProg, Mapping[int, int]]:
    """CVXPY's program over cones, and the ids that constraints have in it."""
    for tree in (objective, *constraints):
        if (code := user_code_in(tree)) is not None:
            raise NoStandardFormError(f"{code.name()} is user code, of which no cone is known")
        if only_compiled(tree):
            raise NoStandardFormError("it holds a derivative that JAX computes, of which no cone is known")
    if not (constraints or objective.variables()):
        constraints = [Zero(cp.Variable(0))]
    problem = cp.Problem(cp.Minimize(objective), list(constraints))
    if not problem.is_dcp():
        raise NoStandardFormError("CVXPY does not find it convex")
    if not problem.is_dpp():
        raise NoStandardFormError("CVXPY cannot canonicalise it once for all x and data (y'Qy of a parameter Q = R'R is cp.sum_squares(R @ y))")
    try:
        reduced, inverse = Dcp2Cone(quad_obj=True).apply(problem)
        own = {variable.id for variable in problem.variables()}
        brought_in = attribute_constraints([variable for variable in reduced.variables() if variable.id not in own])
        if brought_in:  # what CVXPY says of variables of its own by their attributes, such as a matrix behind sums of eigenvalues
            also, _ = Dcp2Cone(quad_obj=True).apply(cp.Problem(cp.Minimize(0), brought_in))
            reduced = cp.Problem(reduced.objective, [*reduced.constraints, *also.constraints])
        with judged_here():
            stuffed, _ = ConeMatrixStuffing(quad_obj=True).apply(reduced)
    except NotImplementedError as error:  # CVXPY's atoms all have a conic form
        without = ", ".join(kind.__name__ for kind in problem.atoms() if kind not in CANON_METHODS and not issubclass(kind, AffAtom))
        raise NoStandardFormError(f"no conic form of {without} is in CANON_METHODS of cvxpy.reductions.dcp2cone.canonicalizers (an objective needs none of what has a smooth_atom)") from error
    except ValueError as error:  # shapes that CVXPY's own reductions do not fit together
        raise NoStandardFormError(f"CVXPY does not reduce it: {error}") from error
    return stuffed, inverse.cons_id_map


@dataclass(frozen=True)
class _Places:
    """Where the variables of a stuffed program go in u, and its parameters in theta."""

    size: int
    width: int
    of_variable: dict[int, np.ndarray]  # by id, entries in Fortran order
    of_parameter: dict[int, int]  # by id, where it starts
    count: int

    @classmethod
    def of(
        cls,
        stuffed: ParamConeProg,
        plain: Sequence[cp.Variable],
        parts: SmoothPieces,
        parameters: Sequence[cp.Parameter],
    ) -> _Places:
        """y in C order first, then what the reduction brought in."""
        places: dict[int, np.ndarray] = {}
        start = 0
        for variable in plain:
            places[variable.id] = np.ravel(start + np.arange(variable.size).reshape(variable.shape), order="F")
            start += variable.size
        size, stand_ins = start, {piece.stand_in.id for piece in parts.pieces}
        for variable in stuffed.variables:
            if variable.id not in places and variable.id not in stand_ins:
                places[variable.id] = start + np.arange(variable.size)
                start += variable.size
        ends = np.cumsum([0, *(p.size for p in parameters)])
        begins = dict(zip((p.id for p in parameters), map(int, ends)))
        return cls(size, start, places, begins, int(ends[-1]))

    def _columns(self, stuffed: ParamConeProg) -> np.ndarray:
        """Where each column of a stuffed program goes; -1 for nowhere."""
        columns = np.full(stuffed.x.size, -1)
        for leaf, first in stuffed.var_id_to_col.items():
            if leaf in self.of_variable:
                place = self.of_variable[leaf]
                columns[first : first + len(place)] = place
        return columns

    def _parameters(self, stuffed: ParamConeProg) -> np.ndarray:
        """Where each entry of a stuffed program's parameter vector goes; its last one is 1, and goes to the end."""
        width = stuffed.q.shape[1]
        where = np.full(width, self.count)
        for leaf, first in stuffed.param_id_to_col.items():
            if leaf in self.of_parameter:
                size = stuffed.param_id_to_size[leaf]
                where[first : first + size] = self.of_parameter[leaf] + np.arange(size)
        return where

    def _entries(
        self,
        stuffed: ParamConeProg,
        tensor: Any,
        rows: np.ndarray,
        columns: np.ndarray,
        shape: tuple[int, int],
        scale: np.ndarray | None = None,
    ) -> AffineEntries:
        """A tensor's, each row and column where it goes, rows times their scale."""
        coo = tensor.tocoo()  # of (places, parameters)
        place, parameter = (np.asarray(part).astype(np.int64) for part in (coo.row, coo.col))
        row, column = place % len(rows), place // len(rows)
        taken = (coo.data != 0) & (rows[row] >= 0) & (columns[column] >= 0)
        row, column, parameter, value = row[taken], column[taken], parameter[taken], np.asarray(coo.data[taken], float)
        where = self._parameters(stuffed)[parameter]
        value = value if scale is None else value * scale[row]
        return AffineEntries.of(shape, rows[row], columns[column], where, value, self.count)

    def cost(self, stuffed: ParamConeProg, slope: LinearCost | None) -> tuple[AffineEntries, AffineEntries]:
        """(P, q), with the slope of what is not in the stuffed program."""
        columns = self._columns(stuffed)
        quadratic = self._entries(stuffed, stuffed.P, columns, columns, (self.width, self.width))
        rows = np.append(columns, -1)  # the last one is the constant of the objective
        linear = self._entries(stuffed, stuffed.q, rows, np.zeros(1, int), (self.width, 1))
        if slope is None:
            return quadratic, linear
        entries = np.concatenate([self.of_variable[v.id] for v in slope.variables])
        numbers = self.of_parameter[slope.parameters[0].id] + np.arange(len(entries))
        told = np.union1d(linear.rows, entries)  # others have no cost at any theta
        into = sp.csr_array((np.ones(len(linear.rows)), (linear.rows, np.arange(len(linear.rows)))), (self.width, len(linear.rows)))
        moving = into @ linear.linear + sp.csr_array((np.ones(len(entries)), (entries, numbers)), (self.width, self.count))
        return quadratic, AffineEntries((self.width, 1), told, 0 * told, (into @ linear.constant)[told], sp.csr_array(moving)[told])

    def mapping(self, forces: Sequence[Expression]) -> tuple[AffineEntries, AffineEntries]:
        """(P, q) of a mapping: equations, each at its place in y."""
        stuffed, _ = _stuffed(cp.Constant(0.0), [Zero(force) for force in forces])
        places = np.concatenate(list(self.of_variable.values())[: len(forces)])
        return self._affine(stuffed, places, self.width)

    def rows(self, stuffed: ParamConeProg, order: RowOrder) -> tuple[AffineEntries, AffineEntries]:
        """(A, b)."""
        return self._affine(stuffed, order.rows, order.height, order.scale)

    def _affine(
        self, stuffed: ParamConeProg, rows: np.ndarray, height: int, scale: np.ndarray | None = None
    ) -> tuple[AffineEntries, AffineEntries]:
        columns, last = np.append(self._columns(stuffed), -1), np.append(np.full(stuffed.x.size, -1), 0)
        matrix = self._entries(stuffed, stuffed.A, rows, columns, (height, self.width), scale)
        return matrix, self._entries(stuffed, stuffed.A, rows, last, (height, 1), scale)

    def smooth_part(self, stuffed: ParamConeProg, piece: SmoothPiece) -> SmoothPart:
        """The forms of a smooth atom, and its weights: what the objective multiplies its stand-in by."""
        count, taken = piece.stand_in.size, piece.taken
        rows = np.full(stuffed.x.size + 1, -1)
        first = stuffed.var_id_to_col[piece.stand_in.id]
        rows[first : first + count] = np.arange(count)
        weight = self._entries(stuffed, stuffed.q, rows, np.zeros(1, int), (count, 1))
        alone, _ = _stuffed(cp.Constant(0.0), [Zero(taken.argument)])
        return SmoothPart(taken.atom, taken.block, *self.rows(alone, RowOrder.of(alone.constraints)), weight)

"""Variables: the attributes that hierfl refuses, the others as constraints, and bounds that follow from both by interval propagation.

Forward and backward through each constraint's tree (HC4-revise; Benhamou, Goualard, Granvilliers and Puget, 1999): a
node's interval is narrowed by the constraint, then each argument by what its node and its siblings leave. Repeated until
nothing moves. The bounds hold at every point that satisfies the constraints, rounding included.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cvxpy as cp
import numpy as np
import numpy.typing as npt
from cvxpy.constraints import PSD, SOC
from cvxpy.constraints.constraint import Constraint
from cvxpy.expressions.expression import Expression
from cvxpy.expressions.leaf import Leaf

from hierfl.analysis.enclosure import NOTHING_KNOWN, Known, enclose_node, leaf_interval, ranges_of_arguments
from hierfl.atoms.algebra import sides_of
from hierfl.atoms.intervals import EPS, Interval
from hierfl.atoms.narrowing import of_layout
from hierfl.atoms.table import row_of
from hierfl.errors import DeclarationError, IncompatibleSolverError

_REFUSED = ("complex", "imag", "hermitian", "sparsity")
_WHOLE = ("boolean", "integer")


def check_attributes(variables: Sequence[cp.Variable], upper: bool = False) -> None:
    """Refuse variables that are not real, and whole numbers but for ``upper`` ones.

    Raises ``DeclarationError``, naming the variable and the attribute.
    """
    for variable in variables:
        on = _attributes_on(variable)
        for attribute in filter(on.__contains__, (*_REFUSED, *_WHOLE)):
            what = f"variable {variable.name()!r} is declared {attribute}"
            if attribute in _REFUSED:
                raise DeclarationError(f"{what}; hierfl treats real, dense variables.")
            if not upper:
                raise DeclarationError(
                    f"{what}, in a lower level: with whole numbers that is no convex program, its answers have no optimality conditions, and no "
                    f"method here solves it (it takes branch and cut on both levels at once, as MibS has it). Upper variables may be whole numbers."
                )
            if on[attribute] is not True:
                raise DeclarationError(f"{what} in part: give the entries that are whole numbers a variable of their own.")


def _attributes_on(variable: cp.Variable) -> dict[str, Any]:
    return {name: value for name, value in variable.attributes.items() if value is not None and value is not False}


def require_continuous(variables: Sequence[cp.Variable], what: str) -> None:
    """Refuse whole numbers where nobody could treat them.

    Raises ``IncompatibleSolverError``, naming the variable and what to ask instead.
    """
    for variable in variables:
        if any(variable.attributes[name] for name in _WHOLE):
            raise IncompatibleSolverError(
                f"{what} moves x continuously, and {variable.name()!r} is declared as whole numbers: use problem.solve() without a solver, "
                f"hf.solvers.BranchAndBound(), or problem.reference(certificate='global')."
            )


def attribute_constraints(variables: Sequence[cp.Variable]) -> list[Constraint]:
    """The variables' attributes (nonneg, bounds, PSD, ...) as explicit constraints."""
    constraints: list[Constraint] = []
    for variable in variables:
        on = _attributes_on(variable).keys()
        if on & {"nonneg", "pos"}:
            constraints.append(variable >= 0)
        if "boolean" in on:
            constraints += [variable >= 0, variable <= 1]
        if on & {"nonpos", "neg"}:
            constraints.append(variable <= 0)
        if "PSD" in on:
            constraints.append(variable >> 0)
        if "NSD" in on:
            constraints.append(variable << 0)
        if on & {"symmetric", "PSD", "NSD"} and variable.ndim == 2:
            constraints.append(variable == variable.T)
        if "diag" in on:
            constraints.append(cp.multiply(1 - np.eye(variable.shape[0]), variable) == 0)
        if "bounds" in on:
            low, high = variable.attributes["bounds"]
            constraints += _within(variable, low, 1.0) + _within(variable, high, -1.0)
    return constraints


def _within(variable: cp.Variable, bound: Expression | npt.ArrayLike, sign: float) -> list[Constraint]:
    """The bounds that are finite: upper ones for ``sign`` -1."""
    if isinstance(bound, Expression) or np.all(np.isfinite(bound)):
        return [variable >= bound if sign > 0 else variable <= bound]
    limits = np.broadcast_to(np.asarray(bound, dtype=float), variable.shape)
    rows = np.isfinite(limits)
    return [sign * variable[rows] >= sign * limits[rows]] if rows.any() else []


_SWEEPS = 10


def bounds_of(
    constraints: Sequence[Constraint], variables: Sequence[cp.Variable], known: Known = NOTHING_KNOWN
) -> dict[int, Interval]:
    """Bounds of the variables, by id, at all points that satisfy the constraints and the variables' attributes.

    Constraints of a kind without a rule narrow nothing; parameters that are not ``known``, by id, are bounded by their attributes only. For
    constraints that no point satisfies every bound is true; those found before the contradiction are returned.
    """
    narrowed = {**known, **{v.id: leaf_interval(v, known) for v in variables}}
    for _ in range(_SWEEPS):
        before = {v.id: narrowed[v.id] for v in variables}
        for constraint in constraints:
            attempt = _Narrowing(narrowed)
            attempt.apply(constraint)
            if any(interval.is_empty for interval in attempt.known.values()):
                continue
            narrowed = attempt.known
        if not any(_moved(before[v.id], narrowed[v.id]) for v in variables):
            break
    return {v.id: narrowed[v.id] for v in variables}


def _moved(old: Interval, new: Interval) -> bool:
    def change(a: np.ndarray, b: np.ndarray) -> bool:
        finite = np.isfinite(a)
        shrunk = np.abs(a[finite] - b[finite]) > 1e-3 * (1 + np.abs(a[finite]))
        return bool(shrunk.any() or (np.isfinite(b) & ~finite).any())

    return change(old.lo, new.lo) or change(old.hi, new.hi)


class _Narrowing:
    def __init__(self, known: Known) -> None:
        self.known = dict(known)
        self._forward: dict[int, Interval] = {}

    def apply(self, constraint: Constraint) -> None:
        with np.errstate(all="ignore"):
            if (compared := sides_of(constraint)) is not None:
                self._comparison(*compared)
            elif isinstance(constraint, SOC):
                self._cone(constraint)
            elif isinstance(constraint, PSD):
                self._semidefinite(constraint.args[0])

    def value(self, node: Expression) -> Interval:
        """The forward enclosure, under the present bounds."""
        if id(node) not in self._forward:
            if isinstance(node, Leaf):
                self._forward[id(node)] = leaf_interval(node, self.known)
            else:
                self._forward[id(node)] = enclose_node(node, ranges_of_arguments(node, self.value))
        return self._forward[id(node)]

    def narrow(self, node: Expression, target: Interval) -> None:
        """Take note that the node's values lie in ``target``, and narrow its arguments."""
        if not node.variables():
            return
        inside = self.value(node).meet(target)
        if isinstance(node, cp.Variable):
            self.known[node.id] = leaf_interval(node, self.known).meet(inside)
            return
        row = row_of(node)
        rule = of_layout if row.layout else row.narrow
        if rule is None:
            return
        arguments = ranges_of_arguments(node, self.value)
        for argument, narrower in zip(node.args, rule(node, inside, arguments)):
            if narrower is not None:
                self.narrow(argument, narrower)

    def _comparison(self, first: Expression, second: Expression, equal: bool) -> None:
        left, right = self.value(first), self.value(second)
        self.narrow(first, _fold(right, first.shape, above=True))
        self.narrow(second, _fold(left, second.shape, above=False))
        if equal:
            self.narrow(first, _fold(right, first.shape, above=False))
            self.narrow(second, _fold(left, second.shape, above=True))

    def _cone(self, constraint: SOC) -> None:
        """No entry of the vector is larger than the radius, which is nonnegative."""
        radius, vector = constraint.args
        high = np.maximum(self.value(radius).hi, 0.0)
        axis = constraint.axis if vector.ndim > 1 else 0
        spread = np.broadcast_to(np.expand_dims(np.atleast_1d(high), axis) if vector.ndim > 1 else high, vector.shape)
        self.narrow(vector, Interval(-spread, spread))
        self.narrow(radius, Interval(np.zeros(radius.shape), np.full(radius.shape, np.inf)))

    def _semidefinite(self, matrix: Expression) -> None:
        """Nonnegative diagonal, and ``|a_ij + a_ji| <= 2 sqrt(a_ii a_jj)``: CVXPY asks for z'Az >= 0, and not that A is symmetric."""
        if matrix.ndim != 2:
            return
        known = self.value(matrix)
        diagonal = np.maximum(np.diag(known.hi), 0.0)
        size = np.sqrt(np.outer(diagonal, diagonal)) * (1 + 8 * EPS)
        size = np.where(np.isnan(size), np.inf, size)
        inside = Interval(-size, size)
        if not matrix.is_symmetric():
            inside = inside + inside - Interval(known.lo.T, known.hi.T)
        on_diagonal = np.eye(len(diagonal), dtype=bool)
        self.narrow(matrix, Interval(np.where(on_diagonal, 0.0, inside.lo), np.where(on_diagonal, np.inf, inside.hi)))


def _fold(bound: Interval, shape: tuple[int, ...], above: bool) -> Interval:
    """What one side of an inequality says about the other, whose shape may have been broadcast."""
    ends = np.asarray(bound.hi if above else bound.lo)
    whole = np.broadcast_to(ends, np.broadcast_shapes(ends.shape, shape))
    missing = whole.ndim - len(shape)
    axes = tuple(k for k in range(whole.ndim) if k < missing or (shape[k - missing] == 1 and whole.shape[k] != 1))
    folded = (np.min if above else np.max)(whole, axis=axes).reshape(shape) if axes else whole
    return Interval(np.full(shape, -np.inf), folded) if above else Interval(folded, np.full(shape, np.inf))

"""How a declaration is written so that CVXPY canonicalises it once, whatever x and the data are.

Smooth atoms that enter an objective in sums stand aside; a monotone function of what has kinks is one of a bound of it; a largest entry
below a bound is rows; factors without y that multiply each other are one; and what is affine in y with data times data is a matrix and
an offset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.atoms.affine.binary_operators import DivExpression, MulExpression, multiply
from cvxpy.constraints.constraint import Constraint
from cvxpy.constraints.nonpos import Inequality
from cvxpy.expressions.expression import Expression
from cvxpy.utilities.scopes import dpp_scope
from jax import Array

from hierfl.analysis.bounded_terms import AffineRows, terms_of
from hierfl.analysis.hoist import copy_with
from hierfl.atoms.algebra import addends, only_compiled
from hierfl.compiler.expressions.program import Program
from hierfl.compiler.programs.smooth_atoms import TakenOut, smooth_atom_of

ENTRIES = 1_000_000  # of the matrix of what is affine in y, which is dense
LONG = 1_000  # parameters of a linear objective, the square of whose number is the time that CVXPY takes


@dataclass
class SmoothPiece:
    """A smooth atom of an affine argument, and the variable that stands for its values in the objective."""

    taken: TakenOut
    stand_in: cp.Variable


@dataclass
class SmoothPieces:
    """The smooth atoms that enter an objective in sums."""

    lifted: frozenset[int]
    pieces: list[SmoothPiece] = field(default_factory=list)
    domain: list[Constraint] = field(default_factory=list)
    _memo: dict[int, tuple[Any, Any]] = field(default_factory=dict)

    def taken_out_of(self, node: Any) -> Any:
        """The objective, linear in variables that stand for the atoms' values."""
        if id(node) not in self._memo:
            self._memo[id(node)] = node, self._replaced(node)
        return self._memo[id(node)][1]

    def _replaced(self, node: Any) -> Any:
        if not node.variables():
            return node
        found = smooth_atom_of(node)
        if found is None and (bound := _bound_of_argument(node)) is not None:
            variable, limit = bound
            found = smooth_atom_of(node.copy([variable, *node.args[1:]]))
            self.domain += [] if found is None else [limit]
        if found is not None:
            if len(self.pieces) in self.lifted:
                own = cp.Variable(found.argument.shape)
                self.domain.append(own == found.argument)
                found.argument = own
            values = cp.Variable(found.argument.shape if found.block == 1 else (found.argument.size // found.block,))
            self.pieces.append(SmoothPiece(found, values))
            self.domain += found.atom.domain(found.argument)
            return found.linear(values)
        if (scaled := self._scaled(node)) is not None:
            return scaled
        return copy_with(node, self.taken_out_of) if isinstance(node, AffAtom) and node.args else self.bounded(node)

    def _scaled(self, node: Any) -> Any | None:
        """A parameter times what has kinks and parameters of its own, as that times a bound; None for others."""
        place = _scaled_place(node)
        if place is None or smooth_atom_of(node.args[place]) is not None:
            return None
        count, inner = len(self.pieces), self.taken_out_of(node.args[place])
        return None if len(self.pieces) > count else self._with_bound(node, place, inner)

    def bounded(self, node: Any) -> Any:
        """The tree with all parameters times what is not affine, and has parameters of its own, as those times bounds."""
        if not node.args or not node.variables() or (isinstance(node, Expression) and node.is_affine()):
            return node
        place = _scaled_place(node)
        return copy_with(node, self.bounded) if place is None else self._with_bound(node, place, self.bounded(node.args[place]))

    def _with_bound(self, node: Any, place: int, inner: Any) -> Any:
        convex = inner.is_convex()
        bound = cp.Variable(inner.shape, nonneg=convex and inner.is_nonneg(), nonpos=not convex and inner.is_nonpos())
        self.domain.append(inner <= bound if convex else bound <= inner)
        return node.copy([bound if k == place else argument for k, argument in enumerate(node.args)])


def _scaled_place(node: Any) -> int | None:
    """Which argument a parameter is multiplied by, where that is not affine and has parameters of its own."""
    if not isinstance(node, (multiply, MulExpression)):
        return None
    for factor, rest in (node.args, node.args[::-1]):
        if not factor.variables() and factor.parameters():
            return None if rest.is_affine() or not rest.parameters() else int(rest is node.args[1])
    return None


def _bound_of_argument(node: Any) -> tuple[cp.Variable, Constraint] | None:
    """A variable for a monotone function's argument that has kinks, and what bounds it; None where that is not exact."""
    inner = node.args[0] if node.args else None
    if inner is None or inner.is_affine() or any(not argument.is_constant() for argument in node.args[1:]):
        return None
    rises, falls = node.is_incr(0), node.is_decr(0)
    if not (rises or falls) or not (node.is_convex() or node.is_concave()):
        return None
    variable = cp.Variable(inner.shape, nonneg=inner.is_nonneg())
    if rises and isinstance(inner, cp.maximum) and _is_least_at_zero(node):  # below 0 a bound that is free goes back to 0
        above = [argument for argument in inner.args if not argument.is_zero()] or inner.args[:1]
        variable, inner = cp.Variable(inner.shape), cp.maximum(*above) if len(above) > 1 else above[0] + np.zeros(inner.shape)
    if node.is_convex() == rises:
        return (variable, inner <= variable) if inner.is_convex() else None
    return (variable, variable <= inner) if inner.is_concave() else None


def _is_least_at_zero(node: Any) -> bool:
    """Whether a convex function grows with the size of its argument, on either side of 0."""
    sides = [node.copy([cp.Variable(node.args[0].shape, **{side: True}), *node.args[1:]]) for side in ("nonneg", "nonpos")]
    return bool(node.is_convex() and sides[0].is_incr(0) and sides[1].is_decr(0))


def factors_collected(node: Any, ids: set[int]) -> Any:
    """The expression with factors without y that multiply each other as one, which becomes one parameter."""
    if not node.args or not any(v.id in ids for v in node.variables()):
        return node
    if isinstance(node, cp.quad_over_lin) and node.shape == () and _moves_without(node.args[1], ids):
        node = cp.multiply(cp.inv_pos(node.args[1]), cp.sum_squares(node.args[0]))
    if isinstance(node, (cp.kl_div, cp.rel_entr)) and node.args[0].is_nonneg() and not any(v.id in ids for v in node.args[0].variables()):
        shares, y = (part + np.zeros(node.shape) for part in node.args)  # a share of 0 is no logarithm, where the ratio's slope is none
        node = -cp.multiply(shares, cp.log(y)) - cp.entr(shares) + (0 if isinstance(node, cp.rel_entr) else y - shares)
    args = [factors_collected(argument, ids) for argument in node.args]
    own = _factor_and_rest(node, args, ids)
    inner = None if own is None else _factor_and_rest(own[1], own[1].args, ids)
    if own is not None and inner is not None:
        return cp.multiply(cp.multiply(own[0], inner[0]), inner[1])
    return node if all(a is b for a, b in zip(args, node.args)) else node.copy(args)


def _moves_without(divisor: Any, ids: set[int]) -> bool:
    """Whether an expression depends on x or data, and not on y."""
    leaves = [*divisor.variables(), *divisor.parameters()]
    return bool(leaves) and not any(leaf.id in ids for leaf in leaves)


def _factor_and_rest(node: Any, args: Sequence[Any], ids: set[int]) -> tuple[Any, Any] | None:
    """(a factor without y, what it multiplies) of a product entry by entry, or with a number."""
    if not isinstance(node, (multiply, DivExpression, MulExpression)) or len(args) != 2:
        return None
    free = [not any(v.id in ids for v in argument.variables()) for argument in args]
    if sum(free) != 1 or (isinstance(node, DivExpression) and free[0]):
        return None
    factor, rest = (args[0], args[1]) if free[0] else (args[1], args[0])
    if isinstance(node, MulExpression) and not isinstance(node, multiply) and factor.shape != () and rest.shape != ():
        return None
    return (1.0 / factor if isinstance(node, DivExpression) else factor), rest


def with_maps(tree: Any, maps: list[LinearMap]) -> Any:
    """The tree with what is affine in y, but multiplies parameters or is JAX's, as linear maps, which are added."""
    with dpp_scope():
        is_plain = tree.is_dpp() if isinstance(tree, Constraint) else tree.is_dcp() or tree.is_affine()
        if is_plain and not only_compiled(tree):
            return tree
    affine = isinstance(tree, Expression) and tree.is_affine() and tree.variables()
    if affine and tree.size * sum(v.size for v in tree.variables()) <= ENTRIES:
        maps.append(LinearMap.of(tree))
        return maps[-1].expression(tree.shape)
    return copy_with(tree, lambda node: with_maps(node, maps)) if tree.args else tree


def as_rows(constraint: Constraint) -> list[Constraint]:
    """Absolute values and largest entries below affine bounds as rows: CVXPY's own bounds of them are nowhere where they are slack."""
    if not isinstance(constraint, Inequality) or all(argument.is_affine() for argument in constraint.args):
        return [constraint]
    pieces = terms_of(constraint)
    rows = [piece.expression <= 0 for piece in pieces if isinstance(piece, AffineRows)]
    alike = constraint.size == 1 or all(row.shape == constraint.shape for row in rows)
    return rows if len(rows) == len(pieces) and alike and all(row.is_dpp() for row in rows) else [constraint]


@dataclass(frozen=True, eq=False)
class LinearMap:
    """An affine function of some of y in which data multiply each other, which CVXPY does not canonicalise: its matrix and its offset."""

    function: Program
    variables: tuple[cp.Variable, ...]
    matrix: cp.Parameter
    offset: cp.Parameter

    @classmethod
    def of(cls, node: Expression) -> LinearMap:
        variables = tuple(node.variables())
        size = sum(v.size for v in variables)
        return cls(Program([node]), variables, cp.Parameter((node.size, size)), cp.Parameter(node.size))

    @property
    def parameters(self) -> tuple[cp.Parameter, ...]:
        """What it brings into theta."""
        return self.matrix, self.offset

    def at(self, known: Mapping[int, Any]) -> list[Array]:
        """[matrix, offset] at parameters' values; traceable."""

        def value(*parts: Array) -> Array:
            of_variables = {v.id: jnp.reshape(part, v.shape, order="F") for v, part in zip(self.variables, parts)}
            return jnp.ravel(self.function({**known, **of_variables})[0], order="F")

        nothing = tuple(jnp.zeros(v.size) for v in self.variables)
        matrices = jax.jacfwd(value, argnums=tuple(range(len(nothing))))(*nothing)
        return [jnp.concatenate(matrices, axis=1), value(*nothing)]

    def expression(self, shape: tuple[int, ...]) -> Expression:
        """The same with its matrix and its offset as parameters."""
        whole = cp.hstack([cp.vec(v, order="F") for v in self.variables])
        return cp.reshape(self.matrix @ whole + self.offset, shape, order="F")


@dataclass(frozen=True, eq=False)
class LinearCost:
    """What an objective has that is linear in y: its slope, one number of theta for each entry of the variables."""

    function: Program
    variables: tuple[cp.Variable, ...]
    parameters: tuple[cp.Parameter]

    def at(self, known: Mapping[int, Any]) -> list[Array]:
        """[slope] at parameters' values, of one variable after another, each in Fortran order; traceable."""

        def value(parts: dict[int, Array]) -> Array:
            return jnp.sum(self.function({**known, **parts})[0])

        slopes = jax.grad(value)({v.id: jnp.zeros(v.shape) for v in self.variables})
        return [jnp.concatenate([jnp.ravel(slopes[v.id], order="F") for v in self.variables])]


def without_linear_cost(objective: Expression) -> tuple[Expression, LinearCost | None]:
    """The objective without its addends that are linear in y, if these have so many parameters that CVXPY would take long."""
    terms = addends(objective)
    linear = [term for term in terms if term.is_affine() and term.variables() and not only_compiled(term)]
    if sum(p.size for p in {p.id: p for term in linear for p in term.parameters()}.values()) < LONG:
        return objective, None
    rest = [term for term in terms if all(term is not one for one in linear)]
    whole = sum(linear[1:], start=linear[0])
    variables = tuple(whole.variables())
    slope = cp.Parameter(sum(v.size for v in variables))
    return sum(rest[1:], start=rest[0]) if rest else cp.Constant(0.0), LinearCost(Program([whole]), variables, (slope,))

"""How Y(x) moves with x: not at all, by a translation ``Y(x) = T x + C``, or otherwise.

The constraints are functions of affine pieces in (x, y). If one matrix T makes every piece a function of y - T x alone
(its slope in x is minus its slope in y times T), the set is a translated one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import cvxpy as cp
import numpy as np
import scipy.sparse as sp
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.constraints import Equality, Inequality
from cvxpy.constraints.constraint import Constraint
from cvxpy.expressions.expression import Expression

from hierfl.analysis.hoist import hoist

SIZE_LIMIT = 400


@dataclass(frozen=True)
class Movement:
    """``kind`` is ``"fixed"``, ``"translated"`` or ``"moving"``; ``shift`` the spectral norm of T (infinity if moving)."""

    kind: str
    shift: float


def movement(constraints: Sequence[Constraint], lower: Sequence[cp.Variable], upper: Sequence[cp.Variable]) -> Movement:
    """How the set that the constraints describe in the lower variables moves with the upper ones."""
    upper_ids, lower_ids = {v.id for v in upper}, {v.id for v in lower}
    about = [c for c in constraints if any(v.id in lower_ids for v in c.variables())]
    if not any(v.id in upper_ids for c in constraints for v in c.variables()):
        return Movement("fixed", 0.0)
    hoisted = hoist(about, [*lower, *upper])
    if hoisted.parameters and any(_multiplies(c) for c in hoisted.expressions):
        return Movement("moving", np.inf)
    for parameter in hoisted.parameters:
        parameter.save_value(np.zeros(parameter.shape))
    for twin in hoisted.twins.values():
        twin.save_value(np.zeros(twin.shape))
    pieces = [piece for c in hoisted.expressions for side in _sides(c) for piece in _affine_pieces(side)]
    slopes = [(_slope(piece, lower, hoisted.twins), _slope(piece, upper, hoisted.twins)) for piece in pieces]
    in_y, in_x = (sp.vstack([pair[side] for pair in slopes]).tocsr() for side in (0, 1))
    return _translation(in_y, in_x)


def _translation(in_y: sp.csr_array, in_x: sp.csr_array) -> Movement:
    """T with ``in_x = -in_y T``: first plus or minus the identity, then the least-norm solution."""
    if in_y.shape[1] == in_x.shape[1]:
        for sign in (1.0, -1.0):
            if abs(in_x + sign * in_y).max() == 0:
                return Movement("translated", 1.0)
    if max(in_y.shape[1], in_x.shape[1]) > SIZE_LIMIT:
        return Movement("moving", np.inf)
    dense_y, dense_x = in_y.toarray(), in_x.toarray()
    shift = -np.linalg.lstsq(dense_y, dense_x, rcond=None)[0]
    scale = np.abs(dense_x).max() + np.abs(dense_y).max() * (1.0 + np.abs(shift).max())
    if np.abs(dense_y @ shift + dense_x).max() > 1e-10 * scale:
        return Movement("moving", np.inf)
    return Movement("translated", float(np.linalg.norm(shift, 2)) * (1 + 1e-9))


def _sides(constraint: Constraint) -> list[Expression]:
    """The expressions that a constraint is about; two sides of a comparison count through their difference."""
    if isinstance(constraint, (Inequality, Equality)):
        return [constraint.args[0] - constraint.args[1]]
    return list(constraint.args)


def _affine_pieces(node: Expression) -> list[Expression]:
    """The maximal affine subtrees that mention a variable."""
    if not node.variables():
        return []
    if node.is_affine():
        return [node]
    return [piece for argument in node.args for piece in _affine_pieces(argument)]


def _multiplies(node: Expression | Constraint) -> bool:
    """Whether a hoisted parameter is a factor of something with variables, or of unknown effect."""
    mentions = [bool(argument.variables()) for argument in node.args]
    constants = [a for a, with_variables in zip(node.args, mentions) if not with_variables and a.parameters()]
    additive = isinstance(node, (Inequality, Equality, AddExpression))
    if any(mentions) and constants and not additive:
        return True
    return any(_multiplies(argument) for argument in node.args)


def _slope(piece: Expression, variables: Sequence[cp.Variable], twins: dict[cp.Variable, cp.Variable]) -> sp.csr_array:
    """The slope of an affine piece: a row for each entry, a column for each scalar, both in CVXPY's order."""
    slopes = piece.grad

    def block(variable: cp.Variable) -> sp.csr_array:
        slope = slopes.get(twins[variable])
        if slope is None:
            return sp.csr_array((piece.size, variable.size))
        if not sp.issparse(slope):  # CVXPY gives numbers for scalars
            slope = np.reshape(slope, (variable.size, piece.size))
        return sp.csr_array(slope.T)

    return sp.hstack([block(v) for v in variables])

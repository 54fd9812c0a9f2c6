"""Derivatives that have no symbolic rule, as atoms whose values JAX computes when the problem is compiled."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

import cvxpy as cp

from hierfl.atoms.row import AtomRow, OnlyCompiled, Unknown
from hierfl.errors import NotConvexError
from hierfl.language.printing.text import expression_text


class JaxDerivative(Unknown, OnlyCompiled):
    """Base of the derivatives: of unknown sign and monotonicity, and beyond CVXPY's reach.

    Each holds another expression, so that what evaluates or bounds trees treats it as a node of its own kind.
    """

    atom_row: ClassVar[AtomRow] = AtomRow(shared=False, only_compiled=True)

    def is_atom_convex(self) -> bool:
        return False

    def is_atom_concave(self) -> bool:
        """As convex: only an affine derivative is known to be either."""
        return self.is_atom_convex()

    def _refuse(self) -> NoReturn:
        raise NotConvexError(f"the {self.name()} is computed by JAX: CVXPY can neither evaluate nor solve it.")


class Pullback(JaxDerivative):
    """The adjoint J'a of one atom's derivative J in its argument ``index``, ``adjoint`` a.

    ``values`` are the atom's arguments, at which it is differentiated; none for a linear atom, whose derivative needs no point.
    """

    def __init__(self, node: Any, index: int, adjoint: Any, *values: Any) -> None:
        self.node, self.index = node, index
        super().__init__(adjoint, *values)

    def shape_from_args(self) -> tuple[int, ...]:
        return tuple(self.node.args[self.index].shape)

    def is_atom_convex(self) -> bool:
        """Linear in the adjoint where the point is fixed."""
        return all(value.is_constant() for value in self.args[1:])

    def get_data(self) -> list[Any]:
        return [self.node, self.index]

    def copy(self, args: Any = None, id_objects: Any = None) -> Pullback:
        return Pullback(self.node, self.index, *(args or self.args))

    def name(self) -> str:
        return f"gradient of {expression_text(self.node)}"


class OwnGradient(JaxDerivative):
    """Each player's derivative in its own row, computed one player at a time: n evaluations of all the costs.

    Entry j of ``cost`` is the objective of player j, who owns row j of ``variable``; ``values`` are those of the cost's leaves, in the order of
    :func:`leaves_of`.
    """

    def __init__(self, cost: Any, variable: cp.Variable, *values: Any) -> None:
        self.cost, self.variable = cost, variable
        super().__init__(*values)

    def shape_from_args(self) -> tuple[int, ...]:
        return tuple(self.variable.shape)

    def get_data(self) -> list[Any]:
        return [self.cost, self.variable]

    def copy(self, args: Any = None, id_objects: Any = None) -> OwnGradient:
        return OwnGradient(self.cost, self.variable, *(args or self.args))

    def name(self) -> str:
        return f"each player's own gradient of {expression_text(self.cost)}"


def leaves_of(cost: Any) -> list[Any]:
    """The variables and parameters of an expression, each once."""
    return list({leaf.id: leaf for leaf in [*cost.variables(), *cost.parameters()]}.values())

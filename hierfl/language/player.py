"""Games: each player's own optimisation problem, declared as such; together they are a variational inequality.

y is a Nash equilibrium when every y_j solves its player's problem given the others' (and x). For objectives convex in the
player's own variable this is the variational inequality over the product of the players' sets whose mapping stacks the
partial gradients (Facchinei and Pang, 2003, section 1.4.2), so that a ``Nash`` level is an ``Equilibrium`` level.

A player may stand for many alike. Where players are declared as the rows of a variable, each entry of an expression belongs to one of them:
layout atoms (index, reshape, stack, transpose, broadcast) are evaluated on arrays of players instead of numbers; whatever combines entries of
two players has no owner: in a constraint it couples them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.binary_operators import MulExpression
from cvxpy.expressions.expression import Expression

from hierfl.atoms.algebra import sides_of
from hierfl.atoms.table import is_entrywise, row_of
from hierfl.errors import DeclarationError
from hierfl.language.calculus.derivative import (
    OwnGradient,
    Variables,
    depends,
    gradient,
    own_gradient,
    require_code_with_gradient,
)
from hierfl.language.declared_arguments import constraint_tuple, variable_tuple
from hierfl.language.levels import LowerLevel, refuse_selection
from hierfl.language.printing.text import expression_text
from hierfl.near_names import suggests_names

_COUPLING = ("symmetric", "PSD", "NSD", "diag", "sparsity")  # attributes that tie rows of a variable to each other


@suggests_names
class Player:
    """One player of a game, or many: a variable, what its owner minimises, and the owner's own constraints.

    Parameters
    ----------
    y
        The player's ``cp.Variable``, or a list of them.
    objective
        ``cp.Minimize(cost)``, ``cp.Maximize(profit)``, or an expression, which is minimised. A scalar declares one
        player; an expression of shape (n,) declares n players, of whom player j owns row j of each variable and has
        entry j as objective. It may mention x and the other players' variables.
    constraints
        On the player's own variable (and x).
    maximize, minimize
        In place of ``objective``: an expression, scalar or of shape (n,), that is maximised, or minimised.

    Attributes
    ----------
    cost
        What is minimised: the objective, negated for a maximising player.
    mapping
        The gradient of each player's cost in its own variable: one expression for each variable, of its shape.

    Raises
    ------
    DeclarationError
        No variable, no objective or two, an objective of the wrong shape or that does not mention the variable, user code
        without a gradient, a constraint that couples several players. That an objective has kinks is told when a problem is declared.

    Examples
    --------
    >>> hf.Player(y, maximize=cp.multiply(y, 1 - cp.sum(y)), constraints=[y >= 0])
    Player(y: maximize y * (1 - sum(y)), 2 players)
    """

    def __init__(
        self, y: Any, objective: Any = None, constraints: Any = (), *, maximize: Any = None, minimize: Any = None
    ) -> None:
        self.variables = variable_tuple(y, "Player")
        self.label = ", ".join(v.name() for v in self.variables)
        self.sense, self.objective = self._oriented(objective, maximize, minimize)
        self.constraints = constraint_tuple(constraints, f"player {self.label!r}")
        self._check_shapes()
        self._check_mentions()
        require_code_with_gradient(self.objective, self.variables, f"the objective of player {self.label!r}")
        self._check_uncoupled()
        self.cost: Expression = self.objective if self.sense == "minimize" else -self.objective
        derivative = gradient if self.count is None else own_gradient
        self.mapping: tuple[Expression, ...] = derivative(self.cost, self.variables)

    @property
    def count(self) -> int | None:
        """The number of players that are declared as rows; None for a single player."""
        return self.objective.shape[0] if self.objective.ndim else None

    @property
    def player_by_player(self) -> bool:
        """Whether the mapping is computed for one of the rows at a time, which takes n times as long."""
        return any(isinstance(part, OwnGradient) for part in self.mapping)

    def _oriented(self, objective: Any, maximize: Any, minimize: Any) -> tuple[str, Expression]:
        """The sense, "minimize" or "maximize", and the expression, however the objective was given."""
        told = {"": objective, "maximize": maximize, "minimize": minimize}
        found = [(name, given) for name, given in told.items() if given is not None]
        if len(found) != 1:
            raise DeclarationError(
                f"player {self.label!r} needs one objective: hf.Player(y, cost) is minimised, hf.Player(y, maximize=profit) maximised."
            )
        ((name, given),) = found
        sense = name or "minimize"
        if isinstance(given, (cp.Minimize, cp.Maximize)):
            if name:
                raise DeclarationError(f"player {self.label!r}: give {name}= the expression, not a cvxpy objective.")
            sense, given = ("minimize" if isinstance(given, cp.Minimize) else "maximize"), given.args[0]
        if not isinstance(given, Expression):
            raise DeclarationError(
                f"the objective of player {self.label!r} must be a CVXPY expression, cp.Minimize or cp.Maximize, not "
                f"{type(given).__name__}."
            )
        if given.is_complex():
            raise DeclarationError(f"the objective of player {self.label!r} is complex; hierfl treats real problems.")
        return sense, given

    def _check_shapes(self) -> None:
        """Check that the objective is a scalar, or has one entry for each row of the variables."""
        shape = self.objective.shape
        wrong = [v for v in self.variables if shape and v.shape[:1] != shape]
        if len(shape) > 1 or wrong:
            culprit = (wrong or self.variables)[0]
            raise DeclarationError(
                f"the objective of player {self.label!r} has shape {shape}, and {culprit.name()!r} has shape {culprit.shape}: a single "
                f"player has a scalar objective (write cp.sum(...) of it?), n players have an objective of shape (n,) and own "
                f"the rows of a variable of shape (n,) or (n, k)."
            )

    def _check_mentions(self) -> None:
        mentioned = {v.id for v in self.objective.variables()}
        for variable in self.variables:
            if variable.id not in mentioned:
                said = f"the objective of player {self.label!r} does not mention its own variable {variable.name()!r}"
                raise DeclarationError(f"{said}: any choice would be optimal. Remove it from the player, or add it to the objective.")

    def _check_uncoupled(self) -> None:
        """Check that neither an attribute nor a constraint ties one player's row to another's."""
        if self.count is None:
            return
        for variable in self.variables:
            shared = [name for name in _COUPLING if variable.attributes.get(name) not in (None, False)]
            if shared:
                raise DeclarationError(
                    f"variable {variable.name()!r} is declared {shared[0]}, which couples the {self.count} players that own its rows."
                )
        for constraint in self.constraints:
            if couples(constraint, self.variables):
                raise DeclarationError(
                    f"the constraint {expression_text(constraint)} of player {self.label!r} couples several of its {self.count} players: what "
                    f"one may do would depend on the others, which makes a generalised Nash problem. Give each player its own "
                    f"bound (y <= capacity), or charge for the shared resource in the objectives."
                )

    def __repr__(self) -> str:
        players = f", {self.count} players" if self.count is not None else ""
        return f"Player({self.label}: {self.sense} {expression_text(self.objective)}{players})"


NOBODY, SEVERAL = -1.0, -2.0


def couples(constraint: Any, variables: Variables) -> bool:
    """Whether some scalar condition of a constraint involves the rows of two players."""
    return any(bool((owners(part, variables) == SEVERAL).any()) for part in _conditions(constraint))


def owners(node: Any, variables: Variables) -> np.ndarray:
    """The player (row number) that each entry depends on; ``NOBODY`` for none, ``SEVERAL`` for more than one."""
    if isinstance(node, cp.Variable) and any(v.id == node.id for v in variables):
        rows = np.arange(node.shape[0], dtype=float)
        return np.broadcast_to(rows.reshape(-1, *(1,) * (node.ndim - 1)), node.shape)
    if not depends(node, {v.id for v in variables}):
        return np.full(node.shape, NOBODY)
    parts = [owners(argument, variables) for argument in node.args]
    if row_of(node).layout:
        return np.asarray(node.numeric(parts), dtype=float).reshape(node.shape)
    if is_entrywise(node):
        return _joined(np.stack([np.broadcast_to(part, node.shape) for part in parts]), 0)
    if isinstance(node, MulExpression) and all(1 <= part.ndim <= 2 for part in parts):
        return _of_product(parts[0], parts[1], node.shape)
    axis = getattr(node, "axis", None)
    if axis is not None and all((part == NOBODY).all() for part in parts[1:]):
        reduced = _over_axes(parts[0], axis)
        if reduced.size == node.size:  # a sum, norm or extreme along an axis
            return reduced.reshape(node.shape)
    return np.full(node.shape, _joined(np.concatenate([part.ravel() for part in parts]), 0))


def _conditions(constraint: Any) -> list[Any]:
    """Expressions whose entries are scalar conditions; a cone's condition is one for all its entries."""
    if (compared := sides_of(constraint)) is not None:
        return [compared[0] - compared[1]]
    return [cp.sum(cp.hstack([cp.sum(argument) for argument in constraint.args]))]


def _joined(parts: np.ndarray, axis: int) -> np.ndarray:
    """The common owner along an axis."""
    highest = parts.max(axis=axis)
    lowest = np.where(parts == NOBODY, np.inf, parts).min(axis=axis)
    joined = np.where((lowest == np.inf) | (lowest == highest), highest, SEVERAL)
    return np.where((parts == SEVERAL).any(axis=axis), SEVERAL, joined)


def _over_axes(part: np.ndarray, axis: Any) -> np.ndarray:
    gone = sorted({int(k) % part.ndim for k in (axis if isinstance(axis, (tuple, list)) else (axis,))})
    kept = [k for k in range(part.ndim) if k not in gone]
    moved = np.transpose(part, [*gone, *kept])
    return _joined(moved.reshape(-1, *(part.shape[k] for k in kept)), 0)


def _of_product(left: np.ndarray, right: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Entry (i, l) of a product joins row i of the left factor and column l of the right."""
    rows = _joined(np.atleast_2d(left), 1)[:, None]
    columns = _joined(right if right.ndim == 2 else right[:, None], 0)[None, :]
    whole = np.stack([np.broadcast_to(part, (rows.size, columns.size)) for part in (rows, columns)])
    return _joined(whole, 0).reshape(shape)


@suggests_names
class Nash(LowerLevel):
    """y(x) is a Nash equilibrium of a game: each player's variable solves its own problem given the others'.

    Parameters
    ----------
    *players
        :class:`Player` objects; each objective convex (concave, where maximised) in the player's own variable.
    scope
        ``"federation"`` (objectives are means over the clients), ``"client"`` or ``"sample"``, as for ``ArgMin``.

    Attributes
    ----------
    expressions
        The derived mapping, one expression for each variable: symbolic for sums, products and powers, with JAX's
        derivative of any other atom in its place.

    Raises
    ------
    DeclarationError
        No players, a variable owned by two, a constraint on another player's variable, a ``selection``; and as for ``ArgMin``.

    Examples
    --------
    >>> u, v = cp.Variable(name="u"), cp.Variable(name="v")
    >>> duel = hf.Nash(hf.Player(u, cp.square(u - v)), hf.Player(v, cp.square(v + u - 1)))
    >>> answers = hf.Problem(hf.Minimize(clients=cp.sum_squares(x) + u), duel).implicit.response(np.zeros(2))
    >>> float(answers[u].round(6)), float(answers[v].round(6))
    (0.5, 0.5)
    """

    kind = "equilibrium"

    def __init__(self, *players: Player, scope: str = "federation", selection: None = None) -> None:
        refuse_selection(selection, "Nash")
        self.players = players
        if not players:
            raise DeclarationError("Nash needs at least one hf.Player(y, objective, constraints).")
        _check_ownership(players)
        variables = [variable for player in self.players for variable in player.variables]
        mapping = tuple(part for player in self.players for part in player.mapping)
        super().__init__(variables, mapping, [c for player in self.players for c in player.constraints], scope)

    @property
    def declared(self) -> tuple[Expression, ...]:
        """The players' objectives."""
        return tuple(player.objective for player in self.players)

    def __repr__(self) -> str:
        return f"Nash({', '.join(map(repr, self.players))}; scope={self.scope!r})"


def _check_ownership(players: Sequence[Player]) -> None:
    """Check that all are players, that every variable has one owner, and that its constraints mention no other player's variables."""
    for player in players:
        if not isinstance(player, Player):
            instead = "; write hf.Nash(*players)" if isinstance(player, list | tuple) else ""
            said = "Nash takes hf.Player(y, objective, constraints) for each player"
            raise DeclarationError(f"{said}, not {player!r} ({type(player).__name__}){instead}.")
    owner: dict[int, Player] = {}
    for player in players:
        for variable in player.variables:
            if variable.id in owner:
                both = f"({owner[variable.id].label!r} and {player.label!r})"
                said = f"variable {variable.name()!r} is owned by two players {both}"
                raise DeclarationError(f"{said}: give each its own, or declare one player for their joint decision.")
            owner[variable.id] = player
    for player in players:
        for constraint in player.constraints:
            for variable in constraint.variables():
                if owner.get(variable.id, player) is not player:
                    raise DeclarationError(
                        f"the constraint {expression_text(constraint)} of player {player.label!r} mentions {variable.name()!r}, which player "
                        f"{owner[variable.id].label!r} owns: what one may do would depend on the other, which makes a generalised Nash "
                        f"problem. Constrain own variables only, charge for the shared resource in the objectives, or, for a "
                        f"variational equilibrium of a shared constraint, write hf.Equilibrium with the stacked gradients."
                    )

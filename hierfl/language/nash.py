"""Games: each player's own optimisation problem, declared as such; together they are a variational inequality.

y is a Nash equilibrium when every y_j solves its player's problem given the others' (and x). For objectives convex in the
player's own variable this is the variational inequality over the product of the players' sets whose mapping stacks the
partial gradients (Facchinei and Pang, 2003, section 1.4.2), so that a ``Nash`` level is an ``Equilibrium`` level.
"""

from __future__ import annotations

from collections.abc import Sequence

from cvxpy.expressions.expression import Expression

from hierfl.errors import DeclarationError
from hierfl.language.levels import LowerLevel, refuse_selection
from hierfl.language.player import Player
from hierfl.language.printing.text import expression_text
from hierfl.near_names import suggests_names


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
    """

    kind = "equilibrium"

    def __init__(self, *players: Player, scope: str = "federation", selection: None = None) -> None:
        refuse_selection(selection, "Nash")
        self.players = players
        _check_players(players)
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


def _check_players(players: Sequence[Player]) -> None:
    if not players:
        raise DeclarationError("Nash needs at least one hf.Player(y, objective, constraints).")
    for player in players:
        if not isinstance(player, Player):
            instead = "; write hf.Nash(*players)" if isinstance(player, list | tuple) else ""
            raise DeclarationError(
                f"Nash takes hf.Player(y, objective, constraints) for each player, not {player!r} ({type(player).__name__}){instead}."
            )


def _check_ownership(players: Sequence[Player]) -> None:
    """Check that every variable has one owner, whose constraints mention no other player's variables."""
    owner: dict[int, Player] = {}
    for player in players:
        for variable in player.variables:
            if variable.id in owner:
                raise DeclarationError(
                    f"variable {variable.name()!r} is owned by two players ({owner[variable.id].label!r} and {player.label!r}): give each "
                    f"its own variable, or declare one player for their joint decision."
                )
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

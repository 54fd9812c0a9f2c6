"""Whether each player of a game has a convex problem of its own, from the tree; what stays open is sampled when compiled.

CVXPY's rules come first. They see no curvature in a product such as ``y * (a - b * (y + z))``, so for a player with one
number to choose the sign of its own second derivative, here ``2 * b``, decides.
"""

from __future__ import annotations

from dataclasses import dataclass

from cvxpy.expressions.expression import Expression

from hierfl.analysis.enclosure import Enclosure, own_domain
from hierfl.analysis.hoist import hoist
from hierfl.analysis.variable_attributes import attribute_constraints, check_attributes
from hierfl.analysis.variable_bounds import bounds_of
from hierfl.atoms.algebra import constant_value
from hierfl.errors import NotConvexError
from hierfl.language.calculus.derivative import gradient
from hierfl.language.calculus.own_derivative import separable_gradient
from hierfl.language.nash import Nash
from hierfl.language.player import Player
from hierfl.language.printing.text import expression_text


@dataclass(frozen=True)
class PlayerConvexity:
    """Whether a player's cost is convex in its own variable: by which rule, or ``proof=None`` where the tree does not say."""

    player: Player
    proof: str | None


def players_convexity(level: Nash) -> tuple[PlayerConvexity, ...]:
    """What the tree proves of each player.

    Raises
    ------
    NotConvexError
        For a player whose objective is known to curve the wrong way; names it and the curvature.
    """
    return tuple(PlayerConvexity(player, _proof(player)) for player in level.players)


def _proof(player: Player) -> str | None:
    """How the tree proves that a player's cost is convex in its own decision; None where it does not say."""
    check_attributes(player.variables)
    _require_defined(player)
    (hoisted,) = hoist([player.cost], player.variables).expressions
    if hoisted.is_convex():
        return "by CVXPY's rules"
    wanted = "convex" if player.sense == "minimize" else "concave"
    if hoisted.is_concave():
        raise NotConvexError(
            f"the objective {expression_text(player.objective)} of player {player.label!r} must be {wanted} in {player.label}, but it is "
            f"{'concave' if wanted == 'convex' else 'convex'}: a stationary point would be the player's worst choice."
        )
    second = _own_second_derivative(player)
    if second is None:
        return None
    value = constant_value(second)
    if value is not None and value.min() < 0:
        raise NotConvexError(
            f"the objective {expression_text(player.objective)} of player {player.label!r} must be {wanted} in {player.label} given the others', "
            f"but its second derivative there is {value.min() if wanted == 'convex' else -value.min():.6g}."
        )
    if value is not None:
        return f"its own second derivative is constant, at least {value.min():.6g}"
    (hoisted,) = hoist([second], player.variables).expressions
    return f"its own second derivative {expression_text(second)} is nonnegative" if hoisted.is_nonneg() else None


def _require_defined(player: Player) -> None:
    """A player's own constraints keep its decision where CVXPY's rules hold: ``power(y, 3)`` is convex for y >= 0 only."""
    bounds = bounds_of([*player.constraints, *attribute_constraints(player.variables)], player.variables)
    enclosure, own = Enclosure(bounds), {v.id for v in player.variables}

    def visit(node: Expression) -> None:
        for condition in own_domain(node):
            if any(v.id in own for v in condition.variables()) and not enclosure.holds(condition):
                raise NotConvexError(
                    f"the objective {expression_text(player.objective)} of player {player.label!r} uses {expression_text(node)}, which "
                    f"CVXPY's rules treat only where {expression_text(condition)}: add that to the player's constraints."
                )
        for argument in node.args:
            visit(argument)

    visit(player.cost)


def _own_second_derivative(player: Player) -> Expression | None:
    """The second derivative in a player's single number; None where the player chooses several."""
    if len(player.variables) != 1:
        return None
    (variable,), (mapping,) = player.variables, player.mapping
    if player.count is None:
        return gradient(mapping, player.variables)[0] if variable.size == 1 else None
    if variable.size != player.count:
        return None
    slopes = separable_gradient(mapping, player.variables) if mapping.ndim == 1 else None
    return None if slopes is None else slopes[0]

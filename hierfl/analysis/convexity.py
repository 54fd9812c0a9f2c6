"""Convexity in the kept variables, by CVXPY's rules; a refusal names the smallest subexpression at fault.

Of a game also whether each player has a convex problem of its own, from the tree; what stays open is sampled when compiled.
CVXPY's rules come first. They see no curvature in a product such as ``y * (a - b * (y + z))``, so for a player with one
number to choose the sign of its own second derivative, here ``2 * b``, decides.

Whether an expression is continuously differentiable, although atoms of it have kinks: ``square(pos(y))`` and ``norm(hstack([y, 1]))`` are.

Each atom with kinks says what values it has there, 0 in case of ``pos``, and each atom where it is flat, a square at 0. By the chain
rule kinks of e are no kinks of phi(e) where phi is flat, with a continuous derivative, at all values that e has at its kinks: the
gradient of e is bounded (e is Lipschitz continuous), and is multiplied by what tends to 0. The values at kinks are followed through the
tree as intervals, entry by entry; kinks that an enclosure of an atom's values rules out are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.atoms.affine.affine_atom import AffAtom
from cvxpy.constraints.constraint import Constraint
from cvxpy.expressions.expression import Expression
from cvxpy.expressions.leaf import Leaf
from scipy.sparse import issparse

from hierfl.analysis.enclosure import NOTHING_KNOWN, Enclosure, Known, enclose_node, own_domain, rules_hold
from hierfl.analysis.hoist import hoist
from hierfl.analysis.variable_bounds import attribute_constraints, bounds_of
from hierfl.atoms.algebra import constant_value, depends, nodes_of
from hierfl.atoms.intervals import Interval
from hierfl.atoms.ranges import value_at
from hierfl.atoms.table import is_entrywise, row_of
from hierfl.errors import DeclarationError, NotConvexError
from hierfl.language.calculus.derivative import gradient, separable_gradient
from hierfl.language.levels import ArgMin
from hierfl.language.player import Nash, Player
from hierfl.language.printing.text import expression_text


def kinked_atom(expression: Any, variables: Sequence[cp.Variable], enclosure: Enclosure) -> Any | None:
    """The first atom whose kinks leave the expression without a continuous gradient in the variables; None where it has one."""
    kinks = _Kinks({v.id for v in variables}, enclosure)
    return kinks.source(expression) if kinks(expression) is not None else None


class _Kinks:
    """The values that expressions may have at their kinks, entry by entry: an interval, of lo > hi in entries without kinks."""

    def __init__(self, own: set[int], enclosure: Enclosure) -> None:
        self.own, self.enclosure = own, enclosure
        self.memo: dict[int, Interval | None] = {}

    def __call__(self, node: Any) -> Interval | None:
        """The values at kinks; None where there are none."""
        if isinstance(node, Leaf) or not any(v.id in self.own for v in node.variables()):
            return None
        if id(node) not in self.memo:
            with np.errstate(all="ignore"):
                self.memo[id(node)] = self._visit(node)
        return self.memo[id(node)]

    def source(self, node: Any) -> Any:
        """The atom whose kinks an expression has."""
        return next((self.source(argument) for argument in node.args if self(argument) is not None), node)

    def _visit(self, node: Any) -> Interval | None:
        row, arguments = row_of(node), [self.enclosure(argument) for argument in node.args]
        ends_inside = row.smooth and row.switches and row.switches(node) and not self._is_lipschitz(node)  # as sqrt(square(y)) does
        found = [self._own_kinks(node, arguments)] if row.kinked or ends_inside else []
        for place, argument in enumerate(node.args):
            values = self(argument)
            if values is None:
                continue
            flat = row.flat(node, place, values, arguments) if row.flat else np.zeros(values.shape, bool)
            left = Interval(np.where(flat, np.inf, values.lo), np.where(flat, -np.inf, values.hi))
            if (left.lo <= left.hi).any():
                found.append(self._carried(node, place, left, arguments))
        if not found:
            return None
        joined = Interval(np.min([one.lo for one in found], axis=0), np.max([one.hi for one in found], axis=0))
        return joined if (joined.lo <= joined.hi).any() else None

    def _own_kinks(self, node: Any, arguments: list[Interval]) -> Interval:
        rule = row_of(node).kink_values
        values = Interval.free(node.shape) if rule is None else rule(node, arguments)
        return _without_empty(values.meet(self.enclosure(node)))

    def _carried(self, node: Any, place: int, values: Interval, arguments: list[Interval]) -> Interval:
        """The values of an atom where one argument has these values at its kinks, and none in its other entries."""
        if row_of(node).layout:
            none = [(np.full(a.shape, np.inf), np.full(a.shape, -np.inf)) for a in arguments]
            none[place] = values.lo, values.hi
            low, high = (value_at(node, [ends[side] for ends in none]) for side in (0, 1))
            return Interval(low, high)
        alike = values.shape == node.shape or values.lo.size == 1
        if not is_entrywise(node) or not alike or not self._is_lipschitz(node):
            return Interval.free(node.shape)
        kinked = values.lo <= values.hi
        there = Interval(
            np.where(kinked, values.lo, arguments[place].lo), np.where(kinked, values.hi, arguments[place].hi)
        )
        reached = enclose_node(node, [there if k == place else one for k, one in enumerate(arguments)])
        here = np.broadcast_to(kinked, node.shape)
        return _without_empty(Interval(np.where(here, reached.lo, np.inf), np.where(here, reached.hi, -np.inf)))

    def _is_lipschitz(self, node: Any) -> bool:
        """Whether an atom keeps Lipschitz continuous what is, as a square root does not where it ends."""
        row = row_of(node)
        if row.smooth is None:
            return row.kink_values is not None or isinstance(node, AffAtom)
        return row.smooth(node, [any(v.id in self.own for v in a.variables()) for a in node.args], self.enclosure)


def _without_empty(values: Interval) -> Interval:
    """With one sign of emptiness."""
    none = ~(values.lo <= values.hi)
    return Interval(np.where(none, np.inf, values.lo), np.where(none, -np.inf, values.hi))


def require_convex_set(
    constraints: Sequence[Constraint],
    keep: Sequence[cp.Variable],
    what: str,
    known: Known = NOTHING_KNOWN,
) -> None:
    """Check that the constraints describe a convex set of ``keep``; everything else fixed within its bounds ``known`` (by leaf id).

    Raises ``NotConvexError``, naming the smallest subexpression that breaks CVXPY's rules.
    """
    hoisting = hoist(constraints, keep, known)
    for constraint, hoisted in zip(constraints, hoisting.expressions):
        if isinstance(constraint, cp.FiniteSet):  # CVXPY calls it DCP and solves it with integers
            raise NotConvexError(
                f"the constraint {expression_text(constraint)} in {what} is a finite set, which is not convex in {_names(keep)}. "
                f"Bound the variable by an interval instead; upper variables may be whole numbers (integer=True)."
            )
        if hoisted.is_dcp():
            continue
        culprit = next((c for c in map(_smallest, hoisted.args) if c is not None), None)
        where = f": {_without_curvature(hoisting, culprit)}" if culprit is not None else ""
        raise NotConvexError(
            f"the constraint {expression_text(constraint)} in {what} is not convex in {_names(keep)}{where}. Write convex <= concave, or "
            f"affine == affine."
        )


def convex_where_known(expression: Expression, variables: Sequence[cp.Variable], known: Known) -> bool:
    """Whether CVXPY's rules prove it convex in the variables, and are about the function that hierfl evaluates."""
    return bool(hoist([expression], variables, known).expressions[0].is_convex()) and rules_hold(expression, known)


def require_domain(parts: Sequence[Expression | Constraint], keep: Sequence[cp.Variable], what: str, known: Known = NOTHING_KNOWN) -> None:
    """Check that what is fixed stays in the domain of the atoms over ``keep``: ``quad_over_lin(y, x)`` needs x >= 0.

    Raises ``DeclarationError``, naming the atom and the constraint to declare.
    """
    kept, enclosure = {v.id for v in keep}, Enclosure(known, definite=True)
    for node in (node for part in parts for node in nodes_of(part) if depends(node, kept)):
        for condition in own_domain(node):
            if not depends(condition, kept) and not enclosure.holds(condition):
                raise DeclarationError(
                    f"{what} uses {expression_text(node)}, which is convex only where {expression_text(condition)}: that does not "
                    f"follow from the declared constraints and attributes. Declare it (Problem(constraints=...), nonneg=True)."
                )


def _without_curvature(hoisting: Any, culprit: Expression) -> str:
    """What is wrong with the smallest subexpression that is neither convex nor concave by CVXPY's rules."""
    text = hoisting.text(culprit)
    if isinstance(culprit, cp.QuadForm) and isinstance(matrix := culprit.args[1], cp.Constant):
        curvatures = np.linalg.eigvalsh(matrix.value.toarray() if issparse(matrix.value) else matrix.value)
        return f"{text} is neither convex nor concave, as its matrix has eigenvalues from {curvatures[0]:.3g} to {curvatures[-1]:.3g}"
    return f"{text} has no curvature that CVXPY can prove"


def require_curvature(level: ArgMin, expression: Expression, known: Known) -> None:
    """Check that the objective of a level, as given, is convex in its variables (concave, of ``ArgMax``).

    Raises errors as :func:`require_convex_set`.
    """
    keep, maximised = level.variables, level.kind == "argmax"
    hoisting = hoist([expression], keep, known)
    (hoisted,) = hoisting.expressions
    if hoisted.is_concave() if maximised else hoisted.is_convex():
        return
    culprit = _smallest(hoisted)
    reason = (
        _without_curvature(hoisting, culprit)
        if culprit is not None
        else f"{hoisting.text(hoisted)} is {hoisted.curvature.lower()}"
    )
    advice = (
        "Rewrite it with CVXPY's atoms, declare signs (nonneg=True, or constraints such as x >= 0), or assert it with "
        "hf.Function(..., convex=True)."
    )
    if hoisted.is_convex() if maximised else hoisted.is_concave():
        advice = f"If it is to be {'minimised, write hf.ArgMin' if maximised else 'maximised, write hf.ArgMax'}."
    raise NotConvexError(
        f"the objective of {type(level).__name__} must be {'concave' if maximised else 'convex'} in {_names(keep)} for every x, but "
        f"{reason}. {advice}"
    )


def _smallest(expression: Expression) -> Expression | None:
    """The smallest subexpression that is neither convex nor concave; None where there is none."""
    if expression.is_dcp():
        return None
    below = (_smallest(argument) for argument in expression.args)
    return next((culprit for culprit in below if culprit is not None), expression)


def _names(variables: Sequence[cp.Variable]) -> str:
    return ", ".join(v.name() for v in variables)


@dataclass(frozen=True)
class PlayerConvexity:
    """Whether a player's cost is convex in its own variable: by which rule, or ``proof=None`` where the tree does not say."""

    player: Player
    proof: str | None


def players_convexity(level: Nash) -> tuple[PlayerConvexity, ...]:
    """What the tree proves of each player.

    Raises ``NotConvexError`` for a player whose objective is known to curve the wrong way; names it and the curvature.
    Raises ``DeclarationError`` for a player whose objective has kinks in its own decision; names the atom.
    """
    return tuple(PlayerConvexity(player, _proof(player)) for player in level.players)


def _proof(player: Player) -> str | None:
    """How the tree proves that a player's cost is convex in its own decision; None where it does not say."""
    enclosure = Enclosure(bounds_of([*player.constraints, *attribute_constraints(player.variables)], player.variables), definite=True)
    _require_defined(player, enclosure)
    _require_differentiable(player, enclosure)
    (hoisted,) = hoist([player.cost], player.variables).expressions
    if hoisted.is_convex():
        return "by CVXPY's rules"
    wanted = "convex" if player.sense == "minimize" else "concave"
    if hoisted.is_concave():
        raise NotConvexError(
            f"the objective {expression_text(player.objective)} of player {player.label!r} must be {wanted} in {player.label}, but it is "
            f"{'concave' if wanted == 'convex' else 'convex'}: a stationary point would be the player's worst choice.{_turned(player)}"
        )
    second = _own_second_derivative(player)
    if second is None:
        return None
    value = constant_value(second)
    if value is not None and value.min() < 0:
        raise NotConvexError(
            f"the objective {expression_text(player.objective)} of player {player.label!r} must be {wanted} in {player.label} given the others', "
            f"but its second derivative there is {value.min() if wanted == 'convex' else -value.min():.6g}.{_turned(player) if value.max() <= 0 else ''}"
        )
    if value is not None:
        return f"its own second derivative is constant, at least {value.min():.6g}"
    (hoisted,) = hoist([second], player.variables).expressions
    return f"its own second derivative {expression_text(second)} is nonnegative" if hoisted.is_nonneg() else None


def _require_differentiable(player: Player, enclosure: Enclosure) -> None:
    """A game is solved through its players' gradients, which have to be continuous in their own decisions."""
    culprit = kinked_atom(player.objective, player.variables, enclosure)
    if culprit is not None:
        text = expression_text(culprit)
        raise DeclarationError(
            f"{text} in the objective of player {player.label!r} is not differentiable everywhere, and a game is solved through its players' gradients: "
            f"smooth it (cp.huber, cp.logistic, cp.log_sum_exp, or a square or a power above 1 of what is 0 where its kinks are, such as "
            f"cp.square(cp.pos(y))), or give the player a further variable t and the constraint {text} <= t."
        )


def _require_defined(player: Player, enclosure: Enclosure) -> None:
    """A player's own constraints keep its decision where CVXPY's rules hold: ``power(y, 3)`` is convex for y >= 0 only."""
    own = {v.id for v in player.variables}
    for node in nodes_of(player.cost):
        for condition in own_domain(node):
            if depends(condition, own) and not enclosure.holds(condition):
                raise NotConvexError(
                    f"the objective {expression_text(player.objective)} of player {player.label!r} uses {expression_text(node)}, which "
                    f"CVXPY's rules treat only where {expression_text(condition)}: add that to the player's constraints."
                )


def _turned(player: Player) -> str:
    """What to write where the other sense is meant."""
    other = "maximize" if player.sense == "minimize" else "minimize"
    return f" If it is to be {other}d, write hf.Player({player.label}, {other}=...)."


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

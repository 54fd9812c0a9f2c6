"""Several lower levels as they are declared, ``lower=[level, level]``, and what they are together.

Independent levels of one kind and scope are one level: the sum of their objectives over all their constraints. Others keep their order.
Where one level is the federation's and another one each client's, the clients' y become the rows of one variable of the federation, of which
every client reads its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.expressions.expression import Expression

from hierfl.analysis.hoist import copy_with, instantiate
from hierfl.analysis.variable_bounds import attribute_constraints, bounds_of
from hierfl.atoms.intervals import Interval
from hierfl.errors import DeclarationError
from hierfl.language.declaration import Declaration
from hierfl.language.declared_arguments import samples_among
from hierfl.language.expectation import SampleAverage, averages_of, total
from hierfl.language.federation.client import Client
from hierfl.language.federation.federated_data import Federation
from hierfl.language.federation.sample_values import Elsewhere
from hierfl.language.levels import ArgMin, Followers, LowerLevel, Price
from hierfl.language.sample import ClientParameter, OneForEach

MOST_CLIENTS = 200  # whose own levels stand beside one of the federation: programs grow with their square


def levels_of(lower: Any) -> tuple[LowerLevel, ...]:
    """The levels that were given as ``lower``, one or several in a list; those of a declaration that is made again.

    Raises ``DeclarationError`` for an empty list.
    """
    if isinstance(lower, Followers):
        return lower.levels
    levels = tuple(lower) if isinstance(lower, (list, tuple)) else (lower,)
    if not levels:
        raise DeclarationError("lower=[] has no level: leave it out where there is none.")
    return levels


def require_order(levels: Sequence[LowerLevel]) -> None:
    """Require that each level decides variables of its own, and mentions no later one's; that what answers each sample depends on it.

    Raises ``DeclarationError``, naming the variable; also for a choice among solutions that later answers have a part in.
    """
    owner: dict[int, int] = {}
    for place, level in enumerate(levels):
        for variable in level.decided:
            if variable.id in owner:
                raise DeclarationError(
                    f"variable {variable.name()!r} is decided by lower levels {owner[variable.id] + 1} and {place + 1}: give each its own, or "
                    f"declare one level for their joint decision."
                )
            owner[variable.id] = place
    for place, level in enumerate(levels):
        # not of what was declared: a player's objective may have a sample that its derivative has not
        parts = (*level.expressions, *level.constraints)
        answers = [v for part in parts for v in part.variables() if owner.get(v.id, place) < place]
        if level.scope == "sample" and not answers and not samples_among(p for part in parts for p in part.parameters()):
            raise DeclarationError(
                f"{type(level).__name__} has scope='sample', which gives every sample a y of its own, but its y depends on no hf.Sample: "
                f"it is the same for all of a client's. Write scope='client', or mention the sample that y answers in the level."
            )
        later = [v for part in (*level.declared, *level.constraints) for v in part.variables() if owner.get(v.id, place) > place]
        if later:
            raise DeclarationError(
                f"lower level {place + 1} mentions {later[0].name()!r}, which level {owner[later[0].id] + 1} decides: a level is given the answers of "
                f"those before it. Put that level first, or, where each waits for the other, declare an hf.Nash of both."
            )
        if level.selection is not None and place < len(levels) - 1 and _joined(levels) is None:
            raise DeclarationError(
                f"lower level {place + 1} of {len(levels)} has selection={level.selection!r}: what the upper objective makes of its y, later "
                f"answers decide too. Only the last of several levels chooses among its solutions; add a strongly convex term to the others."
            )


def in_order(levels: Sequence[LowerLevel]) -> LowerLevel:
    """The levels as one: a sum where they are alike and independent, else in their order."""
    return levels[0] if len(levels) == 1 else _joined(levels) or Followers(levels)


def _joined(levels: Sequence[LowerLevel]) -> LowerLevel | None:
    """Independent optimisation problems as one; None of others."""
    first = levels[0]
    if not isinstance(first, ArgMin):
        return None
    kind = type(first)
    alike = all(type(one) is kind and (one.scope, one.selection) == (first.scope, first.selection) for one in levels)
    priced = any(level.prices for level in levels)
    if not alike or priced or any(_mentions(a, b) for a in levels for b in levels if a is not b):
        return None
    value = sum((level.expression for level in levels[1:]), start=levels[0].expression)
    variables = [v for level in levels for v in level.variables]
    return kind(variables, value, [c for level in levels for c in level.constraints], first.scope, selection=first.selection)


def _mentions(level: LowerLevel, other: LowerLevel) -> bool:
    own = {v.id for v in other.decided} | {dual.id for one in other.constraints for dual in one.dual_variables}
    return any(
        v.id in own or (isinstance(v, Price) and any(v.constraint is one for one in other.constraints))
        for part in (*level.declared, *level.constraints)
        for v in part.variables()
    )


def of_one_scope(
    levels: tuple[LowerLevel, ...], federation: Federation | None
) -> tuple[tuple[LowerLevel, ...], Federation | None, dict[Any, Expression]]:
    """The levels in one scope, the federation with what that takes, and what stands for the clients' variables.

    Raises ``DeclarationError`` for a sample's level beside others, and for data that are held elsewhere.
    """
    scopes = {level.scope for level in levels}
    if len(scopes) < 2:
        return levels, federation, {}
    if "sample" in scopes:
        raise DeclarationError(
            f"lower levels of scopes {', '.join(map(repr, sorted(scopes)))}: a level that answers each sample stands beside others of that scope only."
        )
    federation = federation or Federation([Client()])
    clients, weights = federation.clients, federation.weights
    if any(isinstance(value, Elsewhere) for client in clients for value in (*client.samples.values(), *client.parameters.values())):
        raise DeclarationError(
            "lower levels of federation and of client scope in one problem are solved where all data are, and some are elsewhere (hf.Elsewhere)."
        )
    if len(clients) > MOST_CLIENTS:
        raise DeclarationError(
            f"a lower level of each of {len(clients):,} clients beside one of the federation: these are one program with all clients' rows, which takes "
            f"minutes from {MOST_CLIENTS} clients on. Group the clients, or give the federation's answer as one of each client's level."
        )
    if not isinstance(weights, str) and not np.all(weights):
        raise DeclarationError(
            f"{clients[int(np.argmin(weights))].called(int(np.argmin(weights)))} has weight 0, and its own lower level stands beside one of the federation: "
            f"their answers are weighed together. Give it a weight, or leave it out of the federation."
        )
    own = ClientParameter(len(clients), name="own place")
    rows = {v: OneForEach(v, len(clients)) for level in levels if level.scope == "client" for v in level.decided}
    meant = {v: row.row(own) for v, row in rows.items()}
    together = _OverClients(clients, rows, weights)
    levels = tuple(together.level(level) if level.scope == "federation" else level for level in levels)
    return tuple(_shared(level, rows, meant) for level in levels), with_places(federation, own), meant


@dataclass(frozen=True)
class _OverClients:
    """Means and totals over the clients of what they decide, in the federation's levels, as sums of their rows."""

    clients: Sequence[Client]
    rows: dict[cp.Variable, OneForEach]
    weights: np.ndarray | str

    def level(self, level: LowerLevel) -> LowerLevel:
        """The level with these written out; itself where it has none."""
        parts = [*level.expressions, *level.constraints]
        if not any(self._is_meant(average) for part in parts for average in averages_of(part)):
            return level
        new, count = copy(level), len(level.expressions)
        parts = [self._written(part) for part in parts]
        new.expressions, new.constraints = tuple(parts[:count]), tuple(parts[count:])
        return new

    def _is_meant(self, average: SampleAverage) -> bool:
        return not samples_among(average.parameters()) and any(v.id in {s.id for s in self.rows} for v in average.variables())

    def _written(self, part: Any) -> Any:
        if isinstance(part, SampleAverage) and self._is_meant(part):
            factors = np.ones(len(self.clients)) if isinstance(part, total) else self._shares()
            return cp.sum([c * instantiate([part.per_sample], self._of(k))[0] for k, c in enumerate(factors)])
        if not any(self._is_meant(average) for average in averages_of(part)):
            return part
        return copy_with(part, self._written)

    def _of(self, place: int) -> dict[Any, Any]:
        unit = cp.Constant(np.eye(len(self.clients))[place])
        return {**{s: row.row(unit) for s, row in self.rows.items()}, **self.clients[place].parameters}

    def _shares(self) -> np.ndarray:
        if isinstance(self.weights, np.ndarray):
            return self.weights / np.sum(self.weights)
        if self.weights == "samples":
            raise DeclarationError(
                "a lower level has the mean over the clients of what they decide, and weights='samples': write hf.total, or a federation with numbers as weights."
            )
        return np.full(len(self.clients), 1.0 / len(self.clients))


def _shared(
    level: LowerLevel, rows: dict[cp.Variable, OneForEach], meant: dict[Any, Expression]
) -> LowerLevel:
    """A level of the federation, with the rows of what clients decide in place of their variables."""
    if level.scope == "client" and not isinstance(level, ArgMin):
        raise DeclarationError(
            f"{type(level).__name__}({', '.join(v.name() for v in level.decided)}) has client scope beside a level of federation scope: of clients' "
            f"levels there, hf.ArgMin and hf.ArgMax are treated. Write its potential, or the level with federation scope."
        )
    new = copy(level)
    mine = level.variables if level.scope == "client" else ()
    new.variables = tuple(rows.get(v, v) for v in level.variables)
    new.expressions = tuple(instantiate(level.expressions, meant))
    new.constraints = tuple(instantiate([*level.constraints, *attribute_constraints(mine)], meant))
    new.scope, new.of = "federation", level if level.scope == "client" else None
    return new


def with_places(federation: Federation, own: ClientParameter) -> Federation:
    """The federation, each of whose clients has its unit vector for ``own``; arrays are shared."""
    new, clients = object.__new__(Federation), [object.__new__(Client) for _ in federation.clients]
    for client, mine, unit in zip(clients, federation.clients, np.eye(len(clients))):
        vars(client).update(vars(mine) | {"parameters": {**mine.parameters, own: unit}})
    vars(new).update(vars(federation) | {"clients": tuple(clients)})
    return new


def _box(variable: cp.Variable, known: Interval | None) -> list[Any]:
    """What is known of an answer, as constraints on what later levels are given."""
    if known is None:
        return []
    ends = [np.broadcast_to(np.asarray(end, float), variable.shape) for end in (known.lo, known.hi)]
    return [row for row, end in zip((variable >= ends[0], variable <= ends[1]), ends) if np.isfinite(end).all()]


def each_level(declaration: Declaration) -> list[Declaration]:
    """The declaration with each of its levels alone, as if x and the answers before it were decided above; itself where there is one."""
    level, roles, known = declaration.lower_level, declaration.roles, declaration.known_bounds
    if not isinstance(level, Followers):
        return [declaration] if level is not None else []
    found: list[Declaration] = []
    for place, own in enumerate(level.levels):
        # what answers an answer of a sample's has its rows, whatever it mentions of them
        mentioned = (p for part in (*own.expressions, *own.constraints) for p in part.parameters())
        samples = roles.lower_samples if own.scope == "sample" else samples_among(mentioned)
        theirs = replace(roles, upper=(*roles.upper, *level.before(place)), lower=own.variables, lower_samples=samples)
        within = (*declaration.constraints, *(row for v in level.before(place) for row in _box(v, known.get(v.id))))
        found.append(replace(declaration, lower_level=own, roles=theirs, known_bounds=known, constraints=within))
        limits = [*own.constraints, *attribute_constraints(own.decided)]
        known = {**known, **bounds_of(limits, own.decided, known)}
    return found

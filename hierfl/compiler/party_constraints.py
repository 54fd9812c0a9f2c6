"""Which constraints are public, which are a client's own, and what they are together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cvxpy.lin_ops.lin_utils import get_id

from hierfl.analysis.hoist import instantiate
from hierfl.analysis.variable_bounds import attribute_constraints
from hierfl.errors import DeclarationError
from hierfl.language.declaration import Declaration
from hierfl.language.federation.elsewhere import Elsewhere
from hierfl.language.sample import ClientParameter

MOST_INTERSECTED = 1000  # clients whose private parts of a federation-scope Y(x) are compiled into one set


def split_constraints(constraints: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """(public, private): private ones mention a client parameter."""
    private = [c for c in constraints if any(isinstance(p, ClientParameter) for p in c.parameters())]
    return [c for c in constraints if not any(c is p for p in private)], private


def upper_constraints(declaration: Declaration) -> list[Any]:
    """The constraints on x, with those that the variables' attributes make."""
    return [*declaration.constraints, *attribute_constraints(declaration.roles.upper)]


def constraints_of_all_clients(declaration: Declaration) -> list[Any]:
    """X as the intersection of all X_i, each private constraint written once for every client."""
    public, private = split_constraints(upper_constraints(declaration))
    clients = declaration.federation.clients if declaration.federation else ()
    return [*public, *(c for client in clients for c in instantiate(private, client.parameters))]


def lower_constraints(declaration: Declaration) -> list[Any]:
    """Y(x); in federation scope a client parameter means the intersection over the clients.

    Raises
    ------
    DeclarationError
        If that intersection is one of too many sets.
    """
    level, federation = declaration.lower_level, declaration.federation
    if level is None:
        return []
    constraints = [*level.constraints, *attribute_constraints(level.variables)]
    if level.scope != "federation" or federation is None:
        return constraints
    shared, private = split_constraints(constraints)
    if len(federation.clients) > MOST_INTERSECTED and private:
        raise DeclarationError(
            f"{private[0]} holds for every one of {len(federation.clients)} clients in federation scope: the intersection of "
            f"so many sets is not compiled. Give the binding bound as one number."
        )
    named = [p for constraint in private for p in constraint.parameters() if isinstance(p, ClientParameter)]
    away = [p for p in named if any(isinstance(client.parameters.get(p), Elsewhere) for client in federation.clients)]
    if away:
        raise DeclarationError(
            f"{private[0]} holds for all clients' values of {away[0].name()!r} in federation scope, and these are elsewhere (hf.Elsewhere): "
            f"who solves for the one y has to know them. Give the numbers, or declare scope='client'."
        )
    return shared + [_told_apart(c) for client in federation.clients for c in instantiate(private, client.parameters)]


def _told_apart(constraint: Any) -> Any:
    """A client's copy of a constraint, which by CVXPY's rules has the number of the original: as one of its own."""
    constraint.constr_id = get_id()
    return constraint

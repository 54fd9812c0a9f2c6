"""Parameters as decisions: the declaration in which values that were fixed are upper variables, so that y and f are functions of them too.

All that is said of x then holds of them: how y moves, where it has kinks, what is refused. Convexity is proved for all of their values.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.expressions.leaf import Leaf

from hierfl.analysis.declare import declare
from hierfl.analysis.hoist import instantiate, leaf_attributes
from hierfl.analysis.several_levels import holding, with_clients
from hierfl.errors import DeclarationError, IncompatibleSolverError, NotConvexError, SettingError
from hierfl.language.declaration import Declaration
from hierfl.language.federation.client import Client
from hierfl.language.followers import Followers
from hierfl.language.levels import LowerLevel
from hierfl.language.player import Nash
from hierfl.language.sample import ClientParameter, Sample

SIGNS = ("nonneg", "nonpos", "pos", "neg")  # what a client's row has if all rows have it


def raised(declaration: Declaration, parameters: Sequence[cp.Parameter]) -> tuple[Declaration, tuple[cp.Variable, ...]]:
    """(the declaration, the upper variable of each parameter), a ``ClientParameter``'s with a leading axis of clients.

    Raises
    ------
    SettingError
        For what is no parameter of the problem.
    NotConvexError, DeclarationError
        Where a lower level is convex for the values only that parameters have now.
    IncompatibleSolverError
        For games, several levels in sequence, and prices.
    """
    level, federation = declaration.lower_level, declaration.federation
    clients = federation.clients if federation else (Client(),)
    _require_parameters(declaration, parameters)
    if level is None or isinstance(level, (Followers, Nash)) or level.prices:
        kind = "no lower level" if level is None else "prices" if level.prices else "a game" if isinstance(level, Nash) else "several lower levels"
        raise IncompatibleSolverError(
            f"a layer is made of one hf.ArgMin, hf.ArgMax or hf.Equilibrium without prices; here there is {kind}. Where only x moves, "
            f"implicit(x) and implicit.gradient(x) answer."
        )
    own = ClientParameter(len(clients), name="place among the clients", nonneg=True)
    variables = tuple(_variable(parameter, len(clients)) for parameter in parameters)
    meant = {p: _read(p, variable, own) for p, variable in zip(parameters, variables)}
    if any(isinstance(p, ClientParameter) for p in parameters):
        federation = with_clients(federation, [holding(c, own, unit) for c, unit in zip(clients, np.eye(len(clients)))])
    upper = [*declaration.constraints, *(one.constraint for one in declaration.coupled)]
    try:
        made = declare(
            declaration.objective.over(lambda term: instantiate([term], meant)[0]),
            _with(level, meant),
            instantiate(upper, meant),
            federation,
        )
    except (NotConvexError, DeclarationError) as error:
        names = ", ".join(p.name() for p in parameters)
        raise type(error)(
            f"{error.args[0]} In a layer this has to hold for all values of {names} together with x: say what they are, as in "
            f"cp.Parameter(..., nonneg=True), or leave one that stays as it is out of jax(...)."
        ) from error
    return made, variables


def _require_parameters(declaration: Declaration, parameters: Sequence[Any]) -> None:
    """Each is a parameter of the problem, given once."""
    roles = declaration.roles
    known = [*roles.parameters, *roles.client_parameters]
    for parameter in parameters:
        if isinstance(parameter, Sample):
            raise SettingError(
                f"{parameter.name()!r} is a Sample: rows of data are no inputs of a layer. A cp.Parameter or a hf.ClientParameter with a row for "
                f"each of them is."
            )
        if not any(parameter is one for one in known):
            names = ", ".join(one.name() for one in known) or "none"
            given = parameter.name() if isinstance(parameter, Leaf) else parameter
            raise SettingError(f"{given!r} is no parameter of the problem, which has {names}.")
    if len({id(parameter) for parameter in parameters}) < len(parameters):
        raise SettingError("a parameter is given twice.")


def _variable(parameter: cp.Parameter, clients: int) -> cp.Variable:
    """What is decided in its place."""
    attributes = {name: value for name, value in leaf_attributes(parameter).items() if value is not None}
    if not isinstance(parameter, ClientParameter):
        return cp.Variable(parameter.shape, name=parameter.name(), **attributes)
    other = [name for name in attributes if name not in SIGNS]
    if other:
        raise IncompatibleSolverError(f"{parameter.name()!r} is declared {other[0]}, which rows of a layer's input cannot be: give it as a cp.Parameter.")
    shape = (clients, parameter.size) if parameter.ndim else (clients,)
    return cp.Variable(shape, name=parameter.name(), **attributes)


def _read(parameter: cp.Parameter, variable: cp.Variable, own: ClientParameter) -> Any:
    """What stands for the parameter: a client's is its row."""
    if not isinstance(parameter, ClientParameter):
        return variable
    return own @ variable if parameter.ndim < 2 else cp.reshape(own @ variable, parameter.shape, order="C")


def _with(level: LowerLevel, meant: dict[Any, Any]) -> LowerLevel:
    """The level with what is meant in place of the parameters."""
    new = copy(level)
    new.expressions = tuple(instantiate(level.expressions, meant))
    new.constraints = tuple(instantiate(level.constraints, meant))
    return new

"""``declare``: a problem's parts, checked together and made a :class:`~hierfl.language.declaration.Declaration`.

Convexity is proved here by CVXPY's rules, once with what the constraints on x say of x (``declare``) and, for those who ask
about points outside X, once without (``convex_on_x_only``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import cvxpy as cp
import numpy as np
from cvxpy.constraints.constraint import Constraint
from cvxpy.expressions.expression import Expression

from hierfl.analysis.convexity import players_convexity, require_convex_set, require_curvature, require_domain
from hierfl.analysis.enclosure import Known
from hierfl.analysis.hoist import instantiate
from hierfl.analysis.several_levels import each_level, in_order, levels_of, of_one_scope, require_order
from hierfl.analysis.variable_bounds import attribute_constraints, bounds_of, check_attributes
from hierfl.atoms.intervals import Interval
from hierfl.atoms.own_atoms import require_sound_atoms
from hierfl.errors import DataError, DeclarationError, NotConvexError
from hierfl.language.coupled import ROW, split_coupled
from hierfl.language.declaration import Declaration, Roles
from hierfl.language.declared_arguments import called, constraint_tuple, unique_leaves
from hierfl.language.federation.client import require_paired
from hierfl.language.federation.federated_data import Federation
from hierfl.language.levels import ArgMin, Dual, Followers, LowerLevel, Objective, Price, price_sign, priced
from hierfl.language.player import Nash
from hierfl.language.printing.text import expression_text
from hierfl.language.sample import ClientParameter, Sample


def declare(objective: Any, lower: Any, constraints: Any, federation: Any) -> Declaration:
    """The declaration of a problem; arguments as of :class:`hierfl.Problem`.

    Raises ``DeclarationError``, ``NotConvexError``, ``DataError``, naming the culprit and what to write instead.
    """
    given = () if lower is None else levels_of(lower)
    _require_kinds(objective, given, federation)
    require_order(given)
    upper = constraint_tuple(constraints, "Problem")
    require_sound_atoms([*objective.terms, *upper, *(part for level in given for part in (*level.expressions, *level.constraints))])
    _require_prices_of_one_scope(given, [*objective.terms, *upper])
    check_attributes([v for level in given for v in level.decided])  # as declared: rows of what clients decide have none
    levels, federation, rows = of_one_scope(given, federation)
    if rows:
        _require_no_client_at_server(objective, rows)
        objective, upper = objective.over(lambda term: instantiate([term], rows)[0]), tuple(instantiate(upper, rows))
    objective, levels, upper = _with_prices(objective, levels, upper)
    lower = in_order(levels) if levels else None
    on_x, coupled = split_coupled(upper, lower, federation.num_clients if federation else 1)
    roles = Roles.of(objective, lower, on_x, coupled)
    check_attributes(roles.upper, upper=True)
    require_convex_set(on_x, roles.upper, "the constraints on x")
    known = _known_bounds(on_x, roles, federation)
    declaration = Declaration(objective, lower, on_x, federation, roles, known, coupled)
    for level, bounds in ((own.lower_level, own.known_bounds) for own in each_level(declaration)):
        assert level is not None
        _require_convex_level(level, level.expressions, level.constraints, bounds)
        if isinstance(level, Nash):
            players_convexity(level)
    _require_holders(roles, federation)
    _require_measurable(declaration)
    return declaration


def convex_on_x_only(declaration: Declaration) -> bool:
    """Whether the lower level is convex by what constraints and attributes say of x, so that nothing is known outside X."""
    level = declaration.lower_level
    if isinstance(level, Followers):
        return any(map(convex_on_x_only, each_level(declaration)))
    if level is None or isinstance(level, Nash):
        return False
    upper = declaration.roles.upper
    anywhere = {x: cp.Variable(x.shape, name=x.name()) for x in upper}
    known = {leaf: bounds for leaf, bounds in declaration.known_bounds.items() if leaf not in {x.id for x in upper}}
    expressions = instantiate(level.expressions, anywhere)
    try:
        _require_convex_level(level, expressions, instantiate(level.constraints, anywhere), known)
    except (NotConvexError, DeclarationError):
        return True
    return False


def _with_prices(
    objective: Objective, levels: Sequence[LowerLevel], constraints: Sequence[Constraint]
) -> tuple[Objective, tuple[LowerLevel, ...], tuple[Constraint, ...]]:
    """The same with one leaf for each price that is mentioned, which its level has among its variables.

    Raises ``DeclarationError`` for prices of constraints that are no lower level's, and for prices that a level mentions of itself, or of a later one.
    """
    levels = tuple(priced(level, ()) if level.prices else level for level in levels)  # of a declaration that is made again
    owners = {dual.id: (one, place) for place, level in enumerate(levels) for one in level.constraints for dual in one.dual_variables}
    on_x = {dual.id: one for one in constraints for dual in one.dual_variables}
    below = _prices_below(levels, owners)
    above = [v for part in (*objective.terms, *constraints) for v in part.variables() if isinstance(v, Price) or v.id in owners or v.id in on_x]
    mentioned = unique_leaves([*below, *sorted(above, key=lambda one: not (isinstance(one, Price) and one.is_named))])  # a name that was given stays
    leaves, meant = dict[int, cp.Variable](), dict[Any, Expression]()
    own: list[list[cp.Variable]] = [[] for _ in levels]
    same: list[list[tuple[cp.Variable, cp.Variable, float]]] = [[] for _ in levels]
    for variable in mentioned:
        constraint = variable.constraint if isinstance(variable, Price) else on_x[variable.id] if variable.id in on_x else owners[variable.id][0]
        place = next((k for k, level in enumerate(levels) if any(constraint is one for one in level.constraints)), -1)
        if place < 0:
            raise DeclarationError(
                f"{variable.name()} is the price of {expression_text(constraint)}, which is not among the constraints of the lower level: "
                + _meant_price(levels, constraint, constraints)
            )
        level = levels[place]
        _require_price(variable, constraint, level)
        leaf = leaves.setdefault(id(constraint), variable if isinstance(variable, Price) else Dual(constraint))
        if not any(leaf is one for one in own[place]):
            own[place].append(leaf)
        if leaf is not variable:
            sign = price_sign(variable, constraint, level) * price_sign(leaf, constraint, level)
            meant[variable] = sign * leaf
            same[place].append((variable, leaf, sign))
    if any(variable.id in {one.id for one in meant} for variable in below):
        twice = next(variable for variable in below if variable.id in {one.id for one in meant})
        raise DeclarationError(f"{twice.name()} is one of two names of a price that lower levels mention: keep one in a variable, and write it in all places.")
    if meant:
        objective = objective.over(lambda term: instantiate([term], meant)[0])
        constraints = instantiate(constraints, meant)
    found = (priced(level, tuple(prices), tuple(names)) if prices else level for level, prices, names in zip(levels, own, same))
    return objective, tuple(found), tuple(constraints)


def _require_no_client_at_server(objective: Objective, rows: Mapping[cp.Variable, Any]) -> None:
    """The server's term mentions nothing that clients decide."""
    mentioned = {v.id for v in objective.server.variables()} if objective.server is not None else set()
    for variable in rows:
        if variable.id in mentioned:
            raise DeclarationError(
                f"lower variable {variable.name()!r} has client scope and appears in the server term {expression_text(objective.server)}: there is one "
                f"copy for each client. Put the term into clients=..."
            )


def _require_prices_of_one_scope(levels: Sequence[LowerLevel], upper: Sequence[Any]) -> None:
    """No price of a client's constraint beside a level of the federation: there it would be one of each client's in a sum."""
    if len({level.scope for level in levels}) < 2:
        return
    private = {id(one): one for level in levels if level.scope == "client" for one in level.constraints}
    duals = {dual.id: one for one in private.values() for dual in one.dual_variables}
    for part in [*upper, *(part for level in levels for part in (*level.declared, *level.constraints))]:
        for v in part.variables():
            if (isinstance(v, Price) and id(v.constraint) in private) or v.id in duals:
                raise DeclarationError(
                    f"{v.name()}: prices of a client's lower level beside one of the federation are not treated. The other way round they are: prices "
                    f"of the federation's level are what clients may be given. multipliers(x) tells those of all levels."
                )


def _require_price(variable: cp.Variable, constraint: Constraint, level: LowerLevel) -> None:
    """A constraint of this level has one price."""
    if not any(v.id in {one.id for one in level.variables} for v in constraint.variables()):
        raise DeclarationError(
            f"{variable.name()}: the constraint {expression_text(constraint)} is about x alone, which the lower level does not decide: it has no price."
        )
    if level.scope == "federation" and any(isinstance(p, ClientParameter) for p in constraint.parameters()):
        raise DeclarationError(
            f"{variable.name()}: the constraint {expression_text(constraint)} is one for each client in federation scope, with as many prices. "
            f"Write it with numbers, once for each client, or declare scope='client'."
        )
    price_sign(variable, constraint, level)  # told here if it has none


def _meant_price(levels: Sequence[LowerLevel], constraint: Constraint | None, on_x: Sequence[Constraint]) -> str:
    """What to write where a price is none of the lower level's."""
    if not levels:
        return "there is no lower level."
    if any(constraint is one for one in on_x):
        return "it is one of Problem(constraints=...), whose multipliers are part of what is solved for."
    return "keep the constraint in a variable, and name that one in both places."


def _prices_below(levels: Sequence[LowerLevel], owners: dict[int, tuple[Constraint, int]]) -> list[cp.Variable]:
    """The prices that levels mention of earlier ones."""
    found: list[cp.Variable] = []
    for place, level in enumerate(levels):
        earlier = [one for other in levels[:place] for one in other.constraints]
        for part in [*level.declared, *level.constraints]:
            for variable in part.variables():
                if isinstance(variable, Price) and any(variable.constraint is one for one in earlier):
                    found.append(variable)
                elif variable.id in owners and owners[variable.id][1] < place:
                    raise DeclarationError(
                        f"{expression_text(part)} of {type(level).__name__} mentions CVXPY's dual variable of {expression_text(owners[variable.id][0])}, of "
                        f"lower level {owners[variable.id][1] + 1}: keep the price in a variable, price = hf.Dual(constraint), and write that one in all places."
                    )
                elif isinstance(variable, Price) or variable.id in owners:
                    raise DeclarationError(
                        f"{expression_text(part)} of {type(level).__name__} mentions {variable.name()}, a price of the level itself: who minimises at "
                        f"given prices, and prices that clear a market, are together an hf.Equilibrium with the price as one of its variables."
                    )
    return found


def _require_kinds(objective: Any, levels: Sequence[Any], federation: Any) -> None:
    """Each part is one of hierfl's own."""
    if not isinstance(objective, Objective):
        raise DeclarationError(
            f"the objective must be hf.Minimize(clients=..., server=...) or hf.Maximize(...), not {called(objective)}."
            f"{_as_objective(objective)}"
        )
    wrong = [one for one in levels if not isinstance(one, LowerLevel)]
    if wrong:
        raise DeclarationError(
            f"lower must be an hf.ArgMin, hf.ArgMax, hf.Equilibrium or hf.Nash, or a list of several (several variables go into one level as a "
            f"list), not {called(wrong[0])}.{_meant(levels)}"
        )
    if federation is not None and not isinstance(federation, Federation):
        raise DeclarationError(f"federation must be a hf.Federation, not {called(federation)}. Write hf.Federation(clients), of a list of hf.Client.")


def _as_objective(given: Any) -> str:
    """What to write for an objective that is no objective of hierfl."""
    kind, term = ("Minimize", given) if isinstance(given, cp.Expression) else (type(given).__name__, None)
    if isinstance(given, cp.problems.objective.Objective):
        term = given.args[0]
    if term is None:
        return ""
    return f" Write hf.{kind}(clients={expression_text(term)}) for a term of every client, server=... for one of the server."


def _meant(given: Sequence[Any]) -> str:
    """What to write for what stands where a lower level was expected."""
    if isinstance(given[0], cp.Expression):
        return f" Write hf.ArgMin(y, {expression_text(given[0])}), with the variables y that it decides."
    if isinstance(given[0], Federation):
        return " A federation is given by name, federation=...."
    if isinstance(given[0], cp.Problem):
        cost, rows = given[0].objective, ", ".join(map(expression_text, given[0].constraints))
        kind = "ArgMin" if isinstance(cost, cp.Minimize) else "ArgMax"
        return f" Write hf.{kind}(y, {expression_text(cost.args[0])}, [{rows}]), with the variables y that it decides."
    if all(isinstance(one, cp.constraints.constraint.Constraint) for one in given):
        return " Constraints on x are given by name, constraints=[...]."
    return ""


def _known_bounds(constraints: Sequence[Any], roles: Roles, federation: Federation | None) -> dict[int, Interval]:
    """Bounds by leaf id, of the upper variables on the public X and of the client parameters over the clients."""
    on_x = [*constraints, *attribute_constraints(roles.upper)]
    public = [c for c in on_x if not any(isinstance(p, ClientParameter) for p in c.parameters())]
    clients = federation.clients if federation else ()
    held = {
        p.id: Interval.hull(np.stack([np.asarray(client.parameters[p]) for client in clients]))
        for p in roles.client_parameters
        if clients and all(isinstance(client.parameters.get(p), np.ndarray) for client in clients)  # and here
    }
    return held | bounds_of(public, roles.upper)


def _require_convex_level(level: LowerLevel, expressions: Any, constraints: Any, known: Known) -> None:
    parts = constraints if level.kind == "equilibrium" else (*constraints, *expressions)
    require_domain(parts, level.variables, f"the {type(level).__name__}", known)
    require_convex_set(constraints, level.variables, f"Y(x) of {type(level).__name__}", known)
    if isinstance(level, ArgMin):
        require_curvature(level, expressions[0], known)


def _require_holders(roles: Roles, federation: Federation | None) -> None:
    """Somebody holds every sample and every client parameter, samples that one E pairs as rows of one table."""
    if federation is None:
        needed = [*(sample for table in (*roles.client_tables, *roles.server_tables) for sample in table), *roles.client_parameters]
        if needed:
            raise DataError(
                f"nobody holds {type(needed[0]).__name__} {needed[0].name()!r}: give Problem(..., federation=hf.Federation(...))."
            )
        return
    at_clients = roles.client_tables, roles.client_parameters, "add it to Client(samples=...)."
    at_server = roles.server_tables, (), "give Federation(server=hf.Client(...)) or split(server_fraction=...)."
    parties: list[tuple[Any, ...]] = [(client, client.called(index), *at_clients) for index, client in enumerate(federation.clients)]
    for party, who, tables, parameters, advice in (*parties, (federation.server, "the server", *at_server)):
        for sample in (sample for table in tables for sample in table):
            if party is None or not party.holds(sample):
                hint = _namesake(sample, party.samples if party else ()) or advice
                raise DataError(f"{who} holds no data for sample {sample.name()!r}; {hint}")
        for table in tables:
            require_paired(party, table, who)
        for parameter in parameters:
            if parameter not in party.parameters:
                hint = _namesake(parameter, party.parameters) or "add it to Client(parameters=...) or Federation.split(parameters=...)."
                raise DataError(f"{who} has no value for client parameter {parameter.name()!r}; {hint}")


def _namesake(leaf: Any, held: Iterable[Any]) -> str:
    """What to write where somebody holds another sample, or parameter, of the same name; empty where nobody does."""
    if not any(other.name() == leaf.name() for other in held):
        return ""
    kind = type(leaf).__name__
    return (
        f"what is held is for another {kind} of that name: the name does not tell them apart, the object does. Make one "
        f"{leaf.name()} = hf.{kind}(...), and use it in the expressions and as the key of the data (after it is made anew, both are to be)."
    )


def _require_measurable(declaration: Declaration) -> None:
    """Every condition on the answers has owners whose answers can be looked at one by one, and who weigh something.

    Raises ``DeclarationError`` for rows that are a distribution, or for clients of weight zero, whose violations would not count.
    """
    federation, level = declaration.federation, declaration.lower_level
    if not declaration.coupled or federation is None or level is None:
        return
    for one in declaration.coupled:
        held = [p for p in one.constraint.parameters() if isinstance(p, Sample)]
        held += declaration.roles.lower_samples if level.scope == "sample" else ()
        if one.kind == ROW and any(client.is_distribution(s) for client in federation.clients for s in held):
            raise DeclarationError(
                f"the upper constraint {one.text} is to hold for every row, and {held[0].name()!r} is a distribution, which has no rows: write "
                f"the condition of its mean, with hf.E, or give rows."
            )
    weights = np.ones(1) if isinstance(federation.weights, str) else np.asarray(federation.weights)
    if not weights.all():
        raise DeclarationError(
            f"{declaration.client_called(int(np.argmin(weights)))} has weight 0 and the upper constraint {declaration.coupled[0].text} mentions y: "
            f"what it violates would weigh nothing. Give it a weight, or leave it out of the federation."
        )

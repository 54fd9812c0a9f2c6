"""The levels of a problem: the upper objective, a function of x, and the lower level, the problem that answers each upper decision x.

A lower level has a *kind* (argmin, argmax, or equilibrium, a variational inequality, which a game becomes) and a
*scope*, which says who has its own copy of y: the whole federation, each client, or each sample.

``Dual(c)`` and ``ShadowPrice(c)`` stand for prices in upper terms. When a problem is declared, every mention of a constraint's price (CVXPY's
own ``c.dual_variables[0]`` too) becomes one leaf of the lower level.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any, ClassVar

import cvxpy as cp
from cvxpy.constraints import Equality, Inequality
from cvxpy.constraints.constraint import Constraint
from cvxpy.expressions.expression import Expression
from cvxpy.expressions.leaf import Leaf

from hierfl.errors import DeclarationError
from hierfl.language.declared_arguments import (
    called,
    constraint_tuple,
    samples_among,
    scalar_expression,
    variable_tuple,
)
from hierfl.language.expectation import averages_of, outside_averages
from hierfl.language.printing.card import Card, Shown
from hierfl.language.printing.text import expression_text
from hierfl.language.sample import ONE_FOR_EACH, Sample
from hierfl.near_names import near_names, suggests_names


class Objective(Shown):
    """Base of ``Minimize`` and ``Maximize``."""

    sense: ClassVar[str]

    def __init__(self, clients: Any = None, server: Any = None) -> None:
        if clients is None and server is None:
            raise DeclarationError(f"{type(self).__name__}() is empty: give clients=..., server=... or both.")
        clients_term = f"the clients term of {type(self).__name__}"
        self.clients = None if clients is None else scalar_expression(clients, clients_term)
        self.server = None if server is None else scalar_expression(server, f"the server term of {type(self).__name__}")

    @property
    def terms(self) -> tuple[Expression, ...]:
        """The terms that were given, the server's first."""
        return tuple(term for term in (self.server, self.clients) if term is not None)

    def over(self, rebuilt: Callable[[Expression], Expression]) -> Objective:
        """The same of terms that are rebuilt."""
        clients, server = (None if term is None else rebuilt(term) for term in (self.clients, self.server))
        return type(self)(clients=clients, server=server)

    @property
    def sign(self) -> float:
        """The sign that makes the objective one to minimise: +1 for ``Minimize``, -1 for ``Maximize``."""
        return 1.0 if self.sense == "minimize" else -1.0

    def _card(self) -> Card:
        given = {"clients": self.clients, "server": self.server}
        return Card(self.sense, [(whose, expression_text(term)) for whose, term in given.items() if term is not None])


class Minimize(Objective):
    """Minimise f(x), the server's term plus sum_i w_i times the term of each client i, the weights w_i being the federation's.

    Parameters
    ----------
    clients
        A scalar CVXPY expression, evaluated by every client with its own data, parameters and y.
    server
        A scalar CVXPY expression, evaluated with the server's data.

    Raises
    ------
    DeclarationError
        If neither term is given or a term is not a scalar expression.

    Examples
    --------
    >>> objective = hf.Minimize(clients=cp.sum_squares(x - y), server=cp.norm1(x))
    """

    sense = "minimize"


class Maximize(Objective):
    """Maximise the sum of the server's and the clients' terms, declared as for :class:`Minimize`.

    Examples
    --------
    >>> objective = hf.Maximize(clients=x @ y)
    """

    sense = "maximize"


SCOPES = ("federation", "client", "sample")
SELECTIONS = ("optimistic", "pessimistic")


class LowerLevel:
    """Base of the lower levels: variables, the expressions that define y(x), constraints Y(x), scope.

    ``expressions`` holds one scalar (objective) or one mapping per variable (equilibrium); ``declared`` what the user wrote.
    ``selection`` says which of several solutions is meant, None where that is left open. In a declared problem ``prices`` of the level's own
    constraints, which upper terms mention, are among its variables: it determines them, and decides the others.
    """

    kind: ClassVar[str]
    selection: str | None = None
    prices: tuple[cp.Variable, ...] = ()
    of: LowerLevel | None = None  # the level as it was declared, where this is another form of it
    same_prices: tuple[tuple[cp.Variable, cp.Variable, float], ...] = ()  # (another name of a price, that price, by what it is multiplied)

    def __init__(self, y: Any, expressions: tuple[Expression, ...], constraints: Any, scope: str) -> None:
        self.variables = variable_tuple(y, type(self).__name__)
        self.expressions = expressions
        self.constraints = constraint_tuple(constraints, type(self).__name__)
        if scope not in SCOPES:
            raise DeclarationError(f"unknown scope {scope!r} of {type(self).__name__}: {near_names(scope, SCOPES)}")
        self.scope = scope
        self._check_mentions()
        self._check_samples()

    @property
    def letter(self) -> str:
        """The papers' letter for what defines y(x): h for an objective, F for a mapping."""
        return "F" if self.kind == "equilibrium" else "h"

    @property
    def expression(self) -> Expression:
        """The objective, or the first mapping."""
        return self.expressions[0]

    @property
    def declared(self) -> tuple[Expression, ...]:
        """The expressions as the user wrote them; a level that derives its mapping overrides this."""
        return self.expressions

    @property
    def decided(self) -> tuple[cp.Variable, ...]:
        """The variables that are no prices."""
        return self.variables[: len(self.variables) - len(self.prices)]

    @property
    def sign(self) -> float:
        """The sign with which ``sign * expression`` is minimised or is the mapping: -1 for argmax, else +1."""
        return -1.0 if self.kind == "argmax" else 1.0

    @property
    def leaves(self) -> list[Leaf]:
        """All variables and parameters of the level, constraints included."""
        parts = [*self.expressions, *self.declared, *self.constraints]
        return [leaf for part in parts for leaf in [*part.variables(), *part.parameters()]]

    def _check_mentions(self) -> None:
        """Check that every variable of the level appears in it: where constraints alone mention it, they determine it, or f tells that they do not."""
        mentioned = {v.id for part in (*self.declared, *self.constraints) for v in part.variables()}
        for variable in self.variables:
            if variable.id not in mentioned:
                said = f"lower variable {variable.name()!r} appears in nothing that {type(self).__name__} declares"
                raise DeclarationError(f"{said}: y(x) would be arbitrary. Remove it from the level, or add it to the objective or the constraints.")

    def _check_samples(self) -> None:
        """Check that samples stand inside ``E`` or ``total``, bare where y answers each sample, and that Y(x) has no means."""
        for part in [*self.declared, *self.constraints]:
            averages = list(averages_of(part))
            bare = outside_averages(part, Sample)
            if self.scope == "sample" and averages:
                said = f"{expression_text(averages[0])} in a sample-scope lower level, which is solved for one sample at a time"
                raise DeclarationError(f"{said}: write the per-sample expression without E.")
            if self.scope != "sample" and bare:
                mean = "" if any(part is one for one in self.constraints) else "hf.E(...) around it, or "
                where = f"in a {self.scope}-scope lower level ({expression_text(part)})"
                said = f"sample {bare[0].name()!r} is used outside E or total {where}"
                raise DeclarationError(f"{said}: write {mean}scope='sample' if y answers each sample. {ONE_FOR_EACH}")
        for constraint in self.constraints:
            if any(samples_among(average.parameters()) for average in averages_of(constraint)) or (
                self.scope == "sample" and any(averages_of(constraint))
            ):
                said = f"constraint {expression_text(constraint)} of {type(self).__name__} contains E or total"
                raise DeclarationError(f"{said}, and cannot be projected on. Pass the number as a hf.ClientParameter.")

    def __repr__(self) -> str:
        names = ", ".join(v.name() for v in self.variables)
        parts = [names, ", ".join(map(expression_text, self.expressions)), f"scope={self.scope!r}"]
        parts += [] if self.selection is None else [f"selection={self.selection!r}"]
        return f"{type(self).__name__}({'; '.join(parts)})"


@suggests_names
class ArgMin(LowerLevel):
    """y(x) minimises a convex objective over a convex set Y(x).

    Parameters
    ----------
    y
        A ``cp.Variable`` or a list of them.
    objective
        Scalar expression, convex in y for every x.
    constraints
        CVXPY constraints that define Y(x); jointly convex in y for every x.
    scope
        ``"federation"`` (one y; the objective is the weighted mean over clients), ``"client"`` (one y per client) or
        ``"sample"`` (one y per sample: two-stage, recourse).
    selection
        Which y is meant where several solve the level: ``"optimistic"``, the best for the upper objective, or
        ``"pessimistic"``, the worst for it (Dempe, 2002, chapter 3); None leaves it open.

    Raises
    ------
    DeclarationError
        Unknown scope or selection, a variable that nothing mentions, a sample outside ``E``, no sample in sample scope.

    Examples
    --------
    >>> hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0])
    ArgMin(y; sum_squares(y - x); scope='federation')
    """

    kind = "argmin"

    def __init__(
        self,
        y: Any,
        objective: Any,
        constraints: Any = (),
        scope: str = "federation",
        *,
        selection: str | None = None,
    ) -> None:
        variables = variable_tuple(y, type(self).__name__)
        super().__init__(variables, (scalar_expression(objective, f"the objective of {type(self).__name__}"),), constraints, scope)
        if selection is not None and selection not in SELECTIONS:
            raise DeclarationError(
                f"unknown selection {selection!r} of {type(self).__name__}: {near_names(selection, SELECTIONS)} None leaves it open."
            )
        self.selection = selection


class ArgMax(ArgMin):
    """y(x) maximises a concave objective over a convex set Y(x); parameters as for :class:`ArgMin`.

    Examples
    --------
    >>> hf.ArgMax(y, x @ y - cp.sum_squares(y), [y >= 0, cp.sum(y) <= 1])
    ArgMax(y; x @ y - sum_squares(y); scope='federation')
    """

    kind = "argmax"


@suggests_names
class Equilibrium(LowerLevel):
    """y(x) solves the variational inequality VI(Y(x), G): G(x, y)'(z - y) >= 0 for every z in Y(x).

    Parameters
    ----------
    y
        A ``cp.Variable`` or a list of them.
    mapping
        G, of y's shape; for several variables a list with one mapping per variable.
    constraints, scope
        As for :class:`ArgMin`.

    Raises
    ------
    DeclarationError
        As :class:`ArgMin`, if a mapping's shape differs from its variable's, and for a ``selection``.

    Examples
    --------
    >>> hf.Equilibrium(y, y - x, [y >= 0])
    Equilibrium(y; y - x; scope='federation')
    """

    kind = "equilibrium"

    def __init__(
        self, y: Any, mapping: Any, constraints: Any = (), scope: str = "federation", *, selection: None = None
    ) -> None:
        refuse_selection(selection, "Equilibrium")
        variables = variable_tuple(y, "Equilibrium")
        mappings = tuple(mapping) if isinstance(mapping, (list, tuple)) else (mapping,)
        if len(mappings) != len(variables):
            raise DeclarationError(
                f"Equilibrium has {len(variables)} variables and {len(mappings)} mappings: give one mapping for each."
            )
        expressions = tuple(m if isinstance(m, Expression) else cp.Constant(m) for m in mappings)
        for variable, expression in zip(variables, expressions):
            if expression.shape != variable.shape:
                raise DeclarationError(
                    f"the mapping of {variable.name()!r} has shape {expression.shape}, but {variable.name()!r} has shape "
                    f"{variable.shape}: G(x, y) must be of y's shape."
                )
        super().__init__(y, expressions, constraints, scope)


def refuse_selection(selection: Any, level: str) -> None:
    """Equilibria solve no common problem to be chosen by. Raises ``DeclarationError``, with levels that take one."""
    if selection is not None:
        raise DeclarationError(
            f"{level} takes no selection (given: {selection!r}): only the solutions of an hf.ArgMin or hf.ArgMax are chosen among. "
            f"Leave it out, and make the equilibrium unique, such as by a small multiple of y in its mapping."
        )


class Followers(LowerLevel):
    """Levels of one scope, each of which answers x and the y of those before it."""

    kind = "sequence"

    def __init__(self, levels: Sequence[LowerLevel]) -> None:
        self.levels = tuple(levels)
        self.scope = self.levels[0].scope
        self.variables = tuple(v for level in levels for v in level.variables)
        self.expressions = tuple(e for level in levels for e in level.expressions)
        self.constraints = tuple(c for level in levels for c in level.constraints)
        self.prices = tuple(p for level in levels for p in level.prices)
        self.same_prices = tuple(same for level in levels for same in level.same_prices)
        self.selection = self.levels[-1].selection

    @property
    def declared(self) -> tuple[Expression, ...]:
        return tuple(e for level in self.levels for e in level.declared)

    @property
    def decided(self) -> tuple[cp.Variable, ...]:
        return tuple(v for level in self.levels for v in level.decided)

    def before(self, place: int) -> tuple[cp.Variable, ...]:
        """What a level is given besides x: the answers of those before it, prices that are mentioned among them."""
        return tuple(v for level in self.levels[:place] for v in level.variables)

    def __repr__(self) -> str:
        return f"[{', '.join(map(repr, self.levels))}]"


# --- prices: multipliers of a level's constraints, as unknowns that it decides beside its y --------------------------------


class Price(cp.Variable):
    """The price of a constraint, of its shape."""

    @suggests_names
    def __init__(self, constraint: Constraint, name: str | None = None) -> None:
        kind = type(self).__name__
        if not isinstance(constraint, (Equality, Inequality)):
            raise DeclarationError(
                f"{kind}(...) takes an equation or an inequality that stands in the constraints of the lower level, lhs == rhs, lhs <= rhs or "
                f"lhs >= rhs; this is {called(constraint)}. Multipliers of cones are told by problem.implicit.multipliers(x)."
            )
        self.constraint, self.is_named = constraint, name is not None
        super().__init__(constraint.shape, name=name or f"{kind}({expression_text(constraint)})")


class Dual(Price):
    """The multiplier of a lower constraint, as CVXPY's ``constraint.dual_value``: at least 0 for inequalities, of lhs - rhs for equations.

    Parameters
    ----------
    constraint
        An equation or an inequality that stands in the ``constraints`` of the lower level, as the same object.
    name
        How results call it; by default the text of the constraint.

    Raises
    ------
    DeclarationError
        For what is no such constraint; when the problem is declared, for a constraint that is none of the lower level's.

    Examples
    --------
    >>> balance = cp.sum(y) == 1 + x[0]
    >>> paid = hf.Dual(balance, name="paid")
    >>> market = hf.Problem(hf.Minimize(clients=paid), hf.ArgMin(y, cp.sum_squares(y), [balance]))
    >>> round(market.implicit(np.zeros(2)), 6)
    -1.0
    """


class ShadowPrice(Price):
    """By how much the lower level's optimal value changes for each unit more of a constraint's right-hand side.

    That is the side without y; where both have y, the right one of ``lhs <= rhs``. The value is the one that is minimised, or maximised, as
    declared: the shadow price of a demand is what one unit more of it costs.

    Parameters
    ----------
    constraint, name
        As of :class:`Dual`.

    Raises
    ------
    DeclarationError
        As :class:`Dual`; also for an equilibrium, which has no optimal value.

    Examples
    --------
    >>> balance = cp.sum(y) == 1 + x[0]
    >>> price = hf.ShadowPrice(balance)
    >>> market = hf.Problem(hf.Minimize(clients=price), hf.ArgMin(y, cp.sum_squares(y), [balance]))
    >>> round(market.implicit(np.zeros(2)), 6)
    1.0
    """


def price_sign(price: cp.Variable, constraint: Constraint, level: LowerLevel) -> float:
    """What CVXPY's dual value is multiplied by. Raises ``DeclarationError`` for the shadow price of an equilibrium."""
    if not isinstance(price, ShadowPrice):
        return 1.0
    if level.kind == "equilibrium":
        raise DeclarationError(
            f"{price.name()}: an equilibrium ({type(level).__name__}) has no optimal value that would change. Write hf.Dual, its multiplier."
        )
    own = {variable.id for variable in level.decided}
    left_moves, right_moves = (any(v.id in own for v in side.variables()) for side in constraint.args)
    return level.sign if right_moves and not left_moves else -level.sign


def priced(
    level: LowerLevel, prices: tuple[cp.Variable, ...], same: tuple[tuple[cp.Variable, cp.Variable, float], ...] = ()
) -> LowerLevel:
    """The level with these prices among its variables, and no others; ``same`` are other names of theirs."""
    own, count = copy(level), len(level.decided)
    own.variables, own.prices, own.same_prices = (*level.decided, *prices), prices, same
    if level.kind == "equilibrium":
        own.expressions = (*level.expressions[:count], *(cp.Constant(0.0) * price for price in prices))
    return own

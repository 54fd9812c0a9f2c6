"""A standard form whose cost averages over data, or clients, what is not smooth in y: each row has its share of what the reduction introduces.

The per-sample expression is reduced once, whatever the number of rows: u = (y, t, t_1, ..., t_K), and row k has the cones of
(y, t_k) and a cost with its weight. A client with fewer rows than the largest has its last one several times, its weight divided
among them, so that every client has the same form.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
from cvxpy.atoms.affine.binary_operators import DivExpression
from cvxpy.atoms.affine.unary_operators import NegExpression
from jax import Array
from jaxtyping import Float

from hierfl.atoms.algebra import addends
from hierfl.atoms.table import row_of
from hierfl.compiler.data.tables import Population, Table
from hierfl.compiler.host.standard_form import KINDS, NONNEGATIVE, ZERO, Cone, NoStandardFormError, StandardForm
from hierfl.language.averages import averages_of
from hierfl.language.expectation import SampleAverage, total
from hierfl.language.sample import Sample

ROWS_LIMIT = (
    1_000  # rows of data, each with entries of u of its own: a solve takes 7 ms for 150, 30 for 400, 0.3 s for 1,000
)
FAINTEST = 1e-16  # of the heaviest row's weight, from which units follow it
CONES_LIMIT = 150  # of those with cones that are no rows of inequalities, for which it takes longer


@dataclass(frozen=True, eq=False)
class RowTerm:
    """An average (or a sum) over the rows of a table: the form of one row, and how many rows an owner has at most.

    ``table`` is None where it is averaged over clients' constants alone. ``holder`` has the client of each row where those of
    all clients are averaged over, each with its client's weight. ``unlike`` says that rows are values of laws, whose shares may
    be 1e-16 of others.
    """

    form: StandardForm
    table: int | None
    summed: bool
    count: int
    holder: np.ndarray | None
    unlike: bool = False

    @classmethod
    def of(
        cls, form: StandardForm, kind: type[SampleAverage], place: int | None, clients: Population, whole: bool
    ) -> RowTerm:
        """The term of a per-sample expression that has this form, over the table at a place.

        Raises
        ------
        NoStandardFormError
            Where there are too many rows, or nodes that stand for a distribution: other than for one of few values, which are rows.
        """
        table = None if place is None else clients.tables[place]
        count = clients.size if table is None else table.size if whole else table.longest
        limit = ROWS_LIMIT if form.polyhedral else CONES_LIMIT
        if count > limit:
            raise NoStandardFormError(
                f"an average over {count:,} rows of something that is not smooth in y; at most {limit:,} are treated"
            )
        if table is None:
            return cls(form, None, True, count, np.arange(count))
        if table.has_nodes:
            raise NoStandardFormError(
                "the average of a law's kinks is smooth, that of its nodes' is not: y(x) would be a staircase"
            )
        holder = np.repeat(np.arange(clients.size), np.asarray(table.counts)) if whole else None
        return cls(form, place, issubclass(kind, total), count, holder, table.weights is not None)

    @property
    def extra(self) -> int:
        """How many entries of u a row has of its own."""
        return self.form.width - self.form.size

    def rows(self, clients: Population) -> tuple[dict[int, Array], Float[Array, " count"]]:
        """(what differs between rows, by leaf, (count, *shape); their weights) of the one client handed over, or of all."""
        if self.holder is not None:
            own = {leaf: jnp.asarray(values)[self.holder] for leaf, values in clients.parameters.items()}
            weights = jnp.asarray(clients.weights)[self.holder]
            if self.table is None:
                return own, weights
            table, numbers = clients.tables[self.table], np.arange(self.count)
            return {**own, **table.rows(numbers)}, weights * self._shares(table, numbers, self.holder)
        assert self.table is not None
        table, numbers = clients.tables[self.table], np.arange(self.count)
        count = table.counts[0]
        rows = jnp.minimum(numbers, count - 1)
        times = jnp.where(numbers < count - 1, 1, self.count - count + 1)  # that a row is there
        return table.rows(rows), self._shares(table, rows, 0) / times

    def units(self, weights: Array) -> Float[Array, "count 1"]:
        """What each row's own entries of u, and its e, are multiplied by: the root of what laws have it weigh beside the heaviest.

        A share of 1e-16 is then a cost of 1e-8 beside slopes of 1e-8, both of which are told from rounding.
        """
        if not self.unlike:
            return jnp.ones((self.count, 1))
        return jnp.sqrt(jnp.maximum(weights / jnp.max(weights), FAINTEST))[:, None]

    def _shares(self, table: Table, rows: Any, holder: Any) -> Any:
        """What each of some rows counts at its client."""
        if self.summed:
            return 1.0
        if table.weights is not None:
            return jnp.asarray(table.weights)[rows]
        return 1.0 / jnp.asarray(table.counts)[holder]


OfRows = tuple[dict[int, Any], Array]  # the values of a term's rows, and their weights
Values = tuple[dict[int, Any], list[OfRows]]  # of the rest, and of each term


@dataclass(frozen=True, eq=False)
class AveragedForm:
    """A standard form with terms over rows; everything else as in ``StandardForm``."""

    base: StandardForm
    terms: tuple[RowTerm, ...]

    @property
    def decision(self) -> tuple[cp.Variable, ...]:
        """The variables of y, and what is introduced beside the rows."""
        return self.base.decision

    @property
    def size(self) -> int:
        """How many scalars y has."""
        return self.base.size

    @cached_property
    def width(self) -> int:
        """How many scalars u has."""
        return self.base.width + sum(term.count * term.extra for term in self.terms)

    @property
    def bounds(self) -> int:
        """How many entries of u the reduction has introduced."""
        return self.width - self.size

    @cached_property
    def _unordered(self) -> list[Cone]:
        of_terms = (cone for term in self.terms for _ in range(term.count) for cone in term.form.cones)
        return [*self.base.cones, *of_terms]

    @cached_property
    def _places(self) -> list[int]:
        """The cones in the order of their kinds."""
        return sorted(range(len(self._unordered)), key=lambda k: KINDS.index(self._unordered[k].kind))

    @cached_property
    def cones(self) -> tuple[Cone, ...]:
        """As in ``StandardForm``; rows of equations, and of inequalities, are one cone each."""
        merged: list[Cone] = []
        for kind, some in groupby((self._unordered[k] for k in self._places), key=lambda cone: cone.kind):
            together = list(some)
            linear = kind in (ZERO, NONNEGATIVE)
            merged += [Cone(kind, sum(cone.size for cone in together))] if linear else together
        return tuple(merged)

    @cached_property
    def _order(self) -> np.ndarray:
        """The rows of e, as they come, in the order of the cones."""
        ends = np.cumsum([cone.size for cone in self._unordered])
        parts = [np.arange(ends[k] - self._unordered[k].size, ends[k]) for k in self._places]
        return np.concatenate([np.zeros(0, int), *parts])

    @cached_property
    def rows(self) -> tuple[np.ndarray, ...]:
        """For each constraint as it was given, the rows of e that are its own."""
        place = np.argsort(self._order)
        return tuple(place[rows] for rows in self.base.rows)

    @property
    def polyhedral(self) -> bool:
        """Whether there are only equations and inequalities."""
        return all(cone.kind in (ZERO, NONNEGATIVE) for cone in self.cones)

    @cached_property
    def equations(self) -> int:
        """How many rows are equations; they come first."""
        return sum(cone.size for cone in self.cones if cone.kind == ZERO)

    @cached_property
    def height(self) -> int:
        """How many rows e has."""
        return len(self._order)

    @property
    def costs(self) -> bool:
        """Whether there is a cost."""
        return True

    @property
    def raised(self) -> int:
        """How many scalars after y are bounds that a smooth cost is about."""
        return self.base.raised

    @property
    def curves(self) -> bool:
        """Whether there is a cost that is not quadratic."""
        return self.base.curves

    def values(self, environment: dict[int, Any], clients: Population) -> Values:
        """Values of the hoisted parameters: of the rest, and of each row."""
        of_terms = []
        for term in self.terms:
            rows, weights = term.rows(clients)
            each = jax.vmap(lambda row, form=term.form: form.values({**environment, **row}))(rows)
            of_terms.append((each, weights))
        return self.base.values(environment), of_terms

    def slack(self, values: Values, u: Float[Array, " width"]) -> Float[Array, " rows"]:
        """e at u; traceable."""
        rest, parts = u[: self.base.width], self._parts(values, u)
        pieces = [self.base.slack(values[0], rest)]
        for term, each, (given, weights) in zip(self.terms, parts, values[1]):
            pieces.append(jnp.ravel(jax.vmap(term.form.slack)(given, each) * term.units(weights)))
        return jnp.concatenate(pieces)[self._order]

    def cost(self, values: Values, u: Float[Array, " width"]) -> Float[Array, ""]:
        """c at u, what of it is quadratic; traceable."""
        cost = self.base.cost(values[0], u[: self.base.width])
        for term, each, (given, weights) in zip(self.terms, self._parts(values, u), values[1]):
            cost = cost + weights @ jax.vmap(term.form.cost)(given, each)
        return cost

    def curved_cost(self, values: Values, u: Float[Array, " width"]) -> Float[Array, ""]:
        """What of c is not quadratic, at u; traceable."""
        return self.base.curved_cost(values[0], u[: self.base.width])

    def _parts(self, values: Values, u: Array) -> list[Float[Array, "count width"]]:
        """(y, t_k) of each row of each term."""
        parts, start = [], self.base.width
        for term, (_, weights) in zip(self.terms, values[1]):
            stop = start + term.count * term.extra
            own = u[start:stop].reshape(term.count, term.extra) / term.units(weights)
            y = jnp.broadcast_to(u[: self.size], (term.count, self.size))
            parts.append(jnp.concatenate([y, own], axis=1))
            start = stop
        return parts


def per_sample(term: Any) -> tuple[type[SampleAverage], Any]:
    """(the kind of average, the expression that is averaged) of a term that is affine in means, or linear in one total.

    Raises
    ------
    NoStandardFormError
        Where a term has a total beside something that is not added up.
    """
    kinds: set[type[SampleAverage]] = set()

    def replaced(node: Any) -> Any:
        if isinstance(node, SampleAverage):
            kinds.add(type(node))
            return node.per_sample
        if not getattr(node, "args", None):
            return node
        args = [replaced(argument) for argument in node.args]
        return node if all(a is b for a, b in zip(args, node.args)) else node.copy(args)

    expression = replaced(term)
    if len(kinds) > 1 or (total in kinds and not _is_scaled(term)):
        raise NoStandardFormError("a total within a sum of something that is not smooth in y")
    return kinds.pop(), expression


def _is_scaled(term: Any) -> bool:
    """Whether a term is an average, scaled or not."""
    if isinstance(term, SampleAverage):
        return True
    scales = isinstance(term, (NegExpression, DivExpression, cp.Sum)) or row_of(term).product
    holders = [argument for argument in term.args if any(True for _ in averages_of(argument))]
    return scales and len(holders) == 1 and _is_scaled(holders[0])


def distributed(expression: Any) -> list[Any]:
    """The addends of an expression, those under a scalar factor too."""
    parts = addends(expression)
    if len(parts) > 1:
        return [each for part in parts for each in distributed(part)]
    (term,) = parts
    if not isinstance(term, (NegExpression, DivExpression)) and not row_of(term).product:
        return [term]
    sums = [k for k, argument in enumerate(term.args) if argument.shape == () and len(distributed(argument)) > 1]
    if len(sums) != 1 or term.shape != () or (isinstance(term, DivExpression) and sums[0] == 1):
        return [term]
    (k,) = sums
    return [
        each
        for part in distributed(term.args[k])
        for each in distributed(term.copy([part if at == k else argument for at, argument in enumerate(term.args)]))
    ]


def table_of(expression: Any, clients: Population) -> int:
    """The place of the table that holds the samples of an expression.

    Raises
    ------
    NoStandardFormError
        Where they are of several.
    """
    samples = [p.id for p in expression.parameters() if isinstance(p, Sample)]
    places = [k for k, table in enumerate(clients.tables) if any(sample in table.values for sample in samples)]
    if len(places) != 1:
        raise NoStandardFormError("a sum of averages over different samples within something that is not smooth in y")
    return places[0]

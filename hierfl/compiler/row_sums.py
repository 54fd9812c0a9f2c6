"""What a client says of its rows at an estimate, for standard errors: sums, and how a loss of rows stands in its objective.

The influence psi_j of row j is the derivative of the objective's gradient in the row's weight: for a mean the gradient of the row's own
loss times its weight; of an aggregate, such as Cox's likelihood, one rule gives what is else derived by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import cvxpy as cp
import jax
import jax.numpy as jnp
from jax import Array

from hierfl.compiler.data.tables import Party
from hierfl.compiler.expressions.program import NO_ROWS, Program, Rows
from hierfl.compiler.oracles import Oracles
from hierfl.jaxtools.columns import by_columns
from hierfl.language.expectation import averages_of


class RowSums(NamedTuple):
    """Of one client, or with a leading axis of several; without the client's weight in the objective."""

    gradient: Any  # (p,)
    hessian: Any  # (p, p)
    outer: Any  # (p, p), the sum over rows of psi psi'
    influence: Any  # (p,), that of psi
    loss: Any  # ()
    without: Any  # (p,), the gradient of no rows: of what is added to the loss
    factors: Any  # (2,), the least and the largest number by which the objective multiplies what is of its rows


POWERS = RowSums(1, 1, 2, 1, 1, 1, 0)  # of a client's weight, by which they count in the objective


@dataclass(frozen=True, eq=False)
class RowLoss:
    """A client's objective as a function of an estimate b, the client and rows of it: ``value(b, party, rows, x)``."""

    value: Callable[[Any, Party, Rows, Any], Any]
    environment: Callable[[Any, Party, Any], dict[int, Any]]  # what expressions are of: (b, party, x)
    expression: Any
    samples: tuple[int, ...]

    @classmethod
    def above(cls, oracles: Oracles) -> RowLoss:
        """The clients' upper term, of a problem of one level; its x is not looked at."""

        def value(b: Any, party: Party, rows: Rows, x: Any) -> Any:
            return oracles.client_value(b, None, party.environment, rows)

        def environment(b: Any, party: Party, x: Any) -> dict[int, Any]:
            return dict(oracles.environment(b, None, party.environment))

        return cls(value, environment, oracles.declaration.objective.clients, oracles.upper_samples)

    @classmethod
    def below(cls, oracles: Oracles) -> RowLoss:
        """The objective of an argmin or argmax at x."""
        level = oracles.declaration.lower_level
        assert level is not None and oracles.lower_program is not None
        program, sign = oracles.lower_program, level.sign

        def environment(b: Any, party: Party, x: Any) -> dict[int, Any]:
            return {**oracles.environment(x, None, party.environment), **oracles.lower.split(b)}

        def value(b: Any, party: Party, rows: Rows, x: Any) -> Any:
            return sign * jnp.reshape(program(environment(b, party, x), rows)[0], ())

        (expression,) = level.expressions
        return cls(value, environment, expression, oracles.lower_samples)

    @property
    def averages(self) -> list[Any]:
        return list(averages_of(self.expression))

    def sums(self, party: Party, b: Array, x: Array) -> RowSums:
        def of_rows(rows: Rows) -> Any:
            whose = {leaf: place for place, table in enumerate(party.tables) for leaf in table.samples if leaf in rows.values}
            more = {place: jnp.zeros(rows.values[leaf].shape[0]) for leaf, place in whose.items()}

            def slope(b: Array, more: Any) -> Any:
                weights = {leaf: weight * (1.0 + more[whose[leaf]]) for leaf, weight in rows.weights.items()}
                return jax.grad(self.value)(b, party, rows._replace(weights=weights), x)

            found, pull = jax.vjp(lambda more: slope(b, more), more)
            influence = list(jax.lax.map(lambda row: pull(row)[0], jnp.eye(b.size)).values()) if more else []
            none = jnp.zeros((b.size, b.size))
            return (
                found,
                by_columns(jax.linearize(lambda b: slope(b, more), b)[1], b),
                sum((each @ each.T for each in influence), start=none),
                sum((each.sum(axis=1) for each in influence), start=none[0]),
                self.value(b, party, rows, x),
            )

        without, found = of_rows(NO_ROWS), party.mean(of_rows, self.samples)
        gradient, hessian, outer, influence, loss = found
        return RowSums(gradient, hessian, outer, influence, loss - without[4], without[0], self._factors(party, b, x))

    def _factors(self, party: Party, b: Array, x: Array) -> Array:
        """1 and 1 in ``hf.E(loss) + penalty``, 2 and 2 in ``2 * hf.E(loss)``."""
        stands = {id(one): cp.Variable(one.shape) for one in self.averages}

        def without(part: Any) -> Any:
            if id(part) in stands:
                return stands[id(part)]
            return part.copy([without(one) for one in part.args]) if any(averages_of(part)) else part

        program, known = Program([without(self.expression)]), self.environment(b, party, x)
        start = {one.id: jnp.zeros(one.shape) for one in stands.values()}
        slopes = jax.grad(lambda of: jnp.reshape(program({**known, **of})[0], ()))(start)
        every = jnp.abs(jnp.concatenate([jnp.ravel(slope) for slope in slopes.values()]))
        return jnp.stack([every.min(), every.max()])

"""What an owner of a y contributes to the two levels, on all its data: the smooth part of F, and the upper objective."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from hierfl.compiler.data.tables import Party
from hierfl.compiler.expressions.program import NO_ROWS, Rows
from hierfl.compiler.lower_level.owner import Held
from hierfl.compiler.lower_level.quadratic_part import QuadraticPart
from hierfl.compiler.oracles import Oracles

Own = dict[int, Any]
Field = Callable[[Array, Array], Array]  # of (x, y)


@dataclass(frozen=True, eq=False)
class OwnerTerms:
    """Traceable terms of one owner, of what it holds.

    ``smooth`` is the part of F that is evaluated as it is; ``interior`` says that it may grow without bound where its objective ends.
    """

    oracles: Oracles
    smooth: QuadraticPart
    interior: bool = False

    def force(self, x: Array, held: Held, y: Array) -> Array:
        """The smooth part of F at y, on all data of the owner."""
        return self._below(held, lambda field: field(x, y), y)

    def cost(self, x: Array, held: Held, y: Array) -> Array:
        """What the smooth part of F is the gradient of, on all data of the owner; 0 for a map that is none."""
        program, sign = self.smooth.program, self.smooth.gradient_of
        if program is None or sign is None:
            return jnp.zeros((), x.dtype)

        def value(own: Own, rows: Rows) -> Array:
            return sign * jnp.reshape(program(self.oracles.environment(x, y, own), rows)[0], ())

        return self._on_data(held, value, jnp.zeros((), x.dtype))

    def pull_of_force(self, x: Array, held: Held, y: Array, v: Array) -> Array:
        """The gradient in x of v'F."""
        return self._below(held, lambda field: _pulled(field, x, y, v), x)

    def upper_gradient(self, x: Array, held: Held, y: Array) -> Array:
        """The gradient in y of what of the upper objective this owner's y enters, up to its weight."""
        return self._above(held, lambda value: jax.grad(value, argnums=1)(x, y), y)

    def pull_of_upper_gradient(self, x: Array, held: Held, y: Array, v: Array) -> Array:
        """The gradient in x of v times that."""
        return self._above(held, lambda value: _pulled(jax.grad(value, argnums=1), x, y, v), x)

    # what is averaged is taken of each piece of the data: JAX has no reverse derivative of a loop over pieces

    def _below(self, held: Held, of: Callable[[Field], Array], like: Array) -> Array:
        """``of`` the smooth part of F, as a function of (x, y), averaged over the owner's data."""
        return self._on_data(held, lambda own, rows: of(lambda x, y: self._operator(x, y, own, rows)), like)

    def _on_data(self, held: Held, on_rows: Callable[[Own, Rows], Array], like: Array) -> Array:
        """What a function says of rows, averaged over the owner's data."""
        from_data, samples = self.smooth.from_data, self.oracles.lower_samples
        if self.oracles.scope == "sample" or (self.oracles.scope == "client" and not from_data):
            return on_rows(held.own, NO_ROWS)
        if self.oracles.scope == "client":
            return self._mean(held, on_rows, samples)
        if not from_data and (held.data is None or not held.data.clients.parameters):
            return self.oracles.total_weight * on_rows(held.own, NO_ROWS)
        return self._weighted(held, on_rows, samples if from_data else (), like)

    def _above(self, held: Held, of: Callable[[Field], Array], like: Array) -> Array:
        """``of`` the upper objective, as a function of (x, y), averaged over the owner's data."""
        oracles = self.oracles

        def on_rows(own: Own, rows: Rows) -> Array:
            return of(lambda x, y: oracles.client_value(x, y, own, rows))

        if oracles.scope == "sample":
            one, leaves, own = jnp.ones(1), oracles.row_samples, held.own
            rows = Rows({s: own[s][None] for s in leaves}, dict.fromkeys(leaves, one), dict.fromkeys(leaves, one[0]))
            return of(lambda x, y: oracles.client_value(x, y[None], own, rows))
        if oracles.scope == "client":
            return self._mean(held, on_rows, oracles.upper_samples)
        total = self._weighted(held, on_rows, oracles.upper_samples, like)
        if held.data is None or held.data.server is None:
            return total
        server = replace(held.data.server, public=held.own).party(0)

        def of_server(rows: Rows) -> Array:
            return of(lambda x, y: oracles.server_value(x, y, server.environment, rows))

        return total + server.mean(of_server)

    @staticmethod
    def _mean(held: Held, on_rows: Callable[[Own, Rows], Array], samples: Sequence[int]) -> Array:
        """What a client's rows say on average."""
        if held.data is None:
            return on_rows(held.own, NO_ROWS)
        mean: Array = held.data.clients.party(0).mean(partial(on_rows, held.own), samples)
        return mean

    @staticmethod
    def _weighted(held: Held, on_rows: Callable[[Own, Rows], Array], samples: Sequence[int], like: Array) -> Array:
        """What the rows of clients that share a y say on average."""

        def of_party(party: Party) -> Array:
            value: Array = party.mean(partial(on_rows, party.environment), samples)
            return value

        assert held.data is not None  # what is averaged over the clients is handed over with them
        return replace(held.data.clients, public=held.own).weighted(of_party, like)

    def _operator(self, x: Array, y: Array, own: Own, rows: Rows = NO_ROWS) -> Array:
        """The smooth part of F on rows; NaN where the objective is not finite, whatever its derivative is said to be there."""
        oracles, part = self.oracles, self.smooth
        if not self.interior or part.program is None or part.gradient_of is None:
            return part.operator(oracles, x, y, own, rows)
        program, sign = part.program, part.gradient_of

        def value(y: Array) -> Array:
            return sign * jnp.reshape(program(oracles.environment(x, y, own), rows)[0], ())

        here, slope = jax.value_and_grad(value)(y)
        return jnp.where(jnp.isfinite(here), slope, jnp.nan)


def _pulled(field: Field, x: Array, y: Array, v: Array) -> Array:
    """The gradient in x of v'field."""
    pulled: Array = jax.vjp(lambda at: field(at, y), x)[1](v)[0]
    return pulled

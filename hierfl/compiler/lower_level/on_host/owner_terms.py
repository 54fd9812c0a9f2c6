"""What an owner of a y contributes to the two levels, on all its data: the smooth part of F, and the upper objective."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from hierfl.compiler.data.tables import Data, Party, with_node_weights
from hierfl.compiler.expressions.program import NO_ROWS, Rows
from hierfl.compiler.lower_level.quadratic_part import QuadraticPart
from hierfl.compiler.oracles import Oracles
from hierfl.jaxtools.precision import renewed

Own = dict[int, Any]
Field = Callable[[Array, Array], Array]  # of (x, y)


@dataclass(frozen=True, eq=False)
class OwnerTerms:
    """Traceable terms of one owner, told by a client's index and its own constants.

    ``smooth`` is the part of F that is evaluated as it is; ``interior`` says that it may grow without bound where its objective ends.
    """

    oracles: Oracles
    smooth: QuadraticPart
    interior: bool = False

    def force(self, x: Array, index: Array, own: Own, y: Array) -> Array:
        """The smooth part of F at y, on all data of the owner."""
        return self._below(index, own, lambda field: field(x, y), y)

    def cost(self, x: Array, index: Array, own: Own, y: Array) -> Array:
        """What the smooth part of F is the gradient of, on all data of the owner; 0 for a map that is none."""
        program, sign = self.smooth.program, self.smooth.gradient_of
        if program is None or sign is None:
            return jnp.zeros((), x.dtype)

        def value(own: Own, rows: Rows) -> Array:
            return sign * jnp.reshape(program(self.oracles.environment(x, y, own), rows)[0], ())

        return self._on_data(index, own, value, jnp.zeros((), x.dtype))

    def pull_of_force(self, x: Array, index: Array, own: Own, y: Array, v: Array) -> Array:
        """The gradient in x of v'F."""
        return self._below(index, own, lambda field: _pulled(field, x, y, v), x)

    def upper_gradient(self, x: Array, index: Array, own: Own, y: Array) -> Array:
        """The gradient in y of what of the upper objective this owner's y enters, up to its weight."""
        return self._above(index, own, lambda value: jax.grad(value, argnums=1)(x, y), y)

    def pull_of_upper_gradient(self, x: Array, index: Array, own: Own, y: Array, v: Array) -> Array:
        """The gradient in x of v times that."""
        return self._above(index, own, lambda value: _pulled(jax.grad(value, argnums=1), x, y, v), x)

    # what is averaged is taken of each piece of the data: JAX has no reverse derivative of a loop over pieces

    def _below(self, index: Array, own: Own, of: Callable[[Field], Array], like: Array) -> Array:
        """``of`` the smooth part of F, as a function of (x, y), averaged over the owner's data."""
        return self._on_data(index, own, lambda own, rows: of(lambda x, y: self._operator(x, y, own, rows)), like)

    def _on_data(self, index: Array, own: Own, on_rows: Callable[[Own, Rows], Array], like: Array) -> Array:
        """What a function says of rows, averaged over the owner's data."""
        from_data, samples = self.smooth.from_data, self.oracles.lower_samples
        if self.oracles.scope == "sample" or (self.oracles.scope == "client" and not from_data):
            return on_rows(own, NO_ROWS)
        clients = self.data(own).clients
        if self.oracles.scope == "client":
            mean: Array = replace(clients.party(index), environment=own).mean(partial(on_rows, own), samples)
            return mean
        if not from_data and not clients.parameters:
            return jnp.sum(clients.weights) * on_rows(own, NO_ROWS)

        def of_party(party: Party) -> Array:
            value: Array = party.mean(partial(on_rows, party.environment), samples if from_data else ())
            return value

        return clients.weighted(of_party, like)

    def _above(self, index: Array, own: Own, of: Callable[[Field], Array], like: Array) -> Array:
        """``of`` the upper objective, as a function of (x, y), averaged over the owner's data."""
        oracles, data = self.oracles, self.data(own)

        def on_rows(own: Own, rows: Rows) -> Array:
            return of(lambda x, y: oracles.client_value(x, y, own, rows))

        if oracles.scope == "sample":
            one, leaves = jnp.ones(1), oracles.row_samples
            rows = Rows({s: own[s][None] for s in leaves}, dict.fromkeys(leaves, one), dict.fromkeys(leaves, one[0]))
            return of(lambda x, y: oracles.client_value(x, y[None], own, rows))
        if oracles.scope == "client":
            party = replace(data.clients.party(index), environment=own)
            mean: Array = party.mean(partial(on_rows, own), oracles.upper_samples)
            return mean

        def of_party(party: Party) -> Array:
            value: Array = party.mean(partial(on_rows, party.environment), oracles.upper_samples)
            return value

        total = data.clients.weighted(of_party, like)
        if data.server is None:
            return total
        server = replace(data.server, public=data.clients.public).party(0)

        def of_server(rows: Rows) -> Array:
            return of(lambda x, y: oracles.server_value(x, y, server.environment, rows))

        return total + server.mean(of_server)

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

    def data(self, own: Own) -> Data:
        """The parties' data with the owner's word on what is public, and on the weights of nodes."""
        data = jax.tree.map(jnp.asarray, renewed(self.oracles.static_data))
        public = {p.id: own[p.id] for p in self.oracles.declaration.roles.parameters}
        tables = with_node_weights(data.clients.tables, own)
        return replace(data, clients=replace(data.clients, public=public, tables=tables))


def _pulled(field: Field, x: Array, y: Array, v: Array) -> Array:
    """The gradient in x of v'field."""
    pulled: Array = jax.vjp(lambda at: field(at, y), x)[1](v)[0]
    return pulled

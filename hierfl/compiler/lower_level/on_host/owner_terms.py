"""What an owner of a y contributes to the two levels, on all its data: the smooth part of F, and the upper objective."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from hierfl.compiler.data.tables import Data
from hierfl.compiler.expressions.program import NO_ROWS, Rows
from hierfl.compiler.lower_level.quadratic_part import QuadraticPart
from hierfl.compiler.oracles import Oracles

Own = dict[int, Any]


@dataclass(frozen=True, eq=False)
class OwnerTerms:
    """Traceable terms of one owner, told by a client's index and its own constants.

    ``smooth`` is the part of F that is evaluated as it is; ``interior`` says that it may grow without bound where its objective ends.
    """

    oracles: Oracles
    smooth: QuadraticPart
    interior: bool = False

    def upper(self, x: Array, index: Array, own: Own, y: Array) -> Array:
        """What of the upper objective this owner's y enters, up to its weight."""
        oracles, data = self.oracles, self._data(own)
        clients = data.clients
        if oracles.scope == "sample":
            one = jnp.ones(1)
            leaves = oracles.row_samples
            rows = Rows({s: own[s][None] for s in leaves}, dict.fromkeys(leaves, one), dict.fromkeys(leaves, one[0]))
            return oracles.client_value(x, y[None], own, rows)
        if oracles.scope == "client":
            party = replace(clients.party(index), environment=own)
            mean: Array = party.mean(lambda rows: oracles.client_value(x, y, own, rows), oracles.upper_samples)
            return mean

        def add(place: Array, carry: Array) -> Array:
            party = clients.party(place)
            value = party.mean(lambda rows: oracles.client_value(x, y, party.environment, rows), oracles.upper_samples)
            return carry + party.weight * value

        value = sum((add(jnp.asarray(k), jnp.zeros(())) for k in range(clients.size)), start=jnp.zeros(()))
        if data.server is None:
            return value
        server = replace(data.server, public=clients.public).party(0)
        return value + server.mean(lambda rows: oracles.server_value(x, y, server.environment, rows))

    def force(self, x: Array, index: Array, own: Own, y: Array) -> Array:
        """The smooth part of F at y, on all data of the owner."""
        oracles, part = self.oracles, self.smooth
        if oracles.scope == "sample" or not part.from_data:
            return self._force_without_data(x, own, y)
        samples = oracles.lower_samples
        clients = self._data(own).clients
        if oracles.scope == "client":
            party = replace(clients.party(index), environment=own)
            mean: Array = party.mean(lambda rows: self._operator(x, y, own, rows), samples)
            return mean

        def add(place: Array, carry: Array) -> Array:
            party = clients.party(place)
            value = party.mean(lambda rows: self._operator(x, y, party.environment, rows), samples)
            return carry + party.weight * value

        return jax.lax.fori_loop(0, clients.size, add, jnp.zeros(y.size))

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

    def _force_without_data(self, x: Array, own: Own, y: Array) -> Array:
        oracles = self.oracles
        if oracles.scope != "federation":
            return self._operator(x, y, own)
        clients = self._data(own).clients
        if not clients.parameters:
            return jnp.sum(clients.weights) * self._operator(x, y, own)

        def one(place: Array) -> Array:
            party = clients.party(place)
            return party.weight * self._operator(x, y, party.environment)

        return jnp.sum(jax.vmap(one)(jnp.arange(clients.size)), axis=0)

    def _data(self, own: Own) -> Data:
        """The parties' data with the owner's word on what is public."""
        data = jax.tree.map(jnp.asarray, self.oracles.static_data)
        public = {p.id: own[p.id] for p in self.oracles.declaration.roles.parameters}
        return replace(data, clients=replace(data.clients, public=public))

"""Whoever has a copy of y: the federation, a client, or a sample."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from hierfl.compiler.data.tables import Party, Population
from hierfl.compiler.expressions.program import NO_ROWS
from hierfl.compiler.lower_level.quadratic_part import QuadraticPart
from hierfl.compiler.oracles import Oracles
from hierfl.compiler.parametric.level_form import Gather, RowGroup


class Owner(NamedTuple):
    """One copy of y: its mapping F, its projection, and products with the Jacobian of F's quadratic part."""

    operator: Callable[[Array], Array]
    project: Callable[[Array], Array]
    multiply: Callable[[Array], Array]
    limits: Callable[[], tuple[Array, Array]]  # bounds of y, where Y(x) is a box or free
    condition: Callable[[], Array]  # of the projection
    own: dict[int, Array]  # its constants
    gather: Gather  # what differs between the rows that its objectives average over, and their weights
    upper: Callable[[Array], Array]  # what of the upper objective its y enters, up to its weight
    mapping: Callable[[Array, Array], Array]  # F of x and y

    def condensed(self, like: Array) -> Owner:
        """The same for an affine F, its matrix and constant formed once, so that iterations do not pass over the data."""
        matrix = jax.vmap(self.multiply, out_axes=1)(jnp.eye(like.size, dtype=like.dtype))
        constant = self.operator(jnp.zeros_like(like))
        return self._replace(operator=lambda y: matrix @ y + constant, multiply=lambda v: matrix @ v)

    @classmethod
    def of_client(cls, oracles: Oracles, part: QuadraticPart, x: Array, party: Party) -> Owner:
        """The owner of a client-scope y."""

        def mapping(x: Array, y: Array) -> Array:
            return party.mean(lambda rows: oracles.operator(x, y, party.environment, rows), oracles.lower_samples)

        def quadratic(y: Array) -> Array:
            samples = oracles.lower_samples if part.from_data else ()
            return party.mean(lambda rows: part.operator(oracles, x, y, party.environment, rows), samples)

        return cls(
            partial(mapping, x),
            lambda z: oracles.project_lower(x, z, party.environment),
            _linear(quadratic, oracles.lower.size, x.dtype),
            lambda: oracles.lower_limits(x, party.environment),
            lambda: oracles.lower_condition(x, party.environment),
            party.environment,
            party.gathered,
            lambda y: party.mean(
                lambda rows: oracles.client_value(x, y, party.environment, rows), oracles.upper_samples
            ),
            mapping,
        )

    @classmethod
    def of_federation(
        cls, oracles: Oracles, part: QuadraticPart, x: Array, clients: Population
    ) -> Owner:
        """The owner of the federation-scope y: F is the weighted mean over the clients."""

        def weighted(of_party: Callable[[Party], Array]) -> Array:
            return clients.weighted(of_party, jnp.zeros(oracles.lower.size, x.dtype))

        def mapping(x: Array, y: Array) -> Array:
            return weighted(
                lambda p: p.mean(lambda rows: oracles.operator(x, y, p.environment, rows), oracles.lower_samples)
            )

        def quadratic(y: Array) -> Array:
            samples = oracles.lower_samples if part.from_data else ()
            return weighted(lambda p: p.mean(lambda rows: part.operator(oracles, x, y, p.environment, rows), samples))

        public = clients.party(0).environment

        return cls(
            partial(mapping, x),
            lambda z: oracles.project_lower(x, z, public),
            _linear(quadratic, oracles.lower.size, x.dtype),
            lambda: oracles.lower_limits(x, public),
            lambda: oracles.lower_condition(x, public),
            public,
            lambda group: oracles.laid_out().server_party.gathered(group) if group.server else clients.gathered(group),
            lambda y: oracles.federation_value(x, y, clients),
            mapping,
        )

    @classmethod
    def of_sample(cls, oracles: Oracles, part: QuadraticPart, x: Array, own: dict[int, Array]) -> Owner:
        """The owner of one sample's y; ``own`` holds the client's parameters and the sample's values."""
        return cls(
            lambda y: oracles.operator(x, y, own, NO_ROWS),
            lambda z: oracles.project_lower(x, z, own),
            _linear(lambda y: part.operator(oracles, x, y, own, NO_ROWS), oracles.lower.size, x.dtype),
            lambda: oracles.lower_limits(x, own),
            lambda: oracles.lower_condition(x, own),
            own,
            _nothing_to_gather,
            lambda y: oracles.client_value(x, y[None], own, oracles.as_rows(own)),
            lambda x, y: oracles.operator(x, y, own, NO_ROWS),
        )


def _nothing_to_gather(group: RowGroup) -> tuple[dict[int, Array], Array]:
    raise AssertionError("a sample's level averages over nothing")


def _linear(mapping: Callable[[Array], Array], size: int, dtype: Any) -> Callable[[Array], Array]:
    """Products with the Jacobian of an affine map."""
    zero = jnp.zeros(size, dtype)
    return lambda v: jax.jvp(mapping, (zero,), (v,))[1]

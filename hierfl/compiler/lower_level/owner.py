"""Whoever has a copy of y: the federation, a client, or a sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array

from hierfl.compiler import parametric
from hierfl.compiler.data.tables import Party, Population
from hierfl.compiler.expressions.program import NO_ROWS, Rows
from hierfl.compiler.lower_level.jacobian import QuadraticPart
from hierfl.compiler.oracles import Oracles

OfRows = Callable[[dict[int, Array], Rows], Array]  # a function of somebody's constants and rows
Mean = Callable[[OfRows, Sequence[int], Array], Array]  # its mean over the rows of samples, an array like the last argument


class Owner(NamedTuple):
    """One copy of y: its mapping F, its projection, and products with the Jacobian of F's quadratic part."""

    operator: Callable[[Array], Array]
    project: Callable[[Array], Array]
    multiply: Callable[[Array], Array]
    limits: Callable[[], tuple[Array, Array]]  # bounds of y, where Y(x) is a box or free
    condition: Callable[[], Array]  # of the projection
    own: dict[int, Array]  # its constants
    gather: parametric.Gather | None  # what differs between the rows that its objectives average over, and their weights; None of a sample
    upper: Callable[[Array], Array]  # what of the upper objective its y enters, up to its weight
    mapping: Callable[[Array, Array], Array]  # F of x and y
    stage: Callable[[Any, Array], Any]  # the same owner in one of several levels, of which x and the answers before are the upper decision

    def condensed(self, like: Array) -> Owner:
        """The same for an affine F, its matrix and constant formed once, so that iterations do not pass over the data."""
        matrix = jax.vmap(self.multiply, out_axes=1)(jnp.eye(like.size, dtype=like.dtype))
        constant = self.operator(jnp.zeros_like(like))
        return self._replace(operator=lambda y: matrix @ y + constant, multiply=lambda v: matrix @ v)

    @classmethod
    def of(
        cls,
        oracles: Oracles,
        part: QuadraticPart,
        x: Array,
        own: dict[int, Array],
        mean: Mean,
        gather: parametric.Gather | None,
        upper: Callable[[Array], Array],
        stage: Callable[[Any, Array], Any],
    ) -> Owner:
        """The owner whose F is a ``mean``; ``own`` is what it knows itself."""

        def mapping(x: Array, y: Array) -> Array:
            return mean(lambda own, rows: oracles.operator(x, y, own, rows), oracles.lower_samples, y)

        def quadratic(y: Array) -> Array:
            samples = oracles.lower_samples if part.from_data else ()
            return mean(lambda own, rows: part.operator(oracles, x, y, own, rows), samples, y)

        zero = jnp.zeros(oracles.lower.size, x.dtype)
        return cls(
            partial(mapping, x),
            lambda z: oracles.project_lower(x, z, own),
            lambda v: jax.jvp(quadratic, (zero,), (v,))[1],
            lambda: oracles.lower_limits(x, own),
            lambda: oracles.lower_condition(x, own),
            own,
            gather,
            upper,
            mapping,
            stage,
        )


def mean_of_client(party: Party) -> Mean:
    """Over all rows of a client."""
    return lambda function, samples, like: party.mean(partial(function, party.environment), samples)


def mean_of_federation(clients: Population) -> Mean:
    """The weighted mean over the clients of theirs."""

    def mean(function: OfRows, samples: Sequence[int], like: Array) -> Array:
        return clients.weighted(lambda party: mean_of_client(party)(function, samples, like), like)

    return mean


def mean_of_sample(own: dict[int, Array]) -> Mean:
    """Over nothing but the sample itself."""
    return lambda function, samples, like: function(own, NO_ROWS)



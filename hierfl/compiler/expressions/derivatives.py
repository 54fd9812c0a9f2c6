"""Derivatives of atoms, as JAX computes them: the part of a game's gradients that has no symbolic rule."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from hierfl.atoms.table import arguments_of
from hierfl.errors import UnsupportedAtomError
from hierfl.language.calculus.jax_derivative import OwnGradient, Pullback, leaves_of

Array = jax.Array


def pullback_of(atom: Pullback, function: Callable[..., Array]) -> Callable[..., Array]:
    """The adjoint of the node's argument, given the node's JAX function.

    Raises
    ------
    UnsupportedAtomError
        For an atom that holds expressions beside its arguments.
    """
    node, place = atom.node, atom.index
    if len(arguments_of(node)) != len(node.args):
        raise UnsupportedAtomError(f"hierfl has no derivative of {node.name()} in a player's objective.")

    def pullback(adjoint: Array, *values: Array) -> Array:
        point = list(values) or [jnp.zeros(argument.shape, adjoint.dtype) for argument in node.args]

        def of_argument(value: Array) -> Array:
            return jnp.reshape(function(*point[:place], value, *point[place + 1 :]), node.shape)

        return jax.vjp(of_argument, point[place])[1](jnp.reshape(adjoint, node.shape))[0]

    return pullback


def own_gradient_of(atom: OwnGradient, cost: Callable[[dict[int, Any]], Array]) -> Callable[..., Array]:
    """Each player's derivative of its own cost, given the costs as a function of an environment."""
    leaves = [leaf.id for leaf in leaves_of(atom.cost)]

    def own_gradient(*values: Array) -> Array:
        environment = dict(zip(leaves, values))
        variable = environment[atom.variable.id]

        def of_player(player: Array) -> Array:
            def of_row(row: Array) -> Array:
                return cost({**environment, atom.variable.id: variable.at[player].set(row)})[player]

            return jax.grad(of_row)(variable[player])

        return jax.vmap(of_player)(jnp.arange(variable.shape[0]))

    return own_gradient

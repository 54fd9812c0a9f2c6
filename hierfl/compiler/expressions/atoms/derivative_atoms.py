"""Derivatives of atoms, as JAX computes them: the part of a game's gradients that has no symbolic rule."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from hierfl.compiler.expressions.registry import arguments_of, lowering_of, lowers
from hierfl.errors import UnsupportedAtomError
from hierfl.language.calculus.jax_derivative import OwnGradient, Pullback, leaves_of


@lowers(Pullback, shared=False)
def _pullback(atom: Any, adjoint: Any, *values: Any) -> Any:
    node, place = atom.node, atom.index
    if len(arguments_of(node)) != len(node.args):
        raise UnsupportedAtomError(f"hierfl has no derivative of {node.name()} in a player's objective.")
    apply = lowering_of(node)
    point = list(values) or [jnp.zeros(argument.shape, adjoint.dtype) for argument in node.args]

    def of_argument(value: Any) -> Any:
        return jnp.reshape(apply(*point[:place], value, *point[place + 1 :]), node.shape)

    return jax.vjp(of_argument, point[place])[1](jnp.reshape(adjoint, node.shape))[0]


@lowers(OwnGradient, shared=False)
def _own_gradient(atom: Any, *values: Any) -> Any:
    from hierfl.compiler.expressions.program import Program  # programs are built from this table

    program = Program([atom.cost])
    environment = dict(zip((leaf.id for leaf in leaves_of(atom.cost)), values))
    variable = environment[atom.variable.id]

    def of_player(player: Any) -> Any:
        def cost(row: Any) -> Any:
            return program({**environment, atom.variable.id: variable.at[player].set(row)})[0][player]

        return jax.grad(cost)(variable[player])

    return jax.vmap(of_player)(jnp.arange(variable.shape[0]))

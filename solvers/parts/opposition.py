"""Whether a problem is a minimax problem: y maximises what x minimises."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Population
from hierfl.jaxtools.cheap_jit import quick_jit


def is_opposed(problem: CompiledProblem) -> bool:
    """Whether every client's lower objective is its upper term, negated, in y: found out once, at random points."""
    opposed: bool = problem.programs.keep(("opposed", problem.parameter_values), lambda: _sampled(problem))
    return opposed


def _sampled(problem: CompiledProblem) -> bool:
    """Whether grad_y of every client's lower objective is that of its term, at random points of X and Y(x)."""

    def difference(clients: Population, index: Array, key: Array) -> Array:
        party, (x_key, y_key, row_key) = clients.party(index), jax.random.split(key, 3)
        own, rows = party.environment, party.batch(row_key, 8)
        x = problem.project_upper(jax.random.normal(x_key, (problem.upper.size,), float), own)
        y = problem.project_lower(x, jax.random.normal(y_key, (problem.lower.size,), float), own)
        ascent = jax.grad(lambda z: problem.client_value(x, z, own, rows))(y)
        descent = problem.operator(x, y, own, rows)
        return jnp.max(jnp.abs(ascent + descent)) / (1 + jnp.max(jnp.abs(ascent)))

    every, keys = jnp.arange(problem.num_clients), jax.random.split(jax.random.key(0), problem.num_clients)
    program = problem.programs.keep("opposition", lambda: quick_jit(jax.vmap(difference, (None, 0, 0))))
    differences = program(problem.laid_out().clients, every, keys)
    seen = differences[jnp.isfinite(differences)]
    return bool(seen.size > 0 and jnp.all(seen <= 1e-9))

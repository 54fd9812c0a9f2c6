"""Exact values are short programs, whatever the set and the method: XLA's time goes with their equations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from tests.benchmarks.program_size import BAR, CATALOGUE, equations, evaluations

ON_HOST = {  # have no exact projection, and so a program on the host alone
    "polyhedron with a ball",
    "polyhedron with a ball that moves",
    "simplex cut by an l1 ball",
    "ball with a halfspace",
    "box with a ball and a halfspace",
    "dispatch in a ball",
    "logistic over a polyhedron with a ball",
    "equilibrium over a polyhedron with a ball",
    "equilibrium over an intersection",
}


@pytest.mark.parametrize("name", [name for name in CATALOGUE if name not in ON_HOST])
def test_an_exact_value_is_a_short_program(name: str) -> None:
    sizes = dict(evaluations(CATALOGUE[name]()))
    assert max(sizes.values()) <= BAR, sizes


def test_what_is_called_twice_counts_twice() -> None:
    @jax.jit
    def product(a: jax.Array) -> jax.Array:
        return a * a

    def twice(a: jax.Array) -> jax.Array:
        return jax.lax.fori_loop(0, 3, lambda _, b: product(b), product(a))

    once = equations(jax.make_jaxpr(lambda a: a * a)(jnp.ones(())))
    assert once == 1
    in_loop = equations(jax.make_jaxpr(lambda a: jax.lax.fori_loop(0, 3, lambda _, b: b * b, a))(jnp.ones(())))
    assert equations(jax.make_jaxpr(twice)(jnp.ones(()))) == in_loop + 2 * once + 1  # the two calls count as well

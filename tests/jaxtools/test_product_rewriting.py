"""Products written as products of two matrices: the numbers stay, XLA's transposed copies go."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend.core import ClosedJaxpr, Jaxpr, jaxpr_as_fun

from hierfl.jaxtools.traced import as_matrices


def products(program: ClosedJaxpr | Jaxpr) -> list[tuple[tuple[int, ...], ...]]:
    """The operands' shapes of every product, in loops and branches as well."""
    found = []
    for equation in program.eqns:
        if equation.primitive.name == "dot_general":
            found.append(tuple(v.aval.shape for v in equation.invars))
        for value in jax.tree.leaves(list(equation.params.values())):
            if hasattr(value, "eqns"):
                found += products(value)
    return found


@settings(deadline=None, max_examples=150)
@given(data=st.data())
def test_any_product_keeps_its_numbers(data: st.DataObject) -> None:
    batch, summed, rows, columns = (
        data.draw(st.sampled_from(["", one, one + two])) for one, two in ("ab", "cd", "ef", "gh")
    )
    size = {letter: data.draw(st.integers(0, 3)) for letter in "abcdefgh"}
    left = data.draw(st.permutations(batch + summed + rows))
    right = data.draw(st.permutations(batch + summed + columns))
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal([size[letter] for letter in own]) for own in (left, right))
    dimensions = tuple(
        tuple(tuple(own.index(letter) for letter in letters) for own in (left, right)) for letters in (summed, batch)
    )
    program = jax.make_jaxpr(lambda a, b: jax.lax.dot_general(a, b, dimensions))(a, b)
    (found,) = jaxpr_as_fun(as_matrices(program))(a, b)
    kept = [letter for own in (left, right) for letter in own if letter not in batch + summed]
    expected = np.einsum(f"{''.join(left)},{''.join(right)}->{batch}{''.join(kept)}", a, b)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def test_batched_models_times_rows_become_two_matrices_in_loops_and_branches_too() -> None:
    models, rows = np.ones((1, 2, 5, 7)), np.ones((3, 1, 7))

    def score(models: jax.Array) -> jax.Array:
        scores = jax.vmap(
            jax.vmap(jax.vmap(lambda w, row: w @ row, (None, 0)), (0, None)), (0, 1)
        )  # rows, signs, directions
        return jnp.sum(scores(models, rows) ** 2)

    def run(models: jax.Array, flag: bool) -> jax.Array:
        def body(_: int, w: jax.Array) -> jax.Array:
            return jax.lax.cond(flag, lambda w: w - 0.1 * jax.grad(score)(w), jax.jit(lambda w: 2 * w * score(w)), w)

        return jax.lax.fori_loop(0, 3, body, models)

    program = jax.make_jaxpr(run)(models, True)
    before, after = products(program), products(as_matrices(program))
    assert len(before) == len(after) == 3
    assert all(max(map(len, pair)) == 4 for pair in before)
    assert all(len(shape) == 2 for pair in after for shape in pair)
    for flag in (True, False):
        (found,) = jaxpr_as_fun(as_matrices(program))(models, flag)
        np.testing.assert_allclose(found, run(models, flag), rtol=1e-6)


def test_double_precision_within_a_program_in_single_precision() -> None:
    models, rows = np.ones((2, 5, 7), np.float32), np.ones((3, 1, 7), np.float32)

    def run(models: jax.Array, rows: jax.Array) -> jax.Array:
        with jax.enable_x64(True):
            wide = jax.lax.dot_general(models.astype(np.float64), rows.astype(np.float64), (((2,), (2,)), ((), ())))
            return wide.astype(np.float32)

    program = as_matrices(jax.make_jaxpr(run)(models, rows))
    assert products(program) == [((10, 7), (3, 7))]
    np.testing.assert_array_equal(jax.jit(jaxpr_as_fun(program))(models, rows)[0], np.full((2, 5, 3, 1), 7.0))

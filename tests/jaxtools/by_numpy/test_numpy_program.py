"""Programs that NumPy runs give what JAX gives: operations, derivatives, batches, loops, and calls of functions on the host."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hierfl.jaxtools.by_numpy.numpy_program import NumpyProgram
from hierfl.jaxtools.host_callback import call_on_host

RNG = np.random.default_rng(0)
VECTOR, MATRIX, BATCH = RNG.standard_normal(5), RNG.standard_normal((5, 5)), RNG.standard_normal((4, 5))
PLACES, OUTSIDE = np.array([1, 3, 1, 0]), np.array([2, 7, 0, 9])
ODD = np.array([1.0, -0.0, 0.0, -np.inf, np.nan, 2.0])
SYSTEMS = RNG.standard_normal((4, 5, 5))
PAIRS = RNG.standard_normal((3, 2))


def mixed(x: Any) -> Any:
    """Selections, gathers, a linear system and a loop."""
    chosen = jnp.where(x > 0, x, 0.0).sum() + x[jnp.array([0, 1])].sum()
    return chosen + jnp.linalg.solve(MATRIX, x).sum() + jax.lax.fori_loop(0, 3, lambda i, c: c + x[i] ** 2, 0.0)


def doubled_until_large(x: Any) -> Any:
    return jax.lax.while_loop(lambda c: c.sum() < 100, lambda c: c * 1.5 + 1, x)


def twice(z: np.ndarray) -> np.ndarray:
    return 2 * z


CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "mixed": (mixed, (VECTOR,)),
    "gradient": (jax.grad(mixed), (VECTOR,)),
    "hessian": (jax.hessian(mixed), (VECTOR,)),
    "batch": (jax.vmap(mixed), (BATCH,)),
    "while": (doubled_until_large, (VECTOR,)),
    "while over a batch that ends at different times": (jax.vmap(doubled_until_large), (BATCH,)),
    "sort": (lambda x: jnp.sort(x)[::-1] + jnp.cumsum(x), (VECTOR,)),
    "gradient of a sort": (jax.grad(lambda x: jnp.sort(x) @ jnp.arange(5.0)), (VECTOR,)),
    "log-sum-exp": (jax.scipy.special.logsumexp, (VECTOR,)),
    "eigenvalues": (lambda x: jnp.linalg.eigvalsh(x @ x.T), (MATRIX,)),
    "singular values": (lambda x: jnp.linalg.svd(x)[1], (MATRIX,)),
    "pseudo-inverse": (jnp.linalg.pinv, (MATRIX,)),
    "cholesky": (lambda x: jnp.linalg.cholesky(x @ x.T), (MATRIX,)),
    "cholesky of some that are not definite": (lambda x: jnp.linalg.cholesky(x[:, None, None] * jnp.eye(2)), (VECTOR,)),
    "singular values of some that are no numbers": (lambda x: jnp.linalg.svd(x[:, None, None] * jnp.eye(2))[1], (ODD,)),
    "counts of a narrow type": (lambda x: jnp.cumsum((300 * x**2).astype(jnp.uint8)) * jax.lax.reduce_sum_p.bind(PLACES.astype(np.uint8), axes=(0,), out_sharding=None), (VECTOR,)),
    "set and add": (lambda x: x.at[1:3].set(7.0).at[jnp.array([0, 0])].add(2.0), (VECTOR,)),
    "a place": (lambda x, i: x[i], (VECTOR, np.array([3, 1]))),
    "a place in each row": (jax.vmap(lambda x, i: x[i]), (BATCH, np.array([3, 1, 0, 2]))),
    "scan": (lambda x: jax.lax.map(lambda a: 2 * a + VECTOR.sum(), x, batch_size=2), (VECTOR,)),
    "products of batches": (lambda x: jnp.einsum("bi,bj->ij", x, x), (BATCH,)),
    "a call": (lambda x: call_on_host(twice, (5,), float, x), (VECTOR,)),
    "calls": (jax.vmap(lambda x: call_on_host(twice, (5,), float, x)), (BATCH,)),
    "random numbers": (lambda x: jax.random.normal(jax.random.key(0), (3,)) + x[0], (VECTOR,)),
    "convolution": (lambda x: jnp.convolve(x, x), (VECTOR,)),
    "a linear system of full rank": (lambda x: jnp.linalg.solve(x, x[:, 0]) @ jnp.linalg.inv(x), (MATRIX,)),
    "linear systems": (lambda x, v: jnp.linalg.solve(x, v[..., None]), (SYSTEMS, BATCH)),
    "factors": (lambda x: jax.scipy.linalg.lu_factor(x[:, :3])[0], (MATRIX,)),
    "what solves from the right": (lambda x: jax.lax.linalg.triangular_solve(x, x, lower=True), (MATRIX,)),
    "a linear system without a solution": (lambda x: jnp.isfinite(jnp.linalg.solve(0 * x, x[0])), (MATRIX,)),
    "the order of sorting": (lambda x: jax.lax.lt_to_p.bind(x[:, None], x[None]), (ODD,)),
    "where numbers belong": (lambda x: jnp.searchsorted(jnp.sort(x), x, method="sort"), (VECTOR,)),
    "stack and tile": (lambda x: jnp.tile(jnp.stack([x, 2 * x], 1), (2, 3)), (VECTOR,)),
    "round": (lambda x: jnp.round(3 * x), (VECTOR,)),
    "round halves": (lambda x: jnp.round(jnp.floor(3 * x) + 0.5), (VECTOR,)),
    "one place that is known": (jnp.median, (VECTOR,)),
    "counts from places outside": (lambda x: jnp.take((9 * x**2).astype(jnp.uint32), OUTSIDE, mode="fill"), (VECTOR,)),
    "Fortran's order": (lambda x: jnp.ravel(x, order="F"), (PAIRS,)),
    "Fortran's order of another shape": (lambda x: jnp.reshape(x, (2, 3), order="F"), (PAIRS,)),
    "one place taken by several": (
        lambda x: x.at[PLACES].max(-x[:4]).at[PLACES].min(x[:4]).at[PLACES].mul(x[:4]),
        (VECTOR,),
    ),
    "places outside": (lambda x: x.at[OUTSIDE].add(1.0).at[OUTSIDE].set(9.0, mode="clip"), (VECTOR,)),
    "places outside, that change": (lambda x, i: x.at[i].add(1.0, mode="drop"), (VECTOR, OUTSIDE)),
    "what is outside is filled": (lambda x: x.at[OUTSIDE].get(mode="fill", fill_value=-1.0), (VECTOR,)),
    "what is outside is the last": (lambda x: x.at[OUTSIDE].get(mode="clip"), (VECTOR,)),
    "columns": (lambda x: x[:, PLACES].T + x[PLACES, :][:, 1:2], (MATRIX,)),
    "columns that are set": (lambda x: x.at[:, PLACES].set(0.5).at[1:3, 2].add(x[0, :2]), (MATRIX,)),
    "a place of each row, set": (jax.vmap(lambda x, i: x.at[i].set(0.0)), (BATCH, np.array([3, 1, 0, 2]))),
    "padding": (lambda x: jax.lax.pad(x, 2.0, [(1, 2, 0)]) + jax.lax.pad(x, 1.0, [(-1, 0, 1)]), (VECTOR,)),
    "a scalar choice": (lambda x: jnp.where(x[0] > 0, x[1], x[2]) + jnp.where(x[0] > 0, 1, 2), (VECTOR,)),
    "products": (lambda x, v: x.T @ v + v @ x + jnp.tensordot(x, x, axes=((0,), (1,))) @ v, (MATRIX, VECTOR)),
    "whole numbers of what has none": (
        lambda x: sum((1e12 * x / (x - x[0])).astype(kind).astype(float).sum() for kind in (jnp.int32, jnp.uint8, jnp.int64)),
        (VECTOR,),
    ),
    "a number for all": (lambda x: jnp.broadcast_to(x[0], (2, 3)) + jnp.broadcast_to(x[1], (80, 80)).sum(), (VECTOR,)),
    "Fortran's order of a square": (lambda x: jax.lax.reshape(x, (2, 2), (1, 0)), (PAIRS[:2],)),
}


@pytest.mark.parametrize("name", CASES)
def test_agrees_with_jax(name: str) -> None:
    function, arguments = CASES[name]
    with jax.enable_x64(True):
        program = NumpyProgram(function, *arguments)
        found, expected = program(*arguments), function(*map(jnp.asarray, arguments))
        assert np.asarray(found).dtype == expected.dtype
        np.testing.assert_allclose(found, expected, rtol=1e-11, atol=1e-11)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_windows_anywhere_are_taken_and_put_as_by_jax(data: Any) -> None:
    """Gathers and scatters of windows of any size, from places inside or outside, known when the program is made or not."""
    shape = tuple(data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    sizes = tuple(data.draw(st.integers(1, n)) for n in shape)
    mapped = tuple(sorted(data.draw(st.sets(st.sampled_from(range(len(shape))), min_size=1))))
    gone = tuple(d for d, size in enumerate(sizes) if size == 1 and data.draw(st.booleans()))
    count = data.draw(st.integers(1, 3))
    starts = np.array(
        data.draw(
            st.lists(
                st.lists(st.integers(-2, 4), min_size=len(mapped), max_size=len(mapped)), min_size=count, max_size=count
            )
        )
    )
    kept = len(shape) - len(gone)
    offsets = tuple(range(1, 1 + kept)) if data.draw(st.booleans()) else tuple(range(kept))
    mode = data.draw(st.sampled_from([jax.lax.GatherScatterMode.CLIP, jax.lax.GatherScatterMode.FILL_OR_DROP]))
    x = np.arange(1.0, 1.0 + np.prod(shape)).reshape(shape)
    taking = jax.lax.GatherDimensionNumbers(offset_dims=offsets, collapsed_slice_dims=gone, start_index_map=mapped)
    putting = jax.lax.ScatterDimensionNumbers(
        update_window_dims=offsets, inserted_window_dims=gone, scatter_dims_to_operand_dims=mapped
    )

    def both(x: Any, places: Any) -> Any:
        taken = jax.lax.gather(x, places, taking, sizes, mode=mode, fill_value=-7.0)
        return taken, jax.lax.scatter_add(x, places, 0.5 * taken, putting, mode=mode)

    with jax.enable_x64(True):
        expected = both(jnp.asarray(x), jnp.asarray(starts))
        for found in (NumpyProgram(both, x, starts)(x, starts), NumpyProgram(lambda x: both(x, starts), x)(x)):
            for ours, theirs in zip(found, expected):
                np.testing.assert_allclose(ours, theirs, rtol=1e-14)


def _code_lines(program: NumpyProgram) -> int:
    return len({line for *_, line in program._run.__code__.co_lines()})


def test_data_that_come_again_are_constants_and_others_are_not() -> None:
    with jax.enable_x64(True):
        function = lambda x, data, own: (jnp.cumsum(data) ** 2).sum() * x.sum() + own.sum()  # noqa: E731
        one, other, own = jnp.arange(3.0), jnp.arange(3.0) + 1, np.ones(2)
        program = NumpyProgram(function, VECTOR, one, own)

        def asked(data: Any) -> None:
            np.testing.assert_allclose(program(VECTOR, data, own), function(VECTOR, data, own), rtol=1e-13)

        for _ in range(5):
            asked(one)
        assert program._chosen([VECTOR, one, own]) is not program._run
        assert _code_lines(program) > len(
            {line for *_, line in program._chosen([VECTOR, one, own]).__code__.co_lines()}
        )
        own[0] = 5.0  # which NumPy's arrays allow
        for data in (one, other, one, other, other, other, other, one):
            asked(data)
        for k in range(60):  # no program is made for data that never come again
            asked(jnp.arange(3.0) + k // 4)


def test_a_condition_is_followed() -> None:
    with jax.enable_x64(True):
        program = NumpyProgram(lambda x: jax.lax.cond(x > 0, lambda v: v, lambda v: -2 * v, x), np.asarray(1.0))
        assert [float(program(np.asarray(x))) for x in (3.0, -3.0)] == [3.0, 6.0]


def test_threads_with_data_of_their_own_get_their_own_answers() -> None:
    with jax.enable_x64(True):
        program = NumpyProgram(lambda x, data: (jnp.cumsum(data) ** 2).sum() * x.sum(), VECTOR, jnp.arange(3.0))
        several = [jnp.arange(3.0) + k for k in range(3)]
        wanted = [float((np.cumsum(np.asarray(data)) ** 2).sum() * VECTOR.sum()) for data in several]

        def asked(place: int) -> float:
            return max(abs(float(program(VECTOR, several[place])) - wanted[place]) for _ in range(3000))

        with ThreadPoolExecutor(6) as pool:
            assert max(pool.map(asked, [0, 1, 2] * 4)) < 1e-9

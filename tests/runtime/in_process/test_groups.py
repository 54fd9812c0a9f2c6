"""Clients in groups: answers in the clients' order, whatever their number."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from hierfl.jaxtools.traced import Traced
from hierfl.runtime.in_process.simulation import RoundInGroups, in_groups


@pytest.mark.parametrize("groups", [None, 1, 2, 3, 5])
@pytest.mark.parametrize("count", [1, 2, 4, 5, 9, 10])
def test_answers_come_in_the_order_of_the_clients(count: int, groups: int | None) -> None:
    jobs = {
        "number": jnp.arange(count),
        "nothing": jnp.zeros((count, 0)),
        "rows": jnp.arange(2.0 * count).reshape(-1, 2),
    }
    seen: list[int] = []

    def run(job: dict) -> tuple:
        seen.append(job["number"].size)
        return 10 * job["number"], job["nothing"], job["rows"] @ jnp.array([1.0, -2.0])

    number, nothing, rows = in_groups(run, jobs, groups)
    np.testing.assert_array_equal(number, 10 * np.arange(count))
    np.testing.assert_array_equal(rows, np.arange(2.0 * count).reshape(-1, 2) @ [1, -2])
    assert nothing.shape == (count, 0)
    assert set(seen) == {-(-count // min(groups or 1, count))}


@pytest.mark.parametrize("count", [4, 5])
def test_a_round_cut_at_its_groups_does_what_it_did_whole(count: int) -> None:
    scale = np.linspace(1, 2, 3)  # a constant of the program

    def one_round(
        tables: dict, state: jax.Array, memory: jax.Array, data: jax.Array, key: jax.Array, index: jax.Array
    ) -> tuple:
        def client(job: tuple) -> tuple:
            row, kept = job
            noise = jax.random.normal(jax.random.fold_in(key, index), (3,))
            return jnp.tanh(scale * row) + state, kept + jnp.sum(noise)

        moved, memory = in_groups(jax.vmap(client), (data, memory), 2)
        after = state + tables["step"][index] * jnp.mean(moved, axis=0)
        again, _ = in_groups(jax.vmap(lambda row: (row @ after, row)), data, 2)
        return after, memory, {"value": jnp.sum(again), "key": jax.random.key_data(key)[0]}

    rng = np.random.default_rng(0)
    state, memory, data = jnp.zeros(3), jnp.zeros(count), jnp.asarray(rng.standard_normal((count, 3)))
    key, tables = jax.random.key(3), {"step": jnp.linspace(0.1, 0.2, 8)}
    whole = jax.jit(one_round)
    traced = Traced.of(one_round, tables, state, memory, data, key, jnp.zeros((), jnp.result_type(int)))
    cut = RoundInGroups.of(traced, 2)
    assert cut is not None
    found_state, found_memory, records = cut(tables, state, memory, data, key, 4, 3)
    for index, value in zip(range(4, 7), records["value"]):
        state, memory, record = whole(tables, state, memory, data, key, index)
        np.testing.assert_allclose(value, record["value"], rtol=1e-6)
    np.testing.assert_allclose(found_state, state, rtol=1e-6)
    np.testing.assert_allclose(found_memory, memory, rtol=1e-6)

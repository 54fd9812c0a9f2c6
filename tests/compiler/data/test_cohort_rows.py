"""A round's participants hold exactly the rows, parameters and weights that the user gave those clients."""

from __future__ import annotations

from pathlib import Path

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

import hierfl as hf
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Extent, Population, gathered_clients
from hierfl.jaxtools.keyed_random import fold_in
from hierfl.runtime.contract import draw_participants
from hierfl.runtime.in_process.execution import InProcess
from hierfl.solvers import FedAvg


def declared(
    counts: list[int], width: int = 3, kind: type = float
) -> tuple[CompiledProblem, list[np.ndarray], np.ndarray]:
    """(the problem, each client's rows of u, their parameters a) with entries that tell rows, clients and columns apart."""
    x, u, v = cp.Variable(width, name="x"), hf.Sample(width, name="u"), hf.Sample(name="v")
    a = hf.ClientParameter((2,), name="a")
    number = iter(range(sum(counts)))
    rows = [np.array([np.arange(width) + width * next(number) for _ in range(count)]).astype(kind) for count in counts]
    own = np.arange(2.0 * len(counts)).reshape(-1, 2)
    clients = [hf.Client({u: block, v: block[:, 0]}, parameters={a: value}) for block, value in zip(rows, own)]
    loss = hf.E(cp.square(u @ x - v)) + cp.sum(a) * cp.sum(x)
    return hf.Problem(hf.Minimize(clients=loss), federation=hf.Federation(clients)).compile(), rows, own


def gathered(problem: CompiledProblem, members: list[int]) -> Population:
    extents = tuple(Extent.of(table) for table in problem.static_data.clients.tables)
    return jax.jit(lambda data, who: gathered_clients(data.clients, who, extents))(problem.data(), jnp.asarray(members))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_every_participant_keeps_its_rows_its_parameters_and_its_place(data: st.DataObject) -> None:
    counts = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=8))
    members = data.draw(st.permutations(range(len(counts))))[: data.draw(st.integers(1, len(counts)))]
    kind = data.draw(st.sampled_from([float, np.float32, np.uint8]))
    problem, rows, own = declared(counts, data.draw(st.integers(1, 4)), kind)
    found = gathered(problem, members)
    parameter = next(iter(problem.static_data.clients.parameters))
    for place, client in enumerate(members):
        party = found.party(place)
        assert int(party.index) == client and int(party.counts[0]) == counts[client]
        np.testing.assert_array_equal(party.environment[parameter], own[client])
        held = party.chunk(0, 0, counts[client]).values
        wide, narrow = sorted(held.values(), key=np.ndim, reverse=True)
        np.testing.assert_array_equal(wide, rows[client])
        np.testing.assert_array_equal(narrow, rows[client][:, 0])
        batch = party.batch(jax.random.key(place), 30).values
        drawn = {tuple(row) for row in np.asarray(max(batch.values(), key=np.ndim))}
        assert drawn <= {tuple(row) for row in rows[client].astype(float)}


def test_rows_on_disk_and_distributions(tmp_path: Path) -> None:
    x, u, z = cp.Variable(2, name="x"), hf.Sample(2, name="u"), hf.Sample(name="z")
    clients, rows = [], []
    for client in range(5):
        np.save(tmp_path / f"{client}.npy", np.arange(6.0).reshape(3, 2) + 10 * client)
        rows.append(np.load(tmp_path / f"{client}.npy", mmap_mode="r"))
        clients.append(hf.Client([{u: rows[-1]}, {z: scipy.stats.norm(100.0 * client, 1e-3)}]))
    loss = hf.E(cp.sum_squares(x - u)) + hf.E(z * cp.sum(x))
    problem = hf.Problem(hf.Minimize(clients=loss), federation=hf.Federation(clients)).compile()
    found = gathered(problem, [4, 1])
    for place, client in enumerate((4, 1)):
        values = found.party(place).batch(jax.random.key(0), 20).values
        drawn = np.asarray(values[u.id])
        assert {tuple(row) for row in drawn} <= {tuple(row) for row in rows[client]}
        assert np.abs(np.asarray(values[z.id]) - 100 * client).max() < 0.01


@pytest.mark.parametrize("precision", ["double", "single"])
@pytest.mark.parametrize("schedule", ["map", "vmap", "threads"])
def test_a_round_is_the_participants_gradient_step(schedule: str, precision: str) -> None:
    """Full gradients, one local step, half of the clients, renormalised: x moves by their weighted mean, whatever the schedule."""
    compiled, rows, own = declared([2, 5, 1, 3, 4, 4], 3)
    solver = FedAvg(step_size=1e-4, local_steps=1, batch_size=None, participation=0.5, absent="renormalise")
    runtime = InProcess(schedule=schedule, precision=precision)
    outcome = runtime.execute(
        compiled, solver.bind(compiled, 1), np.ones(3), 1, 0, 1, lambda done, state, memory, history: None
    )
    members = np.asarray(draw_participants(fold_in(jax.random.key(0), jnp.asarray(0)), 3, 6))
    moves = []
    for client in members:
        u = rows[client]
        gradient = 2 * u.T @ (u @ np.ones(3) - u[:, 0]) / len(u) + own[client].sum()
        moves.append(-1e-4 * gradient)
    expected = 1.0 + np.mean(moves, axis=0)
    found = np.asarray(solver.bind(compiled, 1).decision(outcome.state))
    np.testing.assert_allclose(found, expected, rtol=1e-12 if precision == "double" else 1e-5)

"""Rows stay as they are given: bytes in memory, memory-mapped files on disk, one copy of constants."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
import scipy.stats as stats

import hierfl as hf
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.evaluation_nodes import QUADRATURE, SOBOL, SUM, EvaluationNodes, evaluation_nodes
from hierfl.compiler.data.storage import Stored
from hierfl.compiler.data.tables import Extent, Population, gathered_clients
from hierfl.jaxtools.keyed_random import fold_in
from hierfl.runtime.contract import draw_participants
from hierfl.runtime.in_process.execution import InProcess
from hierfl.solvers import FedAvg


def least_squares(blocks: list[np.ndarray], **federation: object) -> hf.Problem:
    x, u = cp.Variable(2, name="x"), hf.Sample(2, name="u")
    clients = [hf.Client({u: block}) for block in blocks]
    return hf.Problem(hf.Minimize(clients=hf.E(cp.sum_squares(x - u))), federation=hf.Federation(clients, **federation))


def mapped(path: Path, values: np.ndarray) -> np.memmap:
    stored = np.memmap(path, dtype=values.dtype, mode="w+", shape=values.shape)
    stored[:] = values
    stored.flush()
    return np.memmap(path, dtype=values.dtype, mode="r", shape=values.shape)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.bool_, np.float16, np.float32, np.float64, np.int64])
def test_values_do_not_depend_on_how_they_are_kept(dtype: type) -> None:
    blocks = [np.arange(n * 2).reshape(n, 2).astype(dtype) for n in (1, 5, 3)]
    problem, point = least_squares(blocks), np.array([0.3, -2.0])
    expected = np.mean([((point - block.astype(float)) ** 2).sum(axis=1).mean() for block in blocks])
    assert problem.implicit(point) == pytest.approx(expected, abs=1e-12)
    wide = least_squares([block.astype(float) for block in blocks])
    solver = FedAvg(step_size=0.05, batch_size=2)
    runs = [p.solve(solver, rounds=5, progress=False).iterate for p in (problem, wide)]
    np.testing.assert_allclose(*runs, atol=1e-12)
    (column,) = problem.compile().static_data.clients.tables[0].values.values()
    assert column.dtype == (np.float64 if dtype is np.int64 else dtype) and column.ctypes.data % 64 == 0


def test_data_go_to_the_device_once_and_where_they_are() -> None:
    problem = least_squares([np.ones((50, 2)), np.zeros((3, 2))])
    compiled = problem.compile()
    with jax.enable_x64(True):
        first, second = compiled.data(), compiled.data()
    for (one,), (other,), (host,) in zip(
        *[[t.values.values() for t in d.clients.tables] for d in (first, second, compiled.static_data)]
    ):
        assert one is other and one.unsafe_buffer_pointer() == host.ctypes.data


@pytest.mark.slow
def test_rows_of_a_sample_scope_level_on_disk(tmp_path: Path) -> None:
    values = np.random.default_rng(1).standard_normal((6, 2))
    x, y, u = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.Sample(2, name="u")

    def declared(rows: np.ndarray) -> hf.Problem:
        return hf.Problem(
            hf.Minimize(clients=hf.E(cp.sum_squares(y))),
            lower=hf.ArgMin(y, cp.sum_squares(y - x - u), [y >= 0], scope="sample"),
            federation=hf.Federation([hf.Client({u: rows[:4]}), hf.Client({u: rows[4:]})]),
        )

    point = np.array([0.2, -0.4])
    stored = declared(mapped(tmp_path / "u.bin", values))
    assert stored.implicit(point) == pytest.approx(declared(values).implicit(point), abs=1e-10)
    assert len(stored.implicit.slice(point, [1, 0], radius=0.5, points=41).kinks) == len(
        declared(values).implicit.slice(point, [1, 0], radius=0.5, points=41).kinks
    )


def test_a_file_that_shrinks_is_named(tmp_path: Path) -> None:
    path = tmp_path / "u.bin"
    mapping = mapped(path, np.random.default_rng(0).standard_normal((4096, 2)))
    problem = least_squares([mapping[:100], mapping[100:]])
    assert np.isfinite(problem.implicit([0.0, 0.0]))

    def shrink(*_: object) -> bool:
        os.truncate(path, 4096)
        return False

    with pytest.raises(hf.DataError, match=r"'u' is memory-mapped from .*u\.bin, which has 4,096 bytes now"):
        problem.solve(FedAvg(batch_size=2), rounds=40, callback=shrink, progress=False)
    with pytest.raises(hf.DataError, match="memory-mapped"):
        problem.implicit([0.0, 0.0])


@pytest.mark.slow
def test_a_split_of_a_mapped_array_stays_on_disk(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((60, 2)).astype(np.float32)
    x, u = cp.Variable(2, name="x"), hf.Sample(2, name="u")

    def declared(rows: np.ndarray) -> hf.Problem:
        federation = hf.Federation.split({u: rows}, clients=4, server_fraction=0.25, test_fraction=0.1, seed=2)
        loss = hf.E(cp.sum_squares(x - u))
        return hf.Problem(hf.Minimize(server=loss, clients=loss), federation=federation)

    path = tmp_path / "u.bin"
    on_disk, inside = declared(mapped(path, values)), declared(values)
    assert "0 bytes in memory, 432 on disk" in str(on_disk.explain())
    assert "432 bytes in memory" in str(inside.explain()) and "disk" not in str(inside.explain())
    for side in (on_disk.compile().static_data.clients, on_disk.compile().static_data.server):
        assert all(isinstance(column, Stored) for column in side.tables[0].values.values())
    assert on_disk.implicit([0.5, 1.0]) == pytest.approx(inside.implicit([0.5, 1.0]), abs=1e-12)
    solver = FedAvg(step_size=0.05, batch_size=3, participation=0.5)
    runs = [p.solve(solver, rounds=7, seed=3, progress=False) for p in (on_disk, inside)]
    np.testing.assert_allclose(runs[0].iterate, runs[1].iterate, atol=1e-12)
    os.truncate(path, 100)
    with pytest.raises(hf.DataError, match=r"'u' is memory-mapped from .*u\.bin, which has 100 bytes now"):
        on_disk.implicit([0.5, 1.0])


# --- A round's participants hold exactly the rows, parameters and weights that the user gave those clients.


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


# --- The nodes that stand for distributions: which rule a table gets, and its moments against those that SciPy knows.


A, B, PAIR, ONE = hf.Sample(name="a"), hf.Sample(name="b"), hf.Sample(2, name="pair"), hf.Sample(1, name="one")
LISTED = stats.rv_discrete(values=([7.0, 0.5, 1.5], [0.5, 0.2, 0.3]))


def nodes(laws: dict[hf.Sample, Any], points: int = 1024, holder: str = "client 0", table: int = 0) -> EvaluationNodes:
    return evaluation_nodes(laws, points, holder, table)


@pytest.mark.parametrize(
    ("laws", "rule", "size"),
    [
        ({A: stats.bernoulli(0.3)}, SUM, 2),
        ({A: stats.randint(-2, 3)}, SUM, 5),
        ({A: LISTED(loc=1)}, SUM, 3),
        ({A: stats.poisson(5)}, SUM, None),
        ({PAIR: stats.binom([2, 3], 0.5), A: stats.bernoulli(0.1)}, SUM, 24),
        ({A: stats.norm(1, 2)}, QUADRATURE, 1024),
        ({ONE: stats.multivariate_normal([1.0], [[4.0]])}, QUADRATURE, 1024),
        ({A: stats.norm(), PAIR: stats.bernoulli([0.2, 0.7])}, QUADRATURE, 1024),
        ({A: stats.poisson(1e6)}, QUADRATURE, 1024),
        ({A: stats.norm(), B: stats.uniform()}, SOBOL, 1024),
        ({PAIR: stats.expon(scale=[1.0, 2.0])}, SOBOL, 1024),
        ({A: stats.norm(), B: stats.poisson(5)}, SOBOL, 1024),
    ],
)
def test_the_rule_follows_from_the_laws(laws: dict[hf.Sample, Any], rule: str, size: int | None) -> None:
    found = nodes(laws)
    assert found.rule == rule and (size is None or found.weights.size == size)
    assert found.weights.sum() == pytest.approx(1, abs=1e-15) and (found.weights > 0).all()
    for sample, law in laws.items():
        values = found.values[sample.id]
        assert values.shape == (found.weights.size, *sample.shape)
        mean = law.mean() if hasattr(law, "dist") else law.mean
        tolerance = 1e-12 if rule == SUM else 2e-8 if rule == QUADRATURE else 5e-3
        np.testing.assert_allclose(
            found.weights @ values, np.broadcast_to(mean, sample.shape), rtol=tolerance, atol=tolerance
        )


def test_parties_and_tables_have_scrambles_of_their_own_and_always_the_same() -> None:
    laws = {PAIR: stats.norm([0.0, 1.0], 1.0)}
    first, again = nodes(laws).values[PAIR.id], nodes(laws).values[PAIR.id]
    np.testing.assert_array_equal(first, again)
    for other in (nodes(laws, holder="client 1"), nodes(laws, holder="the server"), nodes(laws, table=1)):
        assert np.abs(other.values[PAIR.id] - first).min() > 0


def test_a_singular_covariance() -> None:
    law = stats.multivariate_normal([1.0, 2.0], [[1.0, 1.0], [1.0, 1.0]], allow_singular=True)
    values = nodes({PAIR: law}).values[PAIR.id]
    np.testing.assert_allclose(values[:, 1] - values[:, 0], 1.0, atol=1e-7)
    assert np.var(values[:, 0]) == pytest.approx(1, rel=0.01)


def test_a_law_whose_far_quantiles_are_unknown_keeps_the_nodes_that_are_known() -> None:
    class Tent(stats.rv_continuous):
        def _cdf(self, x: Any) -> Any:
            return x**2

        def _ppf(self, q: Any) -> Any:
            return np.where(np.asarray(q) < 1, np.sqrt(q), np.inf)

    found = nodes({A: Tent(a=0, b=1)()}, 256)
    assert found.weights.sum() == pytest.approx(1) and found.weights @ found.values[A.id] == pytest.approx(
        2 / 3, rel=1e-9
    )

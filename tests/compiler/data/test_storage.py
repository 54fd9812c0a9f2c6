"""Rows stay as they are given: bytes in memory, memory-mapped files on disk, one copy of constants."""

from __future__ import annotations

import os
from pathlib import Path

import cvxpy as cp
import jax
import numpy as np
import pytest

import hierfl as hf
from hierfl.compiler.data.storage import Stored
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


def test_memory_mapped_rows_stay_on_disk(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((40, 2)).astype(np.float32)
    one = mapped(tmp_path / "one.bin", values)
    other = mapped(tmp_path / "other.bin", values[:7])
    stored = least_squares([one[:25], one[25:], other], weights="samples")
    inside = least_squares([values[:25], values[25:], values[:7]], weights="samples")
    (column,) = stored.compile().static_data.clients.tables[0].values.values()
    assert isinstance(column, Stored) and column.shape == (47, 2)
    assert stored.implicit([0.5, 1.0]) == pytest.approx(inside.implicit([0.5, 1.0]), abs=1e-12)
    solver = FedAvg(step_size=0.05, batch_size=3, participation=0.5)
    runs = [p.solve(solver, rounds=7, seed=3, progress=False) for p in (stored, inside)]
    np.testing.assert_allclose(runs[0].iterate, runs[1].iterate, atol=1e-12)
    assert runs[0].value == pytest.approx(runs[1].value, abs=1e-12)


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
    assert "0 bytes in memory, 320 on disk" in str(on_disk.explain())
    assert "320 bytes in memory" in str(inside.explain()) and "disk" not in str(inside.explain())
    for side in (on_disk.compile().static_data.clients, on_disk.compile().static_data.server):
        assert all(isinstance(column, Stored) for column in side.tables[0].values.values())
    assert on_disk.implicit([0.5, 1.0]) == pytest.approx(inside.implicit([0.5, 1.0]), abs=1e-12)
    solver = FedAvg(step_size=0.05, batch_size=3, participation=0.5)
    runs = [p.solve(solver, rounds=7, seed=3, progress=False) for p in (on_disk, inside)]
    np.testing.assert_allclose(runs[0].iterate, runs[1].iterate, atol=1e-12)
    os.truncate(path, 100)
    with pytest.raises(hf.DataError, match=r"'u' is memory-mapped from .*u\.bin, which has 100 bytes now"):
        on_disk.implicit([0.5, 1.0])

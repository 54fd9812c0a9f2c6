"""Directions: uniform on the sphere, and the same whether they are held or made again from their key."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import hierfl as hf
from hierfl.runtime.in_process.execution import InProcess
from hierfl.runtime.in_process.simulation import Simulation
from hierfl.solvers import ZOHFL, Exact, FedRZO, FedZO
from hierfl.solvers.parts import directions
from hierfl.solvers.parts.directions import Directions
from tests import draws

SIZES = (3, 1, 4)
ROWS = [np.random.default_rng(i).standard_normal((n, 2)) for i, n in enumerate(SIZES)]


@pytest.fixture
def made_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """None are held; two or three at a time are made together."""
    monkeypatch.setattr(directions, "HELD", 0)
    monkeypatch.setattr(directions, "TOGETHER", 6)


@pytest.mark.parametrize(
    ("kind", "count"), [("independent", 1), ("independent", 3), ("orthonormal", 3), ("orthonormal", 7)]
)
def test_they_are_uniform_on_the_sphere(kind: str, count: int, x64: None) -> None:
    n, times = 5, 4000
    keys = jax.random.split(jax.random.key(0), times)
    v = np.asarray(jax.vmap(lambda k: Directions.draw(k, count, n, kind).held)(keys))
    np.testing.assert_allclose(np.linalg.norm(v, axis=2), 1)
    assert np.abs(v.mean(axis=0)).max() < 6 / np.sqrt(n * times)  # unbiased: raw QR columns would fail here
    second = np.einsum("kqi,kqj->qij", v, v) / times
    assert np.abs(second - np.eye(n) / n).max() < 6 * 0.3 / np.sqrt(times)
    if count > 1 and kind == "independent":
        between = np.einsum("ki,ki->k", v[:, 0], v[:, 1])
        assert abs(between.mean()) < 6 / np.sqrt(n * times)
    if kind == "orthonormal" and count <= n:
        gram = np.einsum("kpi,kqi->kpq", v, v)
        np.testing.assert_allclose(gram, np.broadcast_to(np.eye(count), gram.shape), atol=1e-12)


@pytest.mark.parametrize("parts", [1, 2, 7, 14])
def test_what_is_made_again_is_what_is_held(made_again: None, parts: int, x64: None) -> None:
    key, count, n = jax.random.key(3), 14, 2
    held = draws.directions(key, count, n)
    found, c, x = Directions.draw(key, count, n, "independent"), np.arange(14.0), np.array([0.3, -2.0])
    assert found.held is None
    np.testing.assert_allclose(found.combination(jnp.asarray(c)), c @ held, atol=1e-12)
    np.testing.assert_allclose(found.along(jnp.asarray(x)), held @ x, atol=1e-12)
    numbers = [5, 0, 0, 13, 2]
    np.testing.assert_allclose(found.each(lambda v, t: t * v, numbers, c[:5]), c[:5, None] * held[numbers], atol=1e-12)

    def one(own: Directions) -> Any:
        return own.each(lambda v: v, range(own.count))

    shared = jax.lax.map(one, found.parts(parts))
    np.testing.assert_allclose(shared.reshape(count, n), held, atol=1e-12)


def declared(scope: str | None) -> hf.Problem:
    x, y, u = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.Sample(2, name="u")
    federation = hf.Federation([hf.Client({u: rows}) for rows in ROWS])
    if scope is None:
        return hf.Problem(hf.Minimize(clients=hf.E(cp.abs(u @ x - 1))), constraints=[x <= 0.3], federation=federation)
    inner, upper = cp.sum_squares(y - x) + cp.sum_squares(y - u), cp.norm1(y - 0.2)
    lower = hf.ArgMin(y, inner if scope == "sample" else hf.E(inner), [y >= 0, y <= 0.5], scope=scope)
    if scope == "sample":
        upper = hf.E(upper)
    return hf.Problem(hf.Minimize(clients=upper + cp.sum_squares(x)), lower, [x <= 0.3], federation)


@pytest.mark.parametrize(
    ("scope", "solver", "schedule"),
    [
        (None, FedZO(directions=5, local_steps=2, batch_size=2), "vmap"),
        (None, ZOHFL(directions=3, communication="scalars"), "map"),
        ("federation", FedRZO(directions=3, lower=Exact(), communication="scalars"), "vmap"),
        ("sample", FedRZO(directions=3, estimator="central"), "map"),
    ],
)
def test_runs_do_not_depend_on_it(
    scope: str | None, solver: Any, schedule: str, request: pytest.FixtureRequest, x64: None
) -> None:
    settings: dict[str, Any] = {"rounds": 6, "seed": 2, "progress": False, "runtime": InProcess(schedule=schedule)}
    held = declared(scope).solve(solver, **settings)
    request.getfixturevalue("made_again")
    again = declared(scope).solve(solver, **settings)
    assert np.linalg.norm(held.iterate) > 1e-3
    np.testing.assert_allclose(again.iterate, held.iterate, atol=1e-10)
    assert again.communication == held.communication


@pytest.mark.parametrize("solver", [ZOHFL, FedRZO, FedZO])
def test_memory_does_not_grow_with_their_number(solver: Any, x64: None) -> None:
    """XLA's plan for a block of rounds; clients one after another, and n so large that no two directions are made together."""
    n, x, a = 80_000, cp.Variable(80_000, name="x"), hf.ClientParameter(name="a")
    clients = [hf.Client(parameters={a: float(i)}) for i in range(3)]
    compiled = hf.Problem(hf.Minimize(clients=cp.norm1(x - a)), federation=hf.Federation(clients)).compile()

    def working(count: int) -> int:
        bound = solver(step_size=0.1, directions=count).bind(compiled, 4)
        run = Simulation(compiled, bound, "map", "double")
        return run.program(2, None, np.zeros(n), jax.random.key(0)).working

    few, many = working(20), working(400)
    assert many < few + 400 * 3 * 64  # keys, values and residuals of each remain
    assert many < 25 * 8 * n

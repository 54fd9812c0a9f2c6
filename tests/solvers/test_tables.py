"""Schedules are arguments of the programs: another step size, or number of rounds, compiles nothing and gives its own values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.spatial
from hypothesis import given
from hypothesis import strategies as st

import hierfl as hf
from hierfl.solvers import (
    LFD,
    SCAFFOLD,
    ZOHFL,
    Decay,
    Extragradient,
    FedAC,
    FedAvg,
    FedMSPP,
    FedProx,
    FedRZO,
    FedZO,
    ImplicitGradient,
    LocalSGD,
    LocalSGDA,
    LogGrowth,
    ProjectedSGD,
)
from hierfl.solvers.tables import constant, row, rows

pytestmark = pytest.mark.filterwarnings("ignore::hierfl.LowerLevelWarning")
ROWS = [np.random.default_rng(i).standard_normal((n, 2)) for i, n in enumerate((5, 2, 4))]


def declared(scope: str | None) -> hf.Problem:
    x, y, u = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.Sample(2, name="u")
    federation = hf.Federation([hf.Client({u: rows}) for rows in ROWS])
    if scope is None:
        return hf.Problem(
            hf.Minimize(clients=hf.E(cp.square(u @ x - 1))), constraints=[x <= 0.3], federation=federation
        )
    if scope == "minimax":
        saddle = hf.E(cp.square(u @ x - 1)) + x @ y - cp.sum_squares(y)
        return hf.Problem(hf.Minimize(clients=saddle), hf.ArgMax(y, saddle, scope="federation"), [], federation)
    inner = hf.E(cp.square(u @ y - 1)) + cp.sum_squares(y - x)
    lower = hf.ArgMin(y, inner, [y <= 0.5], scope=scope)
    return hf.Problem(hf.Minimize(clients=cp.norm1(y - 0.2) + cp.sum_squares(x)), lower, [x <= 0.3], federation)


CASES: list[tuple[str | None, Callable[[Any], Any]]] = [
    (None, lambda step: FedAvg(step, 3, batch_size=2)),
    (None, lambda step: FedProx(step, [1, 3, 2], batch_size=2)),
    (None, lambda step: FedMSPP(0.05, 4, proximal_step=step)),
    (None, lambda step: FedZO(step, 2, directions=3)),
    (None, lambda step: SCAFFOLD(step, 2)),
    (None, lambda step: FedRZO(step_size=step, local_steps=2, communication="scalars")),
    (None, lambda step: ZOHFL(step_size=step)),
    (None, lambda step: ZOHFL(smoothing=step if isinstance(step, float) else 0.5)),
    (None, lambda step: FedZO(0.01, smoothing=step if isinstance(step, float) else 0.5)),
    ("federation", lambda step: FedRZO(smoothing=step if isinstance(step, float) else 0.5, estimator="central")),
    ("client", lambda step: ZOHFL(step_size=step, local_steps=4)),
    ("client", lambda step: ZOHFL(lower=ProjectedSGD(steps=4, step_size=step))),
    (
        "client",
        lambda step: FedRZO(step_size=step, lower=ProjectedSGD(steps=lambda r: 1 + r % 2), local_steps=[1, 2, 1]),
    ),
    ("client", lambda step: ImplicitGradient(step_size=step)),
    ("client", lambda step: FedRZO(step_size=step, lower=Extragradient(steps=LogGrowth(2.0)))),
    ("federation", lambda step: FedRZO(step_size=step)),
    ("federation", lambda step: FedRZO(lower=LocalSGD(step_size=step))),
    ("federation", lambda step: FedRZO(step_size=step, lower=LFD(rounds=3, steps=2))),
    ("federation", lambda step: FedRZO(step_size=step, lower=FedAC(rounds=3, steps=lambda r: 1 + r % 3))),
    ("minimax", lambda step: LocalSGDA(step, ascent_step=0.1)),
    ("minimax", lambda step: LocalSGDA(0.01, ascent_step=step)),
]


@pytest.mark.parametrize(("scope", "solver"), CASES)
def test_another_schedule_or_horizon_compiles_nothing(
    scope: str | None, solver: Callable[[Any], Any], programs: list[str]
) -> None:
    problem, settings = declared(scope), {"seed": 1, "progress": False}
    problem.solve(solver(0.02), rounds=10, **settings)
    programs.clear()
    found = [
        problem.solve(solver(step), rounds=rounds, **settings).iterate
        for step, rounds in ((0.03, 10), (Decay(0.04), 17), (lambda r: 0.01 + 0.001 * r, 60))
    ]
    assert not programs
    for index, (step, rounds) in enumerate(((0.03, 10), (Decay(0.04), 17), (lambda r: 0.01 + 0.001 * r, 60))):
        anew = declared(scope).solve(solver(step), rounds=rounds, **settings).iterate
        np.testing.assert_allclose(found[index], anew, rtol=1e-12, atol=1e-14)
    assert np.linalg.norm(found[0] - found[1]) > 1e-6


def test_other_settings_are_other_programs() -> None:
    """What a program depends on otherwise is told apart: each run agrees with that of a problem that has run nothing else."""
    problem, settings = declared("client"), {"rounds": 12, "seed": 1, "progress": False}
    solvers = [
        ZOHFL(),
        ZOHFL(smoothing=0.2),
        ZOHFL(lower=ProjectedSGD(batch_size=2)),
        ZOHFL(participation=0.5),
        ZOHFL(common_random_numbers=False),
        ZOHFL(local_steps=3),
        ZOHFL(local_steps=[3, 2, 1]),
        ZOHFL(lower=ProjectedSGD(steps=20, start="query")),
        ZOHFL(lower=ProjectedSGD(steps=20, batch_size=None)),
        FedRZO(),
        FedRZO(local_steps=3),
        FedRZO(estimator="central"),
        FedRZO(lower=Extragradient(steps=3)),
        FedRZO(lower=Extragradient(steps=3, step_size=0.01)),
    ]
    found = [problem.solve(solver, **settings).iterate for solver in solvers]
    for solver, iterate in zip(solvers, found):
        np.testing.assert_allclose(
            iterate, declared("client").solve(solver, **settings).iterate, rtol=1e-12, atol=1e-14
        )
    distances = scipy.spatial.distance.pdist(np.stack(found))
    assert distances.min() > 1e-9


@given(st.lists(st.integers(0, 3), min_size=1, max_size=70), st.data())
def test_rows_of_tables(entries: list[int], data: st.DataObject) -> None:
    table = np.array(entries)
    kept = constant(table)
    assert len(kept) == (1 if len(set(entries)) == 1 else len(entries))
    r = data.draw(st.integers(0, len(entries) - 1))
    first = data.draw(st.integers(0, r))
    assert row(kept, r) == entries[r] == jax.jit(lambda index: row(kept, index))(jnp.asarray(r))
    assert rows(kept, first, r).tolist() == entries[first:r]

"""Schedules are arguments of the programs: another step size, or number of rounds, compiles nothing and gives its own values."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
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
    FedRZO,
    ImplicitGradient,
    LocalSGD,
    LocalSGDA,
    LogGrowth,
    ProjectedSGD,
    Scaffnew,
)
from hierfl.solvers.fedavg import BoundFedAvg
from hierfl.solvers.parts.step_schedules import constant, row, rows

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
    (None, lambda step: FedMSPP(0.05, 4, proximal_step=step)),
    (None, lambda step: SCAFFOLD(step, 2)),
    (None, lambda step: Scaffnew(step if isinstance(step, float) else 0.05)),
    (None, lambda step: FedRZO(step_size=step, local_steps=2, communication="scalars")),
    (None, lambda step: ZOHFL(smoothing=step if isinstance(step, float) else 0.5)),
    ("federation", lambda step: FedRZO(smoothing=step if isinstance(step, float) else 0.5, estimator="central")),
    ("client", lambda step: ZOHFL(lower=ProjectedSGD(steps=4, step_size=step))),
    (
        "client",
        lambda step: FedRZO(step_size=step, lower=ProjectedSGD(steps=lambda r: 1 + r % 2), local_steps=[1, 2, 1]),
    ),
    ("client", lambda step: ImplicitGradient(step_size=step)),
    ("client", lambda step: FedRZO(step_size=step, lower=Extragradient(steps=LogGrowth(2.0)))),
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
    assert np.linalg.norm(found[0] - found[1]) > 1e-6


def test_constants_of_a_lower_level_are_those_of_today() -> None:
    """Step sizes by theory follow from the values of parameters."""

    def stiff(value: float) -> tuple[hf.Problem, cp.Parameter]:
        x, y, p = cp.Variable(2, name="x"), cp.Variable(2, name="y"), cp.Parameter(nonneg=True, name="p", value=value)
        lower = hf.ArgMin(y, p * cp.sum_squares(y - 1) + cp.sum_squares(y - x), [y <= 5], scope="client")
        clients = hf.Federation([hf.Client(), hf.Client()])
        return hf.Problem(hf.Minimize(clients=cp.sum_squares(y)), lower, [x <= 3], clients), p

    settings = {"rounds": 8, "seed": 1, "progress": False}
    for solver in (FedRZO(lower=Extragradient(steps=5)), FedRZO(lower=ProjectedSGD(steps=5, schedule="theory"))):
        problem, p = stiff(1.0)
        problem.solve(solver, **settings)
        p.value = 100.0
        iterate = problem.solve(solver, **settings).iterate
        np.testing.assert_allclose(iterate, stiff(100.0)[0].solve(solver, **settings).iterate, rtol=1e-12)


def test_a_schedule_is_read_in_every_solve() -> None:
    rate, problem = {"c": 0.01}, declared(None)
    solver = FedAvg(lambda r: rate["c"])
    first = problem.solve(solver, rounds=5, progress=False).iterate
    rate["c"] = 0.05
    second = problem.solve(solver, rounds=5, progress=False).iterate
    assert np.linalg.norm(first - second) > 1e-3
    np.testing.assert_allclose(second, declared(None).solve(FedAvg(0.05), rounds=5, progress=False).iterate, rtol=1e-12)


@dataclass(frozen=True)
class Damped(FedAvg):
    """An algorithm of one's own, whose new setting is a constant of its program."""

    smoothing: float = 1.0

    def bind(self, problem: Any, rounds: int, queries: str = "projected") -> BoundDamped:
        return BoundDamped.of(self, problem, rounds, queries, betas=(float(rounds), 1.0))


@dataclass(frozen=True, eq=False)
class BoundDamped(BoundFedAvg):
    betas: tuple[float, float]

    def pull(self, point: jax.Array, start: jax.Array, r: jax.Array) -> jax.Array:
        return self.settings.smoothing / self.betas[0] * (point - start)


def test_what_is_no_table_is_part_of_the_key() -> None:
    problem, settings = declared(None), {"seed": 1, "progress": False}
    for solver, rounds in ((Damped(0.02, smoothing=1.0), 12), (Damped(0.02, smoothing=20.0), 12), (Damped(0.02), 30)):
        found = problem.solve(solver, rounds=rounds, **settings).iterate
        np.testing.assert_allclose(found, declared(None).solve(solver, rounds=rounds, **settings).iterate, rtol=1e-12)


@dataclass(frozen=True)
class Warmed(FedAvg):
    """An algorithm of one's own that begins by the first of its step sizes."""

    def bind(self, problem: Any, rounds: int, queries: str = "projected") -> BoundWarmed:
        return BoundWarmed.of(self, problem, rounds, queries)


@dataclass(frozen=True, eq=False)
class BoundWarmed(BoundFedAvg):
    def init(self, x0: jax.Array) -> jax.Array:
        return x0 - self.size(0)


def test_a_state_may_begin_by_the_tables(programs: list[str]) -> None:
    problem = declared(None)
    for step in (0.1, 0.3):
        found = problem.solve(Warmed(step, local_steps=1), rounds=np.int64(1), x0=np.zeros(2), progress=False)
    anew = declared(None).solve(Warmed(step, local_steps=1), rounds=1, x0=np.zeros(2), progress=False)
    np.testing.assert_allclose(found.iterate, anew.iterate, rtol=1e-12)


@dataclass(frozen=True)
class Steps:
    """A lower solver of one's own, whose bound form is no table."""

    count: int = 3

    def bind(self, problem: Any, rounds: int, steps: int) -> BoundSteps:
        return BoundSteps(problem, self)


@dataclass(frozen=True, eq=False)
class BoundSteps:
    problem: Any
    settings: Steps

    def client(self, x: Any, party: Any, start: Any, clock: Any, key: Any) -> tuple[Any, Any]:
        y = start
        for _ in range(self.settings.count):
            force = party.mean(
                lambda rows, y=y: self.problem.operator(x, y, party.environment, rows), self.problem.lower_samples
            )
            y = y - 0.1 * force
        return y, jnp.zeros(())


def test_a_lower_solver_of_ones_own_compiles_once(programs: list[str]) -> None:
    problem, settings = declared("client"), {"rounds": 5, "progress": False}
    problem.solve(FedRZO(lower=Steps()), seed=0, **settings)
    programs.clear()
    second = problem.solve(FedRZO(lower=Steps()), seed=1, **settings)
    assert not programs
    other = problem.solve(FedRZO(lower=Steps(9)), seed=1, **settings)
    assert np.linalg.norm(other.iterate - second.iterate) > 1e-9


ROW = jax.jit(row)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=70), st.data())
def test_rows_of_tables(entries: list[int], data: st.DataObject) -> None:
    table = np.array(entries)
    kept = constant(table)
    assert len(kept) == (1 if len(set(entries)) == 1 else len(entries))
    r = data.draw(st.integers(0, len(entries) - 1))
    first = data.draw(st.integers(0, r))
    assert row(kept, r) == entries[r] == ROW(kept, jnp.asarray(r))
    assert rows(kept, first, r).tolist() == entries[first:r]

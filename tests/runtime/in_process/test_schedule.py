"""Schedules and precision: the same trajectory however the clients are computed, and what a run needs before it starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.models import nonsmooth_toy
from hierfl.runtime import InProcess
from hierfl.runtime.contract import Work
from hierfl.runtime.in_process.simulation import choose_schedule
from hierfl.solvers import SCAFFOLD, ZOHFL, Exact, FedAvg, FedRZO, ImplicitGradient, LocalSGD, ProjectedSGD

RNG = np.random.default_rng(0)
ROWS = [RNG.standard_normal((count, 3)) for count in (4, 9, 1, 6)]


def flat(**federation: object) -> hf.Problem:
    x, u = cp.Variable(3, name="x"), hf.Sample(3, name="u")
    clients = [hf.Client({u: rows}) for rows in ROWS]
    return hf.Problem(hf.Minimize(clients=hf.E(cp.sum_squares(x - u))), federation=hf.Federation(clients, **federation))


def bilevel(scope: str) -> hf.Problem:
    x, y, u = cp.Variable(3, name="x"), cp.Variable(3, name="y"), hf.Sample(3, name="u")
    level = hf.ArgMin(y, hf.E(cp.sum_squares(y - u)) + cp.sum_squares(y - x), [cp.norm(y - x) <= 1], scope=scope)
    federation = hf.Federation([hf.Client({u: rows}) for rows in ROWS])
    return hf.Problem(hf.Minimize(clients=cp.sum_squares(x - y)), lower=level, federation=federation)


CASES = {
    "FedAvg": (flat, FedAvg(0.05, [3, 0, 2, 5], batch_size=2, participation=0.5)),
    "FedRZO": (flat, FedRZO(0.05, 0.01, 3, batch_size=2, directions=2)),
    "ZOHFL": (lambda: bilevel("client"), ZOHFL(0.1, 0.05, lower=ProjectedSGD(steps=[3, 0, 70, 2], batch_size=2))),
    "LocalSGD": (lambda: bilevel("federation"), FedRZO(0.1, 0.01, 2, lower=LocalSGD(rounds=2, steps=3, batch_size=2))),
}


@pytest.mark.filterwarnings("ignore::hierfl.LowerLevelWarning")
@pytest.mark.parametrize("name", CASES)
def test_every_schedule_and_precision_takes_the_same_path(name: str) -> None:
    make, solver = CASES[name]
    problem = make()
    settings = {"rounds": 6, "x0": np.ones(3), "seed": 3, "progress": False}
    runs = {kind: problem.solve(solver, runtime=InProcess(schedule=kind), **settings) for kind in ("map", "vmap", None)}
    np.testing.assert_allclose(runs["map"].iterate, runs["vmap"].iterate, atol=1e-10)
    np.testing.assert_array_equal(runs[None].iterate, runs[choose_schedule(problem.compile(), 4).kind].iterate)
    if name != "FedRZO":  # other random bits are drawn for singles; rows and their order are the same
        single = problem.solve(solver, runtime=InProcess(precision="single"), **settings)
        assert np.all(single.iterate == single.iterate.astype(np.float32)) and np.isfinite(single.value)


@pytest.mark.filterwarnings("ignore::hierfl.LowerLevelWarning")
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("cores", [2, 3, 8])
def test_groups_in_threads_take_the_same_path(name: str, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(cores)))
    make, solver = CASES[name]
    problem, settings = make(), {"rounds": 7, "evaluate_every": 3, "x0": np.ones(3), "seed": 3, "progress": False}
    one, groups = (problem.solve(solver, runtime=InProcess(schedule=kind), **settings) for kind in ("map", "threads"))
    np.testing.assert_allclose(groups.iterate, one.iterate, rtol=0, atol=1e-12)
    assert set(groups.history) == set(one.history) and groups.communication == one.communication
    for entry in set(one.history) - {"seconds"}:
        np.testing.assert_allclose(groups.history[entry], one.history[entry], rtol=1e-10, atol=1e-12)
        assert groups.history[entry].dtype == one.history[entry].dtype
    single = problem.solve(solver, runtime=InProcess(schedule="threads", precision="single"), **settings)
    assert np.all(single.iterate == single.iterate.astype(np.float32))


@pytest.mark.parametrize("limit", [1, 24 * 10, 24 * 13])
def test_limits_and_seeds_end_groups_as_they_end_one_program(limit: int) -> None:
    problem, solver = flat(), FedAvg(0.05, 3, batch_size=2)
    settings = {"rounds": 50, "evaluate_every": 10, "communication_limit": limit, "progress": False}
    for seeds in ({}, {"seeds": 3}):
        one, groups = (
            problem.solve(solver, runtime=InProcess(schedule=kind), **seeds, **settings) for kind in ("map", "threads")
        )
        for a, b in zip(*((found if seeds else [found]) for found in (one, groups))):
            assert a.status == b.status and a.settings["rounds_done"] == b.settings["rounds_done"] < 50
            np.testing.assert_allclose(a.iterate, b.iterate, atol=1e-12)


def test_large_clients_run_in_threads_and_what_cannot_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    x, u = cp.Variable(12_000, name="x"), hf.Sample(12_000, name="u")
    federation = hf.Federation([hf.Client({u: np.ones((1, 12_000))}) for _ in range(2)])
    large = hf.Problem(hf.Minimize(clients=hf.E(cp.sum_squares(x - u))), federation=federation)
    assert choose_schedule(large.compile(), 2).kind == "threads"
    assert "in a group for each of 2 cores" in str(large.explain())
    assert choose_schedule(large.compile(), 1).kind == "map"
    of_server = hf.Problem(hf.Minimize(server=cp.sum_squares(cp.Variable(2, name="z"))))
    with pytest.raises(hf.SettingError, match="asks nothing of them"):
        of_server.solve(ZOHFL(0.1, 0.05), rounds=2, runtime=InProcess(schedule="threads"), progress=False)
    box = hf.Problem(hf.Minimize(clients=hf.BlackBox(lambda v: float(v @ v), cp.Variable(2, name="z"))))
    with pytest.raises(hf.SettingError, match="calls Python functions"):
        box.solve(ZOHFL(0.1, 0.05), rounds=2, runtime=InProcess(schedule="threads"), progress=False)


SETS = {
    "box": lambda x, y: [y >= x - 1, y <= 1],
    "simplex": lambda x, y: [y >= 0, cp.sum(y) == 1],
    "polyhedron": lambda x, y: [y >= 0, np.array([[1.0, 2, 0], [0, 1, 1]]) @ y <= 1],
    "cone": lambda x, y: [cp.norm(y[:2]) <= y[2]],
    "plane that moves": lambda x, y: [cp.sum(y) == x[0]],
    "ball and a row": lambda x, y: [cp.norm(y) <= 1, y[0] + y[1] <= 0.5],
}


@pytest.mark.filterwarnings("ignore::hierfl.LowerLevelWarning", "error:Explicitly requested dtype:UserWarning")
@pytest.mark.parametrize("name", SETS)
def test_single_precision_on_sets_that_were_used_in_double_precision_before(name: str) -> None:
    x, y, u = cp.Variable(3, name="x"), cp.Variable(3, name="y"), hf.Sample(3, name="u")
    objective = hf.E(cp.sum_squares(y - u)) + cp.sum_squares(y - x)
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum_squares(x - y)),
        hf.ArgMin(y, objective, SETS[name](x, y), scope="client"),
        federation=hf.Federation([hf.Client({u: rows}) for rows in ROWS[:2]]),
    )
    solver = ImplicitGradient(0.1)  # no random bits: the same path up to rounding
    wide, single = (
        problem.solve(solver, rounds=3, x0=np.full(3, 0.3), runtime=InProcess(precision=kind), progress=False)
        for kind in ("double", "single")
    )
    np.testing.assert_allclose(wide.iterate, single.iterate, atol=1e-4)
    assert np.all(single.iterate == single.iterate.astype(np.float32))


@pytest.mark.parametrize(
    "make",
    [
        lambda: FedAvg(0.05, [3, 0, 2, 5], batch_size=2),
        lambda: FedAvg(0.05, np.array([3, 0, 2, 5]), batch_size=2),
        lambda: ZOHFL(0.1, 0.05, lower=ProjectedSGD(steps=[3, 0, 70, 2], batch_size=2)),
        lambda: ZOHFL(lower=ProjectedSGD(steps=40)),
    ],
)
@pytest.mark.filterwarnings("ignore::hierfl.LowerLevelWarning")
def test_a_second_solve_compiles_nothing(make: Callable[[], Any], programs: list[str]) -> None:
    problem = bilevel("client") if isinstance(make(), ZOHFL) else flat()
    settings = {"rounds": 4, "evaluate_every": 3, "progress": False, "metrics": {"size": lambda x, y: float(x @ x)}}
    for seed in (0, 1):
        problem.solve(make(), seed=seed, x0=np.full(3, float(seed)), **settings)
        problem.implicit(np.full(3, float(seed)))
        if seed == 0:
            assert programs
            kept = len(problem.compile().programs)
            programs.clear()
    assert not programs and len(problem.compile().programs) == kept


def test_the_schedule_is_chosen_by_size_and_explained() -> None:
    small, large = flat().compile(), nonsmooth_toy(9000).compile()
    assert choose_schedule(small, 4).kind == "vmap" and choose_schedule(large, 1).kind == "map"
    assert choose_schedule(bilevel("client").compile(), 4).kind == "map"
    assert choose_schedule(small, 4, "map").reason == "as asked for"
    assert "side by side: together they hold 12 scalars" in str(flat().explain())


def test_clients_whose_steps_read_much_data_are_computed_one_after_another() -> None:
    x, u = cp.Variable(name="x"), hf.Sample(500, name="u")
    rows = [np.zeros((300, 500), np.uint8)] * 5
    loss = hf.E(cp.square(x - np.full(500, 0.002) @ u))
    problem = hf.Problem(hf.Minimize(clients=loss), federation=hf.Federation([hf.Client({u: own}) for own in rows]))
    compiled = problem.compile()
    kinds = [choose_schedule(compiled, 5, work=Work(True, rows, 1)).kind for rows in (1, 50, 250, None)]
    assert kinds == ["vmap", "vmap", "map", "map"]
    assert choose_schedule(compiled, 1).kind == "vmap"
    assert "their steps together read 750,000 scalars of data" in str(problem.explain())


def test_clients_with_many_directions_are_computed_one_after_another() -> None:
    compiled = flat().compile()
    solvers = [FedRZO(directions=q).bind(compiled, 3, "any") for q in (100, 10**6)]
    chosen = [choose_schedule(compiled, 4, work=solver.work) for solver in solvers]
    assert [schedule.kind for schedule in chosen] == ["vmap", "map"]
    assert "scalars at 1,000,000 points, over 10,000,000" in chosen[1].reason


@pytest.mark.parametrize(
    ("solver", "batch"),
    [
        (FedAvg(0.01, batch_size=7), 7),
        (FedAvg(0.01, batch_size=None), None),
        (ZOHFL(batch_size=9, lower=ProjectedSGD(steps=2, batch_size=40)), 40),
        (ZOHFL(batch_size=9, lower=ProjectedSGD(steps=2, batch_size=None)), None),
        (ImplicitGradient(), None),
        (FedRZO(batch_size=1, lower=Exact()), None),
        (FedRZO(batch_size=1), 32),
    ],
)
def test_the_rows_of_a_step_are_those_of_the_solvers_batches(solver: Any, batch: int | None) -> None:
    problem = flat() if isinstance(solver, FedAvg) else bilevel("client")
    assert solver.bind(problem.compile(), 3).work.rows == batch


@pytest.mark.parametrize("settings", [{"schedule": "pmap"}, {"precision": "half"}])
def test_unknown_schedules_are_refused(settings: dict) -> None:
    with pytest.raises(hf.SettingError, match="write one of"):
        InProcess(**settings)


def test_too_little_memory_is_said_before_anything_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hierfl.runtime.in_process.simulation.available_bytes", lambda: 100)
    with pytest.raises(hf.SettingError, match=r"needs about .* beside its data for 4 clients .*schedule='map'"):
        flat().solve(FedRZO(), rounds=2, progress=False)


@pytest.mark.parametrize("schedule", ["map", "vmap", "threads"])
def test_what_a_run_needs_is_counted(schedule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every move (8 n bytes a client) is held until the server has averaged them; what clients remember is held twice."""
    n, x, a = 50_000, cp.Variable(50_000, name="x"), hf.ClientParameter(name="a")
    clients = [hf.Client(parameters={a: float(i)}) for i in range(8)]
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(x - a)), federation=hf.Federation(clients))
    seen: list[int] = []
    monkeypatch.setattr("hierfl.runtime.in_process.execution.require_memory", lambda needed, *_: seen.append(needed))
    for solver in (FedAvg(0.1, batch_size=None), SCAFFOLD(0.1, batch_size=None)):
        problem.solve(solver, rounds=2, runtime=InProcess(schedule=schedule), progress=False)
    problem.solve(FedAvg(0.1, batch_size=None), rounds=2, runtime=InProcess(schedule="map"), seeds=4, progress=False)
    plain, remembering, several, *_ = seen  # a share of the seeds for each core
    assert 8 * 8 * n < plain < 5 * 8 * 8 * n
    assert plain + 2 * 8 * 8 * n < remembering < 15 * 8 * 8 * n
    assert several > 3 * 8 * 8 * n


def test_a_block_is_no_longer_than_the_run() -> None:
    settings = {"rounds": 7, "progress": False}
    whole = flat().solve(FedAvg(), evaluate_every=10**9, **settings)
    np.testing.assert_array_equal(whole.iterate, flat().solve(FedAvg(), **settings).iterate)
    assert len(whole.history["objective"]) == 7

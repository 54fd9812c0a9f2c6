"""Every solver on every runtime, and every exact method, against answers that hierfl had no part in; by ``hierfl.testing``.

The suite runs a covering: each solver on two of the runtimes in turn, with a case of its own. ``make conformance`` runs all solvers on all
runtimes and all their cases: 84 pairs, each in process and on six runtimes, about an hour in one process.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from functools import partialmethod
from typing import Any

import cvxpy as cp
import jax
import numpy as np
import pytest

import hierfl as hf
from hierfl import solvers
from hierfl.compiler.data.tables import Party, Population
from hierfl.runtime.contract import Message
from hierfl.solvers.extend import NestedPoint
from hierfl.solvers.simfbo import BoundSimFBO
from hierfl.testing import CASES, Case, conform, conform_lower, gradient_steps
from hierfl.testing.cases import ROWS
from tests.runtime.on_flower.loopback import LoopbackGrid, desks, each_alone

FULL = bool(os.environ.get("CONFORMANCE"))
STEP = 0.1
SMOOTHED: dict[str, Any] = {"smoothing": 0.05, "step_size": 0.05}
ALONE, OF_CLIENTS, SHARED, OF_SAMPLES = (
    [case for case in CASES if case.scope == scope] for scope in (None, "client", "federation", "sample")
)
FREE = [case for case in SHARED if case.kind == "free"]
SOLVERS: dict[str, tuple[Any, list[Case]]] = {
    "ImplicitGradient": (solvers.ImplicitGradient(step_size=STEP), [*OF_CLIENTS, *SHARED]),
    "ZO-HFL, exact": (solvers.ZOHFL(**SMOOTHED, lower=solvers.Exact()), [*OF_CLIENTS, *OF_SAMPLES]),
    "ZO-HFL": (solvers.ZOHFL(**SMOOTHED, lower=solvers.ProjectedSGD(steps=2)), OF_CLIENTS),
    "FedRZO, exact": (solvers.FedRZO(**SMOOTHED, lower=solvers.Exact()), [*OF_CLIENTS, *SHARED, *OF_SAMPLES]),
    "FedRZO": (solvers.FedRZO(**SMOOTHED, lower=solvers.LocalSGD(rounds=2, steps=2)), SHARED),
    "FedNest": (solvers.FedNest(step_size=STEP, inner_step=0.1, batch_size=None, lipschitz=6.0), FREE),
    "FedBiO": (solvers.FedBiO(step_size=STEP, inner_step=0.1, local_steps=2), FREE),
    "SimFBO": (solvers.SimFBO(step_size=STEP, inner_step=0.1, local_steps=[1, 3, 2], server_steps=0.8, normalise=True, radius=5.0), FREE),
    "FedMBO": (solvers.FedMBO(step_size=STEP, inner_step=0.1, lipschitz=6.0), FREE),
    "FedAvg": (solvers.FedAvg(step_size=STEP, local_steps=1, batch_size=None), ALONE),
    "HierFAVG": (solvers.HierFAVG(step_size=STEP, local_steps=[1, 3, 2], batch_size=None), ALONE),
    "SCAFFOLD": (solvers.SCAFFOLD(step_size=STEP, local_steps=1, batch_size=None), ALONE),
    "FedProx": (solvers.FedProx(step_size=STEP, local_steps=2, batch_size=None), ALONE),
    "FedZO": (solvers.FedZO(**SMOOTHED), ALONE),
    "FedMSPP": (solvers.FedMSPP(step_size=STEP), ALONE),
    "Scaffnew": (solvers.Scaffnew(step_size=STEP), ALONE),
}
REPLAYED = ("ImplicitGradient", "FedAvg", "SCAFFOLD")  # whose rounds on all data are projected gradient steps
RUNTIMES = ("sites of one", "Dask, one site", "Dask, three sites", "Flower", "delays", "a buffer")


def covering() -> list[tuple[str, Case, tuple[str, ...]]]:
    """(solver, case, runtimes): solvers are dealt over the runtimes, and a case of theirs to each turn."""
    if FULL:
        return [(solver, case, RUNTIMES) for solver, (_, cases) in SOLVERS.items() for case in cases]
    turns = [(runtime, n) for n in range(len(SOLVERS)) for runtime in (RUNTIMES[n % 6], RUNTIMES[(n + 3) % 6])]
    dealt = [(n, *entry, runtime) for runtime, n in sorted(turns) for entry in [list(SOLVERS.items())[n]]]
    return [(solver, cases[n % len(cases)], (runtime,)) for n, solver, (_, cases), runtime in dealt]


@pytest.fixture(scope="module")
def places() -> Iterator[dict[str, Any]]:
    """What runtimes run on, made when first asked for."""
    made: dict[str, Any] = {}
    yield made
    for one in made.values():
        one.__exit__(None, None, None)


def runtime_of(name: str, solver: str, places: dict[str, Any]) -> Any:
    def kept(key: str, make: Any) -> Any:
        if key not in places:
            places[key] = make().__enter__()
        return places[key]

    if name == "sites of one":
        return lambda case, problem: hf.runtime.Flower(
            LoopbackGrid(each_alone(lambda holder: case.problem([holder]))), shared_seeds=True
        )
    if name.startswith("Dask"):
        return kept(name, lambda: hf.runtime.Dask(sites=1 if "one" in name else 3, timeout=120.0))
    if name == "Flower":
        return lambda case, problem: hf.runtime.Flower(LoopbackGrid(desks(problem)), shared_seeds=True)
    return hf.runtime.Delayed(np.ones(len(ROWS)), asynchronous=name == "a buffer")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("solver", "case", "runtimes"),
    covering(),
    ids=lambda part: str(part if isinstance(part, str | Case) else len(part)),
)
def test_a_solver_on_runtimes(solver: str, case: Case, runtimes: tuple[str, ...], places: dict[str, Any]) -> None:
    replay = gradient_steps(STEP) if solver in REPLAYED else None
    where = {name: runtime_of(name, solver, places) for name in runtimes}
    report = conform(SOLVERS[solver][0], where, cases=[case], replay=replay)
    assert not report.of("fails"), report
    if runtimes != ("a buffer",):  # which some solvers refuse: their clients answer together
        report.require()


def test_a_run_of_a_server_that_holds_nothing() -> None:
    """The sites solve, each for its own clients; the server, which made the declaration, has nobody's data."""
    case, solver = Case("client", "cones", "tables"), SOLVERS["ZO-HFL, exact"][0]
    settings: dict[str, Any] = {"rounds": 3, "seed": 0, "x0": case.start, "progress": False}
    grid = LoopbackGrid(desks(case.problem()))
    found = case.problem(holders=()).solve(solver, runtime=hf.runtime.Flower(grid, shared_seeds=True), **settings)
    np.testing.assert_allclose(found.own_value, case.answer(found.x).value, rtol=1e-6)
    np.testing.assert_allclose(found.x, case.problem().solve(solver, **settings).x, atol=1e-9)


def test_exact_lower_levels() -> None:
    report = conform_lower().require()
    assert not report.of("refused")


@pytest.mark.parametrize("method", ["parametric program", "semismooth Newton", "accelerated gradient"])
def test_an_exact_method(method: str) -> None:
    cases = [case for case in CASES if case.scope is not None]
    derived_by_jax = [case for case in cases if case.kind == "game"]
    conform_lower(method, cases=cases if FULL else [*cases[len(method) % 3 :: 3], *derived_by_jax]).require()


def test_a_method_that_ignores_what_it_is_handed_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    def nothing_gathered(self: Any, group: Any, true: Any) -> Any:
        rows, weights = true(self, group)
        return jax.tree.map(jax.numpy.zeros_like, rows), weights

    for holder in (Party, Population):
        monkeypatch.setattr(holder, "gathered", partialmethod(nothing_gathered, true=holder.gathered))
    constrained = [Case("client", "polyhedron", "samples"), Case("federation", "cones", "samples")]
    assert conform_lower("parametric program", cases=constrained).of("fails") == constrained
    report = conform(solvers.ImplicitGradient(step_size=STEP), cases=constrained[:1])
    assert not report.conforms and "y in process: off by" in str(report)


@pytest.mark.parametrize("scope", ["client", "federation"])
def test_lower_levels_on_the_host_are_functions_of_the_data_they_are_handed(scope: str, x64: None) -> None:
    case = Case(scope, "polyhedron", "both")
    compiled = case.problem().compile()
    data, exact = compiled.data(), compiled.exact.by("parametric program")
    at, turned = case.start, np.array([2, 1, 0])
    others = {leaf: values[turned] for leaf, values in data.clients.parameters.items()}
    tables = tuple(
        replace(table, offsets=table.offsets[turned], counts=table.counts[turned]) for table in data.clients.tables
    )
    told = case.answer(at)
    for clients, y in (
        (data.clients, told.y),
        (replace(data.clients, parameters=others, tables=tables), told.y if scope == "federation" else told.y[turned]),
        (data.clients, told.y),
    ):
        found = exact.solve_all(jax.numpy.asarray(at), replace(data, clients=clients))[0]
        np.testing.assert_allclose(found.y, y, atol=1e-7)


def test_constraints_of_all_clients_hold_for_a_y_that_they_share() -> None:
    x, y, low = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.ClientParameter(2, name="low")
    level = hf.ArgMin(y, cp.sum_squares(y - x), [y >= low, cp.sum(y) <= 5], scope="federation")
    clients = [hf.Client({}, {low: np.array(bound)}) for bound in ([1.0, 0.0], [0.0, 2.0])]
    problem = hf.Problem(hf.Minimize(server=cp.sum_squares(y)), level, federation=hf.Federation(clients))
    for method in (None, "parametric program"):
        found = problem.compile().exact.by(method).at(np.zeros(2))
        np.testing.assert_allclose(found.solution.y, [[1.0, 2.0]], atol=1e-8)
    forces = np.concatenate([np.ravel(force) for force in problem.implicit.multipliers(np.zeros(2)).values()])
    np.testing.assert_allclose(np.sort(forces), [0.0, 0.0, 0.0, 2.0, 4.0], atol=1e-8)


def test_a_solver_that_no_case_suits_is_refused_by_name() -> None:
    report = conform(solvers.ImplicitBundle(), hf.runtime.Delayed(np.ones(len(ROWS))), cases=OF_CLIENTS[:1])
    assert report.of("refused") == OF_CLIENTS[:1] and not report.conforms
    with pytest.raises(AssertionError, match="refused   client y, free, tables"):
        report.require()


MISTAKES = [
    ("local_steps", lambda self, party, memory, received, key: (memory, 0), ", int): a client's step gives (memory, Message(payload, monitor))"),
    ("local_steps", lambda self, party, received: received, "it is called with (party, memory, received, key)"),
    ("local_steps", lambda self, party, memory, received, key: (0.0, Message(0.0, {})), "gives a memory of float64[], where it was "),
    ("round", lambda self, clients, state: (state, {}), "it is called with (clients, state, key)"),
    ("round", lambda self, clients, state, key: (state, {}), "gives no (state, record)"),
    ("round", lambda self, clients, state, key: (state.x, {"objective": state.x[0]}), "gives a state of float64[2], where it was NestedPoint("),
    ("init", lambda self, x0: NestedPoint(x0, 0.0, x0), "init gives 0.0 as state.y: a state is made of arrays"),
    ("init", lambda self, x0: NestedPoint(x0.astype(int), x0, x0), "init gives an array of int64 as state.x: "),
    ("init", lambda self, x0: {"z": x0}, "decision gives no array but dict of the state init(x0)"),
    ("tabulated", ("step_size", "radius"), "tabulated has 'radius', and a round reads settings.radius: read its table"),
    ("decision", lambda self, state: state.x[0], "gives x of shape () of the state init(x0), where x0 has (2,)"),
    ("of", lambda settings, problem, *given, **own: settings, "bind gives SimFBO: it gives a bound method"),
    ("absent", "sometimes", 'absent=\'sometimes\': "unbiased", "renormalise" or "zero"'),
]


@pytest.mark.parametrize(("name", "mistake", "said"), MISTAKES)
def test_mistakes_of_who_writes_a_solver_are_told(name: str, mistake: object, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BoundSimFBO, name, mistake)
    assert said in str(conform(SOLVERS["SimFBO"][0], cases=FREE[:1]))

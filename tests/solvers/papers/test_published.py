"""Published modes: 20 rounds of each, as they are made, against the papers' pseudocode in NumPy; their tables; what is refused.

The transcriptions are those of ``tests/solvers/test_printed_algorithms.py``, which hold for other settings too.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.solvers import ZOHFL, Exact, FedRZO, LogGrowth, ProjectionMethod
from tests.solvers.test_printed_algorithms import (
    COHORTS,
    GAMMA,
    START,
    Cohort,
    agrees,
    bilevel,
    fedrzo_2s,
    fedrzo_bl,
    fedrzo_nn,
    hierarchical,
    local_sgd,
    minimax,
    single_level,
    two_stage,
    zo_hfl,
)

EVERYBODY = Cohort([1 / 3] * 3, [0.35, 0.25, 0.6], lambda r: 20)
BY_TWOS = Cohort([1 / 3] * 3, [0.35, 0.25, 0.6], lambda r: 2)
HALF = Cohort([1 / 3] * 3, [0.35, 0.25, 0.6], lambda r: 1, 0.5)


def test_fedrzo_nn_as_published(x64: None) -> None:
    """eta = 0.1, gamma = 1e-5, H = 20, one sample in a step."""
    iterates = fedrzo_nn(lambda z, xi: abs(xi @ z - 1), EVERYBODY, START, rounds=20, gamma=1e-5)
    agrees(single_level(EVERYBODY), FedRZO.published("nn"), iterates)


@pytest.mark.parametrize("kind", ["bl", "mm"])
def test_fedrzo_bl_and_mm_as_published(kind: str, x64: None) -> None:
    """Algorithm 3 twice a round, from 0, each call with samples of its own; the paper prints neither gamma nor H."""
    problem, f, lower = bilevel(BY_TWOS, local_sgd) if kind == "bl" else minimax(BY_TWOS)
    iterates = fedrzo_bl(f, lower, BY_TWOS, START, rounds=20, published=True)
    agrees(problem, FedRZO.published(kind, step_size=GAMMA, local_steps=2), iterates)


def test_fedrzo_2s_as_published(x64: None) -> None:
    """eta = 0.1, gamma = 1e-3, H = 20, tau = 20 and alpha = 1e-4 from y_0 = 0."""
    problem, f = two_stage(EVERYBODY)
    iterates = fedrzo_2s(f, EVERYBODY, START, rounds=20, gamma=1e-3, tau=20, alpha=1e-4, first=1)
    agrees(problem, FedRZO.published("2s"), iterates)


@pytest.mark.parametrize(("start", "cohort"), [("query", HALF), ("warm", COHORTS["as-printed"])])
def test_zo_hfl_as_published(start: str, cohort: Cohort, x64: None) -> None:
    """H_{i,r} = ceil(tau sqrt(r + 1)), own samples in both calls, one sample each, the mean over all m."""
    iterates = zo_hfl(cohort, START, common=False, start=start, rounds=20, tau=5, zero=True)
    solver = ZOHFL.published(tau=5, start=start, participation=cohort.participation)
    result = agrees(hierarchical(cohort), solver, iterates)
    assert result.settings["published_as"] == "[HFL] (Qiu, Kim, Yousefian, 2025), Algorithms 1 and 2 with tau = 5"


@pytest.mark.filterwarnings("ignore::hierfl.LowerLevelWarning")
def test_own_samples_of_each_call_in_client_scope_too() -> None:
    """FedRZO has no printed algorithm there, but the setting is one: the two calls then differ in their samples."""
    problem = hierarchical(COHORTS["one-client"])
    runs = {
        common: problem.solve(FedRZO(common_random_numbers=common), rounds=3, x0=START, progress=False).x
        for common in (True, False)
    }
    assert np.linalg.norm(runs[True] - runs[False]) > 1e-6


def rows(solver: Any) -> dict[str, tuple[str, str, str]]:
    return {row.setting: (row.here, row.default, row.printed) for row in solver.differences().rows}


def test_the_tables_name_every_difference_with_the_papers_line(tmp_path: Path) -> None:
    """Whatever differs from the defaults is told, and nothing else but what belongs to solve; every line is printed somewhere."""
    modes = [ZOHFL.published(tau=20), *(FedRZO.published(kind) for kind in ("nn", "bl", "mm", "2s"))]
    for solver in modes:
        told = rows(solver)
        assert all(line and line != "not printed" for _, _, line in told.values())
        assert all(here != default for here, default, _ in told.values())
        for name in ("smoothing", "step_size", "local_steps", "batch_size", "common_random_numbers", "absent"):
            assert (name in told) == (getattr(solver, name) != getattr(type(solver)(), name))
    text = str(FedRZO.published("2s", followers=1000).differences()).splitlines()
    assert text[0].endswith("Algorithms 4 and 5 (2s) with 1000 followers")
    assert "lower.steps         LogGrowth(tau=80)  50" in "\n".join(text)
    assert ["§6.2 prints none" in str(FedRZO.published(kind).differences()) for kind in ("bl", "mm")] == [True, False]


def test_what_is_changed_is_told_from_what_the_paper_varies() -> None:
    changed = rows(ZOHFL.published(tau=20, participation=0.5, common_random_numbers=True, directions=3))
    assert changed["participation"][2].startswith("§IV")
    assert changed["common_random_numbers"][2].endswith("changed here, printed is False")
    assert changed["directions"] == ("3", "1", "not printed")
    assert rows(FedRZO.published("2s", lower=Exact()))["lower"][2].endswith("changed here, printed is ProjectionMethod")
    assert rows(replace(FedRZO.published("nn"), step_size=0.1))["step_size"][2].endswith("printed is 1e-05")
    assert rows(FedRZO(smoothing=0.3)) == {"smoothing": ("0.3", "0.1", "")}
    assert rows(ZOHFL()) == {}


def test_a_run_that_does_not_query_as_the_paper_is_told() -> None:
    x, a = cp.Variable(2, name="x"), hf.Sample(2, name="a")
    federation = hf.Federation([hf.Client({a: np.eye(2)})])
    boxed = hf.Problem(hf.Minimize(clients=hf.E(cp.norm1(x - a))), constraints=[x <= 1], federation=federation)
    settings: dict[str, Any] = {"rounds": 1, "x0": [0, 0], "progress": False}
    with pytest.warns(hf.TheoryWarning, match="has queries='raw', but this run has queries='projected'"):
        boxed.solve(FedRZO.published("nn"), **settings)
    with warnings.catch_warnings():
        warnings.simplefilter("error", hf.TheoryWarning)
        boxed.solve(FedRZO.published("nn"), **settings, queries="raw")


def test_followers_choose_tau_and_alpha_of_table_4() -> None:
    for followers, tau, alpha in ((10, 20, 1e-4), (20, 35, 1e-6), (100, 55, 1e-7), (1000, 80, 1e-8)):
        assert FedRZO.published("2s", followers).lower == ProjectionMethod(LogGrowth(tau), alpha, "zero")


def test_a_mode_is_for_its_class_of_problems() -> None:
    for solver, problem, said in (
        (
            FedRZO.published("nn"),
            bilevel(BY_TWOS, local_sgd)[0],
            "no lower level, but .* federation scope: .*published\\('bl'\\)",
        ),
        (FedRZO.published("bl"), single_level(BY_TWOS), "federation scope, but this one has no lower level: .*'nn'"),
        (
            FedRZO.published("2s"),
            hierarchical(BY_TWOS),
            r"sample scope, but .* client scope: write ZOHFL.published\(\)",
        ),
        (FedRZO.published("mm"), bilevel(BY_TWOS, local_sgd)[0], r"minimax problems, .*published\('bl'\)"),
        (ZOHFL.published(), two_stage(BY_TWOS)[0], "client scope, but .* sample scope: .*'2s'"),
    ):
        with pytest.raises(hf.IncompatibleSolverError, match=said):
            problem.solve(solver, rounds=1, progress=False)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: FedRZO.published("b"), "did you mean 'bl'"),
        (lambda: FedRZO.published(7), "there are 'nn', 'bl', 'mm', '2s'"),
        (lambda: FedRZO.published("nn", followers=10), "followers=10 .* mode '2s'"),
        (lambda: FedRZO.published("2s", followers=7), "10, 20, 100 or 1000 followers"),
        (lambda: FedRZO.published("2s", smoothing=-1.0), "smoothing=-1"),
        (lambda: ZOHFL.published(tau=0), "tau of ZOHFL.published"),
        (lambda: ZOHFL.published(start="cold"), "'query' .* or 'warm'"),
        (lambda: ZOHFL.published(smoting=0.1), "did you mean 'smoothing'"),
        (lambda: ZOHFL.published(local_steps=3), "local_steps is short for lower"),
    ],
)
def test_what_is_refused(make: Any, said: str) -> None:
    with pytest.raises(hf.HierflError, match=said):
        make()

"""What the holders of data say of a y, whatever gave it: against residuals by NumPy and CVXPY, and when a method answers by other data."""

from __future__ import annotations

import warnings
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.compiler.data.tables import Party
from hierfl.errors import IncompatibleSolverError, LowerLevelWarning, SettingError
from hierfl.solvers import ZOHFL, Exact, FedAvg, FedRZO, ImplicitGradient, LocalSGD, ProjectedSGD
from hierfl.solvers.lower.exact import BoundExact
from hierfl.testing import Case
from hierfl.testing.cases import KINDS, TIGHT, _below, _held
from tests.runtime.on_flower.loopback import LoopbackGrid, desks

SMOOTHED: dict[str, Any] = {"smoothing": 0.05, "step_size": 0.05}


def at_sites(
    case: Case, solver: Any, sites: int = 3, there: hf.Problem | None = None, server: hf.Problem | None = None
) -> hf.Result:
    """A run whose server has nobody's data."""
    runtime = hf.runtime.Flower(LoopbackGrid(desks(there or case.problem(), sites)), shared_seeds=True)
    problem = server or case.problem(holders=())
    return problem.solve(solver, runtime=runtime, rounds=2, seed=0, x0=case.start, progress=False)


def residual(case: Case, x: np.ndarray, y: np.ndarray, below: tuple[np.ndarray, np.ndarray]) -> float:
    """||y - P(y - F(y))||, where there is no formula for it ||y - prox(y)||, by CVXPY."""
    h, q = below[0] + 2 * np.eye(2), below[1] - 2 * x
    kind, z = KINDS[case.kind], cp.Variable(2)
    if case.kind in ("kinks", "cones"):
        kinked = kind.term(x, z) if case.kind == "kinks" else 0.0
        cost = 0.5 * cp.quad_form(z, cp.psd_wrap(h)) + q @ z + kinked + 0.5 * cp.sum_squares(z - y)
    else:
        cost = cp.sum_squares(z - (y - (h @ y + q)))
    cp.Problem(cp.Minimize(cost), kind.limits(x, z)).solve(solver=cp.CLARABEL, **TIGHT)
    return float(np.linalg.norm(y - z.value))


@pytest.mark.parametrize("kind", ["free", "box", "kinks", "cones"])
@pytest.mark.parametrize("scope", ["client", "federation"])
def test_a_wrong_y_has_the_residual_of_the_data_and_a_bound_that_holds(scope: str, kind: str) -> None:
    case = Case(scope, kind, "both" if kind != "kinks" else "parameters")
    exact, x = case.problem().compile().exact, case.start
    found, told = exact.at(x), case.answer(x)
    assert found.solution is not None
    np.testing.assert_allclose(exact.judged_anew(x, found).residual, 0.0, atol=1e-10)
    moved = told.y + np.array([0.02, -0.01])
    if kind == "box":
        moved = np.clip(moved, 0.05, 0.6)
    anew = exact.judged_anew(x, found._replace(solution=found.solution._replace(y=moved)))
    held = [_held(k) for k in range(3)]
    below = [_below(case, group) for group in ([[own] for own in held] if scope == "client" else [held])]
    expected = [residual(case, x, y, own) for y, own in zip(moved, below)]
    np.testing.assert_allclose(anew.residual, expected, atol=1e-6)
    assert (anew.error_bound >= np.linalg.norm(moved - told.y, axis=1)).all()


@pytest.mark.parametrize("masks", [None, hf.runtime.PairwiseMasks(least=2)], ids=["plain", "masks"])
@pytest.mark.parametrize("limit", [{"budget": hf.Budget(gradients=1)}, {"communication_limit": 40}], ids=["before the first round", "within a block"])
def test_f_is_asked_for_where_a_round_was_taken_back(masks: Any, limit: dict[str, Any]) -> None:
    """At x0 nobody was asked, and sums under masks of a round that was taken back had been opened: sites refused others of that round."""
    rows = [np.random.default_rng(k).normal(size=(8, 3)) for k in range(3)]

    def problem(own: list[Any]) -> hf.Problem:
        x, u = cp.Variable(2, name="x"), hf.Sample(3, name="u")
        return hf.Problem(hf.Minimize(clients=hf.E(cp.square(u[:2] @ x - u[2]))), federation=hf.Federation([hf.Client({u: one}) for one in own]))

    solver, settings = FedAvg(0.05, local_steps=1, batch_size=None), {"x0": np.array([0.3, 0.4]), "progress": False}
    runtime = hf.runtime.Flower(LoopbackGrid(desks(problem(rows), 3)), shared_seeds=True, masks=masks)
    result = problem([hf.Elsewhere(8)] * 3).solve(solver, runtime=runtime, **settings, **limit)
    assert result.settings["rounds_done"] == problem(rows).solve(solver, **settings, **limit).settings["rounds_done"] < 5
    x = np.asarray(result.x)
    assert result.value == pytest.approx(np.mean([np.mean((own[:, :2] @ x - own[:, 2]) ** 2) for own in rows]), rel=1e-6)
    assert "missing" not in result.settings
    with pytest.raises(SettingError, match="rounds=0: Flower asks sites in rounds"):
        problem([hf.Elsewhere(8)] * 3).solve(solver, runtime=runtime, rounds=0, **settings)


@pytest.mark.parametrize("case", [Case("client", "box", "both"), Case("client", "polyhedron", "samples")], ids=str)
def test_a_method_that_answers_by_another_clients_rows_is_denied(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    there, server = case.problem(), case.problem(holders=())
    others = [there.compile().data().clients.party(2), server.compile().laid_out().clients.party(2)]
    true = BoundExact.client

    def by_other_rows(self: BoundExact, x: Any, party: Party, *given: Any) -> Any:
        other = next(other for other in others if other.tables[0].samples == party.tables[0].samples)
        return true(self, x, other, *given)

    monkeypatch.setattr(BoundExact, "client", by_other_rows)
    solver = ZOHFL(**SMOOTHED, lower=Exact())
    with pytest.warns(LowerLevelWarning, match="by the data that it holds"):
        result = at_sites(case, solver, there=there, server=server)
    x, certificate = np.asarray(result.x), result.certificate
    assert result.history["lower_residual"].max() < 1e-9  # what the method says
    y = case.answer(x).y
    if case.kind == "box":
        each = [residual(case, x, y[2], _below(case, [_held(k)])) for k in range(3)]
        np.testing.assert_allclose(certificate.lower_residual, max(each), rtol=1e-5)
        assert certificate.worst == f"client 'client {int(np.argmax(each))}'" and each[2] < 1e-9
    assert certificate.lower_residual > 1e-2 and certificate.worst in str(certificate)
    assert certificate.error_bound >= np.linalg.norm(y - y[2], axis=1).max()
    with pytest.warns(LowerLevelWarning):
        here = there.solve(solver, rounds=2, seed=0, x0=case.start, progress=False)
    np.testing.assert_allclose(here.certificate.own_residual, certificate.lower_residual, rtol=1e-6)
    assert here.certificate.lower_residual < 1e-9  # of the value, which is another y's


@pytest.mark.parametrize("scope", ["client", "federation", "sample"])
def test_answers_of_what_was_asked_are_certified_by_the_sites(scope: str) -> None:
    case = Case(scope, "polyhedron", "samples" if scope == "sample" else "both")
    with warnings.catch_warnings():
        warnings.simplefilter("error", LowerLevelWarning)
        result = at_sites(case, FedRZO(**SMOOTHED, lower=Exact()))
    assert result.certificate.lower_residual < 1e-9 and result.certificate.worst
    np.testing.assert_allclose(result.value, case.answer(np.asarray(result.x)).value, rtol=1e-6)
    assert "data are elsewhere" in str(result)  # which prints, though f has no value here


def test_what_is_left_of_a_few_inexact_steps_is_told() -> None:
    case = Case("client", "box", "both")
    result = at_sites(case, ZOHFL(**SMOOTHED, lower=ProjectedSGD(steps=2)), sites=1)
    assert 1e-3 < result.certificate.lower_residual < 1 and result.certificate.worst.startswith("client 'client ")
    off = abs(result.value - case.answer(np.asarray(result.x)).value)
    assert off > 1e-4 and result.certificate.error_bound > 1e-3


# --- one y of all clients -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "solver", [FedRZO(**SMOOTHED, lower=Exact()), ImplicitGradient(step_size=0.1)], ids=["FedRZO", "gradient"]
)
@pytest.mark.parametrize("kind", ["polyhedron", "smooth"])
def test_a_shared_y_is_solved_for_by_questions_to_the_sites(kind: str, solver: Any) -> None:
    case = Case("federation", kind, "both" if kind == "polyhedron" else "parameters")
    for sites in (1, 3):
        result = at_sites(case, solver, sites=sites)
        np.testing.assert_allclose(result.value, case.answer(np.asarray(result.x)).value, rtol=1e-6)
        here = case.problem().solve(solver, rounds=2, seed=0, x0=case.start, progress=False)
        np.testing.assert_allclose(result.x, here.x, atol=1e-7)


@pytest.mark.parametrize(
    "solver",
    [FedRZO(**SMOOTHED, lower=Exact()), ImplicitGradient(step_size=0.1, lower=Exact("parametric program"))],
    ids=["FedRZO", "gradient"],
)
def test_what_needs_everybodys_data_says_so_at_the_start(solver: Any) -> None:
    case = Case("federation", "kinks" if isinstance(solver, FedRZO) else "polyhedron", "both")
    told = r"'client 0' are elsewhere.*LocalSGD\(\.\.\.\)"
    if not isinstance(solver, FedRZO):
        told = r"needs the data of all clients in one place. These can: 'semismooth Newton', 'accel"
    with pytest.raises(IncompatibleSolverError, match=told):
        at_sites(case, solver)
    result = at_sites(case, FedRZO(**SMOOTHED, lower=LocalSGD(rounds=2, steps=2)))
    assert np.isfinite(result.value)


def test_the_step_that_trials_find_is_read_at_sites() -> None:
    """It decays where runs by several seeds differ, in a schedule that only the server knew."""
    case, settings = Case("client", "box", "both"), {"rounds": 20, "seed": 0, "progress": False}
    runtime = hf.runtime.Flower(LoopbackGrid(desks(case.problem(), 3)), shared_seeds=True)
    solver = FedRZO(smoothing=0.05, step_size="auto", batch_size=None, lower=Exact())
    result = case.problem(holders=()).solve(solver, runtime=runtime, x0=case.start, **settings)
    here = case.problem().solve(solver, x0=case.start, **settings)
    steps = here.history["step_size"]
    np.testing.assert_allclose(steps, steps[0] / np.sqrt(1 + np.arange(20) / 20), rtol=1e-12)
    np.testing.assert_allclose(result.x, here.x, rtol=1e-9)


@pytest.mark.parametrize("asked", ["selection='optimistic'", "ShadowPrice"])
@pytest.mark.parametrize("solver", [FedRZO(), ImplicitGradient()], ids=["FedRZO", "ImplicitGradient"])
def test_what_no_client_tells_of_a_shared_y_is_refused(solver: Any, asked: str) -> None:
    """Their F lead to one of several solutions, whichever, and a run at sites had f of that one."""
    x, y, u = cp.Variable(name="x"), cp.Variable(2, name="y"), hf.Sample(name="u")
    row, selected = cp.sum(y) <= x, asked != "ShadowPrice"
    term = cp.sum_squares(y) if selected else cp.square(hf.ShadowPrice(row) - 1)
    below = hf.E(cp.square(cp.sum(y) - u) if selected else cp.sum_squares(y - u))
    lower = hf.ArgMin(y, below, [row, cp.abs(y) <= 2], selection="optimistic" if selected else None)
    away = hf.Federation([hf.Client({u: hf.Elsewhere(3)}) for _ in range(2)])
    problem = hf.Problem(hf.Minimize(clients=term), lower, [cp.abs(x) <= 1], federation=away)
    with pytest.raises(IncompatibleSolverError, match=f"from everybody's data in one place.*nothing else tells {asked}"):
        problem.solve(solver, runtime=hf.runtime.Flower(LoopbackGrid({})), progress=False)


@pytest.mark.parametrize("solver", [FedRZO(**SMOOTHED, batch_size=None, lower=Exact()), ZOHFL(**SMOOTHED, batch_size=None, lower=Exact())], ids=["FedRZO", "ZOHFL"])
@pytest.mark.parametrize("limit", [{"communication_limit": 80}, {"budget": hf.Budget(values=71)}], ids=["floats", "values"])
def test_a_limit_within_a_block_of_rounds_leaves_f_to_be_asked_for(solver: Any, limit: dict[str, Any]) -> None:
    """Sites were asked for the rest of the block, and then refused to go back to the round at which the run ended: f was NaN."""
    case = Case("client", "box", "both")
    grid, settings = LoopbackGrid(desks(case.problem(), 3)), {"rounds": 60, "seed": 0, "x0": case.start, "progress": False, **limit}
    result = case.problem(holders=()).solve(solver, runtime=hf.runtime.Flower(grid, shared_seeds=True), **settings)
    here = case.problem().solve(solver, **settings)
    done = result.settings["rounds_done"]
    assert done == here.settings["rounds_done"] and done % 10
    np.testing.assert_allclose(result.x, here.x, rtol=1e-12)
    assert result.value == pytest.approx(case.problem().implicit(result.x), rel=1e-12)
    assert "missing" not in result.settings
    assert len(grid.crossed) <= 2 * 3 * (done + 1 + 3)  # a round too much is noticed at once; one exchange each who is there, to begin, and for f

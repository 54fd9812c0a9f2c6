"""Settings that can do nothing, or mean nothing, are refused where the solver is made or bound."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.models import coupled_minimax, nonsmooth_toy
from hierfl.solvers import (
    LFD,
    SCAFFOLD,
    ZOHFL,
    Decay,
    Exact,
    FedAC,
    FedAvg,
    FedBiO,
    FedMBO,
    FedMSPP,
    FedNest,
    FedProx,
    FedRZO,
    FedZO,
    HierFAVG,
    ImplicitGradient,
    LocalSGD,
    LocalSGDA,
    ProjectedSGD,
    ProjectionMethod,
    Scaffnew,
    SimFBO,
)

STEPPING = (
    ZOHFL,
    FedRZO,
    ImplicitGradient,
    FedAvg,
    FedProx,
    FedMSPP,
    FedZO,
    SCAFFOLD,
    LocalSGDA,
    LFD,
    LocalSGD,
    ProjectedSGD,
)


@pytest.mark.parametrize("solver", STEPPING)
@pytest.mark.parametrize("step", [0, 0.0, Decay(0.0, 0.5), np.float32(0)])
def test_a_step_of_zero_is_refused_where_the_solver_is_made(solver: Callable[..., Any], step: Any) -> None:
    with pytest.raises(hf.SettingError, match=r"step_size.*a step of 0 moves nothing"):
        solver(step_size=step)


@pytest.mark.parametrize(
    ("solver", "setting"),
    [
        *((solver, "step_size") for solver in STEPPING),
        (LocalSGDA, "ascent_step"),
        (FedMSPP, "proximal_step"),
        *((solver, setting) for solver in (LFD, LocalSGD, FedAC) for setting in ("rounds", "steps")),
        (ProjectionMethod, "steps"),
    ],
)
@pytest.mark.parametrize("values", [[0.1, 0.05], (0.1,), np.array([0.1, 0.05])])
def test_a_list_for_a_schedule_is_refused_where_the_solver_is_made(
    solver: Callable[..., Any], setting: str, values: Any
) -> None:
    with pytest.raises(hf.SettingError, match=rf"{setting}.*is no schedule: write a callable of the round, such as"):
        solver(**{setting: values})


@pytest.mark.parametrize(
    ("made", "named"),
    [
        (lambda: ZOHFL(smoothing=np.nan), "smoothing"),
        (lambda: FedRZO(smoothing=-1), "smoothing"),
        (lambda: FedZO(smoothing=0.0), "smoothing"),
        (lambda: ZOHFL(directions=True), "directions"),
        (lambda: FedZO(directions=0), "directions"),
        (lambda: ZOHFL(direction_kind="gaussian"), "direction_kind"),
        (lambda: FedRZO(estimator="backward"), "estimator"),
        (lambda: FedRZO(control_variate=1), "control_variate"),
        (lambda: ZOHFL(common_random_numbers="no"), "common_random_numbers"),
        (lambda: ZOHFL(participation=0.0), "participation"),
        (lambda: FedRZO(participation=1.5), "participation"),
        (lambda: FedAvg(participation=-0.1), "participation"),
        (lambda: SCAFFOLD(participation=np.nan), "participation"),
        (lambda: FedAvg(absent="never"), "absent"),
        (lambda: FedAvg(batch_size=0), "batch_size"),
        (lambda: SCAFFOLD(batch_size=1.5), "batch_size"),
        (lambda: Scaffnew(batch_size=-1), "batch_size"),
        (lambda: FedAvg(step_size=-1), "step_size=-1"),
        (lambda: LocalSGDA(step_size=np.inf), "step_size=inf"),
        (lambda: LocalSGDA(ascent_step=None), "ascent_step"),
        (lambda: LocalSGDA(ascent_step=-1.0), "ascent_step=-1"),
        (lambda: Scaffnew(step_size=Decay(0.1)), "step_size"),
        (lambda: Scaffnew(probability=1.5), "probability"),
        (lambda: FedProx(proximal=0), "proximal"),
        (lambda: FedMSPP(proximal_step="large"), "proximal_step"),
        (lambda: SCAFFOLD(server_step=0), "server_step"),
        (lambda: HierFAVG(edge_rounds=0), "edge_rounds"),
        (lambda: ZOHFL(lower="exact"), "lower"),
        (lambda: ZOHFL(local_steps=3, lower=Exact()), "not both"),
        (lambda: FedRZO(schedule="hope"), "schedule"),
        (lambda: ZOHFL(accuracy=0.0), "accuracy"),
        (lambda: FedNest(neumann=0), "neumann"),
        (lambda: FedMBO(inner_rounds=0), "inner_rounds"),
        (lambda: FedMBO(lipschitz=-1), "lipschitz"),
        (lambda: FedBiO(inner_step=0), "inner_step"),
        (lambda: FedBiO(linear_step="small"), "linear_step"),
        (lambda: SimFBO(server_steps=0), "server_steps"),
        (lambda: SimFBO(server_steps=[1.0, 2.0]), "server_steps.*three"),
        (lambda: SimFBO(normalise=2), "normalise"),
        (lambda: SimFBO(radius=0), "radius"),
        (lambda: Decay("a", 1), "two finite numbers"),
        (lambda: Decay(0.1, None), "two finite numbers"),
        (lambda: Decay(np.nan), "two finite numbers"),
        (lambda: ZOHFL(step_size=Decay(-0.1, 0.75)), "must not be negative"),
    ],
)
def test_settings_out_of_range_are_named(made: Callable[[], Any], named: str) -> None:
    with pytest.raises(hf.SettingError, match=named):
        made()


@pytest.mark.parametrize(
    ("solver", "named"),
    [
        (FedAvg(local_steps=[1, 2]), "local_steps has 2 entries for 1 clients"),
        (LocalSGDA(local_steps=np.array([1, 2])), "local_steps has 2 entries for 1 clients"),
        (FedRZO(local_steps=0), "local_steps is 0|0 for every client"),
        (FedRZO(step_size=lambda r: -1.0 if r == 3 else 0.1), "step_size is -1.0 at 3"),
        (SCAFFOLD(step_size=lambda r: np.nan), "step_size is nan"),
        (FedMSPP(proximal_step=lambda r: 0), "proximal_step is 0"),
        (ZOHFL(step_size=lambda: 0.1), "step_size"),
        (FedAvg(local_steps="5"), "local_steps"),
    ],
)
def test_schedules_are_checked_when_bound(solver: Any, named: str) -> None:
    one_level = hf.Problem(hf.Minimize(clients=cp.sum_squares(cp.Variable(2, name="x"))))
    problem = {LocalSGDA: coupled_minimax(), FedRZO: nonsmooth_toy(2)}.get(type(solver), one_level)
    with pytest.raises(hf.SettingError, match=named):
        problem.solve(solver, rounds=5, progress=False)


def test_schedules_that_mean_something_are_taken() -> None:
    assert FedRZO(step_size="auto").step_size == "auto"
    for step in (0.1, np.float32(0.1), np.array(0.1), Decay(0.1), lambda r: 0.0 if r else 0.1):
        assert ZOHFL(step_size=step).step_size is step
    assert LocalSGD(steps=lambda r: r).rounds == 5


@pytest.mark.parametrize("solver", [ZOHFL, FedRZO])
def test_no_more_orthonormal_directions_than_dimensions(solver: Callable[..., Any]) -> None:
    problem = nonsmooth_toy(2).compile()
    with pytest.raises(hf.SettingError, match="directions=3: x has 2 scalars.*Write directions=2"):
        solver(directions=3, direction_kind="orthonormal").bind(problem, 3)
    solver(directions=2, direction_kind="orthonormal").bind(problem, 3)
    solver(directions=3).bind(problem, 3)

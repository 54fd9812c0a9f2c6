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
    ZOHFL, FedRZO, ImplicitGradient, FedAvg, FedProx, FedMSPP, FedZO, SCAFFOLD, LocalSGDA, LFD, LocalSGD,
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


OUT_OF_RANGE: dict[Callable[..., Any], dict[str, tuple[Any, ...]]] = {
    ZOHFL: {
        "smoothing": (np.nan,),
        "directions": (True,),
        "direction_kind": ("gaussian",),
        "common_random_numbers": ("no",),
        "participation": (0.0,),
        "lower": ("exact",),
        "accuracy": (0.0,),
        "step_size": (True, "fast", None, 1j, {0: 1}),
    },
    FedRZO: {"smoothing": (-1,), "estimator": ("backward",), "control_variate": (1,), "participation": (1.5,), "schedule": ("hope",)},
    FedZO: {"smoothing": (0.0,), "directions": (0,)},
    FedAvg: {"participation": (-0.1,), "absent": ("never",), "batch_size": (0,), "step_size": (-1,)},
    SCAFFOLD: {"participation": (np.nan,), "batch_size": (1.5,), "server_step": (0,)},
    Scaffnew: {"batch_size": (-1,), "step_size": (Decay(0.1),), "probability": (1.5,)},
    LocalSGDA: {"step_size": (np.inf,), "ascent_step": (None, -1.0)},
    FedProx: {"proximal": (0,)},
    FedMSPP: {"proximal_step": ("large",)},
    HierFAVG: {"edge_rounds": (0,)},
    FedNest: {"neumann": (0,)},
    FedMBO: {"inner_rounds": (0,), "lipschitz": (-1,)},
    FedBiO: {"inner_step": (0,), "linear_step": ("small",)},
    SimFBO: {"server_steps": (0,), "normalise": (2,), "radius": (0,)},
}


@pytest.mark.parametrize("solver", OUT_OF_RANGE)
def test_settings_out_of_range_are_named(solver: Callable[..., Any]) -> None:
    for setting, values in OUT_OF_RANGE[solver].items():
        for value in values:
            with pytest.raises(hf.SettingError, match=setting):
                solver(**{setting: value})


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (lambda: ZOHFL(local_steps=3, lower=Exact()), "not both"),
        (lambda: SimFBO(server_steps=[1.0, 2.0]), "server_steps.*three"),
        (lambda: Decay("a", 1), "two finite numbers"),
        (lambda: Decay(0.1, None), "two finite numbers"),
        (lambda: Decay(np.nan), "two finite numbers"),
        (lambda: ZOHFL(step_size=Decay(-0.1, 0.75)), "must not be negative"),
    ],
)
def test_settings_that_mean_nothing_say_what_does(made: Callable[[], Any], said: str) -> None:
    with pytest.raises(hf.SettingError, match=said):
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
        (FedAvg(step_size=lambda r: None), "step_size must be a number, Decay"),
        (FedAvg(step_size=lambda r: np.ones(2)), "step_size must be a number, Decay"),
        (FedAvg(step_size=lambda r, s: 0.1), "step_size is called with the round"),
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

"""Sites behind Flower's messages, without its processes: the same iterates as in process, and nothing but named arrays crosses."""

from __future__ import annotations

import numpy as np
import pytest

import hierfl as hf
from tests.runtime.on_dask.test_dask_runtime import CASES, START
from tests.runtime.on_flower.loopback import LoopbackGrid, desks


@pytest.mark.slow
@pytest.mark.parametrize("case", list(CASES))
def test_rounds_are_those_of_a_run_in_process(case: str) -> None:
    make, solver = CASES[case]
    problem, settings = make(), {"rounds": 12, "x0": START, "seed": 5, "progress": False}
    runtime = hf.runtime.Flower(LoopbackGrid(desks(problem)), minimum=4)
    here, there = problem.solve(solver, **settings), problem.solve(solver, runtime=runtime, **settings)
    assert np.abs(np.diff(here.trajectory["x"], axis=0)).max() > 1e-6  # it goes somewhere
    np.testing.assert_allclose(there.trajectory["x"], here.trajectory["x"], rtol=0, atol=1e-10)
    np.testing.assert_allclose(there.history["objective"], here.history["objective"], rtol=0, atol=1e-10)
    np.testing.assert_allclose(there.own_value or 0.0, here.own_value or 0.0, rtol=0, atol=1e-10)
    assert there.communication == here.communication and there.status == "completed"
    assert all(site["faults"] == [] for site in there.settings["sites"].values())

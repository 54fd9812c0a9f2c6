"""A run on Flower that goes on from its checkpoint, with what clients remember kept by their sites."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hierfl as hf
from hierfl.solvers import SCAFFOLD
from tests.runtime.on_dask.test_dask_runtime import START, clients_alone
from tests.runtime.on_flower.loopback import LoopbackGrid, desks
from tests.runtime.resumed import StoppedError, outcome, total

SOLVER = SCAFFOLD(0.05, local_steps=3, batch_size=2, participation=0.5)
SETTINGS: dict[str, Any] = {"rounds": 9, "seed": 5, "x0": START, "evaluate_every": 3}


def test_all_processes_are_new_and_the_run_is_the_same(tmp_path: Path) -> None:
    """And what clients remember does not cross."""
    problem, left = clients_alone(), 2

    def stopping(x: Any, y: Any) -> float:
        nonlocal left
        left -= 1
        if left < 0:
            raise StoppedError
        return total(x, y)

    def runtime() -> hf.runtime.Flower:
        return hf.runtime.Flower(LoopbackGrid(desks(problem, memories=tmp_path / "sites")), minimum=4, shared_seeds=True)

    kept: dict[str, Any] = {"checkpoint": hf.Checkpoint(tmp_path / "server", every_rounds=3), "resume": True}
    with pytest.raises(hf.SettingError):
        problem.solve(SOLVER, runtime=runtime(), metrics={"total": stopping}, progress=False, **SETTINGS, **kept)
    assert len(list((tmp_path / "sites").rglob("*.memory"))) >= 3
    again = runtime()
    found = outcome(problem, SOLVER, runtime=again, **SETTINGS, **kept)
    wanted = outcome(problem, SOLVER, **SETTINGS)
    np.testing.assert_allclose(found.trajectory["x"], wanted.trajectory["x"], rtol=0, atol=1e-12)
    assert found.ended == "completed" and len(found.history["objective"]) == 9
    assert all(site["faults"] == [] for site in found.settings["sites"].values())
    letters = [
        (dict(message.content["words"]), dict(message.content["arrays"]))
        for _, message in again.grid.crossed
        if message.content["words"].get("message") in ("Keep", "Kept")
    ]
    assert {words["message"] for words, _ in letters} == {"Keep", "Kept"}
    assert all(words == {"message": "Kept", "kept": True} for words, _ in letters if words["message"] == "Kept")
    assert {name for _, arrays in letters for name in arrays} == set()


def test_a_site_without_a_place_for_it_is_named(tmp_path: Path) -> None:
    problem = clients_alone()
    runtime = hf.runtime.Flower(LoopbackGrid(desks(problem)), minimum=4, shared_seeds=True)
    kept = hf.Checkpoint(tmp_path / "server", every_rounds=3)
    with pytest.raises(hf.SiteError, match=r"site 'site \d' has no place to keep .* --keep DIR, or leave checkpoint"):
        problem.solve(SOLVER, runtime=runtime, checkpoint=kept, progress=False, **SETTINGS)

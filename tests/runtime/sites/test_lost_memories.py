"""Clients that come back without what they remembered, or that missed what all others went by: the run ends where it would have without that."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.runtime.sites.memory_folder import MemoryFolder
from hierfl.solvers import SCAFFOLD, Scaffnew
from tests.runtime.on_flower.loopback import LoopbackGrid, desks

SLOPES, PLACES = np.array([1.0, 3.0, 6.0]), np.array([[4.0, 0.0], [0.0, 2.0], [-1.0, -1.0]])
BEST = SLOPES @ PLACES / np.sum(SLOPES)  # of the clients' slope * |x - place|^2
SETTINGS: dict[str, Any] = {"rounds": 240, "x0": np.zeros(2), "seed": 0, "evaluate_every": 1, "progress": False}
SOLVERS: dict[str, Any] = {
    "SCAFFOLD": SCAFFOLD(step_size=0.02, local_steps=5, batch_size=None),
    "Scaffnew": Scaffnew(step_size=0.02, probability=0.3, batch_size=None),
}


def unlike_clients(elsewhere: bool = False) -> hf.Problem:
    x, slope, place = cp.Variable(2, name="x"), hf.ClientParameter(nonneg=True, name="slope"), hf.Sample(2, name="p")
    clients = [
        hf.Client(
            {place: hf.Elsewhere(1) if elsewhere else p[None]}, {slope: hf.Elsewhere() if elsewhere else float(s)}
        )
        for s, p in zip(SLOPES, PLACES)
    ]
    return hf.Problem(hf.Minimize(clients=slope * hf.E(cp.sum_squares(x - place))), federation=hf.Federation(clients))


def solved(solver: Any, happens: Callable[[LoopbackGrid, int], None]) -> hf.Result:
    problem = unlike_clients()
    grid = LoopbackGrid(desks(problem))
    runtime = hf.runtime.Flower(grid, shared_seeds=True)
    return problem.solve(solver, runtime=runtime, callback=lambda done, *_: happens(grid, done), **SETTINGS)


@pytest.mark.slow
@pytest.mark.parametrize("solver", list(SOLVERS))
def test_a_new_process_does_not_move_where_the_run_ends(solver: str) -> None:
    def happens(grid: LoopbackGrid, done: int) -> None:
        if done == 40:
            grid.nodes[101] = desks(unlike_clients())[101]

    found = solved(SOLVERS[solver], happens)
    np.testing.assert_allclose(found.x, BEST, atol=1e-6)
    assert found.settings["began_anew"] == [41]
    faults = found.settings["sites"]["site 1"]["faults"]
    assert faults[-1] == [41, "began again without what its clients remembered"]


@pytest.mark.slow
@pytest.mark.parametrize(("solver", "anew"), [("SCAFFOLD", False), ("Scaffnew", True)])
def test_missed_rounds_do_not_move_where_the_run_ends(solver: str, anew: bool) -> None:
    def nobody(parcel: bytes) -> bytes:
        raise RuntimeError("no site")

    own: list[Any] = []

    def happens(grid: LoopbackGrid, done: int) -> None:
        if done == 40:
            own.append(grid.nodes[101])
            grid.nodes[101] = nobody
        if done == 43:
            grid.nodes[101] = own[0]

    found = solved(SOLVERS[solver], happens)
    np.testing.assert_allclose(found.x, BEST, atol=1e-6)
    assert found.history["answered"][[39, 40, 41, 42, -1]].tolist() == [3, 2, 2, 2, 3]
    assert ("began_anew" in found.settings) == anew


def test_a_run_at_whose_end_a_site_is_missing_has_a_value_over_those_that_are_there() -> None:
    def nobody(parcel: bytes) -> bytes:
        raise RuntimeError("no site")

    def happens(done: int, *_: Any) -> None:
        if done == 4:
            grid.nodes[101] = nobody

    grid, settings = LoopbackGrid(desks(unlike_clients())), SETTINGS | {"rounds": 8}
    runtime = hf.runtime.Flower(grid, minimum=2, shared_seeds=True)
    found = unlike_clients(elsewhere=True).solve(SOLVERS["SCAFFOLD"], runtime=runtime, callback=happens, **settings)
    (told,) = found.settings["missing"]
    assert told.startswith("client 1 (at site 'site 1'") and told in str(found)
    terms = SLOPES * np.sum((np.asarray(found.x) - PLACES) ** 2, axis=1)
    weight = unlike_clients().implicit(found.x) / terms.sum()
    assert found.value == pytest.approx(weight * 3 / 2 * (terms[0] + terms[2]))  # by the solver's rule for absent clients
    assert "over the clients that were there" in str(found)
    assert "elsewhere" in found.rest.words and found.status in ("out of rounds", "still descending")


def cut_short(problem: hf.Problem, solver: Any, runtime: Any, kept: dict[str, Any]) -> None:
    """Begin a run that Ctrl-C ends after some rounds, however long they take."""

    def press(done: int, *_: Any) -> None:
        if done == 50:
            signal.raise_signal(signal.SIGINT)

    found = problem.solve(solver, runtime=runtime, callback=press, **SETTINGS, **kept)
    assert found.status == "interrupted" and found.settings["rounds_done"] >= 50


@pytest.mark.slow
def test_what_a_full_disk_did_not_keep_is_missed_when_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint knows that a site remembers more than it kept."""
    problem, keep = unlike_clients(), MemoryFolder.keep

    def full(folder: MemoryFolder, *given: Any) -> None:
        if folder.path.name == "1":
            raise OSError(28, "No space left on device")
        keep(folder, *given)

    def runtime() -> hf.runtime.Flower:
        return hf.runtime.Flower(LoopbackGrid(desks(problem, memories=tmp_path / "sites")), shared_seeds=True)

    solver, kept = SOLVERS["SCAFFOLD"], {"checkpoint": hf.Checkpoint(tmp_path / "run", every_rounds=20)}
    monkeypatch.setattr(MemoryFolder, "keep", full)
    cut_short(problem, solver, runtime(), kept)
    monkeypatch.undo()
    found = problem.solve(solver, runtime=runtime(), resume=True, **SETTINGS, **kept)
    assert found.ended == "completed"
    assert len(found.settings["began_anew"]) == 1 and found.settings["sites"]["site 1"]["faults"]
    np.testing.assert_allclose(found.x, BEST, atol=1e-6)


@pytest.mark.slow
def test_clients_that_are_at_other_sites_when_the_run_goes_on_have_lost_what_they_remembered(tmp_path: Path) -> None:
    def runtime(sites: int) -> hf.runtime.Flower:
        nodes = desks(unlike_clients(), sites, memories=tmp_path / str(sites))
        for answer in nodes.values():
            answer.__self__.name += f" of {sites}"  # type: ignore[attr-defined]
        return hf.runtime.Flower(LoopbackGrid(nodes), shared_seeds=True)

    solver, kept = SOLVERS["SCAFFOLD"], {"checkpoint": hf.Checkpoint(tmp_path / "run", every_rounds=20)}
    problem = unlike_clients()
    cut_short(problem, solver, runtime(2), kept)
    found = problem.solve(solver, runtime=runtime(3), resume=True, **SETTINGS, **kept)
    assert len(found.settings["began_anew"]) == 1
    np.testing.assert_allclose(found.x, BEST, atol=1e-6)

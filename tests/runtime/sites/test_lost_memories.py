"""Clients that come back without what they remembered, or that missed what all others went by: the run ends where it would have without that."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cvxpy as cp
import jax.numpy as jnp
import numpy as np
import pytest

import hierfl as hf
from hierfl.runtime import Delayed
from hierfl.runtime.site_runtime import _DelayedLinks
from hierfl.runtime.sites.memory_folder import MemoryFolder, memory_bytes, memory_of
from hierfl.solvers import SCAFFOLD, FedAvg, Scaffnew
from tests.runtime.lost_answers import losing
from tests.runtime.on_flower.loopback import LoopbackGrid, desks, nobody

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
    assert found.settings["began_anew"] == [41] and found.history["answered"][[39, 40, 41]].tolist() == [3, 2, 3]
    faults = found.settings["sites"]["site 1"]["faults"]
    assert faults[-1] == [41, "began again without what its clients remembered"]


@pytest.mark.slow
@pytest.mark.parametrize(("solver", "anew"), [("SCAFFOLD", False), ("Scaffnew", True)])
def test_missed_rounds_do_not_move_where_the_run_ends(solver: str, anew: bool) -> None:
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


# --- Half of the sites dropping at random in every round: the run is that of those who answered, converges, and says
# who did when.


SITES, ROUNDS = 20, 100
TRUTH = np.array([1.0, -2.0, 0.5])


def rounds_of(spans: list[list[int]]) -> list[int]:
    return [index for first, last in spans for index in range(first, last + 1)]


@pytest.mark.slow
def test_half_of_the_sites_drop_at_random(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that drop some cannot be asked at all, others are lost in the round."""
    rng, x = np.random.default_rng(8), cp.Variable(3, name="x")
    u, b = hf.Sample(3, name="u"), hf.Sample(name="b")
    rows = [rng.standard_normal((5, 3)) for _ in range(SITES)]
    clients = [hf.Client({u: r, b: r @ TRUTH}, name=f"c{i}" if i % 2 else None) for i, r in enumerate(rows)]
    problem = hf.Problem(hf.Minimize(clients=hf.E(cp.square(u @ x - b))), federation=hf.Federation(clients))
    names = [client.name or str(place) for place, client in enumerate(clients)]
    dropped = np.stack([rng.permutation(SITES) < SITES // 2 for _ in range(ROUNDS)])
    at_once = rng.random((ROUNDS, SITES)) < 0.5
    now = [0]

    def ready(links: _DelayedLinks) -> frozenset[str]:
        gone = dropped[now[0] % ROUNDS] & at_once[now[0] % ROUNDS]
        now[0] += 1  # it is asked once a round
        return frozenset(site for site in links.sites if not gone[int(site)])

    monkeypatch.setattr(_DelayedLinks, "ready", ready)
    losing(monkeypatch, lambda site, asked: asked["message"] == "Asked" and dropped[asked["round"], int(site)])
    settings: dict[str, Any] = {"rounds": ROUNDS, "seed": 2, "x0": np.zeros(3), "progress": False}
    given = {"step_size": 0.1, "local_steps": 2, "batch_size": 3}
    found = problem.solve(FedAvg(**given), runtime=Delayed([1.0] * SITES), **settings)
    monkeypatch.undo()
    expected = problem.solve(FedAvg(**given, participation=~dropped), **settings)
    np.testing.assert_allclose(found.trajectory["x"], expected.trajectory["x"], rtol=0, atol=1e-10)
    assert found.ended == "completed" and np.all(found.history["answered"] == SITES // 2)
    np.testing.assert_allclose(found.x, TRUTH, atol=1e-6)
    for place, name in enumerate(names):
        assert rounds_of(found.settings["answered"][name]) == np.flatnonzero(~dropped[:, place]).tolist()
        assert rounds_of(found.settings["missed"][name]) == np.flatnonzero(dropped[:, place]).tolist()
        site = found.settings["sites"][str(place)]
        assert rounds_of(site["rounds_without"]) == np.flatnonzero(dropped[:, place]).tolist()
        assert site["faults_in_all"] == np.sum(dropped[:, place] & ~at_once[:, place])


# --- What clients remember on their owner's disk: whole or not there, of the clients and the algorithm that it was kept
# of.


RUN, OTHER = "0f" * 16, "ab" * 16
CLIENTS = {3: 0, 5: 1}
MEMORY = {"control": jnp.arange(6.0).reshape(2, 3), "steps": jnp.array([1, 2])}


def test_what_is_kept_is_read_again_and_three_of_each_run_stay(tmp_path: Path) -> None:
    folder = MemoryFolder(tmp_path / "made" / "here")
    folder.keep(OTHER, 1, b"other")
    for number in (*range(1, 13), 12):  # the last again, by a server that had not come to write its own
        folder.keep(RUN, number, str(number).encode())
    assert [folder.read(RUN, number) for number in (10, 11, 12)] == [b"10", b"11", b"12"]
    assert folder.read(OTHER, 1) == b"other" and len(list(folder.path.iterdir())) == 4
    with pytest.raises(hf.SiteError, match="not at the site any more"):
        folder.read(RUN, 9)


@pytest.mark.parametrize("name", ["../../etc/passwd", "", "0f/0f", "0F" * 16, "*"])
def test_a_server_cannot_choose_the_place(name: str, tmp_path: Path) -> None:
    folder = MemoryFolder(tmp_path / "here")
    for ask in (lambda: folder.keep(name, 1, b"x"), lambda: folder.read(name, 1), lambda: folder.keep(RUN, -1, b"x")):
        with pytest.raises(hf.SiteError, match="which no server's is"):
            ask()
    assert [path.name for path in tmp_path.rglob("*")] == ["here"]


def test_a_place_where_nothing_can_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(hf.SettingError, match="--keep .* no folder can be made there"):
        MemoryFolder(tmp_path / "file" / "folder")


def test_memories_are_of_their_clients_and_their_algorithm() -> None:
    content = memory_bytes(MEMORY, CLIENTS)
    again = memory_of(content, {name: jnp.zeros_like(leaf) for name, leaf in MEMORY.items()}, CLIENTS)
    for name, leaf in MEMORY.items():
        np.testing.assert_array_equal(again[name], leaf)
        assert again[name].dtype == leaf.dtype
    with pytest.raises(hf.SiteError, match=r"of clients \[3, 5\], and this site holds \[3, 4\]"):
        memory_of(content, MEMORY, {3: 0, 4: 1})
    for unlike in ({"control": MEMORY["control"]}, MEMORY | {"control": jnp.zeros((2, 4))}):
        with pytest.raises(hf.SiteError, match="of another algorithm"):
            memory_of(content, unlike, CLIENTS)


def test_a_full_disk_keeps_no_part_and_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = MemoryFolder(tmp_path)
    folder.keep(RUN, 1, b"before")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("hierfl.runtime.sites.memory_folder.os.fsync", full)
    with pytest.raises(hf.SiteError, match=r"took nothing of 5 bytes \(No space left on device\)"):
        folder.keep(RUN, 2, b"after")
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == [f"{RUN}-000000001.memory"] and folder.read(
        RUN, 1
    ) == b"before"

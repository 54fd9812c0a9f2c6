"""Sites behind Flower's messages that fail: the run is the one in process in which they were absent, and refusals say why."""

from __future__ import annotations

import re
import stat
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hierfl as hf
from hierfl.runtime.on_flower import flower_runtime
from hierfl.runtime.sites.letters import Letter, packed
from hierfl.runtime.sites.parcels import Welcome
from hierfl.runtime.sites.site import SiteRules
from hierfl.solvers import SCAFFOLD, FedAvg
from tests.runtime.on_dask.test_dask_runtime import START, clients_alone
from tests.runtime.on_flower.loopback import Answer, LoopbackGrid, desks, nobody
from tests.runtime.resumed import StoppedError, outcome, total

FAST = FedAvg(step_size=0.1, local_steps=2)
REMEMBERING = SCAFFOLD(step_size=0.1, local_steps=3)  # its clients must not remember what did not count
SETTINGS: dict[str, Any] = {"x0": START, "seed": 5, "evaluate_every": 1, "progress": False}


@pytest.fixture(scope="module")
def problem() -> hf.Problem:
    return clients_alone()


class Spoilt:
    """A desk that does something else with some of the messages of rounds."""

    def __init__(self, desk: Answer, act: Any) -> None:
        self.desk, self.act, self.asked = desk, act, 0

    def __call__(self, parcel: bytes) -> bytes:
        if Letter.from_bytes(parcel).words["message"] != "Asked":
            return self.desk(parcel)
        self.asked += 1
        reply: bytes = self.act(self.asked, self.desk, parcel)
        return reply


def changed(reply: bytes, change: Any) -> bytes:
    letter = Letter.from_bytes(reply)
    return Letter(letter.words, change(dict(letter.arrays))).as_bytes()


def with_nan(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return arrays | {"payload[0]": np.full((1, 2), np.nan)}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (with_nan, "client 3 sent NaN"),
        (lambda a: a | {"payload[0]": np.zeros((1, 3))}, r"of shape \(1, 3\)"),
        (lambda a: a | {"payload[0]": np.zeros((1, 2), int)}, "type int64"),
        (lambda a: a | {"rows": np.zeros(1)}, "the arrays .*rows, not "),
        (lambda a: a | {"payload[0]": np.full((1, 2), 1e30)}, "client 3 sent NaN, infinity or more than 1e.15"),
        (RuntimeError("no site listens"), "no site listens"),
        (b"hello", "sent a message that is no letter"),
        (Letter({}, {}).as_bytes(), "sent a message of another kind than is due"),
        (packed(Welcome((3,))), "sent a message of another kind than is due"),
    ],
)
def test_a_site_that_answers_wrongly_is_left_out_of_that_round(change: Any, said: str, problem: hf.Problem) -> None:
    nodes = desks(problem)

    def act(asked: int, desk: Answer, parcel: bytes) -> bytes:
        if asked != 2:
            return desk(parcel)
        if isinstance(change, RuntimeError):
            raise change
        if isinstance(change, bytes):
            return change
        return changed(desk(parcel), change)

    nodes[102] = Spoilt(nodes[102], act)
    found = problem.solve(REMEMBERING, runtime=hf.runtime.Flower(LoopbackGrid(nodes), shared_seeds=True), rounds=4, **SETTINGS)
    np.testing.assert_allclose(found.trajectory["x"], without(problem, {3: [1]}, 4), rtol=0, atol=1e-10)
    (fault,) = found.settings["sites"]["site 2"]["faults"]
    assert fault[0] == 1 and re.search(said, fault[1])


def without(problem: hf.Problem, absent: dict[int, list[int]], rounds: int) -> np.ndarray:
    """The run in process in which some clients are absent in some rounds."""

    def who(r: int) -> list[int]:
        return [client for client in range(4) if r not in absent.get(client, [])]

    solver = SCAFFOLD(step_size=0.1, local_steps=3, participation=who)
    x: np.ndarray = problem.solve(solver, rounds=rounds, **SETTINGS).trajectory["x"]
    return x


def test_a_run_with_too_few_pauses_and_one_without_a_round_says_why(problem: hf.Problem) -> None:
    def runtime(first: int) -> hf.runtime.Flower:
        """Client 3 sends NaN from some question on."""

        def act(asked: int, desk: Answer, parcel: bytes) -> bytes:
            return changed(desk(parcel), with_nan) if asked >= first else desk(parcel)

        nodes = desks(problem)
        return hf.runtime.Flower(LoopbackGrid(nodes | {102: Spoilt(nodes[102], act)}), minimum=4, patience=0.5, shared_seeds=True)

    found = problem.solve(REMEMBERING, runtime=runtime(4), rounds=8, **SETTINGS)
    assert found.status.startswith("paused: 3 of 4 clients answered in round 3, fewer than minimum=4 (site 2: client 3 sent NaN")
    assert len(found.history["objective"]) == 3
    with pytest.raises(hf.SiteError, match="no round could be made: 3 of 4"):
        problem.solve(REMEMBERING, runtime=runtime(1), rounds=8, **SETTINGS)


def test_a_late_site_is_not_asked_before_its_answer_is_there(problem: hf.Problem) -> None:
    grid = LoopbackGrid(desks(problem))
    runtime = hf.runtime.Flower(grid, timeout=0.5, shared_seeds=True)
    problem.solve(REMEMBERING, runtime=runtime, rounds=1, **SETTINGS)

    def slow(done: int, *_: Any) -> None:
        grid.delays = {102: 1.2} if done == 2 else {}
        time.sleep(0.15)

    found = problem.solve(REMEMBERING, runtime=runtime, rounds=16, callback=slow, **SETTINGS)
    ((first, last),) = found.settings["sites"]["site 2"]["rounds_without"]
    assert first == 2 and 3 <= last < 14
    assert found.settings["sites"]["site 2"]["faults"] == [[2, "no answer within 0.5 s"]]
    absent = {3: list(range(first, last + 1))}
    np.testing.assert_allclose(found.trajectory["x"], without(problem, absent, 16), rtol=0, atol=1e-10)


def test_a_node_that_goes_in_a_round_is_not_waited_for(problem: hf.Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_runtime, "LOOK", 0.0)
    nodes = desks(problem)
    grid = LoopbackGrid(nodes)

    def leave(asked: int, desk: Answer, parcel: bytes) -> bytes:
        if asked == 2:
            grid.delays[102] = 1000.0
            del grid.nodes[102]
        return desk(parcel)

    grid.nodes[102] = Spoilt(nodes[102], leave)
    returning = grid.nodes[102]

    def back(done: int, *_: Any) -> None:
        if done == 3:
            grid.delays.clear()
            grid.nodes[102] = returning

    found = problem.solve(REMEMBERING, runtime=hf.runtime.Flower(grid, shared_seeds=True), rounds=5, callback=back, **SETTINGS)
    assert found.history["answered"].tolist() == [4, 3, 3, 4, 4]
    assert found.settings["sites"]["site 2"]["faults"] == [[1, "its SuperNode is gone"]]
    np.testing.assert_allclose(found.trajectory["x"], without(problem, {3: [1, 2]}, 5), rtol=0, atol=1e-10)


def test_a_site_that_is_started_late_or_at_another_node_takes_part(
    problem: hf.Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flower_runtime, "LOOK", 0.0)
    monkeypatch.setattr(flower_runtime, "AGAIN", 0.0)
    nodes = desks(problem)
    grid = LoopbackGrid(nodes | {102: nobody})

    def change(done: int, *_: Any) -> None:
        if done == 2:
            grid.nodes[102] = nodes[102]
        if done == 4:
            del grid.nodes[102]
            grid.nodes[103] = desks(problem)[102]

    runtime = hf.runtime.Flower(grid, patience=0.5, shared_seeds=True)
    found = problem.solve(FAST, runtime=runtime, rounds=6, callback=change, **SETTINGS)
    assert found.history["answered"].tolist() == [3, 3, 4, 4, 4, 4]
    assert set(found.settings["sites"]) == {"site 0", "site 1", "site 2"}


def test_a_node_that_had_no_site_is_asked_once_again_and_waited_for(problem: hf.Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flower_runtime, "LOOK", 0.0)
    monkeypatch.setattr(flower_runtime, "AGAIN", 0.0)
    site, asked = desks(problem, sites=1)[100], list[bytes]()

    def late(letter: bytes) -> bytes:
        asked.append(letter)
        if len(asked) == 1:
            nobody(letter)
        return site(letter)

    grid = LoopbackGrid({100: late})
    links = flower_runtime.GridLinks(grid, 120.0)
    links.look()
    grid.delays[100] = 0.1
    until = time.monotonic() + 5.0
    while not links.held() and time.monotonic() < until:
        links.look()
    assert links.held() and len(asked) == 2


def test_a_site_that_does_not_want_the_run_is_not_asked_in_every_round(problem: hf.Problem) -> None:
    grid = LoopbackGrid(desks(problem))
    grid.nodes[102] = desks(problem, rules=SiteRules(shared_seeds=True, algorithms=("FedProx",)))[102]
    found = problem.solve(FAST, runtime=hf.runtime.Flower(grid, shared_seeds=True), rounds=21, **SETTINGS)
    assert found.history["answered"].tolist() == [3] * 21
    assert [r for r, _ in found.settings["sites"]["site 2"]["faults"]] == [0, 10, 20]


def test_refusals_say_why(problem: hf.Problem) -> None:
    strict = hf.runtime.Flower(LoopbackGrid(desks(problem, rules=SiteRules(shared_seeds=True, algorithms=("FedProx",)))), patience=0.5, shared_seeds=True)
    with pytest.raises(hf.SiteError, match="site 0: FedAvg is not among the algorithms that this site allows: FedProx"):
        problem.solve(FAST, runtime=strict, rounds=2, **SETTINGS)
    partly = LoopbackGrid(desks(problem) | {102: nobody})
    with pytest.raises(hf.SiteError, match=r"(?s)no site holds.*3.*node 102: no site listens"):
        problem.solve(FAST, runtime=hf.runtime.Flower(partly, minimum=4, patience=0.5, shared_seeds=True), rounds=2, **SETTINGS)
    with pytest.raises(hf.SettingError, match="sites of others are sent a solver as text"):
        function = FedAvg(step_size=lambda r: 0.1)
        problem.solve(function, runtime=hf.runtime.Flower(LoopbackGrid(desks(problem)), shared_seeds=True), rounds=2, **SETTINGS)
    for wrong in ({"timeout": 0}, {"minimum": 0}, {"patience": -1}, {"largest": 0}, {"aggregation": "mean"}):
        with pytest.raises(hf.SettingError):
            hf.runtime.Flower(partly, **wrong)
    with pytest.raises(hf.SettingError, match="the Grid that a ServerApp's main function is given"):
        hf.runtime.Flower("127.0.0.1:8000")


def test_no_run_begins_while_a_sites_data_are_not_what_is_declared() -> None:
    u, b = hf.Sample(2, name="u"), hf.Sample(name="b")
    rows = {u: np.eye(4)[:, :2], b: np.array([0.0, 1.0, 1.0, 0.0])}
    there = hf.models.LogisticRegression(hf.Federation([hf.Client(rows, name=n) for n in ("north", "south")]), u, b)
    nodes = desks(there, 2)
    sites: Any = nodes[101].__self__  # type: ignore[attr-defined]
    sites.held = {1: hf.Client({**rows, b: np.array([1.0, 2.0, 2.0, 1.0])}, name="south")}  # as other software codes them
    away = hf.Federation([hf.Client({u: hf.Elsewhere(4), b: hf.Elsewhere(4)}, name=n) for n in ("north", "south")])
    grid = LoopbackGrid(nodes)
    with pytest.raises(hf.SiteError, match=r"(?s)no run begins.*site 1: sample 'b' of client 'south' has a value against the rule") as caught:
        hf.models.LogisticRegression(away, u, b).solve(runtime=hf.runtime.Flower(grid, shared_seeds=True), progress=False)
    assert "north" not in str(caught.value) and "2" not in str(caught.value)  # the value is told in the site's own log


def test_a_site_that_is_slow_to_begin_is_waited_for(problem: hf.Problem) -> None:
    nodes = desks(problem)
    grid, starts, plain = LoopbackGrid(nodes), list[float](), nodes[101]

    def slow_to_begin(parcel: bytes) -> bytes:
        if Letter.from_bytes(parcel).words["message"] == "Start":
            starts.append(time.monotonic())
        grid.delays[101] = 4.0 if len(starts) == 1 else 0.0
        return plain(parcel)

    grid.nodes[101] = slow_to_begin
    runtime = hf.runtime.Flower(grid, timeout=3, minimum=4, patience=20.0, shared_seeds=True)
    found = problem.solve(FAST, runtime=runtime, rounds=3, **SETTINGS)
    assert found.history["answered"].tolist() == [4, 4, 4] and len(starts) == 2
    assert [said for _, said in found.settings["sites"]["site 1"]["faults"]] == ["no answer within 3 s"]


# --- runs that go on from their checkpoints, with what clients remember kept by their sites


DRAWN = SCAFFOLD(0.05, local_steps=3, batch_size=2, participation=0.5)
BLOCKS: dict[str, Any] = {"rounds": 9, "seed": 5, "x0": START, "evaluate_every": 3}


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
        problem.solve(DRAWN, runtime=runtime(), metrics={"total": stopping}, progress=False, **BLOCKS, **kept)
    kept_there = list((tmp_path / "sites").rglob("*.memory"))
    assert len(kept_there) >= 3 and {stat.S_IMODE(path.stat().st_mode) for path in kept_there} == {0o600}
    again = runtime()
    found = outcome(problem, DRAWN, runtime=again, **BLOCKS, **kept)
    wanted = outcome(problem, DRAWN, **BLOCKS)
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
        problem.solve(DRAWN, runtime=runtime, checkpoint=kept, progress=False, **BLOCKS)

"""Sites that die or are slow (what they may send is the same on Flower, where it is tested): the run is the one in process in which they were absent, and it says who was when."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import parent_process
from threading import Event, Thread, Timer
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.runtime.on_dask.lines import heard
from hierfl.solvers import FedAvg
from tests.runtime.on_dask.test_dask_runtime import START
from tests.runtime.on_flower.test_flower_faults import REMEMBERING, SETTINGS, problem, without

__all__ = ["problem"]  # a fixture

TIMEOUT = 1.0


@contextmanager
def halting(pid: int, seconds: float) -> Iterator[None]:
    """A process that stands still for so long, again and again."""
    over = Event()

    def halt() -> None:
        while not over.is_set():
            os.kill(pid, signal.SIGSTOP)
            over.wait(seconds)
            os.kill(pid, signal.SIGCONT)
            time.sleep(0.02)

    thread = Thread(target=halt)
    thread.start()
    yield
    over.set()
    thread.join()


@contextmanager
def settings_of(cluster: hf.runtime.Dask, **settings: Any) -> Iterator[None]:
    before = {name: getattr(cluster, name) for name in settings}
    for name, value in settings.items():
        object.__setattr__(cluster, name, value)
    yield
    for name, value in before.items():
        object.__setattr__(cluster, name, value)


def solved(problem: hf.Problem, solver: Any, rounds: int, **settings: Any) -> hf.Result:
    return problem.solve(solver, rounds=rounds, **SETTINGS, **settings)


@dataclass(frozen=True)
class Mistaken(FedAvg):
    """What its clients do goes wrong at a site, which is a process of its own."""

    def bind(self, problem: Any, rounds: Any, queries: Any = "projected") -> Any:
        if parent_process() is not None:
            raise KeyError("no such weight")
        return super().bind(problem, rounds, queries)


def test_a_simulated_site_tells_what_went_wrong_and_where(cluster: Any, problem: Any) -> None:
    """It has nothing of its own to keep; a site with its own data tells the kind alone."""
    with pytest.raises(hf.SiteError, match=r"KeyError: 'no such weight' \(line \d+ of .*test_faults.py\)"):
        solved(problem, Mistaken(step_size=0.1), 1, runtime=cluster)


@pytest.mark.slow
def test_nobody_waits_longer_than_the_timeout_and_a_slow_site_comes_back(cluster: Any, problem: Any) -> None:
    solved(problem, REMEMBERING, 1, runtime=cluster)
    pid = cluster._session._links.processes["1"].pid

    def halt(done: int, *_: Any) -> None:
        if done == 2:
            os.kill(pid, signal.SIGSTOP)
            Timer(2.5 * TIMEOUT, os.kill, (pid, signal.SIGCONT)).start()
        time.sleep(0.06)

    with settings_of(cluster, timeout=TIMEOUT):
        found = solved(problem, REMEMBERING, 60, runtime=cluster, callback=halt)
    away = [r for first, last in found.settings["sites"]["1"]["rounds_without"] for r in range(first, last + 1)]
    assert away[0] == 2 and 0 < len(away) < 58 and away == list(range(2, 2 + len(away)))
    np.testing.assert_allclose(found.trajectory["x"], without(problem, {2: away}, 60), rtol=0, atol=1e-10)
    assert TIMEOUT < found.history["seconds"].max() < TIMEOUT + 10.0  # on a busy machine
    assert found.settings["sites"]["1"]["faults"] == [[2, f"no answer within {TIMEOUT:g} s"]]


@pytest.mark.slow
@pytest.mark.parametrize("masks", [None, hf.runtime.PairwiseMasks(least=2)], ids=["plain", "masked"])
def test_a_site_that_is_killed_is_missed_and_comes_back_under_its_name(cluster: Any, problem: Any, masks: Any) -> None:
    solved(problem, REMEMBERING, 1, runtime=cluster)
    links = cluster._session._links
    pid, births = links.processes["1"].pid, links.born("1")

    def kill_and_wait(done: int, *_: Any) -> None:
        if done == 3:
            os.kill(pid, signal.SIGKILL)
        if done == 6:
            until = time.monotonic() + 60
            while not ("1" in links.ready() and links.born("1") > births) and time.monotonic() < until:
                time.sleep(0.2)

    with settings_of(cluster, masks=masks):
        found = solved(problem, REMEMBERING, 10, runtime=cluster, callback=kill_and_wait)
    away = [r for first, last in found.settings["sites"]["1"]["rounds_without"] for r in range(first, last + 1)]
    back = 3 + len(away)  # on a busy machine it may be back before its run waits for it
    assert away == list(range(3, back)) and 4 <= back <= 6
    assert found.ended == "completed" and found.history["answered"].tolist() == [4] * 3 + [3] * len(away) + [4] * (10 - back)
    assert found.settings["sites"]["1"]["faults"][0] == [3, "its process is gone"]
    np.testing.assert_array_less(found.history["seconds"][3:6], 30.0)  # and not the timeout of two minutes
    np.testing.assert_allclose(found.trajectory["x"][: back + 1], without(problem, {2: away}, back), rtol=0, atol=1e-10)


def shifted(away: float) -> tuple[hf.Problem, cp.Parameter]:
    x, own, shift = cp.Variable(name="x"), hf.ClientParameter(name="own"), cp.Parameter(name="shift", value=0.0)
    clients = [hf.Client({}, {own: away + place}) for place in range(4)]
    return hf.Problem(hf.Minimize(clients=cp.square(x - own - shift)), federation=hf.Federation(clients)), shift


def test_sites_on_this_machine_have_what_a_run_is_of(cluster: Any) -> None:
    """Another value of a parameter; and another problem alike, while a site that had died was still given the last one's part."""
    (first, shift), (other, _), solver = shifted(0.0), shifted(5.0), FedAvg(step_size=0.5)
    for value in (0.0, 3.0):
        shift.value = value
        assert first.solve(solver, runtime=cluster, rounds=1, progress=False).x == pytest.approx(1.5 + value)
    links = cluster._session._links
    os.kill(links.processes["1"].pid, signal.SIGKILL)
    links.processes["1"].join()
    heard({"1": links.lines.pop("1")}, 60)
    links.ready()
    (reply,) = heard(links._coming, 60).values()
    assert links._met("1", reply) and links._coming
    assert other.solve(solver, runtime=cluster, rounds=1, progress=False).x == pytest.approx(6.5)


@pytest.mark.slow
def test_without_rounds_a_slow_site_sets_no_pace(cluster: Any, problem: Any) -> None:
    """The others step on while one site takes long for an answer; how much sooner that is, simulated clocks tell (``buffered``)."""
    solver = FedAvg(step_size=0.02, local_steps=2, batch_size=None)
    best, start = solved(problem, solver, 300).value, problem.implicit(START)
    solved(problem, solver, 1, runtime=cluster)  # the cluster is there
    with halting(cluster._session._links.processes["2"].pid, 0.3), settings_of(cluster, asynchronous=True, buffer=1):
        found = solved(problem, solver, 200, runtime=cluster)
    assert found.value <= best + 0.1 * (start - best)
    assert found.history["staleness"].max() >= 3  # so many steps were made while the slow one was busy

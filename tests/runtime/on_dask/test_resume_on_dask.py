"""A run over sites that goes on from its checkpoint: stopped, or its server killed, it has the history of one that was left alone."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import LocalCluster

import hierfl as hf
from hierfl.command.loading import load_problem
from hierfl.solvers import SCAFFOLD, ZOHFL, FedAvg, ProjectedSGD
from tests.runtime.checkpoints.resumed import by_and_by, outcome
from tests.runtime.on_dask import killed_server
from tests.runtime.on_dask.test_dask_runtime import START, clients_alone, personal

STUDY = """
import cvxpy as cp
import hierfl as hf

ROWS = {"north": 6, "south": 4, "west": 5}

def declared() -> hf.Problem:
    x, u, b = cp.Variable(2, name="x"), hf.Sample(2, name="u"), hf.Sample(name="b")
    clients = [hf.Client([{u: hf.Elsewhere(n), b: hf.Elsewhere(n)}], name=name) for name, n in ROWS.items()]
    return hf.Problem(hf.Minimize(clients=hf.E(cp.square(u @ x - b))), federation=hf.Federation(clients, weights="samples"))
"""
ROWS = """
import numpy as np

def rows(seed, n):
    rng = np.random.default_rng(seed)
    return {"u": rng.standard_normal((n, 2)), "b": rng.standard_normal(n)}

def first(): return {"north": rows(1, 6)}
def second(): return {"south": rows(2, 4), "west": rows(3, 5)}
"""


def require_same_run(found: hf.Result, wanted: hf.Result) -> None:
    """The history, the metrics, the iterates and the value of an uninterrupted run, to the last bit."""
    for group in ("history", "metrics", "trajectory"):
        ours, theirs = getattr(found, group), getattr(wanted, group)
        assert ours.keys() == theirs.keys()
        for name in ours.keys() - {"seconds"}:
            np.testing.assert_array_equal(ours[name], theirs[name], err_msg=f"{group} {name}")
    np.testing.assert_array_equal(found.iterate, wanted.iterate)
    assert found.value == wanted.value and found.communication == wanted.communication
    assert found.ended == wanted.ended == "completed"


WITH_MEMORY = {
    "SCAFFOLD": (clients_alone, SCAFFOLD(0.05, local_steps=3, batch_size=2, participation=0.75)),  # control variates
    "ZO-HFL": (personal, ZOHFL(lower=ProjectedSGD(steps=3), batch_size=2, participation=0.5)),  # each client's last y
}
CASES = {"FedAvg": (clients_alone, FedAvg(0.05, local_steps=3, batch_size=2, participation=0.75)), **WITH_MEMORY}


@pytest.mark.slow
@pytest.mark.parametrize("case", list(CASES))
def test_a_run_that_is_stopped_again_and_again(case: str, cluster: hf.runtime.Dask, tmp_path: Path) -> None:
    problem, solver = CASES[case][0](), CASES[case][1]
    settings: dict[str, Any] = {"rounds": 8, "seed": 5, "x0": START, "evaluate_every": 2, "runtime": cluster}
    found, stopped = by_and_by(problem, solver, tmp_path, 2, **settings)
    assert stopped >= 2
    require_same_run(found, outcome(problem, solver, **settings))


def test_without_rounds_there_is_no_checkpoint(tmp_path: Path) -> None:
    runtime = hf.runtime.Dask(asynchronous=True)
    with pytest.raises(hf.SettingError, match=r"a run on Dask\(asynchronous=True\) cannot go on from one"):
        clients_alone().solve(FedAvg(0.05), runtime=runtime, checkpoint=tmp_path / "run", rounds=2, progress=False)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A scheduler's address, where two sites with their own data come, and the declaration."""
    folder = tmp_path_factory.mktemp("resumed")
    for name, text in (("study.py", STUDY), ("rows.py", ROWS)):
        (folder / name).write_text(text)
    with LocalCluster(n_workers=0, dashboard_address=None) as cluster:
        where, command = cluster.scheduler_address, [sys.executable, "-m", "hierfl.command.main", "site", "--shared-seeds"]
        command += ["--problem", f"{folder / 'study.py'}:declared", "--scheduler", where]
        sites = [
            subprocess.Popen(
                [*command, "--data", f"{folder / 'rows.py'}:{name}", "--keep", str(folder / name)],
                stderr=subprocess.DEVNULL,
            )
            for name in ("first", "second")
        ]
        yield where, folder / "study.py"
        for site in sites:
            site.terminate()
            site.wait(20)


@pytest.mark.slow
@pytest.mark.optimised  # as the other process is
@pytest.mark.parametrize("solver", list(killed_server.SOLVERS))
def test_a_server_that_is_killed_again_and_again(solver: str, study: tuple[str, Path], tmp_path: Path) -> None:
    """Each process goes on from what the last one left, with sites that stay where they are, and keep what their clients remember."""
    reached = 0
    for seed in (1, 2, 3) if solver == "FedAvg" else (4, 5):
        command = [
            sys.executable,
            "-m",
            killed_server.__name__,
            study[0],
            str(study[1]),
            solver,
            str(tmp_path),
            str(seed),
        ]
        killed = subprocess.run(command, capture_output=True, timeout=120)
        assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()
        latest = max(int(path.stem) for path in tmp_path.glob("*.checkpoint"))
        assert latest > reached
        reached = latest
    memories = study[1].parent / "first"
    if solver == "SCAFFOLD":
        assert (
            len(list(memories.glob("*.memory"))) == 3
        )  # those of two checkpoints, and of one that may not have been written
        away = memories.rename(memories.with_name("away"))
        memories.mkdir()
        gone = "cannot go on from this checkpoint: site 'north': what its clients remember .* is not at the site"
        with pytest.raises(hf.SiteError, match=gone):
            killed_server.solve(*study, solver, tmp_path)
        memories.rmdir()
        away.rename(memories)
    require_same_run(killed_server.solve(*study, solver, tmp_path), killed_server.solve(*study, solver, None))
    assert solver == "SCAFFOLD" or not list(memories.glob("*.memory"))


@pytest.mark.slow
def test_two_servers_at_once_at_the_same_sites(study: tuple[str, Path]) -> None:
    """Each has its own run, as if the other were not there."""
    solvers = [FedAvg(step_size=step, local_steps=2) for step in (0.002, 0.1)]

    def solved(solver: Any) -> hf.Result:
        with hf.runtime.Dask(study[0], minimum=3, patience=60.0, shared_seeds=True) as runtime:
            problem = load_problem(f"{study[1]}:declared")
            return problem.solve(solver, runtime=runtime, rounds=150, seed=2, x0=START, progress=False)

    alone = [solved(solver) for solver in solvers]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(solved, solvers))
    assert np.abs(alone[0].x - alone[1].x).max() > 0.01
    for one, other in zip(alone, together):
        np.testing.assert_array_equal(one.trajectory["x"], other.trajectory["x"])
        assert not any(site["faults"] for site in other.settings["sites"].values())

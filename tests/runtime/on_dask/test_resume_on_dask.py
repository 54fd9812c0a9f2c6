"""A run over sites that goes on from its checkpoint: stopped, or its server killed, it has the history of one that was left alone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import LocalCluster

import hierfl as hf
from hierfl.command.loading import load_problem
from hierfl.solvers import FedAvg
from tests.runtime import killed_run
from tests.runtime.on_dask.test_dask_runtime import START, clients_alone
from tests.runtime.resumed import require_killed_further, require_same_run
from tests.runtime.study import processes, site_command, study_in


def test_without_rounds_there_is_no_checkpoint(tmp_path: Path) -> None:
    runtime = hf.runtime.Dask(asynchronous=True)
    with pytest.raises(hf.SettingError, match=r"a run on Dask\(asynchronous=True\) cannot go on from one"):
        clients_alone().solve(FedAvg(0.05), runtime=runtime, checkpoint=tmp_path / "run", rounds=2, progress=False)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A scheduler's address, where two sites with their own data come, and the declaration."""
    file = study_in(tmp_path_factory.mktemp("resumed"), north=6, south=4, east=5)
    with LocalCluster(n_workers=0, dashboard_address=None) as cluster:
        where = cluster.scheduler_address
        sites = [
            site_command(file, name, where, "--shared-seeds", "--keep", str(file.with_name(name)))
            for name in ("north", "south_and_east")
        ]
        with processes(*sites):
            yield where, file


@pytest.mark.slow
@pytest.mark.optimised  # as the other process is
@pytest.mark.parametrize("solver", list(killed_run.SOLVERS))
def test_a_server_that_is_killed_again_and_again(solver: str, study: tuple[str, Path], tmp_path: Path) -> None:
    """Each process goes on from what the last one left, with sites that stay where they are, and keep what their clients remember."""
    for seed in (1, 2, 3) if solver == "FedAvg" else (4, 5):
        require_killed_further(killed_run.__name__, tmp_path, str(tmp_path), str(seed), solver, *map(str, study))
    memories = study[1].parent / "north"
    if solver == "SCAFFOLD":
        assert len(list(memories.glob("*.memory"))) == 3  # those of two checkpoints, and of one that may not have been written
        away = memories.rename(memories.with_name("away"))
        memories.mkdir()
        gone = "cannot go on from this checkpoint: site 'north': what its clients remember .* is not at the site"
        with pytest.raises(hf.SiteError, match=gone):
            killed_run.solve(tmp_path, solver, study)
        memories.rmdir()
        away.rename(memories)
    found = killed_run.solve(tmp_path, solver, study)
    require_same_run(found, killed_run.solve(None, solver, study))
    assert found.ended == "completed"
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

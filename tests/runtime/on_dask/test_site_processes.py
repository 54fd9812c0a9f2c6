"""``hierfl site``: processes with data of their own, mutual certificates, and refusals that are told on both sides."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from runpy import run_path
from typing import Any

import cvxpy as cp
import numpy as np
import pandas as pd
import pytest
from distributed import LocalCluster

import hierfl as hf
from hierfl.command.loading import load_problem
from hierfl.runtime.on_dask.site_process import TLSFiles
from hierfl.runtime.privacy.ledger import read_ledger
from hierfl.runtime.sites import parcels
from hierfl.runtime.sites.owner.site_data import held_of
from hierfl.solvers import SCAFFOLD, FedAvg
from tests.runtime.on_dask.certificates import DAY, Authority
from tests.runtime.study import processes, site_command, study_in

SETTINGS: dict[str, Any] = {"rounds": 20, "x0": np.array([0.5, -0.5]), "seed": 3, "progress": False}
NAMES = ("north", "south")
SOLVER = FedAvg(step_size=0.05, local_steps=2, batch_size=2)


RULES = """
algorithms = ["FedAvg"]
max_rounds = 45
shared_seeds = true
servers = ["server"]
"""


class Study:
    """A folder with the declaration, the rows, rules and certificates."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, study_in(folder, north=6, south=4)
        (folder / "south.toml").write_text(RULES)
        self.trusted, self.stranger = Authority(folder, "ca"), Authority(folder, "other")
        self.server = self.trusted.files("server", "server")
        self.problem = load_problem(f"{self.file}:declared")
        self.module = sys.modules["study"]

    def command(self, address: str, name: str, files: TLSFiles, *more: str) -> list[str]:
        return site_command(self.file, name, address, "--log", str(self.folder / f"{name}.log"), *more, files=files)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    return Study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def address(study: Study) -> Iterator[str]:
    """The scheduler's, with a site that allows anything and one that does not."""
    with LocalCluster(n_workers=0, protocol="tls://", security=study.server.security(), dashboard_address=None) as cluster:
        where, kept = cluster.scheduler_address, ["--rules", str(study.folder / "south.toml"), "--ledger", str(study.folder / "south.ledger")]
        north = study.command(where, "north", study.trusted.files("of_north", "site:north"), "--shared-seeds")
        south = study.command(where, "south", study.trusted.files("of_south", "site:south"), *kept)
        with processes(north, south):
            yield where
        assert read_ledger(study.folder / "south.ledger").closed


@pytest.fixture(scope="module")
def runtime(address: str, study: Study) -> Iterator[hf.runtime.Dask]:
    with hf.runtime.Dask(address, security=study.server.security(), patience=60.0, minimum=2, shared_seeds=True) as runtime:
        until = time.monotonic() + 90
        while True:  # for the sites to come
            try:
                study.problem.solve(SOLVER, runtime=runtime, rounds=1, progress=False)
                break
            except hf.SiteError:
                assert time.monotonic() < until
        yield runtime


@pytest.mark.slow
def test_data_that_the_server_never_sees_give_the_run_in_process(runtime: Any, study: Study) -> None:
    rows = run_path(str(study.folder / "rows.py"))
    here = study.module.study(held={**rows["north"](), **rows["south"]()})
    expected, found = here.solve(SOLVER, **SETTINGS), study.problem.solve(SOLVER, runtime=runtime, **SETTINGS)
    np.testing.assert_allclose(found.trajectory["x"], expected.trajectory["x"], rtol=0, atol=1e-10)
    assert found.value == pytest.approx(expected.value, rel=1e-10) and str(found.certificate) == "no lower level"
    assert set(found.settings["sites"]) == {"north", "south"}
    sent = [line for line in study.log("south").splitlines() if ": sent " in line]
    assert sum("sent payload (1, 2) <f8, 16 bytes" in line for line in sent) >= 20
    assert {line.split(": sent ")[1].split()[0] for line in sent} == {
        "payload",
        "monitor['value']",
        "Answered,",
        "Welcome,",
    }
    object.__setattr__(runtime, "noise", hf.runtime.GaussianNoise(clip=1.0, multiplier=2.0))
    noised = study.problem.solve(SOLVER, runtime=runtime, **SETTINGS | {"rounds": 3})
    object.__setattr__(runtime, "noise", None)
    assert np.isnan(noised.value) and noised.settings["rounds_done"] == 3
    object.__setattr__(runtime, "masks", hf.runtime.PairwiseMasks(least=2))
    summed = study.problem.solve(SOLVER, runtime=runtime, **SETTINGS | {"rounds": 2})
    object.__setattr__(runtime, "masks", None)
    short = here.solve(SOLVER, **SETTINGS | {"rounds": 2})
    np.testing.assert_allclose(summed.iterate, short.iterate, rtol=0, atol=1e-10)
    assert summed.value == pytest.approx(short.value, rel=1e-10)
    assert summed.settings["masks"]["sums"] == 3  # two rounds, and the value at the end
    marks = [set(re.findall(r"public key is (\w+), that of another one (\w+)", study.log(name))) for name in NAMES]
    assert len(marks[0]) == 1 and marks[0] == {pair[::-1] for pair in marks[1]}  # for owners to compare
    assert noised.settings["privacy"]["released"] == 3 and "differential privacy: (" in str(noised)


@pytest.mark.slow
def test_refusals_are_told_on_both_sides(runtime: Any, study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    object.__setattr__(runtime, "patience", 0.5)
    with pytest.raises(hf.SiteError, match="south: SCAFFOLD is not among the algorithms that this site allows: FedAvg"):
        study.problem.solve(SCAFFOLD(step_size=0.05), runtime=runtime, **SETTINGS)
    assert "SCAFFOLD is not among the algorithms" in study.log("south")
    with pytest.raises(hf.SiteError, match="another problem is declared here than at the server"):
        study.module.study(level=2.0).solve(SOLVER, runtime=runtime, **SETTINGS)
    assert "another problem is declared" in study.log("north")
    with (
        monkeypatch.context() as patch,
        pytest.raises(hf.SiteError, match="the server runs hierfl 9.9.9, this site hierfl"),
    ):
        patch.setattr(parcels, "VERSION", "9.9.9")
        study.problem.solve(SOLVER, runtime=runtime, **SETTINGS)
    assert "the server runs hierfl 9.9.9" in study.log("north")
    paused = study.problem.solve(SOLVER, runtime=runtime, **{**SETTINGS, "rounds": 60})
    assert paused.status.startswith("paused: 1 of 2") and "has answered the 45 rounds that it allows" in paused.status
    assert read_ledger(study.folder / "south.ledger").rounds == 45
    other = study.trusted.files("mallory", "server").security()
    with (
        hf.runtime.Dask(runtime.scheduler, security=other, patience=5.0, minimum=2, shared_seeds=True) as another,
        pytest.raises(hf.SiteError, match="south: this site answers other servers than 'mallory'"),
    ):
        study.problem.solve(SOLVER, runtime=another, **SETTINGS)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stranger", "expired"])
def test_a_wrong_certificate_is_refused_with_the_reason(
    kind: str, address: str, study: Study, caplog: pytest.LogCaptureFixture
) -> None:
    files = (
        study.stranger.files("stranger", "site:north")
        if kind == "stranger"
        else study.trusted.files("expired", "site:north", -DAY)
    )
    tried = subprocess.run(study.command(address, "north", files), capture_output=True, text=True, timeout=120)  # half a minute of which it tries
    assert tried.returncode == 2 and "cannot join tls://" in tried.stderr
    assert "One side does not accept the other's certificate" in tried.stderr
    told = {"stranger": "ALERT_UNKNOWN_CA", "expired": "certificate has expired"}[kind]
    assert told in caplog.text  # the scheduler's log
    with pytest.raises(hf.SiteError, match="cannot reach the scheduler"):
        study.problem.solve(SOLVER, runtime=hf.runtime.Dask(address, security=files.security(), shared_seeds=True), **SETTINGS)


COLUMNS, VALUES = ["age", "dose"], np.arange(6.0).reshape(3, 2)
TABLE, ONES = pd.DataFrame(VALUES, columns=COLUMNS), np.ones(3)
U, B = hf.Sample(2, name="u"), hf.Sample(name="b")


def declared(columns: list[str] | None) -> Any:
    """Clients whose rows of u are a table with these columns."""
    x = cp.Variable(2, name="x")
    clients = [hf.Client([{U: hf.Elsewhere(3, columns), B: hf.Elsewhere(3)}], name=name) for name in NAMES]
    return hf.Problem(hf.Minimize(clients=hf.E(cp.square(U @ x - B))), federation=hf.Federation(clients)).declaration


@pytest.mark.parametrize(
    ("columns", "rows"), [(COLUMNS, TABLE), (COLUMNS, TABLE[["dose", "age"]]), (None, VALUES)], ids=["table", "in another order", "array"]
)
def test_a_sites_data_are_those_of_the_declaration(columns: list[str] | None, rows: Any) -> None:
    for names in (("u", "b"), (U, B)):
        ((place, south),) = held_of(declared(columns), {"south": dict(zip(names, (rows, ONES)))}).items()
        assert place == 1
        np.testing.assert_array_equal(south.samples[U], VALUES)


@pytest.mark.parametrize(
    ("columns", "loaded", "said"),
    [
        (None, {"nort": {"u": VALUES, "b": ONES}}, "did you mean 'north'"),
        (None, {"north": {"u": VALUES, "bb": ONES}}, "'bb' of client 'north'"),
        (None, {"north": {"u": VALUES}}, "lack b"),
        (None, [{"u": VALUES, "b": ONES}], "a site's data are"),
        (None, {"south": {"u": TABLE, "b": ONES}}, r"the declaration has none to compare.*hf\.Elsewhere\(rows, columns="),
        (COLUMNS, {"south": {"u": VALUES, "b": ONES}}, "client 'north' has columns with names .age, dose., and it has none"),
        (COLUMNS, {"south": {"u": TABLE.rename(columns={"dose": "mass"}), "b": ONES}}, "'u' of client 'south' in this site's data lacks dose and has mass"),
        (["age"], {}, "columns"),
        (["age", "age"], {}, "columns"),
    ],
)
def test_what_is_wrong_with_a_sites_data_is_named(columns: list[str] | None, loaded: Any, said: str) -> None:
    with pytest.raises(hf.DataError, match=said):
        held_of(declared(columns), loaded)


def test_clients_have_the_same_columns_and_tls_all_files() -> None:
    with pytest.raises(hf.DataError, match="client 'south' lacks dose"):
        hf.Federation([hf.Client({U: hf.Elsewhere(3, columns)}, name=name) for name, columns in zip(NAMES, (COLUMNS, ["age", "mass"]))])
    with pytest.raises(hf.SettingError, match="TLS needs all of"):
        TLSFiles(ca="ca.pem")

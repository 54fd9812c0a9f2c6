"""Reproductions are run a cell at a time: kept at once, gone on with, never mixed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import hierfl as hf
from examples.reproduce.__main__ import REPRODUCTIONS, main
from examples.reproduce.conducting import conduct, held_alone
from examples.reproduce.reproduction import Cell, DataSets, Measured, Plain, Reproduction, Table
from hierfl.models import ClassificationData

PRINTED = {1: 1.0, 2: 4.5, 3: 9.0}


def plan(full: bool, data: DataSets) -> list[Cell]:
    return [Cell(f"n = {n}", {"n": n, "sizes": (1, 2)}) for n in (1, 2, 3)[: 3 if full else 2]]


def squares(cell: Cell, data: DataSets) -> Plain:
    return {"square": np.float64(cell.settings["n"] ** 2), "curve": np.arange(2.0), "none": np.nan}


def tables(measured: Measured) -> Sequence[Table]:
    rows = [["n", "printed", "ours", "difference"]]
    for cell in measured.cells:
        printed = PRINTED[cell.settings["n"]]
        if cell.name not in measured.numbers:
            rows.append([str(cell.settings["n"]), f"{printed:g}", f"no {cell.data}", ""])
            continue
        ours = measured.numbers[cell.name]["square"]
        rows.append([str(cell.settings["n"]), f"{printed:g}", f"{ours:g}", f"{ours - printed:+g}"])
    return [("squares", rows)]


def draw(measured: Measured) -> Figure:
    figure = Figure()
    figure.subplots().plot([one["square"] for one in measured.of()])
    return figure


SQUARES = Reproduction(
    "squares",
    "squares of numbers",
    "[S] Table 1",
    "Squares.",
    plan,
    squares,
    tables,
    "two of three",
    draw=draw,
    differs=("2 squared is misprinted.",),
)


class Interrupted:
    """Runs cells until the given one, and notes which."""

    def __init__(self, until: str | None = None) -> None:
        self.ran: list[str] = []
        self._until = until

    def __call__(self, cell: Cell, data: DataSets) -> Plain:
        if cell.name == self._until:
            raise KeyboardInterrupt
        self.ran.append(cell.name)
        return squares(cell, data)


def test_an_interrupted_run_goes_on_where_it_ended(tmp_path: Path) -> None:
    first, second, third = Interrupted("n = 3"), Interrupted(), Interrupted()
    with pytest.raises(KeyboardInterrupt):
        conduct(replace(SQUARES, run=first), DataSets(), tmp_path, full=True, progress=False)
    kept = json.loads((tmp_path / "full.json").read_text())
    assert {name: cell["numbers"]["square"] for name, cell in kept["cells"].items()} == {"n = 1": 1.0, "n = 2": 4.0}
    measured, text = conduct(replace(SQUARES, run=second), DataSets(), tmp_path, full=True, progress=False)
    assert (first.ran, second.ran) == (["n = 1", "n = 2"], ["n = 3"])
    assert [one["square"] for one in measured.of()] == [1, 4, 9] and measured.each("n") == [1, 2, 3]
    (third_cell,) = measured.of(n=3)
    assert (third_cell["square"], third_cell["curve"]) == (9.0, [0.0, 1.0]) and np.isnan(third_cell["none"])
    assert "2      4.5     4        -0.5" in text and "2 squared is misprinted." in text
    assert sorted(p.name for p in tmp_path.iterdir()) == ["full.json", "full.md", "full.png"]
    assert "| 2 | 4.5 | 4 | -0.5 |" in (tmp_path / "full.md").read_text()
    conduct(replace(SQUARES, run=third), DataSets(), tmp_path, full=True, progress=False)
    assert third.ran == []


def test_cells_run_in_processes_of_their_own(tmp_path: Path) -> None:
    measured, _ = conduct(SQUARES, DataSets(), tmp_path, full=True, progress=False, processes=2)
    assert [one["square"] for one in measured.of()] == [1, 4, 9]
    again = Interrupted()
    conduct(replace(SQUARES, run=again), DataSets(), tmp_path, full=True, progress=False)
    assert again.ran == []


def test_a_killed_run_leaves_whole_files(tmp_path: Path) -> None:
    script = (
        "import os\nfrom dataclasses import replace\nfrom pathlib import Path\n"
        "from tests.examples.reproduce.test_conducting import SQUARES, squares, conduct, DataSets\n"
        "def killed(cell, data):\n    if cell.name == 'n = 2': os.kill(os.getpid(), 9)\n    return squares(cell, data)\n"
        f"conduct(replace(SQUARES, run=killed), DataSets(), Path({str(tmp_path)!r}))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=Path(__file__).parents[3], capture_output=True, text=True)
    assert done.returncode == -9 and "[1/2] n = 1: " in done.stderr
    again = Interrupted()
    conduct(replace(SQUARES, run=again), DataSets(), tmp_path, progress=False)
    assert again.ran == ["n = 2"]


def test_numbers_of_other_runs_are_not_mixed_in(tmp_path: Path) -> None:
    def go(**changed: object) -> None:
        conduct(replace(SQUARES, **changed), DataSets(), tmp_path, progress=False)

    go()
    with pytest.raises(hf.CheckpointError, match="name is 'squares' there, and 'cubes' here.*--anew"):
        go(name="cubes")
    with pytest.raises(hf.CheckpointError, match="'n = 2' was run with n = 2, not 5"):
        go(plan=lambda full, data: [Cell("n = 2", {"n": 5, "sizes": [1, 2]})])
    kept = tmp_path / "default.json"
    kept.write_text(kept.read_text().replace('"size": "default"', '"size": "full"'))
    with pytest.raises(hf.CheckpointError, match="size is 'full' there"):
        go()
    kept.write_text(kept.read_text()[:-20])
    with pytest.raises(hf.CheckpointError, match="cannot be read"):
        go()
    identity = {"hierfl reproduction": 1, "name": "squares", "size": "default", "version": hf.__version__}
    kept.write_text(json.dumps({**identity, "data": {}, "cells": {"n = 1": {}}}))
    with pytest.raises(hf.CheckpointError, match="its cell 'n = 1' is not whole"):
        go()
    for other in ("[1, 2]", '{"hierfl reproduction": 1}'):
        kept.write_text(other)
        with pytest.raises(hf.CheckpointError, match="none of a reproduction"):
            go()
    assert not list(tmp_path.glob("*.lock"))
    conduct(SQUARES, DataSets(), tmp_path, anew=True, progress=False)
    assert len(json.loads(kept.read_text())["cells"]) == 2


def test_folders_that_cannot_be_written_and_files_in_use(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(hf.CheckpointError, match=r"cannot be written \(.*--out"):
        conduct(SQUARES, DataSets(), tmp_path / "file" / "inside", progress=False)
    with held_alone(tmp_path / "default.json"), pytest.raises(hf.CheckpointError, match="another process"):
        conduct(SQUARES, DataSets(), tmp_path, progress=False)
    (tmp_path / "default.json").mkdir()
    with pytest.raises(hf.CheckpointError, match="cannot be written"):
        conduct(SQUARES, DataSets(), tmp_path, anew=True, progress=False)
    assert not (tmp_path / "default.json.part").exists()


def test_absent_data_leave_a_row_and_other_data_are_noticed(tmp_path: Path) -> None:
    held = [ClassificationData(np.eye(2, dtype=np.uint8) * k, np.arange(2)) for k in (1, 2)]
    cells = [Cell("n = 1", {"n": 1, "data": "here"}), Cell("n = 2", {"n": 2, "data": "gone"})]
    record = replace(SQUARES, plan=lambda full, data: cells)
    absent = {"gone": "no file gone.gz"}
    measured, text = conduct(record, DataSets({"here": held[0]}, absent), tmp_path, progress=False)
    assert list(measured.numbers) == ["n = 1"] and "no gone" in text and "gone: no file gone.gz" in text
    with pytest.raises(hf.CheckpointError, match="its data here were others"):
        conduct(record, DataSets({"here": held[1]}, absent), tmp_path, progress=False)
    conduct(record, DataSets({"here": held[0], "gone": held[1]}), tmp_path, progress=False)
    assert len(json.loads((tmp_path / "default.json").read_text())["cells"]) == 2


def test_every_name_leads_to_its_record() -> None:
    for name, one in REPRODUCTIONS.items():
        assert one.name == name
        for full in (False, True):
            cells = one.plan(full, DataSets({}, {name: "absent" for name in one.data}))
            assert len({cell.name for cell in cells}) == len(cells) > 0


def test_the_command_tells_what_is_the_users_to_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert main(["2s-table4", "--out", str(tmp_path / "file")]) == 2
    assert "cannot be written" in capsys.readouterr().err

    def interrupted(*given: object, **settings: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("examples.reproduce.__main__.conduct", interrupted)
    assert main(["2s-table4", "--out", str(tmp_path)]) == 130
    assert "the same command goes on" in capsys.readouterr().err


def test_files_that_are_there_and_cannot_be_read_are_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "mnist"
    home.mkdir()
    (home / "train-images-idx3-ubyte").write_bytes(b"\0\0\10\3")
    assert main(["hfl-few-samples", "--data", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "train-images-idx3-ubyte says no size" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_data_that_stand_in_are_told(tmp_path: Path) -> None:
    digits = ClassificationData(np.eye(2, dtype=np.uint8), np.arange(2))
    record = replace(SQUARES, plan=lambda full, data: [Cell("n = 1", {"n": 1, "data": "digits"})], data=("MNIST",))
    _, text = conduct(record, DataSets({"digits": digits}, {"MNIST": "not here"}), tmp_path, progress=False)
    assert "MNIST: not here" in text and "digits stand in" in text

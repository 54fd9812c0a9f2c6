"""A folder of checkpoints is whole whatever happens to it, and says by name why it cannot be used."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hierfl as hf
from hierfl.errors import CheckpointError, CheckpointWarning, SettingError
from hierfl.runtime.checkpoints import CheckpointFolder
from hierfl.solvers import FedAvg
from tests.runtime.resumed import require_same
from tests.solvers.test_baselines import least_squares


def solve(folder: Path | None, **settings: Any) -> hf.Result:
    kept = {} if folder is None else {"checkpoint": hf.Checkpoint(folder, every_rounds=10)}
    return least_squares().solve(FedAvg(0.05), **{"rounds": 40, "progress": False, **kept, **settings})


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.checkpoint"))


def write(folder: Path, *numbers: int) -> None:
    with CheckpointFolder(folder) as held:
        for number in numbers:
            held.write({"number": number}, {"a/b": np.arange(number)})


def read(folder: Path) -> Any:
    with CheckpointFolder(folder) as held:
        return held.read()


def test_the_two_latest_are_kept_and_the_last_is_read(tmp_path: Path) -> None:
    assert read(tmp_path) is None
    write(tmp_path / "a" / "b", 1, 2, 3, 4)
    assert [path.stem for path in files(tmp_path / "a" / "b")] == ["000003", "000004"]
    stored = read(tmp_path / "a" / "b")
    assert stored.note["number"] == 4
    np.testing.assert_array_equal(stored.arrays["a/b"], np.arange(4))


@pytest.mark.parametrize("at", [0, 10, 90, 300, -1])
def test_a_damaged_checkpoint_is_never_loaded(at: int, tmp_path: Path) -> None:
    """One byte of it is another, in the first line, the note or an array."""
    write(tmp_path, 20, 30)
    content = bytearray(files(tmp_path)[-1].read_bytes())
    content[at] ^= 1
    files(tmp_path)[-1].write_bytes(bytes(content))
    with pytest.warns(CheckpointWarning, match="000002.checkpoint: .*goes on from 000001.checkpoint"):
        assert read(tmp_path).note["number"] == 20


@pytest.mark.parametrize("length", [0, 5, 50, 85, 600])
def test_half_of_a_checkpoint_is_never_loaded(length: int, tmp_path: Path) -> None:
    write(tmp_path, 20, 30)
    os.truncate(files(tmp_path)[-1], length)
    with pytest.warns(CheckpointWarning), CheckpointFolder(tmp_path) as held:
        assert held.read().note["number"] == 20  # type: ignore[union-attr]
        held.write({"number": 40}, {})
    assert [path.stem for path in files(tmp_path)] == ["000001", "000003"]  # the good one stayed until there were two


def test_a_folder_of_which_nothing_can_be_read(tmp_path: Path) -> None:
    write(tmp_path, 1, 2)
    for path in files(tmp_path):
        os.truncate(path, 70)
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be read .*Delete the folder"):
        solve(tmp_path, resume=True)


def test_a_run_goes_on_from_the_checkpoint_before_a_damaged_one(tmp_path: Path) -> None:
    solve(tmp_path)
    os.truncate(files(tmp_path)[-1], 1000)
    with pytest.warns(CheckpointWarning) as warned:
        found = solve(tmp_path, resume=True)
    assert warned[0].filename == __file__
    require_same(found, solve(None))


def test_nothing_is_written_over(tmp_path: Path) -> None:
    solve(tmp_path)
    before = {path.name: path.read_bytes() for path in files(tmp_path)}
    with pytest.raises(CheckpointError, match="there is a checkpoint in .* already. Write resume=True"):
        solve(tmp_path)
    with pytest.raises(CheckpointError, match="is of another run. What differs: the seeds"):
        solve(tmp_path, seed=4, resume=True)
    assert {path.name: path.read_bytes() for path in files(tmp_path)} == before


def test_it_is_written_when_it_is_due(tmp_path: Path) -> None:
    """At the start, then every 20 rounds; of four seeds, which do not keep step, no more often than each alone would have it."""
    solve(tmp_path / "rounds", checkpoint=hf.Checkpoint(tmp_path / "rounds", every_rounds=20, every_seconds=None))
    solve(
        tmp_path / "seeds", checkpoint=hf.Checkpoint(tmp_path / "seeds", every_rounds=20, every_seconds=None), seeds=4
    )
    assert files(tmp_path / "rounds")[-1].stem == "000003"
    assert int(files(tmp_path / "seeds")[-1].stem) <= 1 + 4 * 2
    for seconds, number in ((0, "000005"), (1000, "000002")):
        folder = tmp_path / str(seconds)
        solve(folder, checkpoint=hf.Checkpoint(folder, every_seconds=seconds))
        assert files(folder)[-1].stem == number


def test_one_run_at_a_time(tmp_path: Path) -> None:
    with (
        CheckpointFolder(tmp_path),
        pytest.raises(CheckpointError, match="another run is keeping its checkpoints there"),
    ):
        solve(tmp_path)
    solve(tmp_path)  # the lock ends with the run that held it


def test_folders_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "run", Path("/proc/hierfl")):  # read-only to root as well
        with pytest.raises(CheckpointError, match=f"{folder}.*no checkpoint can be written there"):
            solve(folder)


@pytest.mark.parametrize(("call", "which"), [("replace", 3), ("fsync", 5)])  # of the third checkpoint, there and in its folder
def test_a_disk_that_is_full_in_the_middle_of_a_run(call: str, which: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run ends with the error, and goes on where there is room again."""
    real, calls = getattr(os, call), []

    def full(*given: Any) -> None:
        calls.append(given)
        if len(calls) == which:
            raise OSError(28, "No space left on device")
        real(*given)

    monkeypatch.setattr(os, call, full)
    with pytest.raises(CheckpointError, match=r"No space left on device\); 000002.checkpoint, .* is intact. Make room"):
        solve(tmp_path)
    assert len(calls) == which  # it is not tried again
    assert sorted(path.name for path in tmp_path.iterdir()) == ["000001.checkpoint", "000002.checkpoint", "hierfl.lock"]
    monkeypatch.undo()
    require_same(solve(tmp_path, resume=True), solve(None))


def test_settings_that_are_refused() -> None:
    for kept, told in (
        (3, "the name of a folder"),
        ("", "the name of a folder"),
    ):
        with pytest.raises(SettingError, match=told):
            least_squares().solve(checkpoint=kept)
    with pytest.raises(SettingError, match="name the folder to go on from"):
        least_squares().solve(resume=True)
    with pytest.raises(SettingError, match="resume='run/'"):
        least_squares().solve(checkpoint="run/", resume="run/")  # type: ignore[call-overload]
    for settings, told in (
        ({"every_seconds": -1}, "every_seconds=-1 of Checkpoint"),
        ({"every_rounds": 0}, "every_rounds=0 of Checkpoint"),
        ({"every_seconds": None}, "both None"),
        ({"every_second": 3}, "did you mean 'every_seconds'"),
    ):
        with pytest.raises(SettingError, match=told):
            hf.Checkpoint("run/", **settings)  # type: ignore[arg-type]


class Elsewhere:
    """A runtime that begins at the start alone."""

    def execute(self, problem: Any, algorithm: Any, x0: Any, rounds: int, seed: int, block: int, at_end: Any) -> Any:
        raise AssertionError


def test_a_runtime_that_cannot_resume_says_so_before_the_first_round(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="Elsewhere cannot resume a run"):
        solve(tmp_path, runtime=Elsewhere())

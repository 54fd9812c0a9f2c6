"""A resumed run is the run that was never stopped, bit for bit: of every solver, of several seeds, and however it ends or is ended."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.compiler.lower_level.methods.method import Verdict
from hierfl.compiler.lower_level.methods.parametric_program import ParametricProgram
from hierfl.descent.implicit_oracle import FAILURES, VALUE
from hierfl.errors import CheckpointError, CheckpointWarning, SettingError
from hierfl.jaxtools import interruption
from hierfl.runtime.checkpoints import CheckpointFolder
from hierfl.runtime.in_process import execution
from hierfl.solvers import SCAFFOLD, FedAvg, FedMSPP, FedProx, FedRZO, FedZO
from tests.runtime import killed_run
from tests.runtime.resumed import by_and_by, outcome, require_killed_further, require_same, stored_arrays, total
from tests.runtime.sites.test_same_path import CASES, DESCENT, EVERYBODY, SEED, START, Case, flat
from tests.small_declarations import quartic
from tests.solvers.test_baselines import least_squares

EACH = {  # a case of every solver, those with memories among them; all others in the slow test
    "ZOHFL, scalars", "FedRZO, control variates", "ImplicitGradient, a linear system", "FedAvg", "FedProx",
    "SCAFFOLD", "Scaffnew", "FedMSPP", "FedZO", "LocalSGDA",
}


ALL = CASES | {  # and those whose messages are the same as another's
    "FedProx": Case(flat, FedProx(**DESCENT)),
    "FedMSPP": Case(flat, FedMSPP(**DESCENT)),
    "FedZO": Case(flat, FedZO(**DESCENT, directions=2)),
}


@pytest.mark.parametrize("case", [case if case in EACH else pytest.param(case, marks=pytest.mark.slow) for case in ALL])
def test_every_solver_goes_on_bit_for_bit(case: str, tmp_path: Path) -> None:
    problem, solver = ALL[case].problem(EVERYBODY), ALL[case].solver
    settings = {"rounds": 10, "evaluate_every": 2, "x0": START, "seed": SEED}
    found, stopped = by_and_by(problem, solver, tmp_path, 2, **settings)
    assert stopped == 2 or (stopped and found.ended == "at rest")  # Newton's method ends before
    require_same(found, outcome(problem, solver, **settings))


def edge() -> hf.Problem:
    """Y(x) is empty beyond x = 2/3, which the method learns from points without an answer, and f has a kink at its least value."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    return hf.Problem(
        hf.Minimize(clients=cp.abs(x - 0.6) - 0.5 * x + 0 * y),
        hf.ArgMin(y, cp.square(y), [y >= x, y <= 1 - x / 2]),
        [x >= -5, x <= 5],
    )


@pytest.mark.parametrize("several", [{}, {"seeds": 2}])
def test_the_bundle_method_is_given_its_answers_again(several: dict[str, int], tmp_path: Path) -> None:
    settings = {"x0": -4.0, "evaluate_every": 2, "rounds": 60, **several}
    found, stopped = by_and_by(edge(), None, tmp_path, 3, **settings)
    wanted = outcome(edge(), None, **settings)
    assert stopped > 1 and isinstance(wanted, hf.Runs) == bool(several)
    for ours, theirs in zip(found, wanted) if several else [(found, wanted)]:
        assert "ImplicitBundle" in theirs.settings["solver"] and theirs.status == "at rest"
        assert theirs.x == pytest.approx(0.6, abs=1e-8)
        require_same(ours, theirs)
    kinds = [kind for array in stored_arrays(tmp_path, "0/memory/0") for kind in array]
    assert set(kinds) == {FAILURES.index(hf.EmptyLowerSetError), VALUE}  # answers of both kinds were given again


def test_iterations_on_the_lower_level_begin_again_where_they_would_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random, x, y = np.random.default_rng(3), cp.Variable(name="x"), cp.Variable(20, name="y")
    u, t = hf.Sample(20, name="u"), hf.Sample(name="t")
    data = {u: random.standard_normal((1_000, 20)), t: np.sign(random.standard_normal(1_000))}

    def declared() -> hf.Problem:
        loss = hf.E(cp.logistic(-t * (u @ y))) + 0.5 * cp.exp(x) * cp.sum_squares(y)
        top, federation = hf.Minimize(clients=cp.sum_squares(y - 0.1)), hf.Federation([hf.Client(data)])
        return hf.Problem(top, hf.ArgMin(y, loss), [cp.abs(x) <= 6], federation)

    problem = declared()
    monkeypatch.setattr(ParametricProgram, "verdict", classmethod(lambda cls, structure: Verdict(False, "is left out")))
    assert problem.compile().exact.method.iterative
    settings = {"x0": -2.0, "evaluate_every": 2, "rounds": 60}
    found, stopped = by_and_by(problem, None, tmp_path, 3, **settings)
    assert stopped > 1
    require_same(found, outcome(declared(), None, **settings))


ENDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "completed": (FedAvg(0.05, 2, batch_size=2), {"rounds": 25}),
    "stagnated": (FedAvg(0.05, 2, batch_size=2), {"rounds": None, "evaluate_every": 64}),
    "gradient tolerance reached": (FedAvg(0.05, 1, batch_size=None), {"rounds": 500, "tolerance": 0.1}),
    "communication limit reached": (FedAvg(0.05, 1, batch_size=2), {"rounds": 60, "communication_limit": 400}),
    "a step that trials find": (FedAvg("auto", 2, batch_size=2), {"rounds": 25}),
}


@pytest.mark.parametrize("end", ENDS)
def test_it_ends_where_it_would_have(end: str, tmp_path: Path) -> None:
    solver, settings = ENDS[end]
    found, stopped = by_and_by(least_squares(), solver, tmp_path, 3, **settings)
    wanted = outcome(least_squares(), solver, **settings)
    assert stopped and (end in (wanted.status, wanted.ended) or "auto" in wanted.settings)
    require_same(found, wanted)
    again, _ = by_and_by(least_squares(), solver, tmp_path, 3, **settings)
    require_same(again, wanted)  # and a run that has ended is not made again


def test_a_run_that_diverges_does_so_again(tmp_path: Path) -> None:
    settings = {"x0": [1.0, 2.0], "rounds": 40, "evaluate_every": 1}
    found, stopped = by_and_by(quartic(), FedRZO(step_size=3.0), tmp_path, 2, **settings)
    assert found.status == "diverged" and stopped
    require_same(found, outcome(quartic(), FedRZO(step_size=3.0), **settings))


@pytest.mark.parametrize("limit", [None, 300])
def test_seeds_that_stand_at_different_rounds_go_on_together(limit: float | None, tmp_path: Path) -> None:
    """Stopped in the middle of a block's end, where some seeds have reported and others have not."""
    settings = {"seeds": 4, "rounds": 37, "communication_limit": limit}
    found, stopped = by_and_by(least_squares(), SCAFFOLD(0.05, batch_size=2), tmp_path, 6, **settings)
    assert stopped
    for ours, theirs in zip(found, outcome(least_squares(), SCAFFOLD(0.05, batch_size=2), **settings), strict=True):
        assert theirs.ended == ("completed" if limit is None else "communication limit reached")
        require_same(ours, theirs)


def test_a_time_limit_ends_a_part_of_a_run(tmp_path: Path) -> None:
    def solve(**settings: Any) -> hf.Result:
        return least_squares().solve(FedAvg(0.05), metrics={"total": total}, rounds=40, progress=False, **settings)

    part = solve(checkpoint=tmp_path / "run", time_limit=1e-3)
    assert part.status == "time limit reached" and part.settings["rounds_done"] == 0
    assert "resume=True" in part.standing
    require_same(solve(checkpoint=tmp_path / "run", resume=True), solve())


def test_ctrl_c_ends_a_run_with_a_result_that_can_be_resumed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def solve(pressed_at: int | None, **settings: Any) -> Any:
        def callback(done: int, x: Any, y: Any) -> None:
            if done == pressed_at:
                signal.raise_signal(signal.SIGINT)

        return least_squares().solve(
            FedAvg(0.05), callback=callback, metrics={"total": total}, rounds=60, progress=False, **settings
        )

    part = solve(30, checkpoint=tmp_path / "run")
    assert part.status == "interrupted" and part.settings["rounds_done"] == 30
    assert "ending with what there is" in capfd.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    require_same(solve(None, checkpoint=tmp_path / "run", resume=True), solve(None))
    bare = solve(30)  # where nothing is kept, the result is the same
    np.testing.assert_array_equal(bare.x, part.x)
    assert bare.status == "interrupted" and "resume" not in bare.standing


@pytest.mark.parametrize("solver", [FedAvg(0.05, batch_size=2), SCAFFOLD(0.05, batch_size=2)])
@pytest.mark.parametrize("settings", [{}, {"tolerance": 1e-9}, {"seeds": 2}])
def test_a_run_that_ends_within_a_block_goes_on_within_it(
    solver: Any, settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metrics and tolerances are those of whole blocks, wherever a run was stopped, and however often."""
    asked = {"metrics": {"total": total}, "rounds": 40, "evaluate_every": 20, "progress": False, **settings}
    if isinstance(solver, SCAFFOLD):
        asked.pop("tolerance", None)  # its moves are no gradient steps
    monkeypatch.setattr(execution, "core_count", lambda: 1)  # all runs are side by side
    wanted = least_squares().solve(solver, **asked)
    monkeypatch.setattr(execution, "GROWTH", 1)  # a piece is a round
    rounds: list[int] = []
    left = [0]

    def heed() -> None:
        left[0] -= 1
        if left[0] < 0:
            for wish in interruption.present_wishes():
                wish.asked = 0.0
            raise interruption.CutShort

    monkeypatch.setattr(execution, "heed", heed)
    while not rounds or rounds[-1] < 40:
        left[0] = 7
        found = least_squares().solve(solver, checkpoint=tmp_path, resume=True, **asked)
        ended = found[0] if "seeds" in settings else found
        rounds.append(ended.settings["rounds_done"])
    assert rounds == [7, 14, 21, 28, 35, 40]
    for ours, theirs in zip(found, wanted) if "seeds" in settings else [(found, wanted)]:
        require_same(ours, theirs)


def test_ctrl_c_twice_ends_a_run_at_once(tmp_path: Path) -> None:
    def twice(done: int, x: Any, y: Any) -> None:
        for _ in range(2 * (done == 30)):
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        least_squares().solve(FedAvg(0.05), callback=twice, rounds=60, progress=False, checkpoint=tmp_path)
    found = least_squares().solve(FedAvg(0.05), rounds=60, progress=False, checkpoint=tmp_path, resume=True)
    np.testing.assert_array_equal(found.x, least_squares().solve(FedAvg(0.05), rounds=60, progress=False).x)


@pytest.mark.optimised  # as the other process is
def test_a_run_that_is_killed_comes_to_the_same_end(tmp_path: Path) -> None:
    require_killed_further(killed_run.__name__, tmp_path, str(tmp_path), "1", "FedAvg")
    require_same(killed_run.solve(tmp_path, "FedAvg"), killed_run.solve(None, "FedAvg"))


# --- A folder of checkpoints is whole whatever happens to it, and says by name why it cannot be used.


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
    for kept, told in ((3, "the name of a folder"), ("", "the name of a folder")):
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

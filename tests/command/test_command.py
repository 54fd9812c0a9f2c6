"""The ``hierfl`` command: what it prints and writes, and what it says of wrong input."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import hierfl as hf
from hierfl import models
from hierfl.command.loading import load_solver
from hierfl.command.main import main
from hierfl.models import nonsmooth_toy
from hierfl.solvers import Decay, FedRZO, LocalSGD

TOY = """
import cvxpy as cp
import hierfl as hf

def declared():
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    return hf.Problem(hf.Minimize(clients=0.5 * cp.sum_squares(x + 1 - y)),
                      lower=hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0]))

problem = declared()
number = 3
def needy(size): ...
"""


@pytest.fixture
def toy(tmp_path: Path) -> str:
    (tmp_path / "toy_game.py").write_text(TOY)
    return f"{tmp_path / 'toy_game.py'}:problem"


@pytest.mark.slow
def test_a_slice_is_printed_and_drawn(toy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figure, surface = tmp_path / "slice.png", tmp_path / "surface.png"
    window = ["--center", "[0, 0.5]", "--direction", "[1, 0]", "--radius", "2", "--points", "41"]
    assert main(["inspect", toy, *window, "--slice", str(figure), "--surface", str(surface), "--quiet"]) == 0
    printed = capsys.readouterr().out
    assert "t = 0: slope 1 to 0, bends down;" in printed
    assert figure.read_bytes()[:4] == b"\x89PNG" == surface.read_bytes()[:4]


@pytest.mark.slow
def test_solve_saves_what_was_asked_for(toy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved, figure = tmp_path / "run.npz", tmp_path / "run.png"
    settings = ["--solver", "FedRZO(smoothing=0.05, step_size=Decay(0.5, 0.5))", "--rounds", "20", "--x0", "[1, -0.5]"]
    assert main(["solve", toy, *settings, "--save", str(saved), "--plot", str(figure), "--quiet"]) == 0
    printed = capsys.readouterr().out
    expected = nonsmooth_toy(2).solve(
        FedRZO(smoothing=0.05, step_size=Decay(0.5, 0.5)), rounds=20, x0=np.array([1, -0.5]), progress=False
    )
    assert f"f(x) = {expected.value:.8g}" in printed and figure.stat().st_size > 1000
    np.testing.assert_allclose(hf.Result.load(saved).x, expected.x, atol=1e-12)
    assert main(["inspect", toy, "--result", str(saved), "--points", "41", "--quiet"]) == 0
    assert "leading principal direction" in capsys.readouterr().out


@pytest.mark.slow
def test_several_runs_and_a_report(toy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = tmp_path / "run.html"
    arguments = ["--solver", "FedRZO", "--rounds", "5", "--seeds", "3", "--report", str(report), "--quiet"]
    assert main(["solve", toy, *arguments]) == 0
    assert "3 seeds" in capsys.readouterr().out and "<html" in report.read_text()[:200]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["show"], "minimize"),
        (["show", "--latex"], r"\underset{x"),
        (["check"], "it means"),
        (["check", "--details"], "proved "),
        (["explain"], "lower level"),
    ],
)
def test_what_is_printed(toy: str, command: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command[0], toy, *command[1:]]) == 0
    assert expected in capsys.readouterr().out


def test_modules_and_functions(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "hierfl.models:coupled_minimax"]) == 0
    assert "x" in capsys.readouterr().out


def test_a_solver_is_read_as_python_and_nothing_is_run() -> None:
    found = load_solver("FedRZO(0.05, step_size=Decay(c=-0.1), lower=LocalSGD(rounds=3), batch_size=None)")
    assert found == FedRZO(0.05, step_size=Decay(-0.1), lower=LocalSGD(rounds=3), batch_size=None)
    assert load_solver("FedRZO") == FedRZO()
    for text, said in (
        ("__import__('os').system('true')", "not a solver|numbers, words"),
        ("FedRZO(smoothing=__import__('os'))", "there are"),
        ("FedSGD()", "did you mean .FedAvg.*There are .*FedRZO"),
        ("FedRZO(smooth=1)", "did you mean .smoothing"),
        ("FedRZO(smoothing=1 +)", "Write it as in Python"),
        ("FedRZO(**{'smoothing': 1})", "by its name"),
        ("Decay(1.0)", "not a solver"),
        ("3", "not a solver"),
    ):
        with pytest.raises(hf.SettingError, match=said):
            load_solver(text)


@pytest.mark.parametrize(
    ("place", "said"),
    [
        (":problem", "module:name"),
        ("{file}:missing", "its problems are problem"),
        ("{file}:number", "is int, not"),
        ("{file}:needy", "needs size"),
        ("nowhere.py:problem", "no file nowhere.py"),
        ("no_such_module:problem", "no module no_such_module"),
    ],
)
def test_wrong_places_are_named(place: str, said: str, toy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", place.format(file=toy.split(":")[0])]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--center", "[0, 0"], "no JSON"),
        (["--center", "[0, 0, 0]"], "center"),
        (["--radius", "-1"], "radius"),
        (["--slice", "/no/such/folder/slice.png"], "there is no folder"),
        (["--center", "[0, 0]", "--result", "run.npz"], "give one of the two"),
        (["--points", "0"], "points=0"),
        (["--slice", "slice.xyz"], "end the name in one of"),
        (["--surface", "surface"], "end the name in one of"),
    ],
)
def test_wrong_arguments_are_named(
    arguments: list[str], said: str, toy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["inspect", toy, *arguments, "--quiet"]) == 2
    assert said in capsys.readouterr().err


def test_help_and_the_installed_command() -> None:
    command = Path(sys.executable).parent / "hierfl"
    found = subprocess.run([command, "--help"], capture_output=True, text=True, check=True).stdout
    for word in ("show", "check", "explain", "inspect", "solve", "hierfl solve game.py:problem"):
        assert word in found
    refused = subprocess.run([command, "solve"], capture_output=True, text=True)
    assert refused.returncode == 2 and "problem" in refused.stderr


SHIPPED = (
    "coupled_minimax, nonsmooth_toy, stackelberg_cournot, stackelberg_cournot_game; with arguments fair_classification, "
    "heterogeneous_classification, hyperparameter_learning, relu_network."
)


def test_misspelt_models_modules_and_solvers_are_answered_with_the_nearest(
    toy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for place, said in {
        "hierfl.models:nope": f"its problems are {SHIPPED}",
        "hierfl.models:nonsmoth_toy": "relu_network. Did you mean 'nonsmooth_toy'?",
        "hierfl.model:nonsmooth_toy": "Did you mean 'hierfl.models'?",
    }.items():
        assert main(["show", place]) == 2
        assert said in capsys.readouterr().err
    for solver, said in {"FedRzo": "did you mean 'FedRZO'", "FedRZO(smooth=1)": "did you mean 'smoothing'"}.items():
        assert main(["solve", toy, "--solver", solver]) == 2
        assert said in capsys.readouterr().err


def test_a_file_with_one_problem_needs_no_name(toy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = toy.removesuffix(":problem")
    assert main(["show", file]) == 0
    shown = capsys.readouterr().out
    assert main(["show", toy]) == 0 and capsys.readouterr().out == shown
    several, none, made = (tmp_path / f"{name}_games.py" for name in ("several", "no", "made"))
    several.write_text(TOY + "other = declared()\n")
    none.write_text("number = 3\n")
    made.write_text(TOY.replace("declared():", "declared() -> hf.Problem:").replace("problem = declared()", ""))
    assert main(["show", str(made)]) == 0 and capsys.readouterr().out == shown
    for path, said in [(several, f"write {several}:other or {several}:problem"), (none, "holds no hierfl.Problem")]:
        assert main(["show", str(path)]) == 2
        assert said in capsys.readouterr().err
    assert main(["show", "hierfl.models"]) == 2
    assert "hierfl.models:nonsmooth_toy or" in capsys.readouterr().err


def test_models_lists_every_ready_declaration(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["models"]) == 0
    printed = capsys.readouterr().out
    for name in set(models.__all__) - {"ClassificationData", "RoadNetwork"}:
        assert f"hierfl.models:{name}" in printed
    assert "hierfl.models:fair_classification (needs data)" in printed and "ClassificationData" not in printed


@pytest.mark.slow
def test_a_saved_result_gets_its_report(toy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, saved = toy.removesuffix(":problem"), tmp_path / "run.npz"
    assert main(["solve", file, "--rounds", "5", "--save", str(saved), "--quiet"]) == 0
    assert main(["report", str(saved), file, "--no-check", "--quiet"]) == 0
    assert f"wrote {tmp_path / 'run.html'}" in capsys.readouterr().out
    assert "<html" in (tmp_path / "run.html").read_text()
    assert main(["report", str(saved), "hierfl.models:coupled_minimax", "--quiet"]) == 2
    assert main(["report", str(tmp_path / "nothing.npz"), file, "--quiet"]) == 2
    assert "nothing.npz" in capsys.readouterr().err


def test_a_misspelt_command_is_answered_with_the_nearest_and_none_with_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["modles"]) == 2
    assert "no command 'modles': did you mean 'models'?" in capsys.readouterr().err
    assert main([]) == 2
    assert "list the ready declarations" in capsys.readouterr().err


def test_a_reproduction_is_answered_with_what_to_write_instead(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "2s-table4", "--out", "my tables"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "write python -m examples.reproduce 2s-table4 --out 'my tables' in a clone" in line

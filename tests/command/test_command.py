"""The ``hierfl`` command: what it prints and writes, and what it says of wrong input."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import hierfl as hf
from hierfl import models
from hierfl.command import demo
from hierfl.command.demo import DemoOutcome, headline, table
from hierfl.command.loading import load_solver
from hierfl.command.main import main
from hierfl.models import ClassificationData, nonsmooth_toy
from hierfl.solvers import Decay, FedRZO, LocalSGD
from tests.runtime.study import study_text

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


def test_a_solver_is_read_as_python_and_nothing_is_run() -> None:
    found = load_solver("FedRZO(0.05, step_size=Decay(c=0.1, p=-0.5), lower=LocalSGD(rounds=3), batch_size=None)")
    assert found == FedRZO(0.05, step_size=Decay(0.1, -0.5), lower=LocalSGD(rounds=3), batch_size=None)
    assert load_solver("FedRZO") == FedRZO()
    for text, said in (
        ("__import__('os').system('true')", "not a solver|numbers, words"),
        ("FedRZO(smoothing=__import__('os'))", "there are"),
        ("FedSGD()", "did you mean .FedAvg.*There are .*FedRZO"),
        ("FedRZO(smooth=1)", "did you mean .smoothing"),
        ("FedRZO(smoothing=1 +)", "Write it as in Python"),
        ("FedRZO(**{'smoothing': 1})", "by its name"),
        ("FedRZO(smoothing=0.1, smoothing=0.2)", "and once"),
        ("Decay(1.0)", "not a solver"),
        ("3", "not a solver"),
    ):
        with pytest.raises(hf.SettingError, match=said):
            load_solver(text)


TOY_GAME = "{file}:problem"
LOOK, SERVE = ["inspect", TOY_GAME, "--quiet"], ["site", "--problem", "study.py", "--data", "rows.py:load"]
WRONG = [
    (["show", ":problem"], "module:name"),
    (["show", "{file}:missing"], "its problems are problem"),
    (["show", "{file}:number"], "is int, not"),
    (["show", "{file}:needy"], "needs size"),
    (["show", "nowhere.py:problem"], "no file nowhere.py"),
    (["show", "no_such_module:problem"], "no module no_such_module"),
    (["show", "hierfl.models:nope"], "its problems are coupled_minimax, nonsmooth_toy"),
    (["show", "hierfl.models:nonsmoth_toy"], "relu_network. Did you mean 'nonsmooth_toy'?"),
    (["show", "hierfl.model:nonsmooth_toy"], "Did you mean 'hierfl.models'?"),
    (["solve", TOY_GAME, "--solver", "FedRzo"], "did you mean 'FedRZO'"),
    ([*LOOK, "--center", "[0, 0"], "no JSON"),
    ([*LOOK, "--center", "[0, 0, 0]"], "center"),
    ([*LOOK, "--radius", "-1"], "radius"),
    ([*LOOK, "--slice", "/no/such/folder/slice.png"], "there is no folder"),
    ([*LOOK, "--center", "[0, 0]", "--result", "run.npz"], "give one of the two"),
    ([*LOOK, "--points", "0"], "points=0"),
    ([*LOOK, "--slice", "slice.xyz"], "end the name in one of"),
    ([*LOOK, "--surface", "surface"], "end the name in one of"),
    ([*SERVE, "--socket", "s", "--host", "h"], "--host says nothing with --socket, on Flower"),
    ([*SERVE, "--socket", "s", "--tls-ca", "ca.pem"], "--tls-ca says nothing with --socket"),
    ([*SERVE, "--scheduler", "tcp://s:1", "--parent-pid", "1"], "--parent-pid says nothing with --scheduler, on Dask"),
    (["demo", "--out", "demo", "--seeds", "0"], "--seeds 0"),
    (["docs", "DatError"], "did you mean 'DataError'?"),
    (["modles"], "no command 'modles': did you mean 'models'?"),
    ([], "list the ready declarations"),
    (["reproduce", "2s-table4", "--out", "my tables"], "write python -m examples.reproduce 2s-table4 --out 'my tables' in a clone"),
]


@pytest.mark.parametrize(("command", "said"), WRONG, ids=[" ".join(command) for command, _ in WRONG])
def test_what_is_wrong_is_answered_with_what_to_write(command: list[str], said: str, toy: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([word.format(file=toy.split(":")[0]) for word in command]) == 2
    assert said in capsys.readouterr().err


def test_help_and_the_installed_command() -> None:
    command = Path(sys.executable).parent / "hierfl"
    found = subprocess.run([command, "--help"], capture_output=True, text=True, check=True).stdout
    for word in ("show", "check", "explain", "inspect", "solve", "hierfl solve game.py:problem"):
        assert word in found
    refused = subprocess.run([command, "solve"], capture_output=True, text=True)
    assert refused.returncode == 2 and "problem" in refused.stderr


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


@pytest.mark.optimised
def test_the_demo_shows_mathematics_outcome_and_files_on_one_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    whole = demo._digits()
    monkeypatch.setattr(demo, "_digits", lambda: ClassificationData(whole.features[:600], whole.labels[:600]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["demo", "--out", str(tmp_path / "new"), "--seeds", "1", "--rounds", "20", "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 60 and max(map(len, lines)) <= 120
    assert [line for line in lines if line.isupper()] == ["WHAT IS DECLARED", "WHAT IT GIVES", "WHERE TO LOOK"]
    (told,) = (line for line in lines if line.startswith("Private clients close "))
    assert 10 < float(told.split()[3]) <= 130
    picture, report = tmp_path / "new" / "first_minute.png", tmp_path / "new" / "first_minute.html"
    assert picture.stat().st_size > 10_000 and "log_sum_exp" in report.read_text(encoding="utf-8")
    assert opened == [report.resolve().as_uri()]


@pytest.mark.optimised
def test_the_headline_is_the_mean_share_with_students_interval() -> None:
    result = SimpleNamespace(settings={"rounds_done": 7})
    outcomes = [DemoOutcome(80.0, clients, 90.0, result) for clients in (88.0, 90.0)]  # type: ignore[arg-type]
    half = 12.7062047 * np.std([80.0, 100.0], ddof=1) / np.sqrt(2)
    assert f"close 90 ± {half:.0f} % of the gap" in headline(outcomes) and "2 seeds, 95% interval" in headline(outcomes)
    assert "89.0 ± 12.7" in table(outcomes) and "7 rounds" in table(outcomes)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert main(["docs", *arguments]) == 0
    return capsys.readouterr().out


def test_what_an_error_names_prints_its_entry(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(hf.DataError) as caught:
        hf.Client({hf.Sample(2, name="a"): [[1.0, 2.0, 3.0]]})
    command = caught.value.__notes__[-1].partition("hierfl docs ")[2]
    text = printed(capsys, command)
    assert text.startswith("DataError\n\nThe data of a party, or an x, do not fit")
    assert "    hf.Client({a: np.zeros((10, 3))})" in text and "```" not in text and "told()" not in text
    assert printed(capsys, "dataerror") == text


def test_without_a_topic_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    listed = printed(capsys).splitlines()
    assert {"DataError", "LowerLevelError", "TheoryWarning"} <= set(listed)


def test_an_app_is_written_with_the_declaration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "study.py").write_text(study_text(north=6, south=4))
    assert main(["flower", "new", f"{tmp_path / 'study.py'}:declared", str(tmp_path / "app")]) == 0
    assert "wrote" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "app").iterdir()} == {
        "client_app.py", "pyproject.toml", "server_app.py", "letter_bytes.py", "site_frames.py", "study.py",
    }
    assert "import hierfl" not in (app := (tmp_path / "app" / "client_app.py").read_text())  # it is slow to load
    assert "from site_frames import" in app and "from hierfl" not in app
    compile((tmp_path / "app" / "server_app.py").read_text(), "server_app.py", "exec")
    assert main(["flower", "new", f"{tmp_path / 'study.py'}:declared", str(tmp_path / "app")]) == 2
    assert "is there already" in capsys.readouterr().err
    assert main(["flower", "new", "hierfl.models:nonsmooth_toy", str(tmp_path / "toy")]) == 2
    assert "has no federation" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["it's.py", 'a "study".py', "back\\slash.py"])
def test_an_app_of_a_file_of_any_name_is_one(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / name).write_text(study_text(north=6, south=4))
    assert main(["flower", "new", f"{tmp_path / name}:declared", str(tmp_path / "an app")]) == 0
    assert f"flwr run '{tmp_path / 'an app'}' " in capsys.readouterr().out
    compile((tmp_path / "an app" / "server_app.py").read_text(), "server_app.py", "exec")
    assert name in tomllib.loads((tmp_path / "an app" / "pyproject.toml").read_text())["project"]["description"]


@pytest.mark.parametrize("name", ["client_app.py", "server_app.py"])
def test_a_declaration_named_as_a_part_of_the_app_is_kept_beside_it(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(study_text(north=6, south=4))
    assert main(["flower", "new", f"{tmp_path / name}:declared", str(tmp_path / "app")]) == 0
    assert (tmp_path / "app" / f"declared_{name}").read_text() == study_text(north=6, south=4)
    assert "app = " in (tmp_path / "app" / "client_app.py").read_text() and f"declared_{name}" in (tmp_path / "app" / "server_app.py").read_text()

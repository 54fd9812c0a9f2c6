"""``hierfl flower new``: what it writes, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from hierfl.command.main import main

STUDY = """
import cvxpy as cp
import hierfl as hf

def declared() -> hf.Problem:
    x, u = cp.Variable(2, name="x"), hf.Sample(2, name="u")
    clients = [hf.Client({u: hf.Elsewhere(n)}, name=name) for name, n in {"north": 6, "south": 4}.items()]
    return hf.Problem(hf.Minimize(clients=hf.E(cp.square(u @ x - 1))), federation=hf.Federation(clients))
"""


def test_an_app_is_written_with_the_declaration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "study.py").write_text(STUDY)
    assert main(["flower", "new", f"{tmp_path / 'study.py'}:declared", str(tmp_path / "app")]) == 0
    assert "wrote" in capsys.readouterr().out
    assert {path.name for path in (tmp_path / "app").iterdir()} == {
        "client_app.py",
        "pyproject.toml",
        "server_app.py",
        "letter_bytes.py",
        "site_frames.py",
        "study.py",
    }
    assert "import hierfl" not in (app := (tmp_path / "app" / "client_app.py").read_text())  # it is slow to load
    assert "from site_frames import" in app and "from hierfl" not in app
    compile((tmp_path / "app" / "server_app.py").read_text(), "server_app.py", "exec")
    assert main(["flower", "new", f"{tmp_path / 'study.py'}:declared", str(tmp_path / "app")]) == 2
    assert "is there already" in capsys.readouterr().err
    assert main(["flower", "new", "hierfl.models:nonsmooth_toy", str(tmp_path / "toy")]) == 2
    assert "has no federation" in capsys.readouterr().err


def test_options_of_the_other_engine_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    place = ["site", "--problem", "study.py", "--data", "rows.py:load"]
    for given, said in (
        (["--socket", "s", "--host", "h"], "--host says nothing with --socket, on Flower"),
        (["--socket", "s", "--tls-ca", "ca.pem"], "--tls-ca says nothing with --socket"),
        (["--scheduler", "tcp://s:1", "--parent-pid", "1"], "--parent-pid says nothing with --scheduler, on Dask"),
    ):
        assert main([*place, *given]) == 2
        assert said in capsys.readouterr().err

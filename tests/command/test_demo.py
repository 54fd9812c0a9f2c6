"""The first minute, small: three parts on one screen, a headline from the run, a figure and a report, no warning."""

from __future__ import annotations

import warnings
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hierfl.command.demo import DemoOutcome, headline, table
from hierfl.command.main import main

pytestmark = pytest.mark.optimised


def test_the_demo_shows_mathematics_outcome_and_files_on_one_screen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert main(["demo", "--out", str(tmp_path / "new"), "--seeds", "1", "--rounds", "60", "--quiet"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) <= 60 and max(map(len, lines)) <= 120
    assert [line for line in lines if line.isupper()] == ["WHAT IS DECLARED", "WHAT IT GIVES", "WHERE TO LOOK"]
    (told,) = (line for line in lines if line.startswith("Private clients close "))
    assert 40 < float(told.split()[3]) <= 130
    picture, report = tmp_path / "new" / "first_minute.png", tmp_path / "new" / "first_minute.html"
    assert picture.stat().st_size > 10_000 and "log_sum_exp" in report.read_text(encoding="utf-8")
    assert opened == [report.resolve().as_uri()]


def test_the_headline_is_the_mean_share_with_students_interval() -> None:
    result = SimpleNamespace(settings={"rounds_done": 7})
    outcomes = [DemoOutcome(80.0, clients, 90.0, result) for clients in (88.0, 90.0)]  # type: ignore[arg-type]
    half = 12.7062047 * np.std([80.0, 100.0], ddof=1) / np.sqrt(2)
    assert f"close 90 ± {half:.0f} % of the gap" in headline(outcomes) and "2 seeds, 95% interval" in headline(outcomes)
    assert "89.0 ± 12.7" in table(outcomes) and "7 rounds" in table(outcomes)


def test_no_seeds_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--out", str(tmp_path), "--seeds", "0"]) == 2
    assert "--seeds 0" in capsys.readouterr().err

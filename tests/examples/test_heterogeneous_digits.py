"""The main job, small: it prints its table and saves its figures; MNIST's files are read."""

from __future__ import annotations

import sys
from pathlib import Path

import matplotlib as mpl
import pytest

import hierfl as hf

mpl.use("Agg")
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import few_server_samples
import heterogeneous_digits


def test_main_job_prints_a_table_and_saves_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HIERFL_DATA", raising=False)
    with pytest.warns(hf.LowerLevelWarning):
        (outcome,) = heterogeneous_digits.main(
            [
                "--rounds",
                "20",
                "--settings",
                "1",
                "--tau",
                "2",
                "--pretrain-rounds",
                "100",
                "--pooled-rounds",
                "200",
                "--few-seeds",
                "1",
                "--few-rounds",
                "40",
                "--figures",
                str(tmp_path),
            ]
        )
    printed = capsys.readouterr().out
    for part in (
        "minimize over x in R^(10 x 64)",
        "lowered to",
        "Test accuracy (%) on digits",
        "server only",
        "error of y at most",
        "60 samples at the server",
        "ImplicitGradient, Moreau envelope",
    ):
        assert part in printed
    assert {p.name for p in tmp_path.iterdir()} == {
        f"heterogeneous_{n}.png" for n in ("clients", "convergence", "accuracy")
    }
    for score in (outcome.start, outcome.server_only, outcome.zohfl, outcome.personal, outcome.pooled):
        assert 80 < score <= 100


def test_clients_close_the_gap_of_a_server_with_few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HIERFL_DATA", raising=False)
    with pytest.warns(hf.LowerLevelWarning):
        (scores,) = few_server_samples.main(["--seeds", "1", "--tau", "1"])
    assert scores.closed > 60 and scores.envelope > scores.server_only + 3

"""The main job, small: it prints its table and saves its figures; MNIST's files are read."""

from __future__ import annotations

import gzip
import struct
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest

import hierfl as hf

mpl.use("Agg")
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))

import datasets
import few_server_samples
import heterogeneous_digits


def write_idx(path: Path, array: np.ndarray) -> None:
    header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    path.write_bytes(gzip.compress(header + array.astype(np.uint8).tobytes()))


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


def test_mnist_files_are_pooled_and_kept_as_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    images = {"train": rng.integers(0, 256, (6, 4, 4)), "t10k": rng.integers(0, 256, (3, 4, 4))}
    for kind, pixels in images.items():
        rows = len(pixels)
        write_idx(tmp_path / f"{kind}-images-idx3-ubyte.gz", pixels)
        write_idx(tmp_path / f"{kind}-labels-idx1-ubyte.gz", rng.integers(0, 10, rows))
    monkeypatch.setenv("HIERFL_DATA", str(tmp_path))
    name, data = datasets.load()
    assert name == "MNIST" and data.features.shape == (9, 16) and data.labels.shape == (9,)
    assert data.features.dtype == np.uint8
    np.testing.assert_array_equal(
        data.scaled(data.features), np.concatenate([pixels.reshape(-1, 16) for pixels in images.values()]) / 255
    )
    with pytest.raises(hf.DataError, match="no file"):
        datasets.load(str(tmp_path / "elsewhere"))

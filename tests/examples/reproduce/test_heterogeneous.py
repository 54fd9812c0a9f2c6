"""[HFL] Table I, small, on the bundled digits: what its rows must show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from examples.reproduce.__main__ import find_data
from examples.reproduce.conducting import conduct
from examples.reproduce.heterogeneous import accuracy, mean_loss
from examples.reproduce.heterogeneous_records import ALONE, ENVELOPE, FEW_SAMPLES, FIGURE, POOLED, PRINTED, SETS
from examples.reproduce.heterogeneous_records import TABLE as REPRODUCTION
from examples.reproduce.reproduction import Cell, DataSets
from hierfl.models import ClassificationData
from hierfl.models.image_data import load_images

pytestmark = pytest.mark.optimised


def test_accuracy_and_loss_are_those_of_scikit_learn() -> None:
    data = load_images("digits")
    fitted = LogisticRegression(fit_intercept=False, max_iter=50).fit(data.features[:500] / 16, data.labels[:500])
    rest = ClassificationData(data.features[500:], data.labels[500:], scale=16)
    assert accuracy(fitted.coef_, rest) == pytest.approx(100 * fitted.score(rest.features / 16, rest.labels))
    expected = log_loss(rest.labels, fitted.predict_proba(rest.features / 16))
    assert mean_loss(fitted.coef_, rest) == pytest.approx(expected, rel=1e-9)


def test_printed_figures_are_the_papers() -> None:
    assert (PRINTED["FedAvg"]["MNIST"][2], PRINTED["SCAFFOLD"]["CIFAR-10"][0]) == (39.19, 72.36)
    best = {data: [max(PRINTED, key=lambda m: PRINTED[m][data][place]) for place in (1, 2)] for data in SETS}
    assert sum(names.count("ZO-HFL") for names in best.values()) == 5  # "in 5 out of 6 heterogeneous environments"


@pytest.mark.slow
def test_every_method_has_its_row_and_absent_data_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIERFL_DATA", str(tmp_path / "nowhere"))
    data = find_data(REPRODUCTION, None, False)
    assert list(data.found) == ["digits"] and list(data.absent) == list(SETS)

    def plan(full: bool, data: DataSets) -> list[Cell]:
        small = {"rounds": 10, "tau": 5, "pretraining": 300}
        return [replace(cell, settings={**cell.settings, **small}) for cell in REPRODUCTION.plan(full, data)]

    measured, text = conduct(replace(REPRODUCTION, plan=plan), data, tmp_path, progress=False)
    scores = {cell.settings["method"]: measured.numbers.get(cell.name) for cell in measured.cells[:8]}
    ours = {method: one["accuracy"] for method, one in scores.items() if one is not None}
    assert len(ours) == 8 and min(ours["FedAvg"], ours["FedProx"], ours["SCAFFOLD"]) > 40  # chance is 10
    assert ours["ZO-HFL, lambda = 0.01"] == pytest.approx(ours["server only"], abs=3)
    assert ours["ZO-HFL, lambda = 1, shared samples"] == pytest.approx(ours["server only"], abs=3)
    assert ours["pooled data"] > ours["server only"] - 1 and len(scores["FedAvg"]["by_round"]["accuracy"]) > 5
    assert text.count("no data") == 3 * 5 and "Fashion-MNIST is not in" in text and "77.33" in text


@pytest.mark.slow
def test_clients_close_the_gap_of_a_server_with_few_samples_as_an_envelope(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIERFL_DATA", str(tmp_path / "nowhere"))
    data = find_data(FEW_SAMPLES, None, False)
    cells = [c for c in FEW_SAMPLES.plan(False, data) if c.settings["seed"] == 0]
    for cell in cells:  # one seed; the methods that need many steps of clients, fewer rounds
        assert cell.settings["server"] * round(1797 * 0.9) == pytest.approx(60)
    slow = {"rounds": 3, "tau": 1}
    small = [
        c if c.settings["method"] in (ALONE, ENVELOPE, POOLED) else replace(c, settings={**c.settings, **slow})
        for c in cells
    ]
    record = replace(FEW_SAMPLES, plan=lambda full, data: small)
    measured, text = conduct(record, data, tmp_path, progress=False)
    alone, envelope, pooled = (measured.of(method=method)[0]["accuracy"] for method in (ALONE, ENVELOPE, POOLED))
    assert envelope > alone + 3 and (envelope - alone) / (pooled - alone) > 0.6
    assert "60 samples at the server" in text and (tmp_path / "default.png").stat().st_size > 10_000


@pytest.mark.slow
def test_the_global_loss_falls_faster_with_more_local_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIERFL_DATA", str(tmp_path / "nowhere"))
    data = find_data(FIGURE, None, False)
    measured, text = conduct(FIGURE, data, tmp_path, progress=False)
    curves = {tau: measured.of(data="digits", tau=tau)[0]["by_round"]["loss"] for tau in (5, 50)}
    assert curves[5][0] == curves[50][0] == pytest.approx(np.log(10))  # x = 0: all classes are alike
    assert curves[50][-1] < curves[5][-1] < np.log(10)
    assert "Figure 2" in text and (tmp_path / "default.png").stat().st_size > 10_000

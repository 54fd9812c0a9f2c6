"""The network of rectified units, small, on the bundled digits: what its figures must show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from examples.reproduce.__main__ import find_data
from examples.reproduce.conducting import conduct
from examples.reproduce.relu import BESIDE_SOFTPLUS as SOFTPLUS
from examples.reproduce.relu import BY_NEURONS as NEURONS
from examples.reproduce.relu import BY_STEPS as STEPS
from examples.reproduce.relu import relu_cell
from examples.reproduce.reproduction import Cell, DataSets, Reproduction
from hierfl.models import relu_network
from hierfl.models.relu_network import initial_weights

pytestmark = pytest.mark.slow


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DataSets:
    monkeypatch.setenv("HIERFL_DATA", str(tmp_path / "nowhere"))
    return find_data(NEURONS, None, False)


def only(record: Reproduction, cells: list[Cell]) -> Reproduction:
    return replace(record, plan=lambda full, data: cells)


def test_more_local_steps_learn_faster(data: DataSets, tmp_path: Path) -> None:
    cells = [
        relu_cell("digits", rounds=60, seed=seed, local_steps=steps, smoothing=0.01)
        for seed in (0, 1, 2)
        for steps in (1, 20)
    ]
    measured, text = conduct(only(STEPS, cells), data, tmp_path, progress=False)
    one, twenty = (measured.of(local_steps=steps, seed=0)[0] for steps in (1, 20))
    assert twenty["loss"][-1] < 0.4 < one["loss"][-1] < one["loss"][0]
    assert one["round"] == list(range(0, 61, 3)) and twenty["accuracy"][-1] > 60
    assert "±" in text and STEPS.draw is not None and len(STEPS.draw(measured).axes[0].collections) == 2  # the bands

    problem = relu_network(data.found["digits"], seed=0)
    start = {variable.name(): value for variable, value in initial_weights(problem, 0.1, 0).items()}
    assert problem.federation is not None
    errors = []
    for client in problem.federation.clients:
        rows = {sample.name(): np.asarray(values) for sample, values in client.samples.items()}
        answers = np.maximum(rows["image"] / 16 @ start["Z"].T, 0) @ start["w"]
        errors.append((rows["target"] - answers) ** 2)
    assert one["loss"][0] == twenty["loss"][0] == pytest.approx(0.5 * np.concatenate(errors).mean(), rel=1e-12)


def test_baselines_on_softplus_units_have_their_panels(data: DataSets, tmp_path: Path) -> None:
    cells = [
        replace(cell, settings={**cell.settings, "rounds": 10})
        for cell in SOFTPLUS.plan(False, data)
        if cell.settings["softplus"] in (None, 10.0)
    ]
    measured, _ = conduct(only(SOFTPLUS, cells), data, tmp_path, progress=False)
    assert [c.settings["method"] for c in cells] == ["FedRZO", "FedAvg", "FedProx", "FedMSPP", "Scaffnew"]
    assert all(one["loss"][-1] < one["loss"][0] for one in measured.of())
    assert SOFTPLUS.draw is not None and len(SOFTPLUS.draw(measured).axes[0].lines) == 5


def test_networks_of_three_sizes_and_a_run_that_diverges(data: DataSets, tmp_path: Path) -> None:
    cells = [
        relu_cell("digits", rounds=6, seed=0, local_steps=2, smoothing=0.1, neurons=neurons) for neurons in (4, 8, 20)
    ]
    wild = replace(cells[0], name="wild", settings={**cells[0].settings, "scale": 1e9, "local_steps": 10})
    measured, text = conduct(only(NEURONS, [*cells, wild]), data, tmp_path, progress=False)
    assert NEURONS.draw is not None and len(NEURONS.draw(measured).axes) == 3
    assert measured.numbers["wild"]["diverged"] and "diverged" in text
    assert {c.settings["neurons"] for c in NEURONS.plan(True, data)} == {4, 20, 100}
    assert "CIFAR-10 is not in" in data.absent["CIFAR-10"]

"""[2S] Figure 4, small, on the bundled digits: what its runs must show."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from examples.reproduce.__main__ import find_data
from examples.reproduce.bilevel import FIGURE as REPRODUCTION
from examples.reproduce.bilevel import LOWERS, MIXTURES, algorithm_3, bilevel_cell
from examples.reproduce.conducting import conduct
from examples.reproduce.reproduction import Cell, DataSets


def test_algorithm_3_has_the_numbers_that_the_paper_prints() -> None:
    lower = algorithm_3(mu=0.1, smooth=0.5)  # kappa = 5, m = 5: a = max(5, 20) + 1 = 21, T = 2 * 21 ln 21 = 127.9
    assert (lower.rounds, lower.steps, lower.batch_size) == (5, 26, 1)
    assert lower.step_size == pytest.approx(1 / 2.1)


@pytest.mark.slow
def test_both_lower_solvers_learn_and_both_sets_of_y_are_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HIERFL_DATA", str(tmp_path / "nowhere"))
    data = find_data(REPRODUCTION, None, False)
    cells = [bilevel_cell("digits", lower, 5, 0, 16, 200) for lower in LOWERS]
    cells += [bilevel_cell("digits", mixture, 20, 0, 12) for mixture in MIXTURES]
    wild = bilevel_cell("digits", "y free", 5, 1, 5)
    cells.append(replace(wild, settings={**wild.settings, "step_size": 10.0}))

    def plan(full: bool, data: DataSets) -> list[Cell]:
        return cells

    measured, text = conduct(replace(REPRODUCTION, plan=plan), data, tmp_path, progress=False)
    for lower in LOWERS:
        (ours,) = measured.of(variant=lower)
        assert ours["loss"][0] == pytest.approx(np.log(2))  # y = 0
        assert ours["loss"][-1] < 0.65 and ours["lower_scalars_up"] > 0
        assert ours["own"] == pytest.approx(ours["value"], rel=0.2)
    for mixture in MIXTURES:
        ours = measured.of(variant=mixture, seed=0)[0]
        assert ours["worst"][-1] >= ours["loss"][-1] > 0
        assert ours["loss"][-1] < ours["loss"][0]
    assert measured.of(seed=1)[0]["diverged"] and "diverged" in text
    assert REPRODUCTION.draw is not None and [ax.get_title() for ax in REPRODUCTION.draw(measured).axes] == [
        "hyperparameters",
        "fair classification",
    ]

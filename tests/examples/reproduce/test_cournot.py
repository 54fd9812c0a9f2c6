"""[2S] Table 4 is met by the runs' own values, and by no value of f."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from examples.reproduce.__main__ import main
from examples.reproduce.conducting import conduct
from examples.reproduce.cournot import FIGURE, PRINTED, TABLE, cournot_cell, printed_value
from examples.reproduce.reproduction import DataSets

pytestmark = pytest.mark.optimised


@pytest.mark.slow
def test_table4_is_reproduced_and_every_such_run_is_warned(tmp_path: Path) -> None:
    cell = cournot_cell(20, 1.0, 20, 0.1)
    measured, text = conduct(replace(TABLE, plan=lambda full, data: [cell]), DataSets(), tmp_path, progress=False)
    ours, printed = measured.numbers[cell.name], printed_value(*list(cell.settings.values())[:4])
    assert abs(ours["own"] / printed - 1) < 0.04
    assert (ours["warned"], ours["exact"]["warned"]) == (True, False)
    assert ours["optimum"] - 1e-6 <= ours["exact"]["value"] <= 0
    assert abs(ours["value"]) < 0.2 * abs(ours["own"])
    assert len(ours["objective"]) == 100
    assert "1 of 1 runs of (a), 0 of (b)" in text and f"{printed:.3f}" in text


@pytest.mark.slow
def test_figure5_is_drawn_in_the_papers_layout(tmp_path: Path) -> None:
    runs = {"objective": np.linspace(0, -9, 7), "own": -9.0, "value": 0.1, "own_x": 1.0}
    record = replace(FIGURE, prepare=lambda cell, data: None, run=lambda cell, _: {**runs, "exact": runs, "optimum": -0.06})
    measured, text = conduct(record, DataSets(), tmp_path, full=True, progress=False)
    assert (tmp_path / "full.png").stat().st_size > 10_000 and "-23.656" in text
    assert FIGURE.draw is not None
    left, right = FIGURE.draw(measured).axes
    assert "ñ = 100, η = 1" in left.get_title() and "ñ = 1000, η = 0.1, b = 1" in right.get_title()


def test_all_72_cells_are_planned_with_their_printed_values() -> None:
    cells = TABLE.plan(True, DataSets())
    printed = {printed_value(*list(cell.settings.values())[:4]) for cell in cells}
    assert len(cells) == 72 and {-7.875, -39.448, -23.656, -8.773} <= printed
    for rows in PRINTED.values():
        table = np.array(rows)
        assert table.shape == (3, 3) and np.all(np.diff(table, axis=0) < 0)


def test_names_are_listed_and_misspelt_ones_answered(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    listed = capsys.readouterr().out
    assert "2s-table4" in listed and "Figure 5, §6.4" in listed
    assert main(["2s-tabel4"]) == 2
    assert "did you mean '2s-table4'" in capsys.readouterr().err

"""[HFL] Table I as far as it has run: kept beside this file as a small table, from which docs/reproductions.md has its rows.

``python -m examples.reproduce.kept_table`` prints them; with the ``full.json`` of a run of ``hfl-table1``, whole or not, it keeps that first.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import numpy as np

from examples.reproduce.conducting import in_markdown
from examples.reproduce.heterogeneous_records import SETS, TABLE
from examples.reproduce.reproduction import DataSets, Measured
from hierfl.models import ClassificationData

KEPT = Path(__file__).with_name("hfl_table1.csv")
ACCURACIES = ("accuracy", "start")  # percent


def keep(run: Path) -> None:
    """Write a row for each cell that a run has: its accuracies and its seconds."""
    with open(KEPT, "w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["cell", *ACCURACIES, "seconds"])
        for name, cell in json.loads(run.read_text())["cells"].items():
            found = (cell["numbers"].get(what) for what in ACCURACIES)
            writer.writerow([name, *("" if one is None else f"{one:.4f}" for one in found), f"{cell['seconds']:.0f}"])


def kept() -> Measured:
    """The cells that are kept."""
    with open(KEPT, newline="") as file:
        rows = {row["cell"]: row for row in csv.DictReader(file)}
    numbers = {name: {what: float(row[what]) for what in ACCURACIES if row[what]} for name, row in rows.items()}
    named = ClassificationData(np.zeros((0, 1)), np.zeros(0, int))  # a plan asks which data sets there are, not for their rows
    cells = TABLE.plan(True, DataSets(dict.fromkeys(SETS, named)))
    return Measured(True, [cell for cell in cells if cell.name in numbers], numbers)


if __name__ == "__main__":
    for path in sys.argv[1:]:
        keep(Path(path))
    print("\n\n".join(in_markdown(rows) for _, rows in TABLE.tables(kept())))

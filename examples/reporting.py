"""What the example scripts share: command line, console, confidence bands, saving figures."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.stats
from rich.console import Console
from rich.table import Table


def command_line(description: str | None) -> argparse.ArgumentParser:
    """The options of every example."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0] if description else None)
    parser.add_argument("--full", action="store_true", help="the paper's sizes instead of those that take a minute")
    parser.add_argument("--rounds", type=int, help="communication rounds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--figures", type=Path, default=Path("figures"))
    return parser


def add_data_options(parser: argparse.ArgumentParser) -> None:
    """Where MNIST comes from."""
    parser.add_argument("--data", help="folder with MNIST's four idx.gz files (default: the environment's HIERFL_DATA)")
    parser.add_argument("--download", action="store_true", help="fetch MNIST where it is not there")


def console() -> Console:
    """Standard output, wide enough for the tables where it is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else 118)


def print_table(to: Console, title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """A table of right-aligned columns; numbers come as strings."""
    table = Table(title=title)
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*map(str, row))
    to.print(table)


def band(runs: Any, level: float = 0.95) -> tuple[np.ndarray, np.ndarray]:
    """(mean, half-width) over the first axis, one run each: Student's t interval of the mean; width 0 for one run."""
    runs = np.asarray(runs, dtype=float)
    count = runs.shape[0]
    if count == 1:
        return runs[0], np.zeros_like(runs[0])
    width = scipy.stats.t.ppf(0.5 + level / 2, count - 1) * runs.std(axis=0, ddof=1) / np.sqrt(count)
    return runs.mean(axis=0), np.asarray(width)


def draw_band(ax: Any, at: Any, runs: Any, label: str, **style: Any) -> None:
    """A mean curve with its confidence band."""
    mean, width = band(runs)
    (line,) = ax.plot(at, mean, label=label, **style)
    ax.fill_between(at, mean - width, mean + width, color=line.get_color(), alpha=0.2, linewidth=0)


def save(figure: Any, folder: Path, name: str) -> Path:
    """Write ``folder/name.png`` and close the figure; called within the house style, which sets the resolution."""
    import matplotlib.pyplot as plt

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.png"
    figure.savefig(path)
    plt.close(figure)
    return path

"""A table or figure of a paper as a record: the cells to run, what the paper printed, and how both are shown together.

A cell is the smallest part whose numbers are worth keeping alone, such as one entry of a table with one seed. Everything that a cell
needs follows from its settings and from published data, so that cells run in any order, in any process, and give the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from hierfl.models import ClassificationData
from hierfl.runs import half_width

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Plain = Mapping[str, Any]  # numbers, texts, lists and mappings, as JSON has them
Table = tuple[str, Sequence[Sequence[str]]]  # a title, and rows of which the first has the names of the columns


@dataclass(frozen=True)
class Cell:
    """One run, or a few that belong together."""

    name: str  # unique in its reproduction; its numbers are kept under it
    settings: Plain  # all that it depends on; "data" is the name of its data set, if it needs one
    group: str = ""  # cells of a group stand together; they share what is prepared for the first, and compiled programs

    @property
    def data(self) -> str | None:
        """The name of its data set."""
        return self.settings.get("data")

    def has(self, settings: Plain) -> bool:
        """Whether these are among its settings."""
        return all(self.settings.get(name) == value for name, value in settings.items())


@dataclass(frozen=True)
class DataSets:
    """The image data that were found, by name, and why others were not."""

    found: Mapping[str, ClassificationData] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)

    def first(self, *names: str) -> str:
        """The first of these data sets that is there, or scikit-learn's digits."""
        return next((name for name in names if name in self.found), "digits")

    def rows_for(self, names: Sequence[str], full: bool, stand_in: str) -> list[str]:
        """The sets to be run, the first alone unless ``full``, or what stands in for them; then those that are absent, which are told."""
        there = [name for name in names if name in self.found]
        return [*((there if full else there[:1]) or [stand_in]), *(name for name in names if name not in there)]


@dataclass(frozen=True)
class Measured:
    """The cells of a reproduction in the order of its plan, with the numbers of those whose data are there, by their names."""

    full: bool  # whether the sizes are the paper's
    cells: Sequence[Cell]
    numbers: Mapping[str, Plain]

    def of(self, **settings: Any) -> list[Plain]:
        """The numbers of the cells that have these settings."""
        return [self.numbers[cell.name] for cell in self.cells if cell.name in self.numbers and cell.has(settings)]

    def each(self, *names: str, **settings: Any) -> list[Any]:
        """The values of a setting, or tuples of several ones, among the cells that have the others, without repetitions."""
        chosen = (cell.settings for cell in self.cells if cell.has(settings))
        return list(dict.fromkeys(s[names[0]] if len(names) == 1 else tuple(s[one] for one in names) for s in chosen))

    @property
    def seeds(self) -> str:
        """What the numbers of a table are: of one seed, or means over several with their intervals."""
        seeds = len(self.each("seed"))
        return f"means and 95 % intervals over {seeds} seeds" if seeds > 1 else "one seed"


def nothing(cell: Cell, data: DataSets) -> None:
    """Where nothing is prepared."""


@dataclass(frozen=True)
class Reproduction:
    """A table or figure of a paper."""

    name: str  # in the command line, such as "2s-table4"
    about: str  # a line for the list of all
    source: str  # the paper, with its table or figure and section
    caption: str  # as printed
    plan: Callable[[bool, DataSets], Sequence[Cell]]  # (full, data); cells of absent data where a row shall say that they are
    run: Callable[[Cell, Any], Plain]  # (cell, what was prepared for its group): its numbers, NumPy's included
    tables: Callable[[Measured], Sequence[Table]]  # the printed figures beside these, with the difference
    smaller: str  # how the default differs from the paper's size
    data: tuple[str, ...] = ()  # the names of the data sets that it would use
    prepare: Callable[[Cell, DataSets], Any] = nothing
    draw: Callable[[Measured], Figure] | None = None  # in the paper's layout; None where a paper's table has no figure
    differs: tuple[str, ...] = ()  # what is expected to differ from the paper, and why
    left_open: tuple[str, ...] = ()  # what the paper does not say, with the choice made here


def by_name(held: Mapping[Any, Any]) -> dict[str, np.ndarray]:
    """The arrays of samples or variables by their names."""
    return {leaf.name(): np.asarray(values) for leaf, values in held.items()}


def panels(rows: int, columns: int, width: float, height: float, **shared: Any) -> tuple[Figure, Any]:
    """A figure and its axes, (rows, columns), each of this size."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows))
    return figure, figure.subplots(rows, columns, squeeze=False, **shared)


def draw_mean(ax: Axes, rounds: Any, curves: Sequence[Any], **look: Any) -> None:
    """The mean over seeds (seeds, rounds) by round, with its 95 % band."""
    values = np.array(curves, dtype=float)
    middle = values.mean(axis=0)
    (line,) = ax.plot(rounds, middle, **look)
    if len(values) > 2:  # the interval of two is wider than the figure
        half = half_width(values)
        ax.fill_between(rounds, middle - half, middle + half, color=line.get_color(), alpha=0.2, linewidth=0)

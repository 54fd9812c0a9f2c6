"""A table or figure of a paper as a record: the cells to run, what the paper printed, and how both are shown together.

A cell is the smallest part whose numbers are worth keeping alone, such as one entry of a table with one seed. Everything that a cell
needs follows from its settings and from published data, so that cells run in any order, in any process, and give the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from hierfl.models import ClassificationData
from hierfl.runs import half_width

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Made = TypeVar("Made")
Plain = Mapping[str, Any]  # numbers, texts, lists and mappings, as JSON has them


@dataclass(frozen=True)
class Cell:
    """One run, or a few that belong together.

    Parameters
    ----------
    name
        Unique in its reproduction; its numbers are kept under it.
    settings
        All that the run depends on, as JSON has it.
    data
        The name of its data set, or None where it needs none.
    group
        Cells of one group stand together and share compiled programs, which are dropped when the next group begins.
    """

    name: str
    settings: Plain
    data: str | None = None
    group: str = ""


@dataclass(frozen=True)
class TextTable:
    """A table as texts; the first row of ``rows`` has the names of the columns."""

    title: str
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class DataSets:
    """The image data that were found, by name, and why others were not; what cells that stand together share is made of them once."""

    found: Mapping[str, ClassificationData] = field(default_factory=dict)
    absent: Mapping[str, str] = field(default_factory=dict)
    _made: dict[str, tuple[Any, Any]] = field(default_factory=dict, repr=False, compare=False)

    def once(self, kind: str, key: Any, make: Callable[[], Made]) -> Made:
        """What ``make()`` returned for this key, if the latest question of its kind had the same one; made now if not."""
        if kind not in self._made or self._made[kind][0] != key:
            self._made.pop(kind, None)
            self._made[kind] = key, make()
        made: Made = self._made[kind][1]
        return made


@dataclass(frozen=True)
class Measured:
    """The cells of a reproduction with their numbers; those whose data are absent have none.

    Attributes
    ----------
    full
        Whether the sizes are the paper's.
    cells
        In the order of the plan.
    numbers
        What ``run`` returned, by the names of the cells.
    absent
        Why data sets are absent, by their names.
    """

    full: bool
    cells: Sequence[Cell]
    numbers: Mapping[str, Plain]
    absent: Mapping[str, str] = field(default_factory=dict)

    def of(self, **settings: Any) -> list[Plain]:
        """The numbers of the cells that have these settings, in the order of the plan."""
        return [self.numbers[cell.name] for cell in self.cells if cell.name in self.numbers and _has(cell, settings)]

    @property
    def seeds(self) -> str:
        """What the numbers of a table are: of one seed, or means over several with their intervals."""
        seeds = len(self.each("seed"))
        return f"means and 95 % intervals over {seeds} seeds" if seeds > 1 else "one seed"

    def each(self, setting: str, **settings: Any) -> list[Any]:
        """The values of one setting among the cells that have the others, without repetitions, in the order of the plan."""
        return list(dict.fromkeys(cell.settings[setting] for cell in self.cells if _has(cell, settings)))


def draw_mean(ax: Axes, rounds: np.ndarray, values: np.ndarray, **look: Any) -> None:
    """The mean over seeds (seeds, rounds) by round, with its 95 % band."""
    middle = values.mean(axis=0)
    (line,) = ax.plot(rounds, middle, **look)
    if len(values) > 2:  # the interval of two is wider than the figure
        half = half_width(values)
        ax.fill_between(rounds, middle - half, middle + half, color=line.get_color(), alpha=0.2, linewidth=0)


def _has(cell: Cell, settings: Mapping[str, Any]) -> bool:
    return all(cell.settings.get(name) == value for name, value in settings.items())


@dataclass(frozen=True)
class Reproduction:
    """A table or figure of a paper.

    Parameters
    ----------
    name
        As in the command line, such as ``"2s-table4"``.
    about
        A line for the list of all.
    source
        The paper, with its table or figure and section.
    caption
        As printed.
    data
        The names of the data sets that it would use.
    plan
        ``plan(full, data)``: the cells, at the paper's sizes or at those that end in about a minute. Cells of absent data are planned
        where a row shall say that they are.
    run
        ``run(cell, data)``: the numbers of a cell, as JSON has them, NumPy's included.
    tables
        ``tables(measured)``: the printed figures beside these, with the difference.
    draw
        ``draw(measured)``: the figure in the paper's layout, or None where a paper's table has none.
    differs
        What is expected to differ from the paper, and why.
    left_open
        What the paper does not say, with the choice made here.
    smaller
        How the default differs from the paper's size.
    """

    name: str
    about: str
    source: str
    caption: str
    plan: Callable[[bool, DataSets], Sequence[Cell]]
    run: Callable[[Cell, DataSets], Plain]
    tables: Callable[[Measured], Sequence[TextTable]]
    smaller: str
    data: tuple[str, ...] = ()
    draw: Callable[[Measured], Figure] | None = None
    differs: tuple[str, ...] = ()
    left_open: tuple[str, ...] = ()

"""Running a reproduction: a cell at a time, each kept at once, then the tables and the figure."""

from __future__ import annotations

import gc
import io
import sys
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from textwrap import wrap

import numpy as np

from hierfl.jaxtools.interruption import whole
from hierfl.models import ClassificationData
from hierfl.reproduce.kept_cells import KeptCells, write_whole
from hierfl.reproduce.reproduction import Cell, DataSets, Measured, Reproduction, TextTable
from hierfl.runs import aligned
from hierfl.version import VERSION

WIDTH = 100


def conduct(
    reproduction: Reproduction,
    data: DataSets,
    folder: Path,
    *,
    full: bool = False,
    anew: bool = False,
    progress: bool = True,
) -> tuple[Measured, str]:
    """Run the cells whose numbers are not yet kept, write everything, and return it with what is to be read.

    Parameters
    ----------
    reproduction
        What to run.
    data
        The image data that there are.
    folder
        Where ``default.json`` or ``full.json`` is, with ``.md`` and ``.png`` beside it; it is made.
    full
        The paper's sizes.
    anew
        Begin without what is kept.
    progress
        Tell each cell on stderr.

    Raises
    ------
    CheckpointError
        If the folder cannot be written, or holds numbers of another size, version, setting or other data.
    """
    size = "full" if full else "default"
    cells = reproduction.plan(full, data)
    identity = {"name": reproduction.name, "size": size, "version": VERSION}
    with KeptCells(folder / f"{size}.json", identity, anew) as kept:
        marks = {name: data_mark(data.found[name]) for name in _needed(cells) if name in data.found}
        kept.require_plan(cells, marks)
        _run(reproduction, cells, data, kept, progress)
        planned = {cell.name for cell in cells}
        numbers = {name: one for name, one in kept.numbers().items() if name in planned}
        measured = Measured(full, cells, numbers, data.absent)
        tables = reproduction.tables(measured)
        text = told(reproduction, measured, tables, kept.seconds())
        write_whole(folder / f"{size}.md", markdown(reproduction, measured, tables, kept.seconds()).encode())
        text += f"\n\nnumbers  {kept.path}\ntables   {folder / f'{size}.md'}"
        if reproduction.draw is not None and numbers:
            _draw(reproduction, measured, folder / f"{size}.png")
            text += f"\nfigure   {folder / f'{size}.png'}"
    return measured, text


def told(reproduction: Reproduction, measured: Measured, tables: Sequence[TextTable], seconds: float) -> str:
    """The whole outcome as text for a terminal."""
    parts = [f"{reproduction.name}: {reproduction.source}", *_wrapped(f'"{reproduction.caption}"', "")]
    parts += _wrapped(_size(reproduction, measured, seconds), "")
    for table in tables:
        parts += ["", *_wrapped(table.title, ""), aligned(table.rows)]
    for title, lines in _remarks(reproduction, measured):
        parts += ["", title]
        for line in lines:
            parts += _wrapped(line, "  ")
    return "\n".join(parts)


def markdown(reproduction: Reproduction, measured: Measured, tables: Sequence[TextTable], seconds: float) -> str:
    """The whole outcome in Markdown."""
    parts = [f"## {reproduction.name}: {reproduction.source}", f"> {reproduction.caption}"]
    parts.append(_size(reproduction, measured, seconds))
    for table in tables:
        head, *rows = table.rows
        rule = ["---", *("---:" for _ in head[1:])]
        parts += [table.title, "\n".join("| " + " | ".join(row) + " |" for row in (head, rule, *rows))]
    for title, lines in _remarks(reproduction, measured):
        parts += [f"{title}:", "\n".join(f"* {line}" for line in lines)]
    return "\n\n".join(parts) + "\n"


def data_mark(held: ClassificationData) -> str:
    """A few words that tell a data set from another: its rows and a checksum of them."""
    content = 0
    for array in (held.features, held.labels):
        content = zlib.crc32(np.ascontiguousarray(array).data, content)
    return f"{len(held.labels)} rows, crc32 {content:08x}"


def _run(reproduction: Reproduction, cells: Sequence[Cell], data: DataSets, kept: KeptCells, progress: bool) -> None:
    """Run what is missing, where its data are there."""
    there = kept.numbers()
    missing = [cell for cell in cells if cell.name not in there and (cell.data is None or cell.data in data.found)]
    if progress and there:
        print(f"{kept.path} has {len(there)} cells; {len(missing)} are left.", file=sys.stderr)
    group = None
    for place, cell in enumerate(missing, 1):
        if cell.group != group:
            _forget_programs()
            group = cell.group
        began = time.perf_counter()
        with whole():
            numbers = reproduction.run(cell, data)
        seconds = time.perf_counter() - began
        kept.keep(cell, numbers, seconds)
        if progress:
            print(f"[{place}/{len(missing)}] {cell.name}: {seconds:.1f} s", file=sys.stderr, flush=True)


def _needed(cells: Sequence[Cell]) -> list[str]:
    """The names of the data sets of cells, each once."""
    return list(dict.fromkeys(cell.data for cell in cells if cell.data is not None))


def _forget_programs() -> None:
    import jax

    gc.collect()
    jax.clear_caches()


def _draw(reproduction: Reproduction, measured: Measured, path: Path) -> None:
    from hierfl.house_style import house_style

    assert reproduction.draw is not None
    picture = io.BytesIO()
    with house_style():
        reproduction.draw(measured).savefig(picture, format="png")
    write_whole(path, picture.getvalue())


def _size(reproduction: Reproduction, measured: Measured, seconds: float) -> str:
    what = "at the paper's size" if measured.full else f"small: {reproduction.smaller} (--full: the paper's size)"
    missing = len(measured.cells) - len(measured.numbers)
    absent = f", {missing} without data" if missing else ""
    return f"{what}; {len(measured.numbers)} cells{absent}, {seconds:.0f} s in all"


def _remarks(reproduction: Reproduction, measured: Measured) -> list[tuple[str, Sequence[str]]]:
    needed = _needed(measured.cells)
    wanted = dict.fromkeys([*needed, *reproduction.data])
    absent = [f"{name}: {measured.absent[name]}" for name in wanted if name in measured.absent]
    if "digits" in needed and "digits" not in reproduction.data:
        absent.append("scikit-learn's digits stand in: figures of the paper's own data cannot be expected of them")
    titled = {
        "data that are absent": absent,
        "expected to differ, and why": reproduction.differs,
        "left open by the paper, and chosen here": reproduction.left_open,
    }
    return [(title, lines) for title, lines in titled.items() if lines]


def _wrapped(text: str, indent: str) -> list[str]:
    return wrap(text, WIDTH, initial_indent=indent, subsequent_indent=indent + ("  " if indent else ""))

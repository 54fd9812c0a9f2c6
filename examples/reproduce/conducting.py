"""Running a reproduction: a cell at a time, each kept at once, then the tables and the figure.

The numbers stand in one JSON file, which is whole at any moment: written beside itself, synced, and then renamed. It belongs to one
reproduction, one size, one version of hierfl and one set of data; what was made otherwise is never mixed in.
"""

from __future__ import annotations

import fcntl
import gc
import io
import json
import math
import os
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from textwrap import fill
from typing import Any

import jax
import numpy as np

from examples.reproduce.reproduction import Cell, DataSets, Measured, Plain, Reproduction, Table
from hierfl.errors import CheckpointError
from hierfl.house_style import house_style
from hierfl.jaxtools.interruption import whole
from hierfl.models import ClassificationData
from hierfl.runs import aligned
from hierfl.version import VERSION

WIDTH = 100
HEAD, FORMAT = "hierfl reproduction", 1


def conduct(
    reproduction: Reproduction,
    data: DataSets,
    folder: Path,
    *,
    full: bool = False,
    anew: bool = False,
    progress: bool = True,
    processes: int = 1,
) -> tuple[Measured, str]:
    """Run the cells whose numbers are not yet kept, write everything, and return it with what is to be read.

    ``default.json`` or ``full.json``, with ``.md`` and ``.png`` beside it, are in the folder, which is made. With ``anew`` it begins
    without what is kept there; with ``progress`` each cell is told on stderr. So many cells are run side by side as ``processes`` says, each
    in a process of its own.

    Raises ``CheckpointError`` if the folder cannot be written, another process writes it, or it holds numbers of another size, version,
    setting or other data.
    """
    size = "full" if full else "default"
    path, page, picture = (folder / f"{size}.{ending}" for ending in ("json", "md", "png"))
    cells = reproduction.plan(full, data)
    identity = {HEAD: FORMAT, "name": reproduction.name, "size": size, "version": VERSION}
    with held_alone(path):
        marks = {name: data_mark(data.found[name]) for name in _needed(cells) if name in data.found}
        kept: dict[str, Any] = {**identity, "data": {}, "cells": {}}
        if not anew and path.exists():
            kept = _kept_before(path, identity, cells, marks)
        kept["data"] |= marks
        _run(reproduction, cells, data, path, kept, progress, processes)
        numbers = {c.name: _numbers(kept["cells"][c.name]["numbers"]) for c in cells if c.name in kept["cells"]}
        measured = Measured(full, cells, numbers)
        told = _size(reproduction, measured, sum(one["seconds"] for one in kept["cells"].values()))
        remarks = _remarks(reproduction, cells, data)
        text, markdown = _written(reproduction, told, reproduction.tables(measured), remarks)
        write_whole(page, markdown.encode())
        text += f"\n\nnumbers  {path}\ntables   {page}"
        if reproduction.draw is not None and numbers:
            drawn = io.BytesIO()
            with house_style():
                reproduction.draw(measured).savefig(drawn, format="png")
            write_whole(picture, drawn.getvalue())
            text += f"\nfigure   {picture}"
    return measured, text


def _run(
    reproduction: Reproduction, cells: Sequence[Cell], data: DataSets, path: Path, kept: Plain, progress: bool, processes: int
) -> None:
    """Run what is missing, where its data are there, and keep it."""
    there = kept["cells"]
    missing = [cell for cell in cells if cell.name not in there and (cell.data is None or cell.data in data.found)]
    if progress and there:
        print(f"{path} has {len(there)} cells; {len(missing)} are left.", file=sys.stderr)
    for place, (cell, (numbers, seconds)) in enumerate(_made(Maker(reproduction.prepare, reproduction.run, data), missing, processes), 1):
        there[cell.name] = {"settings": _plain(cell.settings), "seconds": round(seconds, 3), "numbers": _plain(numbers)}
        write_whole(path, json.dumps(kept, indent=1, allow_nan=False).encode())
        if progress:
            print(f"[{place}/{len(missing)}] {cell.name}: {seconds:.1f} s", file=sys.stderr, flush=True)


@dataclass
class Maker:
    """Runs cells, with what was prepared for the latest group."""

    prepare: Callable[[Cell, DataSets], Any]
    run: Callable[[Cell, Any], Plain]
    data: DataSets
    group: str | None = None
    prepared: Any = None

    def __call__(self, cell: Cell) -> tuple[Plain, float]:
        """The numbers of a cell, and the seconds that it took."""
        another = cell.group != self.group
        if another:
            self.group, self.prepared = cell.group, None
            gc.collect()
            jax.clear_caches()
        began = time.perf_counter()
        with whole():
            self.prepared = self.prepare(cell, self.data) if another else self.prepared
            numbers = self.run(cell, self.prepared)
        return numbers, time.perf_counter() - began


def _made(maker: Maker, cells: Sequence[Cell], processes: int) -> Iterator[tuple[Cell, tuple[Plain, float]]]:
    """The cells as they end."""
    if processes == 1:
        yield from ((cell, maker(cell)) for cell in cells)
        return
    with ProcessPoolExecutor(processes, get_context("spawn"), _begin_with, (maker,)) as pool:
        waiting = {pool.submit(_made_there, cell): cell for cell in cells}
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


_MAKERS: list[Maker] = []  # one, in a process of its own


def _begin_with(maker: Maker) -> None:
    _MAKERS.append(maker)


def _made_there(cell: Cell) -> tuple[Plain, float]:
    return _MAKERS[0](cell)


# --- what is told ------------------------------------------------------------------------------------------------------


def _written(
    reproduction: Reproduction, told: str, tables: Sequence[Table], remarks: Mapping[str, Sequence[str]]
) -> tuple[str, str]:
    """The whole outcome for a terminal, and in Markdown."""
    lines = [f"{reproduction.name}: {reproduction.source}", _wrapped(f'"{reproduction.caption}"'), _wrapped(told)]
    parts = [f"## {reproduction.name}: {reproduction.source}", f"> {reproduction.caption}", told]
    for title, rows in tables:
        lines += ["", _wrapped(title), aligned(rows)]
        parts += [title, in_markdown(rows)]
    for title, said in remarks.items():
        lines += ["", title, *(_wrapped(one, "  ") for one in said)]
        parts += [f"{title}:", "\n".join(f"* {one}" for one in said)]
    return "\n".join(lines), "\n\n".join(parts) + "\n"


def in_markdown(rows: Sequence[Sequence[str]]) -> str:
    """Rows of which the first has the names of the columns."""
    numbers = [any(cell.lstrip("+-")[:1].isdigit() for cell in column[1:]) for column in zip(*rows)]
    ruled = [rows[0], ["---", *("---:" if one else "---" for one in numbers[1:])], *rows[1:]]
    return "\n".join("| " + " | ".join(row) + " |" for row in ruled)


def _size(reproduction: Reproduction, measured: Measured, seconds: float) -> str:
    what = "at the paper's size" if measured.full else f"small: {reproduction.smaller} (--full: the paper's size)"
    missing = len(measured.cells) - len(measured.numbers)
    absent = f", {missing} without data" if missing else ""
    return f"{what}; {len(measured.numbers)} cells{absent}, {seconds:.0f} s in all"


def _remarks(reproduction: Reproduction, cells: Sequence[Cell], data: DataSets) -> dict[str, Sequence[str]]:
    needed = _needed(cells)
    wanted = dict.fromkeys([*needed, *reproduction.data])
    absent = [f"{name}: {data.absent[name]}" for name in wanted if name in data.absent]
    if "digits" in needed and "digits" not in reproduction.data:
        absent.append("scikit-learn's digits stand in: figures of the paper's own data cannot be expected of them")
    titled = {
        "data that are absent": absent,
        "expected to differ, and why": reproduction.differs,
        "left open by the paper, and chosen here": reproduction.left_open,
    }
    return {title: lines for title, lines in titled.items() if lines}


def _needed(cells: Sequence[Cell]) -> list[str]:
    """The names of the data sets of cells, each once."""
    return list(dict.fromkeys(cell.data for cell in cells if cell.data is not None))


def _wrapped(text: str, indent: str = "") -> str:
    return fill(text, WIDTH, initial_indent=indent, subsequent_indent=2 * indent)


# --- what is kept ------------------------------------------------------------------------------------------------------


@contextmanager
def held_alone(path: Path) -> Iterator[None]:
    """Make the folder of a file, and keep other processes from writing the file meanwhile.

    Raises ``CheckpointError`` if the folder cannot be written, or another process holds the file.
    """
    lock = path.with_suffix(".lock")
    with ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(lock, "a+"))
        except OSError as error:
            raise CheckpointError(
                f"the folder {str(path.parent)!r} cannot be written ({error.strerror}): choose another one by --out."
            ) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise CheckpointError(
                f"another process is writing {path}: wait until it has ended, or choose another folder by --out."
            ) from error
        stack.callback(lock.unlink, missing_ok=True)
        yield


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that it is never seen in part.

    Raises ``CheckpointError`` if it cannot be written; what was there before is still whole.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        with open(part, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise CheckpointError(f"{path} cannot be written ({error.strerror}): choose another folder by --out.") from error


def _kept_before(path: Path, identity: Plain, cells: Sequence[Cell], marks: Mapping[str, str]) -> dict[str, Any]:
    """What the file has, if it is of this reproduction, with the settings of these cells and these data, of which each has a mark."""
    try:
        kept = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise _another(path, f"it cannot be read ({error})") from error
    if not _has_kinds(kept, {HEAD: int, "cells": dict, "data": dict}):
        raise _another(path, "it is none of a reproduction")
    for what, here in identity.items():
        if kept.get(what) != here:
            raise _another(path, f"{what} is {kept.get(what)!r} there, and {here!r} here")
    for name, cell in kept["cells"].items():
        if not _has_kinds(cell, {"settings": dict, "numbers": dict, "seconds": int | float}):
            raise _another(path, f"its cell {name!r} is not whole")
    for cell in cells:
        mine = _plain(cell.settings)
        theirs = kept["cells"].get(cell.name, {"settings": mine})["settings"]
        for name in {**mine, **theirs}:
            if mine.get(name) != theirs.get(name):
                run = f"was run with {name} = {theirs.get(name)!r}, not {mine.get(name)!r}"
                raise _another(path, f"its cell {cell.name!r} {run}")
    for name, mark in marks.items():
        if kept["data"].get(name, mark) != mark:
            raise _another(path, f"its data {name} were others ({kept['data'][name]}, not {mark})")
    return kept


def _another(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"{path} cannot be gone on with: {why}. Give --anew to begin again in its place, or another folder by --out."
    )


def _has_kinds(held: Any, kinds: Mapping[str, Any]) -> bool:
    return isinstance(held, dict) and all(isinstance(held.get(name), kind) for name, kind in kinds.items())


def data_mark(held: ClassificationData) -> str:
    """A few words that tell a data set from another: its rows and a checksum of them."""
    content = zlib.crc32(np.ascontiguousarray(held.labels).data, zlib.crc32(np.ascontiguousarray(held.features).data))
    return f"{len(held.labels)} rows, crc32 {content:08x}"


def _plain(value: Any) -> Any:
    """The value as JSON has it; what is not finite is None."""
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _numbers(value: Any) -> Any:
    """What JSON has of numbers, with NaN in the place of what was not finite."""
    if isinstance(value, dict):
        return {name: _numbers(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_numbers(one) for one in value]
    return math.nan if value is None else value

"""The numbers of a reproduction in one JSON file, which is whole at any moment: written beside itself, synced, and then renamed.

A file belongs to one reproduction, one size, one version of hierfl and one set of data; what was made otherwise is never mixed in.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from hierfl.errors import CheckpointError
from hierfl.reproduce.reproduction import Cell, Plain

FORMAT = 1
HEAD = "hierfl reproduction"


class KeptCells:
    """The file of a reproduction, held by this process from ``with`` on.

    Parameters
    ----------
    path
        The JSON file; its folder is made.
    identity
        What the numbers belong to: the reproduction's name, its size, hierfl's version.
    anew
        Begin without what is there.

    Raises
    ------
    CheckpointError
        If the folder cannot be made or written, another process holds the file, or it has something else in it.
    """

    def __init__(self, path: Path, identity: Mapping[str, str], anew: bool = False) -> None:
        self.path = path
        self._identity, self._anew = dict(identity), anew
        self._cells: dict[str, dict[str, Any]] = {}
        self._marks: dict[str, Any] = {}

    def __enter__(self) -> KeptCells:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path.with_suffix(".lock"), "a+")  # held until the end
        except OSError as error:
            raise CheckpointError(
                f"the folder {str(self.path.parent)!r} cannot be written ({error.strerror}): choose another one by --out."
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._lock.close()
            raise CheckpointError(
                f"another process is writing {self.path}: wait until it has ended, or choose another folder by --out."
            ) from error
        try:
            if not self._anew and self.path.exists():
                self._read()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.path.with_suffix(".lock").unlink(missing_ok=True)
        self._lock.close()

    def require_plan(self, cells: Sequence[Cell], marks: Mapping[str, str]) -> None:
        """Check that what is kept was made with the settings of these cells and with these data, told by a mark for each data set.

        Raises ``CheckpointError``, naming the first difference.
        """
        planned = {cell.name: _plain(cell.settings) for cell in cells}
        for name, kept in self._cells.items():
            if name in planned and kept["settings"] != planned[name]:
                mine = planned[name]
                other = [k for k in {**mine, **kept["settings"]} if mine.get(k) != kept["settings"].get(k)]
                raise self._another(
                    f"its cell {name!r} was run with {other[0]} = {kept['settings'].get(other[0])!r}, not {mine.get(other[0])!r}"
                )
        for name, mark in marks.items():
            if self._marks.get(name, mark) != mark:
                raise self._another(f"its data {name} were others ({self._marks[name]}, not {mark})")
        self._marks |= marks

    def numbers(self) -> dict[str, Plain]:
        """The numbers that are kept, by the names of the cells; NaN where one was not finite."""
        return {name: _numbers(kept["numbers"]) for name, kept in self._cells.items()}

    def seconds(self) -> float:
        """The time that the kept cells took, all together."""
        return sum(kept["seconds"] for kept in self._cells.values())

    def keep(self, cell: Cell, numbers: Plain, seconds: float) -> None:
        """Keep the numbers of a cell, on disk when this returns.

        Raises ``CheckpointError`` if the file cannot be written; what was there before is still whole.
        """
        told = {"settings": _plain(cell.settings), "seconds": round(seconds, 3), "numbers": _plain(numbers)}
        self._cells[cell.name] = told
        whole = {HEAD: FORMAT, **self._identity, "data": self._marks, "cells": self._cells}
        write_whole(self.path, json.dumps(whole, indent=1, allow_nan=False).encode())

    def _read(self) -> None:
        try:
            kept = json.loads(self.path.read_bytes())
        except (OSError, ValueError) as error:
            raise self._another(f"it cannot be read ({error})") from error
        parts = ("cells", "data")
        if not isinstance(kept, dict) or HEAD not in kept or not all(isinstance(kept.get(p), dict) for p in parts):
            raise self._another("it is none of a reproduction")
        for what, here in {HEAD: FORMAT, **self._identity}.items():
            if kept.get(what) != here:
                raise self._another(f"{what} is {kept.get(what)!r} there, and {here!r} here")
        for name, cell in kept["cells"].items():
            kinds = {"settings": dict, "numbers": dict, "seconds": int | float}
            if not isinstance(cell, dict) or not all(isinstance(cell.get(k), kind) for k, kind in kinds.items()):
                raise self._another(f"its cell {name!r} is not whole")
        self._cells, self._marks = kept["cells"], kept["data"]

    def _another(self, why: str) -> CheckpointError:
        return CheckpointError(
            f"{self.path} cannot be gone on with: {why}. Give --anew to begin again in its place, or another folder by --out."
        )


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
        raise CheckpointError(
            f"{path} cannot be written ({error.strerror}): choose another folder by --out."
        ) from error


def _plain(value: Any) -> Any:
    """The value as JSON has it; what is not finite is None."""
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def _numbers(value: Any) -> Any:
    """What JSON has of numbers, with NaN in the place of what was not finite."""
    if isinstance(value, dict):
        return {name: _numbers(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_numbers(one) for one in value]
    return math.nan if value is None else value

"""A folder of checkpoints that is whole at any moment: a file is written beside the others, synced, and only then renamed.

A file begins with a line that has the SHA-256 of the rest, so that what the disk has not kept is noticed. The two latest are kept; a
process holds a lock, which ends with it, so that two never write the same run.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import json
import os
import warnings
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np

from hierfl.errors import CheckpointError, CheckpointWarning

FORMAT = 1
HEAD = b"hierfl checkpoint "
SUFFIX, PART, LOCK = ".checkpoint", "unfinished.part", "hierfl.lock"
KEPT = 2


class CheckpointContent(NamedTuple):
    """What a file holds: numbers and texts as JSON has them, and arrays by name."""

    note: dict[str, Any]
    arrays: dict[str, np.ndarray]


class DamagedError(Exception):
    """A file is not what was written."""


class CheckpointFolder:
    """A folder, held by this process from ``with`` on.

    Raises
    ------
    CheckpointError
        Naming the folder: it cannot be made or written, another process holds it, or nothing in it can be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._number = 0
        self._good: list[Path] = []  # files known to be whole, the oldest first

    def __enter__(self) -> CheckpointFolder:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path / LOCK, "a+")  # held until the run ends
        except OSError as error:
            raise CheckpointError(
                f"checkpoint={str(self.path)!r}: no checkpoint can be written there ({_reason(error)}). Give a folder that may be written."
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise CheckpointError(
                f"checkpoint={str(self.path)!r}: another run is keeping its checkpoints there right now. Give every run a folder of its own."
            ) from None
        except OSError:  # a file system without locks
            pass
        self._number = max([0, *(int(path.stem) for path in self._files())])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.close()

    @property
    def begun(self) -> bool:
        """Whether there is a checkpoint."""
        return bool(self._files())

    def read(self) -> CheckpointContent | None:
        """The latest whole checkpoint; None in an empty folder. One that is damaged is told of, and the one before it taken."""
        damaged = []
        for path in reversed(self._files()):
            try:
                stored = _read(path)
            except (DamagedError, OSError) as error:
                damaged.append(f"{path.name}: {error}")
                continue
            if damaged:
                warnings.warn(
                    f"in {self.path}, {'; '.join(damaged)}: the run goes on from {path.name}, the checkpoint before.",
                    CheckpointWarning,
                    stacklevel=7,
                )
            self._good = [path]
            return stored
        if damaged:
            raise CheckpointError(
                f"no checkpoint in {self.path} can be read ({'; '.join(damaged)}). Delete the folder to begin anew, or give another one."
            )
        return None

    def write(self, note: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Keep a checkpoint, and of those before it the latest.

        Raises ``CheckpointError`` if it cannot be written; those before it are then as they were.
        """
        body = io.BytesIO()
        np.savez(body, note=np.array(json.dumps({"format": FORMAT, **note})), **arrays)  # type: ignore[arg-type]
        content, part = body.getbuffer(), self.path / PART
        path = self.path / f"{self._number + 1:06d}{SUFFIX}"
        try:
            with open(part, "wb") as file:
                file.write(HEAD + hashlib.sha256(content).hexdigest().encode() + b"\n")
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, path)
            self._sync()
        except OSError as error:
            with suppress(OSError):  # it is no checkpoint, and the next one takes its place
                part.unlink()
            left = f"; {self._good[-1].name}, the checkpoint before, is intact" if self._good else ""
            raise CheckpointError(
                f"the checkpoint of {len(content):,} bytes cannot be written to {self.path} ({_reason(error)}){left}. Make room there, and "
                f"solve again with resume=True."
            ) from error
        self._number += 1
        self._good = [*self._good[1 - KEPT :], path]
        for old in set(self._files()) - set(self._good):
            old.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        """The checkpoints, the oldest first."""
        return sorted((p for p in self.path.glob(f"*{SUFFIX}") if p.stem.isdigit()), key=lambda path: int(path.stem))

    def _sync(self) -> None:
        """Have the new name on disk as well."""
        folder = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _read(path: Path) -> CheckpointContent:
    """A file's content, if it is what was written."""
    content = path.read_bytes()
    head, newline, body = content.partition(b"\n")
    if not head.startswith(HEAD) or not newline:
        raise DamagedError("not a checkpoint, or only the beginning of one")
    if hashlib.sha256(body).hexdigest().encode() != head.removeprefix(HEAD):
        raise DamagedError("damaged, or only a part of it was written")
    with np.load(io.BytesIO(body), allow_pickle=False) as stored:
        note = json.loads(str(stored["note"]))
        if note["format"] != FORMAT:
            raise CheckpointError(f"{path} has format {note['format']}; this version of hierfl reads format {FORMAT}.")
        return CheckpointContent(note, {name: stored[name] for name in stored.files if name != "note"})


def _reason(error: OSError) -> str:
    return error.strerror or str(error)

"""Files that are on the disk as a whole, or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, *pieces: bytes | memoryview, mode: int = 0o666) -> None:
    """Write a file in place of the one of its name, if there is one, and bring both it and its name to the disk.

    Raises ``OSError``; what was there is then as it was.
    """
    part = path.with_name(f"{path.name}.part")
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:
            file.writelines(pieces)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError:
        with suppress(OSError):  # a full disk keeps no part of it
            part.unlink()
        raise

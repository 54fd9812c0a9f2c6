"""Fetching published files, when asked: each is compared with its published MD5 sum and only then has its name."""

from __future__ import annotations

import hashlib
import os
import shutil
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from hierfl.errors import AbsentDataError, DataError

SECONDS = 60  # without an answer


def fetch_published(file: str, md5: str, places: Sequence[str], folder: Path) -> Path:
    """The file in ``folder``, fetched from the first of the places that has it whole, unless it is there.

    Raises ``AbsentDataError`` if no place has it. Raises ``DataError`` if the folder cannot be made.
    """
    path = folder / file
    if path.exists():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(
            f"the folder {folder} cannot be made ({error.strerror}): choose another one for the data."
        ) from error
    faults = []
    for place in places:
        fault = _fetched(place + file, md5, path)
        if fault is None:
            return path
        faults.append(f"{place + file}: {fault}")
    raise AbsentDataError(f"{file} could not be fetched. {'; '.join(faults)}. Put it in {folder} by hand.")


def _fetched(address: str, md5: str, path: Path) -> str | None:
    """Fetch a file; returns what went wrong, if anything did."""
    part = path.with_name(f"{path.name}.part")
    try:
        with urllib.request.urlopen(address, timeout=SECONDS) as answer, open(part, "wb") as file:
            shutil.copyfileobj(answer, file)
        with open(part, "rb") as file:
            found = hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()
        if found != md5:
            return f"its MD5 sum is {found}, not {md5}"
        os.replace(part, path)
    except OSError as error:  # those of urllib included
        return str(error)
    finally:
        part.unlink(missing_ok=True)
    return None

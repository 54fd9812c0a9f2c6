"""A site's log: its owner's alone, one line for each thing that happened, and no value of a row in it, whatever went wrong."""

from __future__ import annotations

import logging
import os
import stat
import sys
from traceback import extract_tb

from hierfl.errors import SettingError

LONGEST = 10_000  # characters of a line


class OwnersLine(logging.Formatter):
    """A record as one line: what others have written into it makes no second one, and errors are told without their words."""

    def format(self, record: logging.LogRecord) -> str:
        """Time, level and message; of an error its kind and where it came from."""
        line = f"{self.formatTime(record)} {record.levelname} {record.getMessage()}"
        if record.exc_info and record.exc_info[1] is not None:
            line += f": {told_without_words(record.exc_info[1])}"
        shown = line if len(line) <= LONGEST else f"{line[:LONGEST]} ... ({len(line):,} characters)"
        return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in shown)


def told_without_words(error: BaseException) -> str:
    """An error's kind and the lines that led to it, the last one first; its words may hold what it was about, such as a row."""
    trace = reversed(extract_tb(error.__traceback__))
    return f"{type(error).__name__} at {', '.join(f'{at.filename}:{at.lineno} in {at.name}' for at in trace)}"


def start_log(path: str | None) -> None:
    """Write the log of this process's site to a file, or to standard error; warnings of what it is made of as well, which may quote rows.

    The file is made for its owner alone (0600), and is made so where it is there and others may read it.

    Raises ``SettingError`` if it cannot be.
    """
    try:
        stream = sys.stderr if path is None else open(path, "a", encoding="utf-8", opener=_private)  # noqa: SIM115
    except OSError as error:
        raise SettingError(f"--log {path!r}: not a file that is yours alone ({error.strerror}).") from error
    handler = logging.StreamHandler(stream)
    handler.setFormatter(OwnersLine())
    logging.getLogger().addHandler(handler)
    logging.getLogger("hierfl.site").setLevel(logging.INFO)


def _private(path: str, flags: int) -> int:
    file = os.open(path, flags, 0o600)
    about = os.fstat(file)
    if stat.S_ISREG(about.st_mode) and stat.S_IMODE(about.st_mode) & 0o077:
        try:
            os.fchmod(file, 0o600)
        except OSError:
            os.close(file)
            raise
    return file

"""``Checkpoint``: where and how often a run is kept, so that it can go on after whatever ends it."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from hierfl.errors import SettingError
from hierfl.near_names import suggests_names

SECONDS = 30.0


@suggests_names
@dataclass(frozen=True)
class Checkpoint:
    """Settings of checkpoints, for ``Problem.solve(checkpoint=...)``; a folder's name alone stands for ``Checkpoint(folder)``.

    A run is kept when it begins, when either of the two is due at the end of a block of ``evaluate_every`` rounds, and when it ends.
    The two latest checkpoints stay in the folder.

    Parameters
    ----------
    folder
        A folder for this run alone; made if there is none.
    every_seconds
        A checkpoint is due after so many seconds; None leaves it to ``every_rounds``.
    every_rounds
        A checkpoint is due after so many rounds; None leaves it to ``every_seconds``.

    Raises
    ------
    SettingError
        For a setting out of range.

    Examples
    --------
    >>> kept = hf.Checkpoint("runs/first", every_seconds=60)
    >>> result = problem.solve(checkpoint=kept)  # doctest: +SKIP
    """

    folder: str | os.PathLike[str]
    every_seconds: float | None = SECONDS
    every_rounds: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.folder, (str, os.PathLike)) or not str(self.folder):
            raise SettingError(
                f'checkpoint={self.folder!r}: the name of a folder, such as "run/", or hf.Checkpoint(...).'
            )
        seconds, rounds = self.every_seconds, self.every_rounds
        if seconds is not None and (
            isinstance(seconds, bool) or not isinstance(seconds, Real) or not float(seconds) >= 0
        ):
            raise SettingError(f"every_seconds={seconds!r} of Checkpoint: a number of at least 0, or None.")
        if rounds is not None and (isinstance(rounds, bool) or not isinstance(rounds, (int, np.integer)) or rounds < 1):
            raise SettingError(f"every_rounds={rounds!r} of Checkpoint: a whole number of at least 1, or None.")
        if seconds is None and rounds is None:
            raise SettingError("Checkpoint: every_seconds and every_rounds are both None; give one of them.")

    @classmethod
    def of(cls, given: Any) -> Checkpoint:
        """What ``checkpoint=...`` stands for."""
        return given if isinstance(given, Checkpoint) else cls(given)

    @property
    def path(self) -> Path:
        """The folder."""
        return Path(self.folder).expanduser()

    def inside(self, name: str) -> Checkpoint:
        """The same in a folder of its own below."""
        return replace(self, folder=self.path / name)

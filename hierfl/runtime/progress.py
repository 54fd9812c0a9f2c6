"""A progress bar for runs that last longer than a moment."""

from __future__ import annotations

import time
from types import TracebackType

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_QUIET_SECONDS = 1.0


class RunProgress:
    """Shows rounds (or other units) done and a note, such as the current objective; appears only after a second."""

    def __init__(self, rounds: int, label: str, enabled: bool, unit: str = "rounds") -> None:
        self._rounds, self._label, self._enabled, self._unit = rounds, label, enabled, unit
        self._began = time.perf_counter()
        self._bar: Progress | None = None
        self._task = None
        self._done = 0

    def __enter__(self) -> RunProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, count: int) -> None:
        """``count`` more are done."""
        self._done += count
        self.update(self._done, "")

    def update(self, done: int, note: str) -> None:
        """Report progress."""
        if not self._enabled or time.perf_counter() - self._began < _QUIET_SECONDS:
            return
        if self._bar is None:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                MofNCompleteColumn(),
                TextColumn(self._unit),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
            )
            self._bar.start()
            self._task = self._bar.add_task(self._label, total=self._rounds, note="")  # type: ignore[assignment]
        assert self._task is not None
        self._bar.update(self._task, completed=done, note=note)

"""Progress bars for what lasts longer than a moment: counted units, and steps of unknown length."""

from __future__ import annotations

import time
from statistics import median_low
from threading import Lock, Timer
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

_QUIET_SECONDS = 1.0
_COSTLY_SECONDS = 20.0
_WATCHED_SECONDS, _WATCHED_PARTS = 2.0, 3  # before an estimate: a part may be the compilation of yet another program


class _Bar:
    """A bar that appears after a second, from a thread of its own where nothing is reported until then."""

    def __init__(self, label: str, total: int | None, enabled: bool, columns: list[ProgressColumn]) -> None:
        self._label, self._total, self._enabled = label, total, enabled
        self._bar = Progress(TextColumn("{task.description}"), BarColumn(), *columns, transient=total is None)
        self._shown, self._showing = False, Lock()
        self._task = self._bar.add_task(label, total=total, note="starting", start=False)
        self._timer = Timer(_QUIET_SECONDS, self._show)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._bar.start_task(self._task)
        if self._enabled:
            self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._showing:
            self._enabled = False
            if self._shown:
                self._bar.stop()

    def _show(self) -> None:
        with self._showing:
            if self._enabled and not self._shown:
                self._shown = True
                self._bar.start()


class Waiting(_Bar):
    """Shows that a step of unknown length goes on, and for how long; leaves nothing behind."""

    def __init__(self, label: str, enabled: bool) -> None:
        super().__init__(label, None, enabled, [TimeElapsedColumn()])


class RunProgress(_Bar):
    """Shows rounds (or other units) done and a note, such as the current objective."""

    def __init__(self, rounds: int, label: str, enabled: bool, unit: str = "rounds") -> None:
        columns = [
            MofNCompleteColumn(),
            TextColumn(unit),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        ]
        super().__init__(label, rounds, enabled, columns)
        self._rounds, self._unit = rounds, unit
        self._began = time.perf_counter()
        self._done = 0
        self._first: float | None = None
        self._latest = 0.0
        self._rates: list[float] = []  # seconds for one unit, of every part but the first, which compiles
        self._estimated = False

    def advance(self, count: int) -> None:
        """Report that ``count`` more are done."""
        now = time.perf_counter()
        self._done += count
        self.update(self._done, "")
        if self._first is None:
            self._first = now
        elif not self._estimated:
            self._rates.append((now - self._latest) / count)
            if now - self._first >= _WATCHED_SECONDS and len(self._rates) + 1 >= _WATCHED_PARTS:
                self._estimated = True
                self._announce(median_low(self._rates) * (self._rounds - self._done))
        self._latest = now

    def _announce(self, seconds: float) -> None:
        """Say once what is ahead, where it is much."""
        if self._enabled and seconds > _COSTLY_SECONDS:
            Console(stderr=True).print(
                f"{self._label}: about {seconds:.0f} s more for the remaining {self._rounds - self._done:,} of {self._rounds:,} "
                f"{self._unit}; fewer of them, or a looser tolerance=, take less."
            )

    def update(self, done: int, note: str) -> None:
        """Report that so many are done, with a note."""
        if not self._enabled or time.perf_counter() - self._began < _QUIET_SECONDS:
            return
        self._show()
        self._bar.update(self._task, completed=min(done, self._rounds), note=note)

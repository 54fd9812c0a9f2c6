"""A progress bar for runs that last longer than a moment."""

from __future__ import annotations

import time
from statistics import median_low
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_QUIET_SECONDS = 1.0
_COSTLY_SECONDS = 20.0
_WATCHED_SECONDS, _WATCHED_PARTS = 2.0, 3  # before an estimate: a part may be the compilation of yet another program


class RunProgress:
    """Shows rounds (or other units) done and a note, such as the current objective; appears only after a second."""

    def __init__(self, rounds: int, label: str, enabled: bool, unit: str = "rounds") -> None:
        self._rounds, self._label, self._enabled, self._unit = rounds, label, enabled, unit
        self._began = time.perf_counter()
        self._bar: Progress | None = None
        self._task = None
        self._done = 0
        self._first: float | None = None
        self._latest = 0.0
        self._rates: list[float] = []  # seconds for one unit, of every part but the first, which compiles
        self._estimated = False

    def __enter__(self) -> RunProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, count: int) -> None:
        """``count`` more are done."""
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
        self._bar.update(self._task, completed=min(done, self._rounds), note=note)

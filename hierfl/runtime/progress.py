"""A progress bar for runs that last longer than a moment."""

from __future__ import annotations

import time
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

_QUIET_SECONDS = 1.0
_COSTLY_SECONDS = 20.0


class RunProgress:
    """Shows rounds (or other units) done and a note, such as the current objective; appears only after a second."""

    def __init__(self, rounds: int, label: str, enabled: bool, unit: str = "rounds") -> None:
        self._rounds, self._label, self._enabled, self._unit = rounds, label, enabled, unit
        self._began = time.perf_counter()
        self._bar: Progress | None = None
        self._task = None
        self._done = 0
        self._latest: float | None = None
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
        now, before = time.perf_counter(), self._latest
        self._done, self._latest = self._done + count, now
        self.update(self._done, "")
        if before is not None and not self._estimated:  # the first part compiles
            self._estimated = True
            self._announce((now - before) / count * (self._rounds - self._done))

    def _announce(self, seconds: float) -> None:
        """Say once what is ahead, where it is much."""
        if self._enabled and seconds > _COSTLY_SECONDS:
            Console(stderr=True).print(
                f"{self._label}: about {seconds:.0f} s for {self._rounds:,} {self._unit}; fewer of them, or a looser tolerance=, "
                f"take less."
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
        self._bar.update(self._task, completed=done, note=note)

"""Progress bars for what lasts longer than two seconds: counted units, steps of unknown length, questions asked again and again."""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median_low
from threading import Event, Lock, Thread, Timer
from types import TracebackType
from typing import Any, Self

from rich import get_console
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

_QUIET_SECONDS = 2.0
_COSTLY_SECONDS = 20.0
_WATCHED_SECONDS, _WATCHED_PARTS = 2.0, 3  # before an estimate: a part may be the compilation of yet another program
_SLOW_SECONDS = 0.2  # a question that took as long is watched when it is asked again
_REDRAWN_SECONDS = 0.5  # in a notebook


class _NotebookProgress(Progress):
    """The bar as a line of text in a notebook's cell, where rich would leave an empty box, or ask for another package."""

    def start(self) -> None:
        from IPython.display import display

        self._handle = display(self._line(), raw=True, display_id=True)
        self._ended = Event()
        self._redrawing = Thread(target=self._redraw, daemon=True)
        self._redrawing.start()

    def stop(self) -> None:
        self._ended.set()
        self._redrawing.join()
        self._handle.update({"text/plain": ""} if self.live.transient else self._line(), raw=True)

    def refresh(self) -> None:
        """Leave it to the thread."""

    def _redraw(self) -> None:
        while not self._ended.wait(_REDRAWN_SECONDS):
            self._handle.update(self._line(), raw=True)

    def _line(self) -> dict[str, Any]:
        text = io.StringIO()
        Console(file=text, width=100, force_jupyter=False).print(self.get_renderable(), end="")
        return {"text/plain": text.getvalue().rstrip()}


class _Bar:
    """A bar that appears after two seconds, from a thread of its own where nothing is reported until then."""

    def __init__(self, label: str, total: int | None, enabled: bool, columns: list[ProgressColumn]) -> None:
        self._label, self._total, self._enabled = label, total, enabled
        kind = _NotebookProgress if get_console().is_jupyter else Progress
        self._bar = kind(TextColumn("{task.description}"), BarColumn(), *columns, transient=total is None)
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


class Waits:
    """Waiting at questions that are asked again and again: shown for one of a kind that is new, which compiles, or was slow."""

    def __init__(self) -> None:
        self._quick: set[str] = set()

    @contextmanager
    def at(self, label: str) -> Iterator[None]:
        """Answer a question of this kind within."""
        if label in self._quick:
            yield
            return
        began = time.perf_counter()
        with Waiting(label, True):
            yield
        if time.perf_counter() - began < _SLOW_SECONDS:
            self._quick.add(label)


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

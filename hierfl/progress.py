"""Progress bars for what lasts longer than two seconds: counted units, steps of unknown length, questions asked again and again.

The environment variable ``HIERFL_PROGRESS=off`` shows none, for logs and for pages that are built of notebooks.
"""

from __future__ import annotations

import io
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from statistics import median_low
from threading import Event, Lock, Thread, Timer
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn

_QUIET_SECONDS = 2.0
_COSTLY_SECONDS = 20.0
_WATCHED_SECONDS, _WATCHED_PARTS = 2.0, 3  # before an estimate: a part may be the compilation of yet another program
_SLOW_SECONDS = 0.2  # a question that took as long is watched when it is asked again
_WIDTH_OF_A_LOG = 400
_REDRAWN_SECONDS = 0.5  # in a notebook


@cache
def _console() -> Console:
    """Where all bars are shown: on stderr, so that what a program prints is its own."""
    from rich.console import Console

    console = Console(stderr=True)
    if not (console.is_terminal or console.is_jupyter):
        console.width = _WIDTH_OF_A_LOG  # nothing is cut, or broken, where no window has a width
    return console


class _InNotebook:
    """A bar as a line of text in a notebook's cell, where rich would leave an empty box, or ask for another package."""

    def __init__(self, bar: Progress) -> None:
        self._bar, self._ended = bar, Event()
        self._redrawing = Thread(target=self._redraw, daemon=True)

    def start(self) -> None:
        from IPython.display import display

        self._handle = display(self._line(), raw=True, display_id=True)
        self._redrawing.start()

    def stop(self) -> None:
        self._ended.set()
        self._redrawing.join()
        self._handle.update({"text/plain": ""} if self._bar.live.transient else self._line(), raw=True)

    def _redraw(self) -> None:
        while not self._ended.wait(_REDRAWN_SECONDS):
            self._handle.update(self._line(), raw=True)

    def _line(self) -> dict[str, Any]:
        from rich.console import Console

        text = io.StringIO()
        Console(file=text, width=100, force_jupyter=False, color_system=None).print(self._bar.get_renderable(), end="")
        return {"text/plain": text.getvalue().rstrip()}


class _Bar:
    """A bar that appears after two seconds, by a thread of its own where nothing is reported, and loads what draws it."""

    def __init__(self, label: str, total: int | None, enabled: bool) -> None:
        self._label, self._total = label, total
        self._enabled = enabled and os.environ.get("HIERFL_PROGRESS", "").lower() != "off"
        self._bar: Progress | None = None
        self._display: Progress | _InNotebook | None = None
        self._showing, self._entered = Lock(), time.monotonic()
        self._timer = Timer(_QUIET_SECONDS, self._show)
        self._timer.daemon = True

    def _columns(self) -> list[ProgressColumn]:
        """What stands behind the label and the bar."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        if self._enabled:
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._showing:
            self._enabled = False
            if self._display is not None:
                self._display.stop()

    def _show(self) -> None:
        console, transient = _console(), self._total is None
        if transient and not (console.is_terminal or console.is_jupyter):
            return  # nobody looks
        drawn = self._drawn(transient)
        with self._showing:
            if not self._enabled or self._bar is not None:
                return
            self._bar, self._display = drawn, _InNotebook(drawn) if console.is_jupyter else drawn
            self._display.start()

    def _drawn(self, transient: bool) -> Progress:
        """What rich draws; it began when this bar was entered."""
        from rich.progress import BarColumn, Progress, TextColumn

        columns = [TextColumn("{task.description}"), BarColumn(), *self._columns()]
        shared = sys.stdout.isatty()  # what is printed meanwhile then goes above the bar
        options: dict[str, Any] = {"transient": transient, "redirect_stdout": shared, "get_time": time.monotonic}
        bar = Progress(*columns, console=_console(), **options)
        task = bar.add_task(self._label, total=self._total, note="starting")
        bar.tasks[task].start_time = self._entered
        return bar


class Waiting(_Bar):
    """Shows that a step of unknown length goes on, and for how long; leaves nothing behind."""

    def __init__(self, label: str, enabled: bool) -> None:
        super().__init__(label, None, enabled)

    def _columns(self) -> list[ProgressColumn]:
        from rich.progress import TimeElapsedColumn

        return [TimeElapsedColumn()]


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
        super().__init__(label, rounds, enabled)
        self._rounds, self._unit = rounds, unit
        self._began = time.perf_counter()
        self._done = 0
        self._first: float | None = None
        self._latest = 0.0
        self._rates: list[float] = []  # seconds for one unit, of every part but the first, which compiles
        self._estimated = False

    def _columns(self) -> list[ProgressColumn]:
        from rich.progress import MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        unit, left, note = TextColumn(self._unit), TextColumn("left"), TextColumn("{task.fields[note]}")
        return [MofNCompleteColumn(), unit, TimeElapsedColumn(), left, TimeRemainingColumn(), note]

    def advance(self, count: int) -> None:
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
            _console().print(
                f"{self._label}: about {seconds:.0f} s more for the remaining {self._rounds - self._done:,} of {self._rounds:,} "
                f"{self._unit}; fewer of them (points=101 for a slice or a report, points=15 for a surface), or a looser tolerance=, take less."
            )

    def update(self, done: int, note: str) -> None:
        if not self._enabled or time.perf_counter() - self._began < _QUIET_SECONDS:
            return
        self._show()
        assert self._bar is not None
        self._bar.update(self._bar.task_ids[0], completed=min(done, self._rounds), note=note)

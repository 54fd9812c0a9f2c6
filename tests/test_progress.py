"""The progress bars: when they appear and announce what is ahead, and that they never count too many."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from rich.console import Console

import hierfl as hf
from hierfl import progress
from hierfl.progress import RunProgress, Waiting, Waits
from hierfl.solvers import ZOHFL


class Clock:
    """Stands in for the time; ``parts`` advances through a bar, each part taking some seconds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)

    def parts(self, bar: RunProgress, seconds: list[float], count: int) -> None:
        for each in seconds:
            self.now += each
            bar.advance(count)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> io.StringIO:
    seen = io.StringIO()
    console = Console(file=seen, force_terminal=True, width=100)
    monkeypatch.setattr(progress, "_console", lambda: console)
    return seen


def appears(what: str, seen: io.StringIO) -> bool:
    """Whether the text is shown within some seconds."""
    until = time.monotonic() + 10
    while time.monotonic() < until and what not in seen.getvalue():
        time.sleep(0.01)
    return what in seen.getvalue()


def announced(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(line for line in capsys.readouterr().err.split() if line.isprintable())


TOLD = "slice: about 97 s more for the remaining 970 of 1,000 points"
# all points, those of a part, seconds of parts after which nothing is said, those of more of them, what then is
AHEAD: dict[str, tuple[int, int, list[float], list[float], str]] = {
    "a second program is compiled": (84_021, 64, [0.5, 0.04, *[3e-4] * 1000], [], ""),
    "a second program is compiled for long": (84_021, 64, [0.5, 3.0, *[3e-4] * 1000], [], ""),
    "one part after the first is no rate": (1000, 10, [9.0, 4.0], [1.0] * 3, TOLD),
    "not before two seconds": (10**6, 10, [0.1] * 15, [0.1] * 15, "about"),
}


@pytest.mark.parametrize("case", AHEAD)
def test_a_costly_slice_is_announced_once_from_the_median_rate(
    case: str, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    total, count, quiet, told, said = AHEAD[case]
    with RunProgress(total, "slice", True, "points") as bar:
        clock.parts(bar, quiet, count)
        assert "about" not in announced(capsys)
        clock.parts(bar, told, count)
    assert announced(capsys).count(said or "about") == bool(said)


@pytest.mark.parametrize(
    ("make", "label"),
    [(lambda on: Waiting("compiling", on), "compiling"), (lambda on: RunProgress(7, "ZOHFL", on), "0/7")],
)
def test_a_bar_appears_although_nothing_is_reported(
    make: Callable[[bool], Any], label: str, terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    with make(True):
        pass
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0.0)
    with make(False):
        pass
    monkeypatch.setenv("HIERFL_PROGRESS", "off")
    with make(True):
        time.sleep(0.1)
    assert not terminal.getvalue()
    monkeypatch.delenv("HIERFL_PROGRESS")
    bar = make(True)
    with pytest.raises(KeyError), bar:
        assert appears(label, terminal)
        raise KeyError


def small_problem() -> hf.Problem:
    x, y = cp.Variable(3, name="x"), cp.Variable(3, name="y")
    lower = hf.ArgMin(y, cp.sum_squares(y - x) + cp.norm1(y))
    return hf.Problem(hf.Minimize(clients=cp.sum_squares(y - 1)), lower=lower, federation=hf.Federation([hf.Client()]))


def test_a_solve_shows_its_compilation_and_its_final_value(
    terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0.0)
    problem = small_problem()
    problem.solve(ZOHFL(), rounds=3)
    for part in ("compiling", "3/3", "f(x) at the end"):
        assert part in terminal.getvalue()
    said = len(terminal.getvalue())
    problem.solve(ZOHFL(), rounds=3, progress=False)
    assert len(terminal.getvalue()) == said


@pytest.mark.parametrize(
    ("ask", "label"),
    [
        (lambda f, x: f(x), "f(x)"),
        (lambda f, x: f.response(x), "f(x)"),
        (lambda f, x: f.certificate(x), "f(x)"),
        (lambda f, x: f.gradient(x), "gradient of f(x)"),
        (lambda f, x: f.multipliers(x), "multipliers"),
        (lambda f, x: f.smoothed(x, 0.1, samples=4), "f^eta(x)"),
    ],
)
def test_a_first_question_shows_that_it_compiles(
    ask: Callable[[Any, np.ndarray], Any], label: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, y = cp.Variable(3, name="x"), cp.Variable(3, name="y")
    lower = hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0])
    implicit = hf.Problem(hf.Minimize(clients=cp.sum_squares(y - 1)), lower=lower).implicit
    watched: list[str] = []
    monkeypatch.setattr(progress, "Waiting", lambda label, on: watched.append(label) or Waiting(label, on))
    monkeypatch.setattr(progress, "_SLOW_SECONDS", 60.0)
    for _ in range(2):  # the second is known to be quick
        ask(implicit, np.ones(3))
        assert watched == ["compiling", label]


def test_a_question_that_was_slow_is_watched_again(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    watched: list[str] = []
    monkeypatch.setattr(progress, "Waiting", lambda label, _: watched.append(label) or Waiting(label, False))
    waits = Waits()
    for seconds in (5.0, 3.0, 0.01, 0.01):
        with waits.at("f(x)"):
            clock.now += seconds
    assert len(watched) == 3
    with pytest.raises(KeyError), waits.at("gradient"):
        raise KeyError
    assert len(watched) == 4


@pytest.mark.parametrize("progress_shown", [True, False])
@pytest.mark.parametrize("part", ["slice", "surface", "convexity"])
def test_what_compiles_the_problem_obeys_progress(
    part: str, progress_shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, asked = small_problem(), []
    monkeypatch.setattr(type(problem), "_compiled", property(lambda _: pytest.fail("compiled")))
    monkeypatch.setattr(progress, "Waiting", lambda label, enabled: asked.append(enabled) or pytest.fail("enough"))
    with pytest.raises(pytest.fail.Exception):
        getattr(problem.implicit, part)(np.ones(3), progress=progress_shown)
    assert asked == [progress_shown]


class Cell:
    """A notebook's cell: what is displayed in it, as it would be saved."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.saved: list[str] = []
        self.shown: list[str] = []
        monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace())
        monkeypatch.setitem(sys.modules, "IPython.display", SimpleNamespace(display=self.display))
        monkeypatch.setenv("FORCE_COLOR", "1")  # as Jupyter's kernel does
        console = Console(force_jupyter=True)
        monkeypatch.setattr(progress, "_console", lambda: console)
        monkeypatch.setattr(progress, "_QUIET_SECONDS", 0.0)
        monkeypatch.setattr(progress, "_REDRAWN_SECONDS", 0.01)

    def display(self, data: dict[str, str], *, raw: bool, display_id: bool) -> Any:
        assert raw and display_id
        place = len(self.saved)
        self.saved.append("")

        def update(data: dict[str, str], *, raw: bool) -> None:
            self.saved[place] = data["text/plain"]
            self.shown.append(data["text/plain"])

        update(data, raw=raw)
        return SimpleNamespace(update=update)


def test_a_notebook_saves_no_empty_bar(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    cell = Cell(monkeypatch)
    with Waiting("compiling", True):
        until = time.monotonic() + 10
        while time.monotonic() < until and len(cell.shown) < 3:
            time.sleep(0.01)
    assert all("compiling" in line for line in cell.shown[:3]) and cell.saved == [""]
    with RunProgress(7, "ZOHFL", True) as bar:
        bar.advance(7)
    assert len(cell.saved) == 2 and "7/7 rounds" in cell.saved[1] and "\x1b" not in cell.saved[1]
    with Waiting("compiling", False):
        pass
    assert len(cell.saved) == 2 and not capsys.readouterr().out


def test_what_a_program_prints_is_its_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0.0)
    with Waiting("compiling", True):
        time.sleep(0.1)
        print("mine")
    assert capsys.readouterr() == ("mine\n", "")
    with RunProgress(7, "ZOHFL", True) as bar:
        bar.advance(7)
        print("mine")
    shown = capsys.readouterr()
    assert shown.out == "mine\n" and "7/7 rounds" in shown.err


def test_a_log_has_whole_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody looks a line is as long as what it says."""
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0.0)
    progress._console.cache_clear()
    note = "the objective is now " + "9" * 100
    with RunProgress(10, "a label of a run that is long", True) as bar:
        bar.update(10, note)
    progress._console.cache_clear()
    assert any(note in line and "10/10 rounds" in line for line in written.getvalue().splitlines())

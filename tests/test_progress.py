"""The progress bars: when they appear and announce what is ahead, and that they never count too many."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from typing import Any

import cvxpy as cp
import pytest
import rich

import hierfl as hf
from hierfl import progress
from hierfl.progress import RunProgress, Waiting
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
def terminal() -> Iterator[io.StringIO]:
    console, seen = rich.get_console(), io.StringIO()
    before = dict(console.__dict__)
    rich.reconfigure(file=seen, force_terminal=True, width=100)
    yield seen
    console.__dict__ = before


def appears(what: str, seen: io.StringIO) -> bool:
    """Whether the text is shown within some seconds."""
    until = time.monotonic() + 10
    while time.monotonic() < until and what not in seen.getvalue():
        time.sleep(0.01)
    return what in seen.getvalue()


def announced(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(line for line in capsys.readouterr().err.split() if line.isprintable())


def test_the_compilation_of_a_second_program_is_not_taken_for_the_rate(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunProgress(84_021, "slice", True, "points") as bar:
        clock.parts(bar, [0.5, 0.04, *[3e-4] * 1000], 64)
    assert "about" not in announced(capsys)
    with RunProgress(84_021, "slice", True, "points") as bar:
        clock.parts(bar, [0.5, 3.0, *[3e-4] * 1000], 64)
    assert "about" not in announced(capsys)


def test_a_costly_slice_is_announced_once_from_the_median_rate(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunProgress(1000, "slice", True, "points") as bar:
        clock.parts(bar, [9.0, 4.0], 10)
        assert "about" not in announced(capsys)  # one part after the first is no rate
        clock.parts(bar, [1.0, 1.0, 1.0], 10)
    assert announced(capsys).count("slice: about 97 s more for the remaining 970 of 1,000 points") == 1


def test_nothing_is_announced_before_two_seconds(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with RunProgress(10**6, "slice", True, "points") as bar:
        clock.parts(bar, [0.1] * 15, 10)
        assert "about" not in announced(capsys)
        clock.parts(bar, [0.1] * 15, 10)
        assert "about" in announced(capsys)


def test_more_than_was_expected_is_not_counted(clock: Clock, capsys: pytest.CaptureFixture[str]) -> None:
    with RunProgress(128, "gradients", True, "points") as bar:
        clock.parts(bar, [2.0, 0.1, 0.1], 43)
    shown = capsys.readouterr()
    assert "128/128" in shown.out + shown.err and "129" not in shown.out + shown.err


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
    assert not terminal.getvalue()
    bar = make(True)
    with pytest.raises(KeyError), bar:
        assert appears(label, terminal)
        raise KeyError


def test_a_solve_shows_its_compilation_and_its_final_value(
    terminal: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_QUIET_SECONDS", 0.0)
    x, y = cp.Variable(3, name="x"), cp.Variable(3, name="y")
    lower = hf.ArgMin(y, cp.sum_squares(y - x) + cp.norm1(y))
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum_squares(y - 1)), lower=lower, federation=hf.Federation([hf.Client()])
    )
    problem.solve(ZOHFL(), rounds=3)
    for part in ("compiling", "3/3", "f(x) at the end"):
        assert part in terminal.getvalue()
    said = len(terminal.getvalue())
    problem.solve(ZOHFL(), rounds=3, progress=False)
    assert len(terminal.getvalue()) == said

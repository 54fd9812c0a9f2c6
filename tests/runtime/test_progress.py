"""The progress bar: when it announces what is ahead, and that it never counts too many."""

from __future__ import annotations

import time

import pytest

from hierfl.runtime.progress import RunProgress


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

"""Letters: whatever they claim, what is read of them takes no more memory than their bytes, and everything else is one kind of error."""

from __future__ import annotations

import io
import json
import logging
import os
import random
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cvxpy as cp
import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hierfl as hf
from hierfl.runtime.sites.letters import Letter, letter_of, start_of
from hierfl.runtime.sites.owner.site_log import OwnersLine, start_log
from hierfl.runtime.sites.parcels import Asked, solver_text
from hierfl.solvers import ZOHFL
from tests.memory import memory_below
from tests.runtime.sites.questioned import site_of, start_for
from tests.runtime.sites.test_letters import Correspondence
from tests.security.noise import MANY, mutated

SLACK = 32 << 20  # bytes, beside four times a letter's own
HUGE = 10**12
NUMBERS = np.arange(8.0)
WHOLE = Letter({"message": "Asked", "round": 3}, {"x": NUMBERS, "clients": np.arange(2)}).as_bytes()


def listed(arrays: Any, content: bytes = b"", words: Any = None, length: int | None = None) -> bytes:
    """A letter whose list claims these arrays; ``length`` is what it says of the list itself."""
    told = json.dumps({"words": words or {"message": "Hello"}, "arrays": arrays}).encode()
    return (len(told) if length is None else length).to_bytes(8, "little") + told + content


def of_list(told: bytes) -> bytes:
    return len(told).to_bytes(8, "little") + told


LIES: dict[str, Any] = {
    "10^12 entries": lambda: listed({"x": ["<f8", [HUGE]]}, bytes(80)),
    "4e8 entries": lambda: listed({"x": ["<f8", [400_000_000]]}),
    "a shape whose product wraps around": lambda: listed({"x": ["<f8", [2**33, 2**33]]}, bytes(8)),
    "a shape below zero": lambda: listed({"x": ["<f8", [-1, -1]]}, bytes(8)),
    "a shape of fractions": lambda: listed({"x": ["<f8", [1.0]]}, bytes(8)),
    "a shape of a million axes": lambda: listed({"x": ["<f8", [1] * 300_000]}, bytes(8)),
    "axes without entries": lambda: listed({"x": ["<f8", [0, 2**62, 2**62]]}),
    "entries without bytes": lambda: listed({"x": ["<U0", [HUGE]]}),
    "objects": lambda: listed({"x": ["|O", [1]]}, bytes(8)),
    "a type of several": lambda: listed({"x": ["<f8,<f8", [1]]}, bytes(16)),
    "no type": lambda: listed({"x": [None, [1]]}, bytes(8)),
    "a list of types": lambda: listed({"x": [["<f8"], [1]]}, bytes(8)),
    "fewer bytes than claimed": lambda: listed({"x": ["<f8", [3]]}, bytes(16)),
    "more bytes than claimed": lambda: listed({"x": ["<f8", [3]]}, bytes(32)),
    "one name twice": lambda: of_list(b'{"words":{},"arrays":{"x":["<f8",[1]],"x":["<f8",[1]]}}') + bytes(16),
    "a list longer than the letter": lambda: listed({}, length=2**63),
    "a list longer than may be": lambda: of_list(b" " * (2 << 20)),
    "deep words": lambda: of_list(b'{"words":{"a":' + b"[" * 500_000 + b"]" * 500_000 + b'},"arrays":{}}'),
    "many words": lambda: of_list(b'{"words":{"a":[' + b"{}," * 300_000 + b'{}]},"arrays":{}}'),
    "a number of many digits": lambda: of_list(b'{"words":{"a":' + b"9" * 100_000 + b'},"arrays":{}}'),
    "words that are no text": lambda: of_list(b'{"words":{"\xff\xfe":1},"arrays":{}}'),
    "words in a list": lambda: listed({}, words=[["a", [1]]]),
    "no words": lambda: of_list(b'{"arrays":{}}'),
    "a list that is none": lambda: of_list(b"[]"),
    "nothing": lambda: b"",
    "a length alone": lambda: bytes(8),
}


def read_within(limit: int, letter: bytes) -> Letter | None:
    """What is read of a letter, by no more memory than that; None where it is refused."""
    with memory_below(limit):
        try:
            return Letter.from_bytes(letter)
        except hf.SiteError as error:
            assert str(error).startswith("a message ") and len(str(error)) < 600 and "\n" not in str(error)
            return None


@pytest.mark.parametrize("lie", LIES)
def test_a_letter_that_lies_is_refused_before_memory_is_taken(lie: str) -> None:
    letter = LIES[lie]()
    assert read_within(4 * len(letter) + SLACK, letter) is None


@settings(max_examples=350, deadline=None)
@given(st.integers(0, 2**63))
def test_mutated_letters_are_read_as_numbers_or_refused(seed: int) -> None:
    """7,000 of them."""
    draw = random.Random(seed)
    for _ in range(MANY):
        changed = mutated(WHOLE, draw)
        try:
            read = Letter.from_bytes(changed)
        except hf.SiteError:
            continue
        assert sum(part.nbytes for part in read.arrays.values()) <= len(changed)
        assert all(part.dtype.kind in "biuf" for part in read.arrays.values())
        assert all(isinstance(word, str | int | float) for word in read.words.values())


def test_mutated_letters_take_no_memory() -> None:
    draw = random.Random(0)
    for _ in range(300):
        read_within(SLACK, mutated(WHOLE, draw))


def test_a_large_letter_is_read_within_a_small_multiple_of_its_length() -> None:
    large = Letter({"message": "Asked"}, {"x": np.arange(4e6)}).as_bytes()
    read = read_within(2 * len(large) + (1 << 20), large)
    assert read is not None
    np.testing.assert_array_equal(read.arrays["x"], np.arange(4e6))


def test_rounds_that_would_make_tables_of_gigabytes_are_refused_before_they_are_made() -> None:
    here = Correspondence()
    letter = letter_of(here.start._replace(rounds=300_000_000))
    with memory_below(SLACK):
        with pytest.raises(hf.SiteError, match="a start of 300,000,000 rounds, more than its tables have"):
            start_of(letter)
        reply = Letter.from_bytes(here.site.answer(letter.as_bytes()))
    assert reply.words["message"] == "Refusal" and "more than its tables have" in str(reply.words["reason"])


@pytest.mark.parametrize(
    "text", ["-" * 100_000 + "1", "[" * 150 + "]" * 150, "(" * 90_000, "FedAvg(" * 5_000, "9" * 90_000, "\0"]
)
def test_a_solver_that_is_deep_or_long_is_refused(text: str) -> None:
    here = Correspondence()
    reply = Letter.from_bytes(here.site.answer(letter_of(here.start._replace(solver=text)).as_bytes()))
    assert reply.words["message"] == "Refusal"


# --- A site's log is its owner's: nobody else reads it, nobody writes a line into it, and no row of the data stands in
# it.


ROW = 7041.25


@pytest.fixture(autouse=True)
def _no_handlers_stay(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    level = logging.getLogger("hierfl.site").level
    yield
    logging.getLogger("hierfl.site").setLevel(level)


@pytest.mark.parametrize("mode", [None, 0o644, 0o666, 0o600])
def test_the_file_is_its_owners_alone(mode: int | None, tmp_path: Path) -> None:
    path, before = tmp_path / "sent.log", os.umask(0)
    try:
        if mode is not None:
            path.write_text("earlier\n")
            path.chmod(mode)
        start_log(str(path))
    finally:
        os.umask(before)
    logging.getLogger("hierfl.site").info("north: sent nothing")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    lines = path.read_text().splitlines()
    assert lines[:-1] == ([] if mode is None else ["earlier"]) and lines[-1].endswith("INFO north: sent nothing")


def test_a_place_that_cannot_be_a_file_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(hf.SettingError, match="--log .* not a file that is yours alone .Is a directory"):
        start_log(str(tmp_path))
    path = tmp_path / "of another.log"
    path.write_text("")
    path.chmod(0o666)

    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "fchmod", refuse)
    with pytest.raises(hf.SettingError, match="not a file that is yours alone .Operation not permitted"):
        start_log(str(path))


def logged(of: str = "") -> io.StringIO:
    """What the site's log will hold, of one logger or of all."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(OwnersLine())
    logging.getLogger(of).addHandler(handler)
    return stream


@pytest.mark.parametrize(
    "end",
    [
        "\n", "\r", "\r\n", "\x0b", "\x0c", "\x1c", "\x1e", "\x85", "\u2028", "\u2029", "\x1b[2K\x1b[1A", "\x08",
        "\u202e", "\ud800",
    ],
    ids=ascii,
)
def test_what_the_server_sends_makes_no_line(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    site_logger = logging.getLogger("hierfl.site")
    monkeypatch.setattr(site_logger, "propagate", False)  # what pytest captures crosses to its own process in UTF-8
    monkeypatch.setattr(site_logger, "handlers", [])
    forged = f"begun{end}2026-11-24 10:02:11,310 INFO north: sent nothing"
    problem, stream = black_box(), logged("hierfl.site")
    desk = site_of(problem, clients=[0])
    for letter in (
        Letter({"message": forged}, {}),
        start(problem, version=forged),
        start(problem, declared=forged, mark="other"),
        start(problem, solver=f"FedAvg({forged!r})"),
        start(problem, algorithm=forged),
    ):
        assert Letter.from_bytes(desk.answer(letter.as_bytes())).words["message"] == "Refusal"
    lines = stream.getvalue().split("\n")
    assert lines.pop() == "" and len(lines) == 5  # why each was refused
    assert all(line.isprintable() for line in lines)


def test_a_line_has_an_end(caplog: pytest.LogCaptureFixture) -> None:
    stream = logged()
    logging.getLogger("hierfl.site").warning("north: refused: %s", "x" * 1_000_000)
    assert len(stream.getvalue()) < 11_000 and "1,000,0" in stream.getvalue()


def black_box() -> hf.Problem:
    """Whose function raises errors that quote the row."""
    x, u = cp.Variable(2, name="x"), hf.Sample(2, name="u")

    def quoting(at: np.ndarray, row: np.ndarray) -> np.ndarray:
        raise ValueError(f"no such patient: {row}")

    clients = [hf.Client({u: np.full((4, 2), ROW)}, name=name) for name in ("north", "south")]
    return hf.Problem(hf.Minimize(clients=hf.E(hf.BlackBox(quoting, x, u))), federation=hf.Federation(clients))


def start(problem: hf.Problem, **changes: object) -> Letter:
    solver = ZOHFL(smoothing=0.1)
    return letter_of(start_for(problem, solver, 10, solver=solver_text(solver))._replace(**changes))


def test_an_error_that_quotes_a_row_is_told_without_its_words(capfd: pytest.CaptureFixture[str]) -> None:
    problem, stream = black_box(), logged()
    desk = site_of(problem, clients=[0])
    assert Letter.from_bytes(desk.answer(start(problem).as_bytes())).words["message"] == "Welcome"
    run = desk.run("")
    assert run is not None
    replies = []
    for (kind, step), shapes in run.protocol.shapes.items():
        for shape in shapes:
            broadcast = jax.tree.map(lambda s: np.ones(s.shape, s.dtype), shape[0])
            each = jax.tree.map(lambda s: np.ones((1, *s.shape[1:]), s.dtype), shape[1])
            asked = Asked(0, 0, 0, None, kind, step, np.array([0]), np.zeros(2, np.uint32), broadcast, each)
            replies.append(desk.answer(letter_of(asked).as_bytes()))
    assert replies and all(Letter.from_bytes(reply).words["message"] == "Refusal" for reply in replies)
    log = stream.getvalue()
    assert "JaxRuntimeError at " in log and "site.py:" in log and "in answer" in log
    seen = log + "".join(capfd.readouterr()) + "".join(str(Letter.from_bytes(reply).words) for reply in replies)
    assert "7041" not in seen and "patient" not in seen


ROWS = """
import cvxpy as cp
import hierfl as hf

def declared() -> hf.Problem:
    x, u = cp.Variable(2, name="x"), hf.Sample(2, name="u")
    return hf.Problem(hf.Minimize(clients=hf.E(cp.sum_squares(x - u))), federation=hf.Federation([hf.Client({u: hf.Elsewhere(3)}, name="north")]))

def load():
    return {"north": {"u": [[float(entry) for entry in line.split(",")] for line in ("1,2", "7041.25,Smith")]}}
"""


def test_data_that_cannot_be_loaded_are_not_printed(tmp_path: Path) -> None:
    study = tmp_path / "study.py"
    study.write_text(ROWS)
    place = ["--problem", f"{study}:declared", "--data", f"{study}:load", "--socket", str(tmp_path / "site.sock")]
    command = [sys.executable, "-m", "hierfl.command.main", "site", *place, "--log", str(tmp_path / "sent.log")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "ValueError at " in done.stderr and "study.py:10 in load" in done.stderr
    assert not any(
        word in done.stderr + done.stdout + (tmp_path / "sent.log").read_text() for word in ("7041", "Smith")
    )

"""A site's log is its owner's: nobody else reads it, nobody writes a line into it, and no row of the data stands in it."""

from __future__ import annotations

import io
import logging
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import cvxpy as cp
import jax
import numpy as np
import pytest

import hierfl as hf
from hierfl.command.loading import load_solver
from hierfl.runtime.sites.letters import Letter, letter_of
from hierfl.runtime.sites.owner.site_log import OwnersLine, start_log
from hierfl.runtime.sites.parcels import Asked, solver_text, starting, without_data
from hierfl.runtime.sites.site import Site, SiteRules
from hierfl.solvers import ZOHFL

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
        "\n",
        "\r",
        "\r\n",
        "\x0b",
        "\x0c",
        "\x1c",
        "\x1e",
        "\x85",
        "\u2028",
        "\u2029",
        "\x1b[2K\x1b[1A",
        "\x08",
        "\u202e",
        "\ud800",
    ],
    ids=ascii,
)
def test_what_the_server_sends_makes_no_line(end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    site_logger = logging.getLogger("hierfl.site")
    monkeypatch.setattr(site_logger, "propagate", False)  # what pytest captures crosses to its own process in UTF-8
    monkeypatch.setattr(site_logger, "handlers", [])
    forged = f"begun{end}2026-11-24 10:02:11,310 INFO north: sent nothing"
    problem, stream = black_box(), logged("hierfl.site")
    desk = desk_of(problem)
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


def desk_of(problem: hf.Problem) -> Site:
    federation = problem.declaration.federation
    assert federation is not None
    bare, held = without_data(problem.declaration), {0: federation.clients[0]}
    return Site("here", bare, held, SiteRules(), read_solver=load_solver)


def start(problem: hf.Problem, **changes: object) -> Letter:
    solver, compiled = ZOHFL(smoothing=0.1), problem.compile()
    begun = starting(compiled, solver.bind(compiled, 10), 10, np.zeros(2), solver=solver_text(solver))
    return letter_of(begun._replace(**changes))


def test_an_error_that_quotes_a_row_is_told_without_its_words(capfd: pytest.CaptureFixture[str]) -> None:
    problem, stream = black_box(), logged()
    desk = desk_of(problem)
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

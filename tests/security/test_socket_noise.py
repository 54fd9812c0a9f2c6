"""The socket file of a site: whatever is sent there ends a connection, never the site, and blocks nobody."""

from __future__ import annotations

import logging
import os
import random
import signal
import socket
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import hierfl as hf
from hierfl.runtime.on_flower import site_frames, socket_door
from hierfl.runtime.on_flower.site_frames import HEAD, LARGEST, MARK, dial, receive_bytes, receive_length, send_frame
from hierfl.runtime.on_flower.socket_door import AT_ONCE, SocketDoor
from hierfl.runtime.sites.letters import Hello, letter_of
from tests.memory import memory_below
from tests.security.noise import MANY, framed, mutated

HELLO = letter_of(Hello()).as_bytes()
NOISE = {
    "nothing": b"",
    "half a mark": MARK[:3],
    "half a head": HEAD.pack(MARK, 5)[:11],
    "a head alone": HEAD.pack(MARK, 5),
    "half a frame": framed(b"abc", 100),
    "2 GB that do not come": framed(b"abc", 1 << 31),
    "more than a frame may have": framed(b"abc", LARGEST + 1),
    "the largest number": framed(b"abc", 2**64 - 1),
    "HTTP": b"GET / HTTP/1.1\r\nHost: site\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    "a letter without a frame": HELLO,
    "what multiprocessing sends": b"\x00\x00\x00\x04\x80\x04N.",
    "its negative length": b"\xff\xff\xff\xff" + b"\x7f" * 8,
    "another version": framed(b"abc").replace(MARK, MARK[:-1] + b"\2"),
    "zeros": bytes(5000),
    "text without end": b"\n" * 500_000,
    "a frame and more": framed(b"abc") + b"more" * 1000,
}


@pytest.fixture
def door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A socket file at which letters are answered in capitals; ``wait`` takes half a second, ``fail`` raises."""
    monkeypatch.setattr(socket_door, "PACE", 1e-5)

    def upper(letter: bytes) -> bytes:
        if letter == b"fail":
            raise ValueError("a row: 7041.25")
        if letter == b"wait":
            time.sleep(0.5)
        return letter.upper()

    with SocketDoor(str(tmp_path / "site.sock")) as opened:
        threading.Thread(target=opened.answer_with, args=(upper,), daemon=True).start()
        yield opened.path


def asked(path: str, letter: bytes = b"right") -> bytes:
    """A right letter's answer, in time."""
    with dial(path) as caller:
        send_frame(caller, letter, 20)
        return receive_bytes(caller, receive_length(caller, 20))


def shouted(path: str, noise: bytes) -> None:
    """Send it, and hear what comes until the other side hangs up."""
    with dial(path) as caller, suppress(ConnectionError):
        caller.settimeout(10)
        caller.sendall(noise)
        caller.shutdown(socket.SHUT_WR)
        while caller.recv(1 << 16):
            pass


@pytest.mark.parametrize("kind", NOISE)
def test_noise_ends_its_connection_and_is_a_line_of_the_log(
    kind: str, door: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    shouted(door, NOISE[kind])
    assert asked(door) == b"RIGHT"
    if kind != "a frame and more":  # whose letter is a right one
        (line,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
        assert line.startswith("a caller was not answered, who ") and len(line) < 200


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**63))
def test_mutated_frames_end_nothing(seed: int, door: str) -> None:
    """2,000 of them, and a right letter after each twenty."""
    draw = random.Random(seed)
    for _ in range(MANY):
        shouted(door, mutated(framed(draw.randbytes(draw.randint(0, 300))), draw))
    assert asked(door) == b"RIGHT"


@contextmanager
def silent(path: str, count: int, words: bytes = b"") -> Iterator[None]:
    """So many callers who say no more than that, and stay."""
    callers = list[socket.socket]()

    def call() -> None:
        for _ in range(count):
            caller = dial(path)
            callers.append(caller)
            with suppress(ConnectionError):
                caller.sendall(words)

    calling = threading.Thread(target=call)
    calling.start()
    calling.join(20)
    assert not calling.is_alive()
    yield
    for caller in callers:
        caller.close()


@pytest.mark.parametrize("words", [b"", MARK, framed(b"x" * 100, 1000), framed(b"", 1 << 31)])
def test_silent_callers_block_nobody_and_take_no_memory(words: bytes, door: str) -> None:
    """Three hundred of them, each of whom has begun a frame; of those that announce gigabytes none has them."""
    with memory_below(32 << 20), silent(door, 300, words):
        began = time.monotonic()
        assert asked(door) == b"RIGHT"
        assert time.monotonic() - began < 5
        assert threading.active_count() < AT_ONCE + 40


def test_a_frame_has_its_time_however_it_trickles(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site_frames, "SECONDS", 0.5)
    with dial(door) as caller:
        began = time.monotonic()
        with pytest.raises(OSError):
            for byte in framed(b"x" * 100_000):
                caller.sendall(bytes([byte]))
                time.sleep(0.01)
        assert 0.4 < time.monotonic() - began < 5
    assert asked(door) == b"RIGHT"


def test_a_caller_who_says_nothing_is_heard_out_for_its_time_alone(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket_door, "SECONDS", 0.3)
    with dial(door) as caller:
        caller.settimeout(5)
        assert caller.recv(1) == b""


def test_callers_who_leave_before_their_answer_and_letters_that_cannot_be_answered(
    door: str, caplog: pytest.LogCaptureFixture
) -> None:
    with dial(door) as caller:
        send_frame(caller, b"wait")
    with pytest.raises(site_frames.FrameError, match="was gone"):
        asked(door, b"fail")
    assert asked(door) == b"RIGHT"
    assert "who was gone before the answer" in caplog.text and "a letter was not answered" in caplog.text


def test_letters_are_answered_one_after_another(tmp_path: Path) -> None:
    inside, most, answers = 0, 0, list[bytes]()

    def answer(letter: bytes) -> bytes:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        time.sleep(0.01)
        inside -= 1
        return letter[::-1]

    letters = [bytes([65 + k]) * (500_000 if k % 2 else 5) + b"!" for k in range(20)]
    with SocketDoor(str(tmp_path / "site.sock")) as opened:
        threading.Thread(target=opened.answer_with, args=(answer,), daemon=True).start()
        callers = [threading.Thread(target=lambda own=own: answers.append(asked(opened.path, own))) for own in letters]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(20)
    assert most == 1 and sorted(answers) == sorted(letter[::-1] for letter in letters)


def test_letters_that_wait_have_a_limit_of_bytes_together(door: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One who holds nearly all of it keeps small letters out no longer than it is there, and none who only says so."""
    monkeypatch.setattr(socket_door, "LARGEST", 100_000)
    with dial(door) as hoarder:
        hoarder.sendall(framed(b"x" * 99_000, 1 << 30))
        time.sleep(0.2)
        with pytest.raises((site_frames.FrameError, ConnectionError)):
            asked(door, b"y" * 50_000)
        assert asked(door) == b"RIGHT"
    time.sleep(0.2)
    assert asked(door, b"y" * 50_000) == b"Y" * 50_000


@pytest.mark.parametrize(("umask", "mode"), [(0o000, 0o660), (0o007, 0o660), (0o022, 0o600), (0o077, 0o600)])
def test_who_may_connect(umask: int, mode: int, tmp_path: Path) -> None:
    """The process's user, and its group where the umask leaves it writing; nobody else."""
    before = os.umask(umask)
    try:
        with SocketDoor(str(tmp_path / "site.sock")) as opened:
            assert stat.S_IMODE(os.stat(opened.path).st_mode) == mode
            assert os.umask(umask) == umask
    finally:
        os.umask(before)


def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signal, "signal", lambda *_: None)  # this process ends as it did
    (tmp_path / "rows.csv").write_text("1,2")
    for place, said in (("rows.csv", "a file of another kind"), ("no/site.sock", "no socket can be made there")):
        with pytest.raises(hf.SettingError, match=said):
            socket_door.serve_socket(bytes.upper, str(tmp_path / place))
    assert (tmp_path / "rows.csv").read_text() == "1,2"


def test_a_door_closes_though_all_its_places_are_taken(tmp_path: Path) -> None:
    """By letters that nobody answers any more."""
    callers = [socket.socket(socket.AF_UNIX) for _ in range(AT_ONCE + 5)]
    with SocketDoor(str(tmp_path / "site.sock")) as opened:
        for caller in callers:
            caller.connect(opened.path)
            caller.sendall(framed(b"letter"))
        time.sleep(0.3)
    for caller in callers:
        caller.close()
    assert not Path(opened.path).exists()

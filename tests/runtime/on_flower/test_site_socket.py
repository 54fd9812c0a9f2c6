"""The socket file of a site's process: one site at a time, files of those that are gone are replaced, callers may go away."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.connection import Client, Listener
from pathlib import Path

import pytest

import hierfl as hf
from hierfl.runtime.on_flower.relay import connected
from hierfl.runtime.on_flower.site_socket import serve_socket


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


def upper(letter: bytes) -> bytes:
    if letter == b"end":
        raise SystemExit(0)
    return letter.upper()


def test_letters_are_answered_though_callers_go_away(tmp_path: Path) -> None:
    path, answers = str(tmp_path / "site.sock"), list[bytes]()
    with socket.socket(socket.AF_UNIX) as gone:
        gone.bind(path)  # a file that nobody listens at any more

    def call() -> None:
        while True:
            try:
                Client(path, "AF_UNIX").close()  # gone before it has asked
                break
            except ConnectionRefusedError:
                time.sleep(0.01)
        for letter in (b"a", b"b", b"end"):
            with connected({"socket": path}) as site:
                site.send_bytes(letter)
                if letter != b"end":
                    answers.append(site.recv_bytes())

    caller = threading.Thread(target=call)
    caller.start()
    with pytest.raises(SystemExit):
        serve_socket(upper, path)
    caller.join()
    assert answers == [b"A", b"B"] and not Path(path).exists()


def test_a_place_that_is_taken_and_one_that_is_too_long(tmp_path: Path) -> None:
    path = str(tmp_path / "site.sock")
    with Listener(path, "AF_UNIX"), pytest.raises(hf.SiteError, match="a site listens at .*site.sock already"):
        serve_socket(upper, path)
    with pytest.raises(hf.SettingError, match="at most 100 characters"):
        serve_socket(upper, f"/{'x' * 100}")


def test_a_site_ends_with_its_parent(tmp_path: Path) -> None:
    parent = subprocess.Popen([sys.executable, "-c", ""])
    parent.wait()
    with pytest.raises(SystemExit):
        serve_socket(upper, str(tmp_path / "site.sock"), parent=parent.pid)


def test_a_node_without_a_site_says_so(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="this node has no site: --node-config"):
        connected({})
    with pytest.raises(RuntimeError, match="no site listens at this node's socket"):
        connected({"socket": str(tmp_path / "site.sock")})
    wrong = {"socket": str(tmp_path / "site.sock"), "problem": str(tmp_path / "no.py"), "data": "rows.py:load"}
    with pytest.raises(RuntimeError, match="this node's site could not start"):
        connected(wrong)

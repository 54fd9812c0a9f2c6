"""Compiled programs are kept on disk: from process to process, bounded, and never in anybody's way."""

from __future__ import annotations

import io
import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
import platformdirs
import pytest
from jax._src import compilation_cache, config

from hierfl.jaxtools import disk_cache
from hierfl.jaxtools.checked_arrays import BadArchiveError, read_arrays
from hierfl.jaxtools.disk_cache import HEADROOM, SETTING, SUFFIX, DiskCache, kept_on_disk
from hierfl.jaxtools.precision import computing
from tests.memory import memory_below
from tests.security.noise import archive, array, header, much_directory, overlapping, with_size, words

PROBLEM = """
import sys, jax
from collections import Counter
heard = Counter()
jax.monitoring.register_event_listener(lambda event, **_: heard.update([event.rsplit("/")[-1]]))
import cvxpy as cp, numpy as np
import hierfl as hf
x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
lower = hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0])
problem = hf.Problem(hf.Minimize(clients=0.5 * cp.sum_squares(x + 1 - y)), lower=lower)
from hierfl.jaxtools.precision import computing
with computing(double=True):
    for k in range(4):
        jax.jit(lambda a: a * (k + 1.5)).lower(jax.ShapeDtypeStruct((3,), float)).compile()
print(problem.implicit(np.array([-1.0, 0.5])), heard["cache_misses"], heard["cache_hits"])
"""


def process(folder: Path) -> subprocess.Popen[str]:
    """A process that asks for one value, and says it, how many programs it kept and how many it found."""
    return subprocess.Popen(
        [sys.executable, "-W", "error::UserWarning", "-c", PROBLEM],
        env={**os.environ, SETTING: str(folder)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def told(asked: subprocess.Popen[str]) -> tuple[float, int, int, str]:
    """(value, programs kept, programs found, what it wrote to stderr)."""
    out, err = asked.communicate(timeout=300)
    assert asked.returncode == 0, err
    value, kept, found = out.split()
    return float(value), int(kept), int(found), err


def test_processes_share_what_they_compile_and_mend_what_is_broken(tmp_path: Path) -> None:
    several = [process(tmp_path) for _ in range(2)]
    assert {(value, err) for value, _, _, err in map(told, several)} == {(0.5, "")}
    kept = len(list(tmp_path.iterdir()))
    assert kept > 3 and told(process(tmp_path)) == (0.5, 0, kept, "")
    broken, cut, *_ = tmp_path.iterdir()
    broken.write_bytes(broken.read_bytes()[:-1] + b"?")
    cut.write_bytes(b"")
    assert told(process(tmp_path)) == (0.5, 2, kept - 2, "")
    assert told(process(tmp_path)) == (0.5, 0, kept, "")


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """JAX as it is in a new process, outside the cache that all tests share."""
    monkeypatch.setattr(disk_cache, "_threads", 0)
    monkeypatch.setattr(compilation_cache, "_cache", None)
    disk_cache._cache_at.cache_clear()


def compiled(factor: float) -> None:
    """Have XLA compile a program."""
    jax.jit(lambda a: a * factor + 1).lower(jax.ShapeDtypeStruct((3,), "float32")).compile()


@pytest.mark.parametrize("off", ["off", "OFF", "0"])
def test_off_keeps_nothing(off: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: None) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(SETTING, off)
    with kept_on_disk():
        assert compilation_cache._cache is None
        compiled(2.5)
    assert not list(tmp_path.iterdir())


def test_the_folder_is_the_users_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: None) -> None:
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda name: tmp_path / name)
    monkeypatch.delenv(SETTING)
    with kept_on_disk():
        compiled(2.5)
    assert len(list((tmp_path / "hierfl" / "programs").iterdir())) == 1


def test_a_folder_that_cannot_be_made_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, alone: None
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(SETTING, str(tmp_path / "file" / "folder"))
    with caplog.at_level(logging.WARNING, "hierfl"), kept_on_disk():
        compiled(2.5)
        compiled(3.5)
    assert len(caplog.records) == 1 and SETTING in caplog.text


def test_a_users_own_cache_of_jax_stays_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: None) -> None:
    own, ours = tmp_path / "own", tmp_path / "ours"
    monkeypatch.setenv(SETTING, str(ours))
    before = jax.config.jax_compilation_cache_dir
    with config.persistent_cache_min_compile_time_secs(0.0):
        try:
            jax.config.update("jax_compilation_cache_dir", str(own))
            with kept_on_disk():
                compiled(2.5)
        finally:
            jax.config.update("jax_compilation_cache_dir", before)
            compilation_cache.reset_cache()
    assert list(own.iterdir()) and not ours.exists()


def test_threads_enter_and_leave_as_they_like(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alone: None) -> None:
    monkeypatch.setenv(SETTING, str(tmp_path))

    def work(place: int) -> None:
        for turn in range(3):
            with computing(double=True):
                assert compilation_cache._cache is not None
                compiled(10.0 * place + turn)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert compilation_cache._cache is None and len(list(tmp_path.iterdir())) == 12


def test_the_least_recently_used_are_dropped(tmp_path: Path) -> None:
    limit, size = 100 * HEADROOM, 40
    cache = DiskCache(tmp_path, limit)
    (tmp_path / "notes.txt").write_text("mine")
    for k in range(200):
        cache.put(str(k), bytes([k]) * size)
        os.utime(cache._file(str(k)), (1e9 + k, 1e9 + k))
        assert cache.get("0") == bytes(size)  # used now
        assert sum(file.stat().st_size for file in tmp_path.glob("*" + SUFFIX)) <= limit
    assert cache.get("199") == bytes([199]) * size
    assert cache.get("1") is None and cache.get("100") is None
    assert len(list(tmp_path.glob("*" + SUFFIX))) > 20 and (tmp_path / "notes.txt").exists()
    cache.put("too large", bytes(limit // HEADROOM + 1))
    assert cache.get("too large") is None


def test_what_an_ended_process_left_is_removed(tmp_path: Path) -> None:
    old, new = tmp_path / "old.part", tmp_path / "new.part"
    for file in (old, new):
        file.write_bytes(b"half")
    os.utime(old, (1e9, 1e9))
    DiskCache(tmp_path).put("key", b"program")
    assert not old.exists() and new.exists()


def test_a_full_disk_is_said_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cache = DiskCache(tmp_path)
    cache.put("before", b"program")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with caplog.at_level(logging.WARNING, "hierfl"):
        cache.put("first", b"program")
        cache.put("second", b"program")
    assert len(caplog.records) == 1 and "No space left" in caplog.text
    assert cache.get("before") == b"program" and cache.get("first") is None
    assert not list(tmp_path.glob("*.part"))


# --- Archives of arrays: whatever they claim, what is read of them takes no more memory than their bytes, and
# everything else is one kind of error.


SLACK = 32 << 20  # bytes, beside four times an archive's own
HUGE = 10**12


def bomb(count: int) -> bytes:
    return archive({"words.npy": words(), "array x.npy": array(np.zeros(count))}, packed=True)


LIES: dict[str, Any] = {
    "a header of 10^12 entries": lambda: archive({"words.npy": words(), "array x.npy": header((HUGE,)) + bytes(80)}),
    "a header of 4e8 entries": lambda: archive({"words.npy": words(), "array x.npy": header((400_000_000,))}),
    "a shape whose product wraps around": lambda: archive({"array x.npy": header((2**33, 2**33)) + bytes(8)}),
    "a shape below zero": lambda: archive({"words.npy": words(), "array x.npy": header((-1, -1)) + bytes(8)}),
    "entries without bytes": lambda: archive({"words.npy": words(), "array x.npy": header((HUGE,), "<U0")}),
    "a header that is deep": lambda: archive(
        {"array x.npy": header((1,)).replace(b"(1,)", b"(" * 9 + b"1" + b")" * 9)}
    ),
    "a header that is long": lambda: archive({"words.npy": words(), "array x.npy": header((1,) * 9000)}),
    "a header of objects": lambda: archive({"words.npy": words(), "array x.npy": header((1,), "|O") + bytes(8)}),
    "a header in another format": lambda: archive({"words.npy": words().replace(b"NUMPY\1", b"NUMPY\3")}),
    "fewer bytes than claimed": lambda: with_size(archive({"words.npy": words()}), 0x7FFFFFF0),
    "one name twice": lambda: archive(
        [("words.npy", words()), ("array x.npy", array(1.0)), ("array x.npy", array(2.0))]
    ),
    "one name in two ways": lambda: archive([("words.npy", words()), ("array x", b""), ("array x.npy", array(2.0))]),
    "overlapping members": lambda: overlapping(26, 1_000_000),
    "a million of one member": lambda: overlapping(20_000, 100),
    "nothing but a directory": lambda: much_directory(32 << 20),
    "packed members": lambda: bomb(20_000_000),
    "nothing": lambda: b"",
    "an end that points elsewhere": lambda: b"PK\5\6" + b"\xff" * 16 + b"\0\0",
}


@pytest.mark.parametrize("lie", LIES)
def test_an_archive_that_lies_is_refused_before_memory_is_taken(lie: str) -> None:
    content = LIES[lie]()
    with memory_below(4 * len(content) + SLACK), pytest.raises(BadArchiveError) as refused:
        read_arrays(io.BytesIO(content))
    assert len(str(refused.value)) < 600 and "\n" not in str(refused.value)

"""Compiled programs kept on disk, so that the next process loads what this one compiles.

JAX asks its cache for a program before XLA compiles it. While hierfl computes, and unless the user has given JAX a cache of
their own, that cache is a folder of hierfl's: before and after, JAX is as it was. (What another thread of the user's compiles
meanwhile is kept there as well.) JAX's own folder would serve every program of the process, keeps a broken entry for ever and
asks for a lock at every look; here files are replaced as a whole, so that processes need none.

``HIERFL_CACHE`` in the environment names another folder, or is ``off``; it is looked at whenever hierfl begins to compute.

``ProgramCache`` keeps programs, and what else takes long to find out, for one compiled problem. Keys belong to the callers, who must put into a key all that the thing depends on.
"""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any, TypeVar

import jax
import jaxlib
from jax._src import compilation_cache, config
from jax._src.compilation_cache_interface import CacheInterface

from hierfl.version import VERSION

SETTING = "HIERFL_CACHE"
OFF = ("off", "0", "no", "false")
LIMIT = 2**30  # bytes
HEADROOM = 16  # a process writes a sixteenth of the limit before it looks again at what others wrote
SUFFIX, UNFINISHED, ABANDONED = ".program", ".part", 3600.0
MADE_BY = f"hierfl {VERSION}, jax {jax.__version__}, jaxlib {jaxlib.__version__}"  # JAX's keys tell machines apart
DIGEST = 16


class DiskCache(CacheInterface):
    """A folder of compiled programs: the least recently used are dropped beyond the limit; broken ones count as absent.

    Nothing here raises: a folder that cannot be written is read only, and said so once.
    """

    def __init__(self, folder: Path, limit: int = LIMIT) -> None:
        self._path, self._limit = folder, limit  # JAX logs the path
        self._room, self._lock = 0, Lock()
        self._writable = True

    def get(self, key: str) -> bytes | None:
        """The program of JAX's key, if it is there and whole."""
        file = self._file(key)
        try:
            kept = file.read_bytes()
        except OSError:
            return None
        program = kept[DIGEST:]
        whole = kept[:DIGEST] == _digest(program)
        with suppress(OSError):  # a folder that cannot be written is read all the same
            if whole:
                os.utime(file)
            else:
                file.unlink()
        return program if whole else None

    def put(self, key: str, value: bytes) -> None:
        """Keep a program, whoever else does so at the same time."""
        if not self._writable or len(value) > self._limit // HEADROOM:
            return
        try:
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)  # whoever writes here runs code in this process
            self._make_room(len(value))
            self._write(self._file(key), _digest(value) + value)
        except OSError as error:
            self._writable = False
            logging.getLogger("hierfl").warning(
                "compiled programs cannot be kept in %s (%s): %s names another folder, or is off.",
                self._path,
                error.strerror or error,
                SETTING,
            )

    def _file(self, key: str) -> Path:
        return self._path / (hashlib.sha256(f"{MADE_BY} {key}".encode()).hexdigest() + SUFFIX)

    def _write(self, file: Path, content: bytes) -> None:
        """Write a file that others see as a whole or not at all."""
        handle, name = tempfile.mkstemp(UNFINISHED, dir=self._path)
        try:
            with open(handle, "wb") as part:
                part.write(content)
            os.replace(name, file)
        except OSError:
            with suppress(OSError):
                os.unlink(name)
            raise

    def _make_room(self, size: int) -> None:
        """Drop what was not used for longest, where as much would come to lie here as the limit."""
        with self._lock:
            self._room -= size
            if self._room >= 0:
                return
            headroom = self._limit // HEADROOM
            kept = sorted(self._kept())
            total = sum(bytes_ for _, bytes_, _ in kept)
            for _, bytes_, name in kept:
                if total <= self._limit - headroom:
                    break
                with suppress(FileNotFoundError):  # another process was faster
                    os.unlink(name)
                total -= bytes_
            self._room = headroom - size

    def _kept(self) -> Iterator[tuple[float, int, str]]:
        """(when last used, bytes, name) of every program; what a process that was ended left unfinished is removed."""
        for entry in os.scandir(self._path):
            with suppress(FileNotFoundError):
                about = entry.stat()
                if entry.name.endswith(SUFFIX):
                    yield about.st_mtime, about.st_size, entry.path
                elif entry.name.endswith(UNFINISHED) and time.time() - about.st_mtime > ABANDONED:
                    os.unlink(entry.path)


@contextmanager
def kept_on_disk() -> Iterator[None]:
    """Keep what this thread compiles within on disk, and load from there what was compiled before."""
    chosen = _chosen()
    if chosen is None:
        yield
        return
    global _threads
    with config.persistent_cache_min_compile_time_secs(0.0):  # loading takes a tenth of the quickest compilation
        with _LOCK:  # JAX asks hierfl's cache from now on, unless it has one
            if not _threads and compilation_cache._cache is None:
                compilation_cache._cache = chosen
            _threads += 1
        try:
            yield
        finally:
            with _LOCK:  # and nobody once no thread is within
                _threads -= 1
                if not _threads and isinstance(compilation_cache._cache, DiskCache):
                    compilation_cache._cache = None


_LOCK = Lock()
_threads = 0  # that are within


def _chosen() -> DiskCache | None:
    """The cache to use now; None where the user wants none, or has given JAX one."""
    setting = os.environ.get(SETTING, "")
    users = config.compilation_cache_dir.value or not config.enable_compilation_cache.value
    if users or setting.lower() in OFF:
        return None
    return _cache_at(setting)


@cache
def _cache_at(setting: str) -> DiskCache:
    """The cache of a setting; empty is the user's folder for caches."""
    if setting:
        return DiskCache(Path(os.path.expanduser(setting)).absolute())
    from platformdirs import user_cache_path

    return DiskCache(user_cache_path("hierfl") / "programs")


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=DIGEST).digest()


T = TypeVar("T")


class ProgramCache(dict[Hashable, Any]):
    """Things by key, each made when first asked for."""

    def __init__(self) -> None:
        self._of_runs, self._used = set[Hashable](), set[Hashable]()  # the latter since they were last cleared

    def keep(self, key: Any, make: Callable[[], T], *, of_run: bool = False) -> T:
        """Make once and keep: a second solve with the same settings compiles nothing. Unhashable keys are not kept.

        The key is all that the thing depends on; what is ``of_run`` serves runs of one algorithm alone, and may be forgotten when another one is tried.
        """
        try:
            hash(key)
        except TypeError:
            return make()
        if key not in self:
            self[key] = make()
        if of_run:
            self._of_runs.add(key)
        self._used.add(key)
        return self[key]

    def forget(self, part: Hashable) -> None:
        """Forget what is kept under keys of which this is a part."""
        for key in [key for key in self if isinstance(key, tuple) and part in key]:
            del self[key]

    @contextmanager
    def forgetting_runs(self) -> Iterator[Callable[[], None]]:
        """Forget on leaving the programs that runs within have kept, and at every call those that no run since the last has used."""
        before = set(self)

        def forget(used: set[Hashable]) -> None:
            for key in (set(self) - before - used) & self._of_runs:
                del self[key]
                self._of_runs.discard(key)
            self._used.clear()

        self._used.clear()
        try:
            yield lambda: forget(set(self._used))
        finally:
            forget(set())

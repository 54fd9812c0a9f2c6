"""A site's ledger: a file to which a line is added for all that was answered, before it leaves; nobody without its key can change one unseen.

Each line is one entry, in JSON, and ends with a keyed hash (HMAC-SHA256) of itself and of the one before, so that lines cannot be edited, taken
out or put in another order. The file of the key also has a seal: how long the ledger was when a run last began, so that an older copy is known. What was answered since
then is all that can be cut off its end unseen; whoever has the key can write anything.
"""

from __future__ import annotations

import hmac
import json
import logging
import math
import os
import re
import secrets
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hierfl.compiler.content_marks import content_mark
from hierfl.errors import LedgerError, SettingError
from hierfl.jaxtools.whole_file import write_whole
from hierfl.runtime.privacy.gaussian_noise import Spent, composed

LOG = logging.getLogger("hierfl.site")
LINE = re.compile(rb'(\{.*),"hash":"([0-9a-f]{64})"\}')
KEY = re.compile(rb"([0-9a-f]{64}) ([0-9]{1,18}) ([0-9a-f]{64})")  # the key, and the seal: how many entries, and the last one's hash
BOOT = Path("/proc/sys/kernel/random/boot_id")  # another one when the machine has started again


@dataclass(eq=False)
class LedgerRun:
    """A run: who asked for what, and what it has been answered.

    ``mark`` tells runs apart that begin here more than once; ``noise`` has the mechanism and the most messages of a client, and is None for
    a run without. ``released`` is the most noised messages that any client has sent.
    """

    mark: str
    server: str
    problem: str
    data: str
    algorithm: str
    planned: int
    noise: dict[str, Any] | None = None
    masks: int | None = None
    time: str = ""
    rounds: int = 0
    messages: int = 0
    released: int = 0
    going: bool = True

    @property
    def most(self) -> int:
        """The noised messages that a client may send."""
        return 0 if self.noise is None else int(self.noise["releases"])


def epsilon_together(runs: Sequence[LedgerRun], delta: float, ending: LedgerRun | None = None) -> float:
    """What runs come to: those that are going, all that is planned, but for one that ends; others what they have sent. Infinite without noise."""
    if any(run.noise is None and run.messages for run in runs):
        return math.inf
    counts = [(run, run.most if run.going and run is not ending else run.released) for run in runs]
    spent = [Spent(run.noise["multiplier"], count, run.noise["numbers"], run.noise["shared"]) for run, count in counts if run.noise]
    return composed(spent, delta).epsilon


@dataclass
class LedgerContent:
    """What a ledger says: its runs, how many entries it has, and in how many bytes; ``torn`` if the last one was cut off."""

    runs: list[LedgerRun] = field(default_factory=list)
    entries: int = 0
    hash: bytes = b"0" * 64
    size: int = 0
    torn: bool = False
    boot: str = ""
    closed: bool = True
    rounds: int = 0  # answered, of all runs, as messages are
    messages: int = 0

    def run(self, mark: str) -> LedgerRun | None:
        return next((run for run in self.runs if run.mark == mark), None)

    def epsilon(self, delta: float, beginning: LedgerRun | None = None, ending: LedgerRun | None = None) -> float:
        """Of all runs together, with one that begins and without what one that ends had still planned."""
        begun = [] if beginning is None else [beginning]
        return epsilon_together([*(run for run in self.runs if all(run.mark != one.mark for one in begun)), *begun], delta, ending)

    def take(self, what: str, entry: dict[str, Any]) -> None:
        self.closed = what == "closed"
        if what == "begun":
            told = LedgerRun(**entry["run"], time=entry["time"])
            if (known := self.run(told.mark)) is None:
                self.runs.append(told)
            else:
                known.going = True
        elif what == "answered":
            self._count(self.runs[entry["run"]], entry["rounds"], entry["messages"], entry["released"])
        elif what == "over":
            self.runs[entry["run"]].going = False
        else:  # opened, or closed
            for run in self.runs:
                if run.going and entry.get("lost"):  # what it has sent last is not known
                    self._count(run, 1, 1, run.most)
                run.going = False
            self.boot = entry.get("boot", self.boot)

    def _count(self, run: LedgerRun, rounds: int, messages: int, released: int) -> None:
        run.rounds, run.messages, run.released = run.rounds + rounds, run.messages + messages, max(run.released, released)
        self.rounds, self.messages = self.rounds + rounds, self.messages + messages


def read_ledger(path: Path, key_file: Path | None = None) -> LedgerContent:
    """What a ledger says, which may be in use. Raises ``LedgerError``, naming the line, for one that was changed."""
    key, seal = _key(key_of(path, key_file))  # before the lines, which are only added to
    try:
        return _read(path, path.read_bytes(), key, seal)
    except OSError as error:
        raise LedgerError(f"{path}: the ledger cannot be read ({error.strerror}).") from error


def key_of(path: Path, key_file: Path | None) -> Path:
    """Where a ledger's key is: beside it, if not elsewhere."""
    return path.with_name(f"{path.name}.key") if key_file is None else key_file


def _read(path: Path, content: bytes, key: bytes, seal: tuple[int, bytes]) -> LedgerContent:
    found, (*lines, rest) = LedgerContent(), content.split(b"\n")
    sealed, ended = seal[0] == 0, len(lines)
    for number, line in enumerate([*lines, *([rest] if LINE.fullmatch(rest) else [])], 1):
        whole = LINE.fullmatch(line)
        if whole is None or not hmac.compare_digest(_hash(key, found.hash, whole[1]), whole[2]):
            raise LedgerError(
                f"{path}, line {number}: it is not what was written there after the lines before it: an entry was changed, removed, put "
                f"elsewhere, or written under another key."
            )
        entry = json.loads(whole[1] + b"}")
        found.take(entry["what"], entry)
        found.entries, found.hash, found.size = number, whole[2], found.size + len(line) + (number <= ended)
        sealed = sealed or seal == (number, whole[2])
    begins = b'{"entry":%d,' % found.entries
    if rest and not LINE.fullmatch(rest):
        if LINE.search(rest) or rest[: len(begins)] != begins[: len(rest)]:
            raise LedgerError(f"{path}, line {found.entries + 1}: it was changed: it is no entry, and no part of one.")
        found.torn = True
    if not sealed:
        said = f"when a run last began it had {seal[0]} entries, others than these: this is an older copy, or another ledger"
        raise LedgerError(f"{path}, line {found.entries + 1}: {said}.")
    return found


def _hash(key: bytes, before: bytes, body: bytes) -> bytes:
    return hmac.digest(key, before + b"\n" + body, "sha256").hex().encode()


class PrivacyLedger:
    """A ledger that is written, and made if it is not there: this process's alone, until it is closed. Its key is made beside it unless a file is named.

    Raises ``LedgerError`` for a ledger that was changed, whose key is missing, or that another process writes.
    """

    def __init__(self, path: Path, key_file: Path | None = None) -> None:
        self.path, self.key_file = path, key_of(path, key_file)
        try:
            import fcntl
        except ImportError as error:
            raise SettingError("a ledger needs an operating system with file locks (fcntl): Linux, macOS.") from error
        self._file = -1
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            os.fchmod(self._file, 0o600)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            content = path.read_bytes()
            if not content and not self.key_file.exists():
                self._seal(secrets.token_hex(32).encode(), 0, b"0" * 64)
            self._key, seal = _key(self.key_file)
            self.content = _read(path, content, self._key, seal)
            self._open(content)
        except BaseException as error:
            if self._file >= 0:
                os.close(self._file)
            if not isinstance(error, OSError):
                raise
            said = "another process writes it" if isinstance(error, BlockingIOError) else f"it cannot be opened ({error.strerror})"
            raise LedgerError(f"{path}: {said}.") from error

    def _open(self, content: bytes) -> None:
        """Begin to write: what a power cut has taken counts as if all had been sent that could be."""
        found, boot = self.content, BOOT.read_text().strip() if BOOT.exists() else ""
        lost = found.torn or (not found.closed and (not boot or boot != found.boot))
        if found.torn:
            LOG.warning("%s, line %d was cut off: runs that were going count in full", self.path, found.entries + 1)
            os.ftruncate(self._file, found.size)
        elif content and not content.endswith(b"\n"):
            found.size += os.write(self._file, b"\n")
        self._add("opened", sealed=True, boot=boot, lost=lost)

    def fingerprint(self, data: Any) -> str:
        """A keyed mark of data: the same for the same, and nothing to those who have not the key."""
        return hmac.digest(self._key, b"data\n" + content_mark(data).encode(), "sha256").hex()[:32]

    def begin(self, run: LedgerRun, ending: LedgerRun | None = None) -> LedgerRun:
        """Note that a run begins, or goes on, and that another is over; it is on the disk then."""
        if ending is not None and ending.mark != run.mark:
            self.end(ending)
        told = asdict(run)
        self._add("begun", sealed=True, run={name: told[name] for name in list(told)[:8]})
        begun = self.content.run(run.mark)
        assert begun is not None
        return begun

    def answered(self, run: LedgerRun, rounds: int, messages: int, released: int) -> None:
        """Note so many more rounds and messages, and the most noised messages of a client so far, unless that was noted."""
        if rounds or messages or released != run.released:
            self._add("answered", run=self.content.runs.index(run), rounds=rounds, messages=messages, released=released)

    def end(self, run: LedgerRun) -> None:
        """Note that a run is over: what it has not sent it will not send, unless it begins again."""
        if run.going:
            self._add("over", run=self.content.runs.index(run))

    def __enter__(self) -> PrivacyLedger:
        return self

    def __exit__(self, *_: object) -> None:
        """Note that all is written, and let others write."""
        with suppress(LedgerError):
            self._add("closed", sealed=True)
        os.close(self._file)

    def _add(self, what: str, sealed: bool = False, **told: Any) -> None:
        """Add an entry, whole or not at all; ``sealed`` it is brought to the disk. Raises ``LedgerError`` where it cannot be."""
        found, entry = self.content, {"time": datetime.now(UTC).isoformat(timespec="milliseconds"), "what": what, **told}
        body = json.dumps({"entry": found.entries, **entry}, separators=(",", ":"))[:-1].encode()
        own = _hash(self._key, found.hash, body)
        line = body + b',"hash":"' + own + b'"}\n'
        try:
            if os.write(self._file, line) < len(line):
                raise OSError(0, "no space left for a line")
            if sealed:
                os.fsync(self._file)
                self._seal(self._key, found.entries + 1, own)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, found.size)
            raise LedgerError(f"this site's ledger cannot be written ({error.strerror}), and nothing is answered without it") from error
        found.take(what, entry)
        found.entries, found.hash, found.size = found.entries + 1, own, found.size + len(line)

    def _seal(self, key: bytes, entries: int, last: bytes) -> None:
        """Write the file of the key, for its owner alone, whole or not at all, and bring it to the disk."""
        write_whole(self.key_file, b"%s %d %s" % (key, entries, last), mode=0o600)


def _key(file: Path) -> tuple[bytes, tuple[int, bytes]]:
    """The key in a file, and the seal. Raises ``LedgerError`` for one that others can read, or that is none."""
    try:
        found, mode = KEY.fullmatch(file.read_bytes()), file.stat().st_mode
    except OSError as error:
        raise LedgerError(f"{file}: the ledger's key cannot be read ({error.strerror}).") from error
    if mode & 0o077:
        raise LedgerError(f"{file}: others than its owner can read the ledger's key: chmod 600, and begin a new ledger if somebody may have.")
    if found is None:
        raise LedgerError(f"{file}: this is no key of a ledger.")
    return found[1], (int(found[2]), found[3])

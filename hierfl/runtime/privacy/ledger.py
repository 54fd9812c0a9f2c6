"""A site's ledger: a file to which a line is added for all that was answered, before it leaves; nobody without its key can change one unseen.

Each line is one entry, in JSON, and ends with a keyed hash (HMAC-SHA256) of itself and of the one before, so that lines cannot be edited, taken
out or put in another order. The key lies in a file of its own, and beside it a seal: how long the ledger was when a run last began, so that an
older copy is known from then on. What was answered since then is all that can be cut off its end unseen; with the key, everything can.

What is read of a ledger is what its runs have sent, and what they may still send.
"""

from __future__ import annotations

import hmac
import json
import logging
import math
import os
import re
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hierfl.compiler.content_marks import content_mark
from hierfl.errors import LedgerError, SettingError
from hierfl.runtime.privacy.accounting import Spent, composed

LOG = logging.getLogger("hierfl.site")
LINE = re.compile(rb'(\{.*),"hash":"([0-9a-f]{64})"\}')
BEGINNING = b"hierfl ledger 1"  # what the first entry follows
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

    def epsilon_of_its_own(self, delta: float) -> float:
        """Of what it has sent; infinite without noise."""
        return _epsilon([self], delta, None)

    @property
    def most(self) -> int:
        """The noised messages that a client may send."""
        return 0 if self.noise is None else int(self.noise["releases"])

    def spent(self, in_full: bool) -> Spent:
        """What it has sent, or may send."""
        assert self.noise is not None  # or it has no epsilon
        releases = self.most if in_full else self.released
        return Spent(self.noise["multiplier"], releases, self.noise["numbers"], self.noise["shared"])


def _epsilon(runs: list[LedgerRun], delta: float, ending: LedgerRun | None) -> float:
    """Of all of these together; those that are going may send all that is planned, but for the one that ends."""
    if any(run.noise is None and run.messages for run in runs):
        return math.inf
    return composed([run.spent(run.going and run is not ending) for run in runs if run.noise is not None], delta).epsilon


@dataclass
class LedgerContent:
    """What a ledger says: its runs, how many entries it has, and in how many bytes; ``torn`` if the last one was cut off."""

    runs: list[LedgerRun] = field(default_factory=list)
    entries: int = 0
    hash: bytes = BEGINNING
    size: int = 0
    torn: bool = False
    boot: str = ""
    closed: bool = True
    opened: str = ""

    @property
    def rounds(self) -> int:
        """Answered, of all runs."""
        return sum(run.rounds for run in self.runs)

    @property
    def messages(self) -> int:
        """Answered, of all runs."""
        return sum(run.messages for run in self.runs)

    def run(self, mark: str) -> LedgerRun | None:
        """The one of this mark."""
        return next((run for run in self.runs if run.mark == mark), None)

    def epsilon(self, delta: float, beginning: LedgerRun | None = None, ending: LedgerRun | None = None) -> float:
        """Of all runs together, with one that begins and without what one that ends had still planned; infinite if one had no noise."""
        others = [run for run in self.runs if beginning is None or run.mark != beginning.mark]
        return _epsilon([*others, *([] if beginning is None else [beginning])], delta, ending)

    def take(self, entry: dict[str, Any]) -> None:
        """Take an entry in."""
        what, self.closed = entry.pop("what"), False
        if what == "begun":
            told = LedgerRun(**entry["run"], time=entry["time"])
            if (known := self.run(told.mark)) is None:
                self.runs.append(told)
            else:
                known.going = True
        elif what == "answered":
            run = self.runs[entry["run"]]
            run.rounds, run.messages, run.released = run.rounds + entry["rounds"], run.messages + entry["messages"], entry["released"]
        elif what == "over":
            self.runs[entry["run"]].going = False
        else:  # opened, or closed
            for run in self.runs:
                if run.going and entry.get("lost"):  # what it has sent last is not known
                    run.released, run.rounds, run.messages = run.most, run.rounds + 1, run.messages + 1
                run.going = False
            self.boot, self.closed = entry.get("boot", self.boot), what == "closed"
            self.opened = entry["time"] if what == "opened" else self.opened


def read_ledger(path: Path, key_file: Path | None = None) -> LedgerContent:
    """What a ledger says, its chain checked; it may be in use meanwhile.

    Raises ``LedgerError``, naming the line, for one that was changed, or is another key's.
    """
    if not path.exists():
        raise LedgerError(f"there is no ledger {path}.")
    key_file = key_of(path, key_file)
    seal = _seal_of(key_file)  # before the lines, which are only added to
    return _read(path, path.read_bytes(), _key(key_file), seal)


def key_of(path: Path, key_file: Path | None) -> Path:
    """Where a ledger's key is: beside it, if not elsewhere."""
    return path.with_name(f"{path.name}.key") if key_file is None else key_file


def _read(path: Path, content: bytes, key: bytes, seal: tuple[int, bytes] | None) -> LedgerContent:
    found, (*lines, rest) = LedgerContent(), content.split(b"\n")
    sealed = seal is None or seal[0] == 0
    for number, line in enumerate([*lines, *([rest] if LINE.fullmatch(rest) else [])], 1):
        whole = LINE.fullmatch(line)
        if whole is None or not hmac.compare_digest(_hash(key, found.hash, whole[1]), whole[2]):
            raise LedgerError(
                f"{path}, line {number}: it is not what was written there after the lines before it: an entry was changed, removed, "
                f"put elsewhere, or written under another key."
            )
        try:
            found.take(json.loads(whole[1] + b"}"))
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise LedgerError(f"{path}, line {number}: another version of hierfl wrote it.") from error
        found.entries, found.hash = number, whole[2]
        sealed = sealed or (seal == (number, whole[2]))
        found.size += len(line) + (number <= len(lines))
    if rest and not LINE.fullmatch(rest):
        begins = b'{"entry":%d,' % found.entries
        if LINE.search(rest) or rest[: len(begins)] != begins[: len(rest)]:
            raise LedgerError(f"{path}, line {found.entries + 1}: it was changed: it is no entry, and no part of one.")
        found.torn = True
    if not sealed or (seal is None and found.entries > 1):
        said = "its seal is not beside its key" if seal is None else f"its seal says that it had {seal[0]} entries or more, and others"
        raise LedgerError(f"{path}, line {found.entries + 1}: {said}: this is an older copy, or another ledger.")
    return found


def _hash(key: bytes, before: bytes, body: bytes) -> bytes:
    return hmac.digest(key, before + b"\n" + body, "sha256").hex().encode()


class Ledger:
    """A ledger that is written: this process's alone, until it is closed.

    Parameters
    ----------
    path
        Of the file; made if it is not there.
    key_file
        Of its key; beside it if left out, made at first use.

    Raises
    ------
    LedgerError
        For a ledger that was changed, whose key is missing, or that another process writes.
    """

    def __init__(self, path: Path, key_file: Path | None = None) -> None:
        self.path, self.key_file = path, key_of(path, key_file)
        try:
            import fcntl
        except ImportError as error:
            raise SettingError("a ledger needs an operating system with file locks (fcntl): Linux, macOS.") from error
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
            os.fchmod(self._file, 0o600)
        except OSError as error:
            raise LedgerError(f"{path}: it cannot be opened ({error.strerror}).") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            content = path.read_bytes()
            if not content and not self.key_file.exists():
                _write(self.key_file, secrets.token_hex(32).encode())
            self._key = _key(self.key_file)
            self.content = _read(path, content, self._key, _seal_of(self.key_file))
            self._open(content)
        except OSError as error:
            os.close(self._file)
            said = "another process writes it" if isinstance(error, BlockingIOError) else f"it cannot be read ({error.strerror})"
            raise LedgerError(f"{path}: {said}.") from error
        except LedgerError:
            os.close(self._file)
            raise

    def _open(self, content: bytes) -> None:
        """Begin to write: what a power cut has taken counts as if all had been sent that could be."""
        found, boot = self.content, BOOT.read_text().strip() if BOOT.exists() else ""
        lost = found.torn or (not found.closed and (not boot or boot != found.boot))
        if found.torn:
            LOG.warning("%s, line %d was cut off: runs that were going count in full", self.path, found.entries + 1)
            os.ftruncate(self._file, found.size)
        elif content and not content.endswith(b"\n"):
            os.write(self._file, b"\n")
            found.size += 1
        self._add("opened", sealed=True, boot=boot, lost=lost)

    def fingerprint(self, data: Any) -> str:
        """A keyed mark of data: the same for the same, and nothing to those who have not the key."""
        return hmac.digest(self._key, b"data\n" + content_mark(data).encode(), "sha256").hex()[:32]

    def begin(self, run: LedgerRun, ending: LedgerRun | None = None) -> LedgerRun:
        """Note that a run begins, or goes on, and that another is over; it is on the disk then."""
        if ending is not None and ending.mark != run.mark:
            self.end(ending)
        told = {name: value for name, value in asdict(run).items() if name not in ("time", "rounds", "messages", "released", "going")}
        self._add("begun", sealed=True, run=told)
        begun = self.content.run(run.mark)
        assert begun is not None
        return begun

    def answered(self, run: LedgerRun, rounds: int, messages: int, released: int) -> None:
        """Note so many more rounds and messages, and the most noised messages of a client so far, unless that was noted."""
        if rounds or messages or released != run.released:
            place = self.content.runs.index(run)
            self._add("answered", run=place, rounds=rounds, messages=messages, released=released)

    def end(self, run: LedgerRun) -> None:
        """Note that a run is over: what it has not sent it will not send, unless it begins again."""
        if run.going:
            self._add("over", run=self.content.runs.index(run))

    def close(self) -> None:
        """Note that all is written, and let others write."""
        if self._file >= 0:
            with suppress(LedgerError):
                self._add("closed", sealed=True)
            os.close(self._file)
            self._file = -1

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _add(self, what: str, sealed: bool = False, **told: Any) -> None:
        """Add an entry, whole or not at all; to be ``sealed`` it is brought to the disk.

        Raises ``LedgerError`` where it cannot be written.
        """
        found, now = self.content, datetime.now(UTC).isoformat(timespec="milliseconds")
        body = json.dumps({"entry": found.entries, "time": now, "what": what, **told}, separators=(",", ":"))[:-1].encode()
        own = _hash(self._key, found.hash, body)
        line = body + b',"hash":"' + own + b'"}\n'
        try:
            if os.write(self._file, line) < len(line):
                raise OSError(0, "no space left for a line")
            if sealed:
                os.fsync(self._file)
                _write(self.key_file.with_name(f"{self.key_file.name}.seal"), b"%d %s" % (found.entries + 1, own))
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._file, found.size)
            raise LedgerError(f"this site's ledger cannot be written ({error.strerror}), and nothing is answered without it") from error
        found.take({"time": now, "what": what, **told})
        found.entries, found.hash, found.size = found.entries + 1, own, found.size + len(line)


def _key(file: Path) -> bytes:
    """The key in a file.

    Raises ``LedgerError`` for one that others can read, or that is none.
    """
    try:
        key, mode = file.read_bytes().strip(), file.stat().st_mode
    except OSError as error:
        raise LedgerError(f"{file}: the ledger's key cannot be read ({error.strerror}).") from error
    if mode & 0o077:
        raise LedgerError(f"{file}: others than its owner can read the ledger's key: chmod 600, and begin a new ledger if somebody may have.")
    if not re.fullmatch(rb"[0-9a-f]{64}", key):
        raise LedgerError(f"{file}: this is no key of a ledger.")
    return key


def _seal_of(key_file: Path) -> tuple[int, bytes] | None:
    """How many entries there were when it was sealed, and the last one's hash."""
    file = key_file.with_name(f"{key_file.name}.seal")
    if not file.exists():
        return None
    found = re.fullmatch(rb"([0-9]{1,18}) ([0-9a-f]{64})", file.read_bytes())
    if found is None:
        raise LedgerError(f"{file}: this is no seal of a ledger.")
    return int(found[1]), found[2]


def _write(file: Path, content: bytes) -> None:
    """Write a small file for its owner alone, whole or not at all, and bring it to the disk."""
    part = file.with_name(f"{file.name}.part")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    os.replace(part, file)
    folder = os.open(file.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)

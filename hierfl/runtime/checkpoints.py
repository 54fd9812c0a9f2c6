"""Runs that are kept on disk while they are made: what a run is, where it stands between two blocks of rounds, and a folder that never holds half of it.

Which run a checkpoint belongs to is what decides its rounds to the last bit, part by part, so that what differs can be named.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, is_dataclass
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.content_marks import Leaves, content_mark
from hierfl.errors import CheckpointError, CheckpointWarning, HierflError, SettingError, warn
from hierfl.jaxtools.checked_arrays import BadArchiveError, note_of, read_arrays, read_note
from hierfl.jaxtools.interruption import INTERRUPTED, TIME_IS_UP, rest, unbroken
from hierfl.jaxtools.whole_file import write_whole
from hierfl.language.declaration import Declaration
from hierfl.language.federation.client import Client
from hierfl.language.federation.given_arrays import MappedRows
from hierfl.language.printing.card import call_text
from hierfl.language.printing.text import expression_text
from hierfl.run_settings import Checkpoint, RunSettings
from hierfl.runtime.contract import Algorithm, Ending, Visitor, numbers_of
from hierfl.runtime.in_process.execution import InProcess
from hierfl.runtime.outcome import Seen, Watch
from hierfl.runtime.records import Begun, History
from hierfl.version import VERSION

LOOKED_AT = 256  # rows of a file that is not read as a whole
LISTED = 1000  # clients of which each has a mark
LONG = 120  # characters of a text that is shown


@dataclass(frozen=True)
class Part:
    """One of the things that a run depends on: what it is called, how it is shown, its mark, and those of the clients one by one.

    ``key`` tells it from the others, where CVXPY may have given the name.
    """

    name: str
    shown: str
    mark: str
    each: list[str] | None = None
    key: str = ""


Identity = dict[str, Part]


def identity_of(compiled: CompiledProblem, solver: Any, settings: RunSettings) -> Identity:
    """The parts that are known before anything is bound or tried."""
    several = "" if settings.restarts is None else ", each from a start of its own"
    parts = [
        _told("the version of hierfl", VERSION),
        _told("the version of jax", jax.__version__),
        *_problem(compiled.declaration),
        _told("the solver", call_text(solver), _plain(solver)),
        _told("the seeds", f"{list(settings.all_seeds)}{several}"),
        _told("rounds", settings.rounds),
        _told("evaluate_every", settings.evaluate_every),
        _told("queries", settings.queries),
        _told("the runtime", _runtime_text(settings.runtime)),
        _told("the names of the metrics", sorted(settings.metrics or {})),
    ]
    return _by_key(parts)


def bound_identity(algorithm: Any, starts: np.ndarray) -> Identity:
    """The parts that are known when the solver is bound: what its schedules come to, and where the runs begin."""
    schedules = content_mark([np.asarray(numbers) for _, numbers in numbers_of(algorithm)])
    begun = _told("the start", np.array2string(starts, threshold=8), starts)
    return _by_key([Part("the schedules of the solver", "other numbers", schedules), begun])


def stored_identity(identity: Identity) -> dict[str, Any]:
    """The identity as JSON has it."""
    return {key: asdict(part) for key, part in identity.items()}


def differences(stored: Mapping[str, Any], present: Identity) -> Iterator[str]:
    """What of these parts was another in the checkpoint, in words."""
    for key, part in present.items():
        before = stored.get(key)
        if before is None:
            yield f"{part.name} (there was none)"
        elif before["mark"] != part.mark:
            yield f"{part.name}{_whose(before['each'], part.each)}{_shown(before['shown'], part.shown)}"


def _by_key(parts: Sequence[Part]) -> Identity:
    return {part.key or part.name: part for part in parts}


def _whose(before: Sequence[str] | None, now: Sequence[str] | None) -> str:
    if before is None or now is None or len(before) != len(now):
        return ""
    changed = [str(place) for place, (old, new) in enumerate(zip(before, now)) if old != new]
    return f" of client{'s' if len(changed) > 1 else ''} {', '.join(changed[:8])}{', ...' if len(changed) > 8 else ''}"


def _shown(before: str, now: str) -> str:
    return "" if before == now else f" ({before} in the checkpoint, {now} now)"


def _told(name: str, value: Any, content: Any = None, key: str = "") -> Part:
    text = str(value)
    return Part(name, _cut(text), content_mark(text if content is None else content), key=key)


def _cut(text: str) -> str:
    return text if len(text) <= LONG else text[:LONG] + " ..."


def _problem(declaration: Declaration) -> Iterator[Part]:
    objective, level = declaration.objective, declaration.lower_level
    federation, roles = declaration.federation, declaration.roles
    leaves: Leaves = {}

    def mathematics(name: str, parts: Sequence[Any], *beside: Any) -> Part:
        shown = ", ".join(expression_text(part) for part in parts) or "none"
        return Part(name, _cut(shown), content_mark([list(parts), *beside], leaves))

    for name, term in (("the server's term", objective.server), ("the clients' term", objective.clients)):
        yield mathematics(name, [] if term is None else [term], objective.sense)
    if level is not None:
        beside = [list(level.variables), list(level.expressions), level.scope, level.selection, type(level).__name__]
        yield mathematics("the lower level", level.declared, *beside)
        yield mathematics("the constraints on y", level.constraints)
    yield mathematics("the constraints on x", declaration.constraints)
    if declaration.coupled:
        yield mathematics("the upper constraints on y", [one.constraint for one in declaration.coupled])
    yield mathematics("the variables", [], list(roles.upper), list(roles.lower))
    for place, parameter in enumerate(roles.parameters):
        name, content = f"the value of {parameter.name()}", np.asarray(parameter.value, float)
        yield _told(name, parameter.value, content, f"parameter {place}")
    yield _told("the number of clients", 1 if federation is None else federation.num_clients)
    weights = declaration.client_weights
    yield _told("the clients' weights", np.array2string(weights, threshold=8), weights)
    if federation is None:
        return
    yield _told("the points of distributions", federation.points)
    for place, sample in enumerate(sample for table in roles.client_tables for sample in table):
        marks = [_sample_mark(client, sample) for client in federation.clients]
        yield _held(f"the data of {sample.name()}", marks, f"sample {place}")
    for place, own in enumerate(roles.client_parameters):
        marks = [content_mark(client.parameters[own]) for client in federation.clients]
        yield _held(f"the values of {own.name()}", marks, f"client parameter {place}")
    for place, sample in enumerate(sample for table in roles.server_tables for sample in table):
        assert federation.server is not None  # required when the problem was declared
        yield _held(f"the server's data of {sample.name()}", [_sample_mark(federation.server, sample)], f"own {place}")


def _held(name: str, marks: list[str], key: str) -> Part:
    several = 1 < len(marks) <= LISTED
    return Part(name, "", content_mark(marks), marks if several else None, key)


def _sample_mark(client: Client, sample: Any) -> str:
    """Of rows on disk some are read; distributions are told by their numbers."""
    held = client.samples[sample]
    if isinstance(held, np.memmap | MappedRows):
        rows = np.unique(np.linspace(0, len(held) - 1, min(LOOKED_AT, len(held))).astype(int))
        return content_mark([held.shape, held.dtype.str, np.asarray(held[rows])])
    return content_mark(held)


def _plain(solver: Any) -> Any:
    """Settings by value; of functions, such as schedules, only that they are: their numbers are compared as tables."""
    if is_dataclass(solver) and not isinstance(solver, type):
        return [type(solver).__qualname__, *(_plain(getattr(solver, field.name)) for field in fields(solver))]
    return "function" if callable(solver) else solver


def _runtime_text(runtime: Any) -> str:
    """A runtime by its plain settings; connections and processes, and how long they are waited for, are no part of a run."""
    runtime = runtime or InProcess()
    beside = getattr(runtime, "no_part_of_a_run", ())
    plain = [f for f in fields(runtime) if f.repr and f.name not in beside] if is_dataclass(runtime) else []
    given = [(f.name, getattr(runtime, f.name)) for f in plain]
    plain_given = (pair for pair in given if isinstance(pair[1], str | int | float | None))
    settings = ", ".join(f"{name}={value!r}" for name, value in plain_given)
    return f"{type(runtime).__name__}({settings})"


FORMAT = 2
HEAD = b"hierfl checkpoint "
SUFFIX, LOCK = ".checkpoint", "hierfl.lock"
KEPT = 2


class CheckpointContent(NamedTuple):
    """What a file holds: numbers and texts as JSON has them, and arrays by name."""

    note: dict[str, Any]
    arrays: dict[str, np.ndarray]


class CheckpointFolder:
    """A folder, held by this process from ``with`` on.

    Raises ``CheckpointError``, naming the folder: it cannot be made or written, another process holds it, or nothing in it can be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._number = 0
        self._good: list[Path] = []  # files known to be whole, the oldest first

    def __enter__(self) -> CheckpointFolder:
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = open(self.path / LOCK, "a+")  # held until the run ends
        except OSError as error:
            raise CheckpointError(
                f"checkpoint={str(self.path)!r}: no checkpoint can be written there ({_reason(error)}). Give a folder that may be written."
            ) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock.close()
            raise CheckpointError(
                f"checkpoint={str(self.path)!r}: another run is keeping its checkpoints there right now. Give every run a folder of its own."
            ) from None
        except OSError:  # a file system without locks
            pass
        self._number = max([0, *(int(path.stem) for path in self._files())])
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    @property
    def begun(self) -> bool:
        return bool(self._files())

    def read(self) -> CheckpointContent | None:
        """The latest whole checkpoint; None in an empty folder. One that is damaged is told of, and the one before it taken."""
        damaged = []
        for path in reversed(self._files()):
            try:
                stored = _read(path)
            except (BadArchiveError, OSError) as error:
                damaged.append(f"{path.name}: {error}")
                continue
            if damaged:
                before = f"the run goes on from {path.name}, the checkpoint before."
                warn(CheckpointWarning(f"in {self.path}, {'; '.join(damaged)}: {before}"))
            self._good = [path]
            return stored
        if damaged:
            raise CheckpointError(
                f"no checkpoint in {self.path} can be read ({'; '.join(damaged)}). Delete the folder to begin anew, or give another one."
            )
        return None

    def write(self, note: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        """Keep a checkpoint, and the latest before. Raises ``CheckpointError`` if it cannot be written; others stay."""
        body = io.BytesIO()
        np.savez(body, note=note_of(note, FORMAT, arrays), **arrays)  # type: ignore[arg-type]
        content, path = body.getbuffer(), self.path / f"{self._number + 1:06d}{SUFFIX}"
        try:
            write_whole(path, HEAD + hashlib.sha256(content).hexdigest().encode() + b"\n", content)
        except OSError as error:
            left = f"; {self._good[-1].name}, the checkpoint before, is intact" if self._good else ""
            raise CheckpointError(
                f"the checkpoint of {len(content):,} bytes cannot be written to {self.path} ({_reason(error)}){left}. Make room there, and "
                f"solve again with resume=True."
            ) from error
        self._number += 1
        self._good = [*self._good[1 - KEPT :], path]
        for old in set(self._files()) - set(self._good):
            old.unlink(missing_ok=True)

    def _files(self) -> list[Path]:
        """The checkpoints, the oldest first."""
        return sorted((p for p in self.path.glob(f"*{SUFFIX}") if p.stem.isdigit()), key=lambda path: int(path.stem))


def _read(path: Path) -> CheckpointContent:
    content = path.read_bytes()
    head, newline, body = content.partition(b"\n")
    if not head.startswith(HEAD) or not newline:
        raise BadArchiveError("not a checkpoint, or only the beginning of one")
    if hashlib.sha256(body).hexdigest().encode() != head.removeprefix(HEAD):
        raise BadArchiveError("damaged, or only a part of it was written")
    arrays = read_arrays(io.BytesIO(body))
    return CheckpointContent(read_note(arrays, FORMAT), arrays)


@contextmanager
def _as_written(folder: Path) -> Iterator[None]:
    """What is not as a run writes it, though whole, is told of in one way. Raises ``CheckpointError``."""
    try:
        yield
    except HierflError:
        raise
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(
            f"the checkpoint in {folder} is not what this run has written ({type(error).__name__}: {error}). Delete the folder to begin "
            f"anew, or give another one."
        ) from error


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


# what ends a run for now; any other end is found again from the block before it
GOES_ON = (TIME_IS_UP, INTERRUPTED)


class Standing(NamedTuple):
    """A run between two blocks: the rounds made, the state, the clients' memories, and what the watch has seen."""

    rounds: int
    state: Any
    memory: Any
    seen: Seen


class KeptRun:
    """What a runtime calls at the end of a block in place of the watch.

    ``standing`` is where the run last stood, ``written`` the rounds of it that are on disk, ``over`` whether it has come to its end.
    """

    def __init__(self, watch: Watch, keeper: RunKeeper, memories: Callable[[], Any]) -> None:
        self.watch, self._keeper, self._memories = watch, keeper, memories
        self.standing: Standing | None = None
        self.written = 0
        self.over = False
        self.begun: Begun | None = None

    def ends_within(self, history: History) -> bool:
        """As of the watch."""
        return self.watch.ends_within(history)

    def __call__(self, done: int, state: Any, memory: Any, history: History) -> Ending | None:
        """Look at a block as the watch does, and keep it where that is due."""
        watch = self.watch
        ending = watch(done, state, memory, history)
        self.over = ending is not None or done == watch.settings.most_rounds
        if ending is not None and watch.status not in GOES_ON:
            return ending
        due = self._keeper.due(done)
        if memory is None:  # it is the clients', and asked for where it is wanted
            if not due and not self.over:
                return None
            rest()  # clients are still to keep what they remember
            memory = self._memories()
        self.standing = Standing(done, state, memory, watch.seen)
        if due:
            self._keeper.write()
        return ending

    def stored(self, arrays: dict[str, np.ndarray], lane: int) -> dict[str, Any] | None:
        """Put the arrays of where it stands among others, and return the rest; None before the first block."""
        at = self.standing
        if at is None:
            return None
        path = {done: x for done, x in at.seen.path.items() if done <= at.rounds}
        measured = self.watch.measured
        kept = int(np.sum(np.array(measured["round"]) <= at.rounds)) if measured else 0
        state = jax.tree.leaves(at.state)
        memory = at.memory.kept(at.rounds) if hasattr(at.memory, "kept") else jax.tree.leaves(at.memory)
        groups: dict[str, dict[str, Any]] = {
            "history": self.watch.history(at.rounds),
            "state": {str(place): leaf for place, leaf in enumerate(state)},
            "memory": {str(place): leaf for place, leaf in enumerate(memory)},
            "path": {"round": list(path), "x": list(path.values()), "start": at.seen.start},
            "measured": {str(place): values[:kept] for place, values in enumerate(measured.values())},
        }
        named = ((f"{lane}/{group}/{name}", part) for group, parts in groups.items() for name, part in parts.items())
        arrays |= {name: np.asarray(part) for name, part in named}
        return {
            "rounds": at.rounds,
            "looked": at.seen.looked,
            "next_look": at.seen.next_look,
            "gradient_at_most": at.seen.gradient_at_most,
            "measured": list(measured),
            "leaves": [len(state), len(memory)],
        }

    def resume(self, note: Mapping[str, Any] | None, arrays: Mapping[str, np.ndarray], lane: int, first: Any) -> None:
        """Stand where the run stood, if it had begun; ``first`` is the algorithm's state at the start, or None where the method has its own."""
        if note is None:
            return
        watch, rounds = self.watch, note["rounds"]

        def group(name: str) -> dict[str, np.ndarray]:
            start = f"{lane}/{name}/"
            return {key.removeprefix(start): values for key, values in arrays.items() if key.startswith(start)}

        state, memory = ([group(n)[str(k)] for k in range(c)] for n, c in zip(("state", "memory"), note["leaves"]))
        own = None if first is None else jax.tree.unflatten(jax.tree.structure(first), state)
        if own is not None and [leaf.shape for leaf in state] != [np.shape(leaf) for leaf in jax.tree.leaves(first)]:
            raise ValueError("a state of other shapes than the solver's")
        path = group("path")
        measured = {name: group("measured")[str(place)].tolist() for place, name in enumerate(note["measured"])}
        kept = dict(zip(path["round"].tolist(), path["x"]))
        seen = Seen(kept, note["next_look"], note["gradient_at_most"], note["looked"], path["start"])
        watch.go_on(rounds, seen, group("history"), measured)
        self.begun, self.written = Begun(rounds, own, memory), rounds
        self.over = rounds == watch.settings.most_rounds
        self.standing = Standing(rounds, state if own is None else own, memory, seen)


class RunKeeper:
    """Made by :func:`keeping`; ``stored`` is the checkpoint to go on from, None at first, ``found`` what trials found."""

    def __init__(
        self, settings: Checkpoint, folder: CheckpointFolder, identity: Identity, stored: CheckpointContent | None
    ) -> None:
        self.settings, self.folder, self.identity, self.stored = settings, folder, identity, stored
        self.found: Any = None if stored is None else stored.note["found"]
        self.runs: list[KeptRun] = []
        self._written = time.perf_counter()

    @contextmanager
    def begin(self, algorithm: Algorithm | Visitor, watches: Sequence[Watch], starts: np.ndarray) -> Iterator[None]:
        """Keep these runs within; those that were kept before go on. What they have come to is written at the end, however it comes.

        Raises ``CheckpointError`` if the checkpoint is of runs with other schedules or starts, or cannot be written.
        """
        visits = isinstance(algorithm, Visitor)
        runtime, bound = watches[0].settings.runtime, bound_identity(algorithm, starts)
        with _as_written(self.folder.path):
            self._require_same(bound)
        self.identity |= bound
        memories = getattr(runtime, "memories", lambda: None)
        self.runs = [KeptRun(watch, self, memories) for watch in watches]
        for lane, (run, start) in enumerate(zip(self.runs, starts)):
            if self.stored is not None:
                first = None if visits else algorithm.init(jnp.asarray(start))
                with _as_written(self.folder.path):
                    run.resume(self.stored.note["runs"][lane], self.stored.arrays, lane, first)
        if self.stored is None:
            self.write()
        self.stored = None  # its arrays are the runs' now
        try:
            yield
        except CheckpointError:
            raise
        except BaseException:  # whatever ends the run, what it has come to is kept
            self._write_the_rest()
            raise
        self._write_the_rest()

    def _write_the_rest(self) -> None:
        if any(run.standing is not None and run.standing.rounds != run.written for run in self.runs):
            self.write()

    def write(self) -> None:
        arrays: dict[str, np.ndarray] = {}
        notes = [run.stored(arrays, lane) for lane, run in enumerate(self.runs)]
        with unbroken():
            self.folder.write({"identity": stored_identity(self.identity), "found": self.found, "runs": notes}, arrays)
        for run in self.runs:
            run.written = 0 if run.standing is None else run.standing.rounds
        self._written = time.perf_counter()

    def due(self, done: int) -> bool:
        """Whether to write when a run has made so many rounds: of several side by side the first to get there has all of them written."""
        seconds, rounds = self.settings.every_seconds, self.settings.every_rounds
        if seconds is not None and time.perf_counter() - self._written >= seconds:
            return True
        latest = max((run.written for run in self.runs if not run.over), default=0)
        return rounds is not None and done - latest >= rounds

    def _require_same(self, identity: Identity) -> None:
        if self.stored is None:
            return
        different = list(differences(self.stored.note["identity"], identity))
        if different:
            raise CheckpointError(
                f"the checkpoint in {self.folder.path} is of another run. What differs: {'; '.join(different)}. Solve with what it was made "
                f"with, or give a new folder to begin anew."
            )


@contextmanager
def keeping(compiled: CompiledProblem, solver: Any, settings: RunSettings) -> Iterator[RunKeeper | None]:
    """Hold the folder that the settings name; None where they name none.

    Raises ``CheckpointError`` if there is a checkpoint already and nobody wants to resume it, if it is of another run,
    or the folder cannot be used. Raises ``SettingError`` if the runtime cannot begin anywhere but at the start.
    """
    wanted: Checkpoint | None = settings.checkpoint
    if wanted is None:
        yield None
        return
    runtime = settings.runtime
    if not getattr(runtime, "resumes", True):
        raise SettingError(
            f"checkpoint=...: a run on {type(runtime).__name__}(asynchronous=True) cannot go on from one, since its sites are never at the same "
            f"round: leave checkpoint out, or run with rounds."
        )
    if runtime is not None and "begun" not in signature(runtime.execute).parameters:
        raise SettingError(
            f"checkpoint=...: {type(runtime).__name__} cannot resume a run, its execute() takes no begun=...: leave checkpoint out, or "
            f"use hierfl.runtime.InProcess()."
        )
    with CheckpointFolder(wanted.path) as folder:
        if folder.begun and not settings.resume:
            raise CheckpointError(
                f"there is a checkpoint in {folder.path} already. Write resume=True to go on with it, or give a new folder to begin anew."
            )
        with _as_written(wanted.path):
            keeper = RunKeeper(wanted, folder, identity_of(compiled, solver, settings), folder.read())
            keeper._require_same(keeper.identity)
        yield keeper

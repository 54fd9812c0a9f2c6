"""``RunKeeper``: keeps the runs of one ``solve`` in a folder while they go on, and resumes them from there."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from inspect import signature
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hierfl.checkpoint import Checkpoint
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.errors import CheckpointError, SettingError
from hierfl.jaxtools.interruption import unbroken
from hierfl.run_settings import RunSettings
from hierfl.runtime.checkpoints.checkpoint_folder import CheckpointContent, CheckpointFolder
from hierfl.runtime.checkpoints.kept_run import KeptRun
from hierfl.runtime.checkpoints.run_identity import (
    Identity,
    bound_identity,
    differences,
    identity_of,
    stored_identity,
)
from hierfl.runtime.contract import Algorithm, Visitor
from hierfl.runtime.watch import Watch


class RunKeeper:
    """Made by :func:`keeping`; ``stored`` is the checkpoint that the runs go on from, None where they begin.

    ``found`` is what trials have found, which are not made again.
    """

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
        runtime, bound = watches[0].settings.runtime, bound_identity(getattr(algorithm, "tables", {}), starts)
        self._require_same(bound)
        self.identity |= bound
        memories = getattr(runtime, "memories", lambda: None)
        self.runs = [KeptRun(watch, self._due, self.write, memories) for watch in watches]
        for lane, (run, start) in enumerate(zip(self.runs, starts)):
            note = None if self.stored is None else self.stored.note["runs"][lane]
            if self.stored is not None and note is not None:
                structure = None if visits else jax.tree.structure(algorithm.init(jnp.asarray(start)))
                run.resume(note, self.stored.arrays, lane, structure)
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
        """Put on disk where all runs stand."""
        arrays: dict[str, np.ndarray] = {}
        notes = [run.stored(arrays, lane) for lane, run in enumerate(self.runs)]
        with unbroken():
            self.folder.write({"identity": stored_identity(self.identity), "found": self.found, "runs": notes}, arrays)
        for run in self.runs:
            run.written = 0 if run.standing is None else run.standing.rounds
        self._written = time.perf_counter()

    def _due(self, done: int) -> bool:
        """Whether to write when a run has made so many rounds: of several side by side the first to get there has all of them written."""
        seconds, rounds = self.settings.every_seconds, self.settings.every_rounds
        if seconds is not None and time.perf_counter() - self._written >= seconds:
            return True
        return (
            rounds is not None and done - max((run.written for run in self.runs if not run.over), default=0) >= rounds
        )

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
        keeper = RunKeeper(wanted, folder, identity_of(compiled, solver, settings), folder.read())
        keeper._require_same(keeper.identity)
        yield keeper

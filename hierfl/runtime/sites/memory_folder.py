"""What a site's clients remember, on its owner's disk: kept when the server makes a checkpoint, read when a run goes on, and never sent."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from hierfl.errors import SettingError, SiteError
from hierfl.jaxtools.checked_arrays import BadArchiveError, read_arrays
from hierfl.jaxtools.whole_file import write_whole

RUN = re.compile(r"[0-9a-f]{8,64}")  # what a run may be called: it becomes the name of files
SUFFIX = ".memory"
KEPT = 3  # files of a run: those of the server's two latest checkpoints, and of one that it may not have come to write


class MemoryFolder:
    """Files ``RUN-NUMBER.memory``, each whole or not there, three of a run. Raises ``SettingError`` for no folder."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise SettingError(f"--keep {str(path)!r}: no folder can be made there ({error.strerror}).") from error
        if not os.access(path, os.W_OK):
            raise SettingError(f"--keep {str(path)!r}: nothing can be written there.")

    def keep(self, run: str, number: int, content: bytes) -> None:
        """Write one, and remove the run's oldest. Raises ``SiteError`` if it cannot be written, and others stay as they are."""
        try:
            write_whole(self._path(run, number), content, mode=0o600)
        except OSError as error:
            why = error.strerror or error
            raise SiteError(f"its --keep folder took nothing of {len(content):,} bytes ({why})") from error
        for old in sorted(self.path.glob(f"{run}-*{SUFFIX}"))[:-KEPT]:
            old.unlink(missing_ok=True)

    def read(self, run: str, number: int) -> bytes:
        """What was kept. Raises ``SiteError`` if it is not there."""
        path = self._path(run, number)
        try:
            return path.read_bytes()
        except FileNotFoundError:
            raise SiteError(
                f"what its clients remember at this checkpoint is not at the site any more: there is no {path.name} in its --keep folder"
            ) from None

    def _path(self, run: str, number: int) -> Path:
        if not RUN.fullmatch(run) or not 0 <= number < 10**9:
            raise SiteError(f"a checkpoint called {run[:80]!r}, {number}, which no server's is")
        return self.path / f"{run}-{number:09d}{SUFFIX}"


def memory_bytes(memory: Any, clients: Mapping[int, int]) -> bytes:
    """The memories of clients, a tree of arrays with a leading axis of ``clients``' places, as an ``.npz`` file."""
    stream = io.BytesIO()
    leaves = {str(place): np.asarray(leaf) for place, leaf in enumerate(jax.tree.leaves(memory))}
    np.savez(stream, allow_pickle=False, clients=np.array(list(clients), int), **leaves)
    return stream.getvalue()


def memory_of(content: bytes, like: Any, clients: Mapping[int, int]) -> Any:
    """The memories again, in the form of others. Raises ``SiteError`` for other clients, algorithms, or no such file."""
    try:
        kept = read_arrays(io.BytesIO(content))
        whose = kept.pop("clients").tolist()
        leaves = [kept.pop(str(place)) for place in range(len(kept))]
    except (BadArchiveError, KeyError) as error:
        raise SiteError(
            f"what was kept at this checkpoint is damaged: only a part of the file is there, or another one ({error})"
        ) from error
    if whose != list(clients):
        raise SiteError(f"what was kept at this checkpoint is of clients {whose}, and this site holds {list(clients)}")
    shapes = [(np.shape(leaf), np.asarray(leaf).dtype) for leaf in jax.tree.leaves(like)]
    if [(leaf.shape, leaf.dtype) for leaf in leaves] != shapes:
        raise SiteError("what was kept at this checkpoint is of another algorithm")
    return jax.tree.unflatten(jax.tree.structure(like), [jnp.asarray(leaf) for leaf in leaves])

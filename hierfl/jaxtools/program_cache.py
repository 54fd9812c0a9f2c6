"""What is made once and kept: compiled programs, and what else takes long to find out.

One cache belongs to one compiled problem. Keys belong to the callers, who must put into a key all that the thing depends on.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(eq=False, repr=False)
class ProgramCache:
    """Things by key, each made when first asked for."""

    _kept: dict[Hashable, Any] = field(default_factory=dict)
    _of_runs: set[Hashable] = field(default_factory=set)
    _used: set[Hashable] = field(default_factory=set)  # since they were last cleared

    def keep(self, key: Any, make: Callable[[], T], *, of_run: bool = False) -> T:
        """Make once and keep: a second solve with the same settings compiles nothing. Unhashable keys are not kept.

        Parameters
        ----------
        key
            All that the thing depends on.
        make
            Makes it.
        of_run
            Whether it serves runs of one algorithm alone, and may be forgotten when another one is tried.
        """
        try:
            hash(key)
        except TypeError:
            return make()
        if key not in self._kept:
            self._kept[key] = make()
        if of_run:
            self._of_runs.add(key)
        self._used.add(key)
        kept: T = self._kept[key]
        return kept

    def kept(self, key: Hashable) -> Any:
        """What is kept under a key; None where it was not made yet."""
        return self._kept.get(key)

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[Hashable]:
        return iter(self._kept)

    def __getitem__(self, key: Hashable) -> Any:
        return self._kept[key]

    @contextmanager
    def forgetting_runs(self) -> Iterator[Callable[[], None]]:
        """Forget on leaving the programs that runs within have kept, and at every call those that no run since the last has used."""
        before = set(self._kept)

        def forget(used: set[Hashable]) -> None:
            for key in (set(self._kept) - before - used) & self._of_runs:
                del self._kept[key]
                self._of_runs.discard(key)
            self._used.clear()

        self._used.clear()
        try:
            yield lambda: forget(set(self._used))
        finally:
            forget(set())

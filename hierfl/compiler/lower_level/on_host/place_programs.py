"""Programs of NumPy's over places: at one, or at many at once."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from hierfl.compiler.lower_level.on_host.place import Place, Places
from hierfl.jaxtools.by_numpy.numpy_program import NumpyProgram

TOGETHER = (8, 64, 512)  # how many places are evaluated at once


@dataclass(frozen=True, eq=False)
class PlacePrograms:
    """Functions of a place and further arrays, each made a program once."""

    _made: dict[Any, NumpyProgram] = field(default_factory=dict)

    def of(self, name: Hashable, function: Callable[..., Any], place: Place, *more: np.ndarray) -> NumpyProgram:
        """The function as a program, for arguments of such shapes."""
        key = name, place.form
        if key not in self._made:
            with jax.enable_x64(True):
                self._made[key] = NumpyProgram(function, *place.parts, *more)
        return self._made[key]

    def at_each(self, name: str, function: Callable[..., Any], asked: Places, *more: np.ndarray) -> Any:
        """The function's results at up to ``TOGETHER[-1]`` places, each with its own rows of further arrays: stacks."""
        count = next(size for size in TOGETHER if size >= len(asked))
        rows = [np.asarray(array) for array in more]
        if count > len(asked):
            padded = np.minimum(np.arange(count), len(asked) - 1)
            whole, rows = asked.among(padded), [array[padded] for array in rows]
        else:
            whole = asked
        place, axes = whole.as_one()

        def several(*parts: Any) -> Any:
            return jax.vmap(function, (*axes, *[0] * len(more)))(*parts)

        shared = tuple(axis is None for axis in jax.tree.leaves(axes, is_leaf=lambda axis: axis is None))
        result = self.of((name, count, shared), several, place, *rows)(*place.parts, *rows)
        return result if whole is asked else jax.tree.map(lambda part: part[: len(asked)], result)

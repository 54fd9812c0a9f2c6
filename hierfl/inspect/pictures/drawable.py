"""What pictures draw: gaps, ties and smoothings along a line, and what a slice and a surface must have to be drawn."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.inspect.kinks.kink import Kinks
from hierfl.inspect.line import Line
from hierfl.inspect.plane import Plane


class Gap(NamedTuple):
    """f has no value for t in [low, high]; ``reason`` says why."""

    low: float
    high: float
    reason: str

    def __str__(self) -> str:
        return f"t in [{self.low:.6g}, {self.high:.6g}]: {self.reason}"


class Tie(NamedTuple):
    """For t in [low, high] an owner's lower level has several solutions that f tells apart.

    Where the declaration has ``selected`` among them, whether it has is not known.
    """

    low: float
    high: float
    owner: str
    selected: bool

    def __str__(self) -> str:
        where = f"t = {self.low:.6g}" if self.high == self.low else f"t in [{self.low:.6g}, {self.high:.6g}]"
        if self.selected:
            return f"{where}: whether the lower level of {self.owner} has one solution or several is not known, so that none is chosen"
        return f"{where}: the lower level of {self.owner} has several solutions, and f is that of least norm"


class Smoothed(NamedTuple):
    """f^eta on the slice's points by Monte Carlo, with half the width of its 95% interval at each."""

    eta: float
    value: np.ndarray
    half_width: np.ndarray


class DrawableSlice(Protocol):
    """f along a line, as pictures see it; ``hierfl.inspect.pictures.slice`` says what its parts are."""

    @property
    def compiled(self) -> CompiledProblem: ...

    @property
    def line(self) -> Line: ...

    @property
    def t(self) -> np.ndarray: ...

    @property
    def value(self) -> np.ndarray: ...

    @property
    def answers(self) -> np.ndarray: ...

    @property
    def chosen(self) -> str: ...

    @property
    def smoothed(self) -> tuple[Smoothed, ...]: ...

    @property
    def iterates(self) -> np.ndarray: ...

    @property
    def kinks(self) -> Kinks: ...

    @property
    def gaps(self) -> tuple[Gap, ...]: ...

    @property
    def ties(self) -> tuple[Tie, ...]: ...


class DrawableSurface(Protocol):
    """f over a plane, as pictures see it; ``hierfl.inspect.pictures.surface`` says what its parts are."""

    @property
    def compiled(self) -> CompiledProblem: ...

    @property
    def plane(self) -> Plane: ...

    @property
    def s(self) -> np.ndarray: ...

    @property
    def value(self) -> np.ndarray: ...

    @property
    def iterates(self) -> np.ndarray: ...

    @property
    def gaps(self) -> dict[str, int]: ...

    @property
    def kink_points(self) -> np.ndarray: ...

    @property
    def kink_values(self) -> np.ndarray: ...

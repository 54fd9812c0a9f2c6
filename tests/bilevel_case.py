"""A bilevel problem with an answer that hierfl has no part in.

The mathematics is written once, as functions of (x, y) that take CVXPY's variables (to declare the problem) and NumPy's arrays
(to evaluate it) alike; y(x) comes from a formula or an enumeration, and slopes are differences of high order of f.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import cvxpy as cp
import numpy as np

import hierfl as hf

STEP = 1e-3  # between the points of a difference; points are further from kinks than four of them
CENTRAL = {1: 4 / 5, 2: -1 / 5, 3: 4 / 105, 4: -1 / 280}
FORWARD = np.linalg.solve(np.vander(np.arange(9.0), increasing=True).T, np.eye(9)[1])

Point = tuple[float, ...]


def number(value: Any) -> float:
    """A number that NumPy or CVXPY has computed."""
    return float(value.value if isinstance(value, cp.Expression) else value)


def central_slope(f: Callable[[float], float], step: float = STEP) -> float:
    """f'(0) from eight values, exact up to terms in the ninth derivative."""
    return sum(weight * (f(k * step) - f(-k * step)) for k, weight in CENTRAL.items()) / step


def forward_slope(f: Callable[[float], float], step: float = STEP) -> float:
    """The right derivative at 0 from nine values, exact up to terms in the ninth derivative."""
    return float(FORWARD @ [f(k * step) for k in range(9)]) / step


def gradient_by_differences(f: Callable[[np.ndarray], float], x: np.ndarray, step: float = STEP) -> np.ndarray:
    """The gradient of f at a point near which it is smooth."""
    return np.array([central_slope(lambda t, e=e: f(x + t * e), step) for e in np.eye(len(x))])


def one_sided_slopes(f: Callable[[float], float], t: float, step: float = STEP) -> tuple[float, float]:
    """The slopes of f before and after t."""
    return -forward_slope(lambda s: f(t - s), step), forward_slope(lambda s: f(t + s), step)


def is_smooth(f: Callable[[np.ndarray], float], x: np.ndarray, step: float = STEP, bar: float = 1e-7) -> bool:
    """Whether the slopes of f before and after x agree along every axis and a diagonal, within nine steps of x."""
    for direction in [*np.eye(len(x)), np.linspace(1.0, -0.7, len(x))]:
        before, after = one_sided_slopes(lambda t, d=direction: f(x + t * d), 0.0, step)
        if abs(before - after) > bar * (1 + abs(before)):
            return False
    return True


@dataclass(frozen=True)
class Line:
    """x(t) = centre + t direction, |t| <= radius, and every kink of f on it."""

    centre: Point
    direction: Point
    radius: float
    kinks: tuple[float, ...]

    def at(self, t: float) -> np.ndarray:
        return np.asarray(self.centre, float) + t * self.unit

    @property
    def unit(self) -> np.ndarray:
        direction = np.asarray(self.direction, float)
        return direction / np.linalg.norm(direction)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A bilevel problem: x in a box and perhaps further rows; y(x) unique, or f the same for all solutions.

    ``upper``, ``lower`` and ``rows`` take (x, y), with ``data`` (x, y, u): one y for every row of data, and means over them.
    ``answer`` is y(x), or y(x, u). ``points`` are generic, ``lines`` have the kinks; ``optima`` are global minimisers with the
    value ``least``, where they are known.
    """

    name: str
    source: str
    upper: Callable[..., Any]
    lower: Callable[..., Any]
    rows: Callable[..., list[Any]]
    answer: Callable[..., np.ndarray]
    low: Point
    high: Point
    size: int  # of y
    points: Sequence[Point]
    lines: Sequence[Line] = ()
    optima: Sequence[Point] = ()
    least: float | None = None
    within: Callable[[Any], list[Any]] = lambda x: []
    level: type[hf.ArgMin] | type[hf.Equilibrium] = hf.ArgMin
    data: np.ndarray | None = None
    signs: dict[str, bool] | None = None  # attributes of x

    def declare(self, level: Callable[..., Any] | None = None) -> hf.Problem:
        """The problem, made anew; ``level`` in place of the lower level's class takes the same arguments."""
        x, y = cp.Variable(len(self.low), name="x", **(self.signs or {})), cp.Variable(self.size, name="y")
        constraints = [x >= np.array(self.low), x <= np.array(self.high), *self.within(x)]
        make = level or self.level
        if self.data is None:
            below = make(y, self.lower(x, y), self.rows(x, y))
            return hf.Problem(hf.Minimize(clients=self.upper(x, y)), lower=below, constraints=constraints)
        u = hf.Sample(self.data.shape[1], name="u")
        below = make(y, self.lower(x, y, u), self.rows(x, y, u), scope="sample")
        return hf.Problem(
            hf.Minimize(clients=hf.E(self.upper(x, y, u))),
            lower=below,
            constraints=constraints,
            federation=hf.Federation([hf.Client({u: self.data})]),
        )

    def response(self, x: np.ndarray) -> np.ndarray:
        """y(x); with data (rows, size)."""
        if self.data is None:
            return self.answer(x)
        return np.array([self.answer(x, u) for u in self.data])

    def value(self, x: np.ndarray) -> float:
        """f(x)."""
        x = np.asarray(x, float)
        if self.data is None:
            return number(self.upper(x, self.answer(x)))
        return float(np.mean([number(self.upper(x, self.answer(x, u), u)) for u in self.data]))

    def gradient(self, x: np.ndarray) -> np.ndarray:
        """The gradient of f at a generic point."""
        return gradient_by_differences(self.value, np.asarray(x, float))

    def slopes(self, line: Line, t: float) -> tuple[float, float]:
        """The slopes of f along a line before and after t."""
        return one_sided_slopes(lambda s: self.value(line.at(s)), t)

    def places(self) -> list[np.ndarray]:
        """All points of interest: the generic ones, minimisers, kinks."""
        kinks = [line.at(t) for line in self.lines for t in line.kinks]
        return [np.array(point, float) for point in [*self.points, *self.optima]] + kinks

    def holds(self, x: np.ndarray) -> bool:
        """Whether x is in X."""
        inside = np.all(x >= np.array(self.low) - 1e-12) and np.all(x <= np.array(self.high) + 1e-12)
        return bool(inside and all(map(np.all, self.within(x))))

    @cached_property
    def below(self) -> tuple[cp.Problem, cp.Parameter, cp.Variable, cp.Parameter | None]:
        """The lower level as CVXPY's own problem of a parameter x (and u), to solve again and again; not of an equilibrium."""
        x, y = cp.Parameter(len(self.low), nonneg=min(self.low) >= 0), cp.Variable(self.size)
        u = None if self.data is None else cp.Parameter(self.data.shape[1])
        given = () if u is None else (u,)
        return cp.Problem(cp.Minimize(self.lower(x, y, *given)), self.rows(x, y, *given)), x, y, u

    def __str__(self) -> str:
        return self.name

"""Small problems of every kind, declared for hierfl and answered without it.

A case is a scope, a kind of lower level, and what clients hold. The clients are uneven: 1, 2 and 40 rows. Every lower objective is a
quadratic that a client's data make, ||y - x||^2, and what its kind adds; the answers are CVXPY's on those quadratics, a linear system's, or
formulas' and SciPy's with every set of bounds tried.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, NamedTuple

import cvxpy as cp
import numpy as np
import scipy.optimize
import scipy.special
import scipy.stats

import hierfl as hf

ROWS = (1, 2, 40)  # of the first table; of the second in reverse
SIZE = 2
SKEW = np.array([[0.0, 0.5], [-0.5, 0.0]])  # what makes a map of an equilibrium or a game no gradient
TIGHT = {"tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11, "tol_ktratio": 1e-10}


class CaseAnswer(NamedTuple):
    """f at an x, and the y of every owner (owners, size).

    Examples
    --------
    >>> from hierfl.testing import CASES
    >>> answer = CASES[0].answer(np.zeros(2))
    """

    value: float
    y: np.ndarray


class Kind(NamedTuple):
    """What a kind of lower level adds: a convex term and constraints, of (x, y), which NumPy's x and CVXPY's y fit as well."""

    term: Callable[[Any, Any], Any] = lambda x, y: 0.0
    limits: Callable[[Any, Any], list[Any]] = lambda x, y: []


KINDS = {
    "free": Kind(),
    "box": Kind(limits=lambda x, y: [y >= 0.05, y <= 0.6]),
    "polyhedron": Kind(limits=lambda x, y: [y >= 0, cp.sum(y) <= 0.5 + 0.1 * x[0]]),
    "cones": Kind(limits=lambda x, y: [cp.norm(y - 0.1 * x) <= 0.4, cp.sum(y) >= 0.1]),
    "kinks": Kind(term=lambda x, y: 0.3 * cp.norm1(y - 0.1), limits=lambda x, y: [cp.sum(y) <= 1]),
    "smooth": Kind(term=lambda x, y: cp.logistic(cp.sum(y)), limits=lambda x, y: [y >= -0.1]),
    "equilibrium": Kind(limits=lambda x, y: [y >= 0.05, y <= 0.6]),
    "game": Kind(),
}


class Losses(NamedTuple):
    """What a client's data make of the lower and the upper objective, of y, the data and a mean: over samples hierfl's, over rows NumPy's."""

    below: Callable[[Any, Any, Callable[[Any], Any]], Any]
    above: Callable[[Any, Any, Callable[[Any], Any]], Any]


LOSSES = {
    "samples": Losses(lambda y, h, mean: mean((h.u @ y - h.b) ** 2), lambda y, h, mean: mean((h.u @ y + h.b) ** 2)),
    "parameters": Losses(lambda y, h, mean: _squares(y - h.c), lambda y, h, mean: _squares(y - 2 * h.c)),
    "both": Losses(
        lambda y, h, mean: mean((h.u @ (y - h.c) - h.b) ** 2), lambda y, h, mean: mean((h.u @ (y + h.c) - h.b) ** 2)
    ),
    "tables": Losses(
        lambda y, h, mean: mean((h.u @ y - h.b) ** 2) + mean((h.v @ y - h.d) ** 2),
        lambda y, h, mean: mean((h.v @ y + h.d) ** 2),
    ),
    "law": Losses(
        lambda y, h, mean: mean((h.s * y[0] - 1) ** 2) + y[1] ** 2, lambda y, h, mean: mean((h.s * y[1] - y[0]) ** 2)
    ),
}


def _squares(vector: Any) -> Any:
    return cp.sum_squares(vector) if isinstance(vector, cp.Expression) else np.sum(vector**2)


@dataclass(frozen=True)
class Case:
    """A problem, and its answer by other means; two of its clients hang at one edge, the third at another.

    Parameters
    ----------
    scope
        ``"client"``, ``"federation"``, ``"sample"``; None without a lower level.
    kind
        One of ``KINDS``.
    holds
        What a client holds: ``"samples"``, ``"parameters"``, ``"both"``, ``"tables"`` (two, of different lengths) or ``"law"``.

    Examples
    --------
    >>> from hierfl.testing import CASES
    >>> CASES[0]
    Case(scope=None, kind='free', holds='samples')
    """

    scope: str | None
    kind: str
    holds: str

    def __str__(self) -> str:
        return f"{self.scope or 'no'} y, {self.kind}, {self.holds}"

    @property
    def start(self) -> np.ndarray:
        """Where runs begin."""
        return np.array([0.35, -0.2])

    # --- as hierfl takes it --------------------------------------------------------------------------------------------

    def problem(self, holders: Collection[int] | None = None) -> hf.Problem:
        """The declaration, made anew; where ``holders`` are given, the other clients' data are elsewhere."""
        x, y, leaves = cp.Variable(SIZE, name="x"), cp.Variable(SIZE, name="y"), _Leaves()
        clients = [leaves.client(self.holds, place, holders is None or place in holders) for place in range(len(ROWS))]
        level: Any = None
        if self.kind == "game":
            players = cp.Variable(name="y_1"), cp.Variable(name="y_2")
            y = cp.hstack(players)
            level = self._game(x, players, leaves)
        elif self.scope is not None:
            level = self._level(x, y, leaves)
        objective = self._above(x if self.scope is None else y, leaves) + 0.1 * cp.sum_squares(x - 1)
        constraints, federation = [cp.abs(x) <= 1], hf.Federation.tree({"near": clients[:2], "far": clients[2:]})
        return hf.Problem(hf.Minimize(clients=objective), level, constraints=constraints, federation=federation)

    def _game(self, x: Any, players: tuple[Any, Any], leaves: _Leaves) -> Any:
        """Each player minimises what the data say, its distance to an entry of x, and what the other does to it."""
        below, (first, second) = self._below(cp.hstack(players), leaves), players
        return hf.Nash(
            hf.Player(first, below + cp.square(first - x[0]) + SKEW[0, 1] * first * second),
            hf.Player(second, below + cp.square(second - x[1]) + SKEW[1, 0] * first * second),
            scope=str(self.scope),
        )

    def _level(self, x: Any, y: Any, leaves: _Leaves) -> Any:
        kind, scope = KINDS[self.kind], str(self.scope)
        if self.kind == "equilibrium":
            return hf.Equilibrium(y, self._map(y, leaves) + 2 * (y - x) + SKEW @ y, kind.limits(x, y), scope=scope)
        objective = self._below(y, leaves) + cp.sum_squares(y - x) + kind.term(x, y)
        return hf.ArgMin(y, objective, kind.limits(x, y), scope=scope)

    def _below(self, y: Any, leaves: _Leaves) -> Any:
        """What a client's data make of the lower objective; of a sample's by itself there is no mean."""
        return LOSSES[self.holds].below(y, leaves, (lambda term: term) if self.scope == "sample" else hf.E)

    def _map(self, y: Any, leaves: _Leaves) -> Any:
        """The gradient of that in y."""
        u, b, c = leaves.u, leaves.b, leaves.c
        if self.holds == "parameters":
            return 2 * (y - c)
        shift = c if self.holds == "both" else np.zeros(SIZE)
        row = 2 * (u @ (y - shift) - b) * u
        return row if self.scope == "sample" else hf.E(row)

    def _above(self, y: Any, leaves: _Leaves) -> Any:
        """What a client's data make of the upper objective."""
        return hf.E(cp.sum_squares(y - leaves.u)) if self.scope == "sample" else LOSSES[self.holds].above(y, leaves, hf.E)

    # --- and without it ------------------------------------------------------------------------------------------------

    def answer(self, x: np.ndarray) -> CaseAnswer:
        """f and y at an x."""
        x = np.asarray(x, float)
        held, losses = [_held(k) for k in range(len(ROWS))], LOSSES[self.holds]
        values = []
        if self.scope == "sample":
            answers = [np.stack([self._response(x, [row]) for row in own.rows()]) for own in held]
            owners = np.concatenate(answers)
            values = [np.mean(np.sum((y - own.u) ** 2, axis=1)) for own, y in zip(held, answers)]
        else:
            together: Any = {"client": [[own] for own in held], "federation": [held], None: []}[self.scope]
            owners = np.array([self._response(x, group) for group in together]).reshape(-1, SIZE)
            each: Any = {"client": owners, "federation": [*owners] * len(held), None: [x] * len(held)}[self.scope]
            values = [losses.above(y, own, np.mean) for own, y in zip(held, each)]
        return CaseAnswer(float(np.mean(values) + 0.1 * np.sum((x - 1) ** 2)), owners)

    def _response(self, x: np.ndarray, group: Collection[_Held]) -> np.ndarray:
        """y(x) of those who hold these data together."""
        h, q = _below(self, group)
        h, q = h + 2 * np.eye(SIZE), q - 2 * x
        if self.kind == "equilibrium":
            return _between(lambda y: (h + SKEW) @ y + q, 0.05, 0.6)
        if self.kind == "smooth":
            return _between(lambda y: h @ y + q + scipy.special.expit(y.sum()), -0.1, np.inf)
        if self.kind == "game":
            return np.linalg.solve(h + SKEW, -q)
        if self.kind == "free":
            return np.linalg.solve(h, -q)
        if self.kind == "cones":
            return _in_disc(h, q, 0.1 * x, 0.4, 0.1)
        kind, y = KINDS[self.kind], cp.Variable(SIZE)
        cost = 0.5 * cp.quad_form(y, cp.psd_wrap(h)) + q @ y + kind.term(x, y)
        problem = cp.Problem(cp.Minimize(cost), kind.limits(x, y))
        problem.solve(solver=cp.CLARABEL, **TIGHT)
        return np.asarray(y.value)


class _Leaves:
    """The samples and constants of one declaration."""

    def __init__(self) -> None:
        self.u, self.b = hf.Sample(SIZE, name="u"), hf.Sample(name="b")
        self.v, self.d = hf.Sample(SIZE, name="v"), hf.Sample(name="d")
        self.c, self.s = hf.ClientParameter(SIZE, name="c"), hf.Sample(name="s")

    def client(self, holds: str, place: int, here: bool) -> hf.Client:
        """A client with its data, or with their numbers of rows."""
        own = _held(place)

        def rows(array: np.ndarray) -> Any:
            return array if here else hf.Elsewhere(len(array))

        first, second = {self.u: rows(own.u), self.b: rows(own.b)}, {self.v: rows(own.v), self.d: rows(own.d)}
        tables: list[Any] = {"parameters": [], "law": [{self.s: own.law}], "tables": [first, second]}.get(
            holds, [first]
        )
        constants = {self.c: own.c if here else hf.Elsewhere()} if holds in ("parameters", "both") else {}
        return hf.Client(tables or {}, constants, name=f"client {place}")


class _Held(NamedTuple):
    u: np.ndarray
    b: np.ndarray
    v: np.ndarray
    d: np.ndarray
    c: np.ndarray
    law: Any
    s: np.ndarray  # two equal masses with the mean and the variance of the law, which are all that squares see

    def rows(self) -> list[_Held]:
        """Each row of the first table by itself."""
        return [self._replace(u=self.u[k : k + 1], b=self.b[k : k + 1]) for k in range(len(self.u))]


def _held(place: int) -> _Held:
    rng, (first, second) = np.random.default_rng(place), (ROWS[place], ROWS[-1 - place])
    u, v = 0.7 * rng.standard_normal((first, SIZE)), 0.7 * rng.standard_normal((second, SIZE))
    b, d, c = rng.standard_normal(first), rng.standard_normal(second), rng.uniform(0.0, 0.5, SIZE)
    law = scipy.stats.norm(0.5 + 0.3 * place, 0.4)
    return _Held(u, b, v, d, c, law, law.mean() + law.std() * np.array([-1.0, 1.0]))


def _below(case: Case, group: Collection[_Held]) -> tuple[np.ndarray, np.ndarray]:
    """H and q of the quadratic y'Hy / 2 + q'y + c that these data make of the lower objective, by its values."""

    def loss(y: np.ndarray) -> float:
        return float(np.mean([LOSSES[case.holds].below(y, own, np.mean) for own in group]))

    units, none = np.eye(SIZE), np.zeros(SIZE)
    at, alone = loss(none), np.array([loss(unit) for unit in units])
    h = np.array([[loss(one + other) for other in units] for one in units]) - alone[:, None] - alone + at
    return h, alone - at - np.diag(h) / 2


def _in_disc(h: np.ndarray, q: np.ndarray, centre: np.ndarray, radius: float, least: float) -> np.ndarray:
    """The y in a disc of the plane, with entries that sum to at least so much, where y'Hy / 2 + q'y is least: by trying what may hold."""
    along, foot = np.array([1.0, -1.0]), np.full(SIZE, least / SIZE)
    shift = h @ centre + q
    tried = [np.linalg.solve(h, -q), foot - along * (along @ (h @ foot + q)) / (along @ h @ along)]

    def on_circle(weight: float) -> np.ndarray:
        return centre - np.linalg.solve(h + weight * np.eye(SIZE), shift)

    def beyond(weight: float) -> float:
        return float(np.linalg.norm(on_circle(weight) - centre) - radius)

    if beyond(0.0) > 0:
        tried.append(on_circle(scipy.optimize.brentq(beyond, 0.0, np.linalg.norm(shift) / radius, xtol=1e-15)))
    middle = centre + (least - centre.sum()) / SIZE  # of the chord on which the sum is least
    half = np.sqrt(max(0.0, radius**2 - np.sum((middle - centre) ** 2)) / SIZE)
    tried += [middle + half * along, middle - half * along]
    fits = [y for y in tried if np.linalg.norm(y - centre) <= radius + 1e-12 and y.sum() >= least - 1e-12]
    return min(fits, key=lambda y: 0.5 * y @ h @ y + q @ y)


def _between(force: Callable[[np.ndarray], np.ndarray], low: float, high: float) -> np.ndarray:
    """The y in a box at which a force pushes outwards only: by trying every set of bounds that hold, the rest by SciPy."""
    edges = [edge for edge in (None, low, high) if edge is None or np.isfinite(edge)]
    for held in itertools.product(edges, repeat=SIZE):
        free, y = [k for k in range(SIZE) if held[k] is None], np.array([edge or 0.0 for edge in held])

        def moved(part: np.ndarray, y: np.ndarray = y, free: list[int] = free) -> np.ndarray:
            whole = y.copy()
            whole[free] = part
            return whole

        if free:
            y = moved(scipy.optimize.root(lambda part: force(moved(part))[free], y[free], tol=1e-14).x)  # noqa: B023
        pushed = {low: 1.0, high: -1.0, None: 0.0}
        fits = ((y >= low - 1e-12) & (y <= high + 1e-12)).all()
        if fits and all(pushed[edge] * f >= -1e-12 for edge, f in zip(held, force(y))):
            return y
    raise AssertionError("a strongly monotone map over a box has an equilibrium")


CASES = (
    Case(None, "free", "samples"),
    Case(None, "free", "both"),
    Case("client", "free", "tables"),
    Case("client", "box", "both"),
    Case("client", "polyhedron", "samples"),
    Case("client", "cones", "tables"),
    Case("client", "kinks", "parameters"),
    Case("client", "smooth", "samples"),
    Case("client", "equilibrium", "both"),
    Case("client", "game", "samples"),
    Case("client", "polyhedron", "law"),
    Case("federation", "free", "parameters"),
    Case("federation", "free", "tables"),
    Case("federation", "box", "law"),
    Case("federation", "polyhedron", "both"),
    Case("federation", "cones", "samples"),
    Case("federation", "kinks", "tables"),
    Case("federation", "smooth", "parameters"),
    Case("federation", "equilibrium", "samples"),
    Case("federation", "game", "parameters"),
    Case("sample", "polyhedron", "samples"),
    Case("sample", "cones", "both"),
    Case("sample", "equilibrium", "samples"),
)

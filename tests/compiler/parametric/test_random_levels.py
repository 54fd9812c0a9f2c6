"""Lower levels drawn at random, mixed atoms over mixed sets in every scope, and f by CVXPY owner by owner; the same bits after any other questions.

``python -m tests.compiler.parametric.test_random_levels 300`` draws more than the suite does.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from tests.random_trials import trials

TIGHT, LOOSE = (dict.fromkeys(("tol_gap_abs", "tol_gap_rel", "tol_feas"), t) for t in (1e-11, 1e-9))
SOON = 20.0  # seconds of solve()
SOLVED = 5  # of so many declarations one is solved


@dataclass(frozen=True)
class Drawn:
    """f(x) is the mean of ``upper(x, y)`` over clients and their rows a, where y minimises ``lower(x, y, a)``, or its mean, over ``limits``."""

    seed: int
    size: int
    at: np.ndarray
    scope: str
    rows: list[np.ndarray]
    lower: Callable[[Any, Any, Any], Any]
    limits: Callable[[Any, Any], list[Any]]
    upper: Callable[[Any, Any], Any]

    def problem(self) -> hf.Problem:
        x, y, a = cp.Variable(len(self.at), name="x"), cp.Variable(self.size, name="y"), hf.Sample(name="a")
        below, above = self.lower(x, y, a), self.upper(x, y)
        if self.scope == "sample":
            above = hf.E(above + 0 * a)
        else:
            below = hf.E(below)
        level = hf.ArgMin(y, below, self.limits(x, y), scope=self.scope)
        clients = hf.Federation([hf.Client({a: rows}) for rows in self.rows])
        return hf.Problem(hf.Minimize(clients=above), level, [cp.abs(x) <= 1], clients)

    def answer(self) -> tuple[float, float]:
        """(f, how far from it CVXPY may be)."""
        apart = [[[[row]] for row in rows] for rows in self.rows]
        owners = {"federation": [[self.rows]], "client": [[[rows]] for rows in self.rows], "sample": apart}[self.scope]
        found = [[self._of_owner(data) for data in client] for client in owners]
        values = [np.mean([value for value, _ in client]) for client in found]
        return float(np.mean(values)), max(error for client in found for _, error in client)

    def _of_owner(self, data: list[Any]) -> tuple[float, float]:
        x, y = cp.Constant(self.at), cp.Variable(self.size)
        means = [sum(self.lower(x, y, float(row)) for row in rows) / len(rows) for rows in data]
        program = cp.Problem(cp.Minimize(sum(means) / len(means)), self.limits(x, y))
        try:
            program.solve(solver=cp.CLARABEL, **TIGHT)
            error = 1e-6
        except cp.SolverError:
            program.solve(solver=cp.CLARABEL, **LOOSE)
            error = 2e-5
        return float(self.upper(x, cp.Constant(y.value)).value), error if program.status == cp.OPTIMAL else 2e-5


def draw(seed: int) -> Drawn:
    r = np.random.default_rng(seed)
    n, k = int(r.integers(1, 7)), int(r.integers(1, 4))
    b, a, p, c, s, aim = (r.normal(size=shape) for shape in ((n, k), (3, n), (n, n), (2, n), n, n))
    h = p @ p.T / n
    symmetric = [w + w.T for w in r.normal(size=(n, 2, 2))]
    terms: list[Callable[[Any, Any], Any]] = [
        lambda x, y: 0.5 * cp.quad_form(y, cp.psd_wrap(h)),
        lambda x, y: cp.sum_squares(a @ y - a @ (b @ x)),
        lambda x, y: 0.3 * cp.norm1(y - b @ x),
        lambda x, y: cp.max(cp.hstack([a @ y, 0])),
        lambda x, y: cp.sum(cp.logistic(a @ y + x[0])),
        lambda x, y: cp.sum(cp.huber(y - b @ x, 0.5)),
        lambda x, y: cp.norm(a @ y + x[0]),
        lambda x, y: cp.log_sum_exp(cp.hstack([a @ y, x[0]])),
        lambda x, y: cp.sum(cp.exp(0.5 * y)),
        lambda x, y: cp.sum(cp.square(cp.pos(a @ y - x[0]))),
        lambda x, y: 0.1 * cp.sum(cp.power(cp.abs(y), 3)),
        lambda x, y: cp.sum_largest(cp.abs(y), 1),
    ]
    sets: list[Callable[[Any, Any], list[Any]]] = [
        lambda x, y: [c @ y <= 1 + 0.2 * x[0]],
        lambda x, y: [y >= -1, y <= 1.5],
        lambda x, y: [cp.norm(y - 0.2 * b @ x) <= 1 + 0.1 * x[0]],
        lambda x, y: [cp.sum_squares(p @ (y - 0.2 * b @ x)) <= 2],
        lambda x, y: [sum(y[j] * symmetric[j] for j in range(n)) + (2 + 0.1 * x[0]) * np.eye(2) >> 0],
        lambda x, y: [cp.norm1(y) <= 2],
        lambda x, y: [cp.sum(y) == 0.3 * x[0]],
        lambda x, y: [cp.norm_inf(y - 0.2 * b @ x) <= 1],
    ]
    uppers: list[Callable[[Any, Any], Any]] = [
        lambda x, y: cp.sum_squares(y - 1) + 0.1 * cp.sum_squares(x),
        lambda x, y: cp.norm1(y - aim) + 0.1 * cp.sum_squares(x),
        lambda x, y: aim @ y + cp.sum_squares(x),
    ]
    chosen = [terms[j] for j in r.choice(len(terms), int(r.integers(1, 4)), replace=False)]
    limits = [sets[j] for j in r.choice(len(sets), int(r.integers(1, 3)), replace=False)]
    rows = [r.normal(size=int(r.integers(1, 4))) for _ in range(int(r.integers(1, 5)))]
    return Drawn(
        seed,
        n,
        r.uniform(-0.6, 0.6, k),
        str(r.choice(["federation", "client", "sample"])),
        rows,
        lambda x, y, row: sum(term(x, y) for term in chosen) + 0.5 * cp.sum_squares(y - s * row),
        lambda x, y: [each for some in limits for each in some(x, y)],
        uppers[int(r.integers(len(uppers)))],
    )


def faults(drawn: Drawn, said: Counter[str]) -> list[str]:
    """What is wrong with f, its gradient (by differences), and the time of ``solve()``."""
    wrong, problem = [], drawn.problem()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        value, (told, error) = problem.implicit(drawn.at), drawn.answer()
        if abs(value - told) > error * (1 + abs(told)):
            wrong.append(f"f = {value}, by CVXPY {told}")
        try:
            gradient = np.asarray(problem.implicit.gradient(drawn.at))
            way, step = np.cos(1.0 + np.arange(len(drawn.at))), 1e-5
            sides = [problem.implicit(drawn.at + sign * step * way) for sign in (1.0, -1.0)]
            slope = (sides[0] - sides[1]) / (2 * step)
            if abs(slope - gradient @ way) > 1e-3 * (1 + abs(slope)):
                wrong.append(f"slope {gradient @ way}, by differences {slope}")
            said["gradients"] += 1
        except hf.NoGradientError:
            said["refused gradients"] += 1
        if drawn.seed % SOLVED == 0:
            began = time.process_time()
            said[problem.solve(progress=False).status] += 1
            if time.process_time() - began > SOON:
                wrong.append(f"solve() took {time.process_time() - began:.0f} s")
    return wrong


@pytest.mark.parametrize("seed", [*range(8), 40, 100])  # of the last two interior points leave NaN beside a rough answer
def test_a_declaration_drawn_at_random_is_answered_right(seed: int) -> None:
    assert not faults(draw(seed), Counter())


Draw = np.random.Generator
Level = Callable[[Draw, cp.Variable, cp.Variable], hf.ArgMin]


def lasso(draw: Draw, x: cp.Variable, y: cp.Variable) -> hf.ArgMin:
    rows, noise = draw.normal(size=(30, y.size)), draw.normal(size=30)
    return hf.ArgMin(y, 0.1 * cp.sum_squares(rows @ y - noise - x[0]) + 0.5 * cp.norm1(y))


def over_rows(draw: Draw, x: cp.Variable, y: cp.Variable) -> hf.ArgMin:
    rows = draw.normal(size=(8, y.size))
    return hf.ArgMin(y, 0.5 * cp.sum_squares(y - x[1]), [rows @ y <= 1 + 0.1 * x[0], y >= -0.3, cp.sum(y) == x[0]])


def linear(draw: Draw, x: cp.Variable, y: cp.Variable) -> hf.ArgMin:
    cost = draw.uniform(1, 2, y.size) + draw.normal(size=(y.size, 2)) @ x
    return hf.ArgMin(y, cost @ y, [cp.sum(y) == 3, y >= 0, y <= 1])


def with_ties(draw: Draw, x: cp.Variable, y: cp.Variable) -> hf.ArgMin:
    return hf.ArgMin(y, cp.sum(cp.pos(y - x[0])) + cp.max(y + x[1]), [y >= -1, cp.sum(y) >= 0, cp.sum(y) >= 0])


@pytest.mark.filterwarnings("ignore::hierfl.errors.LowerLevelWarning")
@pytest.mark.parametrize("level", [lasso, over_rows, linear, with_ties], ids=lambda level: level.__name__)
def test_answers_are_the_same_bits_after_any_others(level: Level) -> None:
    """Along a line with kinks, as far apart as a run's points are and as near as a slice's; multipliers of a row that is there twice as well."""

    def asked(points: np.ndarray) -> list[tuple[Any, ...]]:
        x, y = cp.Variable(2, name="x"), cp.Variable(12, name="y")
        lower = level(np.random.default_rng(0), x, y)
        implicit = hf.Problem(hf.Minimize(clients=cp.sum_squares(y - 0.2) + x @ x), lower).implicit
        return [(implicit.response(at), implicit(at), *implicit.multipliers(at).values()) for at in points]

    near = np.array([0.2, -0.1]) + 1e-9 * np.arange(-3, 4)[:, None]
    line = np.concatenate([np.linspace(-1, 1, 41)[:, None] * [1.0, 0.4], near])
    ahead, back = asked(line), asked(line[::-1])[::-1]
    alone = {k: asked(line[k : k + 1])[0] for k in range(0, len(line), 12)}
    for one, other in [*zip(ahead, back), *((ahead[k], one) for k, one in alone.items())]:
        assert all(map(np.array_equal, one, other))


if __name__ == "__main__":
    trials(draw, faults, lambda drawn: (drawn.scope, drawn.size, [len(rows) for rows in drawn.rows]), told=True)

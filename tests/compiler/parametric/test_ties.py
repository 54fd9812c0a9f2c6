"""Levels with more than one solution: told, the shortest or as selected, or refused, against vertices of their sets, the literature and closed forms.

More random levels than the suite draws: ``python -m tests.compiler.parametric.test_ties 300``.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import combinations
from typing import Any, NamedTuple

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.solvers import ZOHFL
from hierfl.solvers.lower import Exact
from tests.compiler.parametric.engines import Engine, near
from tests.random_trials import trials

SCOPES = ("federation", "client", "sample")
SELECTIONS = (None, "optimistic", "pessimistic")
FEW = 2  # scalars of x
NEAR, TOLD = 2e-6, 1e-5  # of f, up to which values agree, and from which solutions are told apart
STEP = 1e-4
EXACT: dict[str, Any] = {"tol_gap_abs": 1e-12, "tol_gap_rel": 1e-12, "tol_feas": 1e-12}

# convex F of (y, targets c, a matrix m)
CONVEX: dict[str, Callable[..., Any]] = {
    "linear": lambda y, c, m: c @ y,
    "size": lambda y, c, m: cp.abs(c @ y - 0.3),
    "l1": lambda y, c, m: cp.norm1(m @ y - c),
    "norm": lambda y, c, m: cp.norm(y - c),
    "largest size": lambda y, c, m: cp.norm_inf(m @ y - c),
    "largest": lambda y, c, m: cp.max(m @ y),
    "two": lambda y, c, m: cp.maximum(c @ y, y[0] - 0.2),
    "huber": lambda y, c, m: cp.sum(cp.huber(y - c, 0.3)),
    "squares": lambda y, c, m: cp.sum_squares(y - c),
    "one square": lambda y, c, m: cp.square(c @ y),
    "hinges": lambda y, c, m: cp.sum(cp.pos(m @ y - c)),
    "largest two": lambda y, c, m: cp.sum_largest(cp.multiply(c, y), 2),
    "quartic": lambda y, c, m: cp.power(c @ y, 4),
    "exponential": lambda y, c, m: cp.sum(cp.exp(m @ y)),
    "logistic": lambda y, c, m: cp.sum(cp.logistic(m @ y)),
    "mixed": lambda y, c, m: cp.norm1(y - c) + 0.5 * cp.sum_squares(m @ y) + c @ y,
    "nothing": lambda y, c, m: 0 * y[0],
    "entropy": lambda y, c, m: -cp.sum(cp.entr(y + 3)),
}


class Drawn(NamedTuple):
    """min  |r y|^2 / 2 + (q + Q x + s)'y  over  a y <= b + B x, for every shift s; F is ``sign`` times the convex one of name."""

    r: np.ndarray
    q: np.ndarray
    moved: np.ndarray
    a: np.ndarray
    b: np.ndarray
    widened: np.ndarray
    shifts: np.ndarray
    targets: np.ndarray
    m: np.ndarray
    scope: str
    selection: str | None
    name: str
    sign: float
    at: np.ndarray

    @property
    def size(self) -> int:
        return len(self.q)

    def upper(self, y: Any) -> Any:
        """F of (y, one column a point)."""
        whole = self.scope == "federation"
        parts = [self.sign * CONVEX[self.name](y, c, self.m) for c in (self.targets if whole else self.targets[:1])]
        return sum(parts) / len(parts)

    def vertices(self, shift: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Those of the solution set: points of active sets whose multipliers are positive."""
        force, right, found = self.q + self.moved @ x + shift, self.b + self.widened @ x, []
        hessian = self.r.T @ self.r
        for size in range(self.size + 1):
            for held in map(list, combinations(range(len(right)), size)):
                rows = self.a[held]
                system = np.block([[hessian, rows.T], [rows, np.zeros((size, size))]])
                if np.linalg.cond(system) > 1e9:
                    continue
                both = np.linalg.solve(system, np.concatenate([-force, right[held]]))
                y = both[: self.size]
                if (self.a @ y <= right + 1e-9).all() and (both[self.size :] >= -1e-9).all():
                    found.append(y)
        return np.unique(np.round(found, 10), axis=0)

    def ends(self, vertices: np.ndarray) -> tuple[float, float]:
        """(the least, the largest) value of F over their hull."""
        share = cp.Variable(len(vertices), nonneg=True)
        convex = self.sign * self.upper(share @ vertices)
        inside = cp.Problem(cp.Minimize(convex), [cp.sum(share) == 1])
        inside.solve("CLARABEL", **EXACT)
        far = max(float(self.sign * self.upper(cp.Constant(v)).value) for v in vertices)
        near = float(inside.value)
        return (near, far) if self.sign > 0 else (-far, -near)

    def f(self, x: np.ndarray) -> tuple[float, bool]:
        """(f, whether solutions have other values)."""
        values, apart = [], False
        for shift in self.shifts:
            vertices = self.vertices(shift, x)
            low, high = self.ends(vertices)
            apart |= high - low > TOLD * (1 + abs(high))
            if self.selection is None:
                values.append(float(self.upper(cp.Constant(shortest(vertices))).value))
            else:
                values.append(low if self.selection == "optimistic" else high)
        return float(np.mean(values)), apart

    def declared(self) -> hf.Problem:
        n = self.size
        x, y = cp.Variable(FEW, name="x"), cp.Variable(n, name="y")
        s, c = (hf.Sample if self.scope == "sample" else hf.ClientParameter)(n, name="s"), None
        cost = (self.q + self.moved @ x) @ y + 0.5 * cp.sum_squares(self.r @ y)
        rows = [self.a @ y <= self.b + self.widened @ x]
        chosen = {} if self.selection is None else {"selection": self.selection}
        if self.scope == "federation":
            c = hf.ClientParameter(n, name="c")
            clients = [hf.Client({}, {c: target}) for target in self.targets]
            lower = hf.ArgMin(y, cost + self.shifts[0] @ y, rows, **chosen)
            term = self.sign * CONVEX[self.name](y, c, self.m)
        else:
            term = self.upper(y)
            lower = hf.ArgMin(y, cost + s @ y, rows, scope=self.scope, **chosen)
            if self.scope == "sample":
                term, clients = hf.E(term), [hf.Client({s: self.shifts})]
            else:
                clients = [hf.Client({}, {s: shift}) for shift in self.shifts]
        return hf.Problem(hf.Minimize(clients=term), lower, federation=hf.Federation(clients))


def shortest(vertices: np.ndarray) -> np.ndarray:
    """The shortest point of a hull."""
    if len(vertices) == 1:
        return np.asarray(vertices[0])
    share = cp.Variable(len(vertices), nonneg=True)
    cost = cp.sum_squares(share @ vertices)
    cp.Problem(cp.Minimize(cost), [cp.sum(share) == 1]).solve("CLARABEL", **EXACT)
    return np.asarray(share.value @ vertices)


def draw(seed: int) -> Drawn:
    """A level with small whole numbers, so that ties are common; every third one's ties pass as x moves."""
    rng = np.random.default_rng(seed)
    n, scope, selection = int(rng.integers(2, 5)), SCOPES[seed % 3], SELECTIONS[seed // 3 % 3]
    name, sign = list(CONVEX)[seed % len(CONVEX)], -1.0 if rng.random() < 0.35 else 1.0
    quadratic = rng.random() < 0.4
    r = rng.integers(-1, 2, (int(rng.integers(1, n)), n)).astype(float) if quadratic else np.zeros((1, n))
    q = rng.integers(-1, 2, n) * 1.0 if not quadratic else -r.T @ rng.integers(0, 2, len(r))
    cut = rng.integers(-1, 2, (int(rng.integers(1, 3)), n))
    cut = cut[np.abs(cut).sum(axis=1) > 0]
    a = np.vstack([np.eye(n), -np.eye(n), cut]).astype(float)
    b = np.concatenate([np.ones(2 * n), rng.integers(0, 2, len(cut)) + 0.5])
    widened = rng.normal(size=(len(b), FEW)) * (rng.random((len(b), 1)) < 0.4) * 0.3
    owners = 1 if scope == "federation" else int(rng.integers(1, 4))
    shifts = rng.integers(-1, 2, (owners, n)) * (rng.random((owners, 1)) < 0.5) * 1.0
    if quadratic and rng.random() < 0.7:
        shifts *= 0.0
    passing = rng.random() < 0.3
    moved = rng.integers(-1, 2, (n, FEW)) * 1.0 if passing else (r.T @ rng.normal(size=(len(r), FEW)))
    at = np.array([0.5, -0.5]) * (rng.integers(-1, 2, FEW)) if passing else rng.uniform(-0.3, 0.3, FEW)
    targets = rng.normal(size=(int(rng.integers(1, 4)) if scope == "federation" else 1, n))
    return Drawn(r, q, moved, a, b, widened, shifts, targets, rng.normal(size=(n, n)), scope, selection, name, sign, at)


def faults(drawn: Drawn, said: Counter[str] | None = None) -> list[str]:
    """What is said that is not so, or not said; ``said`` counts the gradients and the refusals."""
    said = Counter() if said is None else said
    warnings.filterwarnings("ignore", "Solution may be inaccurate")  # of CVXPY's, at these tolerances
    wrong, (f, apart) = [], drawn.f(drawn.at)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        implicit = drawn.declared().implicit
        try:
            value = float(implicit(drawn.at))
        except hf.errors.NotConvexError:
            return [] if drawn.size > 3 else ["the choice is refused"]
        try:
            gradient = np.asarray(implicit.gradient(drawn.at))
        except hf.NoGradientError:
            gradient = None
    if not abs(value - f) <= NEAR * (1 + abs(f)):
        wrong.append(f"f is {value} for {f}")
    warned = any("several solutions" in str(w.message) for w in heard)
    if warned is not (apart and drawn.selection is None):
        wrong.append(f"warned: {warned}, differs: {apart}")
    beside = [[drawn.f(drawn.at + s * e)[0] for s in (-1, 1)] for e in STEP * np.eye(FEW)]
    left, right = (f - np.array([b for b, _ in beside])) / STEP, (np.array([b for _, b in beside]) - f) / STEP
    smooth = np.abs(left - right).max() <= 2e-2 * (1 + np.abs(left).max())
    said["gradients" if gradient is not None else "refused, smooth" if smooth else "refused, rightly"] += 1
    if gradient is not None and not np.abs(gradient - (left + right) / 2).max() <= 1e-2 * (1 + np.abs(gradient).max()):
        wrong.append(f"gradient {gradient} for {left} and {right}")
    if gradient is not None and not smooth:
        wrong.append(f"a gradient {gradient}, slopes are {left} and {right}")
    if gradient is None and smooth and said is not None:
        said[f"smooth but refused: {drawn.selection} {'LP' if not drawn.r.any() else 'QP'}"] += 1
    return wrong




@pytest.mark.parametrize("seed", [*range(18), 33, 46, 1187])  # all objectives, scopes and selections; a kink of the level itself
def test_random_ties_are_those_of_their_vertices(seed: int) -> None:
    assert faults(draw(seed)) == []


# --- Of the literature, and over sets with kinks.


@contextmanager
def told() -> Iterator[list[warnings.WarningMessage]]:
    """Everything that is warned of."""
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        yield heard


# --- of the literature -----------------------------------------------------------------------------------------------------


def bard_1991(selection: str | None = None) -> hf.Problem:
    """Bard (1991), example 1: at x = 2 both entries of y cost the same, and the leader pays x + y_2."""
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    below = hf.ArgMin(y, 2 * y[0] + x * y[1], [x - y[0] - y[1] <= -4, y >= 0], selection=selection)
    return hf.Problem(hf.Minimize(clients=x + y[1]), lower=below, constraints=[x >= 2, x <= 4])


def lampariello_sagratella(selection: str | None = None) -> hf.Problem:
    """Lampariello and Sagratella (2017): the followers leave y_2 free above 1 - x, without a bound."""
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    below = hf.ArgMin(y, y[0] + 0 * x, [x + y[0] + y[1] >= 1, y >= 0], selection=selection)
    return hf.Problem(
        hf.Minimize(clients=cp.square(x) + cp.square(y[0] + y[1])), lower=below, constraints=[cp.abs(x) <= 1]
    )


def test_bard_1991(engine: Engine) -> None:
    for selection, at_tie in (("optimistic", 2.0), ("pessimistic", 8.0)):
        problem = engine(bard_1991(selection))
        near(problem.implicit(2.0), at_tie)
        near(problem.implicit(3.0), 3.0)
    near(engine(bard_1991("optimistic")).reference(progress=False).value, 2.0)
    with told() as heard:
        problem = engine(bard_1991())
        near(problem.implicit(3.0), 3.0)
        assert problem.implicit.certificate(3.0).unique and not heard
        near(problem.implicit(2.0), 2.0 + 3.0)  # (3, 3) is the shortest of (6 - s, s)
        near(problem.implicit(2.0), 2.0 + 3.0)
    assert len(heard) == 1 and not problem.implicit.certificate(2.0).unique


def test_lampariello_sagratella_2017(engine: Engine) -> None:
    problem = engine(lampariello_sagratella("optimistic"))
    for x in (-0.4, 0.3, 0.5, 1.0):
        near(problem.implicit(x), x**2 + (1 - x) ** 2)
    near(problem.reference(progress=False).value, 0.5)
    with pytest.raises(hf.HierflError):  # a leader who fears the worst fears infinity
        engine(lampariello_sagratella("pessimistic")).implicit(0.3)


# --- other shapes of ties --------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::hierfl.errors.LowerLevelWarning")
@pytest.mark.parametrize("far", [1e-2, 1e-4, 1e-5, 3e-6, 1e-7, 1e-8, 1e-9, 1e-11])
def test_near_a_tie_a_value_does_not_depend_on_what_was_asked_before(far: float) -> None:
    """Rows that held at the last place are tried first: only where no others would do."""

    def declared() -> hf.Problem:
        x, y, c = cp.Variable(name="x"), cp.Variable(2, name="y"), hf.ClientParameter(name="c")
        below = hf.ArgMin(y, -c * y[0] - x * y[1], [y >= 0, cp.sum(y) <= 1], scope="client")
        clients = hf.Federation([hf.Client(parameters={c: value}) for value in (1.0, 2.0, 3.0)])
        return hf.Problem(hf.Minimize(clients=y[0] + 2 * y[1]), below, federation=clients)

    fresh, asked = declared(), declared()
    asked.implicit(0.5)
    asked.implicit(0.9)
    np.testing.assert_array_equal(asked.implicit.response(1 - far), fresh.implicit.response(1 - far))


KINKED_SETS: dict[str, Callable[[cp.Variable], list[cp.Constraint]]] = {
    "abs": lambda y: [cp.abs(y) <= 1],
    "norm1": lambda y: [cp.norm1(y) <= 1.5],
    "norm_inf": lambda y: [cp.norm_inf(y) <= 1],
    "maximum": lambda y: [cp.maximum(y, -y) <= 1],
    "pos": lambda y: [cp.pos(y) <= 1, cp.pos(-y) <= 1],
}


@pytest.mark.parametrize("at", [-0.5, 0.0, 0.5])
@pytest.mark.parametrize("name", KINKED_SETS)
def test_selections_over_sets_with_kinks(name: str, at: float) -> None:
    """y[0] + y[1] = x over a set that auxiliary variables describe: no piece of it is preferred by rounding."""
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    first = np.linspace(-1, 1, 2001)
    other = at - first
    size = np.abs(first) + np.abs(other) <= 1.5 + 1e-12 if name == "norm1" else np.abs(other) <= 1 + 1e-12
    for selection, meant in (("optimistic", first[size].min()), ("pessimistic", first[size].max())):
        lower = hf.ArgMin(y, cp.square(y[0] + y[1] - x), KINKED_SETS[name](y), selection=selection)
        implicit = hf.Problem(hf.Minimize(clients=y[0]), lower).implicit
        assert implicit(at) == pytest.approx(meant, abs=1e-12)


# --- Best and worst for the whole upper objective.


SIZE = 4
F = Callable[[cp.Expression], cp.Expression]


def chosen(cost: F, selection: str) -> hf.Problem:
    """min of the cost over the level's many solutions, whose total is x."""
    x, y = cp.Variable(name="x"), cp.Variable(SIZE, name="y")
    lower = hf.ArgMin(y, cp.square(cp.sum(y) - x), [y >= 0, y <= 1], selection=selection)
    return hf.Problem(hf.Minimize(server=cost(y)), lower)


@pytest.mark.parametrize("size", [5, 200])
def test_large_sets_of_solutions_are_chosen_from_as_well(size: int) -> None:
    """min c'y over the simplex of sum x: the cheapest entry takes all; its gradient is its price."""
    prices = np.random.default_rng(size).uniform(1, 2, size)
    x, y = cp.Variable(name="x"), cp.Variable(size, name="y")
    lower = hf.ArgMin(y, cp.square(cp.sum(y) - x), [y >= 0], selection="optimistic")
    problem = hf.Problem(hf.Minimize(clients=prices @ y + cp.sum_squares(x)), lower)
    assert float(problem.implicit(2.0)) == pytest.approx(2 * prices.min() + 4, rel=1e-9)
    assert float(problem.implicit.gradient(2.0)) == pytest.approx(prices.min() + 4, rel=1e-8)


def test_a_worst_vertex_that_leaps_has_no_gradient() -> None:
    """(y_1 - y_2)^2 over y_1 + y_2 = x, 0 <= y <= 1: both ends are as bad, and y is at one of them."""
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    lower = hf.ArgMin(y, cp.square(cp.sum(y) - x), [y >= 0, y <= 1], selection="pessimistic")
    problem = hf.Problem(hf.Minimize(clients=cp.square(y[0] - y[1])), lower)
    assert float(problem.implicit(0.8)) == pytest.approx(0.64, abs=1e-9)
    with pytest.raises(hf.errors.NoGradientError):
        problem.implicit.gradient(0.8)


def test_a_choice_that_leaps_has_no_gradient() -> None:
    """(x + 1) y over all y in [-1, 1]: y is -1 for x > -1 and 1 for x < -1, and f = x^2 - |x + 1|."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    lower = hf.ArgMin(y, 0 * y + 0 * x, [cp.abs(y) <= 1], selection="optimistic")
    problem = hf.Problem(hf.Minimize(clients=cp.multiply(x, y) + cp.square(x) + y), lower)
    assert float(problem.implicit(-0.5)) == pytest.approx(0.25 - 0.5, abs=1e-9)
    with pytest.raises(hf.errors.NoGradientError):
        problem.implicit.gradient(-1.0)


def test_a_choice_is_found_where_the_curvature_of_what_chooses_vanishes() -> None:
    """Newton's models have a curvature of 1e-12 beside rows of 1 there, which is all that they have."""
    implicit = chosen(lambda y: cp.sum(cp.power(np.random.default_rng(11).normal(size=(3, SIZE)) @ y, 4)), "optimistic").implicit
    assert [float(implicit(at)) for at in (0.5, 1.37)] == pytest.approx([0.0, 0.0], abs=1e-12)


NEITHER: dict[str, F] = {
    "a saddle": lambda y: cp.square(y[0]) - cp.square(y[1]),
    "a product": lambda y: y[0] * y[1],
    "a waterbed": lambda y: cp.exp(y[0]) - cp.norm(y),
}


@pytest.mark.parametrize("name", NEITHER)
@pytest.mark.parametrize("selection", ["optimistic", "pessimistic"])
def test_what_is_neither_convex_nor_concave_is_refused_by_name(name: str, selection: str) -> None:
    wanted = "convex" if selection == "optimistic" else "concave"
    with pytest.raises(hf.errors.NotConvexError, match=f"selection='{selection}'.*has to be {wanted} in y"):
        chosen(NEITHER[name], selection).implicit(1.3)


def test_too_many_vertices_are_refused_with_their_number() -> None:
    x, y = cp.Variable(name="x"), cp.Variable(40, name="y")
    lower = hf.ArgMin(y, cp.square(cp.sum(y) - x), [y >= 0, y <= 1], selection="pessimistic")
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y)), lower)
    with pytest.raises(hf.errors.NotConvexError, match="vertices"):
        problem.implicit(3.0)


@pytest.mark.parametrize("count, factor", [(2, 3.0), (10, 3.0), (3, 3.5)])
def test_a_sample_chooses_by_a_total_as_many_times_as_there_are_samples(count: int, factor: float) -> None:
    """Y = [0, 1] for each of N samples, and f the mean of (N - factor) y."""
    x, y, a = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="a")
    level = cp.square(cp.pos(y - a)) + cp.square(cp.pos(-y))
    upper = hf.total(y) - factor * hf.E(y) + cp.square(x)
    for selection, choose in (("optimistic", min), ("pessimistic", max)):
        lower = hf.ArgMin(y, level, scope="sample", selection=selection)
        clients = [hf.Client({a: np.ones(count)})] * 2
        problem = hf.Problem(hf.Minimize(clients=upper), lower, federation=hf.Federation(clients))
        assert problem.implicit(0.0) == pytest.approx(choose(0.0, count - factor), abs=1e-8)
        if selection == "optimistic":
            uneven = hf.Federation([clients[0], hf.Client({a: np.ones(count + 1)})])
            with pytest.raises(hf.NotConvexError, match="a total beside an E"):
                hf.Problem(hf.Minimize(clients=upper), lower, federation=uneven).implicit(0.0)


def test_no_method_is_taken_that_does_not_know_what_is_asked_for() -> None:
    """Prices are known by multipliers, and a selection by all solutions: an iteration on y has neither."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    row = y >= x
    priced = hf.Problem(hf.Minimize(clients=-hf.Dual(row)), hf.ArgMin(y, cp.square(y - 1), [row]), [cp.abs(x) <= 3])
    chosen = hf.ArgMin(y, cp.square(cp.pos(y - x)), [cp.abs(y) <= 3], selection="optimistic")
    for problem, why in ((priced, "it has prices"), (hf.Problem(hf.Minimize(clients=cp.square(y - 5)), chosen), "selection='optimistic' chooses")):
        with pytest.raises(hf.IncompatibleSolverError, match=rf"{why}.* These can: 'parametric program'"):
            problem.solve(ZOHFL(lower=Exact(method="semismooth Newton")), rounds=1, progress=False)


@pytest.mark.parametrize("size", [1, 10])
def test_formulas_say_that_y_is_one_of_several(size: int) -> None:
    """At x = 0 all y are solutions, or all that are alike; f tells them apart, or does not."""
    x, y = cp.Variable(name="x"), cp.Variable(size, name="y")
    cost = x * cp.sum_squares(y) - x * cp.sum(y) if size == 1 else (1 + x) * cp.sum_squares(y - cp.sum(y) / size)
    level = hf.ArgMin(y, cost, [y >= 0, y <= 2])
    with pytest.warns(hf.LowerLevelWarning, match="several solutions.*that of least norm is taken"):
        assert hf.Problem(hf.Minimize(clients=y[0] + x), level, [x >= 0]).implicit(0.0) == pytest.approx(0, abs=1e-9)
    assert hf.Problem(hf.Minimize(clients=cp.square(x)), level, [x >= 0]).implicit(0.0) == 0


if __name__ == "__main__":
    trials(draw, faults, lambda drawn: (drawn.scope, drawn.selection, drawn.name, drawn.sign, drawn.size, bool(drawn.r.any())), told=True)

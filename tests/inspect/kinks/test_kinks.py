"""Kinks of hard cases, against places and slopes computed by hand; ``None`` for a slope that is not compared."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import combinations
from typing import Any, NamedTuple

import cvxpy as cp
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import hierfl as hf
from tests.random_trials import trials

C = 0.30123


def minimise(term: cp.Expression, lower: object = None, **rest: object) -> hf.Problem:
    return hf.Problem(hf.Minimize(clients=term), lower=lower, **rest)


def scalars() -> tuple[cp.Variable, cp.Variable]:
    return cp.Variable(name="x"), cp.Variable(name="y")


def from_c(x: cp.Variable, width: float) -> cp.Expression:
    """sqrt((x - c)^2 + width^2): smooth, and steep near c."""
    return cp.norm(cp.hstack([x - C, width]))


def soft_threshold() -> hf.Problem:
    x, y = scalars()
    return minimise(cp.abs(y - 0.4), hf.ArgMin(y, 0.5 * cp.square(y - x) + 0.2 * cp.abs(y)))


def soft_threshold_in_a_ball() -> hf.Problem:
    """The ball, which never binds, takes the lower level from a quadratic program to a conic one."""
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    objective = 0.5 * cp.square(y[0] - x) + 0.3 * cp.abs(y[0]) + cp.square(y[1] - 0.5)
    return minimise(cp.exp(3 * y[0]), hf.ArgMin(y, objective, [cp.norm(y) <= 5]))


def cone_apex() -> hf.Problem:
    x, y = cp.Variable(name="x"), cp.Variable(3, name="y")
    distance = cp.square(y[0] - 0.4) + cp.square(y[1]) + cp.square(y[2] - x)
    return minimise(1e-2 * y[2] + 10 * cp.square(x), hf.ArgMin(y, distance, [cp.norm(y[:2]) <= y[2]]))


def huber_below() -> hf.Problem:
    x, y = scalars()
    objective = 0.5 * cp.huber(y - C, 0.1) + 0.01 * cp.square(y - x)
    return minimise(y + 10 * cp.square(x), hf.ArgMin(y, objective))


def private_caps() -> hf.Problem:
    (x, y), cap = scalars(), hf.ClientParameter(name="cap")
    federation = hf.Federation([hf.Client({}, {cap: 0.7}), hf.Client({}, {cap: 0.3003})])
    level = hf.ArgMin(y, cp.square(y - x), [y <= cap])
    return minimise(1e-2 * y + 10 * cp.square(x), level, federation=federation)


def edge_of_a_gap() -> hf.Problem:
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    distance = cp.square(y[0] - (x - 0.3012)) + cp.square(y[1])
    return minimise(y[0], hf.ArgMin(y, distance, [y[0] >= 0, y[1] >= x, y[1] <= 0.3021]))


def cone_constraint() -> hf.Problem:
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    level = hf.ArgMin(y, cp.sum_squares(y - cp.hstack([x, 1])), [cp.NonNeg(y - 0.01)])
    return minimise(1e-2 * y[0] + 10 * cp.square(x), level)


def second_eigenvalue() -> hf.Problem:
    x, y = cp.Variable(name="x"), cp.Variable((2, 2), name="Y", symmetric=True)
    level = hf.ArgMin(y, cp.sum_squares(y - cp.diag(cp.hstack([-1, x - C]))), [y >> 0])
    return minimise(1e-3 * cp.trace(y) + 10 * cp.square(x), level)


def law(distribution: object) -> tuple[hf.Sample, hf.Federation]:
    a = hf.Sample(name="a")
    return a, hf.Federation([hf.Client({a: distribution})])


def discrete_law() -> hf.Problem:
    x, (a, federation) = cp.Variable(name="x"), law(scipy.stats.bernoulli(0.3))
    return minimise(hf.E(cp.abs(x - a)), federation=federation)


def same_for_every_sample() -> hf.Problem:
    (x, y), (a, federation) = scalars(), law(scipy.stats.norm(0, 1))
    level = hf.ArgMin(y, cp.square(y - x) + 0 * a, [y >= C], scope="sample")
    return minimise(hf.E(y + 0 * a), level, federation=federation)


def norm_beside_a_law() -> hf.Problem:
    x, (a, federation) = cp.Variable(2, name="x"), law(scipy.stats.uniform(-1, 2))
    return minimise(hf.E(cp.abs(x[0] - a)) + 5 * cp.norm(x - np.array([C, 0])), federation=federation)


def in_one_variable(term: Callable[[cp.Variable], cp.Expression], *constraints: Callable) -> Callable[[], hf.Problem]:
    def declared() -> hf.Problem:
        x = cp.Variable(name="x")
        return minimise(term(x), constraints=[constraint(x) for constraint in constraints])

    return declared


def opaque(function: Callable[[Any], Any]) -> Callable[[cp.Variable], cp.Expression]:
    return lambda x: hf.Function(function, x, name="g")


def tail_of_rows(aggregate: Callable[[Any], Any]) -> Callable[[], hf.Problem]:
    def declared() -> hf.Problem:
        x, b = cp.Variable(name="x"), hf.Sample(name="b")
        return minimise(aggregate(cp.abs(x - b)), federation=hf.Federation([hf.Client({b: np.array([0.2, -0.6, 0.5])})]))

    return declared


def black_box() -> hf.Problem:
    x = cp.Variable(name="x")
    return hf.Problem(hf.Minimize(server=hf.BlackBox(lambda a: float(abs(a - 0.3)), x, name="b") + cp.square(x)))


def in_single_precision() -> hf.Problem:
    x = cp.Variable(name="x")
    return hf.Problem(hf.Minimize(server=hf.BlackBox(lambda a: np.float32(np.sin(3 * a) + abs(a - 0.3)), x, name="b")))


def steep_black_box() -> hf.Problem:
    """Smooth: its steepest bends, 1.3e-5 apart, are near neighbours."""
    x = cp.Variable(name="x")
    return hf.Problem(hf.Minimize(server=hf.BlackBox(lambda a: np.tanh(1e5 * a), x, name="b")))


def in_two(term: Callable[[cp.Variable], cp.Expression]) -> Callable[[], hf.Problem]:
    def declared() -> hf.Problem:
        return minimise(term(cp.Variable(2, name="x")))

    return declared


class Case(NamedTuple):
    """Kinks as (t, left slope, right slope), and words that their causes must hold."""

    declared: Callable[[], hf.Problem]
    centre: object = 0.0
    radius: float = 1.0
    kinks: tuple[tuple[float, float | None, float | None], ...] = ()
    cause: str = ""
    points: int = 401
    slope_error: float = 1e-3


CASES = {
    "soft threshold": Case(soft_threshold, 0.1, kinks=((-0.3, -1, 0), (0.1, 0, -1), (0.5, -1, 1)), cause="abs"),
    "narrow window": Case(in_one_variable(lambda x: cp.abs(x - C)), C, 1e-6, ((0.0, -1, 1),), "abs"),
    "small norm on a parabola": Case(
        in_two(lambda x: 1e-3 * cp.norm(x - np.array([C, 0])) + 10 * cp.sum_squares(x)),
        np.zeros(2),
        kinks=((C, 20 * C - 1e-3, 20 * C + 1e-3),),
        cause="norm",
        slope_error=1e-5,
    ),
    "norm beside a law": Case(norm_beside_a_law, np.zeros(2), kinks=((C, C - 5, C + 5),), cause="norm"),
    "apex of a cone": Case(
        cone_apex, 0.0123, kinks=((-0.4123, -8, -7.995), (0.3877, 8.005, 8.01)), cause="norm", slope_error=1e-5
    ),
    "huber below": Case(
        huber_below, 0.0, 12.0, ((-4.79877, None, None), (5.40123, None, None)), "huber", slope_error=1e-3
    ),
    "twice in a cell": Case(
        in_one_variable(lambda x: cp.maximum(1e4 * cp.square(x - C), 1e-2)),
        kinks=((C - 1e-3, -20, 0), (C + 1e-3, 0, 20)),
        cause="maximum",
    ),
    "last cell before a gap": Case(edge_of_a_gap, kinks=((0.3012, 0, 1),), cause="y[0] >= 0"),
    "end of X": Case(in_one_variable(cp.abs, lambda x: x >= 0), 0.5),
    "private caps": Case(private_caps, kinks=((0.3003, 6.016, 6.006),), cause="of client 1", slope_error=1e-5),
    "cone constraint": Case(cone_constraint, kinks=((0.01, 0.2, 0.21),), cause="[0]", slope_error=1e-5),
    "second eigenvalue": Case(
        second_eigenvalue, kinks=((C, 20 * C, 20 * C + 1e-3),), cause="inside ", slope_error=1e-5
    ),
    "discrete law": Case(
        discrete_law, 0.0, 2.0, ((0.0, -1, 0.4), (1.0, 0.4, 1)), "abs(x - a)", points=101, slope_error=3e-3
    ),
    "same for every sample": Case(same_for_every_sample, 0.0, 2.0, ((C, 0, 1),), "y >= 0.30123", points=101),
    "steep, and cancelling kinks": Case(
        in_one_variable(lambda x: cp.norm(cp.hstack([x, 1e-4])) + cp.pos(x) - cp.pos(-x)), 0.0, 100.0
    ),
    "steep beside a kink, wide": Case(
        in_one_variable(lambda x: 0.1 * cp.abs(x - C) + from_c(x, 1e-4)), 0.0, 10.0, ((C, -0.1, 0.1),), "abs"
    ),
    "very steep beside a kink": Case(
        in_one_variable(lambda x: cp.abs(x - C) + from_c(x, 1e-6)), kinks=((C, -1, 1),), cause="abs"
    ),
    "steep, from afar": Case(in_one_variable(lambda x: from_c(x, 1e-4)), 0.0, 1000.0),
    "soft threshold in a ball": Case(soft_threshold_in_a_ball, kinks=((-0.3, 3, 0), (0.3, 0, 3)), cause="abs"),
    "power 1.01": Case(in_one_variable(lambda x: cp.power(cp.abs(x - C), 1.01))),
    "power beside a kink": Case(
        in_one_variable(lambda x: cp.power(cp.abs(x), 1.1) + cp.abs(x)), kinks=((0.0, -1, 1),), slope_error=1e-6
    ),
    "root": Case(in_one_variable(lambda x: cp.sqrt(cp.abs(x))), kinks=((0.0, -np.inf, np.inf),), cause="abs"),
    "root on one side": Case(
        in_one_variable(lambda x: cp.sqrt(cp.pos(x - C)) - x), kinks=((C, -1, np.inf),), cause="maximum"
    ),
    "cube root": Case(in_one_variable(opaque(jnp.cbrt)), kinks=((0.0, np.inf, np.inf),), cause="inside "),
    "opaque beside a smooth switch": Case(
        in_one_variable(lambda x: opaque(lambda a: jnp.abs(a - 0.0152))(x) + cp.square(cp.pos(x - 0.0101))),
        kinks=((0.0152, -1 + 0.0102, 1 + 0.0102),),
        slope_error=1e-6,
    ),
    "opaque beside a kink": Case(
        in_one_variable(lambda x: opaque(lambda a: jnp.abs(a - 0.0152))(x) + 3 * cp.pos(x - 0.0151)),
        kinks=((0.0151, -1, 2), (0.0152, 2, 4)),
    ),
    "two of an opaque piece in a cell": Case(
        in_one_variable(opaque(lambda a: jnp.abs(a - 0.0152) + 0.1 * jnp.abs(a - 0.0171))), kinks=((0.0152, -1.1, 0.9), (0.0171, 0.9, 1.1))
    ),
    "worst row": Case(tail_of_rows(hf.Worst), kinks=((-0.05, -1, 1),), cause="row 1", points=11),
    "tail of a fractional number of rows": Case(
        tail_of_rows(lambda loss: hf.CVaR(loss, level=0.5)),
        kinks=((-0.2, -1, -1 / 3), (-0.05, -1 / 3, 1 / 3), (0.35, 1 / 3, 1)),
        cause="row 2",
        points=11,
    ),
    "black box": Case(black_box, kinks=((0.3, -0.4, 1.6),), cause="inside ", points=21, slope_error=1e-6),
    "black box in single precision": Case(
        in_single_precision, kinks=((0.3, 3 * np.cos(0.9) - 1, 3 * np.cos(0.9) + 1),), points=101, slope_error=1e-2
    ),
    "steep black box": Case(steep_black_box, points=101),
    "ties of a fractional number": Case(
        in_one_variable(lambda x: cp.sum_largest(cp.hstack([x, 0.5, 2 * x]), 1.5)),
        kinks=((0.0, 0.5, 1), (0.25, 1, 2), (0.5, 2, 2.5)),
        cause="sum_largest",
    ),
    "ties of the largest": Case(
        in_two(lambda x: cp.sum_largest(cp.hstack([x, 0.2]), 2)), np.zeros(2), kinks=((0.0, 0, 1),), cause="sum_largest"
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_kinks_are_those_computed_by_hand(name: str) -> None:
    case = CASES[name]
    direction = None if np.ndim(case.centre) == 0 else np.eye(len(np.atleast_1d(case.centre)))[0]
    problem = case.declared()
    found = problem.implicit.slice(case.centre, direction, case.radius, case.points, progress=False).kinks
    expected = [t for t, _, _ in case.kinks]
    np.testing.assert_allclose([kink.t for kink in found], expected, atol=1e-6 * max(1.0, case.radius))
    assert not found.jumps
    for kink, (_, before, after) in zip(found, case.kinks):
        assert before is None or kink.left_slope == pytest.approx(before, abs=case.slope_error)
        assert after is None or kink.right_slope == pytest.approx(after, abs=case.slope_error)
    assert all(case.cause in kink.cause for kink in found[-1:]), [kink.cause for kink in found]


def test_active_constraints_of_private_sets() -> None:
    found = private_caps().implicit.slice(0.0, progress=False)
    assert found.active(400) == ("y <= cap of client 1",) and found.active(0) == ()


HALF = 0.5e-4 / 3  # CVXPY's floor and ceil round to four decimals


@pytest.mark.parametrize(
    ("term", "at", "cause"),
    [
        (lambda x: cp.floor(3 * x), [-HALF, 1 / 3 - HALF], "floor(3 * x)"),
        (lambda x: cp.ceil(3 * x), [HALF, 1 / 3 + HALF], "ceil(3 * x)"),
        (lambda x: 0.5 * cp.sign(x - C) + cp.square(x), [C], "sign"),
        (opaque(lambda a: jnp.round(3 * a)), [-1 / 6, 1 / 6], "inside "),
    ],
)
def test_jumps_of_atoms_and_of_opaque_pieces(term: Callable, at: list[float], cause: str) -> None:
    shown = in_one_variable(term)().implicit.slice(0.1, radius=0.37, progress=False)
    np.testing.assert_allclose([jump.t + 0.1 for jump in shown.kinks.jumps], at, atol=1e-6)
    assert all(jump.right - jump.left == pytest.approx(1, abs=1e-6) for jump in shown.kinks.jumps)
    assert not len(shown.kinks) and all(cause in jump.cause for jump in shown.kinks.jumps)


def test_a_vertical_tangent_bends_neither_way() -> None:
    (kink,) = in_one_variable(opaque(jnp.cbrt))().implicit.slice(0.0, progress=False).kinks
    assert kink.bend == "vertical" and kink.sharpness == np.inf and "slope inf to inf, is vertical" in str(kink)


# --- Slices of random small linear and quadratic levels across ties and jumps, held against an enumeration of active
# sets on dense grids. More than the few kept here: ``python -m tests.inspect.kinks.test_kinks 200``.


TIKHONOV, NUDGE = 1e-7, 1e-5  # what chooses the least norm, and what moves from one solution to another
SCOPES = ("federation", "client", "sample")
POINTS, DENSE = 101, 4001
BESIDE = 2e-5  # from a place at which one-sided slopes are taken
TOLD = 1e-3  # of f, from which solutions are told apart


class Drawn(NamedTuple):
    """min  y'diag(h)y / 2 + (q + Q x + s)'y  over  A y <= b + B x, for every shift s; f is the mean of w'y + v |y - 1|^2 / 2."""

    h: np.ndarray
    q: np.ndarray
    moved: np.ndarray
    a: np.ndarray
    b: np.ndarray
    widened: np.ndarray
    w: np.ndarray
    v: float
    shifts: np.ndarray
    scope: str
    selection: str | None
    centre: np.ndarray
    direction: np.ndarray

    def upper(self, y: np.ndarray) -> np.ndarray:
        """w'y + v |y - 1|^2 / 2 of y (..., n)."""
        return y @ self.w + 0.5 * self.v * np.sum((y - 1) ** 2, axis=-1)

    def answers(self, t: np.ndarray, nudge: np.ndarray) -> np.ndarray:
        """y along the line for every shift, (shifts, k, n): by the active set whose point is feasible and multipliers are positive."""
        x = self.centre + t[:, None] * self.direction
        right = self.b + x @ self.widened.T
        found = np.full((len(self.shifts), len(t), len(self.w)), np.nan)
        hessian = np.diag(self.h + TIKHONOV)
        for owner, shift in enumerate(self.shifts):
            force = self.q + x @ self.moved.T + shift + nudge
            for size in range(len(self.w) + 1):
                for held in map(list, combinations(range(len(self.b)), size)):
                    rows = self.a[held]
                    if size and np.linalg.matrix_rank(rows) < size:
                        continue
                    system = np.block([[hessian, rows.T], [rows, np.zeros((size, size))]])
                    both = np.linalg.solve(system, np.hstack([-force, right[:, held]]).T).T
                    y, price = both[:, : len(self.w)], both[:, len(self.w) :]
                    fits = (y @ self.a.T <= right + 1e-11).all(axis=1) & (price >= -1e-13).all(axis=1)
                    found[owner, fits] = y[fits]
        return found

    def f(self, t: np.ndarray) -> np.ndarray:
        """f along the line, (k,), NaN where Y(x) is empty."""
        if self.selection is None:
            return self.upper(self.answers(t, np.zeros(1))).mean(axis=0)
        sign = 1.0 if self.selection == "optimistic" else -1.0
        return self.upper(self.answers(t, sign * NUDGE * self.w)).mean(axis=0)

    def told_apart(self, t: np.ndarray) -> np.ndarray:
        """Where some owner has several solutions that f tells apart, (k,)."""
        rng = np.random.default_rng(0)
        nudges = [np.zeros(1), *(NUDGE * rng.standard_normal((8, len(self.w))))]
        several = [self.upper(self.answers(t, nudge)) for nudge in nudges]
        return np.asarray((np.ptp(several, axis=0) > TOLD).any(axis=0))

    def declared(self) -> hf.Problem:
        n = len(self.w)
        x, y = cp.Variable(len(self.centre), name="x"), cp.Variable(n, name="y")
        leaf = hf.Sample(n, name="s") if self.scope != "client" else hf.ClientParameter(n, name="s")
        cost = (self.q + self.moved @ x) @ y + 0.5 * self.h @ cp.square(y)
        upper = self.w @ y + 0.5 * self.v * cp.sum_squares(y - 1)
        rows = [self.a @ y <= self.b + self.widened @ x]
        chosen = {} if self.selection is None else {"selection": self.selection}
        if self.scope == "client":
            clients = [hf.Client({}, {leaf: shift}) for shift in self.shifts]
            lower = hf.ArgMin(y, cost + leaf @ y, rows, scope="client", **chosen)
        elif self.scope == "sample":
            clients = [hf.Client({leaf: self.shifts})]
            lower, upper = hf.ArgMin(y, cost + leaf @ y, rows, scope="sample", **chosen), hf.E(upper)
        else:
            clients = [hf.Client({leaf: self.shifts})]
            lower = hf.ArgMin(y, cost + hf.E(leaf @ y), rows, **chosen)
        return hf.Problem(hf.Minimize(clients=upper), lower=lower, federation=hf.Federation(clients))


def draw(seed: int) -> Drawn:
    """A level with small whole numbers, so that ties are common."""
    rng = np.random.default_rng(seed)
    n, scope = int(rng.integers(2, 4)), SCOPES[seed % 3]
    kind = ("linear", "flat", "strict")[(seed // 3) % 3]
    h = {"linear": np.zeros(n), "flat": np.where(np.arange(n) == 0, 1.0, 0.0), "strict": rng.integers(1, 3, n) * 1.0}
    cut = rng.integers(-1, 2, (int(rng.integers(1, 3)), n))
    cut = cut[np.abs(cut).sum(axis=1) > 0]
    a = np.vstack([np.eye(n), -np.eye(n), cut]).astype(float)
    b = np.concatenate([np.ones(2 * n), rng.integers(0, 2, len(cut)) + 0.5])
    widened = rng.integers(-1, 2, (len(b), 2)) * (rng.random((len(b), 1)) < 0.25) * 0.5
    owners = 1 if scope == "federation" else int(rng.integers(1, 4))
    shifts = rng.integers(-1, 2, (owners, n)).astype(float)
    selection = (None, None, "optimistic", "pessimistic")[int(rng.integers(4))] if kind == "linear" else None
    v = 0.0 if selection else float(rng.integers(0, 2))
    direction = np.array([[1.0, 0], [0, 1], [0.6, 0.8]][int(rng.integers(3))])
    centre = rng.integers(-2, 3, 2) / 2
    moved, q, w = rng.integers(-1, 2, (n, 2)) * 1.0, rng.integers(-1, 2, n) * 1.0, rng.integers(-2, 3, n) * 1.0
    return Drawn(h[kind], q, moved, a, b, widened.astype(float), w, v, shifts, scope, selection, centre, direction)


def faults(drawn: Drawn) -> list[str]:
    """What a slice says that is not so, or does not say."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        shown = drawn.declared().implicit.slice(drawn.centre, drawn.direction, 1.5, POINTS, progress=False)
        found, words = shown.kinks, str(shown)
    wrong = []
    grid = np.linspace(-1.499, 1.499, DENSE) + 1e-7 * np.pi  # beside ties at single places
    value, tied = drawn.f(grid), drawn.told_apart(grid)
    jumps = np.array([jump.t for jump in found.jumps])
    at = np.sort([*jumps, *(kink.t for kink in found)])
    near_gap = np.convolve(np.isnan(value), np.ones(3), "same") > 0

    def apart(places: np.ndarray, distance: float) -> np.ndarray:
        return np.min(np.abs(places[:, None] - np.append(at, 9.0)), axis=1) > distance

    smooth = apart(shown.t, 1e-4)
    here, there = np.asarray(shown.value), drawn.f(shown.t + 1e-7 * np.pi)
    differ = np.abs(here - there) > 2e-5 * (1 + np.abs(there))
    single = drawn.told_apart(shown.t) & ~drawn.told_apart(shown.t + 1e-4) & ~drawn.told_apart(shown.t - 1e-4)
    if (differ & smooth & ~single).any():
        where = shown.t[differ & smooth & ~single][:3]
        wrong.append(
            f"values at {where}: {here[differ & smooth & ~single][:3]} for {there[differ & smooth & ~single][:3]}"
        )
    edge = np.min(np.abs(shown.t[:, None] - np.append(grid[near_gap], 9.0)), axis=1) < 3e-3
    if (np.isnan(here) != np.isnan(there))[~edge][:-1].any():
        wrong.append("gaps")
    slope = np.diff(value) / np.diff(grid)
    bend = np.abs(np.diff(slope))
    usual = np.nanmedian(bend) if np.isfinite(bend).any() else 0.0
    places = grid[1:-1][(bend > 1e-2 + 5 * usual) & np.isfinite(bend)]
    missed = places[apart(places, 2.1 * (grid[1] - grid[0]))]
    if missed.size:
        wrong.append(f"kinks or jumps at {missed[:4]} are not told")
    for kink in found:
        sides = drawn.f(kink.t + BESIDE * np.array([-2.0, -1.0, 1.0, 2.0]))
        left, right = (sides[1] - sides[0]) / BESIDE, (sides[3] - sides[2]) / BESIDE
        there = not np.isnan(sides).any()
        if there and not np.allclose([kink.left_slope, kink.right_slope], [left, right], atol=2e-3):
            wrong.append(f"kink {kink.t}: {kink.left_slope} to {kink.right_slope} for {left} to {right}")
    for jump in found.jumps:
        left, right = drawn.f(jump.t + 10 * BESIDE * np.array([-1.0, 1.0]))  # a nudge moves the place of a jump
        if not np.allclose([jump.left, jump.right], [left, right], atol=1e-2):
            wrong.append(f"jump {jump.t}: {jump.left} to {jump.right} for {left} to {right}")
    if drawn.selection is None:
        told = np.zeros(DENSE, bool)
        for tie in shown.ties:
            told |= (grid >= tie.low) & (grid <= tie.high)
        unsaid = (tied & np.roll(tied, 1) & np.roll(tied, -1)) & ~told & ~near_gap
        if unsaid.any():
            wrong.append(f"ties at {grid[unsaid][:3]} are not told")
        short = np.convolve(tied, np.ones(61), "same") > 0  # sets of solutions that are still short
        if (told & ~short & ~near_gap).any():
            wrong.append(f"no ties at {grid[told & ~short & ~near_gap][:3]}, which are told")
        if (tied & np.roll(tied, 1) & np.roll(tied, -1)).any() and "has several solutions" not in words:
            wrong.append("ties are not in words")
    return wrong


@pytest.mark.parametrize(
    "seed", [29, 4, 9, 202]
)  # samples, clients flat, pessimistic, a jump next to which nothing is solved
def test_slices_across_ties_and_jumps_are_those_of_an_enumeration(seed: int) -> None:
    assert faults(draw(seed)) == []


if __name__ == "__main__":
    trials(draw, faults, lambda drawn: (drawn.scope, drawn.selection, drawn.h))

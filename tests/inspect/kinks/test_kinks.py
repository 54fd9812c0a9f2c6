"""Kinks of hard cases, against places and slopes computed by hand; ``None`` for a slope that is not compared."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import cvxpy as cp
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import hierfl as hf

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


# --- Random small linear and quadratic levels, tied and selected from as they are: values are held against enumerations in
# tests/compiler/parametric; here kinks, jumps and slopes are held against values.


def drawn(seed: int) -> tuple[hf.Problem, np.ndarray, np.ndarray]:
    """min  y'diag(h)y / 2 + (q + Q x + s)'y  over  A y <= b + B x  of small whole numbers, so that ties are common, and a line."""
    rng = np.random.default_rng(seed)
    n, scope, kind = int(rng.integers(2, 4)), ("federation", "client", "sample")[seed % 3], ("linear", "flat", "strict")[(seed // 3) % 3]
    h = {"linear": np.zeros(n), "flat": np.eye(n)[0], "strict": rng.integers(1, 3, n) * 1.0}[kind]
    a = np.vstack([np.eye(n), -np.eye(n), rng.integers(-1, 2, (2, n))])
    b = np.concatenate([np.ones(2 * n), rng.integers(0, 2, 2) + 0.5])
    widened = rng.integers(-1, 2, (len(b), 2)) * (rng.random((len(b), 1)) < 0.25) * 0.5
    moved, q, w = (rng.integers(-low, low + 1, size) for low, size in ((1, (n, 2)), (1, n), (2, n)))
    shifts = rng.integers(-1, 2, (1 if scope == "federation" else 3, n)) * 1.0
    x, y = cp.Variable(2, name="x"), cp.Variable(n, name="y")
    own = hf.ClientParameter(n, name="s") if scope == "client" else hf.Sample(n, name="s")
    clients = [hf.Client({}, {own: s}) for s in shifts] if scope == "client" else [hf.Client({own: shifts})]
    cost = (q + moved @ x) @ y + 0.5 * h @ cp.square(y) + (hf.E(own @ y) if scope == "federation" else own @ y)
    selection = (None, "optimistic", "pessimistic")[seed % 7 % 3] if kind == "linear" else None
    upper = w @ y if selection else w @ y + 0.5 * cp.sum_squares(y - 1)
    level = hf.ArgMin(y, cost, [a @ y <= b + widened @ x], scope=scope, selection=selection)
    problem = minimise(hf.E(upper) if scope == "sample" else upper, level, federation=hf.Federation(clients))
    return problem, rng.integers(-2, 3, 2) / 2, np.array([[1.0, 0], [0, 1], [0.6, 0.8]][int(rng.integers(3))])


@pytest.mark.filterwarnings("ignore::hierfl.HierflWarning")
@pytest.mark.parametrize("seed", [13, 0, 1, 3, 5, 8, 9, 10, 4])
def test_slices_of_random_levels_bend_and_jump_where_their_values_do(seed: int) -> None:
    problem, centre, way = drawn(seed)
    dense, told = (problem.implicit.slice(centre, way, 1.5, points, progress=False) for points in (1501, 41))
    places = np.sort([*(kink.t for kink in told.kinks), *(jump.t for jump in told.kinks.jumps)])
    bends = np.abs(np.diff(dense.value, 2)) / (dense.t[1] - dense.t[0])
    usual = np.nanmedian(bends) if np.isfinite(bends).any() else 0.0
    seen = dense.t[1:-1][bends > 0.1 + 5 * usual]  # curvature bends a step of the grid by less
    assert all(np.abs(places - t).min(initial=9.0) < 5e-3 for t in seen)
    for kink in told.kinks:
        sides = np.array([problem.implicit(centre + (kink.t + step) * way) for step in (-4e-5, -2e-5, 2e-5, 4e-5)])
        assert np.diff(sides)[[0, 2]] / 2e-5 == pytest.approx([kink.left_slope, kink.right_slope], abs=2e-3)
    for jump in told.kinks.jumps:
        sides = [problem.implicit(centre + (jump.t + step) * way) for step in (-2e-4, 2e-4)]
        assert sides == pytest.approx([jump.left, jump.right], abs=1e-2)

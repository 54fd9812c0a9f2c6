"""Levels of curved terms beside closed forms, SciPy and CVXPY: shares, determinants, terms that end, exponential and power cones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from scipy.optimize import brentq, minimize, minimize_scalar

import hierfl as hf
from hierfl.compiler.programs.cones import EXPONENTIAL, POWER, Cone, nearest_of_three
from hierfl.compiler.programs.smooth_atoms import (
    ENTROPY,
    EXP,
    LOG,
    LOG_SUM_EXP,
    LOGISTIC,
    RELATIVE_ENTROPY,
    SQUARE,
    SmoothAtom,
    smooth_atom_of,
)
from tests.compiler.parametric.engines import near

KINDS = {
    "attribute": (lambda n: cp.Variable((n, n), PSD=True), lambda s: []),
    "constraint": (lambda n: cp.Variable((n, n), symmetric=True), lambda s: [s >> 0]),
    "only its own domain": (lambda n: cp.Variable((n, n), symmetric=True), lambda s: []),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", KINDS)
def test_the_proximal_point_of_a_determinant(kind: str, seed: int) -> None:
    """argmin |S - T|^2 / 2 - c log det S has T's eigenvectors and the eigenvalues (w + sqrt(w^2 + 4 c)) / 2."""
    rng = np.random.default_rng(seed)
    n = 1 + seed
    t, d, w = (part + part.T for part in rng.normal(size=(3, n, n)))
    make, constraints = KINDS[kind]
    x, s = cp.Variable(name="x"), make(n)
    lower = hf.ArgMin(s, cp.sum_squares(s - t - x * d) / 2 - 0.3 * cp.log_det(s), constraints(s))
    implicit = hf.Problem(hf.Minimize(clients=cp.trace(w @ s)), lower).implicit

    def value(at: float) -> float:
        values, vectors = np.linalg.eigh(t + at * d)
        return float(np.trace(w @ (vectors * (values + np.sqrt(values**2 + 1.2)) / 2) @ vectors.T))

    assert implicit(0.4) == pytest.approx(value(0.4), abs=1e-9)
    assert implicit.gradient(0.4) == pytest.approx((value(0.401) - value(0.399)) / 0.002, abs=1e-4)


END = np.log(4.0)

# the term, itself as a function of a number, where its domain ends, and whether that is above
TERMS: dict[str, tuple[Callable[[Any], Any], Callable[[float], float], float, bool]] = {
    "reciprocal": (lambda y: cp.inv_pos(4 - cp.exp(y)), lambda y: 1 / (4 - np.exp(y)), END, True),
    "odd power": (lambda y: cp.power(4 - cp.exp(y), -3), lambda y: (4 - np.exp(y)) ** -3.0, END, True),
    "even power": (lambda y: cp.power(4 - cp.exp(y), -2), lambda y: (4 - np.exp(y)) ** -2.0, END, True),
    "quotient": (
        lambda y: cp.quad_over_lin(cp.exp(y), 4 - cp.exp(y)),
        lambda y: np.exp(2 * y) / (4 - np.exp(y)),
        END,
        True,
    ),
    "affine": (lambda y: cp.inv_pos(4 - y), lambda y: 1 / (4 - y), 4.0, True),
    "entropy": (lambda y: -cp.entr(y), lambda y: y * np.log(y) if y > 0 else 0.0, 0.0, False),
    "relative entropy": (lambda y: cp.rel_entr(y, 2.0), lambda y: y * np.log(y / 2) if y > 0 else 0.0, 0.0, False),
    "steep": (lambda y: cp.logistic(900 * y) / 900, lambda y: np.logaddexp(0, 900 * y) / 900, -20.0, False),
    "steep beside others": (
        lambda y: cp.log_sum_exp(cp.hstack([900 * y, 0, -900 * y])) / 900,
        lambda y: np.logaddexp.reduce([900 * y, 0, -900 * y]) / 900,
        -20.0,
        False,
    ),
}


@pytest.mark.parametrize("name", TERMS)
@pytest.mark.parametrize("scope", ["federation", "client"])
def test_beside_a_square(name: str, scope: str) -> None:
    term, value, end, above = TERMS[name]
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    lower = hf.ArgMin(y, term(y) + cp.square(y - x), scope=scope)  # type: ignore[arg-type]
    implicit = hf.Problem(hf.Minimize(clients=y), lower).implicit
    low, high = (end - 40, end - 1e-12) if above else (end, end + 40)
    for at in (-1.0, 0.3, 1.0, 5.0, 10.0):
        truth = minimize_scalar(
            lambda v, at=at: value(v) + (v - at) ** 2, bounds=(low, high), method="bounded", options={"xatol": 1e-11}
        ).x
        assert implicit(at) == pytest.approx(truth, abs=1e-6)
        step = 1e-6
        slope = (implicit(at + step) - implicit(at - step)) / (2 * step)
        assert implicit.gradient(at) == pytest.approx(slope, abs=1e-6)


def test_owners_do_not_share_a_bound() -> None:
    """Rows of uneven clients, each with its own limit: 2 c (y - x) y = 1 where the limit is above, in sample scope."""
    a, c = hf.Sample(name="a"), hf.ClientParameter(name="c", nonneg=True)
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    federation = hf.Federation(
        [hf.Client({a: np.array([0.3, -1.0, 2.0])}, {c: 1.0}), hf.Client({a: np.array([1.0, 1.0])}, {c: 0.5})]
    )
    cost = -cp.log(cp.minimum(y, a + 3)) + c * cp.square(y - x)
    lower = hf.ArgMin(y, cost, [y >= 0.1, y <= 2 + c], scope="sample")
    implicit = hf.Problem(hf.Minimize(clients=hf.E(y)), lower, federation=federation).implicit
    roots = [(0.7 + np.sqrt(0.49 + 2 / weight)) / 2 for weight in (1.0, 0.5)]
    assert np.concatenate(implicit.response(0.7)) == pytest.approx([roots[0]] * 3 + [roots[1]] * 2, rel=1e-11)
    slopes = [(1 + 0.7 / np.sqrt(0.49 + 2 / weight)) / 2 for weight in (1.0, 0.5)]
    assert implicit.gradient(0.7) == pytest.approx(np.mean(slopes), rel=1e-9)


def declared(cost: Callable[..., Any], rows: Callable[..., list], size: int = 2, **attributes: Any) -> hf.Problem:
    x, y = cp.Variable(2, name="x"), cp.Variable(size, name="y", **attributes)
    return hf.Problem(hf.Minimize(clients=np.arange(1.0, size + 1) @ y), hf.ArgMin(y, cost(x, y), rows(x, y)))


def distance(x: Any, y: Any) -> Any:
    return cp.sum_squares(y - x)


def nearest(x: np.ndarray, value: Callable, slope: Callable, bound: float) -> np.ndarray:
    """The nearest point of sum_j value(y_j) <= bound, for convex values: y + t value'(y) = x."""

    def at(t: float) -> np.ndarray:
        return np.array([brentq(lambda v, one=one: v + t * slope(v) - one, -50, 50, xtol=1e-15) for one in x])

    if np.sum(value(x)) <= bound:
        return x
    return at(brentq(lambda t: np.sum(value(at(t))) - bound, 0, 50, xtol=1e-15))


SETS = {
    "exponentials": (lambda x, y: [cp.sum(cp.exp(y)) <= 4], np.exp, np.exp, 4.0),
    "losses": (lambda x, y: [cp.sum(cp.logistic(y)) <= 1.2], lambda v: np.log1p(np.exp(v)), lambda v: 1 / (1 + np.exp(-v)), 1.2),
    "the logarithm of their sum": (lambda x, y: [cp.log_sum_exp(y) <= np.log(4)], np.exp, np.exp, 4.0),
}


@pytest.mark.parametrize("name", SETS)
def test_nearest_points(name: str) -> None:
    rows, value, slope, bound = SETS[name]
    problem = declared(distance, rows)
    for at in (np.array([1.2, 0.8]), np.array([3.0, -1.0]), np.array([-0.5, -4.0])):
        near(problem.implicit.response(at), nearest(at, value, slope, bound))
        step = 1e-5 * np.eye(2)
        differences = [
            np.array([1.0, 2.0]) @ (nearest(at + h, value, slope, bound) - nearest(at - h, value, slope, bound)) / 2e-5
            for h in step
        ]
        near(problem.implicit.gradient(at), differences, 1e-7)


def test_a_kink_where_a_constraint_starts_to_bind() -> None:
    """y = (x, -x) meets sum exp(y) <= 2 cosh(1) at |x| = 1, where it stops."""
    problem = declared(lambda x, y: cp.square(y[0] - x[0]) + cp.square(y[1] + x[0]), lambda x, y: [cp.sum(cp.exp(y)) <= 2 * np.cosh(1)])
    near(problem.implicit.response(np.array([0.9, 0.0])), [0.9, -0.9])
    assert problem.implicit(np.array([1.0, 0.0])) == pytest.approx(-1.0, abs=1e-8)
    with pytest.raises(hf.NoGradientError):
        problem.implicit.gradient(np.array([1.0, 0.0]))
    shown = problem.implicit.slice(np.array([0.9, 0.0]), np.array([1.0, 0.0]), radius=0.3, points=31, progress=False)
    assert len(shown.kinks) == 1 and shown.kinks[0].t == pytest.approx(0.1, abs=1e-6)


def test_a_cone_that_holds_nowhere_takes_no_gradient() -> None:
    """Bounds of exp(y) may be anywhere below 5 + x, one of them at exp(y) by chance."""
    x, y, u = cp.Variable(name="x"), cp.Variable(2, name="y"), np.array([-0.6056491533924592, 2.326099661651418])
    far = 0.5 * cp.sum_squares(y - 0.5 * x - 0.7 * u) + 0.1 * cp.sum(cp.power(y - u, 4)) + cp.log_sum_exp(y - u) + 0.2 * cp.sum(cp.exp(y))
    found = [
        hf.Problem(hf.Minimize(cp.sum_squares(y - 1)), hf.ArgMin(y, far, rows), [cp.abs(x) <= 1]).implicit.gradient(-0.4)
        for rows in ([], [cp.sum(cp.exp(y)) <= 5 + x])
    ]
    np.testing.assert_allclose(*found, rtol=1e-9)


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_a_power_cone(share: float) -> None:
    """The least of a (y_1 + y_2) on y_1^share y_2^(1 - share) >= x_1: y_1 : y_2 = share : 1 - share."""
    problem = declared(
        lambda x, y: y[0] + y[1] + cp.square(y[2] - x[0]) * 50,
        lambda x, y: [cp.PowCone3D(y[0], y[1], y[2], share), y[2] == x[0]],
        3,
    )
    unit = np.array([share, 1 - share]) / (share**share * (1 - share) ** (1 - share))
    for at in (0.5, 2.0):
        near(problem.implicit.response(np.array([at, 0.0])), [*(at * unit), at], 1e-8)
        near(problem.implicit.gradient(np.array([at, 0.0])), [unit @ [1.0, 2.0] + 3.0, 0.0], 1e-6)


def test_what_is_convex_by_a_sign() -> None:
    """(y_1^2 + y_2)^2 is convex where y_2 >= 0, and so is y e^y."""
    problem = declared(lambda x, y: cp.square(cp.square(y[0]) + y[1]) + distance(x, y), lambda x, y: [], nonneg=True)
    at = np.array([0.8, 0.7])
    truth = minimize(
        lambda v: (v[0] ** 2 + v[1]) ** 2 + np.sum((v - at) ** 2), [0.1, 0.1], bounds=[(0, None)] * 2, tol=1e-15
    )
    near(problem.implicit.response(at), truth.x, 1e-6)
    product = declared(distance, lambda x, y: [cp.sum(cp.xexp(y)) <= 2], nonneg=True)
    near(
        product.implicit.response(np.array([2.0, 1.5])),
        nearest(np.array([2.0, 1.5]), lambda v: v * np.exp(v), lambda v: (1 + v) * np.exp(v), 2.0),
    )


def test_what_no_method_solves_is_refused_by_name() -> None:
    x, y, d = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="d")
    rows = np.linspace(-1, 1, 20_001)
    lower = hf.ArgMin(y, hf.E(cp.abs(y - d)) + cp.square(y - x))
    problem = hf.Problem(hf.Minimize(clients=y), lower, federation=hf.Federation([hf.Client({d: rows})]))
    with pytest.raises(hf.LowerLevelError, match=r"20,001 rows of something that is not smooth.*cp\.huber"):
        problem.implicit(0.0)
    assert "no method" in str(problem.explain())


# --- Smooth functions that lower levels take as they are: values beside CVXPY, derivatives beside differences.


RNG = np.random.default_rng(1)
v = cp.Variable(3)
POWERS = {p: smooth_atom_of(cp.power(v, p)).atom for p in (2.5, 3, 4, 0.5, -1)}
ATOMS: dict[str, tuple[SmoothAtom, Callable[[np.ndarray], cp.Expression], float, int]] = {  # lowest argument, block
    "square": (SQUARE, cp.square, -2.0, 1),
    "exp": (EXP, cp.exp, -2.0, 1),
    "logistic": (LOGISTIC, cp.logistic, -30.0, 1),
    "entropy": (ENTROPY, cp.entr, 0.05, 1),
    "log": (LOG, cp.log, 0.05, 1),
    "log_sum_exp": (LOG_SUM_EXP, lambda z: cp.log_sum_exp(z, axis=1), -2.0, 4),
    "relative entropy": (RELATIVE_ENTROPY, lambda z: cp.rel_entr(z[:, 0], z[:, 1]), 0.05, 2),
    **{f"power {p}": (atom, lambda z, p=p: cp.power(z, p), 0.05, 1) for p, atom in POWERS.items()},
}


@pytest.mark.parametrize("name", ATOMS)
def test_values_are_those_of_cvxpy_and_derivatives_those_of_differences(name: str) -> None:
    atom, meant, low, block = ATOMS[name]
    z = RNG.uniform(low, 3.0, (6, block))
    np.testing.assert_allclose(atom.value(z), np.ravel(meant(cp.Constant(z)).value), rtol=1e-12)
    for k, e in enumerate(1e-5 * np.eye(block)):
        np.testing.assert_allclose(atom.slope(z)[:, k], (atom.value(z + e) - atom.value(z - e)) / 2e-5, rtol=1e-5)
        differences = (atom.slope(z + e) - atom.slope(z - e)) / 2e-5
        np.testing.assert_allclose(atom.curvature(z)[:, k], differences, rtol=1e-5, atol=1e-9)




# --- Nearest points of exponential and power cones: by Moreau's conditions, which no other point meets, and differences.


CONES = {"exponential": Cone(EXPONENTIAL, 3), **{f"power {share}": Cone(POWER, 3, share=share) for share in (0.2, 0.5, 0.9)}}
SIGNS = np.array(np.meshgrid(*[[-1.0, 1.0]] * 3)).reshape(3, 8).T


def holds(cone: Cone, v: np.ndarray, within: float, dual: bool = False) -> bool:
    """Whether a point is in the cone, or in its dual, once it is moved by so much to what is inside of both."""
    x, y, z = v + within * (np.array([1.0, 1.0, 0.0]) if cone.share is not None else np.array([-1.0, 1.0, 1.0]))
    if cone.share is not None:
        first, second = (x / cone.share, y / (1 - cone.share)) if dual else (x, y)
        return min(first, second) >= 0 and bool(first**cone.share * second ** (1 - cone.share) >= abs(z))
    if dual:
        return bool(-x * np.exp(y / x - 1) <= z) if x < 0 else bool(x == 0 and min(y, z) >= 0)
    return bool(y * np.exp(x / y) <= z) if y > 0 else bool(y == 0 and x <= 0 <= z)


@pytest.mark.parametrize("name", CONES)
def test_moreaus_conditions_and_the_derivative(name: str) -> None:
    cone, rng = CONES[name], np.random.default_rng(4)
    for v in [*(sign * scale for sign in SIGNS for scale in 10 ** rng.uniform(-1.5, 1.0, (12, 3)))]:
        point, slope = nearest_of_three(cone, v)
        apart, size = point - v, 1 + np.linalg.norm(v)
        assert holds(cone, point, 1e-9 * size) and holds(cone, apart, 1e-9 * size, dual=True)
        assert abs(point @ apart) <= 1e-9 * size**2
        moves = [(nearest_of_three(cone, v + step)[0] - nearest_of_three(cone, v - step)[0]) / 2e-6 for step in 1e-6 * np.eye(3)]
        np.testing.assert_allclose(slope, np.transpose(moves), atol=2e-4)


# --- Sums of exponentials whose minimum is far from where Newton's method begins: log k - x, from k = 0.5 to 2 and
# x = -40 to 40.


K = np.array([1.0, 2.0, 0.5])


@pytest.mark.parametrize("rows", ["none", "a box", "a sum"])
def test_a_minimum_far_away_is_found(rows: str) -> None:
    x, y = cp.Variable(name="x"), cp.Variable(3, name="y")
    within = {"none": [], "a box": [y >= -100, y <= 100], "a sum": [cp.sum(y) >= -3 * x - 1]}[rows]
    level = hf.ArgMin(y, cp.exp(x) * cp.sum(cp.exp(y)) - K @ y, within)
    problem = hf.Problem(hf.Minimize(clients=cp.sum(y)), level)
    for at in (-40.0, -20.0, -6.0, -4.0, -2.0, 0.0):
        np.testing.assert_allclose(problem.implicit.response(at), np.log(K) - at, rtol=1e-12)
        assert problem.implicit.gradient(at) == pytest.approx(-3.0, abs=1e-9)


def test_shares_that_no_number_tells_from_none_are_none() -> None:
    """A choice by costs 1, 2, 3 at a temperature e^x, shares as exp(-cost / e^x): of e^-7, those of 2 and 3 are e^-1096 and e^-2193."""
    x, y = cp.Variable(name="x"), cp.Variable(3, name="y")
    costs = np.array([1.0, 2.0, 3.0])
    level = hf.ArgMin(y, costs @ y - cp.exp(x) * cp.sum(cp.entr(y)), [cp.sum(y) == 1])
    problem = hf.Problem(hf.Minimize(clients=costs @ y), level)
    for at in (-10.0, -8.0, -7.0, -6.6, -6.0, -5.0, -3.0, 0.0, 3.0):
        shares = np.exp(-(costs - 1) * np.exp(-at))
        shares, slope = shares / shares.sum(), (costs - 1) * np.exp(-at)
        y_at, moved = problem.implicit.response(at), shares * (slope - shares @ slope)
        np.testing.assert_allclose(y_at, shares, rtol=1e-11, atol=1e-80)
        assert y_at.min() >= 0 and problem.implicit.gradient(at) == pytest.approx(costs @ moved, rel=1e-8, abs=1e-80)


@pytest.mark.parametrize("kind", [cp.kl_div, cp.rel_entr])
@pytest.mark.parametrize("shares", [[0.0, 2.0], [1.0, 0.0]])
def test_shares_of_nothing_in_a_divergence(kind: Any, shares: list[float]) -> None:
    """As an empty bin of a histogram has."""
    x, y, z, at = cp.Variable(2, name="x"), cp.Variable(2, name="y"), cp.Variable(2), np.array([0.3, 0.4])
    level = hf.ArgMin(y, cp.sum(kind(np.array(shares), y)) + 0.5 * cp.sum_squares(y - x), [y >= 0.01])
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(y)), level, [cp.abs(x) <= 3])
    cost = cp.sum(kind(np.array(shares), z)) + 0.5 * cp.sum_squares(z - at)
    cp.Problem(cp.Minimize(cost), [z >= 0.01]).solve(solver="CLARABEL")
    assert problem.implicit(at) == pytest.approx(float(z.value @ z.value), rel=1e-4)
    ways = 1e-5 * np.eye(2)
    differences = [(problem.implicit(at + way) - problem.implicit(at - way)) / 2e-5 for way in ways]
    np.testing.assert_allclose(problem.implicit.gradient(at), differences, atol=1e-6)

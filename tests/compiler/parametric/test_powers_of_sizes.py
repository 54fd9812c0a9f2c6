"""Powers between one and two of sizes, of positive parts and of what is positive: answers that are chosen first, and costs made for them."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq

import hierfl as hf

CURVED = 0.1  # of I, beside a matrix


def problem(
    n: int, exponent: float, matrix: np.ndarray, term: Any = cp.abs, high: np.ndarray | None = None
) -> tuple[hf.Problem, cp.Variable]:
    """y(x) minimises sum(term(y)^p) + y'Qy / 2 - x'y, below some bounds."""
    x, y = cp.Variable(n, name="x"), cp.Variable(n, name="y")
    cost = cp.sum(cp.power(term(y), exponent)) + 0.5 * cp.quad_form(y, matrix) - x @ y
    lower = hf.ArgMin(y, cost, [] if high is None else [y <= high])
    return hf.Problem(hf.Minimize(clients=np.arange(1.0, n + 1) @ y), lower), y


def draw(rng: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """(a positive definite matrix, an answer of entries of all sizes, zeros among them)."""
    root = rng.normal(size=(n, n)) * rng.choice([0.0, 1.0])
    sizes = 10 ** rng.uniform(-8, 1, n) * (rng.random(n) < 0.7)
    return root @ root.T + CURVED * np.eye(n), rng.choice([-1, 1], n) * sizes


def slope(y: np.ndarray, exponent: float) -> np.ndarray:
    return exponent * np.sign(y) * np.abs(y) ** (exponent - 1)


@pytest.mark.parametrize("exponent", [1.5, 1.9, 2.5, 3.0])
@pytest.mark.parametrize("seed", range(5))
def test_answers_and_gradients(seed: int, exponent: float) -> None:
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 5))
    matrix, y = draw(rng, n)
    if exponent == 1.9:  # a zero is known to a rounding of its force, where the derivative of y is still 1/100
        y = np.where(y == 0, 1e-3, y)
    declared, _ = problem(n, exponent, matrix)
    at = slope(y, exponent) + matrix @ y
    found = np.ravel(declared.implicit.response(at))
    # |y|^2 is flat for an exponent of 3, and only as well known as its force
    assert found == pytest.approx(y, rel=1e-9, abs=1e-9)
    with np.errstate(divide="ignore"):
        curvature = exponent * (exponent - 1) * np.abs(y) ** (exponent - 2)
    kept = np.isfinite(curvature)
    expected = np.zeros(n)
    inner = matrix[np.ix_(kept, kept)] + np.diag(curvature[kept])
    expected[kept] = np.linalg.solve(inner, np.arange(1.0, n + 1)[kept])
    assert np.ravel(declared.implicit.gradient(at)) == pytest.approx(expected, rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("seed", range(10))
def test_with_bounds_that_hold(seed: int) -> None:
    rng = np.random.default_rng(seed)
    matrix, y = draw(rng, 3)
    held = rng.random(3) < 0.5
    pulls = np.where(held, rng.uniform(0.1, 2.0, 3), 0.0)
    declared, _ = problem(3, 1.5, matrix, high=np.where(held, y, np.maximum(y, 0) + 1))
    at = slope(y, 1.5) + matrix @ y + pulls
    assert np.ravel(declared.implicit.response(at)) == pytest.approx(y, rel=1e-9, abs=1e-9)
    (multipliers,) = declared.implicit.multipliers(at).values()
    assert np.ravel(multipliers) == pytest.approx(pulls, abs=1e-7)


def closed_form(x: float) -> float:
    """y of y^1.5 + y^2 - x y for x >= 0: 1.5 s + 2 s^2 = x at y = s^2."""
    return float(((np.sqrt(2.25 + 8 * x) - 1.5) / 4) ** 2)


@pytest.mark.parametrize(
    ("term", "below_zero"),
    [(cp.abs, lambda x: -closed_form(-x)), (cp.pos, lambda x: x / 2), (lambda y: y, lambda x: 0.0)],
    ids=["size", "positive part", "itself"],
)
def test_on_both_sides_of_zero(term: Any, below_zero: Any) -> None:
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    lower = hf.ArgMin(y, cp.power(term(y), 1.5) + cp.square(y) - x * y)
    implicit = hf.Problem(hf.Minimize(clients=y), lower).implicit
    for at in (1e-8, 1e-6, 1e-4, 1e-2, 0.5, 20.0):
        assert float(implicit.response(at)) == pytest.approx(closed_form(at), rel=1e-9, abs=1e-11)
        assert float(implicit.response(-at)) == pytest.approx(below_zero(-at), rel=1e-9, abs=1e-11)
        s = np.sqrt(closed_form(at))
        if at == 1e-8:  # y is 4e-17: at the corner for all that is known, and refused or its slope
            continue
        assert implicit.gradient(at) == pytest.approx(1 / (0.75 / s + 2), rel=1e-7)
    assert implicit.certificate(0.0).lower_residual <= 1e-15  # however y comes to 0
    shown = implicit.slice(0.0, radius=1.0)
    slopes = [(kink.t, kink.left_slope, kink.right_slope) for kink in shown.kinks]
    expected = [(0.0, 0.5, 0.0)] if term is cp.pos else []
    assert np.ravel(slopes) == pytest.approx(np.ravel(expected), abs=1e-6) and not shown.kinks.jumps and not shown.gaps


def test_averages_over_a_law() -> None:
    """A cube's second derivative is a law's mean distance; that of |y - d|^1.5 is infinite at every node: there are values alone."""
    x, y, d = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="d")
    federation = hf.Federation([hf.Client({d: stats.norm(1, 1)})])

    def implicit(exponent: float) -> Any:
        lower = hf.ArgMin(y, hf.E(cp.power(cp.abs(y - d), exponent)) + 0.05 * cp.square(y) - x * y)
        return hf.Problem(hf.Minimize(clients=y), lower, federation=federation).implicit

    at = 0.5
    found = float(implicit(3).response(at))
    away = found - 1
    distance = away * (2 * stats.norm.cdf(away) - 1) + 2 * stats.norm.pdf(away)
    square = (1 + away**2) * (2 * stats.norm.cdf(away) - 1) + 2 * away * stats.norm.pdf(away)
    assert 3 * square + 0.1 * found == pytest.approx(at, abs=1e-9)
    # what is averaged over nodes for it has a kink, which costs them their exponential accuracy
    assert implicit(3).gradient(at) == pytest.approx(1 / (6 * distance + 0.1), rel=1e-5)
    with pytest.raises(hf.IncompatibleSolverError, match="infinite curvatures is finite"):
        implicit(1.5).gradient(at)


def by_bisection(kind: str, exponent: float, corner: float, curved: float, x: float) -> float:
    """y of term(y - corner)^p + curved y^2 / 2 - x y, where its slope changes sign."""

    def force(y: float) -> float:
        w = y - corner
        pull = np.sign(w) * abs(w) ** (exponent - 1) if kind == "size" else max(w, 0.0) ** (exponent - 1)
        return float(exponent * pull + curved * y - x)

    low, high = corner if kind == "itself" else -1e6, 1e6
    for _ in range(200):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if force(middle) < 0 else (low, middle)
    return high


TERMS = {"size": cp.abs, "positive part": cp.pos, "itself": lambda w: w}


@pytest.mark.parametrize("kind", TERMS)
@pytest.mark.parametrize("corner", [1.0, 2.0, -1.0])
@pytest.mark.parametrize("exponent", [1.2, 1.5, 1.9])
def test_steps_that_end_at_a_corner(exponent: float, corner: float, kind: str) -> None:
    """Round numbers lead Newton's method, and a slice's neighbours, exactly to the corner, where a step is lost beside y."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    lower = hf.ArgMin(y, cp.power(TERMS[kind](y - corner), exponent) + 0.25 * cp.square(y) - x * y)
    implicit = hf.Problem(hf.Minimize(clients=y), lower).implicit
    for at in (0.0, 0.5, 1.0, 2.0, 5.0, 0.5 * corner):
        truth = by_bisection(kind, exponent, corner, 0.5, at)
        assert float(implicit.response(at)) == pytest.approx(truth, rel=1e-9, abs=1e-9)
    line = implicit.slice(1.0, radius=2.0, points=41)
    truths = [by_bisection(kind, exponent, corner, 0.5, 1.0 + t) for t in line.t]
    assert line.value == pytest.approx(truths, rel=1e-9, abs=1e-9) and not line.kinks.jumps
    if (
        kind == "positive part" and exponent < 1.9
    ):  # beyond, slopes near the corner are told from those before it only slowly
        (kink,) = line.kinks
        assert (1.0 + kink.t, kink.left_slope, kink.right_slope) == pytest.approx((0.5 * corner, 2.0, 0.0), abs=1e-5)


# y in two entries; the power of each, as |.|^p of what
POWERS: dict[str, tuple[Any, float, str]] = {
    "square": (lambda y: cp.power(cp.square(y[0]), 1.5), 3.0, "first"),
    "fourth": (lambda y: cp.power(cp.power(y[0], 4), 1.5), 6.0, "first"),
    "power of a size": (lambda y: cp.power(cp.power(cp.abs(y[0]), 1.2), 1.5), 1.8, "first"),
    "size squared": (lambda y: cp.square(cp.power(cp.abs(y[0]), 1.25)), 2.5, "first"),
    "length": (lambda y: cp.power(cp.norm(y), 1.5), 1.5, "length"),
    "length cubed": (lambda y: cp.power(cp.norm(y), 3), 3.0, "length"),
    "length squared": (lambda y: cp.square(cp.norm(y)), 2.0, "length"),
    "sum of squares": (lambda y: cp.power(cp.sum_squares(y), 1.5), 3.0, "length"),
    "over a number": (lambda y: 4**0.75 * cp.power(cp.quad_over_lin(y, 4.0), 1.25), 2.5, "length"),
}


@pytest.mark.parametrize("name", POWERS)
def test_powers_of_powers_and_lengths(name: str) -> None:
    """y with (y - x) + p |w|^(p - 2) w = 0 for w the first entry or all; at w = 0 its slope is 1 for p > 2, 1/3 for 2, 0 below."""
    term, exponent, of = POWERS[name]
    scale = 4**-0.5 if name == "over a number" else 1.0  # 4^(3/4) (|y|^2 / 4)^(5/4) is |y|^2.5 / 2
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    lower = hf.ArgMin(y, 0.5 * cp.sum_squares(y - x) + term(y))
    implicit = hf.Problem(hf.Minimize(clients=y[0] + 0.7 * y[1]), lower).implicit
    mask = np.array([1.0, 0.0 if of == "first" else 1.0])
    for want in ([0.0, 0.0], [0.3, -0.2], [-2.0, 1.0], [1e-3, 0.0]):
        truth = np.array(want)
        w = mask * truth
        size = np.linalg.norm(w)
        pull = scale * exponent * size ** (exponent - 2) * w if size > 0 else 0 * w
        at = truth + pull
        assert np.ravel(implicit.response(at)) == pytest.approx(truth, rel=1e-9, abs=1e-12)
        if size > 0:
            bend = scale * exponent * size ** (exponent - 2)
            curved = bend * (np.diag(mask) + (exponent - 2) * np.outer(w, w) / size**2)
            slope = np.linalg.inv(np.eye(2) + curved)
        else:
            slope = np.diag(np.where(mask > 0, 0.0 if exponent < 2 else 1 / 3 if exponent == 2 else 1.0, 1.0))
        assert np.ravel(implicit.gradient(at)) == pytest.approx(slope @ [1.0, 0.7], rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("within", ["a box", "a ball"])
def test_slopes_beside_a_corner(within: str) -> None:
    """y + 0.4 x = v sticks near 0 where 1.5 sqrt(v) balances the rest: dy/dx = -0.4 h / (h + c) with h = 0.75 / sqrt(v), c the rest's curvature."""
    x, y = cp.Variable(name="x"), cp.Variable(2, name="y")
    below = cp.sum(cp.power(cp.pos(y - np.array([0.7, -0.4]) * x), 1.5)) + 0.05 * cp.sum_squares(y - [0.1, 0.2]) + cp.sum(cp.kl_div(y + 2.5, 2))
    limits = [y >= -1, y <= 0.5] if within == "a box" else [y >= -1, cp.norm(y) <= 1]
    implicit = hf.Problem(hf.Minimize(clients=y[1]), hf.ArgMin(y, below, limits)).implicit
    corner = brentq(lambda t: -0.1 * (0.4 * t + 0.2) + np.log((2.5 - 0.4 * t) / 2), 0.0, 2.0, xtol=1e-15)
    for beyond in (1e-5, 1e-4, 1e-3, 1e-2):
        at, v = corner + beyond, 0.0
        for _ in range(50):
            v = ((0.1 * (v - 0.4 * at - 0.2) + np.log((v - 0.4 * at + 2.5) / 2)) / 1.5) ** 2
        h, c = 0.75 / np.sqrt(v), 0.1 + 1 / (v - 0.4 * at + 2.5)
        assert implicit.gradient(at) == pytest.approx(-0.4 * h / (h + c), abs=1e-6)
    (kink,) = implicit.slice(corner, radius=0.2, points=11).kinks
    assert (kink.t, kink.left_slope, kink.right_slope) == pytest.approx((0.0, 0.0, -0.4), abs=1e-5)

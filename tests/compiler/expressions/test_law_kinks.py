"""Laws of one scalar under kinks, and with jumps of their densities: means, answers and gradients against closed forms and SciPy's integrals."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import scipy.stats as stats
from scipy.integrate import quad
from scipy.optimize import brentq

import hierfl as hf

NORMAL = stats.norm()


def newsvendor(law: Any, high: float, middle: float = 0.0, points: int = 1024, aim: Any = lambda x: x) -> hf.Problem:
    """x = 2 P(d > y) - P(d < y) within |y - middle| <= high."""
    x, y, d = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="d")
    cost = x * y + hf.E(2 * cp.pos(d - y) + cp.pos(y - d))
    federation = hf.Federation([hf.Client({d: law})], points=points)
    return hf.Problem(hf.Minimize(clients=cp.square(aim(x) - y)), hf.ArgMin(y, cost, [cp.abs(y - middle) <= high]), [cp.abs(x) <= 1.9], federation)


@pytest.mark.parametrize(("points", "error"), [(64, 1e-8), (1024, 1e-9)])
def test_a_newsvendor_orders_a_quantile_and_its_slope_has_the_density(points: int, error: float) -> None:
    """y is the quantile at (2 - x) / 3, and y' = -1 / (3 density)."""
    problem = newsvendor(NORMAL, 9, points=points)
    for x in (-0.9, 0.3, 1.9):
        y = NORMAL.ppf((2 - x) / 3)
        assert problem.implicit.response(x) == pytest.approx(y, abs=error)
        slope = -1 / (3 * NORMAL.pdf(y))
        assert problem.implicit.gradient(x) == pytest.approx(2 * (x - y) * (1 - slope), rel=100 * error)
        certificate = problem.implicit.certificate(x)
        assert abs(problem.implicit(x) - (x - y) ** 2) <= 4 * certificate.expectation_error + 1e-9
        assert certificate.expectation_error < 10 * error


INTEGRANDS: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {  # by CVXPY, by NumPy
    "pos": (lambda d, y: cp.pos(d - y), lambda d, y: max(d - y, 0.0)),
    "steep": (lambda d, y: cp.abs(3 * d - 2 * y + 1), lambda d, y: abs(3 * d - 2 * y + 1)),
    "the same kink twice": (lambda d, y: cp.pos(y - d) + cp.abs(2 * d - 2 * y), lambda d, y: max(y - d, 0) + 2 * abs(d - y)),
    "three pieces": (lambda d, y: cp.maximum(d - y, y - 2 * d, 0), lambda d, y: max(d - y, y - 2 * d, 0.0)),
    "square of a kink": (lambda d, y: cp.square(cp.pos(d - y)), lambda d, y: max(d - y, 0.0) ** 2),
    "kink in a curve": (lambda d, y: cp.exp(0.3 * cp.abs(d - y)), lambda d, y: np.exp(0.3 * abs(d - y))),
    "kink times a curve": (lambda d, y: (1 + d**2) * cp.pos(d - y), lambda d, y: (1 + d**2) * max(d - y, 0.0)),
    "vector": (lambda d, y: cp.norm1(d * np.array([1.0, -2.0]) - y), lambda d, y: abs(d - y) + abs(2 * d + y)),
}  # fmt: skip
KINKS = {
    "pos": [1],
    "steep": [2 / 3],
    "the same kink twice": [1],
    "three pieces": [1, 0.5, 2 / 3, 0],
    "vector": [1, -0.5],
}


@pytest.mark.parametrize("name", INTEGRANDS)
@pytest.mark.parametrize("law", [stats.norm(0.3, 1.5), stats.gamma(2.0)])
def test_means_and_answers_are_the_law_s(name: str, law: Any) -> None:
    by_cvxpy, by_numpy = INTEGRANDS[name]
    x, y, d = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="d")
    federation = hf.Federation([hf.Client({d: law})])
    below = hf.ArgMin(y, 0.5 * cp.square(y - x) + hf.E(by_cvxpy(d, y)), [y >= -9, y <= 9])
    problem = hf.Problem(hf.Minimize(clients=hf.E(by_cvxpy(d, x)) + y), below, federation=federation)

    def mean(at: float) -> float:
        shift = -1 / 3 if name == "steep" else 0.0
        inner = sorted(k * at + shift for k in KINKS.get(name, [1]))
        low, high = law.ppf(1e-15), law.isf(1e-15)
        ends = [low, *(k for k in inner if low < k < high), *law.ppf([0.01, 0.5, 0.99, 1 - 1e-6]), high]
        return sum(
            quad(lambda u: by_numpy(u, at) * law.pdf(u), a, b, epsabs=1e-14, epsrel=1e-13, limit=300)[0]
            for a, b in pairwise(sorted(ends))
        )

    def slope(at: float) -> float:
        """By differences of fourth order, from values that are right to rounding."""
        h = 1e-3
        return float((8 * (mean(at + h) - mean(at - h)) - mean(at + 2 * h) + mean(at - 2 * h)) / (12 * h))

    answer = brentq(lambda at: at - 0.4 + slope(at), -8.9, 8.9, xtol=1e-13)
    np.testing.assert_allclose(problem.implicit.response(0.4), answer, atol=1e-8)
    np.testing.assert_allclose(problem.implicit(0.4), mean(0.4) + answer, atol=1e-8)
    curvature = (slope(answer + 1e-2) - slope(answer - 1e-2)) / 2e-2
    np.testing.assert_allclose(problem.implicit.gradient(0.4), slope(0.4) + 1 / (1 + curvature), rtol=2e-3)


def test_a_slice_has_the_law_s_kinks_and_no_others() -> None:
    """The bounds of y make two; the 1,024 nodes none."""
    problem = newsvendor(NORMAL, 0.5)
    looked = problem.implicit.slice(0.3, direction=1.0, radius=1.5, points=101, progress=False)
    places = [2 * NORMAL.sf(y) - NORMAL.cdf(y) - 0.3 for y in (0.5, -0.5)]
    np.testing.assert_allclose([kink.t for kink in looked.kinks], places, atol=1e-9)
    assert "points that stand for" not in str(looked)


@pytest.mark.parametrize(
    ("cost", "what"),
    [
        (lambda d, c, y: cp.pos(c * d - y), "a client's constant may be zero"),
        (lambda d, c, y: cp.pos(cp.exp(0.1 * d) - y), "the sample enters the kink through a curve"),
        (lambda d, c, y: cp.abs(y) + 0 * d + 0 * c, "the sample is not in the kink"),
    ],
)
def test_other_kinks_stay_as_they_are(cost: Callable[..., Any], what: str) -> None:
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    d, c = hf.Sample(name="d"), hf.ClientParameter(name="c")
    problem = hf.Problem(
        hf.Minimize(clients=cp.square(y - x)),
        hf.ArgMin(y, 0.5 * cp.square(y - x) + hf.E(cost(d, c, y)), [cp.abs(y) <= 5]),
        federation=hf.Federation([hf.Client({d: NORMAL}, {c: 1.0})], points=64),
    )
    x0 = 0.4
    if "curve" in what:
        answer = brentq(lambda at: at - x0 - stats.lognorm(0.1).sf(at), -4, 4)
    else:
        answer = 0.0 if "not in" in what else brentq(lambda at: at - x0 - NORMAL.sf(at), -4, 4)
    assert problem.implicit.response(x0) == pytest.approx(answer, abs=2e-2)
    if "not in" not in what:
        with pytest.raises(hf.IncompatibleSolverError, match="staircase"):
            problem.implicit.gradient(x0)


def test_a_server_s_law_and_user_code_beside_kinks() -> None:
    """The server's own law is integrated as well; code of the user's may have kinks of its own, and is averaged over the nodes."""
    x, s = cp.Variable(name="x"), hf.Sample(name="s")
    client = hf.Client()
    excess = NORMAL.pdf(0.4) - 0.4 * NORMAL.sf(0.4)
    for term, error in (
        (cp.pos(s - x), 1e-13),
        (hf.Function(lambda s, x: np.pi * 0 + (s - x) * (s > x), s, x, shape=()), 1e-4),
    ):
        problem = hf.Problem(
            hf.Minimize(server=hf.E(term)), federation=hf.Federation([client], server=hf.Client({s: NORMAL}))
        )
        assert problem.implicit(0.4) == pytest.approx(excess, abs=error)


@pytest.mark.parametrize("apart", [0.0, 1e-12, 1e-9, 1e-3])
def test_kinks_at_one_place_keep_their_own_slopes(apart: float) -> None:
    """Entries that weigh differently, in one atom or in several, at the same value of the sample or nearly."""
    x, d, law = cp.Variable(2, name="x"), hf.Sample(name="d"), stats.gamma(2.0)
    at = np.array([0.7, 0.7 + apart])
    weights = np.array([1.0, 3.0])
    expected = -weights * law.sf(at)
    separate = hf.E(cp.pos(d - x[0]) + 3 * cp.pos(d - x[1]))
    for term in (hf.E(weights @ cp.pos(d - x)), separate, hf.E(weights @ cp.maximum(d - x, 0))):
        problem = hf.Problem(hf.Minimize(clients=term), federation=hf.Federation([hf.Client({d: law})]))
        np.testing.assert_allclose(problem.implicit.gradient(at), expected, atol=1e-10)
    steep = hf.E(cp.norm1(cp.hstack([d - x[0], 2 * d - 2 * x[1]])))
    problem = hf.Problem(hf.Minimize(clients=steep), federation=hf.Federation([hf.Client({d: law})]))
    np.testing.assert_allclose(problem.implicit.gradient(at), [1.0, 2.0] * (2 * law.cdf(at) - 1), atol=1e-10)


@pytest.mark.parametrize("middle", [0.0, 5.0, 1000.0])
def test_single_precision_sees_kinks_of_laws_far_from_zero(middle: float) -> None:
    problem = newsvendor(stats.norm(middle, 1), 9, middle, aim=lambda x: middle + 0.3 + 0 * x)
    solver = hf.solvers.ImplicitGradient(lower=hf.solvers.Exact())
    runtime = hf.runtime.InProcess(precision="single")
    moved = problem.solve(solver, rounds=2, runtime=runtime, progress=False)
    assert float(moved.x) == pytest.approx(0.0437, abs=2e-3)


SEVERAL: dict[str, tuple[Callable[[Any], Any], Callable[[np.ndarray], float]]] = {
    "max": (cp.max, np.max),
    "min": (cp.min, np.min),
    "sum_largest": (lambda v: cp.sum_largest(v, 2), lambda v: np.sort(v)[-2:].sum()),
    "norm_inf": (cp.norm_inf, lambda v: np.abs(v).max()),
    "huber": (lambda v: cp.sum(cp.huber(v, 0.7)), lambda v: np.where(np.abs(v) <= 0.7, v**2, 1.4 * np.abs(v) - 0.49).sum()),
}  # fmt: skip


@pytest.mark.parametrize("law", [stats.norm(1, 2), stats.gamma(3)], ids=["normal", "gamma"])
@pytest.mark.parametrize("name", SEVERAL)
def test_atoms_of_several_entries_are_averaged_by_the_law(name: str, law: Any) -> None:
    """Against SciPy's integrals from kink to kink; the gradient against differences of those."""
    atom, function = SEVERAL[name]
    a, b, c = np.array([1.3, -0.4, 0.6, -2.0]), np.array([-0.7, 0.2, 1.1, 0.5]), np.array([0.1, 0.9, -0.3, 0.4])
    d, x = hf.Sample(name="d"), cp.Variable(name="x")
    federation = hf.Federation([hf.Client({d: law})])
    problem = hf.Problem(hf.Minimize(clients=hf.E(atom(a * d + b * x + c))), federation=federation)

    def mean(at: float) -> float:
        v = b * at + c
        crossings = [(-v + level) / a for level in (-0.7, 0.0, 0.7)]
        pairs = [-(v[i] + way * v[j]) / (a[i] + way * a[j]) for i in range(4) for j in range(i) for way in (1, -1)]
        low, high = law.ppf(1e-14), law.isf(1e-14)
        ends = np.unique(
            np.clip([low, *np.ravel(crossings), *pairs, *law.ppf([1e-6, 0.1, 0.5, 0.9, 1 - 1e-6]), high], low, high)
        )
        pieces = (
            quad(lambda q: function(a * q + v) * law.pdf(q), s, e, epsabs=1e-14, epsrel=1e-12)
            for s, e in pairwise(ends)
        )
        return float(sum(value for value, _ in pieces))

    assert problem.implicit(0.4) == pytest.approx(mean(0.4), abs=1e-11)
    assert problem.implicit.certificate(0.4).expectation_error < 1e-10
    slope = (mean(0.401) - mean(0.399)) / 0.002
    assert problem.implicit.gradient(0.4) == pytest.approx(slope, abs=3e-6)


# --- Where densities jump: what is told of such laws, and the kinks that answers have there.


EDGES = np.array([0.0, 1.0, 2.0, 2.5, 3.0, 7.0, 8.0, 8.25])
SHARES = np.array([3.0, 0.0, 0.0, 5.0, 2.0, 0.0, 4.0])


def histogram(shares: np.ndarray, edges: np.ndarray) -> Any:
    return stats.rv_histogram((shares / np.diff(edges), edges), density=True)()


def response(law: Any) -> hf.Problem:
    """y minimises (y - x)^2 / 2 + 2 E(d - y)+, so that y = x + 2 P(d > y): its slope is 1 / (1 + 2 density(y))."""
    x, y, d = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="d")
    return hf.Problem(
        hf.Minimize(clients=cp.square(y - 2.3) + 0.1 * x),
        lower=hf.ArgMin(y, cp.square(y - x) / 2 + 2 * hf.E(cp.pos(d - y))),
        federation=hf.Federation([hf.Client({d: law})]),
    )


@pytest.mark.parametrize(
    "law, places",
    [
        (stats.uniform(1, 2), [1, 3]),
        (stats.expon(), [0]),
        (stats.norm(2, 1), []),
        (histogram(SHARES, EDGES), [0, 1, 2.5, 3, 7, 8, 8.25]),
    ],
    ids=["uniform", "exponential", "normal", "bins and gaps"],
)
def test_a_slice_has_a_kink_where_y_passes_a_jump(law: Any, places: list[float]) -> None:
    problem, at = response(law), np.array(places)
    looked = problem.implicit.slice(0.0, direction=1.0, radius=9.0, points=91, progress=False)
    np.testing.assert_allclose([kink.t for kink in looked.kinks], at - 2 * law.sf(at), atol=1e-9)
    for kink, place in zip(looked.kinks, places):
        for slope, side in ((kink.left_slope, -1e-9), (kink.right_slope, 1e-9)):
            density = law.pdf(place + side)
            assert slope == pytest.approx(0.1 + 2 * (place - 2.3) / (1 + 2 * density), abs=1e-6)
        assert "of client 0, whose law has a jump of its density at" in str(kink)


@pytest.mark.parametrize("count", [3, 7, 40])
def test_moments_of_bins_and_gaps_are_integrated_bin_by_bin(count: int) -> None:
    generator = np.random.default_rng(count)
    edges = np.cumsum(generator.uniform(0.1, 2.0, count + 1))
    shares = generator.integers(0, 4, count) + (np.arange(count) % 3 == 0)
    law = histogram(shares / shares.sum(), edges)
    d, x = hf.Sample(name="d"), cp.Variable(name="x")
    problem = hf.Problem(
        hf.Minimize(clients=hf.E(x * d + cp.square(d - x))), federation=hf.Federation([hf.Client({d: law})])
    )
    p = shares / shares.sum()
    mean = p @ (edges[1:] + edges[:-1]) / 2
    square = p @ (edges[1:] ** 2 + edges[1:] * edges[:-1] + edges[:-1] ** 2) / 3
    error = 1e-12 if count < 40 else 1e-4  # so few points are left for every bin
    assert problem.implicit(2.0) == pytest.approx(2 * mean + square - 4 * mean + 4, rel=error)
    assert problem.implicit.gradient(2.0) == pytest.approx(mean - 2 * mean + 4, rel=1e-12)

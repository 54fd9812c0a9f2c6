"""Averages over the data of owners: with kinks, steep ends, laws of few values, and many owners at once; by CVXPY on sums written out, enumeration and roots."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from scipy import stats
from scipy.optimize import brentq
from sklearn.linear_model import Lasso

import hierfl as hf
from tests.bilevel_answers import quadratic_answer
from tests.bilevel_case import gradient_by_differences
from tests.compiler.parametric.engines import Engine, near

SIZE = 3
SAME = 0.3  # weight of the quadratic term below
TIGHT = {"tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11}
Terms = Callable[[Any, Any, Any, Any], Any]  # of E and total of functions of a row (a, b), of x and y
AVERAGES: dict[str, Terms] = {
    "hinge": lambda E, total, x, y: E(lambda a, b: cp.pos(1 - cp.multiply(b, a @ y))),
    "squared hinge": lambda E, total, x, y: E(lambda a, b: cp.square(cp.pos(1 - cp.multiply(b, a @ y)))),
    "quantile": lambda E, total, x, y: E(lambda a, b: cp.maximum(0.3 * (b - a @ y), 0.7 * (a @ y - b))),
    "several kinks": lambda E, total, x, y: E(lambda a, b: cp.huber(b - a @ y, 0.5) + cp.norm_inf(y - a)),
    "total": lambda E, total, x, y: total(lambda a, b: cp.abs(b - a @ y)),
    "half a total": lambda E, total, x, y: 0.5 * total(lambda a, b: cp.pos(1 - a @ y)),
    "a total scaled by x": lambda E, total, x, y: cp.multiply(cp.exp(x[0]), total(lambda a, b: cp.abs(a @ y - 1))),
}
WITH_EXPONENTIALS: dict[str, Terms] = {  # CVXPY's exponential cones are rougher
    "smooth addends": lambda E, total, x, y: E(lambda a, b: soft(a, b, y) + cp.square(y[0] - b)),
    "an addend that is the same for all": lambda E, total, x, y: E(lambda a, b: cp.pos(1 - a @ y) + 0.2 * cp.exp(y[1]) + cp.norm1(y)),
    "an addend with x": lambda E, total, x, y: E(lambda a, b: cp.pos(1 - a @ y) + cp.exp(x[0] - y[1])),
    "half": lambda E, total, x, y: 0.5 * E(lambda a, b: soft(a, b, y)),
    "divided": lambda E, total, x, y: E(lambda a, b: soft(a, b, y)) / 2,
    "doubled inside": lambda E, total, x, y: E(lambda a, b: 2 * soft(a, b, y)),
    "scaled by x": lambda E, total, x, y: cp.multiply(cp.exp(x[0]), E(lambda a, b: soft(a, b, y))),
}


def soft(a: Any, b: Any, y: Any) -> Any:
    return cp.pos(1 - cp.multiply(b, a @ y)) + cp.logistic(a @ y)


def declared(terms: Terms, data: list[tuple[np.ndarray, np.ndarray]], scope: str, maximised: bool) -> hf.Problem:
    x, y = cp.Variable(SIZE, name="x"), cp.Variable(SIZE, name="y")
    a, b = hf.Sample(SIZE, name="a"), hf.Sample(name="b")
    below, rows = terms(lambda f: hf.E(f(a, b)), lambda f: hf.total(f(a, b)), x, y) + SAME * cp.sum_squares(y - x), [y <= 1.2]
    lower = hf.ArgMax(y, -below, rows, scope=scope) if maximised else hf.ArgMin(y, below, rows, scope=scope)
    federation = hf.Federation([hf.Client({a: rows_a, b: rows_b}) for rows_a, rows_b in data])
    return hf.Problem(hf.Minimize(clients=cp.sum_squares(y - 0.3) + cp.sum(x)), lower, federation=federation)


def value(terms: Terms, data: list[tuple[np.ndarray, np.ndarray]], scope: str, x: np.ndarray) -> float:
    """By CVXPY, owner by owner; of the federation's one level the data are those of all."""
    y, found = cp.Variable(SIZE), []
    for owner in [data] if scope == "federation" else [[client] for client in data]:

        def total(f: Any, owner: Any = owner) -> Any:
            return sum(f(*row) for client in owner for row in zip(*client)) / len(owner)

        def mean(f: Any, owner: Any = owner) -> Any:
            return sum(f(*row) / len(client[1]) for client in owner for row in zip(*client)) / len(owner)

        cost = terms(mean, total, x, y) + SAME * cp.sum_squares(y - x)
        cp.Problem(cp.Minimize(cost), [y <= 1.2]).solve(solver=cp.CLARABEL, **TIGHT)
        found.append(np.sum((y.value - 0.3) ** 2))
    return float(np.mean(found) + x.sum())


@pytest.mark.filterwarnings("ignore:Solution may be inaccurate")
@pytest.mark.parametrize("counts", [(6, 1, 9), (4,)], ids=["uneven", "one client"])
@pytest.mark.parametrize("scope", ["client", "federation"])
@pytest.mark.parametrize("name", [*AVERAGES, *WITH_EXPONENTIALS])
def test_values_and_gradients(name: str, scope: str, counts: tuple[int, ...]) -> None:
    rng, x = np.random.default_rng(3), np.array([0.4, -0.9, 1.3])
    data = [(rng.standard_normal((rows, SIZE)), rng.standard_normal(rows)) for rows in counts]
    terms = {**AVERAGES, **WITH_EXPONENTIALS}[name]
    problem = declared(terms, data, scope, maximised=counts == (4,))
    assert problem.implicit(x) == pytest.approx(value(terms, data, scope, x), abs=1e-8 if name in AVERAGES else 1e-6)
    certificate = problem.implicit.certificate(x)
    assert certificate.method == "parametric program" and certificate.lower_residual < 1e-13
    differences = gradient_by_differences(problem.implicit, x, 1e-5)
    np.testing.assert_allclose(problem.implicit.gradient(x), differences, atol=1e-7)


KINKED: dict[str, Callable[[Any], Any]] = {
    "norm1": cp.norm1,
    "huber": lambda y: cp.sum(cp.huber(y, 0.3)),
    "norm": cp.norm,
    "largest": cp.max,
}


@pytest.mark.parametrize("weights", ["uniform", [0.5, 1.5, 2.0]], ids=["uniform", "weights of sum 4"])
@pytest.mark.parametrize("name", KINKED)
def test_constants_of_clients_in_front_of_kinks(name: str, weights: Any) -> None:
    """A level of the whole federation is a weighted sum over clients, whose constants all count: not those of the first alone."""
    x, y = cp.Variable(SIZE, name="x"), cp.Variable(SIZE, name="y")
    own, constants = hf.ClientParameter(name="c", nonneg=True), np.array([0.1, 0.5, 1.2])
    clients = [hf.Client({}, {own: value}) for value in constants]
    problem = hf.Problem(
        hf.Minimize(server=cp.sum_squares(y) + cp.sum(x)),
        hf.ArgMin(y, own * KINKED[name](y) + 0.2 * cp.norm_inf(y) + cp.sum_squares(y - x), scope="federation"),
        federation=hf.Federation(clients, weights=weights),
    )
    share = np.full(3, 1 / 3) if weights == "uniform" else np.array(weights)
    at, z = np.array([0.8, -1.1, 0.45]), cp.Variable(SIZE)
    rest = 0.2 * cp.norm_inf(z) + cp.sum_squares(z - at)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        cp.Problem(cp.Minimize(share @ constants * KINKED[name](z) + share.sum() * rest)).solve(
            solver=cp.CLARABEL, **TIGHT
        )
    assert problem.implicit(at) == pytest.approx(float(np.sum(z.value**2) + at.sum()), abs=1e-7)
    differences = gradient_by_differences(problem.implicit, at, 1e-5)
    np.testing.assert_allclose(problem.implicit.gradient(at), differences, atol=1e-7)


@pytest.mark.parametrize("size", [1e-3, 1e5, 1e7, 1e8])
def test_data_in_other_units_have_the_same_median(size: float) -> None:
    """Interior points call programs empty whose bounds are far from 1; in units of their own they do not."""
    rows, u = np.random.default_rng(3).standard_normal((7, 2)), hf.Sample(2, name="u")

    def median(unit: float) -> np.ndarray:
        x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
        below = hf.ArgMin(y, hf.E(cp.norm(y - u)) + 0.1 * cp.norm(y - x))
        one = hf.Federation([hf.Client({u: unit * rows})])
        return np.ravel(
            hf.Problem(hf.Minimize(clients=cp.sum_squares(y - x)), below, federation=one).implicit.response([0.0, 0.0])
        )

    np.testing.assert_allclose(median(size) / size, median(1.0), atol=1e-9)


@pytest.mark.parametrize("seed", [0, 1, 3])
@pytest.mark.parametrize("times", [1, 3])
def test_a_median_that_is_a_row_of_data(seed: int, times: int) -> None:
    """There the norm's cone ends in its apex: y is the row at which all other forces are no longer than its own share."""
    data = np.random.default_rng(seed).normal(size=(5, 2))
    x, y, d = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.Sample(2, name="d")
    lower = hf.ArgMin(y, hf.E(cp.norm(y - d)) + 0.05 * cp.sum_squares(y - x))
    federation = hf.Federation([hf.Client({d: np.repeat(data, times, axis=0)})])
    implicit = hf.Problem(hf.Minimize(clients=cp.sum_squares(y - 1)), lower, federation=federation).implicit
    pulls = []
    for k in range(5):
        ways = data[k] - np.delete(data, k, axis=0)
        pulls.append(np.linalg.norm((ways / np.linalg.norm(ways, axis=1)[:, None]).sum(axis=0) / 5 + 0.1 * data[k]))
    (row,) = np.flatnonzero(np.array(pulls) <= 0.2)
    assert implicit.response(np.zeros(2)) == pytest.approx(data[row], abs=1e-12)
    assert implicit.gradient(np.zeros(2)) == pytest.approx(np.zeros(2), abs=1e-9)


@pytest.mark.parametrize("scope", ["federation", "client"])
def test_a_lasso_of_more_columns_than_rows_beside_scikit_learn(scope: str) -> None:
    rng, size, rows = np.random.default_rng(0), 320, (25, 18, 30)
    data = [rng.standard_normal((n, size)) for n in rows]
    told = [a[:, :5].sum(axis=1) + 0.1 * rng.standard_normal(len(a)) for a in data]
    x, y, u, t = cp.Variable(name="x"), cp.Variable(size, name="y"), hf.Sample(size, name="u"), hf.Sample(name="t")
    level = hf.ArgMin(y, 0.5 * hf.E(cp.square(t - u @ y)) + cp.exp(x) * cp.norm1(y), scope=scope)
    federation = hf.Federation([hf.Client({u: a, t: b}) for a, b in zip(data, told)], weights="samples")
    implicit = hf.Problem(hf.Minimize(clients=cp.sum_squares(y)), level, federation=federation).implicit

    def answers(at: float) -> list[np.ndarray]:
        fits = [(np.vstack(data), np.concatenate(told))] if scope == "federation" else list(zip(data, told))
        lasso = Lasso(alpha=np.exp(at), fit_intercept=False, tol=1e-15, max_iter=10**6)
        return [lasso.fit(*fit).coef_.copy() for fit in fits]

    shares = np.ones(1) if scope == "federation" else np.array(rows) / sum(rows)

    def value(at: float) -> float:
        return float(sum(share * (each @ each) for share, each in zip(shares, answers(at))))

    assert implicit(-1.0) == pytest.approx(value(-1.0), rel=1e-8)
    slope = (value(-1.0 + 1e-5) - value(-1.0 - 1e-5)) / 2e-5
    assert implicit.gradient(-1.0) == pytest.approx(slope, rel=1e-6)


# --- Laws of whole numbers, and of few values, below kinks.


LONG = {
    "Poisson": (stats.poisson(40.0), 0),
    "negative binomial": (stats.nbinom(5, 0.3), 0),
    "geometric": (stats.geom(0.05), 0),
    "binomial": (stats.binom(2000, 0.5), 800),
    "two-sided": (stats.dlaplace(0.4), -80),
}


@pytest.mark.parametrize("high, weight", [(2.0, 0.05), (9.0, 5e-4), (99.0, 1e-3)])
@pytest.mark.parametrize("law, first", LONG.values(), ids=LONG.keys())
def test_quantiles_of_laws_with_shares_of_any_size(law: Any, first: int, high: float, weight: float) -> None:
    """Shares go down to 1e-16; y by its optimality condition on whole numbers, with SciPy's distribution function."""
    x, y, d = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="d")
    lower = hf.ArgMin(y, hf.E(high * cp.pos(d - y) + cp.pos(y - d)) + weight * cp.square(y - x))
    federation = hf.Federation([hf.Client({d: law})])
    implicit = hf.Problem(hf.Minimize(clients=cp.square(y)), lower, federation=federation).implicit
    values = np.arange(first, first + 1500)
    slope = law.cdf(values) - high * law.sf(values)  # right of each value
    before = np.append(law.cdf(first - 1) - high * law.sf(first - 1), slope[:-1])
    for at in (law.mean(), law.mean() + 2.3 * law.std(), law.mean() - 3.2 * law.std()):
        pulls = 2 * weight * (values - at)
        k = int(np.argmax(slope + pulls >= 0))
        stays = before[k] + pulls[k] <= 0
        expected = values[k] if stays else at - before[k] / (2 * weight)
        assert float(implicit.response(at)) == pytest.approx(expected, abs=1e-11, rel=1e-14)
        assert implicit.gradient(at) == pytest.approx(0.0 if stays else 2 * expected, abs=1e-8)


def test_norms_below_laws_with_shares_of_any_size() -> None:
    """sqrt((y - d)^2 + 1) as a norm that is never 0: a smooth function, whose average has the slope that a root finder sees."""
    law, weight = stats.poisson(40.0), 0.05
    x, y, d = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="d")
    lower = hf.ArgMin(y, hf.E(cp.norm(cp.hstack([y - d, 1.0]))) + weight * cp.square(y - x))
    federation = hf.Federation([hf.Client({d: law})])
    implicit = hf.Problem(hf.Minimize(clients=y), lower, federation=federation).implicit
    k = np.arange(200)
    share = law.pmf(k)
    for at in (2.0, 39.0, 61.0):
        force = lambda v: float(share @ ((v - k) / np.hypot(v - k, 1.0))) + 2 * weight * (v - at)  # noqa: B023, E731
        found = brentq(force, -100.0, 200.0, xtol=1e-14)
        assert float(implicit.response(at)) == pytest.approx(found, rel=1e-12)
        slope = 2 * weight / (float(share @ np.hypot(found - k, 1.0) ** -3.0) + 2 * weight)
        assert implicit.gradient(at) == pytest.approx(slope, rel=1e-10)


@pytest.mark.parametrize("number", [1e-2, 1e-8, 1e-10, 1e-11, 1e-13, 0.0])
def test_norms_that_are_nearly_0_somewhere(number: float) -> None:
    """The slope of sqrt((y - 1)^2 + c^2) balances x - y; as a smooth function where its curvature, 1 / c, is moderate, else as a cone."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    lower = hf.ArgMin(y, cp.norm(cp.hstack([y - 1, number])) + 0.5 * cp.square(y - x))
    implicit = hf.Problem(hf.Minimize(clients=y), lower).implicit
    for at in (3.0, 1.5, 1.0, 1.001, -2.0):
        force = lambda v: (v - 1) / max(np.hypot(v - 1, number), 1e-300) + v - at  # noqa: B023, E731
        assert float(implicit.response(at)) == pytest.approx(brentq(force, -5.0, 5.0, xtol=1e-15), abs=1e-9)


def test_norms_whose_argument_may_be_0_below_laws_are_refused_where_shares_vanish() -> None:
    """Cones of shares of 1e-16 are not solved to rounding, which is said."""
    x, y, d = cp.Variable(name="x"), cp.Variable(2, name="y"), hf.Sample(name="d")
    lower = hf.ArgMin(y, hf.E(cp.norm(y - d * np.array([1.0, 0.3]))) + 0.05 * cp.sum_squares(y - x))
    federation = hf.Federation([hf.Client({d: stats.poisson(40.0)})])
    implicit = hf.Problem(hf.Minimize(clients=cp.sum(y)), lower, federation=federation).implicit
    with pytest.raises(hf.LowerLevelError, match="badly scaled"):
        implicit.response(39.0)


def test_rows_at_one_client_and_a_law_at_another_are_told_whose_they_are() -> None:
    x, y, d = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="d")
    clients = [hf.Client({d: stats.norm()}, name="north"), hf.Client({d: np.ones(3)}, name="south")]
    problem = hf.Problem(
        hf.Minimize(clients=y),
        hf.ArgMin(y, hf.E(cp.square(y - d)) + cp.square(y - x)),
        federation=hf.Federation(clients),
    )
    with pytest.raises(
        hf.DataError, match=r"'d' is a distribution for client 'north' and an array for client 'south'.*rv_discrete"
    ):
        problem.implicit(0.0)


def test_a_law_whose_quantiles_are_not_found_is_refused_at_once() -> None:
    x, y, d = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="d")
    lower = hf.ArgMin(y, hf.E(cp.abs(d - y)) + 0.05 * cp.square(y - x))
    with pytest.raises(hf.DataError, match=r"sample 'd' of .*zipf step by step.*rvs\(size=1000\)"):
        hf.Problem(hf.Minimize(clients=y), lower, federation=hf.Federation([hf.Client({d: stats.zipf(3.0)})])).implicit(1.0)


@pytest.mark.parametrize("share, high", [(1e-9, 1e10), (1e-12, 1e10), (1e-14, 1e8), (1e-9, 1e12)])
def test_a_rare_value_with_a_large_cost(share: float, high: float) -> None:
    """The shares add up to a little more than one, where SciPy knows no quantile; y is where the slope has its root."""
    x, y, d = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="d")
    law = stats.rv_discrete(values=([0.0, 1.0, 100.0], [0.5, 0.5, share]))()
    lower = hf.ArgMin(y, hf.E(high * cp.pos(d - y) + cp.pos(y - d)) + 0.05 * cp.square(y - x))
    federation = hf.Federation([hf.Client({d: law})])
    implicit = hf.Problem(hf.Minimize(clients=cp.square(y)), lower, federation=federation).implicit
    for at in (3.0, 150.0):
        within = at + 10 * (high * share - 1)  # up to 100 the slope is 1 - high share + 0.1 (y - x)
        expected = min(max(within, 1.0), 100.0) if at - 10 <= 100.0 else at - 10
        assert implicit.response(at) == pytest.approx(expected, rel=1e-6)


# --- Terms that are smooth inside their domain alone, where they may end steeply, against roots by bracketing.


RNG = np.random.default_rng(8)
STEEP_ROWS = [RNG.uniform(0.5, 2, (count, 2)) for count in (9, 2, 1)]
CAPS = [3.0, 1.5, 0.8]
PLACES = [np.array([0.3, 0.4]), np.array([1.7, 2.9])]

STEEP: dict[str, tuple[Callable[[Any, Any], Any], Callable[[float, np.ndarray], float]]] = {
    "log": (lambda y, d: -cp.sum(cp.multiply(d, cp.log(y))), lambda y, d: -np.mean(d) / y),
    "log(1 + y)": (lambda y, d: -cp.sum(cp.multiply(d, cp.log(1 + y))), lambda y, d: -np.mean(d) / (1 + y)),
    "log1p": (lambda y, d: -cp.sum(cp.multiply(d, cp.log1p(y))), lambda y, d: -np.mean(d) / (1 + y)),
    "entr": (lambda y, d: -cp.sum(cp.multiply(d, cp.entr(y))), lambda y, d: np.mean(d) * (1 + np.log(y))),
    "kl_div": (lambda y, d: cp.sum(cp.kl_div(y, d)), lambda y, d: np.mean(np.log(y / d))),
    "rel_entr": (lambda y, d: cp.sum(cp.rel_entr(d, y)), lambda y, d: -np.mean(d) / y),
    "inv_pos": (lambda y, d: cp.sum(cp.multiply(d, cp.inv_pos(y))), lambda y, d: -np.mean(d) / y**2),
    "delay": (lambda y, d: cp.sum(cp.inv_pos(d + 3 - y)), lambda y, d: np.mean((d + 3 - y) ** -2.0)),
    "sqrt": (lambda y, d: -cp.sum(cp.multiply(d, cp.sqrt(y))), lambda y, d: -np.mean(d) / (2 * np.sqrt(y))),
    "y ** 1.5": (lambda y, d: cp.sum(cp.multiply(d, cp.power(y, 1.5))), lambda y, d: 1.5 * np.mean(d) * np.sqrt(y)),
    "quad_over_lin": (
        lambda y, d: cp.quad_over_lin(d[0], y[0]) + cp.quad_over_lin(d[1], y[1]),
        lambda y, d: -np.mean(d**2) / y**2,
    ),
}


def steep_problem(term: Any, count: int) -> hf.Problem:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y", nonneg=True)
    d, cap = hf.Sample(2, name="d", nonneg=True), hf.ClientParameter(name="cap", nonneg=True)
    below = hf.E(term(y, d)) + (x - 1) @ y
    return hf.Problem(
        hf.Minimize(clients=cp.sum_squares(y - 1) + cp.sum(x)),
        hf.ArgMin(y, below, [cp.sum(y) <= cap], scope="client"),
        federation=hf.Federation([hf.Client({d: rows}, {cap: size}) for rows, size in zip(STEEP_ROWS[:count], CAPS)]),
    )


def root(rising: Callable[[float], float], low: float, high: float) -> float:
    """Where a rising function is zero; the end that is nearest where it is not."""
    if rising(low) >= 0:
        return low
    return high if rising(high) <= 0 else float(brentq(rising, low, high, xtol=1e-15, rtol=1e-14))


def steep_response(slope: Callable[[float, np.ndarray], float], x: np.ndarray, data: np.ndarray, cap: float) -> np.ndarray:
    def at_price(price: float) -> np.ndarray:
        def entry(c: float, d: np.ndarray) -> float:
            return root(lambda t: slope(t, d) + c - 1 + price, 1e-12, cap)

        return np.array([entry(c, d) for c, d in zip(x, data.T)])

    return at_price(root(lambda price: cap - at_price(price).sum(), 0.0, 1e3))


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("x", PLACES, ids=str)
@pytest.mark.parametrize("name", STEEP)
def test_averages_of_steep_terms(name: str, x: np.ndarray, count: int) -> None:
    term, slope = STEEP[name]
    problem = steep_problem(term, count)

    def of(at: Any) -> float:
        answers = [steep_response(slope, at, data, cap) for data, cap in zip(STEEP_ROWS[:count], CAPS)]
        return float(np.mean([np.sum((y - 1) ** 2) for y in answers]) + at.sum())

    assert problem.implicit(x) == pytest.approx(of(x), abs=1e-10)
    differences = gradient_by_differences(of, x, 1e-4)
    np.testing.assert_allclose(problem.implicit.gradient(x), differences, rtol=2e-6, atol=2e-6)
    assert problem.implicit.certificate(x).method == "parametric program"


# --- Many owners, each with an answer of its own.


DRAW = np.random.default_rng(5)
UNEVEN = [DRAW.standard_normal((count, 3)) for count in (7, 1, 13)]
LIMITED = np.array([[1.0, 2, 0], [0, 1, 1]])
CURVES = [rows.T @ rows / len(rows) for rows in UNEVEN]
AT = [np.array([0.3, 0.3, 0.3]), np.array([1.0, -0.4, 0.7])]


def over_polyhedron(scope: str) -> hf.Problem:
    x, y, u = cp.Variable(3, name="x"), cp.Variable(3, name="y"), hf.Sample(3, name="u")
    below = hf.E(cp.square(u @ (y - x))) + 0.1 * cp.sum_squares(y)
    return hf.Problem(
        hf.Minimize(clients=hf.E(cp.square(u @ y - 1)) + cp.sum(x)),
        hf.ArgMin(y, below, [y >= 0, LIMITED @ y <= 1], scope=scope),
        federation=hf.Federation([hf.Client({u: rows}) for rows in UNEVEN]),
    )


def answer(curve: np.ndarray, x: np.ndarray) -> np.ndarray:
    rows, limits = np.vstack([-np.eye(3), LIMITED]), np.array([0.0, 0, 0, 1, 1])
    return quadratic_answer(2 * curve + 0.2 * np.eye(3), -2 * curve @ x, rows, limits)


def enumerated(scope: str, x: np.ndarray) -> float:
    shared = answer(np.mean(CURVES, axis=0), x)
    answers = [answer(curve, x) if scope == "client" else shared for curve in CURVES]
    return float(np.mean([np.mean((rows @ y - 1) ** 2) for rows, y in zip(UNEVEN, answers)]) + x.sum())


@pytest.mark.parametrize("scope", ["client", "federation"])
@pytest.mark.parametrize("x", AT, ids=str)
def test_averages_over_polyhedra(scope: str, x: np.ndarray, engine: Engine) -> None:
    problem = engine(over_polyhedron(scope))

    def of(at: Any) -> float:
        return enumerated(scope, at)

    near(problem.implicit(x), of(x))
    near(problem.implicit.gradient(x), gradient_by_differences(of, x, 1e-4), 1e-8)


@pytest.mark.parametrize("scope", ["client", "federation"])
def test_ties_that_data_resolve(scope: str, engine: Engine) -> None:
    """Below only y_1 + y_2 + y_3 counts: of the answers, the one that fits a client's data best is meant."""
    x, y, u = cp.Variable(name="x"), cp.Variable(3, name="y"), hf.Sample(3, name="u")
    problem = engine(
        hf.Problem(
            hf.Minimize(clients=hf.E(cp.square(u @ y - 1))),
            hf.ArgMin(y, cp.square(cp.sum(y) - x), [y >= -1, y <= 1], scope=scope, selection="optimistic"),
            federation=hf.Federation([hf.Client({u: rows}) for rows in UNEVEN]),
        )
    )
    z = cp.Variable(3)
    losses = [cp.sum_squares(rows @ z - 1) / len(rows) for rows in UNEVEN]
    within = [z >= -1, z <= 1, cp.sum(z) == 0.5]
    asked = [sum(losses) / 3] if scope == "federation" else losses
    best = [cp.Problem(cp.Minimize(loss), within).solve(solver=cp.CLARABEL) for loss in asked]
    near(problem.implicit(0.5), np.mean(best), 1e-7)


A = np.random.default_rng(5).uniform(0.2, 1.0, size=(3, 4))
COST = np.array([1.0, 1.7, 1.2, 2.3])


def recourse(demand: np.ndarray, quadratic: bool) -> hf.Problem:
    """Demands of samples are met at least cost; a linear program for each, or a quadratic one."""
    x, y, d = cp.Variable(name="x"), cp.Variable(4, name="y"), hf.Sample(3, name="d")
    cost = COST @ y + (0.3 * cp.sum_squares(y) if quadratic else 0.0)
    below = hf.ArgMin(y, cost, [A @ y >= d - x, y >= 0, y <= 9], scope="sample")
    federation = hf.Federation([hf.Client({d: part}) for part in np.split(demand, [1, 3])])
    return hf.Problem(hf.Minimize(clients=hf.E(COST @ y) + cp.square(x)), below, federation=federation)


def by_cvxpy(demand: np.ndarray, quadratic: bool, x: float) -> float:
    values = []
    for d in demand:
        y = cp.Variable(4)
        cost = COST @ y + (0.3 * cp.sum_squares(y) if quadratic else 0.0)
        cp.Problem(cp.Minimize(cost), [A @ y >= d - x, y >= 0, y <= 9]).solve(cp.CLARABEL)
        values.append(float(COST @ np.asarray(y.value)))
    parts = np.split(np.asarray(values), [1, 3])
    return float(np.mean([part.mean() for part in parts])) + x**2


@pytest.mark.parametrize("quadratic", [False, True])
def test_many_samples_have_the_answers_of_each(quadratic: bool) -> None:
    demand = np.random.default_rng(1).uniform(0.3, 1.6, size=(100, 3))
    problem = recourse(demand, quadratic)
    assert float(problem.implicit(0.1)) == pytest.approx(by_cvxpy(demand, quadratic, 0.1), rel=1e-6)
    step = 1e-6
    ahead, back = (float(problem.implicit(0.1 + way)) for way in (step, -step))
    assert float(problem.implicit.gradient(0.1)) == pytest.approx((ahead - back) / (2 * step), rel=1e-5)


def test_an_owner_without_an_answer_is_named() -> None:
    demand = np.full((60, 3), 1.0)
    demand[40] = 1e3
    with pytest.raises(hf.EmptyLowerSetError, match="client 2, sample 37"):
        recourse(demand, False).implicit(0.1)


def test_a_game_that_cvxpys_first_backend_does_not_know_is_answered_without_its_warning() -> None:
    """2 (u - mean) + a v = 0 and v = 0.2 sum(u), so that sum(u) = sum(mean) / (1 + 0.2 a)."""
    u, v, x = cp.Variable(2, name="u"), cp.Variable(name="v"), cp.Variable(name="x")
    s, a = hf.Sample(2, name="s"), hf.ClientParameter(name="a", nonneg=True)
    game = hf.Nash(
        hf.Player(u, hf.E(cp.sum_squares(u - s)) + a * cp.sum(u) * v, [u <= 5]),
        hf.Player(v, cp.square(v) - 0.4 * cp.sum(u) * v),
        scope="client",
    )
    rows = [np.random.default_rng(k).normal(size=(k, 2)) for k in (2, 5)]
    federation = hf.Federation([hf.Client({s: own}, {a: 0.5}) for own in rows])
    f = hf.Problem(hf.Minimize(clients=cp.sum_squares(u) + cp.square(x)), game, federation=federation).implicit
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        found = f(0.0)
    means = [own.mean(axis=0) for own in rows]
    answers = [mean - 0.25 * 0.2 * mean.sum() / 1.1 for mean in means]
    assert found == pytest.approx(np.mean([answer @ answer for answer in answers]), abs=1e-9)

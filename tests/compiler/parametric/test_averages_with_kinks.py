"""Averages over data of what has kinks in y (hinges, absolute values, norms): values against CVXPY on sums written out, gradients against differences."""

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
from tests.bilevel_case import gradient_by_differences

SIZE = 3
SAME = 0.3  # weight of the quadratic term below
TIGHT = {"tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11}
CVXPY = {"with smooth addends": 1e-6}  # how near CVXPY comes over exponential cones
LOSSES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "hinge": lambda a, b, y: cp.pos(1 - cp.multiply(b, a @ y)),
    "squared hinge": lambda a, b, y: cp.square(cp.pos(1 - cp.multiply(b, a @ y))),
    "absolute": lambda a, b, y: cp.abs(b - a @ y),
    "quantile": lambda a, b, y: cp.maximum(0.3 * (b - a @ y), 0.7 * (a @ y - b)),
    "with smooth addends": lambda a, b, y: cp.pos(1 - cp.multiply(b, a @ y)) + cp.logistic(a @ y) + cp.square(y[0] - b),
    "several kinks": lambda a, b, y: cp.huber(b - a @ y, 0.5) + cp.norm_inf(y - a),
}


def drawn(seed: int, counts: tuple[int, ...], twins: bool = False) -> list[tuple[np.ndarray, np.ndarray]]:
    """Rows (a, b) of each client; with twins some are repeated, and some are zero."""
    rng = np.random.default_rng(seed)
    data = [(rng.standard_normal((rows, SIZE)), rng.standard_normal(rows)) for rows in counts]
    for a, b in data if twins else ():
        a[-1], b[-1] = a[0], b[0]
        a[len(a) // 2] = 0.0
    return data


def declared(
    loss: Callable[[Any, Any, Any], Any],
    data: list[tuple[np.ndarray, np.ndarray]],
    scope: str,
    kind: Any = hf.E,
    maximised: bool = False,
) -> hf.Problem:
    x, y = cp.Variable(SIZE, name="x"), cp.Variable(SIZE, name="y")
    a, b = hf.Sample(SIZE, name="a"), hf.Sample(name="b")
    below, rows = kind(loss(a, b, y)) + SAME * cp.sum_squares(y - x), [y <= 1.2]
    lower = hf.ArgMax(y, -below, rows, scope=scope) if maximised else hf.ArgMin(y, below, rows, scope=scope)
    return hf.Problem(
        hf.Minimize(clients=cp.sum_squares(y - 0.3) + cp.sum(x)),
        lower,
        federation=hf.Federation([hf.Client({a: rows_a, b: rows_b}) for rows_a, rows_b in data]),
    )


def response(losses: list[Any], y: cp.Variable, x: np.ndarray) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        cost = sum(losses) + SAME * cp.sum_squares(y - x)
        cp.Problem(cp.Minimize(cost), [y <= 1.2]).solve(solver=cp.CLARABEL, **TIGHT)
    return np.asarray(y.value)


def value(
    loss: Callable[[Any, Any, Any], Any],
    data: list[tuple[np.ndarray, np.ndarray]],
    scope: str,
    x: np.ndarray,
    summed: bool,
) -> float:
    y = cp.Variable(SIZE)
    written = [[loss(*row, y) / (1 if summed else len(b)) for row in zip(a, b)] for a, b in data]
    if scope == "federation":
        shared = [term / len(data) for terms in written for term in terms]
        answers = [response(shared, y, x)] * len(data)
    else:
        answers = [response(terms, y, x) for terms in written]
    return float(np.mean([np.sum((z - 0.3) ** 2) for z in answers]) + x.sum())


@pytest.mark.parametrize("counts", [(6, 1, 9), (4,)], ids=["uneven", "one client"])
@pytest.mark.parametrize("scope", ["client", "federation"])
@pytest.mark.parametrize("name", LOSSES)
def test_values_and_gradients(name: str, scope: str, counts: tuple[int, ...]) -> None:
    loss, data, x = LOSSES[name], drawn(3, counts), np.array([0.4, -0.9, 1.3])
    summed, maximised = name == "absolute", counts == (4,)
    problem = declared(loss, data, scope, hf.total if summed else hf.E, maximised)
    assert problem.implicit(x) == pytest.approx(value(loss, data, scope, x, summed), abs=CVXPY.get(name, 1e-8))
    assert problem.implicit.certificate(x).method == "parametric program"
    differences = gradient_by_differences(problem.implicit, x, 1e-5)
    np.testing.assert_allclose(problem.implicit.gradient(x), differences, atol=1e-7)


WAYS: dict[str, Callable[[Any, Any, Any], Any]] = {
    "an addend that is the same for all": lambda x, y, a: hf.E(cp.pos(1 - a @ y) + 0.2 * cp.exp(y[1]) + cp.norm1(y)),
    "an addend with x": lambda x, y, a: hf.E(cp.pos(1 - a @ y) + cp.exp(x[0] - y[1])),
    "half": lambda x, y, a: 0.5 * hf.E(cp.pos(1 - a @ y) + cp.logistic(a @ y)),
    "divided": lambda x, y, a: hf.E(cp.pos(1 - a @ y) + cp.logistic(a @ y)) / 2,
    "doubled inside": lambda x, y, a: hf.E(2 * (cp.pos(1 - a @ y) + cp.logistic(a @ y))),
    "scaled by x": lambda x, y, a: cp.multiply(cp.exp(x[0]), hf.E(cp.pos(1 - a @ y) + cp.logistic(a @ y))),
    "half a total": lambda x, y, a: 0.5 * hf.total(cp.pos(1 - a @ y)),
    "a total scaled by x": lambda x, y, a: cp.multiply(cp.exp(x[0]), hf.total(cp.abs(a @ y - 1))),
}


@pytest.mark.parametrize("scope", ["client", "federation"])
@pytest.mark.parametrize("name", WAYS)
def test_ways_of_writing_them(name: str, scope: str) -> None:
    """The answer minimises the sum written out, which other points of a grid around it do not undercut."""
    x, y, a = cp.Variable(SIZE, name="x"), cp.Variable(SIZE, name="y"), hf.Sample(SIZE, name="a")
    rows = drawn(5, (4,))[0][0]
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum_squares(y - 0.3)),
        hf.ArgMin(y, WAYS[name](x, y, a) + SAME * cp.sum_squares(y - x), scope=scope),
        federation=hf.Federation([hf.Client({a: rows})]),
    )
    at = np.array([0.4, -0.9, 1.3])
    certificate = problem.implicit.certificate(at)
    assert certificate.method == "parametric program" and certificate.lower_residual < 1e-13
    answer = np.ravel(problem.implicit.response(at))

    def cost(z: np.ndarray) -> float:
        mean = {"mean": np.mean, "total": np.sum}["total" if "total" in name else "mean"]
        hinge, soft = np.maximum(1 - rows @ z, 0), np.logaddexp(0, rows @ z)
        written = {
            "an addend that is the same for all": hinge + 0.2 * np.exp(z[1]) + np.abs(z).sum(),
            "an addend with x": hinge + np.exp(at[0] - z[1]),
            "half": 0.5 * (hinge + soft),
            "divided": (hinge + soft) / 2,
            "doubled inside": 2 * (hinge + soft),
            "scaled by x": np.exp(at[0]) * (hinge + soft),
            "half a total": 0.5 * hinge,
            "a total scaled by x": np.exp(at[0]) * np.abs(rows @ z - 1),
        }[name]
        return float(mean(written) + SAME * np.sum((z - at) ** 2))

    around = answer + 1e-4 * np.random.default_rng(0).standard_normal((200, SIZE))
    assert min(map(cost, around)) > cost(answer)
    differences = gradient_by_differences(problem.implicit, at, 1e-5)
    np.testing.assert_allclose(problem.implicit.gradient(at), differences, atol=1e-7)


TERMS: dict[str, Callable[[Any], Any]] = {
    "norm1": cp.norm1,
    "huber": lambda y: cp.sum(cp.huber(y, 0.3)),
    "norm": cp.norm,
    "largest": cp.max,
}


@pytest.mark.parametrize("weights", ["uniform", [0.5, 1.5, 2.0]], ids=["uniform", "weights of sum 4"])
@pytest.mark.parametrize("name", TERMS)
def test_constants_of_clients_in_front_of_kinks(name: str, weights: Any) -> None:
    """A level of the whole federation is a weighted sum over clients, whose constants all count: not those of the first alone."""
    x, y = cp.Variable(SIZE, name="x"), cp.Variable(SIZE, name="y")
    own, constants = hf.ClientParameter(name="c", nonneg=True), np.array([0.1, 0.5, 1.2])
    clients = [hf.Client({}, {own: value}) for value in constants]
    problem = hf.Problem(
        hf.Minimize(server=cp.sum_squares(y) + cp.sum(x)),
        hf.ArgMin(y, own * TERMS[name](y) + 0.2 * cp.norm_inf(y) + cp.sum_squares(y - x), scope="federation"),
        federation=hf.Federation(clients, weights=weights),
    )
    share = np.full(3, 1 / 3) if weights == "uniform" else np.array(weights)
    at, z = np.array([0.8, -1.1, 0.45]), cp.Variable(SIZE)
    rest = 0.2 * cp.norm_inf(z) + cp.sum_squares(z - at)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        cp.Problem(cp.Minimize(share @ constants * TERMS[name](z) + share.sum() * rest)).solve(
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


# --- A law of few values is its values as rows, each with its share: below kinks as well, where a law with a density
# has integrals.


FEW = stats.rv_discrete(values=([0, 1, 3], [0.5, 0.2, 0.3]))(), np.repeat([0.0, 1.0, 3.0], [5, 2, 3])
EVEN = stats.randint(0, 5), np.arange(5.0)
RARE = stats.bernoulli(0.125), np.repeat([0.0, 1.0], [7, 1])


def problem(data: list[Any], scope: str, term: Any) -> hf.Problem:
    x, y, d = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="d")
    lower = hf.ArgMin(y, hf.E(term(d - y)) + 0.05 * cp.square(y - x), scope=scope)
    federation = hf.Federation([hf.Client({d: one}) for one in data])
    return hf.Problem(hf.Minimize(clients=cp.square(y - 1) + 0.1 * x), lower, federation=federation)


@pytest.mark.parametrize("scope", ["federation", "client"])
@pytest.mark.parametrize("pairs", [[FEW], [EVEN], [FEW, EVEN, RARE]], ids=["shares", "alike", "three clients"])
@pytest.mark.parametrize(
    "term", [lambda z: 2 * cp.pos(z) + cp.pos(-z), cp.abs, lambda z: cp.huber(z, 0.3)], ids=["pinball", "size", "huber"]
)
def test_it_is_answered_as_rows_are(pairs: list[tuple[Any, np.ndarray]], scope: str, term: Any) -> None:
    laws, rows = zip(*pairs)
    one, other = (problem(list(data), scope, term).implicit for data in (laws, rows))
    for x in (-1.3, 0.35, 1.55, 2.7):
        assert one(x) == pytest.approx(other(x), abs=1e-12)
        assert one.gradient(x) == pytest.approx(other.gradient(x), abs=1e-10)
    kinks, others = (implicit.slice(1.0, radius=2.5).kinks for implicit in (one, other))
    assert [k.t for k in kinks] == pytest.approx([k.t for k in others], abs=1e-9)


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
    with pytest.raises(hf.DataError, match=r"sample 'd' of .*zipf step by step.*rvs\(size=1000\)"):
        problem([stats.zipf(3.0)], "federation", cp.abs).implicit(1.0)


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

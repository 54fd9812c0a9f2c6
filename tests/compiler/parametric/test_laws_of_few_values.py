"""A law of few values is its values as rows, each with its share: below kinks as well, where a law with a density has integrals."""

from __future__ import annotations

import warnings
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
from scipy import stats

import hierfl as hf

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


@pytest.mark.parametrize("law", [stats.poisson(3.0), stats.geom(0.3)], ids=["poisson", "geometric"])
def test_laws_whose_values_never_end(law: Any) -> None:
    """A quantile between regularisation: the gradient is that of values on both sides, and the values left out are told."""
    implicit = problem([law], "federation", lambda z: 2 * cp.pos(z) + cp.pos(-z)).implicit
    for x in (0.4, 1.5, 4.3):
        step = 1e-5
        slope = (implicit(x + step) - implicit(x - step)) / (2 * step)
        assert implicit.gradient(x) == pytest.approx(slope, abs=1e-7)
    y = float(implicit.response(1.5))
    pull, value = 0.1 * (y - 1.5), round(y)
    if abs(y - value) < 1e-12:  # at a value: the pull is between the slopes on its sides
        assert 2 * law.sf(value) - law.cdf(value) <= pull + 1e-12
        assert pull - 1e-12 <= 2 * law.sf(value - 1) - law.cdf(value - 1)
    else:
        assert 2 * law.sf(np.ceil(y) - 1) - law.cdf(np.floor(y)) == pytest.approx(pull, abs=1e-10)


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


def test_norms_below_laws_with_shares_of_any_size_are_refused() -> None:
    """sqrt((y - d)^2 + 1) as a norm: cones of shares of 1e-16 are not solved to rounding, which is said."""
    law, weight = stats.poisson(40.0), 0.05
    x, y, d = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="d")
    lower = hf.ArgMin(y, hf.E(cp.norm(cp.hstack([y - d, 1.0]))) + weight * cp.square(y - x))
    federation = hf.Federation([hf.Client({d: law})])
    implicit = hf.Problem(hf.Minimize(clients=cp.square(y)), lower, federation=federation).implicit
    for at in (2.0, 39.0, 61.0):
        with pytest.raises(hf.LowerLevelError, match="badly scaled"):
            implicit.response(at)


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


def test_a_law_of_one_value_is_that_value() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        implicit = problem([stats.randint(5, 6)], "federation", cp.abs).implicit
        assert implicit.response(-20.0) == pytest.approx(-10.0, abs=1e-12)  # where 0.1 (y - x) is 1
        assert implicit.response(2.0) == pytest.approx(5.0, abs=1e-12)


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

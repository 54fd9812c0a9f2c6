"""The nodes that stand for distributions: which rule a table gets, and its moments against those that SciPy knows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.stats as stats

import hierfl as hf
from hierfl.compiler.data.evaluation_nodes import QUADRATURE, SOBOL, SUM, EvaluationNodes, evaluation_nodes

A, B, PAIR, ONE = hf.Sample(name="a"), hf.Sample(name="b"), hf.Sample(2, name="pair"), hf.Sample(1, name="one")
LISTED = stats.rv_discrete(values=([7.0, 0.5, 1.5], [0.5, 0.2, 0.3]))


def nodes(laws: dict[hf.Sample, Any], points: int = 1024, holder: str = "client 0", table: int = 0) -> EvaluationNodes:
    return evaluation_nodes(laws, points, holder, table)


@pytest.mark.parametrize(
    ("laws", "rule", "size"),
    [
        ({A: stats.bernoulli(0.3)}, SUM, 2),
        ({A: stats.randint(-2, 3)}, SUM, 5),
        ({A: LISTED(loc=1)}, SUM, 3),
        ({A: stats.poisson(5)}, SUM, None),
        ({PAIR: stats.binom([2, 3], 0.5), A: stats.bernoulli(0.1)}, SUM, 24),
        ({A: stats.norm(1, 2)}, QUADRATURE, 1024),
        ({ONE: stats.multivariate_normal([1.0], [[4.0]])}, QUADRATURE, 1024),
        ({A: stats.norm(), PAIR: stats.bernoulli([0.2, 0.7])}, QUADRATURE, 1024),
        ({A: stats.poisson(1e6)}, QUADRATURE, 1024),
        ({A: stats.norm(), B: stats.uniform()}, SOBOL, 1024),
        ({PAIR: stats.expon(scale=[1.0, 2.0])}, SOBOL, 1024),
        ({A: stats.norm(), B: stats.poisson(5)}, SOBOL, 1024),
    ],
)
def test_the_rule_follows_from_the_laws(laws: dict[hf.Sample, Any], rule: str, size: int | None) -> None:
    found = nodes(laws)
    assert found.rule == rule and (size is None or found.weights.size == size)
    assert found.weights.sum() == pytest.approx(1, abs=1e-15) and (found.weights > 0).all()
    for sample, law in laws.items():
        values = found.values[sample.id]
        assert values.shape == (found.weights.size, *sample.shape)
        mean = law.mean() if hasattr(law, "dist") else law.mean
        tolerance = 1e-12 if rule == SUM else 2e-8 if rule == QUADRATURE else 5e-3
        np.testing.assert_allclose(
            found.weights @ values, np.broadcast_to(mean, sample.shape), rtol=tolerance, atol=tolerance
        )


@pytest.mark.parametrize(
    "law",
    [
        stats.norm(1, 2),
        stats.norm(3, 1e-200),
        stats.uniform(-1, 2),
        stats.expon(),
        stats.gamma(0.5),
        stats.beta(0.5, 0.5),
        stats.truncnorm(-1, 2, loc=4),
        stats.lognorm(0.3),
        stats.laplace(),
        stats.weibull_min(1.5),
    ],
    ids=lambda law: f"{law.dist.name}{law.args}",
)
@pytest.mark.parametrize("points", [256, 1024])
def test_moments_of_one_scalar_are_integrated_to_rounding(law: Any, points: int) -> None:
    found = nodes({A: law}, points)
    values = found.values[A.id]
    for power in (1, 2, 3):
        assert found.weights @ values**power == pytest.approx(law.moment(power), rel=1e-9 if points < 1024 else 1e-11)


def test_parties_and_tables_have_scrambles_of_their_own_and_always_the_same() -> None:
    laws = {PAIR: stats.norm([0.0, 1.0], 1.0)}
    first, again = nodes(laws).values[PAIR.id], nodes(laws).values[PAIR.id]
    np.testing.assert_array_equal(first, again)
    for other in (nodes(laws, holder="client 1"), nodes(laws, holder="the server"), nodes(laws, table=1)):
        assert np.abs(other.values[PAIR.id] - first).min() > 0


def test_a_singular_covariance() -> None:
    law = stats.multivariate_normal([1.0, 2.0], [[1.0, 1.0], [1.0, 1.0]], allow_singular=True)
    values = nodes({PAIR: law}).values[PAIR.id]
    np.testing.assert_allclose(values[:, 1] - values[:, 0], 1.0, atol=1e-7)
    assert np.var(values[:, 0]) == pytest.approx(1, rel=0.01)


def test_a_law_whose_far_quantiles_are_unknown_keeps_the_nodes_that_are_known() -> None:
    class Tent(stats.rv_continuous):
        def _cdf(self, x: Any) -> Any:
            return x**2

        def _ppf(self, q: Any) -> Any:
            return np.where(np.asarray(q) < 1, np.sqrt(q), np.inf)

    found = nodes({A: Tent(a=0, b=1)()}, 256)
    assert found.weights.sum() == pytest.approx(1) and found.weights @ found.values[A.id] == pytest.approx(
        2 / 3, rel=1e-9
    )

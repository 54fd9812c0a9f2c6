"""A law of few values is its values as rows, each with its share: below kinks as well, where a law with a density has integrals."""

from __future__ import annotations

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
    chance = 2 * law.sf(np.ceil(y) - 1) - law.cdf(np.floor(y)) if y != round(y) else None
    pull = 0.1 * (y - 1.5)
    if chance is None:  # at a value: the pull is between the slopes on its sides
        assert 2 * law.sf(y) - law.cdf(y) <= pull + 1e-12 and pull - 1e-12 <= 2 * law.sf(y - 1) - law.cdf(y - 1)
    else:
        assert chance == pytest.approx(pull, abs=1e-10)


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


def test_a_value_of_no_share_is_no_tail() -> None:
    law = stats.rv_discrete(values=([-2, 0, 7], [0.0, 0.5, 0.5]))()
    certificate = problem([law], "federation", cp.abs).implicit.certificate(1.0)
    assert certificate.expectation_error < 1e-9 and not certificate.expectation_doubt

"""Ready regressions, against statsmodels, scikit-learn and a search of one number."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize
import statsmodels.api as sm
from sklearn.linear_model import ElasticNet, LogisticRegression

import hierfl as hf

rng = np.random.default_rng(2)
N, P = 200, 3
X = rng.normal(size=(N, P))
SITE = np.repeat(np.arange(4), (110, 60, 27, 3))
SCORE = 0.3 + X @ np.array([0.8, -0.5, 0.0])
features, outcome = hf.Sample(P, name="features"), hf.Sample(name="outcome")


def federation(y: np.ndarray) -> hf.Federation:
    return hf.Federation([hf.Client({features: X[k == SITE], outcome: y[k == SITE]}) for k in range(4)])


@pytest.mark.parametrize(
    ("model", "family"),
    [
        (hf.models.LinearRegression, sm.families.Gaussian()),
        (hf.models.LogisticRegression, sm.families.Binomial()),
        (hf.models.PoissonRegression, sm.families.Poisson()),
    ],
)
def test_without_a_penalty_they_are_the_pooled_fit(model: type, family: object) -> None:
    y = {
        "Gaussian": SCORE + rng.normal(size=N),
        "Binomial": (rng.random(N) < 1 / (1 + np.exp(-SCORE))) * 1.0,
        "Poisson": rng.poisson(np.exp(SCORE)) * 1.0,
    }[type(family).__name__]
    table, peer = (
        model(federation(y), features, outcome).solve(progress=False).inference(),
        sm.GLM(y, sm.add_constant(X), family).fit(),
    )
    assert table.names[0] == "intercept"
    np.testing.assert_allclose(table.estimate, peer.params, atol=1e-6)
    np.testing.assert_allclose(table.standard_error, peer.bse, rtol=1e-5)


def test_an_elastic_net() -> None:
    y = SCORE + rng.normal(size=N)
    model = hf.models.LinearRegression(federation(y), features, outcome, penalty=0.2, l1_ratio=0.5)
    result, peer = (
        model.solve(progress=False),
        ElasticNet(alpha=0.2, l1_ratio=0.5, tol=1e-14, max_iter=100_000).fit(X, y),
    )
    np.testing.assert_allclose(result.x[model.coefficients], peer.coef_, atol=1e-6)


def test_a_penalty_is_chosen_by_rows_that_are_held_back() -> None:
    y = (rng.random(N) < 1 / (1 + np.exp(-SCORE))) * 1.0
    model = hf.models.LogisticRegression(federation(y), features, outcome, penalty="held-out", seed=3)
    tables = [list(client.samples.values()) for client in model.federation.clients]
    learnt, targets = np.vstack([own[0] for own in tables]), np.concatenate([own[1] for own in tables])

    def loss(logarithm: float) -> float:
        fit = LogisticRegression(C=np.exp(-logarithm) / len(targets), tol=1e-12, max_iter=10_000).fit(learnt, targets)
        scores = [own[2] @ fit.coef_[0] + fit.intercept_[0] for own in tables]
        return float(np.mean(np.concatenate([np.logaddexp(0, s) - own[3] * s for s, own in zip(scores, tables)])))  # rows count alike

    best = min(
        (
            scipy.optimize.minimize_scalar(loss, bounds=(low, low + 2), method="bounded", options={"xatol": 1e-9})
            for low in np.arange(-14, 4, 2)
        ),
        key=lambda found: found.fun,
    )
    assert model.solve(progress=False).value == pytest.approx(best.fun, abs=1e-7)


def test_mistakes_are_named() -> None:
    y = SCORE
    with pytest.raises(hf.SettingError, match="'held-out'"):
        hf.models.LinearRegression(federation(y), features, outcome, penalty=-1.0)
    with pytest.raises(hf.SettingError, match="between 0 and 1"):
        hf.models.LinearRegression(federation(y), features, outcome, penalty=1.0, l1_ratio=2.0)
    with pytest.raises(hf.SettingError, match="the outcome is"):
        hf.models.LinearRegression(federation(y), features)
    with pytest.raises(hf.DataError, match="client 0 has .*: the outcome of a LogisticRegression is 0 or 1"):
        hf.models.LogisticRegression(federation(y), features, outcome)
    for model, value in ((hf.models.LogisticRegression, 1.0), (hf.models.PoissonRegression, 0.0)):
        with pytest.raises(hf.DataError, match=f"is {value:g} in every row: a {model.__name__} of it has no estimate"):
            model(federation(np.full(N, value)), features, outcome)
    with pytest.raises(hf.SettingError, match="not list"):
        hf.models.LinearRegression(list(federation(y).clients), features, outcome)
    with pytest.raises(hf.SettingError, match="penalty=None"):
        hf.models.LinearRegression(federation(y), features, outcome, penalty=None)
    one = hf.Federation([hf.Client({features: X[:1], outcome: y[:1]}, name="small")])
    with pytest.raises(hf.DataError, match="client 'small' has 1 row"):
        hf.models.LinearRegression(one, features, outcome, penalty="held-out")

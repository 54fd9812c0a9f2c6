"""Ready regressions, against statsmodels, scikit-learn and a search of one number."""

from __future__ import annotations

from typing import Any

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
    for given, words in (
        ({"penalty": np.ones(3)}, "penalty=.*a number"),
        ({"l1_ratio": "half"}, "l1_ratio='half'"),
        ({"seed": "a"}, "seed='a'"),
        ({"intercept": "no"}, "True or False"),
    ):
        with pytest.raises(hf.SettingError, match=words):
            hf.models.LinearRegression(federation(y), features, outcome, **given)
    table = hf.models.LinearRegression(federation(y + rng.normal(size=N)), features, outcome).solve(progress=False)
    for asked, words in (({"level": "95%"}, "level='95%'"), ({"small_sample": "yes"}, "True or False")):
        with pytest.raises(hf.SettingError, match=words):
            table.inference(**asked)
    for weights in ({"intercept": "a lot"}, "intercept"):
        with pytest.raises(hf.SettingError, match="weights are numbers"):
            table.inference().contrast(weights)  # type: ignore[arg-type]
    one = hf.Federation([hf.Client({features: X[:1], outcome: y[:1]}, name="small")])
    with pytest.raises(hf.DataError, match="client 'small' has 1 row"):
        hf.models.LinearRegression(one, features, outcome, penalty="held-out")


def pooled_cox(design: np.ndarray, time: np.ndarray, event: np.ndarray, entry: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Breslow's fit of pooled rows and its standard errors, by Newton's method on the partial likelihood."""
    b = np.zeros(design.shape[1])
    for _ in range(30):
        hazard, slope, second = np.exp(design @ b), np.zeros_like(b), np.zeros((b.size, b.size))
        for when in np.unique(time[event == 1]):
            risk, dead = (time >= when) & (entry < when), (time == when) & (event == 1)
            total, first = hazard[risk].sum(), design[risk].T @ hazard[risk]
            slope += dead.sum() * first / total - design[dead].sum(axis=0)
            second += dead.sum() * ((design[risk].T * hazard[risk]) @ design[risk] / total - np.outer(first, first) / total**2)
        b -= np.linalg.solve(second, slope)
    return b, np.sqrt(np.diag(np.linalg.inv(second)))


def test_a_baseline_that_all_sites_share_is_the_pooled_fit() -> None:
    """With ties, late entries, a site of three rows, and one without events; at sites too."""
    r = np.random.default_rng(4)
    design = r.normal(size=(90, 2)) * [1.0, 40.0]
    time = np.ceil(10 * r.exponential(np.exp(-design @ [0.5, 0.01]))) + 2.0
    entry = np.where(r.random(90) < 0.3, np.minimum(time - 1.0, r.integers(0, 4, 90)), 0.0)
    event = (r.random(90) < 0.7) * 1.0
    event[3:20] = 0.0
    columns = hf.Sample(2, name="columns"), hf.Sample(name="time"), hf.Sample(name="event"), hf.Sample(name="entry")
    parts = np.split(np.arange(90), [3, 20, 50])
    clients = [hf.Client(dict(zip(columns, (design[own], time[own], event[own], entry[own])))) for own in parts]
    settings = {"time": columns[1], "event": columns[2], "entry": columns[3], "baseline": "shared"}
    model = hf.models.CoxRegression(hf.Federation(clients), columns[0], **settings)
    b, errors = pooled_cox(design, time, event, entry)
    runtime = hf.runtime.Delayed([1.0] * len(parts))
    for given in ({}, {"runtime": runtime}):
        result = model.solve(progress=False, **given)
        table = result.inference(of=model.coefficients, **given)
        np.testing.assert_allclose(table.estimate, b, rtol=1e-7)
        np.testing.assert_allclose(table.standard_error, errors, rtol=1e-7)
        assert len(table.names) == 2 and result.ended == "at rest"
    twice = hf.models.CoxRegression(hf.Federation(clients), columns[0], **settings, times=np.unique(time[event == 1]))
    np.testing.assert_array_equal(twice.times, model.times)


def test_a_time_without_events_is_named_and_moves_nothing_else() -> None:
    """Between events, and after everybody has left."""
    r = np.random.default_rng(5)
    design, time = r.normal(size=(60, 2)), np.ceil(10 * r.random(60))
    event = ((r.random(60) < 0.7) & (time != 4.0)) * 1.0
    columns = hf.Sample(2, name="columns"), hf.Sample(name="time"), hf.Sample(name="event")
    clients = [hf.Client(dict(zip(columns, (design[own], time[own], event[own])))) for own in np.split(np.arange(60), [25])]
    model = hf.models.CoxRegression(
        hf.Federation(clients), columns[0], time=columns[1], event=columns[2], baseline="shared", times=np.arange(1.0, 14.0)
    )
    result, (b, errors) = model.solve(progress=False), pooled_cox(design, time, event, np.zeros(60))
    assert result.status == "runs away" and "log_baseline[3] still grows" in result.standing
    table = result.inference(of=model.coefficients)
    np.testing.assert_allclose(table.estimate, b, rtol=1e-7)
    np.testing.assert_allclose(table.standard_error, errors, rtol=1e-7)
    with pytest.raises(hf.NoGradientError, match=r"do not tell log_baseline\[10\], log_baseline\[11\], log_baseline\[12\] apart"):
        result.inference()


def test_a_category_with_one_outcome_alone_has_no_least_loss() -> None:
    """Its coefficient grows without end, where f has long come to rest."""
    r = np.random.default_rng(3)
    design = np.column_stack([r.normal(size=90), np.arange(90) % 9 == 0]).astype(float)
    seen = np.where(design[:, 1] == 1, 1.0, r.random(90) < 0.5)
    u, v = hf.Sample(2, name="u"), hf.Sample(name="v")
    result = hf.models.LogisticRegression(hf.Federation([hf.Client({u: design, v: seen})]), u, v).solve(progress=False)
    assert result.status == "runs away" and "coefficients[1] still grows" in result.standing


def test_what_a_shared_baseline_cannot_be_is_named() -> None:
    columns = hf.Sample(1, name="dose"), hf.Sample(name="time"), hf.Sample(name="event")
    here = hf.Client({columns[0]: [[0.0], [1.0], [2.0]], columns[1]: [1.0, 2.0, 3.0], columns[2]: [1.0, 1.0, 0.0]}, name="north")
    away = hf.Client({column: hf.Elsewhere(5) for column in columns})

    def model(*clients: hf.Client, **given: Any) -> Any:
        return hf.models.CoxRegression(hf.Federation(list(clients)), columns[0], **{"time": columns[1], "event": columns[2], "baseline": "shared", **given})

    for given, error, words in (
        ({"baseline": "shraed"}, hf.SettingError, "did you mean 'shared'"),
        ({"ties": "efron"}, hf.SettingError, "Breslow's rule"),
        ({"penalty": "held-out"}, hf.SettingError, "Give a number"),
        ({"baseline": "site", "times": [1.0]}, hf.SettingError, "baseline='shared' too"),
        ({"times": ["january"]}, hf.SettingError, "finite numbers, in the unit of 'time'"),
        ({"times": [1.0, np.nan]}, hf.SettingError, "finite numbers"),
        ({"event": None}, hf.SettingError, "a scalar hf.Sample"),
        ({"times": [1.0, 3.0]}, hf.DataError, "'north' has an event at 2.0: events happen at one of times"),
    ):
        with pytest.raises(error, match=words):
            model(here, **given)
    late = hf.Sample(name="entry")
    entered = hf.Client({**here.samples, late: [0.0, 2.0, 1.0]}, name="north")
    with pytest.raises(hf.DataError, match="'north' has in row 1 the entry 2 beside the time 2"):
        model(entered, entry=late)
    with pytest.raises(hf.DataError, match="Give times=, when events happened"):
        model(here, away)
    assert model(here, away, times=[1.0, 2.0, 3.0]).baseline.shape == (3,)

"""Standard errors, against statsmodels, closed forms and differences."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import cvxpy as cp
import numpy as np
import pandas as pd
import pytest
import statsmodels.api as sm

import hierfl as hf

rng = np.random.default_rng(1)
N, P = 240, 3
X = np.column_stack([np.ones(N), rng.normal(size=(N, P - 1))])
SITE = np.concatenate([np.repeat(np.arange(5), (120, 60, 40, 17, 3))])
TRUE = np.array([0.2, 0.5, -0.4])
COUNTS = rng.poisson(np.exp(X @ TRUE)) * 1.0
OUTCOMES = {
    "logistic": (rng.random(N) < 1 / (1 + np.exp(-X @ TRUE))) * 1.0,
    "poisson": COUNTS,
    "linear": X @ TRUE + rng.normal(size=N),
}
features, outcome, beta = hf.Sample(P, name="features"), hf.Sample(name="outcome"), cp.Variable(P, name="beta")
LOSSES = {
    "logistic": cp.logistic(features @ beta) - outcome * (features @ beta),
    "poisson": cp.exp(features @ beta) - outcome * (features @ beta),
    "linear": cp.square(outcome - features @ beta),
}
PEERS = {
    "logistic": lambda y: sm.GLM(y, X, sm.families.Binomial()),
    "poisson": lambda y: sm.GLM(y, X, sm.families.Poisson()),
    "linear": lambda y: sm.OLS(y, X),
}
COVARIANCES: dict[str, Any] = {
    "model": {},
    "robust": {"cov_type": "HC0"},
    "clustered": {"cov_type": "cluster", "cov_kwds": {"groups": SITE, "use_correction": False}},
}


def federation(y: np.ndarray, weights: str = "samples") -> hf.Federation:
    columns = ["one", "dose", "age"]
    rows = [{features: pd.DataFrame(X[k == SITE], columns=columns), outcome: y[k == SITE]} for k in range(5)]
    return hf.Federation([hf.Client(own) for own in rows], weights=weights)


def fitted(term: Any, where: hf.Federation, *constraints: Any) -> hf.Result:
    """The result of minimising a term of clients over a federation."""
    problem = hf.Problem(hf.Minimize(clients=term), constraints=list(constraints), federation=where)
    return problem.solve(progress=False)


@cache
def pooled(family: str) -> hf.Result:
    """The fit of all rows, which most tables here are of."""
    return fitted(hf.E(LOSSES[family]), federation(OUTCOMES[family]))


@pytest.mark.parametrize("family", list(LOSSES))
def test_tables_are_those_of_the_pooled_rows(family: str) -> None:
    y = OUTCOMES[family]
    result = pooled(family)
    for kind, asked in COVARIANCES.items():
        table, peer = result.inference(kind=kind), PEERS[family](y).fit(**asked)
        np.testing.assert_allclose(table.estimate, peer.params, atol=1e-6)
        np.testing.assert_allclose(table.standard_error, peer.bse, rtol=1e-5)
        np.testing.assert_allclose(table.covariance, peer.cov_params(), rtol=1e-4, atol=1e-9)
    corrected = result.inference(kind="clustered", small_sample=True).standard_error
    peer = PEERS[family](y).fit(cov_type="cluster", cov_kwds={"groups": SITE})
    np.testing.assert_allclose(corrected, peer.bse, rtol=1e-5)
    assert table.names == ("one", "dose", "age")


def test_scaled_losses_totals_and_the_lower_level_say_the_same() -> None:
    y, lam = OUTCOMES["logistic"], cp.Variable(name="lam")
    expected = PEERS["logistic"](y).fit().bse
    declared = [
        hf.Problem(hf.Minimize(clients=3 * hf.E(LOSSES["logistic"])), federation=federation(y)),
        hf.Problem(
            hf.Minimize(clients=hf.total(LOSSES["logistic"]) / 7),
            federation=hf.Federation(federation(y).clients, weights=[1.0] * 5),
        ),
        hf.Problem(
            hf.Minimize(clients=cp.square(lam) + 0 * cp.sum(beta)),
            lower=hf.ArgMin(beta, hf.E(LOSSES["logistic"])),
            federation=federation(y),
        ),
    ]
    for problem in declared:
        np.testing.assert_allclose(problem.solve(progress=False).inference().standard_error, expected, rtol=1e-5)


@pytest.mark.parametrize("family", list(LOSSES))
def test_a_likelihood_that_is_maximised_has_the_same_table(family: str) -> None:
    loss = -LOSSES[family] if family == "linear" else outcome * (features @ beta) - LOSSES[family].args[0]
    table = hf.Problem(hf.Maximize(clients=hf.E(loss)), federation=federation(OUTCOMES[family])).solve(progress=False).inference()
    np.testing.assert_allclose(table.standard_error, pooled(family).inference().standard_error, rtol=1e-6)
    assert table.notes == pooled(family).inference().notes


def test_stratified_cox_regression() -> None:
    data = sm.datasets.heart.load_pandas().data  # Stanford's heart transplants: survival, censors, age
    hospital = np.arange(len(data)) % 4
    score, time, event = hf.Sample(1, name="age"), hf.Sample(name="time"), hf.Sample(name="event")
    b = cp.Variable(1, name="b")
    clients = []
    for k in range(4):
        own = data[hospital == k]
        clients.append(hf.Client({score: own[["age"]], time: own["survival"], event: own["censors"]}))
    for ties in ("efron", "breslow"):
        term = hf.Cox(score @ b, time=time, event=event, ties=ties)
        result = fitted(term, hf.Federation(clients, weights="samples"))
        model = sm.PHReg(data["survival"], data[["age"]], status=data["censors"], ties=ties, strata=hospital)
        peer = model.fit(method="newton", tol=1e-12)
        np.testing.assert_allclose(result.inference().estimate, peer.params, atol=1e-6)
        np.testing.assert_allclose(result.inference().standard_error, peer.bse, rtol=1e-5)
    x, time, event = (data[name].to_numpy(float) for name in ("age", "survival", "censors"))
    residual = _lin_wei(x, time, event, hospital, result.inference().estimate[0])
    by_site = [residual[hospital == k].sum() for k in range(4)]
    for kind, parts in (("robust", residual), ("clustered", by_site)):
        expected = peer.bse[0] ** 2 * np.linalg.norm(parts)
        assert result.inference(kind=kind).standard_error[0] == pytest.approx(expected, rel=1e-5)


def _lin_wei(x: np.ndarray, time: np.ndarray, event: np.ndarray, stratum: np.ndarray, b: float) -> np.ndarray:
    """Score residuals of a Cox model of one covariate with Breslow's ties (Lin and Wei, 1989), row by row."""
    residual, hazard = np.zeros(len(x)), np.exp(b * x)
    for j in np.flatnonzero(event):
        at_risk = (time >= time[j]) & (stratum == stratum[j])
        mean = np.average(x[at_risk], weights=hazard[at_risk])
        residual[j] += x[j] - mean
        residual[at_risk] -= hazard[at_risk] * (x[at_risk] - mean) / hazard[at_risk].sum()
    return residual


def test_every_client_has_a_table_of_its_own_in_client_scope() -> None:
    y, lam = OUTCOMES["linear"], cp.Variable(name="lam")
    large = hf.Federation(federation(y).clients[:3])
    level = hf.ArgMin(beta, hf.E(LOSSES["linear"]), scope="client")
    result = hf.Problem(hf.Minimize(clients=cp.square(lam) + 0 * cp.sum(beta)), lower=level, federation=large).solve(
        progress=False
    )
    tables = result.inference()
    for k, table in enumerate(tables):
        peer = sm.OLS(y[k == SITE], X[k == SITE]).fit()
        np.testing.assert_allclose(table.standard_error, peer.bse, rtol=1e-5)


def test_an_entry_of_which_no_row_tells_has_no_standard_error() -> None:
    """A column of zeros beside a penalty: the estimate is the penalty's, and its curvature is no information of rows."""
    rng, row, out = np.random.default_rng(0), hf.Sample(3, name="row"), hf.Sample(name="out")
    rows = rng.normal(size=(40, 3)) * [1, 1, 0]
    client = hf.Client({row: rows, out: rows @ [1, 2, 3] + rng.normal(size=40)}, name="south")
    own = cp.Variable(3, name="own")
    loss = hf.E(cp.square(out - row @ own)) + 0.1 * cp.sum_squares(own - 1)
    table = fitted(loss, hf.Federation([client])).inference()
    assert np.isnan(table.p_value).tolist() == [False, False, True] and "no row tells of own[2]" in str(table)


def test_a_contrast_a_table_and_a_forest_plot() -> None:
    table = pooled("linear").inference()
    difference = table.contrast({"dose": 1, "age": -1})
    row, peer = np.array([0.0, 1.0, -1.0]), sm.OLS(OUTCOMES["linear"], X).fit(use_t=False)
    tested = peer.t_test(row)
    np.testing.assert_allclose(
        [difference.estimate[0], difference.standard_error[0], difference.p_value[0]],
        [tested.effect[0], tested.sd.item(), tested.pvalue.item()],
        rtol=1e-5,
    )
    np.testing.assert_allclose(np.column_stack([table.low, table.high]), peer.conf_int(), rtol=1e-5)
    assert list(table.to_pandas().index) == ["one", "dose", "age"]
    assert table.latex().count(r"\\") == 4
    assert [label.get_text() for label in table.plot().axes[0].get_yticklabels()] == ["one", "dose", "age"]
    with pytest.raises(hf.SettingError, match="'doze' is no entry's name: did you mean 'dose'"):
        table.contrast({"doze": 1})
    with pytest.raises(hf.SettingError, match="2 entries are named 'dose'"):
        replace(table, names=("one", "dose", "dose")).contrast({"dose": 1})


@pytest.mark.parametrize("left", [True, False])
def test_entries_have_the_names_of_the_columns_that_they_multiply(left: bool) -> None:
    pair, both, square = hf.Sample(2, name="pair"), cp.Variable((2, 2), name="both"), hf.Sample((2, 2), name="square")
    table = pd.DataFrame(X[:, 1:], columns=["dose", "age"])
    at = [pd.DataFrame(one, index=["early", "late"], columns=["dose", "age"]) for one in rng.normal(size=(N, 2, 2))]
    answers, own, vector = table.to_numpy() @ rng.normal(size=(2, 2)), hf.Sample(2, name="own"), cp.Variable(2, name="vector")
    where = hf.Federation([hf.Client({pair: table, square: at, own: answers})])
    score = both @ pair if left else pair @ both
    told = fitted(hf.E(cp.sum_squares(own - score)), where).inference(kind="robust")
    assert told.names == tuple(f"both[{a}, {b}]" for a, b in product(*((range(2), table) if left else (table, range(2)))))
    whole = vector @ square if left else square @ vector
    assert fitted(hf.E(cp.sum_squares(own - whole)), where).inference(kind="robust").names == (("early", "late") if left else ("dose", "age"))


def test_a_dispersion_is_that_of_residuals() -> None:
    y, asked = OUTCOMES["linear"], {"match": "no square of residuals"}
    peer = sm.OLS(y, X).fit()
    expected = peer.bse

    def inference(loss: Any, where: hf.Federation) -> Any:
        return fitted(hf.E(loss), where).inference()

    score = features @ beta
    np.testing.assert_allclose(inference(0.5 * cp.square(score - outcome), federation(y)).standard_error, expected, rtol=1e-5)
    for loss in (cp.square(score - outcome), 0.5 * cp.square(score - outcome), cp.square(score - outcome) / 4):
        assert f"residual variance {peer.scale:.6g}, from" in str(inference(loss, federation(y)))
    for loss in (0.5 * cp.square(score) - outcome * score, cp.square(score - outcome) + 0.5 * cp.sum_squares(beta)):
        with pytest.raises(hf.SettingError, **asked):
            inference(loss, federation(y))
    assert "is taken for" in str(inference(cp.huber(score - outcome), federation(y)))
    pair, both = hf.Sample(2, name="pair"), cp.Variable((P, 2), name="both")
    pairs = np.column_stack([y, 2 * y + rng.normal(size=N)])
    table = inference(cp.sum_squares(features @ both - pair), hf.Federation([hf.Client({features: X, pair: pairs})]))
    told, noted = table.standard_error, str(table)
    assert "one for all 2 residuals of a row" in noted
    residuals = pairs - X @ np.linalg.lstsq(X, pairs)[0]
    scale = np.sqrt(np.sum(residuals**2) / (2 * N - 2 * P))
    np.testing.assert_allclose(told.reshape(P, 2)[:, 0], scale * np.sqrt(np.diag(np.linalg.inv(X.T @ X))), rtol=1e-5)


def test_separation_is_told_and_units_do_not_matter() -> None:
    side = (X[:, 1] > 0.2) * 1.0
    with pytest.raises(hf.NoGradientError, match="separation"):
        fitted(hf.E(LOSSES["logistic"]), federation(side)).inference(kind="model")
    y, scale = OUTCOMES["linear"], np.array([1.0, 1e6, 1e-5])
    lam = cp.Variable(name="lam")
    level = hf.ArgMin(beta, hf.E(LOSSES["linear"]))
    rows = hf.Federation([hf.Client({features: X * scale, outcome: y})])
    table = hf.Problem(hf.Minimize(clients=cp.square(lam) + 0 * cp.sum(beta)), lower=level, federation=rows).solve(progress=False).inference()
    np.testing.assert_allclose(table.standard_error * scale, sm.OLS(y, X).fit().bse, rtol=1e-5)


@pytest.mark.parametrize("unit", [1.0, 100.0])
def test_an_entry_that_ran_off_has_no_robust_standard_error(unit: float) -> None:
    """The others are as without the rows that ran off, which pull no more; such an entry's own z would be large."""
    apart = np.arange(N) % 12 == 0
    y = OUTCOMES["logistic"] * ~apart
    row, both = hf.Sample(P + 1, name="row"), cp.Variable(P + 1, name="both")
    rows = np.column_stack([X, apart * unit])
    clients = [hf.Client({row: rows[k::2], outcome: y[k::2]}) for k in range(2)]
    loss = hf.E(cp.logistic(row @ both) - outcome * (row @ both))
    result = fitted(loss, hf.Federation(clients))
    peer = sm.GLM(y[~apart], X[~apart], sm.families.Binomial()).fit(cov_type="HC0")
    for kind in ("robust", "clustered"):
        table = result.inference(kind=kind)
        assert np.isnan(table.standard_error[P]) and "separation" in str(table)
    np.testing.assert_allclose(result.inference(kind="robust").standard_error[:P], peer.bse, rtol=1e-5)


def test_as_many_estimates_as_rows_leave_no_correction_for_few_of_them() -> None:
    clients = [hf.Client({features: X[:P], outcome: OUTCOMES["linear"][:P]})]
    result = fitted(hf.E(LOSSES["linear"]) + 0.1 * cp.sum_squares(beta), hf.Federation(clients))
    slopes = X[:P] * (2 * (X[:P] @ result.x - OUTCOMES["linear"][:P]))[:, None] / P
    inverse = np.linalg.inv(2 * X[:P].T @ X[:P] / P + 0.2 * np.eye(P))
    np.testing.assert_allclose(result.inference(kind="robust").covariance, inverse @ slopes.T @ slopes @ inverse, rtol=1e-5)
    with pytest.raises(hf.SettingError, match="3 rows leave nothing beside 3 estimates"):
        result.inference(kind="robust", small_sample=True)
    fits_exactly = fitted(hf.E(LOSSES["linear"]), hf.Federation(clients))
    with pytest.raises(hf.SettingError, match="3 rows leave nothing beside 3 estimates, and errors of 0"):
        fits_exactly.inference(kind="robust")


def test_what_has_no_normal_law_is_refused_by_name() -> None:
    y = OUTCOMES["linear"]

    def solved(term: Any, *constraints: Any, weights: str = "samples") -> hf.Result:
        return fitted(term, federation(y, weights), *constraints)

    with pytest.raises(hf.NoGradientError, match=r"norm1\(beta\) has kinks"):
        solved(hf.E(LOSSES["linear"]) + 0.1 * cp.norm1(beta)).inference()
    for row, said in ((beta[1] <= 0.1, "<="), (beta[1] == 0.1, "==")):
        with pytest.raises(hf.NoGradientError, match=rf"beta\[1\] {said} 0.1 binds"):
            solved(hf.E(LOSSES["linear"]), row).inference()
    edge = float(pooled("linear").x[1]) - 1e-6  # next to no multiplier: as near as this the edge shows in nothing but the law
    assert "beta[1] <= " in (told := str(solved(hf.E(LOSSES["linear"]), beta[1] <= edge).inference())) and "at the edge of a constraint" in told
    alike = solved(hf.E(LOSSES["linear"]), weights="uniform")
    with pytest.raises(hf.SettingError, match="weights='samples'"):
        alike.inference()
    assert alike.inference(kind="robust").rows == N
    with pytest.raises(hf.NoGradientError, match=r"beta\[0\], beta\[1\]"):
        solved(hf.E(cp.square(outcome - features[0] * (beta[0] + beta[1]))) + 0 * beta[2]).inference()
    assert "penalised" in str(solved(hf.E(LOSSES["linear"]) + 0.1 * cp.sum_squares(beta)).inference())
    with pytest.raises(hf.SettingError, match="a cp.Variable of the problem"):
        pooled("linear").inference(of="beta")
    with pytest.raises(hf.SettingError, match="did you mean 'robust'"):
        pooled("linear").inference(kind="robsut")


def test_a_client_that_weighs_nothing_tells_nothing() -> None:
    rows = [{features: X[k == SITE], outcome: OUTCOMES["logistic"][k == SITE]} for k in range(5)]
    sizes = [float(len(own[outcome])) for own in rows]
    one = fitted(hf.E(LOSSES["logistic"]), hf.Federation([hf.Client(own) for own in rows], weights=[*sizes[:4], 0.0]))
    other = fitted(hf.E(LOSSES["logistic"]), hf.Federation([hf.Client(own) for own in rows[:4]], weights="samples"))
    for kind in COVARIANCES:
        mine, without = one.inference(kind=kind), other.inference(kind=kind)
        np.testing.assert_allclose(mine.covariance, without.covariance, rtol=1e-6)
        assert mine.rows == without.rows


@pytest.mark.parametrize("family", ["logistic", "poisson"])
def test_twice_a_likelihood_is_told(family: str) -> None:
    where = federation(OUTCOMES[family])
    assert "taken for" not in str(pooled(family).inference())
    assert "taken for the negative logarithm of a likelihood" in str(fitted(hf.E(2 * LOSSES[family]), where).inference())

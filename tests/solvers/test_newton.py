"""Newton's method over sites: against a plain-NumPy transcription, pooled fits of statsmodels, and what it refuses."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import statsmodels.api as sm

import hierfl as hf
from hierfl.solvers import Newton
from tests.runtime.lost_answers import losing

SIZES = (3, 40, 1, 60, 96)
START = [-3.0, 0.0, 0.0]
UNITS = np.array([1.0, 100.0, 1e-3])


def rows(seed: int = 0) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Features in very different units, scores of them, and who holds which rows."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(sum(SIZES), 3)) * UNITS
    return features, features @ (np.array([0.6, -0.4, 0.3]) / UNITS), np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])


def federation(features: np.ndarray, outcome: np.ndarray, own: list[np.ndarray], **given: Any) -> tuple[hf.Federation, hf.Sample, hf.Sample]:
    u, v = hf.Sample(features.shape[1], name="features"), hf.Sample(name="outcome")
    return hf.Federation([hf.Client({u: features[part], v: outcome[part]}) for part in own], **given), u, v


def counts(seed: int = 0) -> tuple[hf.models.PoissonRegression, np.ndarray, np.ndarray]:
    """A Poisson model whose first Newton step from 0 is far too long, with its rows."""
    features, score, own = rows(seed)
    outcome = np.random.default_rng(seed + 1).poisson(np.exp(score + 4.0)).astype(float)
    held, u, v = federation(features, outcome, own)
    return hf.models.PoissonRegression(held, u, v), sm.add_constant(features), outcome


def pooled(design: np.ndarray, outcome: np.ndarray) -> Any:
    return sm.GLM(outcome, design, family=sm.families.Poisson()).fit(tol=1e-14, maxiter=100)


def test_the_rounds_are_those_of_a_transcription() -> None:
    """Weights, a term of the server's, steps that are cut and taken."""
    features, score, own = rows()
    features[:, 0] = 1.0
    outcome = np.exp(np.clip(score, -2, 2) + 3.0)
    weights = np.arange(1.0, 6.0)
    held, u, v = federation(features, outcome, own, weights=list(weights))
    b = cp.Variable(3, name="b")
    problem = hf.Problem(hf.Minimize(clients=hf.E(cp.exp(u @ b + 3.0) - v * (u @ b)), server=0.05 * cp.sum_squares(b)), federation=held)
    result = problem.solve(Newton(), rounds=30, evaluate_every=1, x0=np.array(START), progress=False)

    def at(z: np.ndarray) -> tuple[float, np.ndarray, np.ndarray]:
        value, slope, second = 0.05 * z @ z, 0.1 * z, 0.1 * np.eye(3)
        for weight, part in zip(weights, own):
            mean = np.exp(features[part] @ z + 3.0)
            value += weight * np.mean(mean - outcome[part] * (features[part] @ z))
            slope = slope + weight * features[part].T @ (mean - outcome[part]) / len(part)
            second = second + weight * (features[part].T * mean) @ features[part] / len(part)
        return float(value), slope, second

    x, best, d, fall, t = np.array(START), np.inf, np.zeros(3), 0.0, 0.0
    path = [x]  # in the first round clients say how large their curvature is
    for _ in range(len(result.history["objective"]) - 1):
        value, slope, second = at(x + t * d)
        if value <= best - 1e-4 * t * fall + (1e-13 * abs(best) if np.isfinite(best) else 0.0):
            x, best, t = x + t * d, value, 1.0
            size = np.sqrt(np.diag(second))
            values, vectors = np.linalg.eigh(second / np.outer(size, size))
            along = vectors.T @ (slope / size)
            d, fall = -(vectors @ (along / values)) / size, float(along @ (along / values))
        else:
            t /= 4.0
        path.append(x)
    np.testing.assert_allclose(result.trajectory["x"][1:], path, rtol=1e-9, atol=1e-12)
    assert result.ended == "at rest" and any((one == two).all() for one, two in pairwise(path))  # a step was cut


def test_columns_in_any_units_are_fitted_as_the_pooled_rows() -> None:
    model, design, outcome = counts()
    result, expected = model.solve(progress=False), pooled(design, outcome)
    found = np.r_[result.x[model.intercept], result.x[model.coefficients]]
    assert np.abs((found - expected.params) / expected.bse).max() < 1e-6
    assert result.ended == "at rest" and result.settings["chosen"].startswith("f is convex and smooth")
    np.testing.assert_allclose(result.inference().standard_error, expected.bse, rtol=1e-6)


def test_units_are_no_matter_to_sums_under_masks() -> None:
    """Columns of 1e7 and 1e-6, whose squares no sum of 62 bits can carry beside one another."""
    features, score, own = rows()
    features = features / UNITS * np.array([1e7, 1.0, 1e-6])
    outcome = np.random.default_rng(1).poisson(np.exp(score + 1.0)).astype(float)
    model = hf.models.PoissonRegression(*federation(features, outcome, own))
    masked = hf.runtime.Delayed([1.0] * len(SIZES), masks=hf.runtime.PairwiseMasks())
    result, expected = model.solve(runtime=masked, progress=False), pooled(sm.add_constant(features), outcome)
    found = np.r_[result.x[model.intercept], result.x[model.coefficients]]
    assert result.ended == "at rest" and np.abs((found - expected.params) / expected.bse).max() < 1e-6


def test_columns_that_say_the_same_have_a_fit_too() -> None:
    features, score, own = rows()
    twice = np.column_stack([features, features[:, 0]])
    outcome = (np.random.default_rng(2).uniform(size=len(score)) < 1 / (1 + np.exp(-score))).astype(float)
    held, u, v = federation(twice, outcome, own)
    model = hf.models.LogisticRegression(held, u, v)
    result = model.solve(progress=False)
    expected = sm.Logit(outcome, sm.add_constant(features)).fit(disp=0)
    assert abs(result.value + expected.llf / len(outcome)) < 1e-9 and result.ended == "at rest"
    with pytest.raises(hf.NoGradientError, match="do not tell"):
        result.inference()


def test_it_descends_where_f_is_not_convex() -> None:
    x = cp.Variable(2, name="x")
    problem = hf.Problem(hf.Minimize(clients=hf.Function(lambda z: (z[0] ** 2 - 1) ** 2 + 0.5 * (z[1] - z[0]) ** 2 + 0.1 * z[0], x)))
    result = problem.solve(Newton(), x0=np.array([0.05, 0.0]), rounds=40, progress=False)
    slope = np.roots([4.0, 0.0, -4.0, 0.1])
    assert min(abs(result.x[0] - root) for root in slope.real) < 1e-9 and abs(result.x[0]) > 0.5 and abs(result.x[1] - result.x[0]) < 1e-9


def test_a_site_that_misses_rounds_moves_nothing_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds without it are of another objective: values from before are not compared with later ones forever, and there is no rest without it."""
    model, design, outcome = counts()
    losing(monkeypatch, lambda site, asked: asked["message"] == "Asked" and site == "4" and 2 <= asked["round"] < 14)
    runtime = hf.runtime.Delayed([1.0] * len(SIZES))
    result = model.solve(Newton(), runtime=runtime, progress=False)
    expected = pooled(design, outcome)
    found = np.r_[result.x[model.intercept], result.x[model.coefficients]]
    assert np.abs((found - expected.params) / expected.bse).max() < 1e-6
    assert result.history["answered"].tolist()[:14].count(4) == 12 and result.ended == "at rest" and len(result.history["objective"]) > 14


def test_sums_of_sites_say_what_the_rows_say() -> None:
    """Standard errors by messages, of every kind, are those computed where all rows are."""
    model, _, _ = counts()
    runtime = hf.runtime.Delayed([1.0] * len(SIZES))
    here, there = model.solve(progress=False), model.solve(runtime=runtime, progress=False)
    for kind in ("model", "robust", "clustered"):
        expected, found = here.inference(kind=kind), there.inference(kind=kind, runtime=runtime)
        np.testing.assert_allclose(found.covariance, expected.covariance, rtol=1e-9)
        np.testing.assert_allclose(found.estimate, expected.estimate, rtol=1e-9)


def test_what_it_cannot_treat_is_named() -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    level = hf.ArgMin(y, cp.sum_squares(y - x))

    def of(term: Any, **given: Any) -> hf.Problem:
        return hf.Problem(hf.Minimize(clients=term), **given)

    many = cp.Variable(501, name="many")
    for problem, said in (
        (of(cp.sum_squares(y - 1), lower=level), "needs clients' terms of x alone"),
        (of(cp.norm1(x)), "has kinks"),
        (of(cp.sum_squares(x), constraints=[x >= 1]), "there are constraints on x"),
        (of(cp.sum_squares(many)), "501 scalars, more than 500"),
    ):
        with pytest.raises(hf.IncompatibleSolverError, match=said):
            problem.solve(Newton(), progress=False)
    with pytest.raises(hf.SettingError, match="accuracy"):
        Newton(accuracy=0)
    with pytest.raises(hf.SettingError, match="queries='raw'"):
        of(cp.sum_squares(x)).solve(Newton(), queries="raw", progress=False)

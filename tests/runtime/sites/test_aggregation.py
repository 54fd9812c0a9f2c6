"""Robust aggregates against NumPy's and SciPy's, and two liars of ten that the mean believes."""

from __future__ import annotations

import cvxpy as cp
import numpy as np
import pytest
import scipy.stats
from scipy.optimize import minimize
from sklearn.datasets import load_digits

import hierfl as hf
from hierfl.runtime import Delayed
from hierfl.runtime.sites.aggregation import RULES, Aggregation
from hierfl.runtime.sites.letters import Letter
from hierfl.runtime.sites.site import Site
from hierfl.solvers import SCAFFOLD, ZOHFL, FedAvg


@pytest.mark.parametrize("rule", RULES)
def test_the_rules_are_those_of_the_literature(rule: str, x64: None) -> None:
    rng = np.random.default_rng(1)
    values, present = rng.standard_normal((9, 3)), np.array([1, 1, 0, 1, 1, 0, 1, 1, 1], bool)
    there = values[present]  # seven, of whom floor(0.3 * 7) = 2 may lie
    if rule == "median":
        expected = np.median(there, axis=0)
    elif rule == "trimmed mean":
        expected = scipy.stats.trim_mean(there, 2 / 7 + 1e-9, axis=0)
    elif rule == "geometric median":
        expected = minimize(lambda p: np.linalg.norm(there - p, axis=1).sum(), there.mean(axis=0), tol=1e-12).x
    else:
        squares = [sorted(float(np.sum((a - b) ** 2)) for b in there)[1:] for a in there]  # itself left out
        scores = [sum(nearest[: 7 - 2 - 2]) for nearest in squares]
        expected = there[int(np.argmin(scores))]
    found = Aggregation(rule, 0.3).of({"a": values, "b": values[:, 0]}, present)
    np.testing.assert_allclose(found["a"], expected, atol=1e-5 if rule == "geometric median" else 1e-12)
    if rule != "geometric median":
        np.testing.assert_allclose(found["b"], expected[0], atol=1e-12)


@pytest.fixture(scope="module")
def digits() -> hf.Problem:
    """Whether a digit is below five, by logistic regression, at ten clients."""
    images, labels = load_digits(return_X_y=True)
    x, image, sign = cp.Variable(64, name="x"), hf.Sample(64, name="image"), hf.Sample(name="sign")
    data = {image: images / 16.0, sign: np.where(labels < 5, 1.0, -1.0)}
    federation = hf.Federation.split(data, 10, seed=0)
    loss = hf.E(cp.logistic(-cp.multiply(sign, image @ x))) + 0.005 * cp.sum_squares(x)
    return hf.Problem(hf.Minimize(clients=loss), federation=federation)


@pytest.mark.slow
def test_a_fifth_of_the_clients_lies(digits: hf.Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    solver = FedAvg(step_size=0.3, local_steps=5, batch_size=32)
    settings = {"rounds": 40, "seed": 1, "progress": False, "x0": np.zeros(64)}
    honest = digits.solve(solver, **settings)
    answer = Site.answer

    def lying(site: Site, parcel: bytes) -> bytes:
        letter = Letter.from_bytes(answer(site, parcel))
        if letter.words["message"] == "Answered" and site.name in ("3", "8"):
            letter.arrays["payload"] *= -8.0
        return letter.as_bytes()

    monkeypatch.setattr(Site, "answer", lying)
    believed = digits.solve(solver, runtime=Delayed([1.0] * 10), **settings)
    assert believed.value > 1.5 * honest.value
    for rule in RULES:
        found = digits.solve(solver, runtime=Delayed([1.0] * 10, aggregation=rule, adversaries=0.2), **settings)
        assert found.value == pytest.approx(honest.value, rel=0.05), rule
        assert found.settings["aggregation"] == f"{rule}, for up to 20% adversaries"


def test_what_has_no_robust_aggregate_is_refused(digits: hf.Problem) -> None:
    for given, said in (
        ({"aggregation": "medain"}, "median"),
        ({"aggregation": "Krum", "adversaries": 0.5}, "below one half"),
    ):
        with pytest.raises(hf.SettingError, match=said):
            Delayed([1.0], **given)
    with pytest.raises(hf.SettingError, match="choose one of the two"):
        hf.runtime.Dask(aggregation="Krum", asynchronous=True)
    with pytest.raises(hf.IncompatibleSolverError, match="ZOHFL forms no average of moves"):
        digits.solve(ZOHFL(), runtime=Delayed([1.0] * 10, aggregation="median"), rounds=1, progress=False)
    assert Aggregation("Krum", 0.0).require_fitting(digits.compile(), SCAFFOLD(0.1).bind(digits.compile(), 1)) is None

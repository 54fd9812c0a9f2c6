"""Values over distributions: against closed forms, and within a few of the errors that their certificates state."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cvxpy as cp
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats as stats
from scipy.integrate import quad
from scipy.optimize import brentq

import hierfl as hf
from hierfl.solvers import ZOHFL

Term = Callable[[Any], Any]


def mean_of(term: Term, law: Any, shape: tuple[int, ...] | int = (), points: int = 1024) -> hf.Problem:
    x, d = cp.Variable(name="x"), hf.Sample(shape, name="d")
    clients = [hf.Client({d: law})]
    return hf.Problem(
        hf.Minimize(clients=hf.E(term(d)) + cp.square(x)), federation=hf.Federation(clients, points=points)
    )


def loss(mean: float, deviation: float, kink: float) -> float:
    """E max(0, d - kink), d normal."""
    z = (mean - kink) / deviation
    return float(deviation * stats.norm.pdf(z) + (mean - kink) * stats.norm.cdf(z))


LAWS = [stats.gamma(0.5), stats.beta(0.5, 0.5), stats.lognorm(0.3), stats.expon(), stats.weibull_min(1.5), stats.norm(3, 1e-200)]


def kinked(d: Any) -> Any:
    return 2 * jnp.maximum(0, d - 0.5) - jnp.maximum(0, d + 1.3) + jnp.exp(d)


CLOSED_FORMS: dict[
    str, tuple[Term, Any, float, float]
] = {  # term, law, its expectation, the largest error to be stated
    "lognormal": (lambda d: cp.exp(0.3 * d), stats.norm(1, 2), np.exp(0.3 + 0.18), 1e-11),
    "polynomial": (lambda d: cp.power(d, 4) - d, stats.uniform(-1, 3), 2.2 - 0.5, 1e-11),
    "truncated": (cp.square, stats.truncnorm(-1, 1), stats.truncnorm(-1, 1).moment(2), 1e-11),
    "tiny scale": (cp.exp, stats.norm(1, 1e-12), np.e, 1e-11),
    "kink": (lambda d: cp.pos(d - 0.3), stats.norm(1, 2), loss(1, 2, 0.3), 1e-4),
    "kinks of user code": (lambda d: hf.Function(kinked, d, shape=()), stats.norm(), 2 * loss(0, 1, 0.5) - loss(0, 1, -1.3) + np.exp(0.5), 1e-3),
    "jump": (lambda d: hf.Function(lambda d: (d > 0.4) * 1.0, d, shape=()), stats.uniform(), 0.6, 1e-2),
    "end": (lambda d: -cp.sqrt(d), stats.uniform(), -2 / 3, 1e-9),
    "singular end": (lambda d: cp.power(d, -0.5), stats.uniform(), 2.0, 1e-6),
    "two values": (lambda d: cp.exp(3 * d), stats.bernoulli(0.3), 0.7 + 0.3 * np.exp(3), 1e-11),
    "whole numbers": (cp.square, stats.poisson(5), 30.0, 1e-10),
    "growing on whole numbers": (lambda d: cp.exp(0.5 * d), stats.poisson(2), np.exp(2 * (np.exp(0.5) - 1)), 1e-6),
    "slow whole numbers": (cp.square, stats.geom(0.05), (2 - 0.05) / 0.05**2, 1e-9),
    "rare": (lambda d: 1e6 * d, stats.bernoulli(1e-13), 1e-7, 1e-11),
    "listed": (cp.square, stats.rv_discrete(values=([0.5, -2.0], [0.25, 0.75]))(), 0.25 / 4 + 3.0, 1e-11),
    "many whole numbers": (lambda d: d, stats.poisson(1e5), 1e5, 0.1),
    **{f"third moment of {law.dist.name}": (lambda d: cp.power(d, 3), law, law.moment(3), 1e-9) for law in LAWS},
    "infinite variance": (cp.square, stats.t(3), 3.0, 1e-3),
}


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_the_error_of_a_closed_form_is_no_larger_than_stated(name: str) -> None:
    term, law, expected, largest = CLOSED_FORMS[name]
    problem = mean_of(term, law)
    stated = problem.implicit.certificate(0.0).expectation_error
    assert abs(problem.implicit(0.0) - expected) <= 4 * stated <= 4 * largest * (1 + abs(expected))


@pytest.mark.parametrize(
    ("term", "law", "shape"),
    [
        (lambda d: cp.exp(cp.square(d)), stats.norm(), ()),
        (lambda d: cp.exp(cp.exp(d)), stats.norm(0, 2), ()),
        (lambda d: cp.power(d, -1.0), stats.uniform(), ()),
        (cp.square, stats.t(2), ()),
        (lambda d: cp.pos(cp.inv_pos(d) - 50), stats.uniform(), ()),  # 0 at most points
        (cp.exp, stats.expon(), ()),
        (cp.sum_squares, stats.t(2.2, [0.0, 1.0]), 2),
        (lambda d: cp.exp(cp.sum_squares(d)), stats.norm([0.0, 1.0]), 2),
    ],
)
def test_what_may_be_infinite_is_said_once_and_never_averaged_away(term: Term, law: Any, shape: Any) -> None:
    problem = mean_of(term, law, shape)
    with pytest.warns(hf.ExpectationWarning, match="may be infinite"):
        problem.implicit(0.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        certificate = problem.implicit.certificate(0.5)
    assert certificate.expectation_error == np.inf and certificate.expectation_doubt in str(certificate)
    assert "may be infinite" in str(certificate) and "estimated" not in str(certificate)


# --- how often the stated error holds ------------------------------------------------------------------------------------


def test_standard_errors_of_sobol_sequences_hold_nearly_always() -> None:
    """f picks one of sixty clients, whose scrambles are independent."""
    count = 60
    x, s, pick = cp.Variable(count, name="x"), hf.Sample(3, name="s"), hf.ClientParameter(count, name="pick")
    clients = [hf.Client({s: stats.norm([0.0, 1.0, 2.0], 1.0)}, {pick: row}) for row in np.eye(count)]
    term = hf.Function(lambda s: abs(s[0] + s[1] - s[2]) + s[0] * s[1] + (s[1] > 1.3), s, shape=())
    problem = hf.Problem(
        hf.Minimize(clients=hf.E(count * (pick @ x) * term)), federation=hf.Federation(clients, points=256)
    )
    spread, mean = np.sqrt(3.0), -1.0
    expected = 2 * loss(mean, spread, 0) - mean + stats.norm.sf(0.3)
    errors, stated = [], []
    for point in np.eye(count):
        errors.append(problem.implicit(point) - expected)
        stated.append(problem.implicit.certificate(point).expectation_error)
    off = np.abs(errors) / stated
    assert np.mean(off <= 4) >= 0.99 and np.sqrt(np.mean(off**2)) < 1.3
    assert np.sqrt(np.mean(np.square(errors))) > 0.02 * np.mean(
        stated
    )  # stated are errors of this size, not of another


# --- where distributions stand -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scope", ["client", "federation"])
def test_a_lower_mean_over_a_distribution(scope: str) -> None:
    """y_i = (x + E e^d_i) / 2, or with the mean over the clients: f depends on the nodes through y alone, and not linearly."""
    x, y, d = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="d")
    laws = [stats.norm(0.2, 0.5), stats.uniform(-1, 2)]
    problem = hf.Problem(
        hf.Minimize(clients=cp.square(y)),
        lower=hf.ArgMin(y, hf.E(cp.square(y - cp.exp(d))) + cp.square(y - x), scope=scope),
        federation=hf.Federation([hf.Client({d: law}) for law in laws], weights=[0.3, 0.7]),
    )
    means, w = np.array([np.exp(0.2 + 0.125), np.sinh(1.0)]), np.array([0.3, 0.7])
    answers = (0.5 + (means if scope == "client" else np.full(2, w @ means))) / 2
    certificate = problem.implicit.certificate(0.5)
    assert problem.implicit(0.5) == pytest.approx(w @ answers**2, abs=1e-8)
    assert 0 < certificate.expectation_error < 1e-7 and certificate.expectation_rule == "quadrature"


@pytest.mark.parametrize("scope", ["client", "federation"])
@pytest.mark.parametrize("loss", ["logistic", "hinge"])
def test_a_lower_mean_on_the_host(loss: str, scope: str) -> None:
    """A lower level that a solver on the host answers, with all nodes and with parts of them: Newton's method, or CVXPY."""
    x, y, d = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="d")
    term, slope = {
        "logistic": (cp.logistic(y - d), lambda gap: 1 / (1 + np.exp(-gap))),
        "hinge": (cp.pos(y - d), lambda gap: float(gap > 0)),
    }[loss]
    law = stats.norm(1, 2)
    problem = hf.Problem(
        hf.Minimize(clients=cp.square(y - 1)),
        hf.ArgMin(y, hf.E(term) + 0.1 * cp.square(y - x), [y <= 3], scope=scope),
        federation=hf.Federation([hf.Client({d: law})], points=64),
    )

    def pull(at: float) -> float:
        kink = [at] if loss == "hinge" else None
        mean = quad(lambda u: slope(at - u) * law.pdf(u), -20, 22, points=kink, limit=400)[0]
        return float(mean + 0.2 * (at - 0.5))

    expected = (brentq(pull, -9, 9) - 1) ** 2
    stated = problem.implicit.certificate(0.5).expectation_error
    assert abs(problem.implicit(0.5) - expected) <= 4 * stated
    assert 1e-6 < stated < 0.2 if loss == "logistic" else stated < 1e-9  # the law's integrals mend the hinge


def test_tables_of_both_sides_and_several_samples() -> None:
    """Two tables of a client, one of them joint and mixed, and the server's: values add, and so do their errors."""
    x = cp.Variable(name="x")
    a, b, c, s = (hf.Sample(name=name) for name in "abcs")
    held = [{a: stats.norm(1, 2), b: stats.bernoulli(0.3)}, {c: stats.expon(scale=2)}]
    problem = hf.Problem(
        hf.Minimize(
            clients=hf.E(cp.multiply(b, cp.exp(0.2 * a))) + hf.E(cp.square(c - x)),
            server=hf.E(cp.pos(s - x)),
        ),
        federation=hf.Federation([hf.Client(held), hf.Client(held)], server=hf.Client({s: stats.norm()})),
    )
    expected = 0.3 * np.exp(0.2 + 0.08) + (2 - 0.4) ** 2 + 4 + loss(0, 1, 0.4)
    certificate = problem.implicit.certificate(0.4)
    assert abs(problem.implicit(0.4) - expected) <= 4 * certificate.expectation_error < 1e-4
    assert certificate.expectation_rule == "quadrature" and certificate.expectation_points == 1024


def test_a_run_certifies_its_value_and_a_saved_result_keeps_it(tmp_path: Path) -> None:
    problem = mean_of(lambda d: cp.abs(d - 0.3), stats.norm())
    result = problem.solve(ZOHFL(smoothing=0.1), rounds=3, progress=False)
    certificate = result.certificate
    assert (
        abs(result.value - float(result.x) ** 2 - 2 * loss(0, 1, 0.3) - 0.3) <= 4 * certificate.expectation_error < 1e-4
    )
    assert "E by quadrature, 1,024 points: error of f about" in str(result)
    result.save(tmp_path / "result.npz")
    loaded = hf.Result.load(tmp_path / "result.npz").certificate
    assert str(loaded) == str(certificate) and loaded.expectation_error == certificate.expectation_error
    assert problem.reference(restarts=1, progress=False).certificate.expectation_error > 0


def test_an_empty_set_far_out_names_the_place_in_the_law() -> None:
    x, y, d = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="d")
    level = hf.ArgMin(y, cp.square(y - x), [y >= d, y <= 8], scope="sample")
    federation = hf.Federation([hf.Client({d: stats.norm(5, 0.5)})])
    problem = hf.Problem(hf.Minimize(clients=hf.E(y) + 0 * x), lower=level, federation=federation)
    with pytest.raises(hf.errors.EmptyLowerSetError, match=r"client 0, at d = 8\.0\d* in its distribution, is empty"):
        problem.implicit(0.0)



"""Cox's partial likelihood, the worst row and the conditional value at risk, against transcriptions and CVXPY."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest
import scipy.stats

import hierfl as hf
from hierfl.solvers import FedAvg

a, number, time, event, entry = (
    hf.Sample(2, name="a"),
    hf.Sample(name="number"),
    hf.Sample(name="time"),
    hf.Sample(name="event"),
    hf.Sample(name="entry"),
)
w = cp.Variable(2, name="w")
rng = np.random.default_rng(0)
ROWS = [(rng.normal(size=(n, 2)), rng.normal(size=n)) for n in (12, 5, 1)]  # uneven clients, one of a single row
FEDERATION = hf.Federation([hf.Client({a: left, number: right}) for left, right in ROWS])


def partial_likelihood(score: Any, time: Any, event: Any, entry: Any, ties: str) -> float:
    """-log of Cox's partial likelihood over N, risk set by risk set."""
    total = 0.0
    for t in np.unique(time[event == 1]):
        died = (time == t) & (event == 1)
        at_risk, tied = np.exp(score[(time >= t) & (entry < t)]).sum(), np.exp(score[died]).sum()
        for k in range(died.sum()):
            total += np.log(at_risk - (k / died.sum() * tied if ties == "efron" else 0.0))
        total -= score[died].sum()
    return float(total / len(time))


@pytest.mark.parametrize("ties", ["efron", "breslow"])
@pytest.mark.parametrize("late", [False, True])
def test_cox_is_the_partial_likelihood_of_every_client_stratified(ties: str, late: bool) -> None:
    held, clients = [], []
    for count in (30, 7, 1):
        rows = (
            rng.normal(size=(count, 2)),
            rng.integers(2, 7, count) * 1.0,
            rng.integers(0, 2, count) * 1.0,
            rng.integers(0, 2, count) * 1.0,
        )
        held.append(rows)
        clients.append(
            hf.Client(dict(zip((a, time, event, entry), rows)) if late else dict(zip((a, time, event), rows)))
        )
    term = hf.Cox(a @ w, time=time, event=event, entry=entry if late else None, ties=ties)
    problem = hf.Problem(hf.Minimize(clients=term), federation=hf.Federation(clients, weights="samples"))
    at = np.array([0.4, -0.7])

    def expected(at: np.ndarray) -> float:
        each = [partial_likelihood(x @ at, t, e, s if late else np.full(len(t), -1.0), ties) for x, t, e, s in held]
        return float(np.average(each, weights=[len(t) for _, t, _, _ in held]))

    assert problem.implicit(at) == pytest.approx(expected(at), rel=1e-12)
    differences = [(expected(at + 1e-6 * way) - expected(at - 1e-6 * way)) / 2e-6 for way in np.eye(2)]
    np.testing.assert_allclose(problem.implicit.gradient(at), differences, atol=1e-8)


@pytest.mark.parametrize(
    ("made", "of_rows"),
    [
        (hf.Worst, cp.max),
        (lambda loss: hf.CVaR(loss, 0.7), lambda rows: cp.cvar(rows, 0.7) if rows.size > 1 else cp.sum(rows)),
        (lambda loss: hf.CVaR(loss, 0.0), lambda rows: cp.sum(rows) / rows.size),
    ],
)
def test_worst_and_cvar_are_minimised_as_cvxpy_does(made: Any, of_rows: Any) -> None:
    problem = hf.Problem(
        hf.Minimize(clients=made(cp.abs(a @ w - number)) + 0.1 * cp.sum_squares(w)), federation=FEDERATION
    )
    v = cp.Variable(2)
    terms = [of_rows(cp.abs(left @ v - right)) for left, right in ROWS]
    best = cp.Problem(cp.Minimize(sum(terms) / 3 + 0.1 * cp.sum_squares(v))).solve(solver=cp.CLARABEL)
    assert problem.implicit(v.value) == pytest.approx(best, abs=1e-9)
    assert problem.solve(progress=False).value == pytest.approx(best, abs=1e-6)


@pytest.mark.parametrize("scope", ["federation", "client"])
@pytest.mark.parametrize(
    ("made", "of_rows"),
    [
        (hf.Worst, cp.max),
        (lambda loss: 2 * hf.CVaR(loss, 0.5) + hf.E(cp.square(loss)), lambda rows: 2 * _cvar(rows) + cp.sum_squares(rows) / rows.size),
    ],
)
def test_they_are_minimised_below_as_well(made: Any, of_rows: Any, scope: str) -> None:
    lam, weights = cp.Variable(name="lam"), np.array([0.2, 0.3, 0.5])
    problem = hf.Problem(
        hf.Minimize(clients=hf.E(cp.square(a @ w - number)) + 0 * lam),
        lower=hf.ArgMin(w, made(cp.abs(a @ w - number)) + (0.1 + lam) * cp.sum_squares(w), scope=scope),
        constraints=[lam >= 0],
        federation=hf.Federation(FEDERATION.clients, weights=list(weights)),
    )

    def answers(at: float) -> list[np.ndarray]:
        v = [cp.Variable(2) for _ in ROWS] if scope == "client" else [cp.Variable(2)] * len(ROWS)
        costs = [of_rows(cp.abs(x @ own - b)) + (0.1 + at) * cp.sum_squares(own) for own, (x, b) in zip(v, ROWS)]
        cp.Problem(cp.Minimize(weights @ cp.hstack(costs))).solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11)
        return [own.value for own in v]

    def value(at: float) -> float:
        return float(sum(k * np.mean((x @ y - b) ** 2) for k, (x, b), y in zip(weights, ROWS, answers(at))))

    expected = np.array(answers(0.3)) if scope == "client" else answers(0.3)[0]
    np.testing.assert_allclose(problem.implicit.response(0.3), expected, atol=1e-7)
    slope = (value(0.3 + 1e-4) - value(0.3 - 1e-4)) / 2e-4
    assert problem.implicit.gradient(0.3) == pytest.approx(slope, abs=1e-5)


def _cvar(rows: Any) -> Any:
    return cp.cvar(rows, 0.5) if rows.size > 1 else cp.sum(rows)


def test_the_worst_answer_of_a_sample_scope_level() -> None:
    lam, y = cp.Variable(name="lam"), cp.Variable(2, name="y")
    level = hf.ArgMin(y, cp.sum_squares(y - a) + lam * cp.sum(y), scope="sample")
    problem = hf.Problem(
        hf.Minimize(clients=hf.Worst(cp.square(y[0] - number)) + cp.square(lam)), lower=level, federation=FEDERATION
    )
    expected = np.mean([np.max((left[:, 0] - 0.15 - right) ** 2) for left, right in ROWS]) + 0.09
    assert problem.implicit(0.3) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("scope", ["client", "federation", "sample"])
def test_a_condition_on_one_is_every_client_s(scope: str) -> None:
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    level = hf.ArgMin(y, cp.square(y - x) + (0 * number if scope == "sample" else 0), scope=scope)
    federation = hf.Federation([hf.Client({number: [0.0, 1.0, 2.0]}), hf.Client({number: [0.0, 1.0]})])
    problem = hf.Problem(
        hf.Minimize(clients=cp.square(x - 3)), level, [2 * hf.Worst(cp.abs(y - number)) <= 3], federation=federation
    )
    assert problem.implicit.violation(10.0).worst == pytest.approx(17.0)
    assert problem.implicit.violation(1.0).feasible
    if scope == "client":
        assert problem.solve(progress=False).x == pytest.approx(1.5, abs=1e-6)


def test_scores_that_rounding_cannot_tell_apart_have_no_value() -> None:
    rows = {a: [[0.0, 0], [1, 0], [2, 0], [3, 0]], time: [4.0, 3, 2, 1], event: np.ones(4), entry: [0.0, 0, 1, 0]}
    federation = hf.Federation([hf.Client(rows)])
    for term in (hf.Cox(a @ w, time=time, event=event), hf.Cox(a @ w, time=time, event=event, entry=entry)):
        problem = hf.Problem(hf.Minimize(clients=term), federation=federation)
        with pytest.raises(hf.DivergedError, match="NaN"):
            problem.implicit(np.array([300.0, 0.0]))


@pytest.mark.parametrize("made", [hf.CVaR, hf.Worst, hf.E])
def test_a_row_whose_loss_is_not_defined_leaves_none(made: Any) -> None:
    x = cp.Variable(name="x")
    problem = hf.Problem(hf.Minimize(clients=made(-cp.log(x - number))), federation=hf.Federation([hf.Client({number: np.array([0.0, 1, 3])})]))
    with pytest.raises(hf.DivergedError, match="NaN"):
        problem.implicit(2.0)
    assert np.isfinite(problem.implicit(4.0))


def test_they_are_printed_with_their_settings() -> None:
    assert "CVaR(abs(a @ w - number), level=0.7)" in str(
        hf.Problem(hf.Minimize(clients=hf.CVaR(cp.abs(a @ w - number), 0.7)), federation=FEDERATION)
    )
    survival = hf.Federation([hf.Client({a: np.eye(2), time: [1.0, 2.0], event: [1.0, 0.0]})])
    problem = hf.Problem(
        hf.Minimize(clients=hf.Cox(a @ w, time=time, event=event, ties="breslow")), federation=survival
    )
    assert 'Cox(a @ w, time, event, ties="breslow")' in str(problem)
    assert "a sample" in str(problem.explain())


def test_minibatches_are_refused_by_name() -> None:
    problem = hf.Problem(hf.Minimize(clients=hf.Worst(cp.abs(a @ w - number))), federation=FEDERATION)
    with pytest.raises(hf.IncompatibleSolverError, match=r"Worst\(abs\(a @ w - number\)\).*take batch_size=None"):
        problem.solve(FedAvg(batch_size=2), rounds=1, progress=False)
    assert problem.solve(FedAvg(batch_size=None), rounds=3, progress=False).status != "diverged"


@pytest.mark.parametrize(
    ("made", "error", "words"),
    [
        (lambda: hf.Cox(a @ w, time=time, event=event, ties="efrom"), hf.DeclarationError, "did you mean 'efron'"),
        (lambda: hf.Cox(cp.square(a @ w), time=time, event=event), hf.DeclarationError, "not affine"),
        (lambda: hf.Cox(a @ w, time=time), hf.DeclarationError, "needs event="),
        (lambda: hf.Cox(a @ w, time=2 * time, event=event), hf.DeclarationError, "2 . time|time . 2"),
        (lambda: hf.CVaR(cp.abs(a @ w), 1.0), hf.DeclarationError, r"\[0, 1\)"),
        (lambda: hf.Worst(a), hf.DeclarationError, "a number for each sample"),
        (lambda: hf.Worst(hf.E(a @ w)), hf.DeclarationError, "nested"),
        (lambda: hf.Worst(a @ w).value, hf.DeclarationError, "private samples"),
        (
            lambda: _compiled(hf.Cox(a @ w, time=number, event=number), FEDERATION),
            hf.DataError,
            "sample 'number' of client 0",
        ),
        (
            lambda: _compiled(
                hf.Worst(cp.abs(w[0] - number)), hf.Federation([hf.Client({number: scipy.stats.norm()})])
            ),
            hf.DataError,
            "a distribution has none",
        ),
    ],
)
def test_mistakes_are_named(made: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        made()


def _compiled(term: Any, federation: hf.Federation) -> None:
    hf.Problem(hf.Minimize(clients=term), federation=federation).compile()

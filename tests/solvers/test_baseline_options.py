"""What the sources of the baselines say and hierfl does not do by default: epochs, SCAFFOLD's option I, Scaffnew's p."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import jax
import numpy as np
import pytest
import scipy.stats

import hierfl as hf
from hierfl.solvers import SCAFFOLD, FedAvg, FedMSPP, FedProx, FedZO, LocalSGDA, Scaffnew
from tests.draws import fold_in as fold
from tests.draws import permutation
from tests.solvers.test_baselines import (
    BATCH,
    DATA,
    ROUNDS,
    SIZES,
    START,
    STEPS,
    WEIGHTS,
    agrees,
    cohort,
    gradient,
    least_squares,
    minibatch,
    project,
    round_key,
    server_mean,
    solve,
)


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_fedavg_by_epochs_is_the_algorithm_of_its_paper(participation: float, x64: None) -> None:
    """McMahan et al. (2017), Algorithm 1, with E = 2, B = 2, and the weights n_k / m_t."""
    w, iterates = START, [START]
    for r in range(ROUNDS):  # for each round t = 1, 2, ... do
        present, ends = cohort(r, participation), []  # S_t <- (random set of m clients)
        for k in present:  # for each client k in S_t in parallel do: ClientUpdate(k, w_t)
            own, shuffles = w, fold(round_key(r), k)
            for epoch in range(2):  # for each local epoch i from 1 to E do
                order = permutation(fold(fold(shuffles, epoch), 0), SIZES[k])
                batches = [order[first : first + BATCH] for first in range(0, SIZES[k], BATCH)]
                assert sorted(order) == list(range(SIZES[k]))  # B <- (split P_k into batches of size B)
                for batch in batches:  # for batch b in B do
                    own = own - 0.3 * gradient(own, DATA[k][batch])  # w <- w - eta grad l(w; b)
            ends.append(own)
        w = np.average(ends, axis=0, weights=[SIZES[k] for k in present])  # w_{t+1} <- sum of (n_k / m_t) w_{t+1}^k
        iterates.append(w)
    solver = FedAvg(0.3, participation=participation, absent="renormalise", batch_size=BATCH, epochs=2)
    agrees(least_squares(weights="samples"), solver, iterates)


@pytest.mark.parametrize("participation", [1.0, 0.5])
def test_scaffold_by_option_one(participation: float, x64: None) -> None:
    """Karimireddy et al. (2020), Algorithm 1, option I: c_i+ <- g_i(x), by a pass over the client's data; clients weighted."""
    x, c, own = START, np.zeros(2), [np.zeros(2) for _ in DATA]
    iterates = [x]
    for r in range(ROUNDS):
        present, moves, changes = cohort(r, participation), [], []
        for i in present:
            y, key = x, fold(round_key(r), i)
            for k in range(STEPS[i]):
                y = y - 0.1 * (gradient(y, minibatch(fold(key, k), i)) - own[i] + c)
            new = gradient(x, DATA[i])  # 10: c_i+ <- (i) g_i(x)
            moves.append(y - x)
            changes.append(new - own[i])
            own[i] = new
        x = project(x + server_mean(present, moves))
        c = c + len(present) / 3 * server_mean(present, changes)
        iterates.append(x)
    solver = SCAFFOLD(0.1, STEPS, participation=participation, batch_size=BATCH, option="I")
    agrees(least_squares(0.35, weights=WEIGHTS), solver, iterates)


def least_squares_and_a_square(**federation: Any) -> hf.Problem:
    """f_i = E (u'x - 1)^2 / 2 + 0.1 ||x||^2 / 2: mu and L are the ends of the spectra of the U_i'U_i / n_i + 0.1 I."""
    x, u = cp.Variable(2, name="x"), hf.Sample(2, name="u")
    term = hf.E(0.5 * cp.square(u @ x - 1)) + 0.05 * cp.sum_squares(x)
    return hf.Problem(
        hf.Minimize(clients=term), federation=hf.Federation([hf.Client({u: rows}) for rows in DATA], **federation)
    )


def test_scaffnew_by_theory_takes_the_sources_probability(x64: None) -> None:
    spectra = [np.linalg.eigvalsh(rows.T @ rows / len(rows) + 0.1 * np.eye(2)) for rows in DATA]
    p = np.sqrt(min(s[0] for s in spectra) / max(s[-1] for s in spectra))
    by_theory = solve(least_squares_and_a_square(), Scaffnew(0.1, "theory", batch_size=BATCH))
    given = solve(least_squares_and_a_square(), Scaffnew(0.1, float(p), batch_size=BATCH))
    np.testing.assert_allclose(by_theory.x, given.x, atol=1e-7)
    assert "probability='theory'" in by_theory.settings["solver"]


def test_scaffnew_by_theory_needs_both_constants() -> None:
    with pytest.raises(hf.SettingError, match="the modulus mu of strong convexity .* none could be proved"):
        solve(least_squares(), Scaffnew(0.1, "theory"))  # the last client has one row for two unknowns
    x, u = cp.Variable(2, name="x"), hf.Sample(2, name="u")
    law = scipy.stats.norm(np.zeros(2), 1)
    random = hf.Problem(
        hf.Minimize(clients=hf.E(cp.square(u @ x)) + cp.sum_squares(x)), federation=hf.Federation([hf.Client({u: law})])
    )
    with pytest.raises(hf.SettingError, match="none could be proved"):
        random.solve(Scaffnew(0.1, "theory"), rounds=1, progress=False)
    kinks = hf.Problem(hf.Minimize(clients=cp.norm1(x) + cp.sum_squares(x)), federation=hf.Federation([hf.Client({})]))
    with pytest.raises(hf.SettingError, match="the smoothness L .* none could be proved"):
        kinks.solve(Scaffnew(0.1, "theory"), rounds=1, progress=False)


def test_the_server_makes_as_many_epochs_of_its_own_rows(x64: None) -> None:
    """Full batches: an epoch is a gradient step; batches of 3 of five rows are two, of rows that are in one batch each."""
    x, u = cp.Variable(2, name="x"), hf.Sample(2, name="u")
    loss, rows = hf.E(0.5 * cp.square(u @ x - 1)), np.random.default_rng(3).standard_normal((5, 2))
    alone = hf.Problem(
        hf.Minimize(server=loss), federation=hf.Federation([hf.Client({u: DATA[0]})], server=hf.Client({u: rows}))
    )
    w = START
    for _ in range(2 * 3):
        w = w - 0.1 * gradient(w, rows)
    full = alone.solve(FedAvg(0.1, batch_size=None, epochs=3), rounds=2, x0=START, progress=False)
    np.testing.assert_allclose(full.x, w, atol=1e-12)
    key, w = fold(fold(fold(fold(jax.random.key(0), 0), 2**31 - 3), 0), 0), START
    order = permutation(key, 5)
    for batch in (order[:3], order[3:]):
        w = w - 0.1 * gradient(w, rows[batch])
    batches = alone.solve(FedAvg(0.1, batch_size=3, epochs=1), rounds=1, x0=START, progress=False)
    np.testing.assert_allclose(batches.x, w, atol=1e-12)


def test_what_has_no_epochs() -> None:
    for make in (FedMSPP, FedZO, LocalSGDA):
        with pytest.raises(hf.SettingError, match=f"epochs=2: {make.__name__} has no passes"):
            make(epochs=2)
    with pytest.raises(hf.SettingError, match="epochs and local_steps: give one of the two"):
        FedProx(local_steps=3, epochs=2)
    with pytest.raises(hf.SettingError, match="epochs=0"):
        FedAvg(epochs=0)
    with pytest.raises(hf.SettingError, match="option='III'"):
        SCAFFOLD(option="III")
    x, u = cp.Variable(2, name="x"), hf.Sample(2, name="u")
    law = hf.Federation([hf.Client({u: scipy.stats.norm(np.zeros(2), 1)})])
    problem = hf.Problem(hf.Minimize(clients=hf.E(cp.square(u @ x - 1))), federation=law)
    with pytest.raises(
        hf.IncompatibleSolverError, match="epochs are passes over rows, but a client holds a distribution"
    ):
        problem.solve(FedAvg(epochs=1), rounds=1, progress=False)

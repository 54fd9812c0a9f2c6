"""The single-level baselines against plain-NumPy transcriptions of their papers, and on problems with known answers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import cvxpy as cp
import jax
import numpy as np
import pytest
import scipy.stats

import hierfl as hf
from hierfl.solvers import SCAFFOLD, Decay, FedAvg, FedMSPP, FedProx, FedZO, HierFAVG, LocalSGDA, Scaffnew
from tests.draws import directions, permutation, split, tosses
from tests.draws import fold_in as fold
from tests.solvers.replayed import BATCH, DATA, ROUNDS, SIZES, START, cohort, minibatch, round_key, solve

STEPS, WEIGHTS = [3, 1, 2], np.array([0.5, 0.2, 0.3])


def least_squares(bound: float | None = None, data: Any = DATA, **federation: Any) -> hf.Problem:
    """f_i = E (u'x - 1)^2 / 2, on x <= bound."""
    x, u = cp.Variable(2, name="x"), hf.Sample(2, name="u")
    return hf.Problem(
        hf.Minimize(clients=hf.E(0.5 * cp.square(u @ x - 1))),
        constraints=[] if bound is None else [x <= bound],
        federation=hf.Federation([hf.Client({u: rows}) for rows in data], **federation),
    )


def agrees(problem: hf.Problem, solver: Any, iterates: list[np.ndarray], **settings: Any) -> hf.Result:
    """A run whose every iterate is the transcription's, to rounding."""
    result = solve(problem, solver, evaluate_every=1, **settings)
    np.testing.assert_allclose(result.trajectory["x"], iterates, rtol=0, atol=1e-12)
    return result


def sent_per_client(result: hf.Result) -> tuple[float, float]:
    """Scalars down and up, of one participant in one round."""
    sent = result.communication
    return tuple(sent[f"scalars_{way}_per_round"] / sent["participants_per_round"] for way in ("down", "up"))


def gradient(x: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return rows.T @ (rows @ x - 1) / len(rows)


def project(x: np.ndarray) -> np.ndarray:
    return np.minimum(x, 0.35)


def server_mean(present: list[int], values: list[np.ndarray]) -> np.ndarray:
    """Unbiased for sum_i w_i v_i when the participants are drawn uniformly."""
    return 3 / len(present) * sum(WEIGHTS[i] * v for i, v in zip(present, values))


participations = pytest.mark.parametrize("participation", [0.5, 1.0])


def averaged(participation: float, final: Callable[[np.ndarray, int, int, jax.Array], np.ndarray]) -> list[np.ndarray]:
    """x <- P_X [x + mean of (x_i - x)], x_i = final(x, round, client, client's key): what FedAvg's relatives share."""
    iterates = [START]
    for r in range(ROUNDS):
        present, x = cohort(r, participation), iterates[-1]
        moves = [final(x, r, i, fold(round_key(r), i)) - x for i in present]
        iterates.append(project(x + server_mean(present, moves)))
    return iterates


@participations
def test_fedavg_agrees_with_its_paper(participation: float, x64: None) -> None:
    """McMahan et al. (2017), Algorithm 1."""

    def final(x: np.ndarray, r: int, i: int, key: jax.Array) -> np.ndarray:
        for t in range(STEPS[i]):
            x = x - 0.3 / np.sqrt(r + 1) * gradient(x, minibatch(fold(key, t), i))
        return x

    solver = FedAvg(Decay(0.3, 0.5), STEPS, participation, batch_size=BATCH)
    weighted = least_squares(0.35, weights=2 * WEIGHTS)  # the mean's weights, made to sum to one
    result = agrees(weighted, solver, averaged(participation, final))
    assert sent_per_client(result) == (2, 2)


@participations
def test_fedprox_agrees_with_its_paper(participation: float, x64: None) -> None:
    """Li et al. (2020), Algorithm 2, the subproblem min f_i(w) + mu/2 ||w - w^t||^2 by SGD."""

    def final(x: np.ndarray, r: int, i: int, key: jax.Array) -> np.ndarray:
        w = x
        for t in range(STEPS[i]):
            w = w - 0.2 * (gradient(w, minibatch(fold(key, t), i)) + 0.7 * (w - x))
        return w

    solver = FedProx(0.2, STEPS, participation, batch_size=BATCH, proximal=0.7)
    result = agrees(least_squares(0.35, weights=WEIGHTS), solver, averaged(participation, final))
    assert sent_per_client(result) == (2, 2)


@participations
def test_fedmspp_agrees_with_its_paper(participation: float, x64: None) -> None:
    """Yuan and Li (2022): the *exact* minimiser of the minibatch's proximal subproblem, by a linear system."""

    def final(x: np.ndarray, r: int, i: int, key: jax.Array) -> np.ndarray:
        rows, eta = minibatch(key, i), 0.5 / np.sqrt(r + 1)
        return np.linalg.solve(rows.T @ rows / BATCH + np.eye(2) / eta, rows.sum(axis=0) / BATCH + x / eta)

    solver = FedMSPP(0.08, 400, participation, batch_size=BATCH, proximal_step=Decay(0.5, 0.5))
    result = agrees(least_squares(0.35, weights=WEIGHTS), solver, averaged(participation, final))
    assert sent_per_client(result) == (2, 2)


@participations
def test_fedzo_agrees_with_its_paper(participation: float, x64: None) -> None:
    """Fang et al. (2022), Algorithm 1 with its estimator: b1 = 2 samples, b2 = 3 directions."""

    def loss(x: np.ndarray, sample: np.ndarray) -> float:
        return 0.5 * (sample @ x - 1) ** 2

    def final(x: np.ndarray, r: int, i: int, key: jax.Array) -> np.ndarray:
        for t in range(STEPS[i]):
            v_key, sample_key = split(fold(key, t))
            samples, estimate = minibatch(sample_key, i), np.zeros(2)
            for v in directions(v_key, 3, 2):
                for sample in samples:
                    estimate += 2 * v / 0.01 * (loss(x + 0.01 * v, sample) - loss(x, sample)) / (BATCH * 3)
            x = x - 0.2 * estimate
        return x

    solver = FedZO(0.2, STEPS, participation, batch_size=BATCH, smoothing=0.01, directions=3)
    result = agrees(least_squares(0.35, weights=WEIGHTS), solver, averaged(participation, final), queries="raw")
    assert sent_per_client(result) == (2, 2)


@participations
@pytest.mark.parametrize("option", ["I", "II"])
def test_scaffold_agrees_with_its_paper(option: str, participation: float, x64: None) -> None:
    """Karimireddy et al. (2020), Algorithm 1; clients weighted."""
    x, c, own = START, np.zeros(2), [np.zeros(2) for _ in DATA]
    iterates = [x]
    for r in range(ROUNDS):
        present, moves, changes = cohort(r, participation), [], []
        for i in present:
            y, key = x, fold(round_key(r), i)
            for k in range(STEPS[i]):
                y = y - 0.1 * (gradient(y, minibatch(fold(key, k), i)) - own[i] + c)
            new = gradient(x, DATA[i]) if option == "I" else own[i] - c + (x - y) / (STEPS[i] * 0.1)  # 12: c_i+
            moves.append(y - x)
            changes.append(new - own[i])
            own[i] = new
        x = project(x + 1.5 * server_mean(present, moves))
        c = c + len(present) / 3 * server_mean(present, changes)
        np.testing.assert_allclose(c, sum(w * one for w, one in zip(WEIGHTS, own)), atol=1e-12)
        iterates.append(x)
    solver = SCAFFOLD(0.1, STEPS, server_step=1.5, participation=participation, batch_size=BATCH, option=option)
    result = agrees(least_squares(0.35, weights=WEIGHTS), solver, iterates)
    assert sent_per_client(result) == (4, 4)


EDGES = {"north": [0, 2], "south": [1]}
UNEVEN = np.arange(ROUNDS)[:, None] % 3 >= np.arange(3)  # one, two and all three clients in turn


@pytest.mark.parametrize("participation", [0.5, 1.0, UNEVEN])
def test_hierfavg_agrees_with_its_paper(participation: Any, x64: None) -> None:
    """Liu et al. (2020), Algorithm 1; where an edge has nobody in a round, it has no part in it."""
    x, iterates, tiers = START, [START], np.zeros(2, int)
    for r in range(ROUNDS):
        present = cohort(r, participation)
        there = {name: [i for i in own if i in present] for name, own in EDGES.items() if {*own} & {*present}}
        models = dict.fromkeys(there, x)
        for t in range(3):  # edge rounds
            key = fold(fold(round_key(r), 2**31 - 1), t)
            for name, own in there.items():
                ends = []
                for i in own:
                    w = models[name]
                    for k in range(STEPS[i]):
                        w = w - 0.3 / np.sqrt(r + 1) * gradient(w, minibatch(fold(fold(key, i), k), i))
                    ends.append(w)
                models[name] = np.average(ends, axis=0, weights=WEIGHTS[own])
        x = project(np.average(list(models.values()), axis=0, weights=[WEIGHTS[own].sum() for own in there.values()]))
        iterates.append(x)
        tiers += [3 * 2 * len(present), 2 * len(there)]
    solver = HierFAVG(Decay(0.3, 0.5), STEPS, 3, participation, batch_size=BATCH)
    result = agrees(least_squares(0.35, weights=WEIGHTS, edges=EDGES), solver, iterates)
    assert f"between edges and the cloud {tiers[1]} down, {tiers[1]} up" in str(result)
    sent = result.communication
    assert result.history["scalars"].sum() == 2 * tiers.sum()
    assert [sent["scalars_down"], sent["cloud_scalars_down"]] == tiers.tolist()
    assert [sent["scalars_up"], sent["cloud_scalars_up"]] == tiers.tolist()


def test_hierfavg_with_one_edge_round_is_fedavg(x64: None) -> None:
    """The mean of means is the mean; an edge whose clients weigh nothing has no say."""
    weights = [0.5, 0.0, 0.5]
    tree, settings = least_squares(weights=weights, edges=EDGES), {"local_steps": 4, "batch_size": None}
    found = solve(tree, HierFAVG(0.2, edge_rounds=1, **settings))
    np.testing.assert_allclose(found.x, solve(least_squares(weights=weights), FedAvg(0.2, **settings)).x, atol=1e-14)


@pytest.mark.parametrize("bound", [None, 0.35])
def test_scaffnew_agrees_with_its_paper(bound: float | None, x64: None) -> None:
    """Mishchenko et al. (2022), Algorithm 2, coin by coin; with constraints Algorithm 1 and its proximal operator."""
    gamma, p = 0.1, 0.3
    x, h, iterates = [START] * 3, [np.zeros(2) for _ in DATA], [START]
    for r in range(ROUNDS):
        coins = [False] * (tosses(fold(round_key(r), 2**31 - 1), p) - 1) + [True]
        for t, coin in enumerate(coins):
            batches = [minibatch(fold(fold(round_key(r), i), t), i) for i in range(3)]
            ahead = [x[i] - gamma * (gradient(x[i], batches[i]) - h[i]) for i in range(3)]
            if coin:
                mean = sum(w * (a - gamma / p * own) for w, a, own in zip(WEIGHTS, ahead, h))
                x = [mean if bound is None else np.minimum(mean, bound)] * 3
            else:
                x = ahead
            h = [h[i] + p / gamma * (x[i] - ahead[i]) for i in range(3)]
        iterates.append(x[0])
    problem = least_squares(bound, weights=3 * WEIGHTS)
    result = agrees(problem, Scaffnew(gamma, p, batch_size=BATCH), iterates)
    assert sent_per_client(result) == (3, 2)  # x and the number of steps down, a move up


# --- known answers ----------------------------------------------------------------------------------------------------

MATRICES = [rows.T @ rows / len(rows) for rows in DATA]
VECTORS = [rows.mean(axis=0) for rows in DATA]


def test_fedzo_does_not_look_outside_x_unless_asked_to() -> None:
    x = cp.Variable(name="x")
    loss = hf.BlackBox(lambda z: float(z) if z <= 1 else 1e6, x)
    problem = hf.Problem(hf.Minimize(clients=-loss), constraints=[x <= 1, x >= -9])
    norms = [solve(problem, FedZO(1e-9, 1), x0=1.0, queries=q).history["gradient_norm"] for q in ("projected", "raw")]
    assert norms[0].max() < 10 < norms[1].max()


def test_the_server_is_one_more_client() -> None:
    x, u = cp.Variable(2, name="x"), hf.Sample(2, name="u")
    target = np.array([1.0, -1.0])
    problem = hf.Problem(
        hf.Minimize(server=hf.E(cp.sum_squares(x - u)), clients=cp.sum_squares(x)),
        federation=hf.Federation([hf.Client(), hf.Client()], server=hf.Client({u: np.tile(target, (6, 1))})),
    )
    for solver, error in ((FedAvg(0.1), 1e-6), (FedProx(0.1), 1e-6), (FedZO(Decay(0.2, 1.0)), 1e-2)):
        np.testing.assert_allclose(solve(problem, solver, rounds=100).x, target / 2, atol=error, err_msg=str(solver))


def test_maximisation_and_distributions() -> None:
    x, s = cp.Variable(2, name="x"), hf.Sample(2, name="s")
    problem = hf.Problem(
        hf.Maximize(clients=hf.E(-cp.sum_squares(x - s))),
        federation=hf.Federation([hf.Client({s: scipy.stats.norm(t, 0.1)}) for t in (0.0, 2.0)]),
    )
    result = solve(problem, FedAvg(Decay(0.1, 0.5), 2), rounds=100)
    np.testing.assert_allclose(result.x, 1, atol=0.05)
    assert result.history["objective"][-1] == pytest.approx(-2, abs=0.2)


def test_clients_that_make_no_steps_keep_their_control_variates() -> None:
    """Only the first client ever works: its own optimum is where SCAFFOLD stops, as c_2 = c_3 = 0 stay."""
    result = solve(least_squares(), SCAFFOLD(0.3, [5, 0, 0], batch_size=None), rounds=3000)
    np.testing.assert_allclose(result.x, np.linalg.solve(MATRICES[0], VECTORS[0]), atol=1e-6)


# --- refusals and settings --------------------------------------------------------------------------------------------

FIRST_ORDER = [FedAvg(), FedProx(), FedMSPP(), SCAFFOLD(), Scaffnew(), HierFAVG()]
every = pytest.mark.parametrize("solver", [*FIRST_ORDER, FedZO()], ids=lambda s: type(s).__name__)
first_order = pytest.mark.parametrize("solver", FIRST_ORDER, ids=lambda s: type(s).__name__)


@pytest.fixture(scope="module", params=["federation", "client", "sample"])
def hierarchical(request: pytest.FixtureRequest) -> hf.Problem:
    x, y, u = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.Sample(2, name="u")
    mean = (lambda e: e) if request.param == "sample" else hf.E
    answer = hf.ArgMin(y, mean(cp.sum_squares(y - x - u)), scope=request.param)
    upper = hf.E(cp.sum_squares(x + y - u))
    return hf.Problem(hf.Minimize(clients=upper), lower=answer, federation=hf.Federation([hf.Client({u: DATA[0]})] * 2))


@every
def test_lower_levels_are_refused_with_the_solvers_that_fit(solver: Any, hierarchical: hf.Problem) -> None:
    scope = hierarchical.lower[0].scope
    fitting = {"federation": "FedRZO or Impl", "client": "ZOHFL, FedRZO or Impl", "sample": "ZOHFL or FedRZO"}[scope]
    with pytest.raises(
        hf.IncompatibleSolverError, match=f"{type(solver).__name__} .*{scope} scope.*y\\(x\\).*{fitting}"
    ):
        solve(hierarchical, solver)


@first_order
def test_black_boxes_are_refused(solver: Any) -> None:
    x = cp.Variable(2, name="x")
    problem = hf.Problem(hf.Minimize(clients=hf.BlackBox(lambda z: float(np.sum(z)), x) + cp.sum_squares(x)))
    with pytest.raises(hf.IncompatibleSolverError, match="BlackBox.*FedZO"):
        solve(problem, solver)


@every
def test_private_constraints_are_refused(solver: Any) -> None:
    x, cap = cp.Variable(2, name="x"), hf.ClientParameter(name="cap")
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum_squares(x)),
        constraints=[x <= cap],
        federation=hf.Federation([hf.Client(parameters={cap: 1.0}), hf.Client(parameters={cap: 2.0})]),
    )
    with pytest.raises(hf.IncompatibleSolverError, match="private constraints.*FedRZO"):
        solve(problem, solver)


def test_hierfavg_needs_edges() -> None:
    with pytest.raises(hf.IncompatibleSolverError, match="HierFAVG averages at edges.*Federation.tree"):
        solve(least_squares(), HierFAVG())


@pytest.mark.parametrize("solver", [SCAFFOLD(), Scaffnew(), HierFAVG()], ids=lambda s: type(s).__name__)
def test_some_methods_have_no_place_for_a_server_term(solver: Any) -> None:
    x = cp.Variable(2, name="x")
    problem = hf.Problem(hf.Minimize(server=cp.sum_squares(x), clients=cp.sum_squares(x - 1)))
    with pytest.raises(hf.IncompatibleSolverError, match="server.*FedAvg"):
        solve(problem, solver)


def test_a_cohort_of_clients_without_weight_moves_nothing() -> None:
    x, target = cp.Variable(name="x"), hf.ClientParameter(name="a")
    clients = [hf.Client(parameters={target: value}) for value in (1.0, 2.0, 50.0)]
    problem = hf.Problem(
        hf.Minimize(clients=0.5 * cp.square(x - target)), federation=hf.Federation(clients, weights=[1, 1, 0])
    )
    solver = FedAvg(0.1, 1, participation=0.3, batch_size=None, absent="renormalise")
    result = problem.solve(solver, rounds=200, progress=False)
    assert np.isfinite(result.value) and 1.0 <= result.x <= 2.0


# --- What the sources of the baselines say and hierfl does not do by default: epochs, SCAFFOLD's option I, Scaffnew's
# p.


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


def test_scaffnew_by_theory_takes_no_cube_of_a_negative_x_for_convex() -> None:
    x = cp.Variable(name="x")
    cubic = hf.Problem(hf.Minimize(clients=cp.power(x, 3) + cp.square(x)), constraints=[x >= -1, x <= 1])
    with pytest.raises(hf.SettingError, match="strong convexity"):
        cubic.solve(Scaffnew(0.1, "theory"), rounds=1, progress=False)


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


def test_a_server_of_more_rows_makes_more_steps_which_no_tolerance_is_for() -> None:
    """x rests where the weights are those of steps, 10 and 1, not at 0: a tolerance was met there, at a gradient of 3."""
    x, u = cp.Variable(1, name="x"), hf.Sample(1, name="u")
    clients, server = [hf.Client({u: np.ones((4, 1))})] * 2, hf.Client({u: -np.ones((40, 1))})
    loss = hf.E(cp.sum_squares(x - u))
    problem = hf.Problem(hf.Minimize(server=loss, clients=loss), federation=hf.Federation(clients, server=server))
    with pytest.raises(hf.SettingError, match="local steps that differ between parties"):
        problem.solve(FedAvg(0.001, batch_size=4, epochs=1), rounds=20, tolerance=1e-3, progress=False)
    even = problem.solve(FedAvg(0.1, batch_size=None, epochs=1), rounds=100, tolerance=1e-6, progress=False)
    assert even.ended == "gradient tolerance reached" and abs(even.x[0]) < 1e-6


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

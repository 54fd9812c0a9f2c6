"""FedBiO, SimFBO, ShroFBO and FedMBO against plain-NumPy transcriptions, at solutions known by formula, and what all nested methods refuse."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any

import cvxpy as cp
import jax
import numpy as np
import pytest

import hierfl as hf
from hierfl.errors import IncompatibleSolverError, SettingError, TheoryWarning
from hierfl.solvers import Decay, FedBiO, FedMBO, FedNest, SimFBO
from tests.draws import fold_in as fold
from tests.draws import row_numbers, split, words
from tests.solvers.replayed import BATCH, DATA, ROUNDS, START, cohort, minibatch, round_key, server_key, solve

STEPS, WEIGHTS = [2, 1, 3], np.array([0.5, 0.2, 0.3])
Point = tuple[np.ndarray, np.ndarray, np.ndarray]


def ridge(data: Any = DATA, weights: Any = WEIGHTS) -> hf.Problem:
    """Above: E (u'y - 1)^2 / 2 + E (u'x)^2 / 2 + x'y / 4 + |x|^2 / 2; below: E (u'(y - x))^2 / 2 + |y|^2 / 2."""
    x, y, u = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.Sample(2, name="u")
    above = hf.E(0.5 * cp.square(u @ y - 1) + 0.5 * cp.square(u @ x)) + 0.25 * (x @ y) + 0.5 * cp.sum_squares(x)
    return hf.Problem(
        hf.Minimize(clients=above),
        lower=hf.ArgMin(y, hf.E(0.5 * cp.square(u @ (y - x))) + 0.5 * cp.sum_squares(y)),
        federation=hf.Federation([hf.Client({u: rows}) for rows in data], weights=weights),
    )


def below_y(x: np.ndarray, y: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return rows.T @ (rows @ (y - x)) / len(rows) + y


def below_yy(p: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return rows.T @ (rows @ p) / len(rows) + p


def below_xy(p: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return -rows.T @ (rows @ p) / len(rows)


def above_x(x: np.ndarray, y: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return rows.T @ (rows @ x) / len(rows) + 0.25 * y + x


def above_y(x: np.ndarray, y: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return rows.T @ (rows @ y - 1) / len(rows) + 0.25 * x


def agrees(solver: Any, iterates: list[np.ndarray]) -> None:
    result = solve(ridge(), solver, evaluate_every=1)
    np.testing.assert_allclose(result.trajectory["x"], iterates, rtol=0, atol=1e-12)


def directions(at: Point, i: int, key: jax.Array, t: int) -> Point:
    """Of x, y and u at a client's local step t; each of the five terms has rows of its own."""
    x, y, u = at
    y_key, x_key, hessian_key, slope_key = split(key, 4)
    upper_key, lower_key = split(x_key)
    return (
        above_x(x, y, minibatch(upper_key, i, t)) - below_xy(u, minibatch(lower_key, i, t)),
        below_y(x, y, minibatch(y_key, i, t)),
        below_yy(u, minibatch(hessian_key, i, t)) - above_y(x, y, minibatch(slope_key, i, t)),
    )


participations = pytest.mark.parametrize("participation", [0.5, 1.0])


@participations
def test_fedbio_agrees_with_a_plain_loop(participation: float, x64: None) -> None:
    """Local steps of all three variables from the same point, and then their means."""
    steps = eta, gamma, tau = 0.05, 0.2, 0.1
    at: Point = (START, np.zeros(2), np.zeros(2))
    iterates = [START]
    for r in range(ROUNDS):
        present, ends = cohort(r, participation), []
        for i in present:
            own, key = at, fold(round_key(r), i)
            for t in range(STEPS[i]):
                own = tuple(z - size * d for z, size, d in zip(own, steps, directions(own, i, key, t)))
            ends.append(own)
        at = tuple(np.average(z, axis=0, weights=WEIGHTS[present]) for z in zip(*ends))
        iterates.append(at[0])
    agrees(FedBiO(eta, gamma, tau, STEPS, participation, BATCH), iterates)


@participations
@pytest.mark.parametrize("normalise", [True, False], ids=["ShroFBO", "SimFBO"])
def test_simfbo_agrees_with_a_plain_loop(participation: float, normalise: bool, x64: None) -> None:
    """Clients add up their directions; the server, with steps of its own, takes the sums or their normalised form, and projects v."""
    eta, gamma, radius = (0.05, 0.2, 0.1), (0.06, 0.3, 0.08), 0.2
    at: Point = (START, np.zeros(2), np.zeros(2))
    iterates, lengths = [START], []
    for r in range(ROUNDS):
        present = cohort(r, participation)
        p = {i: 3 / len(present) * WEIGHTS[i] for i in present}  # n / |C| times p_i
        q = {}
        for i in present:
            own, sums, key = at, [np.zeros(2)] * 3, fold(round_key(r), i)
            for k in range(STEPS[i]):
                d = directions(own, i, key, k)
                sums = [s + one for s, one in zip(sums, d)]
                own = tuple(z - size * one for z, size, one in zip(own, eta, d))
            q[i] = sums
        if normalise:
            rho = sum(p[i] * STEPS[i] for i in present)
            together = [rho * sum(p[i] * q[i][n] / STEPS[i] for i in present) for n in range(3)]
        else:
            together = [sum(p[i] * q[i][n] for i in present) for n in range(3)]
        x, y, v = (z - size * one for z, size, one in zip(at, gamma, together))
        lengths.append(np.linalg.norm(v))
        at = x, y, min(1.0, radius / np.linalg.norm(v)) * v
        iterates.append(x)
    assert max(lengths) > radius  # v was projected
    server = [g / e for g, e in zip(gamma, eta)]
    agrees(SimFBO(*eta, STEPS, participation, BATCH, server, normalise, radius), iterates)


@participations
def test_fedmbo_agrees_with_a_plain_loop(participation: float, x64: None) -> None:
    """Minibatch steps on y, a product of Hessians of drawn clients for each participant, and a minibatch step on x."""
    alpha, beta, calls, terms, given = 0.05, 0.2, 2, 4, 8.0
    x, y, iterates = START, np.zeros(2), [START]
    for r in range(ROUNDS):
        present = cohort(r, participation)
        n, w = len(present), WEIGHTS[present] / WEIGHTS[present].sum()
        smooth = given * max(1.0, n * w.max())
        inner_key, path_key, last_key = split(server_key(r), 3)
        for t in range(calls):
            key = fold(inner_key, t)
            y = y - beta * sum(w[a] * below_y(x, y, minibatch(fold(key, i), i)) for a, i in enumerate(present))
        first, steps, length_key, deal_key = split(path_key, 4)
        lengths = row_numbers(length_key, n, terms)
        p = [terms / smooth * n * w[a] * above_y(x, y, minibatch(fold(first, i), i)) for a, i in enumerate(present)]
        for k in range(max(lengths)):
            key = fold(steps, k)
            for a, (i, j) in enumerate(zip(present, np.argsort(words(fold(deal_key, k), n, 0, 0)))):
                if k < lengths[j]:  # client i works on path j
                    p[j] = p[j] - n * w[a] / smooth * below_yy(p[j], minibatch(fold(key, i), i))
        h = np.zeros(2)
        for a, (i, j) in enumerate(zip(present, np.argsort(words(fold(deal_key, terms), n, 0, 0)))):
            upper_key, lower_key = split(split(fold(last_key, i))[0])
            h += w[a] * (above_x(x, y, minibatch(upper_key, i)) - below_xy(p[j], minibatch(lower_key, i)))
        x = x - alpha * h
        iterates.append(x)
    agrees(FedMBO(alpha, beta, calls, terms, given, participation, BATCH), iterates)


# --- known answers ----------------------------------------------------------------------------------------------------

MATRICES = [rows.T @ rows / len(rows) for rows in DATA]
VECTORS = [rows.mean(axis=0) for rows in DATA]


def optimum(weights: np.ndarray) -> np.ndarray:
    """The minimiser of the quadratic f(x), y(x) = (C + I)^-1 C x."""
    c, b = np.tensordot(weights, MATRICES, 1), weights @ VECTORS
    m = np.linalg.solve(c + np.eye(2), c)
    return np.linalg.solve(m.T @ c @ m + c + 0.25 * (m + m.T) + np.eye(2), m.T @ b)


@pytest.mark.filterwarnings("ignore::hierfl.errors.LowerLevelWarning")
@pytest.mark.parametrize(
    "solver",
    [SimFBO(normalise=True), FedBiO(), FedMBO(Decay(0.3, 0.7), neumann=30)],
    ids=lambda solver: type(solver).__name__,
)
def test_unlike_clients_end_at_the_optimum(solver: Any) -> None:
    """With all rows and hierfl's own settings the steps are exact at last; FedMBO's are in the mean."""
    accuracy = 0.02 if isinstance(solver, FedMBO) else 1e-6
    result = solve(ridge(), solver, rounds=600)
    np.testing.assert_allclose(result.x, optimum(WEIGHTS), atol=accuracy)


def hypergradients(data: Any, weights: Any, count: int) -> np.ndarray:
    """FedMBO's estimates at START and y = 0, (count, 2): the moves of an all but still run."""
    solver = FedMBO(1e-9, 1e-15, neumann=3, lipschitz=5.0)
    result = solve(ridge(data, weights), solver, rounds=count, evaluate_every=1)
    return -np.diff(result.trajectory["x"], axis=0) / 1e-9


@pytest.mark.filterwarnings("ignore::hierfl.errors.LowerLevelWarning")
def test_fedmbo_estimates_the_gradient_without_bias(x64: None) -> None:
    """Its mean over draws is that of the series' first terms, of unequal weights too."""
    found = hypergradients(DATA, WEIGHTS, 400)
    c, b, smooth = np.tensordot(WEIGHTS, MATRICES, 1), WEIGHTS @ VECTORS, 5.0 * max(1.0, 3 * WEIGHTS.max())
    factor = np.eye(2) - (c + np.eye(2)) / smooth
    p = sum(np.linalg.matrix_power(factor, k) for k in range(3)) @ (0.25 * START - b) / smooth
    expected, error = c @ START + START + c @ p, found.std(axis=0) / np.sqrt(len(found))
    assert np.all(np.abs(found.mean(axis=0) - expected) < 4 * error)


# --- refusals and settings --------------------------------------------------------------------------------------------

NESTED = [FedNest(), FedBiO(), SimFBO(), FedMBO()]
every = pytest.mark.parametrize("solver", NESTED, ids=lambda solver: type(solver).__name__)


def declared(kind: str) -> hf.Problem:
    x, y, u = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.Sample(2, name="u")
    federation = hf.Federation([hf.Client({u: DATA[0]})], hf.Client({u: DATA[1]}))
    square, term = hf.E(cp.sum_squares(y - x - u)), hf.E(cp.sum_squares(y - u))
    own = cp.sum_squares(y - u)
    rough = cp.sum(cp.exp(y - x)) + square
    made: dict[str, Callable[[], tuple[Any, Any]]] = {
        "one level": lambda: (hf.Minimize(clients=hf.E(cp.sum_squares(x - u))), None),
        "client": lambda: (hf.Minimize(clients=cp.sum_squares(y)), hf.ArgMin(y, square, scope="client")),
        "sample": lambda: (hf.Minimize(clients=hf.E(cp.sum_squares(y - x))), hf.ArgMin(y, own, scope="sample")),
        "constraints": lambda: (hf.Minimize(clients=term), hf.ArgMin(y, square, [y >= 0])),
        "server": lambda: (hf.Minimize(clients=term, server=cp.sum_squares(x)), hf.ArgMin(y, square)),
        "equilibrium": lambda: (hf.Minimize(clients=term), hf.Equilibrium(y, 2 * y - x)),
        "black box": lambda: (hf.Minimize(clients=hf.BlackBox(lambda z: float(np.sum(z)), y)), hf.ArgMin(y, square)),
        "rough": lambda: (hf.Minimize(clients=term), hf.ArgMin(y, rough)),
    }
    objective, level = made[kind]()
    return hf.Problem(objective, level, federation=federation)


@every
@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("one level", "no lower level.*FedAvg"),
        ("client", "client scope.*ZOHFL"),
        ("sample", "sample scope.*FedRZO"),
        ("constraints", "constraints.*FedRZO"),
        ("server", "clients alone"),
        ("equilibrium", "equilibrium"),
        ("black box", "BlackBox"),
    ],
)
def test_other_problems_are_refused(solver: Any, kind: str, said: str) -> None:
    with pytest.raises(IncompatibleSolverError, match=f"{type(solver).__name__}.*{said}"):
        declared(kind).solve(solver, rounds=1, progress=False)


def test_what_is_not_proved_is_measured_and_told() -> None:
    """At x = 0 and y = 0 the lower level, sum exp(y - x) + |y - x - u|^2, has the Hessian 3 I."""
    said = {"FedBiO: l, .* is not proved; it is taken to be 6, .* inner_step=", "FedBiO: the lower level is not proved smooth"}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", TheoryWarning)
        result = declared("rough").solve(FedBiO(0.01), rounds=1, progress=False)
    told = [str(one.message) for one in caught if issubclass(one.category, TheoryWarning)]
    assert len(told) == 2 and all(any(re.match(pattern, one) for one in told) for pattern in said)
    given = declared("rough").solve(FedBiO(0.01, 1 / 6), rounds=1, progress=False)
    np.testing.assert_allclose(result.y, given.y, rtol=1e-12)


@pytest.mark.parametrize(
    ("solver", "instead"),
    [(FedMBO(0.01, 0.05), "lipschitz="), (FedBiO(0.01), "inner_step="), (FedNest(), "lipschitz=")],
    ids=lambda part: type(part).__name__,
)
def test_of_data_elsewhere_l_is_asked_for(solver: Any, instead: str) -> None:
    x, y, u = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.Sample(2, name="u")
    level = hf.ArgMin(y, hf.E(cp.sum_squares(y - x - u)))
    holders = hf.Federation([hf.Client({u: hf.Elsewhere(4)})])
    problem = hf.Problem(hf.Minimize(clients=hf.E(cp.sum_squares(y - u))), level, federation=holders)
    with pytest.raises(SettingError, match=f"{type(solver).__name__} needs .*give {instead}"):
        solver.bind(problem.compile(), 1)


@pytest.mark.parametrize("make", [lambda given: FedMBO(0.01, lipschitz=given), lambda given: FedNest(lipschitz=given)])
def test_a_lipschitz_constant_below_the_certified_one_is_told(make: Any) -> None:
    """That of the client whose mean of u u' is largest, plus one of |y|^2 / 2."""
    largest = max(np.linalg.norm(matrix, 2) for matrix in MATRICES) + 1
    with pytest.warns(TheoryWarning, match=f"lipschitz={0.9 * largest:g} is less than the certified {largest:.3g}"):
        solve(ridge(), make(0.9 * largest), rounds=1)

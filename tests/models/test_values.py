"""Each ready declaration's value at random points, against plain NumPy."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pandas as pd
import pytest
import scipy.optimize
import scipy.sparse as sp
import statsmodels.api as sm
from scipy.optimize import minimize
from scipy.sparse.csgraph import dijkstra
from sklearn.linear_model import ElasticNet, LogisticRegression

import hierfl as hf
from hierfl.compiler.data import tables
from hierfl.errors import SettingError
from hierfl.models import (
    ClassificationData,
    RoadNetwork,
    fair_classification,
    heterogeneous_classification,
    hyperparameter_learning,
    relu_network,
    stackelberg_cournot,
    stackelberg_cournot_game,
)
from hierfl.models.relu_network import initial_weights, parity


@pytest.fixture(scope="module")
def data() -> ClassificationData:
    rng = np.random.default_rng(0)
    return ClassificationData(rng.uniform(size=(90, 6)), rng.permutation(np.arange(90) % 3))


def held(problem: hf.Problem, name: str) -> list[np.ndarray]:
    assert problem.federation is not None
    return [next(a for s, a in c.samples.items() if s.name() == name) for c in problem.federation.clients]


def network(x: dict, images: np.ndarray, softplus: float | None) -> np.ndarray:
    named = {v.name(): value for v, value in x.items()}
    into = images @ named["Z"].T
    units = np.maximum(into, 0) if softplus is None else np.log1p(np.exp(softplus * into)) / softplus
    return units @ named["w"]


@pytest.mark.parametrize("softplus", [None, 4.0])
def test_relu_network(data: ClassificationData, softplus: float | None) -> None:
    problem = relu_network(data, clients=3, neurons=5, lam=0.2, scale=7.0, softplus=softplus)
    x = initial_weights(problem, deviation=1.0, seed=3)
    losses = [
        np.mean((targets - network(x, images, softplus)) ** 2)
        for images, targets in zip(held(problem, "image"), held(problem, "target"))
    ]
    regulariser = 0.1 * sum(np.sum(value**2) for value in x.values())
    assert problem.implicit(x) == pytest.approx(3.5 * np.mean(losses) + regulariser, rel=1e-12)


def test_zero_weights_are_stationary_so_the_start_is_random(data: ClassificationData) -> None:
    problem = relu_network(data, clients=3)
    start = initial_weights(problem, seed=1)
    assert all(np.std(value) == pytest.approx(0.1, rel=0.5) for value in start.values())
    value = problem.implicit({v: np.zeros(v.shape) for v in start})
    assert value == pytest.approx(150.0)
    (w,) = (v for v in start if v.name() == "w")
    nudged = {v: np.zeros(v.shape) if v is w else start[v] for v in start}  # w = 0: Z only pays the regulariser
    assert problem.implicit(nudged) - value == pytest.approx(0.005 * sum(np.sum(nudged[v] ** 2) for v in nudged))


@pytest.mark.parametrize("simplex", [True, False])
def test_fair_classification(data: ClassificationData, simplex: bool) -> None:
    problem = fair_classification(data, clients=3, neurons=5, lam=2.0, simplex=simplex)
    x = initial_weights(problem, deviation=1.0, seed=3)
    frequency = np.bincount(data.labels) / len(data.labels)
    losses = np.zeros(3)
    for images, targets, share in zip(held(problem, "image"), held(problem, "target"), held(problem, "share")):
        errors = (targets - network(x, images, None)) ** 2
        for c in range(3):
            losses[c] += np.sum(errors[share[:, c] > 0]) / frequency[c] / len(errors) / 3
    y = project_on_simplex(losses / 2.0) if simplex else losses / 2.0
    np.testing.assert_allclose(problem.implicit.response(x), y, atol=1e-10)
    assert problem.implicit(x) == pytest.approx(losses @ y - np.sum(y**2), rel=1e-10)


def project_on_simplex(point: np.ndarray) -> np.ndarray:
    low, high = point.min() - 1, point.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(point - middle, 0).sum() > 1 else (low, middle)
    return np.maximum(point - (low + high) / 2, 0)


def test_hyperparameter_learning(data: ClassificationData) -> None:
    problem = hyperparameter_learning(data.features, parity(data.labels), clients=3, validation=0.4)
    x = np.array([0.3, 0.05, 1.2])
    training = list(zip(held(problem, "image"), held(problem, "label")))
    validation = list(zip(held(problem, "unseen"), held(problem, "unseen_label")))
    assert [len(v) / (len(v) + len(t)) for (_, v), (_, t) in zip(validation, training)] == pytest.approx(
        [0.4] * 3, abs=0.02
    )

    def lower(y: np.ndarray) -> float:
        return np.mean([np.mean(np.logaddexp(0, -v * (U @ y))) + w * y @ y / 2 for (U, v), w in zip(training, x)])

    y = minimize(lower, np.zeros(6), method="BFGS", options={"gtol": 1e-9}).x
    np.testing.assert_allclose(problem.implicit.response(x), y, atol=1e-6)
    value = np.mean([np.sum(np.logaddexp(0, -v * (U @ y))) for U, v in validation])
    assert problem.implicit(x) == pytest.approx(value, abs=1e-5)


@pytest.mark.slow
def test_stackelberg_cournot() -> None:
    problem = stackelberg_cournot(followers=4, slope=0.7, clients=2)
    cost, capacity = np.linspace(0.09, 0.11, 4), np.linspace(2, 4, 4)

    def profit(x: float, a: float) -> float:
        """The leader's, with the total quantity of the followers by bisection on their best responses."""
        low, high = 0.0, capacity.sum()
        for _ in range(100):
            total = (low + high) / 2
            answers = np.clip((a - 0.7 * (x + total)) / (cost + 0.7), 0, capacity).sum()
            low, high = (total, high) if answers > total else (low, total)
        return x * (a - 0.7 * (x + total)) - 0.05 * x**2

    grid = 7.5 + 5 * (np.arange(2000) + 0.5) / 2000
    for x in (0.5, 4.0, 9.0):
        assert problem.implicit(x) == pytest.approx(-np.mean([profit(x, a) for a in grid]), abs=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("model", [heterogeneous_classification, fair_classification, relu_network])
def test_bytes_with_a_scale_are_their_quotients(model: Callable[..., hf.Problem]) -> None:
    rng = np.random.default_rng(2)
    pixels, labels = rng.integers(0, 256, (90, 6), np.uint8), rng.permutation(np.arange(90) % 3)
    kept = model(ClassificationData(pixels, labels, scale=255.0), clients=3)
    quotients = model(ClassificationData(pixels / 255.0, labels), clients=3)
    assert all(images.dtype == np.uint8 for images in held(kept, "image"))
    for _ in range(3):
        x = {v.name(): rng.standard_normal(v.shape) for v in kept.upper_variables}
        assert kept.implicit(x) == pytest.approx(quotients.implicit(x), rel=1e-11)


@pytest.mark.parametrize("scale", [0, -1.0, np.nan, np.inf, None, "a", True, 1j, np.complex128(1)])
def test_a_scale_is_a_positive_number(scale: object) -> None:
    with pytest.raises(hf.DataError, match="features are divided by it"):
        ClassificationData(np.ones((2, 3)), np.array([0, 1]), scale=scale)  # type: ignore[arg-type]


@pytest.mark.parametrize("build", [stackelberg_cournot, stackelberg_cournot_game])
@pytest.mark.parametrize("followers", [10, 1000])
def test_cournot_constants(build, followers):
    """F = (diag(c) + b (I + 11')) y - a + b x: mu_F >= min c_j + b, L_F <= max c_j + b + b n, L_{F,x} = b sqrt(n)."""
    problem = build(followers=followers, clients=2)
    constants = problem.check(progress=False).constants
    b = 0.5
    assert constants["L_{F,x}"].value == pytest.approx(b * np.sqrt(followers), rel=1e-9)
    assert 0.09 + b - 1e-9 <= constants["mu_F"].value <= 0.11 + b
    assert b * followers + 0.09 + b <= constants["L_F"].value <= b * followers + 0.11 + b + 1e-6


def test_clients_count_by_their_rows_where_asked(data: ClassificationData) -> None:
    """rho_i = N_i / N of every model with rows, against the means over clients; explicit weights where clients hold a law."""
    scheme, labels = hf.Quantity(0.5), np.where(data.labels == 0, 1.0, -1.0)
    made: dict[Callable[..., hf.Problem], tuple[tuple, str]] = {
        relu_network: ((data,), "image"),
        fair_classification: ((data,), "image"),
        hyperparameter_learning: ((data.features, labels), "image"),
        heterogeneous_classification: ((data,), "image"),
    }
    for model, (given, sample) in made.items():
        problem = model(*given, clients=3, scheme=scheme, weights="samples")
        counts = np.array([len(rows) for rows in held(problem, sample)])
        np.testing.assert_allclose(problem.compile().data().clients.weights, counts / counts.sum())
        assert len(set(counts)) > 1
    game = stackelberg_cournot(clients=2, weights=[0.25, 0.75])
    np.testing.assert_allclose(game.compile().data().clients.weights, [0.25, 0.75])
    with pytest.raises(hf.DataError, match="weights='samples' counts rows"):
        stackelberg_cournot_game(clients=2, weights="samples")


# --- Networks of roads: files that are read, flows and tolls against CVXPY, gradients against differences.


NET = """<NUMBER OF ZONES> 2
<NUMBER OF NODES> 3
<FIRST THRU NODE> 3
<NUMBER OF LINKS> 4
<END OF METADATA>

~\tinit\tterm\tcapacity\tlength\tfree_flow_time\tb\tpower\tspeed\ttoll\ttype\t;
\t1\t3\t2000\t5\t6\t0.15\t4\t0\t0\t1\t;
\t3\t2\t4000\t5\t1.5\t0.15\t4\t0\t0\t1\t;
\t2\t3\t4000\t5\t1.5\t0.15\t4\t0\t0\t1\t;
\t3\t1\t1000\t5\t6\t0.3\t2\t0\t0\t1\t;
"""
TRIPS = """<NUMBER OF ZONES> 2
<TOTAL OD FLOW> 1600.0
<END OF METADATA>

Origin \t1
    1 :      0.0;     2 :    1100.0;
Origin \t2
    1 :    500.0;
"""
NODES = "Node\tX\tY\t;\n2\t3.0\t4.0\t;\n1\t0.5\t-1\t;\n3\t1\t1\t;\n"


def braess(trips: float) -> RoadNetwork:
    """Two ways from node 0 to node 1, over 2 and over 3, and a short cut from 2 to 3."""
    links = np.array([[0, 2], [2, 1], [0, 3], [3, 1], [2, 3]])
    room, empty = np.array([3.0, 20, 20, 3, 20]), np.array([1.0, 6, 6, 1, 0.2])
    wanted = np.array([[0.0, trips], [0.0, 0.0]])
    return RoadNetwork(links, room, empty, np.full(5, 0.8), np.full(5, 4.0), wanted)


def best_for_all(network: RoadNetwork) -> np.ndarray:
    """The flows on links that take the least time of all together, by CVXPY."""
    zones, count = len(network.trips), len(network.links)
    y = cp.Variable((zones, count), nonneg=True)
    v = cp.sum(y, axis=0)
    slower = network.free_flow_time * network.steepness / network.capacity**4
    into = [np.flatnonzero(network.links[:, 1] == n) for n in range(network.links.max() + 1)]
    out = [np.flatnonzero(network.links[:, 0] == n) for n in range(network.links.max() + 1)]
    rows = []
    for zone in range(zones):
        for node in range(len(into)):
            if node == zone:
                continue
            ends = network.trips[zone, node] if node < zones else 0.0
            rows.append(cp.sum(y[zone, into[node]]) - cp.sum(y[zone, out[node]]) == ends)
        rows.append(cp.sum(y[zone, into[zone]]) == 0)
    cost = network.free_flow_time @ v + cp.sum(cp.multiply(slower, cp.power(v, 5)))
    cp.Problem(cp.Minimize(cost), rows).solve(solver="CLARABEL")
    return np.asarray(v.value)


def total(network: RoadNetwork, flows: np.ndarray) -> float:
    ratio = flows / network.capacity
    return float(flows @ (network.free_flow_time * (1 + network.steepness * ratio**4)))


NETWORKS = [braess(6.0), RoadNetwork.town(3, 3, zones=3, seed=1), RoadNetwork.town(seed=0)]


@pytest.mark.parametrize("network", NETWORKS, ids=["Braess", "small town", "town"])
def test_nobody_could_be_quicker_by_another_route(network: RoadNetwork) -> None:
    """Wardrop's own condition: all drivers together take as long as each of them on the shortest route there is."""
    tolls = np.random.default_rng(0).uniform(0.0, 3.0, len(network.links))
    f = network.tolling(50.0).implicit
    y = np.asarray(f.response(tolls)).reshape(len(network.links), -1)
    start, end = network.links.T
    for zone in range(len(network.trips)):
        left = np.bincount(end, y[:, zone], network.links.max() + 1) - np.bincount(start, y[:, zone], network.links.max() + 1)
        wanted = np.zeros_like(left)
        wanted[: len(network.trips)] = network.trips[zone]
        wanted[zone] = -network.trips[zone].sum()
        np.testing.assert_allclose(left, wanted, atol=1e-9)
    flows = y.sum(axis=1)
    np.testing.assert_allclose(network.link_flows(f.response(tolls)), flows, rtol=1e-12)
    assert f(tolls) == pytest.approx(total(network, flows), rel=1e-12)
    ratio = flows / network.capacity
    each = network.free_flow_time * (1 + network.steepness * ratio**4) + tolls
    shortest = dijkstra(sp.csr_array((each, (start, end)), (len(left),) * 2))
    zones = len(network.trips)
    assert each @ flows == pytest.approx(float((network.trips * np.nan_to_num(shortest[:zones, :zones], posinf=0.0)).sum()), rel=1e-9)


@pytest.mark.parametrize("network", NETWORKS, ids=["Braess", "small town", "town"])
def test_the_gradient_is_that_of_differences(network: RoadNetwork) -> None:
    rng = np.random.default_rng(1)
    problem, tolls = network.tolling(50.0), rng.uniform(0.2, 1.0, len(network.links))
    gradient, way = problem.implicit.gradient(tolls), rng.normal(size=len(network.links))
    step = 1e-5
    difference = (problem.implicit(tolls + step * way) - problem.implicit(tolls - step * way)) / (2 * step)
    assert gradient @ way == pytest.approx(difference, rel=1e-5, abs=1e-7)


@pytest.mark.parametrize("network", NETWORKS, ids=["Braess", "small town", "town"])
def test_tolls_bring_what_is_best_for_all(network: RoadNetwork) -> None:
    """Without a setting; from no tolls, which in the towns keep every other route empty."""
    best = network.tolling(50.0).solve(progress=False)
    together = total(network, best_for_all(network))
    assert best.value == pytest.approx(together, rel=1e-5)
    assert best.x.min() >= 0.0
    assert best.x.max() <= 50.0


def test_some_roads_alone_have_tolls() -> None:
    """A toll on the short cut of Braess, whose drivers then do what a closed one makes them do: half of them each way."""
    network = braess(6.0)
    problem = network.tolling(50.0, tolled=np.array([4]))
    assert problem.implicit([50.0]) == pytest.approx(total(network, np.array([3.0, 3, 3, 3, 0])), rel=1e-9)
    assert problem.implicit([0.0]) > problem.implicit([50.0])


def test_files_are_read(tmp_path: Path) -> None:
    for kind, text in (("net", NET), ("trips", TRIPS), ("node", NODES)):
        (tmp_path / f"Toy_{kind}.tntp").write_text(text)
    network = RoadNetwork.read(tmp_path, "Toy")
    np.testing.assert_array_equal(network.links, [[0, 2], [2, 1], [1, 2], [2, 0]])
    np.testing.assert_allclose(network.capacity, [2.0, 4.0, 4.0, 1.0])
    np.testing.assert_allclose(network.free_flow_time, [6.0, 1.5, 1.5, 6.0])
    np.testing.assert_allclose([network.steepness[3], network.power[3]], [0.3, 2.0])
    np.testing.assert_allclose(network.trips, [[0.0, 1.1], [0.5, 0.0]])
    assert network.through == 2
    assert network.positions is not None
    np.testing.assert_allclose(network.positions, [[0.5, -1.0], [3.0, 4.0], [1.0, 1.0]])
    problem = network.tolling(10.0)
    np.testing.assert_allclose(network.link_flows(problem.implicit.response(np.zeros(4))), [1.1, 1.1, 0.5, 0.5], atol=1e-9)
    expected = 1.1 * network.times(np.full(4, 1.1))[:2].sum() + 0.5 * network.times(np.full(4, 0.5))[2:].sum()
    assert problem.implicit(np.zeros(4)) == pytest.approx(expected, rel=1e-9)


def test_zones_before_the_first_through_node_are_not_passed() -> None:
    """From 0 to 1 the way over zone 2 is shorter, and no way; the other one is over node 3."""
    links = np.array([[0, 2], [2, 1], [0, 3], [3, 1]])
    trips = np.zeros((3, 3))
    trips[0, 1] = trips[2, 1] = 1.0
    ones = np.ones(4)
    network = RoadNetwork(links, 10 * ones, np.array([1.0, 1, 2, 2]), 0.1 * ones, 4 * ones, trips, through=3)
    flows = network.link_flows(network.tolling(1.0).implicit.response(np.zeros(4)))
    np.testing.assert_allclose(flows, [0.0, 1.0, 1.0, 1.0], atol=1e-9)


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="no file .*Nowhere_net.tntp"):
        RoadNetwork.read(tmp_path, "Nowhere")
    (tmp_path / "Odd_net.tntp").write_text("nothing of that kind\n")
    with pytest.raises(SettingError, match="is it a TNTP network"):
        RoadNetwork.read(tmp_path, "Odd")


# --- Ready regressions, against statsmodels, scikit-learn and a search of one number.


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


def test_a_penalty_is_chosen_by_rows_that_are_held_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """By gradients of sums over rows that are read in parts."""
    monkeypatch.setattr(tables, "CHUNK_SCALARS", 120)
    y = (rng.random(N) < 1 / (1 + np.exp(-SCORE))) * 1.0
    model = hf.models.LogisticRegression(federation(y), features, outcome, penalty="held-out", seed=3)
    held_by = [list(client.samples.values()) for client in model.federation.clients]
    learnt, targets = np.vstack([own[0] for own in held_by]), np.concatenate([own[1] for own in held_by])

    def loss(logarithm: float) -> float:
        fit = LogisticRegression(C=np.exp(-logarithm) / len(targets), tol=1e-10, solver="newton-cholesky").fit(learnt, targets)
        scores = [own[2] @ fit.coef_[0] + fit.intercept_[0] for own in held_by]
        return float(np.mean(np.concatenate([np.logaddexp(0, s) - own[3] * s for s, own in zip(scores, held_by)])))  # rows count alike

    best = min(
        (
            scipy.optimize.minimize_scalar(loss, bounds=(low, low + 5), method="bounded", options={"xatol": 1e-7})
            for low in (-14, -9, -4, 1)
        ),
        key=lambda found: found.fun,
    )
    result = model.solve(progress=False)
    assert result.settings["solver"].startswith("ImplicitBundle") and result.value == pytest.approx(best.fun, abs=1e-7)


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
    read, other = (hf.Schema("cured", numeric=["dose"]) for _ in range(2))
    tables = hf.Federation.from_frames({"north": pd.DataFrame({"dose": [0.0, 1.0, 2.0], "cured": [0, 1, 0]})}, read)
    with pytest.raises(hf.DataError, match="LogisticRegression: client 'north' was read by another hf.Schema than the one that is given: make one schema"):
        hf.models.LogisticRegression(tables, other)
    with pytest.raises(hf.SettingError, match="not list"):
        hf.models.LinearRegression(list(federation(y).clients), features, outcome)
    with pytest.raises(hf.SettingError, match="penalty=None"):
        hf.models.LinearRegression(federation(y), features, outcome, penalty=None)
    for given, words in (
        ({"penalty": np.ones(3)}, "penalty=.*a number"),
        ({"l1_ratio": "half"}, "l1_ratio='half'"),
        ({"l1_ratio": 0.5}, "l1_ratio would be nothing without a penalty="),
        ({"penalty": 1.0, "seed": 3}, "seed would be nothing without penalty='held-out'"),
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
        ({"penalty": "held-out", "baseline": "site"}, hf.DataError, "held back, no event is compared with a row"),
        ({"times": [1.0, 3.0]}, hf.DataError, "'north' has an event at 2.0: events happen at one of times"),
    ):
        with pytest.raises(error, match=words):
            model(here, **given)
    late = hf.Sample(name="entry")
    entered = hf.Client({**here.samples, late: [0.0, 2.0, 1.0]}, name="north")
    with pytest.raises(hf.DataError, match="'north' has in row 1 the entry 2 beside the time 2"):
        model(entered, entry=late)
    early = hf.Client({**here.samples, columns[1]: [1.0, -2.0, 3.0]}, name="south")
    for baseline in ("site", "shared"):
        with pytest.raises(hf.DataError, match="'time' of client 'south' has in row 1 the time -2: without entry= times count from the start, and none is below 0"):
            model(early, baseline=baseline)
    assert model(hf.Client({**early.samples, late: [0.0, -3.0, 1.0]}), entry=late).coefficients.shape == (1,)
    with pytest.raises(hf.DataError, match="Give times=, when events happened"):
        model(here, away)
    assert model(here, away, times=[1.0, 2.0, 3.0]).baseline.shape == (3,)

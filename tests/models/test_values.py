"""Each ready declaration's value at random points, against plain NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from scipy.optimize import minimize

import hierfl as hf
from hierfl.models import (
    ClassificationData,
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


def test_hyperparameter_value_depends_on_the_mean_of_x(data: ClassificationData) -> None:
    problem = hyperparameter_learning(data.features, parity(data.labels), clients=3)
    assert problem.implicit(np.array([0.1, 0.2, 0.6])) == pytest.approx(problem.implicit(np.full(3, 0.3)), rel=1e-9)


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

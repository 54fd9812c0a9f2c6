"""Federated training of a network with one hidden layer of rectified units ([2S] §6.1)."""

from __future__ import annotations

from collections.abc import Sequence

import cvxpy as cp
import numpy as np

import hierfl as hf
from hierfl.language.federation.partition_schemes import Scheme
from hierfl.models.heterogeneous_classification import ClassificationData


def relu_network(
    data: ClassificationData,
    clients: int = 5,
    neurons: int = 4,
    scheme: Scheme | None = None,
    test_fraction: float = 0.1,
    lam: float = 0.01,
    scale: float = 300.0,
    softplus: float | None = None,
    seed: int = 0,
    weights: str | Sequence[float] = "uniform",
) -> hf.Problem:
    """Federated training of a network with one hidden layer of rectified units: nonsmooth and nonconvex ([2S] §6.1).

    Minimises over ``Z`` (neurons, features) and ``w`` (neurons,) the mean over clients of (scale / 2) E (v - sum_q w_q max(0, Z_q U))^2, plus
    (lam / 2) (||Z||^2 + ||w||^2), where v is 1 for images U of even classes and -1 for odd ones. The paper sums over a client's images; here
    the loss is a mean with an explicit ``scale``, which at the paper's step size 1e-5 decides whether anything moves (300 does, 3000 diverges).

    Parameters
    ----------
    data
        The pool; ``test_fraction`` of it is held out in ``problem.federation.test``.
    neurons
        N_1.
    scheme
        Partition over the clients; default ``hf.IID()``.
    lam, scale
        Weight of the regulariser, and of the mean loss.
    softplus
        If given, the units are ln(1 + exp(beta z)) / beta with this beta: the smooth model that first-order methods need.
    weights
        Of the clients in the objective: ``"uniform"``, the papers' 1/m; ``"samples"``, rho_i = N_i / N; or numbers, one for each.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> data = hf.models.ClassificationData(rng.standard_normal((200, 4)), rng.integers(0, 2, 200))
    >>> problem = hf.models.relu_network(data, clients=3)
    """
    features = data.features.shape[1]
    layers = cp.Variable((neurons, features), name="Z"), cp.Variable(neurons, name="w")
    image, target = hf.Sample(features, name="image"), hf.Sample(name="target")
    federation = hf.Federation.split(
        {image: data.features, target: parity(data.labels)},
        clients=clients,
        scheme=scheme,
        test_fraction=test_fraction,
        seed=seed,
        weights=weights,
    )
    loss = 0.5 * scale * hf.E(squared_error(*layers, data.scaled(image), target, softplus))
    return hf.Problem(hf.Minimize(clients=loss + 0.5 * lam * sum(map(cp.sum_squares, layers))), federation=federation)


def squared_error(
    hidden: cp.Expression,
    output: cp.Expression,
    image: cp.Expression,
    target: cp.Expression,
    softplus: float | None = None,
) -> cp.Expression:
    """(v - sum_q w_q sigma(Z_q . U))^2 of one sample; sigma is max(0, .), or the softplus with the given beta."""
    into = hidden @ image
    units = cp.pos(into) if softplus is None else cp.logistic(softplus * into) / softplus
    return cp.square(target - cp.sum(cp.multiply(output, units)))


def parity(labels: np.ndarray) -> np.ndarray:
    """1 for even labels, -1 for odd ones, ``(N,)``."""
    return np.where(labels % 2 == 0, 1.0, -1.0)


def initial_weights(problem: hf.Problem, deviation: float = 0.1, seed: int = 0) -> dict[cp.Variable, np.ndarray]:
    """A start N(0, deviation^2) for every upper variable: 0 is a stationary point of the network."""
    rng = np.random.default_rng(seed)
    return {v: deviation * rng.standard_normal(v.shape) for v in problem.upper_variables}

"""Federated hyperparameter learning: how strongly each client should regularise a common classifier ([2S] §6.2)."""

from __future__ import annotations

from collections.abc import Sequence

import cvxpy as cp
import numpy as np

import hierfl as hf
from hierfl.language.federation.partition_schemes import Scheme


def hyperparameter_learning(
    features: np.ndarray,
    labels: np.ndarray,
    clients: int = 5,
    scheme: Scheme | None = None,
    validation: float = 0.3,
    test_fraction: float = 0.1,
    floor: float = 1e-3,
    seed: int = 0,
    weights: str | Sequence[float] = "uniform",
) -> hf.Problem:
    """Federated hyperparameter learning: how strongly each client should regularise a common classifier ([2S] §6.2).

    Minimises over ``x`` (clients,), at least ``floor``, the mean over clients of their summed logistic losses of y(x) on samples for validation, where
    ``y`` (features,) minimises the mean over clients of their mean losses on samples for training, plus x_i ||y||^2 / 2. The paper sums the
    lower losses too; their mean is the better conditioned declaration of the same trade-off. y(x) depends on the mean of x alone, and
    f on x only through y.

    Parameters
    ----------
    features, labels
        The pool: ``(N, d)``, and -1 or 1 ``(N,)``; ``test_fraction`` of it is held out in ``problem.federation.test``.
    scheme
        Partition over the clients; default ``hf.IID()``.
    validation
        Share of a client's samples that the upper level sees, at least one; the lower level sees the others.
    floor
        The bound mu > 0 of X.
    weights
        Of the clients in the objective: ``"uniform"``, the papers' 1/m; ``"samples"``, rho_i = N_i / N of their training rows; or numbers, one for each.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.choice([-1, 1], 200)
    >>> problem = hf.models.hyperparameter_learning(rng.standard_normal((200, 4)), labels, clients=3)
    """
    x, y = cp.Variable(clients, nonneg=True, name="x"), cp.Variable(features.shape[1], name="y")
    image, label = hf.Sample(features.shape[1], name="image"), hf.Sample(name="label")
    unseen, unseen_label = hf.Sample(features.shape[1], name="unseen"), hf.Sample(name="unseen_label")
    own = hf.ClientParameter(clients, nonneg=True, name="own")  # the client's unit vector: own @ x is its x_i
    pool = hf.Federation.split(
        {image: features, label: labels},
        clients=clients,
        scheme=scheme,
        test_fraction=test_fraction,
        seed=seed,
        min_samples=2,
    )
    parties = []
    for index, client in enumerate(pool.clients):
        rows, targets = client.samples[image], client.samples[label]
        shown = np.random.default_rng([seed, index]).permutation(len(rows))
        upper, lower = np.split(shown, [max(1, round(validation * len(rows)))])
        tables = [{image: rows[lower], label: targets[lower]}, {unseen: rows[upper], unseen_label: targets[upper]}]
        parties.append(hf.Client(tables, {own: np.eye(clients)[index]}))
    return hf.Problem(
        hf.Minimize(clients=hf.total(logistic_loss(y, unseen, unseen_label))),
        lower=hf.ArgMin(y, hf.E(logistic_loss(y, image, label)) + 0.5 * (own @ x) * cp.sum_squares(y)),
        constraints=[x >= floor],
        federation=hf.Federation(parties, weights=weights, test=pool.test),
    )


def logistic_loss(weights: cp.Expression, image: cp.Expression, label: cp.Expression) -> cp.Expression:
    """log(1 + exp(-v U . y)) of one sample."""
    return cp.logistic(-label * (weights @ image))

"""Linear classifiers of images as [HFL] §IV trains and judges them, from the samples "image" and "label" of parties."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np

from hierfl.language.expectation import E
from hierfl.language.federation.client import Client
from hierfl.language.federation.federated_data import Federation
from hierfl.language.objective import Minimize
from hierfl.language.sample import Sample
from hierfl.models import ClassificationData
from hierfl.models.heterogeneous_classification import cross_entropy
from hierfl.problem import Problem


def rows_of(data: ClassificationData, *tables: Mapping[Any, Any]) -> ClassificationData:
    """The rows of ``data`` that these tables of samples have, pooled."""
    named = [{sample.name(): np.asarray(array) for sample, array in table.items()} for table in tables]
    images, onehot = (np.concatenate([table[name] for table in named]) for name in ("image", "label"))
    return replace(data, features=images, labels=np.argmax(onehot, axis=1))


def accuracy(weights: np.ndarray, data: ClassificationData) -> float:
    """Percent of the samples that the linear model ``weights`` (classes, features) classifies correctly."""
    return 100.0 * float(np.mean(np.argmax(data.scaled(data.features) @ weights.T, axis=1) == data.labels))


def mean_loss(weights: np.ndarray, data: ClassificationData) -> float:
    """The mean cross-entropy of the linear model ``weights`` (classes, features), in nats."""
    scores = np.asarray(data.scaled(data.features) @ weights.T)
    top = scores.max(axis=1)
    logs = top + np.log(np.exp(scores - top[:, None]).sum(axis=1))
    return float(np.mean(logs - scores[np.arange(len(scores)), data.labels]))


def server_training(data: ClassificationData, classes: int) -> Problem:
    """Training one model on one party's data, which is the server."""
    x, image, label = _leaves(data, classes)
    server = Client({image: data.features, label: _onehot(data, classes)})
    return Problem(
        Minimize(server=E(cross_entropy(x, data.scaled(image), label))),
        federation=Federation([Client()], server=server),
    )


def clients_training(parts: Sequence[ClassificationData], classes: int) -> Problem:
    """Training one model on the clients' data, weighted by their samples: what FedAvg and its kin minimise."""
    x, image, label = _leaves(parts[0], classes)
    clients = [Client({image: part.features, label: _onehot(part, classes)}) for part in parts]
    return Problem(
        Minimize(clients=E(cross_entropy(x, parts[0].scaled(image), label))),
        federation=Federation(clients, weights="samples"),
    )


def _leaves(data: ClassificationData, classes: int) -> tuple[cp.Variable, Sample, Sample]:
    features = data.features.shape[1]
    return cp.Variable((classes, features), name="x"), Sample(features, name="image"), Sample(classes, name="label")


def _onehot(data: ClassificationData, classes: int) -> np.ndarray:
    return np.eye(classes, dtype=np.uint8)[data.labels]

"""Linear classifiers as the examples train and judge them; parties hold the samples "image" and "label"."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np

import hierfl as hf
from hierfl.models import ClassificationData
from hierfl.models.heterogeneous_classification import cross_entropy
from hierfl.solvers import ZOHFL


def data_of(*parties: hf.Client) -> ClassificationData:
    """What parties hold, pooled."""
    return _as_data([party.samples for party in parties])


def held_out(federation: hf.Federation) -> ClassificationData:
    """The test rows.

    Raises
    ------
    DataError
        If there are none.
    """
    if federation.test is None:
        raise hf.DataError("this federation holds no test rows: give Federation.split(test_fraction=...).")
    return _as_data([federation.test])


def _as_data(tables: list[Any]) -> ClassificationData:
    named = [{sample.name(): np.asarray(array) for sample, array in table.items()} for table in tables]
    onehot = np.concatenate([table["label"] for table in named])
    return ClassificationData(np.concatenate([table["image"] for table in named]), np.argmax(onehot, axis=1))


def accuracy(weights: np.ndarray, data: ClassificationData) -> float:
    """Percent of the samples that the linear model ``weights`` (classes, features) classifies correctly."""
    return 100.0 * float(np.mean(np.argmax(data.features @ weights.T, axis=1) == data.labels))


def training_problem(data: ClassificationData, classes: int) -> hf.Problem:
    """Training one model on one party's data, as a problem without a lower level."""
    x = cp.Variable((classes, data.features.shape[1]), name="x")
    image, label = hf.Sample(data.features.shape[1], name="image"), hf.Sample(classes, name="label")
    holder = hf.Client({image: data.features, label: np.eye(classes)[data.labels]})
    return hf.Problem(
        hf.Minimize(server=hf.E(cross_entropy(x, image, label))),
        federation=hf.Federation([hf.Client()], server=holder),
    )


def train(
    data: ClassificationData, classes: int, *, solver: ZOHFL, rounds: int, seed: int, x0: Any = None
) -> np.ndarray:
    """Stochastic gradient training with the algorithm's own server step: the model ``(classes, features)``."""
    problem = training_problem(data, classes)
    model: np.ndarray = problem.solve(solver, rounds=rounds, seed=seed, x0=x0, evaluate_every=100).x
    return model

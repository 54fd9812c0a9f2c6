"""Linear classifiers as the examples train and judge them; parties hold the samples "image" and "label"."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cvxpy as cp
import numpy as np

import hierfl as hf
from hierfl.models import ClassificationData
from hierfl.models.heterogeneous_classification import cross_entropy
from hierfl.solvers import ZOHFL


def data_of(data: ClassificationData, *parties: hf.Client) -> ClassificationData:
    """What parties hold of ``data``, pooled."""
    return _rows(data, [party.samples for party in parties])


def held_out(data: ClassificationData, federation: hf.Federation) -> ClassificationData:
    """The test rows of ``data``.

    Raises
    ------
    DataError
        If there are none.
    """
    if federation.test is None:
        raise hf.DataError("this federation holds no test rows: give Federation.split(test_fraction=...).")
    return _rows(data, [federation.test])


def _rows(data: ClassificationData, tables: list[Any]) -> ClassificationData:
    named = [{sample.name(): np.asarray(array) for sample, array in table.items()} for table in tables]
    images, onehot = (np.concatenate([table[name] for table in named]) for name in ("image", "label"))
    return replace(data, features=images, labels=np.argmax(onehot, axis=1))


def accuracy(weights: np.ndarray, data: ClassificationData) -> float:
    """Percent of the samples that the linear model ``weights`` (classes, features) classifies correctly."""
    return 100.0 * float(np.mean(predicted(weights, data) == data.labels))


def predicted(weights: np.ndarray, data: ClassificationData) -> np.ndarray:
    """The classes that the linear model ``weights`` (classes, features) gives the samples, ``(N,)``."""
    return np.argmax(data.scaled(data.features) @ weights.T, axis=1)


def training_problem(data: ClassificationData, classes: int) -> hf.Problem:
    """Training one model on one party's data, as a problem without a lower level."""
    x = cp.Variable((classes, data.features.shape[1]), name="x")
    image, label = hf.Sample(data.features.shape[1], name="image"), hf.Sample(classes, name="label")
    holder = hf.Client({image: data.features, label: np.eye(classes, dtype=np.uint8)[data.labels]})
    return hf.Problem(
        hf.Minimize(server=hf.E(cross_entropy(x, data.scaled(image), label))),
        federation=hf.Federation([hf.Client()], server=holder),
    )


def train(
    data: ClassificationData, classes: int, *, solver: ZOHFL, rounds: int, seed: int, x0: Any = None
) -> np.ndarray:
    """Stochastic gradient training with the algorithm's own server step: the model ``(classes, features)``."""
    problem = training_problem(data, classes)
    model: np.ndarray = problem.solve(solver, rounds=rounds, seed=seed, x0=x0, evaluate_every=100).x
    return model

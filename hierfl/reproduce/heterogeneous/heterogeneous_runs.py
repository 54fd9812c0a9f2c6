"""The classification problem of [HFL] §IV and the methods of its Table I, each a run of its own from what its settings say.

Linear classifiers are trained and judged from the samples "image" and "label" of parties.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cvxpy as cp
import numpy as np

from hierfl.errors import LowerLevelWarning
from hierfl.language.expectation import E
from hierfl.language.federation.client import Client
from hierfl.language.federation.federated_data import Federation
from hierfl.language.federation.partition_schemes import Dirichlet
from hierfl.language.objective import Minimize
from hierfl.language.sample import Sample
from hierfl.models import ClassificationData, heterogeneous_classification
from hierfl.models.heterogeneous_classification import cross_entropy
from hierfl.problem import Problem
from hierfl.reproduce.reproduction import Cell, DataSets
from hierfl.result import Result
from hierfl.solvers import SCAFFOLD, ZOHFL, Decay, FedAvg, FedProx, ProjectedSGD


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


PAPER = "[HFL] (Qiu, Kim, Yousefian, 2025)"
HETEROGENEITIES = ((1000.0, 0.9), (1.0, 0.5), (0.1, 0.1))  # alpha of the Dirichlet split, beta of the participation
CLIENTS, SERVER, TEST = 10, 0.3, 0.1
MU = 0.1
SERVER_BATCH, LOCAL_BATCH = 128, 32
JUDGED = 10_000  # rows
PRETRAINING = {"pretraining": 2000, "pretraining_step": 0.1}
LEFT_OPEN = (
    "the start of ZO-HFL: the server's own training, 2000 steps of 0.1 on minibatches of 128 ('start'), because its steps "
    "0.01 / sqrt(r + 1) add up to 0.44 in 500 rounds and cannot go far; 'server only' goes on from there with the same steps, without clients",
    f"lambda, which enters as a product with n and the weights: both 1 and 0.01 are run; mu = {MU:g}",
    "rho_i = N_i over the clients' samples; pixels in [0, 1], no bias; at least 10 samples a client",
    f"minibatches: {SERVER_BATCH} for f_1; one sample for Algorithm 2 (zeta), begun at the queried point; {LOCAL_BATCH} for the baselines",
    "the baselines minimise the clients' losses alone, from x = 0, with steps of 0.01, H as ZO-HFL's, the mean of those who take part; mu = 1 of FedProx",
)


@dataclass(frozen=True)
class Prepared:
    """The parties' rows of a split, and the server's own model where the runs start."""

    test: ClassificationData
    server: ClassificationData
    clients: tuple[ClassificationData, ...]
    classes: int
    start: np.ndarray


def prepared(cell: Cell, data: DataSets) -> Prepared:
    """The split of a cell and its start, made once for all cells of one data set, heterogeneity and seed that stand together."""
    settings = cell.settings
    key = (cell.data, settings["alpha"], settings["seed"], settings["server"], settings["pretraining"])
    return data.once("heterogeneous", key, lambda: _prepare(data.found[cell.data or ""], settings))


def declared(cell: Cell, data: DataSets) -> Problem:
    """The problem of a cell, whose split is that of :func:`prepared`."""
    return _declare(data.found[cell.data or ""], cell.settings)


def _declare(held: ClassificationData, settings: Mapping[str, Any]) -> Problem:
    return heterogeneous_classification(
        held,
        clients=CLIENTS,
        scheme=Dirichlet(settings["alpha"], labels=held.labels, min_samples=10),
        server_fraction=settings["server"],
        test_fraction=TEST,
        lam=settings["lam"],
        mu=settings.get("mu", MU),
        envelope=settings.get("envelope", False),
        seed=settings["seed"],
        weights="samples",
    )


def _prepare(held: ClassificationData, settings: Mapping[str, Any]) -> Prepared:
    federation = _declare(held, settings).federation
    assert federation is not None and federation.server is not None and federation.test is not None
    test, server = rows_of(held, federation.test), rows_of(held, federation.server.samples)
    clients = tuple(rows_of(held, client.samples) for client in federation.clients)
    classes = held.onehot.shape[1]
    if not settings["pretraining"]:
        return Prepared(test, server, clients, classes, np.zeros((classes, held.features.shape[1])))
    pretraining = ZOHFL(step_size=settings["pretraining_step"], batch_size=SERVER_BATCH)
    start = server_training(server, classes).solve(
        pretraining, rounds=settings["pretraining"], seed=settings["seed"], progress=False
    )
    assert isinstance(start, Result)
    return Prepared(test, server, clients, classes, start.x)


def zohfl_solver(settings: Mapping[str, Any], published: bool) -> ZOHFL:
    """ZO-HFL in its published mode, or with what hierfl changes: samples that the two evaluations share, and warm starts."""
    if published:
        return ZOHFL.published(tau=settings["tau"], participation=settings["beta"], batch_size=SERVER_BATCH)
    lower = ProjectedSGD(steps=Decay(settings["tau"], -0.5), step_size=Decay(0.1, 1.0), batch_size=1)
    return ZOHFL(
        smoothing=0.1,
        step_size=Decay(0.01, 0.5),
        participation=settings["beta"],
        batch_size=SERVER_BATCH,
        lower=lower,
    )


def heterogeneous_cell(named: str, group: str, **settings: Any) -> Cell:
    """A cell by what it is called beside its data, heterogeneity, and group; what is left out of its settings is as in Table I."""
    chosen = {"tau": 20, "shared": False, "server": SERVER, **PRETRAINING, **settings}
    return Cell(named, chosen, settings["data"], group)


def run_start(cell: Cell, data: DataSets) -> dict[str, Any]:
    """The accuracies of the start, and of the server alone that goes on with ZO-HFL's steps."""
    ready = prepared(cell, data)
    alone = _trained(ready, ready.server, Decay(0.01, 0.5), cell.settings["rounds"], cell.settings["seed"])
    return {"start": accuracy(ready.start, ready.test), "accuracy": accuracy(alone, ready.test)}


def _trained(ready: Prepared, rows: ClassificationData, steps: Decay, rounds: int, seed: int) -> Any:
    """The model of one party with these rows, from the start."""
    solver = ZOHFL(step_size=steps, batch_size=SERVER_BATCH)
    training = server_training(rows, ready.classes)
    return training.solve(solver, rounds=rounds, seed=seed, x0=ready.start, progress=False).x


def pooled_rows(ready: Prepared, about: int | None = None) -> ClassificationData:
    """The training rows of the server and all clients; given ``about``, every k-th row, so that there are about so many."""
    parts = (ready.server, *ready.clients)
    total = sum(len(part.labels) for part in parts)
    step = 1 if about is None else max(1, total // about)
    features = np.concatenate([part.features for part in parts])[::step]
    return ClassificationData(features, np.concatenate([part.labels for part in parts])[::step], ready.test.scale)


def run_pooled(cell: Cell, data: DataSets) -> dict[str, Any]:
    """The accuracy of training on everybody's pooled data from the start: the ceiling."""
    ready, rounds = prepared(cell, data), 5 * cell.settings["pretraining"]
    best = _trained(ready, pooled_rows(ready), Decay(0.5, 0.25), rounds, cell.settings["seed"])
    return {"accuracy": accuracy(best, ready.test)}


def run_baseline(cell: Cell, data: DataSets) -> dict[str, Any]:
    """FedAvg, FedProx or SCAFFOLD on the clients' data."""
    ready, settings = prepared(cell, data), cell.settings
    common: dict[str, Any] = {
        "step_size": 0.01,
        "local_steps": Decay(settings["tau"], -0.5),
        "participation": settings["beta"],
        "batch_size": LOCAL_BATCH,
    }
    averaging = {"FedAvg": FedAvg, "FedProx": FedProx}.get(settings["method"])
    solver = SCAFFOLD(**common) if averaging is None else averaging(**common, absent="renormalise")
    problem = clients_training(ready.clients, ready.classes)
    return judged(problem, solver, settings, ready, None)[1]


def run_zohfl(cell: Cell, data: DataSets) -> dict[str, Any]:
    """ZO-HFL from the start; ``objective`` is the loss by round with the run's own y, ``value`` f at the end with y solved."""
    ready = prepared(cell, data)
    solver = zohfl_solver(cell.settings, not cell.settings["shared"])
    result, numbers = judged(declared(cell, data), solver, cell.settings, ready, ready.start)
    return {**numbers, "value": result.value, "own": result.own_value, "objective": result.history["objective"]}


def judged(
    problem: Problem, solver: Any, settings: Mapping[str, Any], ready: Prepared, x0: Any
) -> tuple[Result, dict[str, Any]]:
    """A run with its accuracy on the test data, and its mean loss over everybody's training data, by rounds.

    The loss is that of every k-th row, so that there are about 10,000.
    """
    everybody = pooled_rows(ready, JUDGED)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LowerLevelWarning)  # the numbers say it: value beside own
        result = problem.solve(
            solver,
            rounds=settings["rounds"],
            seed=settings["seed"],
            x0=x0,
            metrics={
                "accuracy": lambda x, y: accuracy(x, ready.test),
                "loss": lambda x, y: mean_loss(x, everybody),
            },
            evaluate_every=max(1, settings["rounds"] // 10),
            progress=False,
        )
    assert isinstance(result, Result)
    by_round = {name: result.metrics[name] for name in ("round", "accuracy", "loss")}
    return result, {"accuracy": accuracy(result.x, ready.test), "by_round": by_round}

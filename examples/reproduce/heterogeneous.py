"""The classification problem of [HFL] §IV and the methods of its Table I, each a run of its own from what its settings say.

Linear classifiers are trained and judged from the samples "image" and "label" of parties.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import cvxpy as cp
import numpy as np

import hierfl as hf
from examples.reproduce.reproduction import Cell, DataSets, by_name
from hierfl.models import ClassificationData, heterogeneous_classification
from hierfl.models.heterogeneous_classification import cross_entropy
from hierfl.runtime.in_process.execution import InProcess
from hierfl.solvers import SCAFFOLD, ZOHFL, Decay, FedAvg, FedProx, ProjectedSGD

CLIENTS, SERVER, TEST = 10, 0.3, 0.1
MU = 0.1
SERVER_BATCH, LOCAL_BATCH = 128, 32
JUDGED = 10_000  # rows
RUNTIME = InProcess(precision="single")


def heterogeneous_cell(name: str, group: str, **settings: Any) -> Cell:
    """A cell; what is left out of its settings is as in Table I."""
    usual = {"tau": 20, "shared": False, "server": SERVER, "pretraining": 2000, "pretraining_step": 0.1}
    return Cell(name, {**usual, **settings}, group)


@dataclass(frozen=True)
class Parties:
    """The parties' rows of a split, and the server's own model where the runs start."""

    held: ClassificationData
    test: ClassificationData
    server: ClassificationData
    clients: tuple[ClassificationData, ...]
    start: Any

    @cached_property
    def everybody(self) -> ClassificationData:
        """The training rows of the server and all clients."""
        parts = (self.server, *self.clients)
        features, labels = (np.concatenate([getattr(part, name) for part in parts]) for name in ("features", "labels"))
        return replace(self.held, features=features, labels=labels)

    def training(self, *clients: ClassificationData, server: ClassificationData | None = None) -> hf.Problem:
        """Training one model on the server's rows, or on the clients', weighted by their samples: what FedAvg and its kin minimise."""
        classes, features = self.held.onehot.shape[1], self.held.features.shape[1]
        x = cp.Variable((classes, features), name="x")
        image, label = hf.Sample(features, name="image"), hf.Sample(classes, name="label")
        loss = hf.E(cross_entropy(x, self.held.scaled(image), label))

        def holder(rows: ClassificationData) -> hf.Client:
            return hf.Client({image: rows.features, label: np.eye(classes, dtype=np.uint8)[rows.labels]})

        if server is not None:
            return hf.Problem(hf.Minimize(server=loss), federation=hf.Federation([hf.Client()], server=holder(server)))
        return hf.Problem(hf.Minimize(clients=loss), federation=hf.Federation([*map(holder, clients)], weights="samples"))

    def trained(self, rows: ClassificationData, steps: Any, rounds: int, seed: int) -> Any:
        """The model of one party with these rows, from the start."""
        solver = ZOHFL(step_size=steps, batch_size=SERVER_BATCH)
        training = self.training(server=rows)
        return training.solve(solver, rounds=rounds, seed=seed, x0=self.start, progress=False).x

    def judged(self, problem: hf.Problem, solver: Any, settings: Mapping[str, Any], x0: Any) -> dict[str, Any]:
        """A run's accuracy on the test data, and its mean loss over everybody's training data, by rounds.

        The rounds alone are made, where ``solve`` would answer with f at the end as well: all clients' personal models to full accuracy,
        which no table has and which takes longer than the rounds. The loss is that of every k-th row, so that there are about 10,000.
        """
        every = max(1, len(self.everybody.labels) // JUDGED)
        rows = replace(self.held, features=self.everybody.features[::every], labels=self.everybody.labels[::every])
        compiled, rounds = problem.compile(progress=False), settings["rounds"]
        algorithm = solver.bind(compiled, rounds)
        start = compiled.upper.flatten(x0, "x0")
        measured: dict[str, list[float]] = {"round": [], "accuracy": [], "loss": []}

        def look(done: int, state: Any, memory: Any, history: Any) -> None:
            x = compiled.upper.unflatten(np.asarray(algorithm.decision(state), float))
            for name, value in zip(measured, (done, accuracy(x, self.test), mean_loss(x, rows))):
                measured[name].append(value)

        look(0, algorithm.init(start), None, None)
        RUNTIME.execute(compiled, algorithm, start, rounds, settings["seed"], max(1, rounds // 10), look)
        return {"accuracy": measured["accuracy"][-1], "by_round": measured}


def accuracy(weights: np.ndarray, data: ClassificationData) -> float:
    """Percent of the samples that the linear model ``weights`` (classes, features) classifies correctly; NaN of one that diverged."""
    if not np.isfinite(weights).all():
        return float("nan")
    return 100.0 * float(np.mean(np.argmax(data.scaled(data.features) @ weights.T, axis=1) == data.labels))


def mean_loss(weights: np.ndarray, data: ClassificationData) -> float:
    """The mean cross-entropy of the linear model ``weights`` (classes, features), in nats."""
    scores = np.asarray(data.scaled(data.features) @ weights.T)
    top = scores.max(axis=1)
    logs = top + np.log(np.exp(scores - top[:, None]).sum(axis=1))
    return float(np.mean(logs - scores[np.arange(len(scores)), data.labels]))


def declared(held: ClassificationData, settings: Mapping[str, Any]) -> hf.Problem:
    """The problem of a cell."""
    return heterogeneous_classification(
        held,
        clients=CLIENTS,
        scheme=hf.Dirichlet(settings["alpha"], labels=held.labels, min_samples=10),
        server_fraction=settings["server"],
        test_fraction=TEST,
        lam=settings["lam"],
        mu=settings.get("mu", MU),
        envelope=settings.get("envelope", False),
        seed=settings["seed"],
        weights="samples",
    )


def prepare(cell: Cell, data: DataSets) -> Parties:
    """The split and the start, which cells of one data set, heterogeneity and seed share."""
    settings, held = cell.settings, data.found[cell.settings["data"]]
    federation = declared(held, settings).federation
    assert federation is not None and federation.server is not None and federation.test is not None
    tables = map(by_name, (federation.test, federation.server.samples, *(one.samples for one in federation.clients)))
    test, server, *clients = (
        replace(held, features=table["image"], labels=np.argmax(table["label"], axis=1)) for table in tables
    )
    parties = Parties(held, test, server, tuple(clients), None)
    if settings["pretraining"]:
        start = parties.trained(server, settings["pretraining_step"], settings["pretraining"], settings["seed"])
    else:
        start = np.zeros((held.onehot.shape[1], held.features.shape[1]))
    return replace(parties, start=start)


def run_server(cell: Cell, parties: Parties) -> dict[str, Any]:
    """The accuracies of the start, and of the server alone that goes on with ZO-HFL's steps."""
    alone = parties.trained(parties.server, Decay(0.01, 0.5), cell.settings["rounds"], cell.settings["seed"])
    return {"start": accuracy(parties.start, parties.test), "accuracy": accuracy(alone, parties.test)}


def run_pooled(cell: Cell, parties: Parties) -> dict[str, Any]:
    """The accuracy of training on everybody's pooled data from the start: the ceiling."""
    rounds = 5 * cell.settings["pretraining"]
    best = parties.trained(parties.everybody, Decay(0.5, 0.25), rounds, cell.settings["seed"])
    return {"accuracy": accuracy(best, parties.test)}


def run_baseline(cell: Cell, parties: Parties) -> dict[str, Any]:
    """FedAvg, FedProx or SCAFFOLD on the clients' data."""
    settings = cell.settings
    common: dict[str, Any] = {
        "step_size": 0.01,
        "local_steps": Decay(settings["tau"], -0.5),
        "participation": settings["beta"],
        "batch_size": LOCAL_BATCH,
    }
    averaging = {"FedAvg": FedAvg, "FedProx": FedProx}.get(settings["method"])
    solver = SCAFFOLD(**common) if averaging is None else averaging(**common, absent="renormalise")
    return parties.judged(parties.training(*parties.clients), solver, settings, 0 * parties.start)


def run_zohfl(cell: Cell, parties: Parties) -> dict[str, Any]:
    """ZO-HFL from the start, as published, or with what hierfl changes: samples that the two evaluations share, and warm starts."""
    settings = cell.settings
    common: dict[str, Any] = {"participation": settings["beta"], "batch_size": SERVER_BATCH}
    if settings["shared"]:
        lower = ProjectedSGD(steps=Decay(settings["tau"], -0.5), step_size=Decay(0.1, 1.0), batch_size=1)
        solver = ZOHFL(smoothing=0.1, step_size=Decay(0.01, 0.5), lower=lower, **common)
    else:
        solver = ZOHFL.published(tau=settings["tau"], **common)
    return parties.judged(declared(parties.held, settings), solver, settings, parties.start)

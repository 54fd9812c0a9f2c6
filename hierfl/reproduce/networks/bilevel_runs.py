"""Hyperparameter learning and fair classification of [2S] §6.2 and §6.3 as their experiments run them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from hierfl.errors import DivergedError, LowerLevelWarning, TheoryWarning
from hierfl.models import ClassificationData, fair_classification, hyperparameter_learning
from hierfl.models.relu_network import initial_weights, parity
from hierfl.problem import Problem
from hierfl.reproduce.reproduction import Cell, DataSets, Plain
from hierfl.solvers import LFD, FedRZO, LocalSGD

CLIENTS, FLOOR, START = 5, 0.1, 0.5
LEARNED, MIXED = "hyperparameters", "fair classification"
LARGEST = 1.0  # of x, where L_h is taken: X has no bound above, and then L_h has none
LOWERS: dict[str, Callable[[float], Any]] = {
    "Local SGD (Algorithm 3)": lambda smooth: algorithm_3(FLOOR, smooth + LARGEST),
    "LFD": lambda smooth: LFD(rounds=10, steps=5, step_size=0.3, batch_size=None),
}
MIXTURES = {"y in the simplex": (True, 0.1), "y free": (False, 1.0)}  # and lambda


def algorithm_3(mu: float, smooth: float) -> LocalSGD:
    """Local SGD as Algorithm 3 of [2S] sets it for mu_h and L_h, in rounds r below a = max(m, 4 kappa) + 1, where a_r stays a."""
    a = max(CLIENTS, 4 * smooth / mu) + 1
    steps = int(np.ceil(2 * a * np.log(a) / CLIENTS))
    return LocalSGD(rounds=CLIENTS, steps=steps, step_size=1 / (mu * a), batch_size=1)


def hyperparameter_cell(data: str, lower: str, local_steps: int, seed: int, rounds: int, samples: int | None) -> Cell:
    """A run of FedRZO_bl with one of the lower solvers."""
    settings = {
        "part": LEARNED,
        "data": data,
        "variant": lower,
        "local_steps": local_steps,
        "seed": seed,
        "rounds": rounds,
        "samples": samples,
        "floor": FLOOR,
        "smoothing": 0.01,
        "step_size": 2e-4,
    }
    return Cell(f"{LEARNED}, {data}, {lower}, H = {local_steps}, seed {seed}", settings, data, f"{LEARNED}, {lower}")


def fair_cell(data: str, mixture: str, local_steps: int, seed: int, rounds: int) -> Cell:
    """A run of FedRZO_bl on the minimax problem over one of the sets of y."""
    settings = {
        "part": MIXED,
        "data": data,
        "variant": mixture,
        "local_steps": local_steps,
        "seed": seed,
        "rounds": rounds,
        "smoothing": 0.01,
        "step_size": 5e-4 if MIXTURES[mixture][0] else 5e-5,
    }
    return Cell(f"{MIXED}, {data}, {mixture}, H = {local_steps}, seed {seed}", settings, data, f"{MIXED}, {mixture}")


def run_bilevel(cell: Cell, data: DataSets) -> Plain:
    """The test loss by rounds (of fair classification, the mean over classes, with the worst class beside it), and f at the end."""
    held = data.found[cell.data or ""]
    return _learn(cell, held) if cell.settings["part"] == LEARNED else _mix(cell, held)


def _learn(cell: Cell, held: ClassificationData) -> Plain:
    settings = cell.settings
    features, labels = np.asarray(held.scaled(held.features)), parity(held.labels)
    if settings["samples"] is not None and settings["samples"] < len(labels):
        chosen = np.random.default_rng(0).choice(len(labels), settings["samples"], replace=False)
        features, labels = features[chosen], labels[chosen]
    problem = hyperparameter_learning(features, labels, clients=CLIENTS, floor=settings["floor"])
    assert problem.federation is not None and problem.federation.test is not None
    test = {sample.name(): np.asarray(values) for sample, values in problem.federation.test.items()}
    smooth = max(0.25 * float(np.linalg.norm(rows, 2) ** 2) / len(rows) for rows in _lower_rows(problem))
    solver = _solver("bl", settings, None, LOWERS[settings["variant"]](smooth))

    def loss(x: np.ndarray, y: np.ndarray) -> float:
        return float(np.mean(np.logaddexp(0, -test["label"] * (test["image"] @ y))))

    return _judged(problem, solver, settings, {"loss": loss}, np.full(CLIENTS, START))


def _solver(kind: str, settings: Plain, batch_size: int | None, lower: Any) -> FedRZO:
    """FedRZO as published, with the settings of a cell."""
    own = {name: settings[name] for name in ("smoothing", "step_size", "local_steps")}
    return FedRZO.published(kind, **own, batch_size=batch_size, lower=lower, common_random_numbers=True)


def _lower_rows(problem: Problem) -> list[np.ndarray]:
    """The images of every client's lower level."""
    assert problem.federation is not None
    named = [{sample.name(): np.asarray(v) for sample, v in c.samples.items()} for c in problem.federation.clients]
    return [samples["image"] for samples in named]


def _mix(cell: Cell, held: ClassificationData) -> Plain:
    settings = cell.settings
    simplex, lam = MIXTURES[settings["variant"]]
    problem = fair_classification(held, clients=CLIENTS, lam=lam, simplex=simplex, seed=settings["seed"])
    assert problem.federation is not None and problem.federation.test is not None
    test = {sample.name(): np.asarray(values) for sample, values in problem.federation.test.items()}
    images, classes = np.asarray(held.scaled(test["image"])), np.argmax(test["share"], axis=1)

    def by_class(x: dict[Any, np.ndarray]) -> np.ndarray:
        named = {variable.name(): value for variable, value in x.items()}
        errors = (test["target"] - np.maximum(images @ named["Z"].T, 0.0) @ named["w"]) ** 2
        return np.array([errors[classes == c].mean() for c in np.unique(classes)])

    solver = _solver("mm", settings, 128, LocalSGD(rounds=5, steps=10, batch_size=128))
    metrics = {"loss": lambda x, y: float(by_class(x).mean()), "worst": lambda x, y: float(by_class(x).max())}
    return _judged(problem, solver, settings, metrics, initial_weights(problem, seed=settings["seed"]))


def _judged(problem: Problem, solver: Any, settings: Plain, metrics: dict[str, Any], x0: Any) -> Plain:
    """The metrics by rounds, f at the end, and the scalars that the lower level sent up; of a run that diverges, what there is."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", LowerLevelWarning)  # the numbers say it: value beside own
        warnings.simplefilter("ignore", TheoryWarning)  # that queries are projected is told among the differences
        try:
            result = problem.solve(
                solver,
                rounds=settings["rounds"],
                seed=settings["seed"],
                x0=x0,
                metrics=metrics,
                evaluate_every=max(1, settings["rounds"] // 20),
                progress=False,
            )
        except DivergedError as error:
            return {"diverged": str(error)}
    return {
        "diverged": "",
        "round": result.metrics["round"],
        **{name: result.metrics[name] for name in metrics},
        "value": result.value,
        "own": result.own_value,
        "lower_scalars_up": result.communication["lower_scalars_up"],
    }

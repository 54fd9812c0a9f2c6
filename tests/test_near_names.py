"""A misspelt name is answered with the nearest that there is; what is spelt well sees nothing of it."""

from __future__ import annotations

import inspect
import pickle
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl import models, solvers
from hierfl.near_names import near_names
from hierfl.solvers import ZOHFL, Decay, Exact, FedAvg, FedRZO, ProjectedSGD
from tests.small_declarations import leaves

SETTINGS: list[tuple[Callable[..., Any], str, str]] = [
    (ZOHFL, "stepsize", "step_size"),
    (FedRZO, "smoothin", "smoothing"),
    (ProjectedSGD, "step", "steps"),
    (Exact, "metod", "method"),
    (Decay, "P", "p"),
    (hf.Dirichlet, "label", "labels"),
    (hf.Minimize, "client", "clients"),
    (hf.Maximize, "servers", "server"),
    (hf.ArgMax, "constraint", "constraints"),
    (hf.Equilibrium, "maping", "mapping"),
    (hf.Problem, "constrains", "constraints"),
    (hf.Client, "parameter", "parameters"),
    (hf.Federation, "weight", "weights"),
    (hf.Federation.split, "test_share", "test_fraction"),
    (hf.Federation.plot, "sampel", "sample"),
    (hf.Result.plot, "axes", "axis"),
    (hf.Runs.plot, "scael", "scale"),
    (hf.Sweep.plot, "styl", "style"),
    (replace_zohfl := lambda **given: replace(ZOHFL(), **given), "local_step", "local_steps"),
]


@pytest.mark.parametrize(("called", "wrong", "right"), SETTINGS)
def test_a_misspelt_setting_is_answered_with_the_nearest(called: Callable[..., Any], wrong: str, right: str) -> None:
    with pytest.raises(hf.UnknownNameError, match=f"no setting '{wrong}': did you mean .*'{right}'") as caught:
        called(**{wrong: 1})
    assert isinstance(caught.value, TypeError) and isinstance(caught.value, hf.SettingError)


@pytest.mark.parametrize("name", [n for n in solvers.__all__])
def test_every_solver_answers_misspellings_and_is_otherwise_as_declared(name: str) -> None:
    solver = getattr(solvers, name)
    with pytest.raises(hf.UnknownNameError, match=rf"^{name}\(\) has no setting 'no_such'"):
        solver(no_such=1)
    declared = sorted((f for f in fields(solver) if f.init), key=lambda f: f.kw_only)
    assert list(inspect.signature(solver).parameters) == [f.name for f in declared]
    if name not in ("Decay", "LogGrowth"):
        made = solver()
        assert replace(made) == made == pickle.loads(pickle.dumps(made))


def test_questions_answer_misspellings() -> None:
    x, y, _, _ = leaves()
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(x - y)), lower=hf.ArgMin(y, cp.sum_squares(y - x)))
    at = np.zeros(2)
    for ask, wrong, right in [
        (lambda **s: problem.implicit.slice(at, **s), "centre", "center"),
        (lambda **s: problem.implicit.stationarity(at, 0.1, **s), "sample", "samples"),
        (problem.check, "eps", "epsilon"),
        (problem.reference, "restart", "restarts"),
    ]:
        with pytest.raises(hf.UnknownNameError, match=f"'{wrong}': did you mean .*'{right}'"):
            ask(**{wrong: 1})
    with pytest.raises(hf.SettingError, match="queries='project': did you mean 'projected'"):
        problem.solve(FedAvg(), queries="project")


def test_words_are_answered_with_the_nearest() -> None:
    _, y, u, _ = leaves()
    rows = {u: np.ones((4, 2))}
    with pytest.raises(hf.DeclarationError, match=r"unknown scope 'clients' of ArgMin: did you mean 'client'"):
        hf.ArgMin(y, cp.sum_squares(y), scope="clients")
    with pytest.raises(hf.SettingError, match="method of Exact='parametricprogram': did you mean 'parametric program'"):
        Exact(method="parametricprogram")
    with pytest.raises(hf.DataError, match=r"scheme='dirichlet': .* did you mean 'hf.Dirichlet'"):
        hf.Federation.split(rows, clients=2, scheme="dirichlet")  # type: ignore[arg-type]
    with pytest.raises(hf.DataError, match="weights='sample': did you mean 'samples'"):
        hf.Federation([hf.Client(rows)], weights="sample")


def test_nothing_near_is_answered_with_what_there_is() -> None:
    assert near_names("zzz", ["left", "right"]) == "there are 'left', 'right'."
    assert near_names("Left", ["left", "right"]) == "did you mean 'left'? There are 'left', 'right'."
    with pytest.raises(hf.UnknownNameError, match="it takes none"):
        hf.IID(k=2)  # type: ignore[call-arg]


def test_modules_answer_misspelt_names() -> None:
    assert vars(hf)["__getattr__"]("solvers") is solvers and vars(hf)["__getattr__"]("models") is models
    for module, wrong, right in [
        (hf, "Minimise", "'Minimize'"),
        (hf, "FedRZO", "'solvers.FedRZO'"),
        (solvers, "ZoHfl", "'ZOHFL'"),
        (models, "stackelberg", "'stackelberg_cournot'"),
    ]:
        with pytest.raises(AttributeError, match=f"has no attribute '{wrong}': did you mean .*{right}"):
            getattr(module, wrong)
    assert not hasattr(hf, "__wrapped__")

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
from hierfl.near_names import near_names, suggests_names
from hierfl.solvers import ZOHFL, Decay, Exact, FedAvg, FedRZO, ImplicitGradient, ProjectedSGD
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


CALLS: list[tuple[Callable[[], Any], str]] = [
    (lambda: hf.Budget(100), r"Budget\(\) takes its settings by name, such as Budget\(floats=\.\.\.\)"),
    (lambda: hf.ArgMin(cp.Variable()), r"missing a required argument: 'objective': write ArgMin\(y, objective, constraints=\.\.\."),
    (lambda: hf.Federation(), r"'clients': write Federation\(clients, server="),
    (lambda: hf.Dirichlet(0.5), r"'labels': write Dirichlet\(alpha, labels, "),
    (lambda: hf.models.LogisticRegression(hf.Sample(2)), r"LogisticRegression\(\) is missing a required argument: 'features'"),
    (lambda: hf.Study([], []), r"'budget': write Study\(problems, solvers, budget=\.\.\.\)"),
    (lambda: toy().reference("global"), r"reference\(\) takes its settings by name, such as reference\(certificate=\.\.\.\)"),
    (lambda: toy().implicit(1.0, 2.0), r"ImplicitFunction\(\) takes no more than x\."),
]


def toy() -> hf.Problem:
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    return hf.Problem(hf.Minimize(clients=cp.square(x + 1 - y)), hf.ArgMin(y, cp.square(y - x), [y >= 0]), [cp.abs(x) <= 3])


@pytest.mark.parametrize("call", range(len(CALLS)))
def test_a_call_that_does_not_fit_is_answered_with_one_that_does(call: int) -> None:
    made, said = CALLS[call]
    with pytest.raises(hf.CallError, match=said):
        made()


def test_type_errors_within_a_call_stay_what_they_are() -> None:
    @suggests_names
    def halved(number: Any) -> Any:
        return number / 2

    with pytest.raises(TypeError, match="unsupported operand") as caught:
        halved("two")
    assert not isinstance(caught.value, hf.HierflError)


WORDS = [("FedAvg", "lr", "step_size"), ("solve", "max_iters", "rounds"), ("solve", "verbose", "progress"), ("Budget", "time", "seconds")]


@pytest.mark.parametrize(("called", "wrong", "right"), WORDS)
def test_words_of_other_libraries_are_understood(called: str, wrong: str, right: str) -> None:
    function = {"FedAvg": FedAvg, "solve": toy().solve, "Budget": hf.Budget}[called]
    with pytest.raises(hf.UnknownNameError, match=f"{called}\\(\\) has no setting '{wrong}': did you mean '{right}'"):
        function(**{wrong: 1})


ATTRIBUTES = [
    ("problem", "value", "problem.implicit\\(x\\) at an x, result.value"),
    ("problem", "status", "result = problem.solve\\(\\), then result.status"),
    ("problem", "grad", "problem.implicit.gradient"),
    ("problem", "variables", "problem.upper_variables"),
    ("problem", "federatoin", "did you mean 'federation'"),
    ("implicit", "value", "call it, problem.implicit\\(x\\)"),
    ("implicit", "stationary", "did you mean 'stationarity'"),
    ("result", "optimal_value", "did you mean 'value'"),
    ("result", "dual_value", "problem.implicit.multipliers\\(result.x\\)"),
    ("result", "certificat", "did you mean 'certificate'"),
    ("runs", "result", "did you mean 'results'"),
    ("solver", "stepsize", "did you mean 'step_size'"),
    ("level", "constraint", "did you mean 'constraints'"),
]


@pytest.fixture(scope="module")
def asked() -> dict[str, Any]:
    problem = toy()
    result = problem.solve(ImplicitGradient(step_size=0.1), rounds=2, progress=False)
    runs = problem.solve(ImplicitGradient(step_size=0.1), rounds=2, seeds=2, progress=False)
    return {"problem": problem, "implicit": problem.implicit, "result": result, "runs": runs, "solver": FedAvg(), "level": problem.lower_level}


@pytest.mark.parametrize(("of", "wrong", "right"), ATTRIBUTES)
def test_an_attribute_that_there_is_not_is_answered_with_what_there_is(asked: dict[str, Any], of: str, wrong: str, right: str) -> None:
    with pytest.raises(AttributeError, match=f"has no attribute '{wrong}': .*{right}"):
        getattr(asked[of], wrong)
    assert not hasattr(asked[of], "__array_interface__") and not hasattr(asked[of], "_repr_png_")


def test_the_error_of_a_property_is_its_own() -> None:
    @suggests_names
    class Lender:
        @property
        def lent(self) -> Any:
            return self.nothing  # type: ignore[attr-defined]

    with pytest.raises(AttributeError, match="Lender has no attribute 'nothing'"):
        _ = Lender().lent


def test_modules_answer_misspelt_names() -> None:
    assert vars(hf)["__getattr__"]("solvers") is solvers and vars(hf)["__getattr__"]("models") is models
    for module, wrong, right in [
        (hf, "Minimise", "'Minimize'"),
        (hf, "FedRZO", "'solvers.FedRZO'"),
        (solvers, "ZoHfl", "'ZOHFL'"),
        (models, "stackelberg", "'stackelberg_cournot'"),
        (hf, "Cournot", "'models.stackelberg_cournot'"),
    ]:
        with pytest.raises(AttributeError, match=f"has no attribute '{wrong}': did you mean .*{right}"):
            getattr(module, wrong)
    with pytest.raises(AttributeError, match="has no attribute 'Variable': it is CVXPY's own, cp.Variable"):
        hf.Variable  # noqa: B018
    assert not hasattr(hf, "__wrapped__")

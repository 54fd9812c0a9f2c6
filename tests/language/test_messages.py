"""Mistakes that new users make, each answered by an error of hierfl's own that says what to write."""

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
from hierfl.near_names import suggests_names
from hierfl.solvers import ZOHFL, Decay, FedAvg, FedRZO, ImplicitGradient, Scaffnew
from tests.small_declarations import leaves

x, y, w = (cp.Variable(2, name=name) for name in "xyw")
q, r, level = (cp.Variable(name=name) for name in ("q", "r", "level"))
age = hf.Sample(2, name="age")


UNATTAINED = r"seems to have a finite infimum on Y\(x\) and to attain it at no y: it falls"


def below_one() -> hf.ArgMin:
    return hf.ArgMin(q, cp.square(q - level))


class Tensor:
    """As PyTorch's: no array while a gradient is recorded."""

    requires_grad = True

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")


def below() -> hf.ArgMin:
    return hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0])


def problem(term: Any = 0.0) -> hf.Problem:
    return hf.Problem(hf.Minimize(clients=cp.sum_squares(x - y) + term), lower=below())


def alone(objective: Any, constraints: Any = (), kind: Any = hf.ArgMin) -> hf.Problem:
    """One y below, and a price above."""
    return hf.Problem(hf.Minimize(clients=cp.square(level - 1) + cp.square(q)), kind(q, objective, list(constraints)))


def duel(**own: Any) -> hf.Problem:
    return hf.Problem(hf.Minimize(clients=cp.square(level)), hf.Nash(hf.Player(q, **own), hf.Player(r, cp.square(r - q - level))))


def with_rows(sample: hf.Sample, held: hf.Sample) -> hf.Problem:
    federation = hf.Federation([hf.Client({held: np.ones((3, 2))})])
    return hf.Problem(hf.Minimize(clients=hf.E(cp.sum_squares(x - sample)) + cp.sum_squares(y)), lower=below(), federation=federation)


MISTAKES: dict[str, tuple[Callable[[], Any], type[hf.HierflError], str]] = {
    "an expression as objective": (
        lambda: hf.Problem(cp.sum_squares(x - y), lower=below()),
        hf.DeclarationError,
        r"not the expression sum_squares\(x - y\)\. Write hf\.Minimize\(clients=sum_squares\(x - y\)\)",
    ),
    "CVXPY's objective": (
        lambda: hf.Problem(cp.Maximize(-cp.sum_squares(x - y)), lower=below()),
        hf.DeclarationError,
        r"not cp\.Maximize\(.*Write hf\.Maximize\(clients=",
    ),
    "an expression as lower level": (
        lambda: hf.Problem(hf.Minimize(clients=cp.sum_squares(x - y)), lower=cp.sum_squares(y - x)),
        hf.DeclarationError,
        r"not the expression sum_squares\(y - x\).*Write hf\.ArgMin\(y, sum_squares\(y - x\)\)",
    ),
    "a program of CVXPY as lower level": (
        lambda: hf.Problem(hf.Minimize(clients=cp.sum(y)), cp.Problem(cp.Minimize(cp.sum_squares(y - x)), [y >= 0])),
        hf.DeclarationError,
        r"not Problem\. Write hf\.ArgMin\(y, sum_squares\(y - x\), \[y >= 0\]\)",
    ),
    "constraints by another name": (
        lambda: hf.Problem(hf.Minimize(clients=cp.sum_squares(x)), subject_to=[x >= 0]),  # type: ignore[call-arg]
        hf.UnknownNameError,
        "did you mean 'constraints'",
    ),
    "weights of a mean": (lambda: hf.E(cp.square(age @ x), weights=[0.5, 0.5]), hf.UnknownNameError, r"E\(\) has no setting 'weights'"),
    "a constant of another shape": (
        lambda: hf.Client(parameters={hf.ClientParameter(name="c"): [1.0, 2.0]}),
        hf.DataError,
        r"expected \(\)\. It is declared by hf\.ClientParameter\(\(2,\)\)",
    ),
    "a sample of the same name": (
        lambda: with_rows(age, hf.Sample(2, name="age")),
        hf.DataError,
        r"client 0 holds no data for sample 'age'; what is held is for another Sample of that name",
    ),
    "a value for what is no decision": (
        lambda: problem(cp.sum_squares(w)).implicit({"z": np.ones(2)}),
        hf.DataError,
        r"x is given for 'z', which is none of its variables: there are 'x', 'w'\.",
    ),
    "a value for a namesake": (
        lambda: problem(cp.sum_squares(w)).implicit({cp.Variable(2, name="x"): np.ones(2), w: np.ones(2)}),
        hf.DataError,
        r"x is given for a variable named 'x' that is not the 'x' of this problem",
    ),
    "a step of the wrong case": (lambda: ZOHFL(step_size="Auto"), hf.SettingError, r'"auto".*got \'Auto\''),
    "a step of the wrong case, of a solver that takes one": (lambda: Scaffnew(step_size="Auto"), hf.SettingError, "'auto'"),
    "a difference that curves down": (
        lambda: hf.Problem(hf.Minimize(clients=cp.sum(x)), hf.ArgMin(y, -cp.sum_squares(y - x))),
        hf.NotConvexError,
        r"but -sum_squares\(y - x\) is concave\. If it is to be maximised, write hf\.ArgMax",
    ),
    "a product of what is given and a sum": (
        lambda: hf.Problem(hf.Minimize(clients=cp.sum(x)), hf.ArgMin(y, (x[0] - x[1]) * y[0] * y[1])),
        hf.NotConvexError,
        r"but \(x\[0\] - x\[1\]\) \* y\[0\] \* y\[1\] has no curvature",
    ),
    "the answer of another": (
        lambda: problem().implicit.response(np.ones(2))["x"],
        hf.DataError,
        r"'x' is none of these variables: they are the values of 'y' alone, an array of shape \(2,\)",
    ),
    "the decision of nobody": (
        lambda: problem(cp.sum_squares(w)).implicit.gradient({x: np.ones(2), w: np.ones(2)})["z"],
        hf.DataError,
        r"'z' is none of these variables: there are 'x', 'w'\.",
    ),
    "a list among constraints": (
        lambda: hf.ArgMin(y, cp.sum_squares(y - x), [[y >= 0], [y <= 1]]),
        hf.DeclarationError,
        r"constraints\[0\] of ArgMin is a list, not a CVXPY constraint such as y >= 0\. Join lists with \+",
    ),
    "a variable among constraints": (
        lambda: hf.Problem(hf.Minimize(clients=cp.sum(y)), below(), [x]),
        hf.DeclarationError,
        r"constraints\[0\] of Problem is the variable 'x', not",
    ),
    "the price of an expression": (lambda: hf.ShadowPrice(cp.sum(y)), hf.DeclarationError, r"this is the expression sum\(y\)\."),
    "clients for a federation": (
        lambda: hf.Problem(hf.Minimize(clients=cp.sum(y)), below(), federation=[hf.Client({})]),
        hf.DeclarationError,
        r"not a list\. Write hf\.Federation\(clients\)",
    ),
    "one client for a list": (lambda: hf.Federation(hf.Client({})), hf.DataError, r"list of hf\.Client, not Client\. Write \[client\]"),
    "clients by name": (lambda: hf.Federation({"north": hf.Client({})}), hf.DataError, r"not dict\. Its values are a list by list\(clients\.values\(\)\)"),
    "rows for a client": (lambda: hf.Federation([np.ones((3, 2))]), hf.DataError, r"not a hf\.Client\. Write hf\.Client\(\{sample: rows\}\)"),
    "a multiplier that is not there yet": (
        lambda: hf.Problem(hf.Maximize(server=(cp.sum(y) == 1).dual_value * x[0]), below()),
        hf.DeclarationError,
        r"nan \* x\[0\] has a constant that is nan\. .*write hf\.ShadowPrice\(constraint\)",
    ),
    "a sample for a constant, above": (
        lambda: hf.Problem(hf.Minimize(clients=age @ y), below()),
        hf.DeclarationError,
        r"sample 'age' is used outside E.*around the per-sample expression\. A constant of each client, one value and no rows, is a hf\.ClientParameter",
    ),
    "a sample for a constant, in a constraint": (
        lambda: hf.ArgMin(y, cp.sum_squares(y - x), [y <= age], scope="client"),
        hf.DeclarationError,
        r"\(y <= age\): write scope='sample' if y answers each sample\. A constant of each client, one value and no rows, is a hf\.ClientParameter",
    ),
    "a matrix of no sign": (
        lambda: hf.Problem(hf.Minimize(clients=cp.sum(x)), hf.ArgMin(y, cp.quad_form(y, np.array([[1.0, 2.0], [2.0, 1.0]])) - x @ y)),
        hf.NotConvexError,
        r"is neither convex nor concave, as its matrix has eigenvalues from -1 to 3\.",
    ),
    "a size for a shape": (lambda: hf.Sample(size=3), hf.UnknownNameError, r"no setting 'size': did you mean 'shape'\?"),
    "a class for a solver": (lambda: problem().solve(FedRZO, progress=False), hf.SettingError, r"solver=FedRZO \(a class: write FedRZO\(\)\): an instance .* such as"),
    "a solver of one level for two": (
        lambda: problem().solve(solvers.Newton(), progress=False),
        hf.IncompatibleSolverError,
        r"steps on f_i at a fixed y would not descend on it\. Use FedRZO .*, or leave the solver out: solve\(\) takes one that fits",
    ),
    "a name for a shape": (lambda: hf.Sample("age"), hf.DeclarationError, r"Sample\('age'\): the shape comes first; write Sample\(name='age'\)"),
    "data for a shape": (lambda: hf.ClientParameter(np.ones((3, 2))), hf.DeclarationError, r"shape of ClientParameter is an array of shape \(3, 2\)"),
    "half an entry": (lambda: hf.Sample(2.5), hf.DeclarationError, "shape of Sample is 2.5"),
    "a number for a name": (lambda: hf.Sample(2, name=3), hf.DeclarationError, r"name of Sample is 3 \(int\)"),
    "an attribute that there is not": (lambda: hf.Sample(2, nonnegative=True), hf.UnknownNameError, "did you mean 'nonneg'"),
    "a tensor as data": (lambda: hf.Client({age: Tensor()}), hf.DataError, r"is a Tensor that requires grad.*value\.detach\(\)\.numpy\(\)"),
    "an unbounded lower level": (
        lambda: hf.Problem(hf.Minimize(clients=cp.sum(y)), lower=hf.ArgMin(y, cp.sum(y) + cp.sum(x))).implicit(np.zeros(2)),
        hf.LowerLevelError,
        r"its objective is unbounded below on Y\(x\)",
    ),
    "a logarithm that rises": (lambda: alone(cp.log(q), kind=hf.ArgMax).implicit(0.0), hf.LowerLevelError, "is unbounded above"),
    "a fraction that falls too slowly to tell": (
        lambda: alone(cp.power(q, -0.3), [q >= 1]).implicit(0.0),
        hf.LowerLevelError,
        "no y was found. It may not attain its infimum, or is badly scaled",
    ),
    "a utility that saturates": (
        lambda: alone(1 - cp.exp(-q), [q >= 0], hf.ArgMax).implicit(0.0),
        hf.LowerLevelError,
        r"a finite supremum on Y\(x\) and to attain it at no y: it rises.*Add a strongly concave term",
    ),
    "a fit of rows that a plane parts": (
        lambda: hf.Problem(
            hf.Minimize(clients=cp.sum_squares(x - y)),
            hf.ArgMin(y, hf.E(cp.logistic(-age @ y)), scope="client"),
            federation=hf.Federation([hf.Client({age: np.array([[1.0, 0.5], [2.0, -1.0], [0.5, 3.0]])}, name="Mercy")]),
        ).implicit(np.zeros(2)),
        hf.LowerLevelError,
        "client 'Mercy'.*" + UNATTAINED,
    ),
    "a profit that is minimised": (
        lambda: duel(objective=(10 - q - r) * q),
        hf.NotConvexError,
        r"second derivative there is -2\. If it is to be maximized, write hf\.Player\(q, maximize=\.\.\.\)",
    ),
    "a cost that is maximised": (
        lambda: duel(maximize=cp.square(q)),
        hf.NotConvexError,
        r"worst choice\. If it is to be minimized, write hf\.Player\(q, minimize=\.\.\.\)",
    ),
    "a term outside its domain at the start": (
        lambda: hf.Problem(hf.Minimize(clients=cp.sqrt(level - 5) + cp.square(q)), below_one()).solve(progress=False, x0=0.0),
        hf.DivergedError,
        r"f is not defined \(NaN\) at x = \[0\.\]: a term is outside its domain",
    ),
    "a start that is far too large": (lambda: alone(cp.square(q - level)).solve(progress=False, x0=1e30), hf.DivergedError, "bound X, or write it in"),
    "rows without a number": (
        lambda: hf.Client({age: np.array([[1.0, 2.0], [3.0, np.nan]])}, name="Mercy"),
        hf.DataError,
        r"'age' of client 'Mercy' contains NaN or infinity in 1 of 2 rows, first in row 1, entry 1\.",
    ),
    "rows whose squares are no numbers": (
        lambda: hf.Client({age: np.array([[1.0, 2.0], [-1e200, 1.0]])}, name="Mercy"),
        hf.DataError,
        r"numbers beyond 1e\+150, whose squares are infinite, in 1 of 2 rows, first in row 1, entry 0\.",
    ),
    "a name as what a mean is of": (lambda: hf.E("age"), hf.DeclarationError, "what E is of must be a CVXPY expression, not the text 'age'"),
    "a name as what code is called with": (
        lambda: hf.Function(abs, "x"),
        hf.DeclarationError,
        "an argument of Function 'abs' must be a CVXPY expression, not the text 'x'",
    ),
    "as many objectives as answers": (
        lambda: hf.ArgMin(y, y - x),
        hf.DeclarationError,
        r"must be a scalar, but y - x has shape \(2,\); write cp\.sum",
    ),
    "no code": (lambda: hf.Function(x, x), hf.DeclarationError, "Function takes a callable first"),
    "a callback of x alone": (lambda: problem().solve(callback=lambda x: True), hf.SettingError, r"callback=<lambda> \(a function\): it is called with three arguments, callback\(round, x, y\)"),
    "f without a bound, maximised": (
        lambda: hf.Problem(hf.Maximize(clients=level + q), below_one()).reference(progress=False),
        hf.DivergedError,
        "f seems unbounded above on X",
    ),
    "f that falls as slowly as a logarithm": (
        lambda: hf.Problem(hf.Minimize(clients=-cp.log(level + 2) + 0 * q), below_one()).reference(progress=False),
        hf.DivergedError,
        r"f seems unbounded below on X, or least at infinity: the search met the value -.* at \|x\| = ",
    ),
}


def test_values_are_found_by_variable_and_by_name() -> None:
    point = {x: np.array([1.0, -2.0]), w: np.array([0.5, 0.0])}
    slope = problem(cp.sum_squares(w)).implicit.gradient(point)
    alone = problem().implicit.response(point[x])
    np.testing.assert_allclose(slope["w"], 2 * point[w])
    np.testing.assert_allclose(slope[w], slope["w"])
    assert repr(problem(cp.sum_squares(w)).implicit.project(point)) == "{'x': array([ 1., -2.]), 'w': array([0.5, 0. ])}"
    assert alone[y] is alone["y"] is alone and isinstance(alone, np.ndarray)
    np.testing.assert_allclose(alone, np.maximum(point[x], 0.0), atol=1e-12)
    assert type(alone + 1) is np.ndarray and type(alone[:1]) is np.ndarray and repr(alone) == "array([1., 0.])"
    again = pickle.loads(pickle.dumps(alone))
    assert type(again) is np.ndarray and again.tolist() == [1.0, 0.0]


def test_a_maximum_without_a_bound_is_above() -> None:
    result = hf.Problem(hf.Maximize(clients=level + q), below_one()).solve(progress=False)
    assert result.status == "f seems unbounded above" and "below" not in repr(result)


def test_a_value_of_nothing_has_no_sign() -> None:
    result = hf.Problem(hf.Maximize(clients=-cp.square(level) + 0 * q), below_one()).solve(progress=False)
    assert "f(x) = 0\n" in str(result) and str(result.value) == "0.0"


def test_what_branch_and_bound_cannot_tell_from_nothing_is_said(capfd: pytest.CaptureFixture[str]) -> None:
    level_ = hf.ArgMin(q, cp.square(q - level), [1e30 * q + 1e-30 * level <= 1])
    problem = hf.Problem(hf.Minimize(clients=cp.square(q - 1) + cp.square(level)), level_, [level >= -1, level <= 1])
    answer = problem.reference(certificate="global", progress=False)
    assert "not proved: where rows are violated by 1e-09" in str(answer) and "ERROR" not in capfd.readouterr().err
    assert answer.value == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_answered_with_what_to_write(mistake: str) -> None:
    made, kind, said = MISTAKES[mistake]
    with pytest.raises(kind, match=said) as caught:
        made()
    assert "quad_over_lin" not in str(caught.value) and "AddExpression" not in str(caught.value)


def test_a_variable_that_only_one_term_mentions_is_asked_about() -> None:
    stray = problem(cp.sum(w))
    said = "likely astray: w stands in one term of the upper objective and nowhere else, and nothing bounds it"
    assert said in str(stray) and stray.check(progress=False).remarks[0].startswith(said)
    assert "likely astray: w stands in one" in " ".join(str(stray.check(progress=False)).split())


@pytest.mark.parametrize(
    "of",
    [
        lambda: problem(),
        lambda: problem(cp.sum(w) + cp.sum_squares(w)),
        lambda: hf.Problem(hf.Minimize(clients=cp.sum_squares(x - y) + cp.sum(w)), below(), [w >= -1]),
        lambda: problem(cp.sum(cp.Variable(2, name="v", nonneg=True))),
        lambda: hf.Problem(hf.Minimize(clients=cp.sum_squares(w - 1))),
        lambda: hf.Problem(hf.Minimize(clients=cp.sum(y)), hf.ArgMin(y, cp.sum_squares(y - x - w), [y >= 0])),
    ],
)  # fmt: skip
def test_no_other_variable_is(of: Callable[[], hf.Problem]) -> None:
    assert not of().declaration.strays and "astray" not in str(of())


# --- A misspelt name is answered with the nearest that there is; what is spelt well sees nothing of it.


SETTINGS: list[tuple[Callable[..., Any], str, str]] = [
    (ZOHFL, "stepsize", "step_size"),
    (Decay, "P", "p"),
    (hf.Minimize, "client", "clients"),
    (hf.Equilibrium, "maping", "mapping"),
    (hf.Client, "parameter", "parameters"),
    (hf.Federation.split, "test_share", "test_fraction"),
    (hf.Federation.plot, "sampel", "sample"),
    (hf.Result.plot, "axes", "axis"),
    (hf.Runs.plot, "scael", "scale"),
    (hf.Sweep.plot, "styl", "style"),
    (hf.BlackBox, "shpae", "shape"),
    (hf.Function, "conevx", "convex"),
    (hf.CVaR, "levle", "level"),
    (hf.Cox, "evnt", "event"),
    (hf.Dual, "nmae", "name"),
    (hf.ShadowPrice, "constriant", "constraint"),
    (replace_zohfl := lambda **given: replace(ZOHFL(), **given), "local_step", "local_steps"),
]


@pytest.mark.parametrize(("called", "wrong", "right"), SETTINGS)
def test_a_misspelt_setting_is_answered_with_the_nearest(called: Callable[..., Any], wrong: str, right: str) -> None:
    with pytest.raises(hf.UnknownNameError, match=f"no setting '{wrong}': did you mean .*'{right}'") as caught:
        called(**{wrong: 1})
    assert isinstance(caught.value, TypeError) and isinstance(caught.value, hf.SettingError)


@pytest.mark.parametrize("name", solvers.__all__)
def test_every_solver_answers_misspellings_and_is_otherwise_as_declared(name: str) -> None:
    solver = getattr(solvers, name)
    with pytest.raises(hf.UnknownNameError, match=rf"^{name}\(\) has no setting 'no_such'"):
        solver(no_such=1)
    declared = sorted((f for f in fields(solver) if f.init), key=lambda f: f.kw_only)
    assert list(inspect.signature(solver).parameters) == [f.name for f in declared]
    if name not in ("Decay", "LogGrowth", "Settling"):
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
    with pytest.raises(hf.DataError, match=r"scheme='dirichlet': .* did you mean 'hf.Dirichlet'"):
        hf.Federation.split(rows, clients=2, scheme="dirichlet")  # type: ignore[arg-type]
    with pytest.raises(hf.DataError, match="weights='sample': did you mean 'samples'"):
        hf.Federation([hf.Client(rows)], weights="sample")


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
        (hf.runtime, "Dsk", "'Dask'"),
        (hf.study, "Studdy", "'Study'"),
        (hf.testing, "Case_", "'Case'"),
    ]:
        with pytest.raises(AttributeError, match=f"has no attribute '{wrong}': did you mean .*{right}"):
            getattr(module, wrong)
    with pytest.raises(AttributeError, match="has no attribute 'Variable': it is CVXPY's own, cp.Variable"):
        hf.Variable  # noqa: B018
    assert not hasattr(hf, "__wrapped__")


def test_modules_show_what_is_public_and_nothing_else() -> None:
    rooms = {"models": models, "runtime": hf.runtime, "solvers": solvers, "study": hf.study, "testing": hf.testing}
    assert dir(hf) == sorted([*hf.__all__, *rooms, "__version__"])
    for module in (hf, *rooms.values()):
        assert {name for name in dir(module) if not hasattr(module, name)} == set()
        assert set(module.__all__) <= {*dir(module)} and not {"Any", "TYPE_CHECKING", "import_module"} & {*dir(module)}

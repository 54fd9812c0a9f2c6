"""What a run's history counts of its work is what arithmetic says, and what a host hears that counts every evaluation."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import jax.numpy as jnp
import matplotlib.pyplot as plt
import numpy as np
import pytest

import hierfl as hf
from hierfl.compiler.compiled_problem import CountedProblem
from hierfl.compiler.expressions.program import NO_ROWS
from hierfl.jaxtools.interruption import whole
from hierfl.run_settings import RunSettings
from hierfl.runtime.in_process.execution import InProcess
from hierfl.runtime.records import WORK, Limits
from hierfl.runtime.run import run
from hierfl.solvers import (
    SCAFFOLD,
    ZOHFL,
    Exact,
    Extragradient,
    FedAvg,
    FedBiO,
    FedMBO,
    FedNest,
    FedRZO,
    FedZO,
    ImplicitBundle,
    ImplicitGradient,
    LocalSGD,
    LogGrowth,
    ProjectedSGD,
    ProjectionMethod,
    Scaffnew,
)

pytestmark = pytest.mark.filterwarnings("ignore::hierfl.LowerLevelWarning")  # few steps, for counting
M, ROWS = 4, (3, 5, 2, 6)  # clients, and the rows of each


def problem(scope: str | None) -> hf.Problem:
    x, y, a = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.Sample(2, name="a")
    random = np.random.default_rng(0)
    federation = hf.Federation([hf.Client({a: random.normal(size=(rows, 2))}) for rows in ROWS])
    box = [x >= -2, x <= 2]
    if scope is None:
        return hf.Problem(hf.Minimize(clients=hf.E(cp.sum_squares(x - a))), constraints=box, federation=federation)
    if scope == "sample":
        lower = hf.ArgMin(y, cp.sum_squares(y - x - a), [y >= 0], scope="sample")
        return hf.Problem(hf.Minimize(clients=hf.E(cp.sum_squares(y + x))), lower, box, federation)
    lower = hf.ArgMin(y, hf.E(cp.sum_squares(y - x - a)), scope=scope)
    return hf.Problem(hf.Minimize(clients=cp.sum_squares(y) + cp.sum_squares(x - 1)), lower, box, federation)


CASES = [
    # participants * points (x and x + eta v of each of 3 directions) * local steps
    ("client", FedRZO(directions=3, local_steps=2, lower=ProjectedSGD(steps=2)), M * 4 * 2),
    (
        "client",
        FedRZO(local_steps=[1, 2, 3, 0], lower=ProjectedSGD(steps=2)),
        (1 + 2 + 3 + 1) * 2,
    ),  # 0 steps tell f_i once
    ("client", FedRZO(participation=0.5, lower=ProjectedSGD(steps=2)), 2 * 2),
    ("client", ZOHFL(directions=2, lower=ProjectedSGD(steps=2)), M * 2 * 2),
    ("client", ImplicitGradient(), M),
    ("sample", ZOHFL(batch_size=3, lower=ProjectionMethod(steps=2)), M * 2 * 3),
    ("sample", ZOHFL(batch_size=None, lower=ProjectionMethod(steps=2)), sum(ROWS) * 2),
    ("sample", ImplicitGradient(), sum(ROWS)),
    ("federation", FedRZO(directions=3, local_steps=2, lower=LocalSGD()), 4),  # one y of all, delayed
    ("federation", ImplicitGradient(), 1),
]


@pytest.mark.parametrize(("scope", "solver", "expected"), CASES)
def test_a_round_solves_as_many_as_arithmetic_says(scope: str, solver: Any, expected: int) -> None:
    result = problem(scope).solve(solver, rounds=3, progress=False)
    np.testing.assert_array_equal(result.history["lower_solves"], [expected] * 3)


class Heard(CountedProblem):
    """It hears evaluations of the clients' terms as well, those of gradients among them."""

    def client_value(self, x: Any, y: Any, own: Any, rows: Any = NO_ROWS) -> Any:
        told = [table.samples[0] for table in self.static_data.clients.tables if table.samples[0] in rows.weights]
        self._count("terms", jnp.sum(rows.weights[told[0]]) if told else 1.0, x, own)
        return super().client_value(x, y, own, rows)

    @property
    def counts(self) -> dict[str, int]:
        return {**super().counts, "terms": round(self.tally["terms"])}


HEARD = [  # of each kind of method: what the host hears of two rounds is what the history says
    ("client", FedRZO(directions=2, lower=ProjectedSGD(steps=5), batch_size=None)),
    ("client", FedRZO(local_steps=[1, 2, 3, 0], estimator="central", lower=ProjectedSGD(steps=[1, 2, 3, 4]))),
    ("client", FedRZO(local_steps=2, lower=ProjectionMethod(steps=LogGrowth(3.0)), participation=0.5)),
    ("client", FedRZO(lower=Extragradient(steps=3))),
    ("sample", ZOHFL(batch_size=3, lower=ProjectionMethod(steps=2))),
    ("federation", FedRZO(directions=3, local_steps=2, lower=LocalSGD(rounds=2, steps=3))),
    ("federation", FedNest(local_steps=2, inner_steps=2, inner_rounds=2, neumann=3)),
    ("federation", FedBiO(0.05, local_steps=3, inner_step=0.1, linear_step=0.1)),
    ("federation", FedMBO(0.05, inner_rounds=2, neumann=3, inner_step=0.1, lipschitz=4.0)),
    (None, FedAvg(0.05, [1, 2, 3, 0])),
    (None, FedAvg(0.05, 2, participation=0.5)),
    (None, SCAFFOLD(0.05, 2, option="I")),
    (None, FedZO(0.05, 2, directions=3)),
    (None, Scaffnew(0.05)),
]


@pytest.mark.filterwarnings("ignore::hierfl.TheoryWarning")
@pytest.mark.parametrize(("scope", "solver"), HEARD, ids=[f"{scope}-{type(solver).__name__}-{place}" for place, (scope, solver) in enumerate(HEARD)])
def test_the_host_hears_as_many_evaluations_as_the_history_counts(scope: str | None, solver: Any) -> None:
    counted, heard = Heard.of(problem(scope).compile()), {}
    settings = RunSettings.of(
        {
            "rounds": 2,
            "evaluate_every": 2,
            "runtime": InProcess(schedule="map"),
            "progress": False,
            "callback": lambda *_: heard.update(counted.counts),
        }
    )
    with whole():
        result = run(counted, solver, settings, Limits())
    told = {name: int(np.sum(result.history.get(name, 0))) for name in WORK}
    if scope == "federation" and isinstance(solver, FedBiO | FedMBO | FedNest):
        # a gradient in x or in y evaluates f_i once, a product with second derivatives F once
        assert heard == {"terms": told["gradients"], "gradients": told["lower_gradients"] + told["products"], "projections": 0}
    else:
        assert heard["terms"] == told["values"] + told["gradients"] > 0
        assert heard["gradients"] == told["lower_gradients"]


def test_projections_are_those_on_x_and_those_on_y_of_x() -> None:
    """A queried point is projected on X, and x after a step; ProjectionMethod(steps=2) projects its start, its steps and for the residual."""
    own = problem("sample").solve(ZOHFL(batch_size=3, lower=ProjectionMethod(steps=2)), rounds=2, progress=False)
    answers = M * 2 * 3
    np.testing.assert_array_equal(own.history["lower_solves"], answers)
    np.testing.assert_array_equal(own.history["lower_gradients"], answers * 3)
    np.testing.assert_array_equal(own.history["projections"], answers * 4 + M * 2 + 1)


def test_what_an_exact_answer_or_an_adjoint_of_all_clients_takes_is_their_data_once() -> None:
    """16 rows of two numbers; [c] of every client beside; of levels of each client nothing is sent."""
    data = 2 * sum(ROWS)
    for solver in (ImplicitGradient(), ImplicitGradient(lower=LocalSGD())):
        result = problem("federation").solve(solver, rounds=3, progress=False)
        exact = not isinstance(getattr(solver, "lower", None), LocalSGD)
        lower = result.communication["lower_scalars_up"] if exact else result.history["scalars"][0] - result.history["scalars"][1]
        assert lower == data, solver
    assert problem("client").solve(ImplicitGradient(), rounds=3, progress=False).communication["lower_scalars_up"] == 0


def test_the_bundle_method_solves_every_clients_lower_level_at_every_point_it_asks_for(monkeypatch: Any) -> None:
    import hierfl.descent.implicit_oracle as oracle

    asked, evaluate = [], oracle.evaluated_with_gradient
    monkeypatch.setattr(oracle, "evaluated_with_gradient", lambda *given: asked.append(1) or evaluate(*given))
    result = problem("client").solve(ImplicitBundle(), rounds=5, progress=False)
    assert result.history["lower_solves"].sum() == M * len(asked) >= M * 2


def test_convergence_by_lower_solves_and_who_has_none() -> None:
    compared = hf.sweep(problem("client"), {"four": ZOHFL(lower=Exact(), directions=4)}, seeds=2, rounds=4, progress=False)
    (line, *_) = compared.plot(axis="lower solves").axes[0].lines
    np.testing.assert_array_equal(line.get_xdata(), M * 8 * np.arange(1, 5))
    plt.close("all")
    plain = problem(None).solve(FedAvg(step_size=0.1), rounds=2, progress=False)
    assert "lower_solves" not in plain.history
    with pytest.raises(hf.SettingError, match="the problem has no lower level"):
        plain.plot(axis="lower solves")
    along = problem("federation").solve(FedMBO(0.05, lipschitz=4.0), rounds=2, progress=False)
    with pytest.raises(hf.SettingError, match="FedMBO.* counted none: it moves y along with x"):
        along.plot(axis="lower solves")
    with pytest.raises(hf.SettingError, match="did you mean 'lower solves'"):
        along.plot(axis="lower_solves")

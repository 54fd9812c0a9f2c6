"""Schedules of the theorems as printed, for an H that is asked for, for lower solvers; and the conditions of [HFL] Theorem 2."""

from __future__ import annotations

from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.solvers import ZOHFL, Decay, Exact, Extragradient, FedRZO, LocalSGD, ProjectedSGD, ProjectionMethod
from tests.solvers.papers.test_theory import answers_of_samples, bounded_clients, coupled_clients

pytestmark = pytest.mark.filterwarnings("ignore::hierfl.TheoryWarning", "ignore::hierfl.LowerLevelWarning")
ETA = 0.1


def distance() -> hf.Problem:
    """|x| on [-1, 1]: n = m = 1, L_0 = 1, no samples, B_1 = 0 and B_2 = 1 (one set for all); f^eta(0) - inf f^eta is at most 0 + L_0 eta."""
    x = cp.Variable(name="x")
    return hf.Problem(hf.Minimize(clients=cp.abs(x)), constraints=[x >= -1, x <= 1])


def run(problem: hf.Problem, solver: Any, **settings: Any) -> hf.Result:
    return problem.solve(solver, **{"rounds": 3, "progress": False, **settings})


def printed_nn(horizon: float, steps: float, lipschitz_n: float) -> tuple[float, float]:
    """(the error bound of [2S] Proposition 1 (i), gamma over its limit) at gamma = sqrt(m / K), by the printed display."""
    gamma = np.sqrt(1 / horizon)
    drift = 36 * steps**2 * gamma**2 * (1 + 1) ** 2 / ETA**2 * (3 + 4)
    bound = 8 * (1 * ETA) / (gamma * (horizon + 1)) + 12 * gamma * lipschitz_n / ETA + drift
    return bound, gamma / min(ETA / (4 * lipschitz_n), 1 / (4 * steps), ETA / (12 * np.sqrt(3) * 2 * steps))


@pytest.mark.parametrize("steps", [1, 7, None])
def test_the_printed_horizon_is_the_least_of_the_printed_bound(steps: int | None) -> None:
    """The horizon K is the least one, to rounding, at which the bound and the step limit of the display hold."""
    result = run(distance(), FedRZO(schedule="theory-as-printed", local_steps=steps, accuracy=1.0), x0=0.0)
    theory = result.settings["theory"]
    horizon, made = 1 / theory["step_size"] ** 2, theory["local_steps"]
    if steps is None:
        assert made == np.ceil(horizon**0.25)
    bound, share = printed_nn(horizon, made, lipschitz_n=1.0)
    assert bound == pytest.approx(theory["bound"], rel=1e-6) and bound <= 1 + 1e-9 and share <= 1 + 1e-9
    if steps is not None:
        less_bound, less_share = printed_nn(0.999 * horizon, made, lipschitz_n=1.0)
        assert less_bound > 1 or less_share > 1
    by_theory = run(distance(), FedRZO(schedule="theory", local_steps=steps, accuracy=1.0), x0=0.0).settings["theory"]
    assert by_theory["rounds"] >= theory["rounds"] and theory["schedule"] == "theory-as-printed"


def test_more_local_steps_of_bilevel_problems_are_printed_and_not_proved() -> None:
    """[2S] Lemma 9: with its gap closed Theorem 1 covers H = 1 alone; as printed gamma meets the printed limit for H = 7."""
    problem = coupled_clients()

    def prescribed(schedule: str, steps: int | None) -> Any:
        return FedRZO(schedule=schedule, local_steps=steps, accuracy=1.0).prescribed(problem.compile())

    with pytest.raises(
        hf.SettingError, match=r"local_steps=7: \[2S\] Theorem 1 is proved for one local step a round only"
    ):
        prescribed("theory", 7)
    assert prescribed("theory", 1) == prescribed("theory", None)
    assert prescribed("theory-as-printed", None).local_steps > 7
    with pytest.warns(hf.TheoryWarning, match="reached, by what is printed, after"):
        printed = run(problem, FedRZO(schedule="theory-as-printed", local_steps=7, accuracy=1.0))
    assert printed.settings["theory"]["local_steps"] == 7 and "theorem-1" in printed.settings["theory"]["lower"]
    two_stage = FedRZO(schedule="theory", local_steps=7, accuracy=1.0).prescribed(answers_of_samples().compile())
    assert two_stage is not None and two_stage.local_steps == 7


@pytest.mark.parametrize(
    "settings", [{"local_steps": 1.5}, {"local_steps": [1, 2, 3]}, {"local_steps": 0}, {"step_size": 0.1}]
)
def test_what_the_theorems_leave_no_choice_of(settings: dict) -> None:
    with pytest.raises(hf.SettingError, match="theory-as-printed"):
        FedRZO(schedule="theory-as-printed", **settings)


# --- lower solvers -------------------------------------------------------------------------------------------------------


def test_local_sgd_by_theorem_1() -> None:
    """T_r = (r + 1)^(2/3) / m steps in m lower rounds of ceil(T_r / m); the steps of Algorithm 3. mu = L = 2, m = 3, a_r = max(4, r) + 1."""
    bound = LocalSGD(schedule="theorem-1").bind(coupled_clients().compile(), 1000, 1000)
    r = np.arange(1000)
    np.testing.assert_array_equal(bound.lower_rounds, [3])
    np.testing.assert_array_equal(bound.local_steps, np.ceil((r + 1) ** (2 / 3) / 9 - 1e-9))
    np.testing.assert_allclose(bound.sizes, 1 / (2 * (np.maximum(4, r) + 1)))
    assert bound.local_steps[-1] == 12  # 1000^(2/3) / 9 = 11.1


def test_tau_of_algorithm_5_is_chosen() -> None:
    """mu_F = 1, L_F = 3: tau = -1 / ln(1 - 1/9), alpha = 1/9; the error after t_k steps is at most B (1 - 1/9)^t_k <= B / (k + 1)."""
    lower, k = ProjectionMethod(steps="theory").bind(answers_of_samples().compile(), 20, 20), np.arange(1, 21)
    np.testing.assert_array_equal(lower.counts, np.ceil(-np.log(k + 1) / np.log(1 - 1 / 9) - 1e-9))
    assert float(lower.alpha) == pytest.approx(1 / 9)
    assert (((1 - 1 / 9) ** lower.counts) <= 1 / (k + 1) + 1e-12).all()
    chosen = FedRZO(schedule="theory", accuracy=1.0, lower=ProjectionMethod(steps="theory"))
    assert run(answers_of_samples(), chosen).ended == "completed"
    for make in (lambda: Extragradient(steps="theory"), lambda: ProjectionMethod(steps="theory", step_size=0.1)):
        with pytest.raises(hf.SettingError, match="tau is that of ProjectionMethod with the step mu / L"):
            make()
    with pytest.raises(hf.SettingError, match="'theory'"):
        ProjectionMethod(steps="theori")


# --- [HFL] Theorem 2 -----------------------------------------------------------------------------------------------------

LIMIT = 0.1 / (4 * 1.25)  # eta / (4 (eta L_1 + L0_imp sqrt(n))), L_1 = 0, L0_imp = 1.25, n = 1
LONGER = ProjectedSGD(steps=Decay(5, -0.75), schedule="theory")


@pytest.fixture(scope="module")
def checked() -> tuple[Any, Any]:
    """The compiled problem, and its check."""
    problem = bounded_clients()
    return problem.compile(), problem.check(samples=4, progress=False)


@pytest.mark.parametrize(
    ("solver", "told"),  # nonsummable, square-summable, below the limit, errors summable
    [
        (ZOHFL(step_size=Decay(0.9 * LIMIT, 0.6), lower=Exact()), "pppp"),
        (ZOHFL(step_size=Decay(0.9 * LIMIT, 1.0), lower=LONGER), "pppp"),
        (ZOHFL(step_size=Decay(0.9 * LIMIT, 0.5), lower=LONGER), "pvpp"),  # the paper's own p
        (ZOHFL.published(tau=20), "pvpu"),  # 0.1 / (t + 1) meets no condition of Proposition 1
        (ZOHFL(schedule="theory"), "pvvu"),  # p = 1/2 and q = 1/2; 1 / (4 L^f) is the limit, up to rounding
        (ZOHFL(step_size=0.5 * LIMIT, lower=Exact()), "pvpp"),
        (ZOHFL(step_size=Decay(0.9 * LIMIT, 1.1), lower=Exact()), "vppp"),
        (ZOHFL(step_size=Decay(1.1 * LIMIT, 0.75), lower=Exact()), "ppvp"),
        (ZOHFL(step_size=Decay(0.9 * LIMIT, -0.1), lower=Exact()), "pvvp"),
        (
            ZOHFL(step_size=Decay(0.9 * LIMIT, 0.6), lower=ProjectedSGD(steps=[Decay(5, -1), 9, 9], schedule="theory")),
            "pppu",
        ),
        (ZOHFL(step_size=lambda r: 0.01 / (r + 1), lower=Exact()), "uuup"),
    ],
)
def test_the_conditions_of_theorem_2(solver: ZOHFL, told: str, checked: tuple[Any, Any]) -> None:
    theorem, *_ = solver.asymptotics(*checked)
    assert theorem.name == "[HFL] Theorem 2"
    found = {h.name: h for h in theorem.hypotheses}
    names = (
        "steps nonsummable",
        "steps square-summable",
        "steps below their limit",
        "lower errors summable with the steps",
    )
    by_letter = "".join(found[name].status[0] for name in names)
    assert by_letter == told or (solver.schedule == "theory" and by_letter == told.replace("vv", "vp"))
    assert theorem.applies == (told == "pppp")
    if told[1] == "v" and "p = 1/2" in found["steps square-summable"].reason:
        assert "the paper's own experiments" in found["steps square-summable"].reason
    assert told[0] != "v" or found["steps nonsummable"].reason.endswith("x cannot move far")


@pytest.mark.parametrize(
    ("steps", "told"),  # nonsummable, square-summable
    [(Decay(0.1, 1.0), "pp"), (Decay(0.1, 0.6), "pp"), (Decay(0.1, 0.5), "pv"), (0.1, "pv"), (Decay(0.1, 1.5), "vp"), (lambda t: 0.1, "uu")],
)
def test_the_conditions_of_proposition_1(steps: Any, told: str, checked: tuple[Any, Any]) -> None:
    _, below = ZOHFL(lower=ProjectedSGD(step_size=steps)).asymptotics(*checked)
    found = {h.name: h for h in below.hypotheses}
    assert below.name == "[HFL] Proposition 1 (ii)" and below.applies == (told == "pp")
    assert "".join(found[f"lower steps {name}"].status[0] for name in ("nonsummable", "square-summable")) == told
    assert told[0] != "v" or found["lower steps nonsummable"].reason.endswith("y cannot move far")
    assert ZOHFL(lower=Exact()).asymptotics(*checked)[1:] == ()


def test_proposition_1_is_not_about_equilibria() -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    turned = hf.Equilibrium(y, np.array([[0.0, 1.0], [-1.0, 0.0]]) @ y - x, [y >= -1, y <= 1], scope="client")
    problem = hf.Problem(hf.Minimize(clients=cp.norm1(x - y)), turned, [x >= -1, x <= 1])
    solver = ZOHFL(lower=ProjectedSGD(step_size=Decay(0.1, 0.75)))
    _, below = solver.asymptotics(problem.compile(), problem.check(samples=4, progress=False))
    assert set(below.missing) == {"lower level is an argmin", "strong monotonicity"}  # steps lead away from y(x)


def test_what_theorem_2_is_not_about(checked: tuple[Any, Any]) -> None:
    half = bounded_clients().check(solver=ZOHFL(participation=0.5), samples=4, progress=False)
    assert {h.name: h.status for h in half.theorems[1].hypotheses}["all clients take part"] == "not covered"
    means = half.page["it means"]
    assert any(line.startswith("[HFL] Theorem 1 covers runs of ZOHFL") for line in means)
    assert any("no theorem" in line and "[HFL] Theorem 2 asks for 3 things more" in line for line in means)
    with pytest.raises(hf.SettingError, match="lower levels of client scope"):
        distance().check(solver=ZOHFL(), progress=False)
    for other in (FedRZO(), ZOHFL, 3):
        with pytest.raises(hf.SettingError, match="an instance of ZOHFL"):
            distance().check(solver=other)
    assert "p = 1/2, do not meet" in checked[1].details

"""``schedule="theory"``: the settings of the class's theorem, or an error that says what is in the way."""

from __future__ import annotations

import warnings
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.solvers import (
    LFD,
    ZOHFL,
    Decay,
    Exact,
    Extragradient,
    FedAC,
    FedRZO,
    LocalSGD,
    LocalSGDA,
    LogGrowth,
    ProjectedSGD,
    ProjectionMethod,
)


def bounded_clients(rows: int = 5) -> hf.Problem:
    """Client scope with every hypothesis of [HFL] Theorem 1: mu_h = L_h = 2, L0_imp = 1.25."""
    x, y, u = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="u")
    clipped, rng = cp.minimum(1, cp.maximum(-1, x)), np.random.default_rng(0)
    return hf.Problem(
        hf.Minimize(clients=cp.abs(clipped - 0.5) + y),
        lower=hf.ArgMin(y, hf.E(cp.square(y - u)) + 0.5 * cp.multiply(clipped, y), [y >= -2, y <= 2], scope="client"),
        federation=hf.Federation([hf.Client({u: rng.uniform(-1, 1, rows)}) for _ in range(3)]),
    )


def solve(problem: hf.Problem, solver: Any, **settings: Any) -> hf.Result:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hf.LowerLevelWarning)
        found: hf.Result = problem.solve(solver, **{"rounds": 3, "progress": False, **settings})
    return found


def test_zohfl_takes_the_steps_of_its_theorem() -> None:
    problem = bounded_clients()
    with pytest.warns(hf.TheoryWarning, match="proved after 3.8e10 rounds, not after 3"):
        result = solve(problem, ZOHFL(schedule="theory"))
    size = 0.1 / (4 * 1.25)  # 1 / (4 L^f), L^f = L0_imp sqrt(n) / eta
    np.testing.assert_allclose(result.history["step_size"], size / np.sqrt([1, 2, 3]))
    assert result.settings["theory"]["step_size"] == pytest.approx(size)
    assert result.settings["theory"]["local_steps"] == 73  # at least max{2 sigma^2 (2/mu)^2, Gamma |y_0 - y|^2} = 72.15
    with pytest.warns(hf.TheoryWarning):
        exact = solve(problem, ZOHFL(schedule="theory", lower=Exact()))
    assert exact.certificate.lower_residual < 1e-6


def test_projected_sgd_takes_the_steps_of_proposition_1() -> None:
    lower = ProjectedSGD(steps=3, schedule="theory").bind(bounded_clients().compile(), 1, 3)
    np.testing.assert_allclose(lower.sizes, 1 / (np.arange(3) + 4))  # (2/mu) / (t + 4 (L/mu)^2), mu = L = 2


@pytest.mark.parametrize(
    "make",
    [
        lambda: FedRZO(schedule="theory", step_size=0.3),
        lambda: ZOHFL(schedule="theory", step_size=0.3),
        lambda: LocalSGD(schedule="theory", rounds=2),
        lambda: LFD(schedule="certified", step_size=0.2),
        lambda: ProjectedSGD(schedule="theory", step_size=0.2),
    ],
)
def test_what_theory_chooses_cannot_be_given_too(make: Any) -> None:
    with pytest.raises(hf.SettingError, match="chooses .* itself: leave it out"):
        make()


@pytest.mark.parametrize(("made", "name"), [(LocalSGD, "schedule"), (LFD, "schedule"), (ProjectedSGD, "schedule"), (LocalSGD, "start"), (ProjectedSGD, "start")])
def test_settings_of_words_are_among_those_that_there_are(made: Any, name: str) -> None:
    with pytest.raises(hf.SettingError, match=f"{name} of .*'prctical': "):
        made(**{name: "prctical"})


def test_the_theorem_of_another_solver_is_not_taken() -> None:
    with pytest.raises(hf.SettingError, match=r"\[HFL\] Theorem 1, is about ZOHFL"):
        solve(bounded_clients(), FedRZO(schedule="theory"))
    x = cp.Variable(name="x")
    with pytest.raises(hf.SettingError, match="is about FedRZO"):
        solve(hf.Problem(hf.Minimize(clients=cp.abs(x)), constraints=[cp.abs(x) <= 1]), ZOHFL(schedule="theory"))


def test_absent_clients_are_not_covered() -> None:
    with pytest.raises(hf.SettingError, match="all clients take part"):
        solve(bounded_clients(), ZOHFL(schedule="theory", participation=0.5))


def test_an_accuracy_out_of_reach_is_said() -> None:
    x = cp.Variable(name="x")
    problem = hf.Problem(hf.Minimize(clients=cp.abs(x)), constraints=[cp.abs(x) <= 1])
    with pytest.raises(hf.SettingError, match="no horizon below 1e300"):
        solve(problem, FedRZO(schedule="theory", accuracy=1e-200))


def test_local_sgda_says_that_it_ignores_a_moving_set() -> None:
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    moving = hf.Problem(hf.Minimize(clients=cp.square(x) + y), lower=hf.ArgMax(y, cp.square(x) + y, [y <= -x]))
    with pytest.warns(hf.TheoryWarning, match="y <= -x moves with x"):
        solve(moving, LocalSGDA())
    fixed = hf.Problem(hf.Minimize(clients=cp.square(x) + y), lower=hf.ArgMax(y, cp.square(x) + y, [y <= 1]))
    with warnings.catch_warnings():
        warnings.simplefilter("error", hf.TheoryWarning)
        solve(fixed, LocalSGDA())


def far_from_the_kink(radius: float = 1000.0) -> hf.Problem:
    """f = |x| / 100 on [-radius, radius]: L_0 = 0.01."""
    x = cp.Variable(name="x")
    return hf.Problem(hf.Minimize(clients=0.01 * cp.abs(x)), constraints=[x >= -radius, x <= radius])


@pytest.mark.parametrize(("x0", "fall"), [(None, 10.0), (-1000.0, 10.0), (500.0, 5.0), (0.0, 0.0)])
def test_the_fall_of_f_is_that_from_the_start(x0: float | None, fall: float) -> None:
    """f^eta is at most L_0 eta = 0.01 above f; the horizon grows with the fall."""
    (theorem,) = far_from_the_kink().check(smoothing=1, epsilon=5e-5, x0=x0, progress=False).theorems
    assert theorem.fall == pytest.approx(fall + 0.01, rel=1e-9)
    nearest = far_from_the_kink().check(smoothing=1, epsilon=5e-5, x0=0.0, progress=False).theorems[0].printed
    assert theorem.printed is not None and nearest is not None and nearest.rounds == 97_216
    assert theorem.printed.rounds == nearest.rounds if fall == 0 else theorem.printed.rounds > 1e8
    assert ("every x_0 in X" if x0 is None else "x_0 = [") in str(theorem)


def test_a_run_by_theory_is_that_of_its_start() -> None:
    """From -1000, 97,216 rounds (those from 0) leave |grad f^eta|^2 = 1e-4 throughout, twice the accuracy."""
    solver, problem = FedRZO(smoothing=1, schedule="theory", accuracy=5e-5), far_from_the_kink()
    with pytest.warns(hf.TheoryWarning, match=r"proved after 2.0e09 rounds"):
        far = solve(problem, solver, x0=-1000.0)
    with pytest.warns(hf.TheoryWarning, match="proved after 98,534 rounds"):
        near = solve(problem, solver, x0=0.0)
    (theorem,) = problem.check(smoothing=1, epsilon=5e-5, x0=-1000.0, progress=False).theorems
    assert theorem.predicted is not None and far.settings["theory"]["step_size"] == theorem.predicted.step
    assert far.settings["theory"]["step_size"] < 0.01 * near.settings["theory"]["step_size"]


def test_an_unbounded_upper_set_needs_the_start() -> None:
    x = cp.Variable(name="x")
    problem = hf.Problem(hf.Minimize(clients=0.01 * cp.abs(x)))
    (anywhere,), (here,) = (problem.check(x0=x0, progress=False).theorems for x0 in (None, 2.0))
    assert anywhere.applies and anywhere.predicted is None and "give check(x0=...)" in str(anywhere)
    assert here.fall == pytest.approx(0.02 + 0.01 * 0.1) and here.predicted is not None
    with pytest.warns(hf.TheoryWarning):
        assert solve(problem, FedRZO(schedule="theory"), x0=2.0).status


def one_stiff_client() -> hf.Problem:
    """Ten clients with (k_i / 2)(y - x)^2, k = 2000 and nine times 1: the mean's constant is 200.9, one client's 2000."""
    x, y, k = cp.Variable(name="x"), cp.Variable(name="y"), hf.ClientParameter(name="k", nonneg=True)
    return hf.Problem(
        hf.Minimize(clients=cp.abs(x - y) + cp.abs(y)),
        hf.ArgMin(y, 0.5 * k * cp.square(y - x), [y >= -2, y <= 2], scope="federation"),
        constraints=[x >= -1, x <= 1],
        federation=hf.Federation([hf.Client(parameters={k: c}) for c in [2000.0] + [1.0] * 9]),
    )


@pytest.mark.parametrize("lower", [LocalSGD(schedule="theory"), LFD(schedule="certified"), FedAC()], ids=str)
def test_methods_with_steps_of_each_client_take_the_worst_client(lower: Any) -> None:
    """By the mean's constants client 1 steps further than 2 / L_1, and the iterates grow without end."""
    problem = one_stiff_client()
    result = solve(problem, FedRZO(lower=lower, step_size=0.01), x0=0.9)
    assert np.isfinite(result.own_value)
    sizes = lower.bind(problem.compile(), 3, 3).sizes
    assert np.max(sizes if np.ndim(sizes) == 1 else sizes[:, 0]) <= 2 / 2000


def test_lfd_claims_no_theorem_of_its_source() -> None:
    """[2S] quotes the number of local steps of LFD's source and no step sizes: those of Algorithm 3 are taken, by another name."""
    with pytest.raises(hf.SettingError, match="LFD has no schedule='theory'.*schedule='certified'"):
        LFD(schedule="theory")
    bound = LFD(schedule="certified").bind(coupled_clients().compile(), 9, 9)
    a = np.maximum(4.0, np.arange(9)) + 1  # mu = L = 2, m = 3
    np.testing.assert_allclose(bound.sizes, 1 / (2 * a))
    total = 2 * a * np.log(a)
    np.testing.assert_array_equal(bound.local_steps, np.ceil(total ** (2 / 3) / 3 ** (1 / 3)))
    assert (bound.lower_rounds * bound.local_steps >= total).all()


def test_lfd_keeps_an_error_where_clients_differ() -> None:
    """Clients (k/2)(y - c)^2: H steps of size s end where sum (1 - (1 - s k)^H)(c - y) = 0, not where sum k (c - y) = 0."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    k, c = hf.ClientParameter(name="k", nonneg=True), hf.ClientParameter(name="c")
    curvatures, minimisers, step, local = np.array([1.0, 4.0]), np.array([1.0, -1.0]), 0.1, 5
    problem = hf.Problem(
        hf.Minimize(clients=cp.abs(x) + y),
        hf.ArgMin(y, 0.5 * k * cp.square(y - c), scope="federation"),
        federation=hf.Federation([hf.Client(parameters={k: a, c: b}) for a, b in zip(curvatures, minimisers)]),
    )
    weights = 1 - (1 - step * curvatures) ** local
    stays, right = (float(w @ minimisers / w.sum()) for w in (weights, curvatures))
    lower = LFD(rounds=200, steps=local, step_size=step)
    result = solve(problem, FedRZO(lower=lower, step_size=1e-9), x0=0.0)
    assert result.own_value == pytest.approx(stays, abs=1e-6) and result.value == pytest.approx(right, abs=1e-6)
    assert abs(stays - right) > 0.2


def coupled_clients() -> hf.Problem:
    """Federation scope with data below and every hypothesis of [2S] Theorem 1: mu_h = L_h = 2."""
    x, y, u = cp.Variable(name="x"), cp.Variable(name="y"), hf.Sample(name="u")
    rng = np.random.default_rng(1)
    return hf.Problem(
        hf.Minimize(clients=cp.abs(x - y)),
        hf.ArgMin(y, hf.E(cp.square(y - u)) + cp.multiply(0.5, cp.multiply(x, y)), [y >= -2, y <= 2]),
        constraints=[x >= -1, x <= 1],
        federation=hf.Federation([hf.Client({u: rng.uniform(-1, 1, 4)}) for _ in range(3)]),
    )


def answers_of_samples() -> hf.Problem:
    """Sample scope with mu_F = 1, L_F = 3: t_k = ceil(-ln(k + 1) / ln(1 - 1/9)) projections, alpha = 1/9."""
    x, y, u = cp.Variable(name="x"), cp.Variable(2, name="y"), hf.Sample(2, name="u")
    curved = np.diag([1.0, 3.0])
    return hf.Problem(
        hf.Minimize(clients=hf.E(cp.abs(y[0]) + cp.abs(x - y[1]))),
        hf.ArgMin(y, 0.5 * cp.quad_form(y, curved) - u @ y - x * y[0], [y >= -2, y <= 2], scope="sample"),
        constraints=[x >= -1, x <= 1],
        federation=hf.Federation([hf.Client({u: np.ones((3, 2))}) for _ in range(2)]),
    )


@pytest.mark.filterwarnings("ignore::hierfl.TheoryWarning")
@pytest.mark.parametrize(
    ("problem", "solver", "prescribed"),
    [
        (
            coupled_clients,
            FedRZO,
            "LocalSGD(rounds=5, steps=10, step_size=Decay(c=0.1, p=0.5), batch_size=32, schedule='theory', start='warm')",
        ),
        (answers_of_samples, FedRZO, str(Exact())),
        (bounded_clients, ZOHFL, "ProjectedSGD(steps=Decay(c=73.0, p=-0.5), step_size=by theory, batch_size=32)"),
    ],
    ids=["federation", "sample", "client"],
)
def test_the_lower_solver_is_the_prescribed_one(problem: Any, solver: Any, prescribed: str) -> None:
    assert solve(problem(), solver(schedule="theory", accuracy=1.0)).settings["theory"]["lower"] == prescribed


@pytest.mark.filterwarnings("ignore::hierfl.TheoryWarning")
@pytest.mark.parametrize(
    ("problem", "solver", "enough", "short"),
    [
        (
            coupled_clients,
            FedRZO,
            [Exact(), LocalSGD(schedule="theory")],
            [LocalSGD(), LFD(schedule="certified"), FedAC(), Exact(tolerance=0.1)],
        ),
        (
            answers_of_samples,
            FedRZO,
            [Exact(), ProjectionMethod(steps=200), ProjectionMethod(steps=LogGrowth(8.5))],
            [ProjectionMethod(steps=2), ProjectionMethod(step_size=0.1), Extragradient(steps=50), ProjectedSGD()],
        ),
        (
            bounded_clients,
            ZOHFL,
            [Exact(), ProjectedSGD(steps=Decay(80, -0.5), schedule="theory")],
            [ProjectedSGD(steps=73, schedule="theory"), ProjectedSGD(steps=Decay(80, -0.5)), Extragradient(steps=200)],
        ),
    ],
    ids=["federation", "sample", "client"],
)
def test_a_given_lower_solver_is_no_less_accurate(problem: Any, solver: Any, enough: Any, short: Any) -> None:
    declared = problem()
    for lower in enough:
        assert solve(declared, solver(schedule="theory", accuracy=1.0, lower=lower)).ended == "completed"
    for lower in short:
        with pytest.raises(hf.errors.SettingError, match=r"as accurate as those of .*Exact\(\)"):
            solve(declared, solver(schedule="theory", accuracy=1.0, lower=lower))


@pytest.mark.parametrize(
    ("settings", "run"), [({"control_variate": True}, {}), ({"estimator": "central"}, {}), ({}, {"queries": "raw"})]
)
def test_what_a_theorem_does_not_cover_is_refused(settings: Any, run: Any) -> None:
    (name,) = settings or run
    with pytest.raises(hf.errors.SettingError, match=f"with {name}=.*the theorem does not cover it"):
        solve(far_from_the_kink(), FedRZO(schedule="theory", **settings), **run)
    if run:
        with pytest.raises(hf.errors.SettingError, match="queries='raw'"):
            solve(bounded_clients(), ZOHFL(schedule="theory"), queries="raw")


def test_known_gaps_are_named() -> None:
    one, two = (problem().check(progress=False).theorems[0] for problem in (far_from_the_kink, coupled_clients))
    assert "(L_0 n + 1) / eta-smooth" in str(one) and one.printed is not None
    assert "24 (4 B_2^2 + 1)" in str(two) and "m^-1 (r + 1)^(2/3)" in str(two)


def test_a_start_outside_x_is_no_start_of_the_theorem() -> None:
    with pytest.raises(
        hf.errors.SettingError, match=r"check.*x0 is 1 away from it: begin at the nearest point, \[1000.\]"
    ):
        far_from_the_kink().check(x0=1001.0)
    with pytest.raises(hf.errors.SettingError, match="schedule='theory'.*begin in X"):
        solve(far_from_the_kink(), FedRZO(schedule="theory"), x0=1001.0)

"""Many seeds at once, and several solvers side by side."""

from __future__ import annotations

import gc
import time
import weakref

import cvxpy as cp
import matplotlib as mpl
import numpy as np
import pytest
import scipy.stats

import hierfl as hf
from hierfl.solvers import ZOHFL, FedAvg, FedRZO, LocalSGD, ProjectedSGD
from tests.small_declarations import quartic, two_wells

mpl.use("Agg")

START = np.array([0.3, -0.4])
DATA = [np.random.default_rng(i).standard_normal((n, 2)) for i, n in enumerate((4, 7, 3))]


def problem(scope: str | None = "client") -> hf.Problem:
    x, y, u = cp.Variable(2, name="x"), cp.Variable(2, name="y"), hf.Sample(2, name="u")
    federation = hf.Federation([hf.Client({u: rows}) for rows in DATA])
    constraints = [x >= -0.35, x <= 0.5]
    if scope is None:
        return hf.Problem(hf.Minimize(clients=hf.E(cp.square(u @ x - 1))), None, constraints, federation)
    level = hf.ArgMin(y, hf.E(0.5 * cp.square(u @ y - 1)) + cp.sum_squares(y - x), scope=scope)
    upper = hf.Minimize(clients=hf.E(cp.abs(u @ y - 1)) + 0.5 * cp.sum_squares(x))
    return hf.Problem(upper, level, constraints, federation)


CASES = {
    "FedRZO, federation": ("federation", FedRZO(step_size=0.05, local_steps=2, lower=LocalSGD(rounds=2, steps=3))),
    "ZOHFL, SGD": ("client", ZOHFL(step_size=0.05, participation=0.6, lower=ProjectedSGD(steps=5))),
    "FedAvg": (None, FedAvg(step_size=0.05, local_steps=3, batch_size=2)),
}
pytestmark = pytest.mark.filterwarnings("ignore::hierfl.LowerLevelWarning")


@pytest.mark.parametrize("case", CASES)
def test_each_seed_has_the_trajectory_of_its_own_run(case: str) -> None:
    scope, solver = CASES[case]
    declared, settings = problem(scope), {"rounds": 25, "x0": START, "progress": False}
    norm = {"norm": lambda x, y: float(np.linalg.norm(x))}
    runs = declared.solve(solver, seeds=[4, 0, 9], metrics=norm, **settings)
    assert runs.seeds == (4, 0, 9)
    for run in runs:
        alone = declared.solve(solver, seed=run.settings["seed"], metrics=norm, **settings)
        np.testing.assert_allclose(run.iterate, alone.iterate, rtol=0, atol=1e-10)
        for name in ("objective", "gradient_norm", "lower_residual"):
            np.testing.assert_allclose(run.history[name], alone.history[name], rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(run.metrics["norm"], alone.metrics["norm"], atol=1e-10)
        assert run.value == pytest.approx(alone.value, abs=1e-8)
        assert run.own_value == pytest.approx(alone.own_value, abs=1e-8)
        assert run.communication == alone.communication


def test_restarts_find_the_better_of_two_local_minima() -> None:
    problem, solver = two_wells(), FedRZO(smoothing=0.01, step_size=0.05, estimator="central", batch_size=None)
    alone = problem.solve(solver, rounds=400, x0=0.5, progress=False)
    assert alone.value == pytest.approx(-3.8095, abs=1e-3) and alone.x == pytest.approx(1.905, abs=2e-2)
    assert alone.x0 == 0.5 and alone.gap == pytest.approx(-3.8095 + 4.3772, abs=2e-3)
    runs = problem.solve(solver, rounds=400, x0=0.5, restarts=8, progress=False)
    assert f"8 starts, best f(x) = {runs.best.value:.6g}" in str(runs) and "±" not in str(runs)
    assert len(runs) == 8 and len({float(run.x0) for run in runs}) == 8
    assert runs.best.value == pytest.approx(-4.3772, abs=1e-3) and 0 <= runs.best.gap < 1e-3
    np.testing.assert_allclose(runs[0].history["objective"], alone.history["objective"], atol=1e-12)
    other = problem.solve(solver, rounds=400, x0=runs[3].x0, seed=3, progress=False)
    assert other.value == pytest.approx(runs[3].value, abs=1e-12)


def test_means_and_bands_are_students() -> None:
    declared = problem(None)
    runs = declared.solve(FedAvg(step_size=0.05, batch_size=1), seeds=5, seed=2, rounds=30, x0=START, progress=False)
    assert len(runs) == 5 and runs.seeds == (2, 3, 4, 5, 6) and runs[1].settings["seed"] == 3
    objectives = np.stack([run.history["objective"] for run in runs])
    expected = scipy.stats.t.interval(0.9, 4, objectives.mean(axis=0), scipy.stats.sem(objectives, axis=0))
    np.testing.assert_allclose(runs.band("objective", 0.9), expected)
    np.testing.assert_allclose(runs.mean("objective"), objectives.mean(axis=0))
    values = [run.value for run in runs]
    np.testing.assert_allclose(runs.band(), scipy.stats.t.interval(0.95, 4, np.mean(values), scipy.stats.sem(values)))
    assert runs.best.value == min(values)
    np.testing.assert_array_equal(declared.upper_variables[0].value, runs.best.x)
    assert runs.to_pandas().shape[0] == 5 * 30
    assert len(runs.table().splitlines()) == 6 and "5 seeds" in str(runs)
    with pytest.raises(hf.SettingError, match="there are value, own_value.*objective"):
        runs.mean("accuracy")
    with pytest.raises(hf.SettingError, match="level=95"):
        runs.band(level=95)


def test_every_seed_stops_by_itself_and_metrics_are_averaged_at_the_rounds_that_all_have() -> None:
    """Seeds that stop at different rounds measure at different rounds: only those in common are averaged."""
    x, solver = cp.Variable(2, name="x"), FedRZO(step_size=0.1, smoothing=0.01)
    quadratic = hf.Problem(hf.Minimize(clients=cp.sum_squares(x)))
    settings = {"rounds": 200, "x0": START, "tolerance": 0.05, "evaluate_every": 5, "progress": False}
    runs = quadratic.solve(solver, seeds=6, metrics={"size": lambda x, y: float(x @ x)}, **settings)
    rounds = [run.settings["rounds_done"] for run in runs]
    assert len(set(rounds)) > 1 and max(rounds) < 200
    for run in runs:
        alone = quadratic.solve(solver, seed=run.settings["seed"], **settings)
        assert run.status == alone.status == "gradient tolerance reached"
        assert alone.settings["rounds_done"] == run.settings["rounds_done"]
        np.testing.assert_allclose(run.iterate, alone.iterate, atol=1e-10)
    assert len(runs.mean("objective")) == min(rounds)
    assert runs.rounds("size").tolist() == list(range(0, min(rounds) + 1, 5))
    by_hand = [[run.metrics["size"][list(run.metrics["round"]).index(r)] for r in runs.rounds("size")] for run in runs]
    np.testing.assert_array_equal(runs.values("size"), by_hand)
    assert runs.rounds("objective").tolist() == list(range(1, min(rounds) + 1)) and runs.plot() is not None


def test_a_seed_that_diverges_leaves_the_others_alone() -> None:
    solver, settings = FedRZO(step_size=0.125, smoothing=0.01), {"rounds": 60, "x0": np.ones(2), "progress": False}
    with pytest.raises(hf.DivergedError, match=r"seed \d+ \(\d of 8 seeds diverged\), round \d+") as caught:
        quartic().solve(solver, seeds=8, **settings)
    runs = caught.value.runs
    assert len(runs) == 8 and 0 < len(runs.finished) < 8
    assert caught.value.result is next(run for run in runs if run.status == "diverged")
    assert "diverged" in str(runs) and np.isfinite(runs.mean())
    for run in runs:
        if run.ended == "completed":
            alone = quartic().solve(solver, seed=run.settings["seed"], **settings)
            np.testing.assert_allclose(run.iterate, alone.iterate, atol=1e-10)
            break


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"seeds": 0}, "at least one"),
        ({"seeds": -3}, "at least one"),
        ({"seeds": True}, "how many"),
        ({"seeds": [3, 2**64]}, "below 2\\^64"),
        ({"seed": 2**64 - 1, "restarts": 2}, "below 2\\^64"),
        ({"seeds": 2.5}, "how many"),
        ({"seeds": [1, 1]}, "given once"),
        ({"seeds": [1, -1]}, "whole number"),
        ({"seeds": [1, 2], "seed": 3}, "in place of seed"),
        ({"seeds": 2, "callback": print}, "callback"),
        ({"restarts": 2, "callback": print}, "callback"),
        ({"restarts": 0}, "at least 1"),
        ({"restarts": 2, "seeds": 2}, "give one of them"),
    ],
)
def test_seeds_are_checked(settings: dict, named: str) -> None:
    with pytest.raises(hf.SettingError, match=named):
        problem(None).solve(FedAvg(), rounds=2, progress=False, **settings)


# --- sweeps ------------------------------------------------------------------------------------------------------


def test_a_sweep_compares_solvers_and_forgets_their_programs() -> None:
    declared = problem(None)
    kept = FedAvg(step_size=0.02)
    declared.solve(kept, rounds=5, progress=False)
    before = set(declared.compile().programs)
    solvers = {f"H = {h}": FedAvg(step_size=0.05, local_steps=h) for h in (1, 4)} | {"wild": FedAvg(step_size=1e60)}
    found = hf.sweep(declared, solvers, seeds=4, rounds=40, x0=START, progress=False)
    assert set(declared.compile().programs) == before
    assert list(found) == list(solvers) and len(found) == 3
    lines = found.table().splitlines()
    assert len(lines) == 4 and "±" in lines[1] and "none (4 of 4 diverged)" in lines[3]
    assert len(found["H = 4"].finished) == 4
    frame = found.to_pandas()
    assert len(frame) == 12 and set(frame["status"]) == {"stalled", "diverged"}
    figure = found.plot()
    assert {"H = 1", "H = 4"} <= {text.get_text() for text in figure.axes[0].texts}


def test_forgotten_programs_are_freed() -> None:
    declared = problem(None)
    programs = declared.compile().programs
    with programs.forgetting_runs():
        declared.solve(FedAvg(), seeds=2, rounds=5, progress=False)
        block = next(programs[key] for key in programs if key[0] == "block")
        gone = weakref.ref(block.run)
        del block
    gc.collect()
    assert gone() is None


def test_a_list_of_solvers_is_named_by_its_settings() -> None:
    found = hf.sweep(problem(None), [FedAvg(), FedAvg(local_steps=2)], seeds=[3, 5], rounds=4, progress=False)
    assert list(found) == ["FedAvg()", "FedAvg(local_steps=2)"] and found["FedAvg()"].seeds == (3, 5)
    with pytest.raises(hf.SettingError, match="twice"):
        hf.sweep(problem(None), [FedAvg(), FedAvg()])
    with pytest.raises(hf.SettingError, match="or a list of solvers"):
        hf.sweep(problem(None), FedAvg())
    with pytest.raises(hf.SettingError, match="at least one solver"):
        hf.sweep(problem(None), {})


def test_the_figure_of_runs_has_a_band_for_each_panel() -> None:
    settings = {"rounds": 50, "metrics": {"norm": lambda x, y: float(np.linalg.norm(x))}, "progress": False}
    figure = problem(None).solve(FedAvg(step_size=0.05), seeds=4, **settings).plot()
    assert [ax.get_ylabel() for ax in figure.axes] == ["objective", "norm"]
    assert all(len(ax.collections) == 1 for ax in figure.axes)


def test_runs_on_several_cores_are_those_of_one_and_their_functions_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    declared, inside, most = problem(None), [], []

    def metric(x: np.ndarray, y: np.ndarray) -> float:
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.002)
        inside.pop()
        return float(x @ x)

    settings = {"rounds": 30, "x0": START, "evaluate_every": 5, "metrics": {"size": metric}, "progress": False}
    found = []
    for cores in (1, 3):
        monkeypatch.setattr("os.sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        found.append(declared.solve(FedAvg(step_size=0.05, batch_size=1), seeds=7, **settings))
    assert max(most) == 1
    for one, other in zip(*found):
        assert one.settings["seed"] == other.settings["seed"]
        np.testing.assert_allclose(one.iterate, other.iterate, atol=1e-12)
        np.testing.assert_allclose(one.metrics["size"], other.metrics["size"], atol=1e-12)


def test_functions_on_the_host_are_never_called_by_two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2})
    x, inside, most = cp.Variable(2, name="x"), [], []

    def simulated(v: np.ndarray) -> float:
        inside.append(1)
        most.append(len(inside))
        time.sleep(0.001)
        inside.pop()
        return float(v @ v)

    declared = hf.Problem(hf.Minimize(clients=hf.BlackBox(simulated, x)), constraints=[cp.sum(x) == 1])
    runs = declared.solve(ZOHFL(smoothing=0.1, step_size=0.05), seeds=6, rounds=5, progress=False)
    assert max(most) == 1
    assert all(run.value == pytest.approx(run.x @ run.x) for run in runs)


def test_an_error_in_one_share_ends_the_others_and_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1})
    calls = []

    def failing(x: np.ndarray, y: np.ndarray) -> float:
        calls.append(1)
        if len(calls) == 12:
            raise LookupError("no such thing")
        return 0.0

    with pytest.raises(hf.errors.SettingError, match="'failing' raised LookupError.*no such thing"):
        problem(None).solve(
            FedAvg(), seeds=4, rounds=100_000, evaluate_every=5, metrics={"failing": failing}, progress=False
        )
    assert len(calls) < 50

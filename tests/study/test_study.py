"""Studies: equal budgets, the same numbers when resumed, tables and profiles by hand, and functions that count for methods from outside."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import cvxpy as cp
import matplotlib.pyplot as plt
import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.stats import bootstrap

import hierfl as hf
from hierfl.compiler.starting_points import box_around, on_upper_set, sobol_points, start_points
from hierfl.solvers import ZOHFL, FedAvg, FedRZO, LocalSGD
from hierfl.study import Comparison, CountedFunction
from hierfl.study.comparison import Cell, Curve
from hierfl.study.study import Job

pytestmark = pytest.mark.filterwarnings("ignore::hierfl.HierflWarning")


@cache
def declared(sense: type = hf.Minimize, clients: int = 1) -> hf.Problem:
    """y = max(x, 0), so that f is |x + 1|^2 / 2 for x <= 0 and n / 2 for x >= 0, an entry at a time; its least value is 0."""
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    cost = 0.5 * cp.sum_squares(x + 1 - y)
    federation = hf.Federation([hf.Client()] * clients) if clients > 1 else None
    return hf.Problem(sense(clients=cost if sense is hf.Minimize else -cost), hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0]), [x >= -2, x <= 2], federation)


def f(x: np.ndarray) -> float:
    return float(0.5 * np.sum((x + 1 - np.maximum(x, 0)) ** 2))


@hf.study.adapter
def cobyqa(f: Any, x0: np.ndarray, seed: int) -> None:
    minimize(f, x0, method="COBYQA", bounds=f.bounds)


@hf.study.adapter(name="random search")
def scattered(f: Any, x0: np.ndarray, seed: int) -> None:
    random = np.random.default_rng(seed)
    while True:
        f(random.uniform(-3, 3, f.size))


@hf.study.adapter
def at_start(f: Any, x0: np.ndarray, seed: int) -> None:
    f(x0)


# --- functions that count ------------------------------------------------------------------------------------------


def test_f_counts_what_it_is_asked_and_knows_the_best() -> None:
    counted = CountedFunction(declared(clients=3).compile(), {}, np.zeros(2))
    for x in ([-0.5, 1.0], [-1.5, -1.5], [0.3, -7.0]):  # the last is outside X, and asked for at (.3, -2)
        assert counted(x) == pytest.approx(f(np.clip(x, -2, 2)), abs=1e-12)
    np.testing.assert_allclose(counted.gradient([0.3, -2.0]), [0.0, -1.0], atol=1e-9)
    np.testing.assert_allclose(counted.gradient([-0.5, -0.5]), [0.5, 0.5], atol=1e-9)
    # for each of 3 clients x and the shared y down (4) and a value up (1); a gradient in x and y 4 more, alone with its value; the first at a point known
    assert counted.spent == {"values": 9, "gradients": 6, "lower_solves": 4, "scalars": 3 * (3 * 5 + 4 + 9)}
    counted([-0.5, -0.5])  # the other question there
    assert counted.spent["lower_solves"] == 4 and counted.spent["values"] == 12
    counted([-0.5, -0.5])  # the same again
    assert counted.spent["lower_solves"] == 5
    assert counted.best[0] == pytest.approx(0.25) and counted.bounds == [(-2.0, 2.0)] * 2
    with pytest.raises(hf.SettingError, match=r"of shape \(3,\): it is a function of flat arrays of shape \(2,\)"):
        counted(np.zeros(3))


def test_f_is_infinite_where_it_has_no_value_or_its_answer_is_not_feasible() -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    level = hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0, cp.sum(y) <= x[0] + x[1]])
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(x)), level, [cp.abs(x) <= 1, y[0] >= 0.25])
    counted = CountedFunction(problem.compile(), {}, np.zeros(2))
    assert counted([-1.0, -1.0]) == math.inf  # Y(x) is empty
    assert counted([0.1, 0.5]) == math.inf  # y = x
    assert np.isnan(counted.gradient([-0.5, -0.5])).all() and counted([-0.5, -0.5]) == math.inf  # nor is it what it was elsewhere
    assert counted([0.3, 0.5]) == pytest.approx(0.34) and counted([np.nan, 0.0]) == math.inf


# --- studies -------------------------------------------------------------------------------------------------------


def study(**given: Any) -> hf.Study:
    solvers = [cobyqa, ZOHFL(smoothing=0.1, step_size=0.05), scattered]
    return hf.Study(declared(), **{"solvers": solvers, "seeds": 3, "budget": hf.Budget(values=60), **given})


@pytest.fixture(scope="module")
def compared() -> Comparison:
    return study().run(progress=False)


def test_every_run_takes_what_the_budget_gives(compared: Comparison) -> None:
    for name in compared.solvers:
        for curve in compared.cells["the problem", name].curves:
            took = curve.counts["values"]
            assert (np.diff(took) >= 0).all() and took[-1] <= 60
            assert took[-1] == 60 or name == "cobyqa", name  # which ends by itself
    assert all(status == "budget spent" for status in (c.status for c in compared.cells["the problem", "random search"].curves))
    x = np.random.default_rng(1).uniform(-3, 3, (60, 2))
    assert compared.final(name="random search")[1] == pytest.approx(min(f(np.clip(one, -2, 2)) for one in x), abs=1e-12)


def test_curves_are_f_at_the_iterates(compared: Comparison) -> None:
    """ZO-HFL takes two values a round: its curve is that of a run of 30 rounds."""
    problem = declared()
    result = problem.solve(ZOHFL(smoothing=0.1, step_size=0.05), rounds=30, seeds=[2], evaluate_every=1, progress=False)[0]
    (curve,) = [c for c in compared.cells["the problem", compared.solvers[1]].curves if c.seed == 2]
    places = (curve.counts["values"] / 2).astype(int)
    np.testing.assert_allclose(curve.value, [f(result.trajectory["x"][r]) for r in places], atol=1e-12)
    assert curve.final == pytest.approx(result.value, abs=1e-14)


class Stop(KeyboardInterrupt):
    """Ctrl-C at a moment of the test's choice."""


def test_an_interrupted_study_goes_on_to_the_same_table(compared: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, run = [], Job._run

    def until_the_third(job: Job) -> Cell:
        made.append(job)
        if len(made) == 2:
            raise Stop
        return run(job)

    monkeypatch.setattr(Job, "_run", until_the_third)
    with pytest.raises(Stop):
        study().run(tmp_path, progress=False)
    resumed = study().run(tmp_path, progress=False)
    assert len(made) == 4  # one, the interrupted one, and two more
    assert resumed.table() == compared.table() and str(resumed) == str(compared)
    assert study().run(tmp_path, progress=False).latex() == compared.latex() and len(made) == 4
    with pytest.raises(hf.CheckpointError, match=r"of another study: the budget and the starts \(Budget\(values=60\).*Take another folder"):
        study(budget=hf.Budget(values=61)).run(tmp_path, progress=False)


def test_several_problems_maximised_too_with_starts_of_their_own() -> None:
    problems = {"down": declared(), "up": declared(hf.Maximize)}
    found = hf.Study(problems, {"r": scattered, "z": ZOHFL(smoothing=0.1, step_size=0.05), "c": at_start}, seeds=4, budget=hf.Budget(values=30), starts="spread").run(progress=False)
    np.testing.assert_allclose(found.final("up", name="r"), -found.final("down", name="r"), atol=1e-12)
    np.testing.assert_allclose(found.final("up", name="z"), -found.final("down", name="z"), atol=1e-9)
    begun = [{round(curve.value[0], 9) for curve in found.cells["down", name].curves} for name in ("z", "c")]
    assert begun[0] == begun[1] and len(begun[0]) > 1 and 1.0 in begun[0]  # f(0), and others
    assert found.table().count("median f(x)") == 2 and r"\multicolumn{6}{l}{up}" in found.latex()
    assert "down:" in str(found) and found.scales.tolist() == [3.0, 3.0]


def test_who_does_not_fit_or_does_not_count_is_named() -> None:
    found = study(solvers=[FedAvg(), cobyqa], seeds=1).run(progress=False)
    assert "does not fit" in found.table() and found.notes[0].startswith("FedAvg() on the problem: does not fit: FedAvg needs")
    assert set(found.data_profile()) == {"cobyqa"}
    exact = study(solvers=[FedRZO()], budget=hf.Budget(lower_gradients=100), seeds=1).run(progress=False)
    assert "does not count lower_gradients: the lower level is answered exactly" in exact.notes[0]
    assert "a method from outside has no projections" in study(solvers=[cobyqa], budget=hf.Budget(projections=100)).run(progress=False).notes[0]
    climber = hf.study.adapter(name="climber")(lambda f, x0, seed: f.gradient(x0))
    assert "is not held by a budget in values" in study(solvers=[climber]).run(progress=False).notes[0]
    for endless in ({"gradients": 3}, {"lower_solves": 3}):  # of neither would random search, which asks for values without end, ever take more
        single = hf.Problem(hf.Minimize(clients=cp.sum_squares(cp.Variable(2))))
        (cell,) = hf.Study(single, [scattered], seeds=1, budget=hf.Budget(**endless)).run(progress=False).cells.values()
        assert next(iter(endless)) in cell.refused
    first_a_gradient = hf.study.adapter(name="sampler")(lambda f, x0, seed: [f.gradient(x0), *(f(x0 + 0.01 * k) for k in range(9))])
    (cell,) = study(solvers=[first_a_gradient], seeds=1, budget=hf.Budget(gradients=4)).run(progress=False).cells.values()
    assert cell.curves[0].status == "budget spent" and cell.curves[0].counts["values"][-1] == 4
    inner = study(solvers=[FedRZO(lower=LocalSGD(rounds=2, steps=3))], budget=hf.Budget(lower_gradients=200), seeds=1)
    (cell,) = inner.run(progress=False).cells.values()  # two points a round, 7 evaluations for each
    assert cell.curves[0].counts["lower_gradients"][-1] == 14 * (200 // 14)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"budget": hf.Budget(values=1, floats=2)}, "with one limit"),
        ({"budget": {"another": hf.Budget(values=1)}}, "one for every problem"),
        ({"solvers": [FedRZO]}, "an instance of a solver"),
        ({"solvers": [minimize]}, r"hf.study.adapter\(minimize\)"),
        ({"solvers": [cobyqa, cobyqa]}, "given cobyqa twice"),
        ({"solvers": {}}, "at least one"),
        ({"starts": "random"}, "'same' or 'spread'"),
        ({"settings": 3}, "a mapping of keywords"),
        ({"settings": {"rounds": 3}}, "'rounds' is the study's own"),
        ({"settings": {"quries": "raw"}}, "queries"),
        ({"seeds": 0}, "at least one"),
        ({"seeds": None}, "how many runs"),
    ],
)
def test_what_is_no_study_is_said(given: dict[str, Any], told: str) -> None:
    with pytest.raises(hf.HierflError, match=told):
        study(**given)


@pytest.mark.parametrize("wrong", [lambda: hf.study.adapter(lambda f: f), lambda: hf.study.adapter(3), lambda: hf.study.adapter(name=3)])  # type: ignore[call-overload]
def test_what_is_no_method_is_said_before_a_run(wrong: Any) -> None:
    with pytest.raises(hf.SettingError, match="adapter"):
        wrong()


def test_f_is_of_real_numbers() -> None:
    for wrong in ("a", {"x": 1}, np.array([1j, 0])):
        with pytest.raises(hf.SettingError, match="real numbers"):
            CountedFunction(declared().compile(), {}, np.zeros(2))(wrong)


def test_a_folder_that_keeps_nothing_is_said(tmp_path: Path) -> None:
    kept = study(solvers=[at_start], seeds=1, budget=hf.Budget(values=1_000_001))
    kept.run(tmp_path, progress=False)
    with pytest.raises(hf.CheckpointError, match="1000001.*1000002"):
        study(solvers=[at_start], seeds=1, budget=hf.Budget(values=1_000_002)).run(tmp_path, progress=False)
    (file,) = tmp_path.glob("*.json")
    file.write_text("{")
    for folder, told in ((tmp_path, "cannot be read"), (file, "may be written")):
        with pytest.raises(hf.CheckpointError, match=told):
            kept.run(folder, progress=False)
    with pytest.raises(hf.SettingError, match="the name of a folder"):
        kept.run(3, progress=False)  # type: ignore[arg-type]


def test_rounds_that_become_cheaper_are_topped_up() -> None:
    found = study(solvers=[FedRZO(smoothing=0.1, step_size=0.05, local_steps=lambda r: 10 if r < 2 else 1)], budget=hf.Budget(values=100), seeds=1).run(progress=False)
    assert found.cells["the problem", found.solvers[0]].curves[0].counts["values"][-1] == 100


def test_compilation_is_no_part_of_the_seconds() -> None:
    """As for methods from outside: less time than it takes, and yet every seed makes rounds."""
    solvers = {"ZO-HFL": ZOHFL(smoothing=0.05, step_size=0.05)}
    found = hf.Study(declared(), solvers, seeds=2, budget=hf.Budget(seconds=0.3)).run(progress=False)
    assert found.to_pandas().groupby("seed")["rounds"].max().min() > 0


def test_methods_that_ask_nothing_raise_or_diverge() -> None:
    quiet = hf.study.adapter(name="quiet")(lambda f, x0, seed: x0)
    found = study(solvers={"quiet": quiet, "wild": FedRZO(step_size=1e300)}, seeds=1).run(progress=False)
    assert found.final(name="quiet") == pytest.approx([1.0]) and "diverged" in found.table()
    plt.close(found.plot())
    broken = hf.study.adapter(name="broken")(lambda f, x0, seed: 1 / 0)
    with pytest.raises(ZeroDivisionError) as told:
        study(solvers=[broken]).run(progress=False)
    assert "broken, seed 0" in told.value.__notes__[0]


def test_runs_without_an_answer_are_the_worst() -> None:
    """What diverges with three of four seeds is no better than what always comes to 0.1, though its one answer is."""

    def cell(*values: float) -> Cell:
        return Cell(tuple(Curve(seed, "completed" if np.isfinite(v) else "diverged", {"values": np.ones(1)}, np.array([v]), v) for seed, v in enumerate(values)))

    cells = {("p", "wild"): cell(0.0, np.nan, np.nan, np.nan), ("p", "steady"): cell(0.1, 0.1, 0.1, 0.1)}
    found = Comparison(cells, {"p": hf.Budget(values=1)}, tuple(range(4)), {"p": "minimize"}, {"p": (1, 1)})
    wild, steady = (next(line for line in found.table().splitlines() if line.startswith(name)) for name in ("wild", "steady"))
    assert wild.split()[1:4] == ["none", "[0,", "none]"] and "1 of 4 answers" in wild and steady.split()[1] == "0.1"
    assert "minus steady" in found.table()


def test_another_adapter_of_the_same_name_is_another_study(tmp_path: Path) -> None:
    def stepping(length: float) -> Any:
        return hf.study.adapter(name="step")(lambda f, x0, seed: f(x0 - length))

    study(solvers=[stepping(0.5)], seeds=1).run(tmp_path, progress=False)
    with pytest.raises(hf.CheckpointError, match="of another study"):
        study(solvers=[stepping(0.25)], seeds=1).run(tmp_path, progress=False)


# --- tables and profiles by hand -----------------------------------------------------------------------------------


def by_hand() -> Comparison:
    """Two solvers, two problems, three seeds: what each had taken at f = 1, .1, .001."""
    times = {("p", "a"): [(1, 10, 20), (1, 10, 40), (1, 10, 80)], ("p", "b"): [(1, 20, 30), (1, 5, 30), (1, 50, None)]}
    times |= {("q", "a"): [(1, 9, 100)] * 3, ("q", "b"): [(1, 9, 50)] * 3}
    levels = np.array([1.0, 0.1, 0.0])

    def curve(seed: int, taken: tuple[int | None, ...]) -> Curve:
        known = [t for t in taken if t is not None]
        values = levels[: len(known)]
        return Curve(seed, "completed", {"values": np.array(known, float)}, values, float(values[-1]))

    cells = {pair: Cell(tuple(curve(seed, taken) for seed, taken in enumerate(own))) for pair, own in times.items()}
    return Comparison(cells, dict.fromkeys("pq", hf.Budget(values=100)), (0, 1, 2), {"p": "minimize", "q": "minimize"}, {"p": (1, 1), "q": (4, 2)})


def test_profiles_count_first_times() -> None:
    found = by_hand()
    np.testing.assert_array_equal(found.solved(0.5)["b"], [[20, 5, 50], [9, 9, 9]])
    np.testing.assert_array_equal(found.solved(1e-3)["b"], [[30, 30, np.inf], [50, 50, 50]])
    data = found.data_profile(1e-3)["a"]  # p in 2 values, q in 2 * 5
    np.testing.assert_allclose(data.at, [10, 10, 10, 10, 20, 40])
    assert [data(9.9), data(10), data(25), data(40)] == pytest.approx([0.0, 4 / 6, 5 / 6, 1.0])
    ratios = found.performance_profile(1e-3)
    assert [ratios["b"](1), ratios["a"](1), ratios["a"](1.34), ratios["a"](2), ratios["b"](100)] == pytest.approx([4 / 6, 2 / 6, 3 / 6, 1.0, 5 / 6])
    assert found.solved(1e-3, best={"p": -1.0})["a"][0].tolist() == [np.inf] * 3  # nobody comes to within 1e-3 of what is known
    plt.close(found.plot_profile(tolerance=[0.5, 1e-3]))
    plt.close(found.plot("p", scale="gap", style="paper"))
    for wrong in (None, [], "0.1", [0.1, 2]):
        with pytest.raises(hf.SettingError, match="a share of the way, in"):
            found.plot_profile(tolerance=wrong)  # type: ignore[arg-type]
    with pytest.raises(hf.SettingError, match="axis='secnds': did you mean 'seconds'"):
        found.plot("p", axis="secnds")
    with pytest.raises(hf.SettingError, match="unless the budget is in seconds"):
        found.plot("p", axis="seconds")


def test_profiles_in_seconds_tell_parts_of_one_apart() -> None:
    """a comes there in 0.1 s, b in 0.8 s, which is eight times as long; c begins there."""
    told = {"a": [0.0, 0.1], "b": [0.0, 0.8], "c": [0.0, 0.5]}
    values = {"a": [1.0, 0.0], "b": [1.0, 0.0], "c": [0.0, 0.0]}
    cells = {(problem, name): Cell((Curve(0, "completed", {"seconds": np.array(took)}, np.array(values[name]), 0.0),)) for problem in "pq" for name, took in told.items()}
    budgets = {"p": hf.Budget(seconds=100), "q": hf.Budget(seconds=2)}
    found = Comparison(cells, budgets, (0,), dict.fromkeys("pq", "minimize"), dict.fromkeys("pq", (1, 1)))
    assert found.solved()["a"][0, 0] == 0.1 and found.solved()["b"][0, 0] == 0.8
    ratios = Comparison({pair: cell for pair, cell in cells.items() if pair[1] != "c"}, *list(vars(found).values())[1:]).performance_profile()
    assert [ratios["a"](1), ratios["b"](7.9), ratios["b"](8.1)] == [1.0, 0.0, 1.0]
    assert found.performance_profile()["c"](1) == 1.0 and np.isfinite(found.performance_profile()["a"].at).all()
    assert str(found).startswith("each run: Budget(seconds=2) to Budget(seconds=100), by problem")


def test_a_card_has_what_each_solver_came_to() -> None:
    title, *rows = repr(by_hand()).splitlines()
    assert title == "2 solvers, 3 seeds each, Budget(values=100)"
    assert rows[1].startswith("  p, b  median f(x) 0; quartiles [0, 0.05]; minus a, 95% interval")
    assert [row[2:6] for row in rows if row[2] != " "] == ["p, a", "p, b", "q, a", "q, b"] and "side by side" in by_hand()._repr_html_()


def test_differences_are_paired_with_bootstrap_intervals() -> None:
    random = np.random.default_rng(3)
    base, noise = random.normal(size=40) * 5, random.normal(0.3, 0.2, 40)

    def cell(values: np.ndarray) -> Cell:
        return Cell(tuple(Curve(seed, "completed", {"values": np.ones(1)}, np.array([v]), float(v)) for seed, v in enumerate(values)))

    found = Comparison({("p", "a"): cell(base + noise), ("p", "b"): cell(base)}, {"p": hf.Budget(values=1)}, tuple(range(40)), {"p": "minimize"}, {"p": (1, 1)})
    gap = found.difference("a", "b")
    theirs = bootstrap((noise,), np.median, method="percentile", n_resamples=20_000, rng=1).confidence_interval
    assert gap.median == pytest.approx(np.median(noise)) and gap.pairs == 40
    np.testing.assert_allclose([gap.low, gap.high], theirs, atol=0.02)
    low, middle, high = np.quantile(base, [0.25, 0.5, 0.75])
    assert f"{middle:.6g}" in found.table() and f"[{low:.6g}, {high:.6g}]" in found.table(against="b")
    frame = found.to_pandas()
    assert len(frame) == 80 and set(frame["solver"]) == {"a", "b"}


def half_empty() -> hf.Problem:
    """Y(x) is empty left of x = 1.5."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    return hf.Problem(hf.Minimize(clients=cp.square(x) + y), hf.ArgMin(y, cp.square(y - 3), [y >= 1, y <= x - 0.5]), [cp.abs(x) <= 4])


def test_runs_are_paired_by_their_seeds() -> None:
    """A run that diverged where f has no value is missing: seed 0 of b."""
    ends = {"a": {0: 5.0, 1: 1.0, 2: 2.0}, "b": {1: 1.5, 2: 2.25}, "c": {2: 3.0}}
    cells = {
        ("p", name): Cell(tuple(Curve(seed, "completed", {"values": np.array([0.0, 10.0 * seed + 1])}, np.array([9.0, end]), end) for seed, end in found.items()))
        for name, found in ends.items()
    }
    found = Comparison(cells, {"p": hf.Budget(values=100)}, (0, 1, 2), {"p": "minimize"}, {"p": (1, 1)})
    np.testing.assert_array_equal(found.final(name="b"), [np.nan, 1.5, 2.25])
    assert found.difference("b", "a").median == 0.375 and found.difference("b", "a").pairs == 2
    assert found.difference("c", "a").median == 1.0 and found.difference("c", "a").pairs == 1
    np.testing.assert_array_equal(found.solved(0.5)["b"], [[np.inf, 11, 21]])


def test_starts_where_f_has_values_are_taken_though_they_are_too_few() -> None:
    """Of so few points about one in twenty has a value: those that have come first."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    compiled = hf.Problem(hf.Minimize(clients=x + y), hf.ArgMin(y, cp.square(y - x), [y >= 9, y <= x]), [x >= 0, x <= 10]).compile()
    for seed in range(4):
        starts = start_points(compiled, None, 12, seed)
        spread = on_upper_set(compiled, sobol_points(box_around(compiled, starts[0]), 8 * 11, seed))
        good = spread[spread >= 9]
        assert 0 < len(good) < 12 and len(starts) == 12 and starts[: len(good), 0] == pytest.approx(good)


def test_starts_are_where_f_has_values_and_a_method_that_leaves_them_is_told() -> None:
    runs = half_empty().solve(restarts=6, progress=False)
    assert len(runs) == 6 and all(run.value == pytest.approx(3.25, abs=1e-6) for run in runs)
    solvers = {"bundle": hf.solvers.ImplicitBundle(), "one step too far": hf.solvers.ImplicitGradient(step_size=10.0)}
    told = hf.Study(half_empty(), solvers, seeds=3, budget=hf.Budget(lower_solves=40), starts="spread").run(progress=False)
    assert np.isfinite(told.final(name="bundle")).all()
    (note,) = told.notes
    assert "one step too far" in note and "Y(x) is empty" in note

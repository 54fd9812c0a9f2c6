"""What a run returns: shapes, history, metrics, saving, plots."""

from __future__ import annotations

from pathlib import Path

import cvxpy as cp
import matplotlib as mpl
import numpy as np
import pytest

import hierfl as hf
from hierfl.solvers import ZOHFL, Exact

mpl.use("Agg")


def two_variables() -> tuple[hf.Problem, cp.Variable, cp.Variable]:
    a, b = cp.Variable(2, name="a"), cp.Variable(name="b")
    y, z = cp.Variable(2, name="y"), cp.Variable(name="z")
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum_squares(a - 1) + cp.square(b + 1) + cp.sum_squares(y) + cp.square(z)),
        lower=hf.ArgMin([y, z], cp.sum_squares(y - a) + cp.square(z - b), scope="client"),
        federation=hf.Federation([hf.Client(), hf.Client()]),
    )
    return problem, a, b


def solved(**options: object) -> hf.Result:
    problem, _, _ = two_variables()
    return problem.solve(ZOHFL(step_size=0.1, lower=Exact()), rounds=60, progress=False, **options)


@pytest.fixture(scope="module")
def result() -> hf.Result:
    """Measured every 25 rounds."""
    distance = {"distance": lambda x, y: sum(float(np.sum(v**2)) for v in x.values())}
    return solved(metrics=distance, evaluate_every=25)


def test_values_are_set_on_upper_variables_and_shapes_are_public() -> None:
    problem, a, b = two_variables()
    result = problem.solve(ZOHFL(step_size=0.1, lower=Exact()), rounds=300, progress=False)
    np.testing.assert_allclose(a.value, [0.5, 0.5], atol=0.02)
    assert b.value == pytest.approx(-0.5, abs=0.02)
    assert set(result.x) == {a, b}
    assert {v.name(): value.shape for v, value in result.y.items()} == {"y": (2, 2), "z": (2,)}


def test_history_has_a_row_per_round_and_metrics_per_evaluation(result: hf.Result) -> None:
    assert {"objective", "gradient_norm", "lower_residual", "lower_solves", "values", "step_size", "seconds", "scalars"} == set(
        result.history
    )
    assert all(len(values) == 60 for values in result.history.values())
    np.testing.assert_array_equal(result.metrics["round"], [0, 25, 50, 60])
    frame = result.to_pandas()
    assert frame.shape == (60, 9)
    assert frame["distance"].notna().sum() == 3


def test_callback_sees_rounds_and_can_stop() -> None:
    seen = []
    result = solved(callback=lambda r, x, y: seen.append(r) or r >= 20, evaluate_every=10)
    assert seen == [10, 20]
    assert result.status == "stopped by callback"
    assert len(result.history["objective"]) == 20


def test_saved_results_come_back_whole(result: hf.Result, tmp_path: Path) -> None:
    """In a folder that is made for them."""
    path = tmp_path / "new" / "deep" / "run.npz"
    result.save(path)
    again = hf.Result.load(path)
    assert again.value == result.value and again.status == result.status and again.certificate == result.certificate
    assert again.communication == result.communication and again.settings == result.settings
    for variable, value in result.x.items():
        np.testing.assert_array_equal(again.x[variable.name()], value)
    for name, values in {**result.history, **result.metrics}.items():
        np.testing.assert_array_equal({**again.history, **again.metrics}[name], values)
    for variable, value in result.x0.items():
        np.testing.assert_array_equal(again.x0[variable.name()], value)
    with pytest.raises(hf.SettingError, match="Result.load"):
        _ = again.gap
    assert hf.Result.load(path, problem=result.problem).problem is result.problem
    np.savez(tmp_path / "other.npz", a=1)
    with pytest.raises(hf.DataError, match="not a saved hierfl result"):
        hf.Result.load(tmp_path / "other.npz")
    with pytest.raises(hf.DataError, match=r"misspelt.npz does not exist"):
        hf.Result.load(tmp_path / "misspelt.npz")


def test_a_save_that_fails_leaves_the_earlier_file(result: hf.Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run.npz"
    result.save(path)

    def full(descriptor: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        result.save(path)
    assert hf.Result.load(path).value == result.value and list(tmp_path.iterdir()) == [path]


def test_plot_has_labelled_axes_for_objective_and_metrics(result: hf.Result) -> None:
    figure = result.plot()
    assert [ax.get_xlabel() for ax in figure.axes] == ["round", "round"]
    assert [ax.get_ylabel() for ax in figure.axes] == ["objective", "distance"]


def test_printing_says_how_the_value_was_obtained(result: hf.Result) -> None:
    text = str(result)
    assert "f(x) =" in text and "lower level by closed form" in text and "error of y at most" in text


def test_a_saved_result_of_another_problem_is_refused(tmp_path: Path) -> None:
    """Of equal shapes, of other shapes, of other data; several variables go through by name."""
    v, w, u = cp.Variable(2, name="v"), cp.Variable(2, name="w"), hf.Sample(2, name="u")

    def of(target: float, rows: float = 1.0) -> hf.Problem:
        client = hf.Client({u: np.full((3, 2), rows)})
        objective = hf.E(cp.sum_squares(v - u)) + cp.sum_squares(w - target)
        return hf.Problem(hf.Minimize(clients=objective), federation=hf.Federation([client]))

    own, path = of(1.0), tmp_path / "run.npz"
    own.solve(rounds=3, progress=False).save(path)
    loaded = hf.Result.load(path, problem=own)
    assert loaded.problem is own and loaded == loaded and len({loaded}) == 1  # by identity: arrays have no one equality
    away = hf.Problem(own.objective, federation=hf.Federation([hf.Client({u: hf.Elsewhere(3)})]))
    assert hf.Result.load(path, problem=away).problem is away  # whose value nobody here can look at
    for other in (of(-7.0), of(1.0, rows=2.0)):
        with pytest.raises(hf.DataError, match="another problem, or to other data: its value is .* and f at its x is"):
            hf.Result.load(path, problem=other)
    with pytest.raises(hf.DataError, match="another problem"):
        hf.Result.load(path, problem=hf.Problem(hf.Minimize(server=cp.square(cp.Variable(name="z")))))

"""What is shown of samples, objectives, f, federations and sweeps: by hierfl's words, and as tables for others."""

from __future__ import annotations

from pathlib import Path

import cvxpy as cp
import jax
import numpy as np
import pytest

import hierfl as hf
from hierfl.compiler import compiled_problem
from hierfl.solvers import ZOHFL

pd = pytest.importorskip("pandas")


def toy() -> hf.Problem:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    return hf.Problem(hf.Minimize(clients=0.5 * cp.sum_squares(x + 1 - y)), lower=hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0]))


def test_samples_show_themselves() -> None:
    assert repr(hf.Sample(2, name="a")) == "Sample((2,), name='a')"
    assert repr(hf.ClientParameter(name="c", nonneg=True)) == "ClientParameter((), name='c', nonneg=True)"


def test_an_objective_shows_what_was_written() -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    shown = hf.Minimize(clients=cp.sum_squares(x - y), server=cp.norm1(x))
    assert repr(shown) == "minimize\n  clients  sum_squares(x - y)\n  server   norm1(x)" and "<table>" in shown._repr_html_()


def test_f_shows_what_to_ask_and_compiles_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("compiled by being looked at")

    monkeypatch.setattr(compiled_problem, "compile_problem", refuse)
    implicit = toy().implicit
    assert "x in R^2" in repr(implicit) and "y by argmin, one for the federation" in repr(implicit)
    assert "object at 0x" not in repr(implicit) and "<table>" in implicit._repr_html_()


def test_stationarity_shows_its_verdict_and_no_arrays() -> None:
    shown = toy().implicit.stationarity(np.array([-1.0, -1.0]), 0.1)
    assert repr(shown).startswith("stationary\n") and "array(" not in repr(shown) and len(repr(shown).splitlines()) <= 12


def test_a_federation_lists_its_clients_in_a_notebook() -> None:
    a = hf.Sample(2, name="a")
    federation = hf.Federation([hf.Client({a: np.ones((k + 1, 2))}, name=f"<site {k}>") for k in range(11)])
    page = federation._repr_html_()
    assert repr(federation).startswith("Federation(11 clients") and "and 3 more clients" in page
    assert "&lt;site 7&gt;" in page and "<site" not in page


def test_runs_name_their_best_and_a_sweep_is_latex() -> None:
    problem = toy()
    settings = {"rounds": 3, "progress": False}
    swept = hf.sweep(problem, {"A_1": ZOHFL(step_size=0.1), "B & c": ZOHFL(step_size=0.2)}, seeds=2, **settings)
    runs = swept["A_1"]
    assert f".best is that of seed {runs.best.settings['seed']}" in str(runs) and ".best" in repr(runs)
    lines = swept.latex().splitlines()
    assert lines[0] == r"\begin{tabular}{lrrr}" and lines[-1] == r"\end{tabular}"
    assert lines[4].startswith(r"A\_1 & ") and lines[5].startswith(r"B\ \&\ c & ") and r"$\pm$" in lines[4] and lines[5].endswith(r" \\")


def test_slices_and_explanations_are_tables() -> None:
    problem = toy()
    shown = problem.implicit.slice(np.array([0.25, -0.5]), direction=np.array([1.0, 0.0]), points=5, smoothing=0.1, progress=False)
    frame = shown.to_pandas()
    assert list(frame.columns) == ["t", "x[0]", "x[1]", "f", "f^0.1"] and len(frame) == 5
    at = frame[["x[0]", "x[1]"]].to_numpy()
    assert np.allclose(frame["f"], 0.5 * np.sum((at + 1 - np.maximum(at, 0)) ** 2, axis=1))
    explained = problem.explain().to_pandas()
    assert list(explained.columns) == ["piece", "how", "cost", "advice"] and "Y(x)" in set(explained["piece"])


def test_answers_have_no_negative_zero() -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    a = hf.Sample(name="a")
    own = hf.ArgMin(y, cp.sum_squares(y + a - x), scope="sample")
    rows = hf.Federation([hf.Client({a: np.array([0.0, 1.0])}), hf.Client({a: np.array([0.0])})])
    problem = hf.Problem(hf.Minimize(clients=hf.E(cp.sum_squares(y - 1))), own, federation=rows)
    answers = problem.implicit.response(np.array([-0.0, 1.0]))
    assert [str(answer) for answer in answers] == ["[[ 0.  1.]\n [-1.  0.]]", "[[0. 1.]]"]
    assert not np.signbit(toy().implicit.response(np.array([-1.0, -0.0]))).any()


def test_moments_print_as_a_line_a_column() -> None:
    moments = hf.Moments({"age": 6, "dose": 5}, {"age": 178 / 3, "dose": 2.2}, {"age": 9.25, "dose": 1.03})
    assert str(moments) == "age: 6 values, mean 59.33, sd 9.25\ndose: 5 values, mean 2.2, sd 1.03"


def test_statuses_of_derivatives_go_by_their_names() -> None:
    layer = toy().implicit.jax()
    inside, corner = np.array([1.0, -1.0]), np.array([1.0, 0.0])
    assert repr(layer.status(inside)) == "Statuses(f=UNIQUE, y=UNIQUE)"
    assert repr(jax.vmap(layer.status)(np.stack([inside, corner]))) == "Statuses(f=['UNIQUE' 'ONE_SIDED'], y=['UNIQUE' 'ONE_SIDED'])"
    seen = []
    jax.jit(lambda at: seen.append(repr(layer.status(at))) or at)(inside)
    assert "Statuses(f=" in seen[0]


@pytest.mark.parametrize("centre", [1 / 3, 0.7, 0.123456])
def test_a_kink_at_the_centre_is_at_zero(centre: float) -> None:
    """y(x) = min(x^2, c^2) has its kink at c, which a search finds to rounding only."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    level = hf.ArgMin(y, cp.square(y - cp.square(x)), [y <= centre**2])
    problem = hf.Problem(hf.Minimize(clients=y + cp.square(x - 1)), level, [x >= 0])
    shown = problem.implicit.slice(np.array(centre), direction=np.ones(()), radius=centre / 2, points=101, progress=False)
    assert [kink.t for kink in shown.kinks] == [0.0]


def test_a_report_is_titled_by_the_problem_and_not_written_over(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    quick = {"points": 11, "check": False, "smoothing": (), "progress": False}
    result = toy().solve(ZOHFL(step_size=0.1), rounds=3, progress=False)
    path = tmp_path / "run.html"
    path.write_text("my own page")
    with pytest.raises(hf.SettingError, match=r"is there already: write overwrite=True"):
        result.report(path, **quick)
    assert path.read_text() == "my own page"
    result.report(path, **quick, overwrite=True)
    assert "<title>minimize 0.5 * sum_squares(x + 1 - y) over x</title>" in path.read_text()

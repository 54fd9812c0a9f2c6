"""What is shown without ``print``: cards of a dozen lines, tables for notebooks, and one warning for many seeds."""

from __future__ import annotations

import warnings
from functools import cache
from pathlib import Path
from typing import Any

import cvxpy as cp
import jax
import numpy as np
import pytest

import hierfl as hf
from hierfl.compiler import compiled_problem
from hierfl.language.printing.card import LINES, WIDTH, Card, call_text
from hierfl.solvers import ZOHFL, Exact, FedRZO, ImplicitGradient, ProjectedSGD

CLIENTS, SIZE = 4, 24
LOOSE = ImplicitGradient(step_size=0.05, lower=ProjectedSGD(steps=1, step_size=1e-6))
NAME = "x<b>&"


@cache
def large() -> hf.Problem:
    """Many variables of long names, many constraints, many clients; a name that HTML must not take for a tag."""
    x, y = cp.Variable(SIZE, name=NAME), cp.Variable((SIZE, 3), name="y_" + "long_" * 15)
    z = cp.Variable(name="z")
    u = hf.Sample(SIZE, name="u")
    near = cp.sum_squares(y - cp.vstack([x, x, x]).T) + cp.sum_squares(x @ y[:, 0] - z) / 1e3 + cp.square(z)
    rng = np.random.default_rng(0)
    return hf.Problem(
        hf.Minimize(clients=hf.E(cp.square(u @ y[:, 0] - 1)) + cp.sum_squares(x - 1)),
        lower=hf.ArgMin([y, z], near, [y >= 0, z <= 1, y <= 9], scope="client"),
        constraints=[cp.norm(x) <= 5],
        federation=hf.Federation([hf.Client({u: rng.standard_normal((5, SIZE))}) for _ in range(CLIENTS)]),
    )


@cache
def many_seeds() -> hf.Runs:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", hf.LowerLevelWarning)
        return large().solve(LOOSE, seeds=8, rounds=3, progress=False)


def small(size: int = 2) -> hf.Problem:
    x, y = cp.Variable(size, name="x"), cp.Variable(size, name="y")
    return hf.Problem(
        hf.Minimize(clients=0.5 * cp.sum_squares(x + 1 - y)), lower=hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0])
    )


def shown(name: str) -> Any:
    runs = many_seeds()
    return {
        "result": lambda: runs[0],
        "runs": lambda: runs,
        "sweep": lambda: hf.Sweep(
            {f"{'solver ' * 30}{k}": runs for k in range(40)}, {f"{'solver ' * 30}{k}": 1.0 for k in range(40)}
        ),
        "certificate": lambda: runs[0].certificate,
        "check": lambda: large().check(samples=2, progress=False),
        "explanation": lambda: large().explain(),
        "slice": lambda: small(12).implicit.slice(np.linspace(-1, 1, 12), np.ones(12), points=21, progress=False),
        "surface": lambda: large().implicit.surface(points=5, progress=False),
        "reference": lambda: small().reference(restarts=1, progress=False),
        "small slice": lambda: small().implicit.slice(np.zeros(2), points=21, progress=False),
    }[name]()


@pytest.mark.parametrize(
    "name",
    ["result", "runs", "sweep", "certificate", "check", "explanation", "slice", "surface", "reference", "small slice"],
)
def test_a_card_has_a_dozen_lines_and_a_notebook_a_table_with_the_rest_folded(name: str) -> None:
    it = shown(name)
    lines, page = repr(it).splitlines(), it._repr_html_()
    assert len(lines) <= LINES and max(map(len, lines)) <= WIDTH
    assert page.count("<table>") == page.count("</table>") == 1 and page.count("<details>") == page.count("</details>")
    assert "<b>&" not in page and len(page) < 40_000


def test_a_card_of_anything_keeps_to_its_size_and_escapes_it() -> None:
    rows = [("<i>" * 100, "word " * 100)] * 9
    card = Card("t" * 300, rows, [("<u>", "line\n" * 1000)])
    assert len(card.text().splitlines()) == LINES and max(map(len, card.text().splitlines())) <= WIDTH
    assert "<i>" not in card.html() and "<u>" not in card.html() and "800 more lines" in card.html()


def test_a_solver_is_told_by_what_differs_from_its_defaults() -> None:
    assert call_text(FedRZO()) == "FedRZO()"
    assert call_text(FedRZO(smoothing=0.05)) == "FedRZO(smoothing=0.05)"
    lower = ProjectedSGD(steps=7)
    assert call_text(ImplicitGradient(lower=lower)) == "ImplicitGradient(lower=ProjectedSGD(steps=7))"
    assert call_text(FedRZO(lower=Exact())) == "FedRZO(lower=Exact())"


def test_results_print_the_settings_given_and_keep_them_all(tmp_path) -> None:
    result = small().solve(FedRZO(smoothing=0.05), rounds=3, progress=False)
    result.save(tmp_path / "r.npz")
    for one in (result, hf.Result.load(tmp_path / "r.npz")):
        assert str(one).startswith("FedRZO(smoothing=0.05): out of rounds after 3 rounds\n")
        assert repr(one).splitlines()[0] == "FedRZO(smoothing=0.05): out of rounds after 3 rounds"
        assert "participation=1.0" in one.settings["solver"] and "participation=1.0" in one._repr_html_()


def test_a_check_is_a_page_of_what_holds_what_does_not_what_it_means_and_what_to_do() -> None:
    report = small().check(progress=False)
    page = str(report).splitlines()
    assert [line for line in page[1:-1] if line and not line.startswith(" ")] == ["holds", "does not hold", "not known", "it means", "to do"]
    assert len(page) <= 40 and max(map(len, page)) <= WIDTH and "[2S] Assumption" not in str(report)
    assert any(line.startswith("  f Lipschitz in x: 0.5") or line.startswith("  f Lipschitz in x: sum_squares") for line in page)
    assert report.page["to do"] == ("nothing is known to bound x, y on the declared sets: add constraints that do",)
    assert "no theorem is known to cover runs of FedRZO here: [2S] Theorem 1 asks for 3 things more" in report.page["it means"][-1]


def test_what_a_theorem_prescribes_is_on_the_page_and_its_gaps_are_among_the_details() -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    lower = hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0, y <= 2])
    report = hf.Problem(hf.Minimize(clients=0.5 * cp.sum_squares(x + 1 - y)), lower, [cp.abs(x) <= 2]).check(progress=False)
    (theorem,) = report.theorems
    assert theorem.predicted is not None and not theorem.practical
    assert "more rounds than anybody runs" in report.page["it means"][-1] and "does not hold" not in report.page
    for said in (*(finding.reason for finding in report), *theorem.gaps, *map(str, report.constants.values())):
        assert said in report.details


def test_many_seeds_warn_once_and_name_the_setting() -> None:
    with pytest.warns(hf.LowerLevelWarning, match=r"8 of 8 runs.*lower=") as caught:
        large().solve(LOOSE, seeds=8, rounds=3, progress=False)
    assert len(caught) == 1


def test_what_a_notebook_shows_of_parts_is_in_words() -> None:
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    problem = hf.Problem(hf.Minimize(clients=cp.square(x + 1 - y)), hf.ArgMin(y, cp.square(y - x), [y >= 0]))
    (kink,) = problem.implicit.slice(0.0, 1.0, points=41, progress=False).kinks
    rest = problem.solve(progress=False).rest
    for part in (kink, rest, problem.implicit.symbolic()):
        assert repr(part) == str(part) and not repr(part).startswith(type(part).__name__)
    assert repr(kink) == "t = 0 (x = 0): slope 2 to 0, bends down; y >= 0"


# --- What is shown of samples, objectives, f, federations and sweeps: by hierfl's words, and as tables for others.


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
    implicit = small().implicit
    assert "x in R^2" in repr(implicit) and "y by argmin, one for the federation" in repr(implicit)
    assert "object at 0x" not in repr(implicit) and "<table>" in implicit._repr_html_()


def test_stationarity_shows_its_verdict_and_no_arrays() -> None:
    shown = small().implicit.stationarity(np.array([-1.0, -1.0]), 0.1)
    assert repr(shown).startswith("stationary\n") and "array(" not in repr(shown) and len(repr(shown).splitlines()) <= 12


def test_a_federation_lists_its_clients_in_a_notebook() -> None:
    a = hf.Sample(2, name="a")
    federation = hf.Federation([hf.Client({a: np.ones((k + 1, 2))}, name=f"<site {k}>") for k in range(11)])
    page = federation._repr_html_()
    assert repr(federation).startswith("Federation(11 clients") and "and 3 more clients" in page
    assert "&lt;site 7&gt;" in page and "<site" not in page


def test_runs_name_their_best_and_a_sweep_is_latex() -> None:
    problem = small()
    settings = {"rounds": 3, "progress": False}
    swept = hf.sweep(problem, {"A_1": ZOHFL(step_size=0.1), "B & c": ZOHFL(step_size=0.2)}, seeds=2, **settings)
    runs = swept["A_1"]
    assert f".best is that of seed {runs.best.settings['seed']}" in str(runs) and ".best" in repr(runs)
    lines = swept.latex().splitlines()
    assert lines[0] == r"\begin{tabular}{lrrr}" and lines[-1] == r"\end{tabular}"
    assert lines[4].startswith(r"A\_1 & ") and lines[5].startswith(r"B\ \&\ c & ") and r"$\pm$" in lines[4] and lines[5].endswith(r" \\")


def test_slices_and_explanations_are_tables() -> None:
    problem = small()
    shown = problem.implicit.slice(np.array([0.25, -0.5]), direction=np.array([1.0, 0.0]), points=5, smoothing=0.1, progress=False)
    frame = shown.to_pandas()
    assert list(frame.columns) == ["t", "x[0]", "x[1]", "f", "f^0.1"] and len(frame) == 5
    at = frame[["x[0]", "x[1]"]].to_numpy()
    assert np.allclose(frame["f"], 0.5 * np.sum((at + 1 - np.maximum(at, 0)) ** 2, axis=1))
    explained = problem.explain().to_pandas()
    assert list(explained.columns) == ["piece", "how", "cost", "advice"] and "Y(x)" in set(explained["piece"])
    assert "Y(x)" in repr(problem.explain()) and "lower level" in repr(problem.explain())


@pytest.mark.parametrize("centre", [1 / 3, 0.7, 0.123456])
def test_a_kink_at_the_centre_is_at_zero(centre: float) -> None:
    """y(x) = min(x^2, c^2) has its kink at c, which a search finds to rounding only."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    level = hf.ArgMin(y, cp.square(y - cp.square(x)), [y <= centre**2])
    problem = hf.Problem(hf.Minimize(clients=y + cp.square(x - 1)), level, [x >= 0])
    shown = problem.implicit.slice(np.array(centre), direction=np.ones(()), radius=centre / 2, points=101, progress=False)
    assert [kink.t for kink in shown.kinks] == [0.0]


def test_a_report_is_titled_by_the_problem_and_not_written_over(tmp_path: Path) -> None:
    quick = {"points": 11, "check": False, "smoothing": (), "progress": False}
    result = small().solve(ZOHFL(step_size=0.1), rounds=3, progress=False)
    path = tmp_path / "run.html"
    path.write_text("my own page")
    with pytest.raises(hf.SettingError, match=r"is there already: write overwrite=True"):
        result.report(path, **quick)
    assert path.read_text() == "my own page"
    result.report(path, **quick, overwrite=True)
    assert "<title>minimize 0.5 * sum_squares(x + 1 - y) over x</title>" in path.read_text()


def test_answers_have_no_negative_zero() -> None:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    a = hf.Sample(name="a")
    own = hf.ArgMin(y, cp.sum_squares(y + a - x), scope="sample")
    rows = hf.Federation([hf.Client({a: np.array([0.0, 1.0])}), hf.Client({a: np.array([0.0])})])
    problem = hf.Problem(hf.Minimize(clients=hf.E(cp.sum_squares(y - 1))), own, federation=rows)
    answers = problem.implicit.response(np.array([-0.0, 1.0]))
    assert [str(answer) for answer in answers] == ["[[ 0.  1.]\n [-1.  0.]]", "[[0. 1.]]"]
    assert not np.signbit(small().implicit.response(np.array([-1.0, -0.0]))).any()


def test_statuses_of_derivatives_go_by_their_names() -> None:
    layer = small().implicit.jax()
    inside, corner = np.array([1.0, -1.0]), np.array([1.0, 0.0])
    assert repr(layer.status(inside)) == "Statuses(f=UNIQUE, y=UNIQUE)"
    assert repr(jax.vmap(layer.status)(np.stack([inside, corner]))) == "Statuses(f=['UNIQUE' 'ONE_SIDED'], y=['UNIQUE' 'ONE_SIDED'])"
    seen = []
    jax.jit(lambda at: seen.append(repr(layer.status(at))) or at)(inside)
    assert "Statuses(f=" in seen[0]

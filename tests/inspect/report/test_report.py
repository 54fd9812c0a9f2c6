"""Reports: what the file says, read back from its HTML."""

from __future__ import annotations

import base64
import gzip
import json
import re
import sys
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import cvxpy as cp
import numpy as np
import pytest

import hierfl as hf
from hierfl.inspect.report.page import number
from hierfl.inspect.report.write import mathematics_svg
from hierfl.models import coupled_minimax, nonsmooth_toy, stackelberg_cournot
from hierfl.solvers import ZOHFL, FedAvg, FedRZO, ProjectedSGD

SECTIONS = (
    "mathematics", "line", "kinks", "convergence", "check", "lowering", "communication", "certificate", "settings",
    "environment",
)  # fmt: skip
QUICK = {"points": 21, "samples": 8, "progress": False}
START = np.array([-0.5, -0.5])
VOID = {"meta", "link", "br", "path", "input"}


class Page(HTMLParser):
    """The elements with their text: sections and tables by id, and everything between tags."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.source = path.read_text(encoding="utf-8")
        self.open: list[tuple[str, str]] = []
        self.text: dict[str, list[str]] = {}
        self.tags: set[str] = set()
        self.ids: list[str] = []
        self.headings: list[str] = []
        self.links: list[str] = []
        self.remote: list[str] = []
        self.rows: dict[str, list[list[str]]] = {}
        self.feed(self.source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {key: value or "" for key, value in attrs}
        self.tags.add(tag)
        if "id" in given:
            self.ids.append(given["id"])
        if tag == "a":
            self.links.append(given["href"])
        self.remote += [v for k, v in given.items() if k in ("src", "href") and not v.startswith(("#", "data:"))]
        if tag not in VOID:
            self.open.append((tag, given.get("id", "")))
        if tag == "tr":
            self.rows.setdefault(self._table(), []).append([])
        if tag in ("td", "th"):
            self.rows[self._table()][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop()[0] == tag, f"unbalanced <{tag}>"

    def handle_data(self, data: str) -> None:
        if not self.open:
            return
        for _, name in self.open:
            if name:
                self.text.setdefault(name, []).append(data)
        tags = [tag for tag, _ in self.open]
        if tags[-1] == "h2":
            self.headings.append(data)
        if "td" in tags or "th" in tags:
            self.rows[self._table()][-1][-1] += data

    def _table(self) -> str:
        return next(name for tag, name in reversed(self.open) if tag == "table")

    def says(self, name: str) -> str:
        """The text of an element."""
        return "".join(self.text[name])

    def facts(self, name: str) -> dict[str, str]:
        """A table of two columns."""
        return {row[0]: row[1] for row in self.rows[name]}

    def figure(self, name: str) -> list[dict[str, Any]]:
        """The traces of a figure, as Plotly is given them."""
        traces: list[dict[str, Any]] = self._drawn(name)[0]
        return traces

    def layout(self, name: str) -> dict[str, Any]:
        """The layout of a figure."""
        found: dict[str, Any] = self._drawn(name)[1]
        return found

    def _drawn(self, name: str) -> tuple[Any, Any]:
        figure = self.values(name, "figure")
        return figure["data"], figure["layout"]

    def values(self, name: str, kind: str = "values") -> Any:
        """What is packed under a name."""
        found = re.search(rf'data-{kind}="{name}">([^<]*)<', self.source)
        assert found is not None, name
        return json.loads(gzip.decompress(base64.b64decode(found[1])))


def decoded(values: Any) -> np.ndarray:
    """An array of Plotly's, which may be in base64."""
    if isinstance(values, dict):
        return np.frombuffer(base64.b64decode(values["bdata"]), dtype=values["dtype"])
    return np.array(values, dtype=float)


def written(result: Any, tmp_path: Path, **settings: Any) -> Page:
    path = result.report(tmp_path / "run.html", **{**QUICK, "overwrite": True, **settings})
    assert path == tmp_path / "run.html"
    page = Page(path)
    assert not page.open and len(page.ids) == len(set(page.ids))
    return page


def toy_run(**settings: Any) -> hf.Result:
    solver = ZOHFL(smoothing=0.1, step_size=0.1)
    found = nonsmooth_toy().solve(
        solver, **{"rounds": 30, "x0": START, "evaluate_every": 5, "progress": False, **settings}
    )
    return found


@cache
def toy_result() -> hf.Result:
    """The run that most reports here are of."""
    return toy_run()


def test_every_section_is_there_and_in_the_contents(tmp_path: Path) -> None:
    page = written(toy_result(), tmp_path)
    assert (tmp_path / "run.html").stat().st_size < 2_100_000
    assert [link.removeprefix("#") for link in page.links[: len(SECTIONS)]] == list(SECTIONS)
    assert set(SECTIONS) <= set(page.ids) and len(page.headings) == len(SECTIONS)
    assert page.remote == [] and "<script src" not in page.source
    assert page.source.count("plotly.js v") <= 2 and page.source.startswith("<!DOCTYPE html>")


def test_the_numbers_are_the_results(tmp_path: Path) -> None:
    result = toy_result()
    page = written(result, tmp_path, radius=1.5)
    evidence = page.facts("certificate-facts")
    assert evidence["f(x), the lower level solved"] == number(result.value)
    assert float(evidence["the run's own objective, with its own y"]) == pytest.approx(result.own_value, rel=1e-6)
    assert float(evidence["error of y"].removeprefix("at most ")) == pytest.approx(result.certificate.error_bound, rel=0.05)
    assert "lower level by closed form." in page.says("certificate") and evidence["unique"] == "yes"
    told, sent = page.facts("communication-counts"), result.communication
    assert int(told["scalars down"].replace(",", "")) == sent["scalars_down"]
    assert float(told["scalars up per round"]) == sent["scalars_up_per_round"]
    settings = page.facts("settings-facts")
    assert settings["seed"] == "0" and settings["rounds done"] == "30" and settings["solver"].startswith("ZOHFL(")
    environment = page.facts("environment-facts")
    assert environment["numpy"] == np.__version__ and environment["hierfl"] == hf.__version__
    assert environment["Python"] == sys.version.split()[0]
    findings = {row[1]: row[0] for row in page.rows["check-findings"]}
    assert result.problem is not None
    for finding in result.problem.check(progress=False):
        assert findings[finding.name] == finding.status
    pieces = [row[0] for row in page.rows["lowering-pieces"][1:]]
    assert pieces == [piece.piece for piece in result.problem.explain()]


def test_the_slice_and_its_kinks_are_those_of_the_implicit_function(tmp_path: Path) -> None:
    result = toy_result()
    page = written(result, tmp_path, radius=1.5, smoothing=[0.2, 0.4])
    assert result.problem is not None
    shown = result.problem.implicit.slice(
        result, radius=1.5, points=21, smoothing=[0.2, 0.4], samples=8, progress=False
    )
    assert len(shown.kinks) > 0
    table = np.array([[float(cell) for cell in row[:4]] for row in page.rows["kink-rows"][1:]])
    expected = [[kink.t, kink.value, kink.left_slope, kink.right_slope] for kink in shown.kinks]
    np.testing.assert_allclose(table, expected, rtol=1e-5, atol=1e-7)
    traces = {trace.get("meta"): trace for trace in page.figure("line-figure")}
    hover = [text.replace("&gt;", ">").replace("<br>", "\n") for text in traces["curve"]["text"] if text]
    assert len(hover) == len(shown.t)
    for place, text in enumerate(hover):
        listed = "\n".join(shown.active(place))
        assert text.endswith(f"active:\n{listed}" if listed else "active: none")
    assert any("(y >= 0)[0]" in text for text in hover)
    for kink, text in zip(shown.kinks, traces["kinks"]["text"], strict=True):
        assert kink.cause in text.replace("&gt;", ">")
    smoothed = [t for t in page.figure("line-figure") if t.get("meta") == "smoothed"]
    assert [trace["visible"] for trace in smoothed] == [True, False]
    said = page.values("line-places")
    assert len(said) == 21
    np.testing.assert_allclose([float(place["f"]) for place in said], shown.value, rtol=1e-7)
    assert said[10]["x"].startswith("x[0] = ") and "y[1] = " in said[10]["y"]
    assert float(said[0]["slope"]) == pytest.approx(
        result.problem.implicit.gradient(result.x + shown.t[0] * shown.direction) @ shown.direction, rel=1e-5
    )


def test_names_are_text_whatever_they_are(tmp_path: Path) -> None:
    x, y = cp.Variable(2, name="<b>"), cp.Variable(2, name="</script><i>&amp;")
    problem = hf.Problem(
        hf.Minimize(clients=0.5 * cp.sum_squares(x + 1 - y)), hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0])
    )
    metrics = {"<u>norm": lambda x, y: float(np.linalg.norm(x))}
    result = problem.solve(ZOHFL(step_size=0.1), rounds=10, x0=START, metrics=metrics, progress=False)
    page = written(result, tmp_path, radius=4.0)
    assert not page.tags & {"b", "i", "u"}
    assert 'aria-label="&lt;u&gt;norm by round"' in page.source
    assert "<b>[0]" in page.says("place") and "<u>norm" in page.says("convergence")
    assert "</script><i>&amp;" in page.says("kinks")
    assert "<b>" not in str([trace.get("text") for trace in page.figure("line-figure")])


def test_a_run_without_a_lower_level(tmp_path: Path) -> None:
    x, u = cp.Variable(2, name="x"), hf.Sample(2, name="u")
    rows = np.arange(6.0).reshape(3, 2)
    problem = hf.Problem(
        hf.Minimize(clients=hf.E(cp.sum_squares(x - u))), federation=hf.Federation([hf.Client({u: rows})] * 2)
    )
    page = written(problem.solve(FedAvg(), rounds=5, progress=False), tmp_path)
    assert "no lower level." in page.says("certificate") and "no lower level" in page.says("place-y")
    assert "No kinks in this window." in page.says("kinks")
    assert [trace["name"] for trace in page.figure("terms-figure")] == ["client 0", "client 1"]


def test_several_variables_and_a_gap(tmp_path: Path) -> None:
    x, z, y = cp.Variable(2, name="x"), cp.Variable(name="z"), cp.Variable(2, name="y")
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum_squares(x - y) + cp.square(z)),
        hf.ArgMin(y, cp.sum_squares(y - x), [cp.sum(y) <= z]),
        [x >= -1, x <= 1, z >= 0],
    )
    result = problem.solve(FedRZO(step_size=0.05), rounds=4, x0={x: np.ones(2), z: 0.5}, progress=False)
    page = written(result, tmp_path, radius=3.0)
    assert "x[1] = " in page.says("place-x") and "z = " in page.says("place-x")
    assert "x is outside X" in page.says("line")
    said = page.values("line-places")
    assert said[0]["f"] == "no value: x is outside X" and said[0]["y"] == "none"


def test_runs_are_shown_with_their_bands(tmp_path: Path) -> None:
    runs = toy_run(seeds=3)
    page = written(runs, tmp_path)
    objective = {trace["name"]: trace for trace in page.figure("convergence-0")}
    assert "95% band" in objective and any(name.startswith("mean of 3 seeds") for name in objective)
    assert [row[0] for row in page.rows["seeds-rows"][1:]] == ["0", "1", "2"]
    assert [float(row[3]) for row in page.rows["seeds-rows"][1:]] == pytest.approx(list(runs.values()), rel=1e-6)
    assert page.facts("settings-facts")["seed"] == str(runs.best.settings["seed"])
    assert "The best of 3 seeds" in page.source


def test_starts_have_no_mean(tmp_path: Path) -> None:
    x = cp.Variable(name="x", bounds=[-2, 2])
    runs = hf.Problem(hf.Minimize(server=cp.square(cp.square(x) - 1))).solve(restarts=2, progress=False)
    page = written(runs, tmp_path)
    assert "The best of 2 starts" in page.source and "95%" not in page.says("convergence") and "mean over" not in page.source
    assert {trace["name"].split(":")[0] for trace in page.figure("convergence-0")} <= {"each round", "f at the end"}


@pytest.mark.filterwarnings("ignore::hierfl.FeasibilityWarning")
def test_an_infeasible_run_says_what_is_violated_and_where(tmp_path: Path) -> None:
    """y = x has to be at least 1; a penalty that is too small leaves x at 0.5, of (x - 0.5)^2."""
    x, y = cp.Variable(name="x", bounds=[-2, 2]), cp.Variable(name="y")
    problem = hf.Problem(hf.Minimize(server=cp.square(y - 0.5)), hf.ArgMin(y, cp.square(y - x)), [y >= 1])
    result = problem.solve(FedRZO(step_size=0.1), rounds=30, penalty=1e-3, x0=0.0, progress=False)
    page = written(result, tmp_path, radius=1.0)
    (violated,) = result.violation.violated
    assert f"x is not feasible: {violated}." in page.source.replace("&lt;", "<").replace("&gt;", ">")
    said = page.source.replace("&lt;", "<").replace("&gt;", ">").replace("&#x27;", "'")
    assert all(line in said for line in str(result).splitlines())
    (name,) = [trace["name"] for trace in page.figure("line-figure") if trace.get("meta") == "stretch" and "violated" in trace["name"]]
    (band,) = [shape for shape in page.layout("line-figure")["shapes"] if shape["fillcolor"].startswith("rgba")]
    assert (band["x1"] + result.x, name) == (pytest.approx(1.0, abs=1e-4), "violated: y &gt;= 1")
    assert [trace["name"] for trace in page.figure("terms-figure")] == ["server"]  # the clients have no term


@pytest.mark.filterwarnings("ignore")
def test_a_diverged_run(tmp_path: Path) -> None:
    x = cp.Variable(2, name="x")
    problem = hf.Problem(hf.Minimize(clients=cp.sum(cp.power(x, 4))))
    with pytest.raises(hf.DivergedError) as caught:
        problem.solve(FedAvg(step_size=5.0), rounds=50, x0=np.ones(2), progress=False)
    assert caught.value.result is not None
    page = written(caught.value.result, tmp_path)
    assert "This run diverged" in page.source and set(SECTIONS) <= set(page.ids)


@pytest.mark.filterwarnings("ignore::hierfl.LowerLevelWarning")
def test_a_run_whose_lower_level_was_not_solved_says_so(tmp_path: Path) -> None:
    page = written(toy_run(rounds=1, x0=np.array([3.0, 3.0])), tmp_path)
    assert "stopped short" not in page.source
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    problem = hf.Problem(
        hf.Minimize(clients=cp.sum_squares(x - 3) + cp.sum_squares(y - 5)),
        hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0], scope="client"),
    )
    lower = ProjectedSGD(steps=1, step_size=1e-4)
    short = problem.solve(ZOHFL(lower=lower, step_size=0.1), rounds=10, x0=np.ones(2), progress=False)
    page = written(short, tmp_path)
    assert ("stopped short" in page.source) == (abs(short.own_value - short.value) > 0.01 * (1 + abs(short.value)))
    assert "stopped short" in page.source


def test_a_loaded_result_needs_its_problem(tmp_path: Path) -> None:
    result = toy_result()
    result.save(tmp_path / "run.npz")
    with pytest.raises(hf.SettingError, match="a report needs the declared problem"):
        hf.Result.load(tmp_path / "run.npz").report(tmp_path / "run.html")
    again = hf.Result.load(tmp_path / "run.npz", problem=result.problem)
    assert "lower level by closed form." in written(again, tmp_path).says("certificate")


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly.graph_objects", None)
    with pytest.raises(hf.MissingPackageError, match=r'pip install "hierfl\[report\]"'):
        toy_result().report(tmp_path / "run.html")
    assert not (tmp_path / "run.html").exists()


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ({"path": "no/run.html"}, "there is no folder"),
        ({"path": "."}, "is a folder: give the name of a file"),
        ({"path": 3}, "path=3: the name of a file"),
        ({"radius": -1}, "radius=-1"),
        ({"points": 2}, "points=2"),
        ({"seed": "x"}, "seed='x'"),
        ({"samples": 1}, "samples=1"),
        ({"smoothing": -1.0}, "smoothing=-1"),
        ({"time_budget": "long"}, "time_budget='long'"),
    ],
)
def test_what_is_wrong_is_said_before_the_work(setting: dict, named: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = toy_result()
    monkeypatch.setattr(hf.Problem, "check", lambda *args, **settings: pytest.fail("the work has begun"))
    with pytest.raises(hf.SettingError, match=named):
        result.report(**{"path": "run.html", "progress": False, **setting})


def test_a_jump_and_narrow_gaps(tmp_path: Path) -> None:
    """f = y + x^2, y = 1 where x < 0.3, else -1; X = [-1, 1.15]."""
    x, y = cp.Variable(name="x"), cp.Variable(name="y")
    problem = hf.Problem(
        hf.Minimize(clients=y + cp.square(x)), hf.ArgMin(y, (x - 0.3) * y, [y >= -1, y <= 1]), [x >= -1, x <= 1.15]
    )
    result = problem.solve(FedRZO(step_size=1e-4), rounds=3, x0=np.array(0.1), progress=False)
    page = written(result, tmp_path, radius=1.25, points=22)
    traces = {trace.get("meta"): trace for trace in page.figure("line-figure")}
    value, text = traces["curve"]["y"], traces["curve"]["text"]
    t, value = decoded(traces["curve"]["x"]), decoded(value)
    (hole,) = [k for k in np.flatnonzero(np.isnan(value)) if abs(t[k]) < 0.5]
    np.testing.assert_allclose(value[[hole - 1, hole + 1]], [1.09, -0.91], atol=1e-5)
    assert len(text) == len(t) and text[hole - 1 : hole + 2] == [""] * 3
    term = decoded(page.figure("terms-figure")[0]["y"])
    assert np.isnan(term[np.searchsorted(decoded(page.figure("terms-figure")[0]["x"]), t[hole])])
    layout = page.layout("line-figure")
    assert layout["xaxis"]["title"]["text"].endswith(f"(x = {result.x:.4g} + t)")
    narrow, *_ = sorted(layout["shapes"], key=lambda shape: shape["x1"] - shape["x0"])
    assert "text" not in narrow.get("label", {})  # the words would not fit
    assert [trace["name"] for trace in page.figure("line-figure") if trace.get("meta") == "stretch"] == [
        "no value: x is outside X"
    ]
    assert "nan" not in " ".join(row[2] for row in page.rows["lowering-pieces"])
    wide = written(result, tmp_path, radius=4.0, points=22).layout("line-figure")["shapes"]
    assert {shape["label"]["text"] for shape in wide} == {"no value: x is outside X"}
    assert all(not shape["label"].get("textangle") for shape in wide)


def test_what_costs_much_is_left_out_with_a_note(tmp_path: Path) -> None:
    page = written(toy_result(), tmp_path, check=False, samples=10**8)
    assert "f^η is left out" in page.says("line") and "check=False" in page.says("check")
    assert not [trace for trace in page.figure("line-figure") if trace.get("meta") == "smoothed"]
    advised = re.search(r"smoothing=([\d.]+), samples=(\d+) takes about", page.says("line"))
    assert advised is not None and 16 <= int(advised[2]) < 10**8
    as_advised = written(toy_result(), tmp_path, check=False, smoothing=float(advised[1]), samples=16)
    assert [trace for trace in as_advised.figure("line-figure") if trace.get("meta") == "smoothed"]


def test_what_there_is_no_time_for_is_said_and_what_was_asked_for_is_made(tmp_path: Path) -> None:
    page = written(toy_result(), tmp_path, check=False, time_budget=0, smoothing=0.3)
    assert "Kinks were not looked for: that would take about" in page.says("kinks")
    assert "Slopes are by differences" in page.says("line")
    assert {place["slope"].split(",")[-1] for place in page.values("line-places")} == {" by differences"}
    assert [trace for trace in page.figure("line-figure") if trace.get("meta") == "smoothed"]
    assert not [trace for trace in page.figure("line-figure") if trace.get("meta") == "kinks"]


def test_many_clients_are_a_band(tmp_path: Path) -> None:
    x, c = cp.Variable(2, name="x"), hf.ClientParameter(2, name="c")
    clients = [hf.Client(parameters={c: np.full(2, float(i))}) for i in range(21)]
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(x - c)), federation=hf.Federation(clients))
    page = written(problem.solve(FedAvg(), rounds=3, progress=False), tmp_path)
    assert [trace["name"] for trace in page.figure("terms-figure")] == ["all 21 clients", "median client"]


@pytest.mark.parametrize("make", [nonsmooth_toy, coupled_minimax, stackelberg_cournot])
def test_the_mathematics_is_drawn_or_spelled(make: Any) -> None:
    problem = make()
    drawn = mathematics_svg(problem.latex(), str(problem))
    assert drawn is not None and drawn.count("<path") >= 4
    assert all(np.isfinite(float(n)) for n in re.findall(r"-?\d+\.\d+", drawn))


def test_mathematics_without_a_font_is_spelled(tmp_path: Path) -> None:
    x = cp.Variable(2, name="变量")
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(x)))
    assert mathematics_svg(problem.latex(), str(problem)) is None
    page = written(problem.solve(FedAvg(), rounds=2, progress=False), tmp_path)
    assert str(problem) in page.says("mathematics")

"""Names at the ends of curves: apart from each other, in the ends' order, inside the figure, and below it where there is no room."""

from __future__ import annotations

import io
import subprocess
import sys
import textwrap
from itertools import combinations
from typing import Any

import cvxpy as cp
import matplotlib.pyplot as plt
import numpy as np
import pytest
import scipy.stats
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

import hierfl as hf
from hierfl.house_style import COLOURS, house_style, panels
from hierfl.inspect.pictures.convergence import name_curves, plot_runs
from hierfl.solvers import FedAvg


def drawn(ends: list[float], names: list[str] | None = None, style: str = "screen", scale: str = "linear") -> Any:
    """(figure, panel, names written there) of straight lines from 1 to their ends; NaN is a line that has no point."""
    names = names or [f"q = {place}" for place in range(len(ends))]
    with house_style(style):
        figure, (panel,) = panels(1, 4.8, 3.6, style)
        curves = [panel.plot([0, 1], [1 + 0 * end, end])[0] for end in ends]
        panel.set_yscale(scale)
        name_curves([panel], [curves], names)
        figure.canvas.draw()
    return figure, panel, [child for child in panel.get_children() if isinstance(child, Annotation)]


def box(label: Annotation) -> Any:
    return Text.get_window_extent(label)  # of the words, without the line to the curve


@pytest.mark.parametrize("style", ["screen", "paper"])
@pytest.mark.parametrize(
    ("ends", "scale"),
    [
        ([0.5, 0.5, 0.5, 0.5], "linear"),  # all end at one place
        ([0.51, 0.5, 3.0, 0.505], "linear"),
        ([1e-9, 1e-3, 1.1e-3, 1e-9], "log"),
        ([5.0, 0.5, np.nan, 0.5], "linear"),
        (list(np.linspace(0.9, 1.0, 9)), "linear"),
    ],
)
def test_names_stand_apart_in_the_order_of_the_ends(ends: list[float], scale: str, style: str) -> None:
    figure, panel, labels = drawn(ends, style=style, scale=scale)
    assert len(labels) == len(ends) and panel.get_legend() is None
    assert not any(box(one).overlaps(box(other)) for one, other in combinations(labels, 2))
    for label in labels:
        assert box(label).x0 > panel.get_window_extent().x1
        assert figure.bbox.contains(*box(label).min) and figure.bbox.contains(*box(label).max)
    heights = [box(label).y0 for label, end in zip(labels, ends) if np.isfinite(end)]
    for (end, height), (other, above) in combinations(zip([end for end in ends if np.isfinite(end)], heights), 2):
        assert end == other or (end < other) == (height < above)


def test_the_line_to_a_name_does_not_run_across_the_panel() -> None:
    """A curve that ends early, as of a method that sends less, has a dot there: a dotted line from it would look like its going on."""
    with house_style():
        figure, (panel,) = panels(1, 4.8, 3.6, "screen")
        (short,), (whole,) = panel.plot([0, 0.3], [1, 2]), panel.plot([0, 1], [1, 3])
        name_curves([panel], [[short, whole]], ["short", "whole"])
        figure.canvas.draw()
    (dot,) = [line for line in panel.lines if line.get_marker() == "o"]
    assert (dot.get_xdata()[0], dot.get_ydata()[0], dot.get_color()) == (0.3, 2.0, short.get_color())
    labels = [child for child in panel.get_children() if isinstance(child, Annotation)]
    assert [label.xy for label in labels] == [(panel.get_xlim()[1], 2.0), (1.0, 3.0)]


@pytest.mark.parametrize("style", ["screen", "paper"])
@pytest.mark.parametrize(("count", "name"), [(3, "ZOHFL(smoothing=0.05, step_size=0.05, directions=4)"), (40, "q")])
def test_names_that_have_no_room_stand_below_the_panel(count: int, name: str, style: str) -> None:
    names = [f"{name} {place}" for place in range(count)]
    figure, panel, labels = drawn(list(np.linspace(0, 1, count)), names, style)
    assert not labels
    (legend,) = figure.legends
    extent = legend.get_window_extent()
    assert extent.y1 <= panel.get_tightbbox().y0 + 1 and extent.x0 >= 0 and extent.x1 <= figure.bbox.x1
    assert [text.get_text().replace("\n", " ") for text in legend.get_texts()] == names


def test_a_sweep_names_its_curves_in_every_panel_and_on_axes_of_others_has_a_legend() -> None:
    x = cp.Variable(2, name="x")
    problem = hf.Problem(hf.Minimize(clients=cp.sum_squares(x - 1)))
    compared = hf.sweep(
        problem,
        {f"step {size}": FedAvg(step_size=size) for size in (0.1, 0.2)},
        seeds=2,
        rounds=5,
        progress=False,
        metrics={"size": lambda x, y: float(x.sum())},
    )
    for panel in compared.plot().axes:
        names = [child.get_text() for child in panel.get_children() if isinstance(child, Annotation)]
        assert names == ["step 0.1", "step 0.2"] and panel.get_legend() is None
    _, own = plt.subplots()
    compared.plot(own)
    assert [text.get_text() for text in own.get_legend().get_texts()] == ["step 0.1", "step 0.2"]


# --- Figures for a paper: their width, their type and fonts after the style's own block, and colours that everybody can
# tell apart.


def figures() -> dict[str, Figure]:
    x, y = cp.Variable(2, name="x"), cp.Variable(2, name="y")
    toy = hf.Problem(hf.Minimize(clients=cp.sum_squares(y)), hf.ArgMin(y, cp.sum_squares(y - x), [y >= 0]))
    plain = hf.Problem(hf.Minimize(clients=cp.sum_squares(x - 1)))
    runs = plain.solve(
        FedAvg(step_size=0.1), rounds=10, seeds=2, progress=False, metrics={"size": lambda x, y: float(x.sum())}
    )
    line = toy.implicit.slice(np.ones(2), np.array([1.0, 2.0]), radius=2.0, points=21, progress=False)
    surface = toy.implicit.surface(np.zeros(2), points=9, progress=False)
    return {
        "slice": line.plot(style="paper"),
        "slice without its response": line.plot(style="paper", response=False),
        "surface": surface.plot(style="paper"),
        "surface in space": surface.plot(kind="3d", style="paper"),
        "run": runs.best.plot(style="paper"),
        "runs": runs.plot(style="paper", scale="log"),
        "runs side by side": plot_runs({"one": runs, "two": runs}, style="paper"),
        "long names": plot_runs({f"{'a long name' * 3} {k}": runs for k in range(3)}, style="paper"),
        **federations(),
    }


def federations() -> dict[str, Figure]:
    label, demand = hf.Sample(name="label"), hf.Sample(name="demand")
    held = {
        "classes": [hf.Client({label: np.arange(12) % k}, name=f"a long name, {k}") for k in (2, 8, 12)],
        "rows elsewhere": [hf.Client({label: hf.Elsewhere(5)}), hf.Client({label: [0, 1]})],
        "spreads": [hf.Client({demand: scipy.stats.norm(k)}) for k in range(3)],
        "weights": [hf.Client() for _ in range(150)],
    }
    return {f"federation, {name}": hf.Federation(clients).plot(style="paper") for name, clients in held.items()}


def test_figures_of_a_paper_have_its_width_its_type_and_its_fonts() -> None:
    for name, figure in figures().items():
        png, pdf = io.BytesIO(), io.BytesIO()
        figure.savefig(png, format="png")
        figure.savefig(pdf, format="pdf")
        png.seek(0)
        assert plt.imread(png).shape[1] == round(3.4 * 300), name
        written = [text for text in figure.findobj(Text) if text.get_text().strip() and text.get_visible()]
        assert {text.get_fontsize() for text in written} == {8.0}, name
        assert b"/FontFile2" in pdf.getvalue() and b"/Type3" not in pdf.getvalue(), name
        plt.close(figure)


def test_a_style_that_there_is_not_is_answered_with_the_nearest() -> None:
    line = hf.Problem(hf.Minimize(clients=cp.square(cp.Variable()))).implicit.slice(0.0, points=5, progress=False)
    with pytest.raises(hf.SettingError, match="did you mean 'paper'"):
        line.plot(style="papper")


# Machado, Oliveira and Fernandes (2009), severity 1: linear sRGB as seen with one kind of cone missing
MISSING = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
    "nothing": np.eye(3),
}


@pytest.mark.parametrize("missing", MISSING)
def test_the_first_six_colours_differ_to_every_eye(missing: str) -> None:
    srgb = np.array([to_rgb(colour) for colour in COLOURS[:6]])
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    lab = cielab(np.clip(linear @ np.array(MISSING[missing]).T, 0, 1))
    apart = np.linalg.norm(lab[:, None] - lab[None], axis=-1) + 1e3 * np.eye(6)
    assert apart.min() > 10


def cielab(linear: np.ndarray) -> np.ndarray:
    """CIE 1976 L*a*b* of linear sRGB (k, 3), white D65."""
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    t = linear @ to_xyz.T / np.array([0.9505, 1.0, 1.0890])
    f = np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.stack([116 * f[:, 1] - 16, 500 * (f[:, 0] - f[:, 1]), 200 * (f[:, 1] - f[:, 2])], axis=-1)


# --- Figures in notebooks: what the backend sets when it is loaded is still set after hierfl's first figure, and each
# is drawn once.


def test_the_first_figure_leaves_what_its_backend_set() -> None:
    # a backend that turns "interactive" on when it is loaded, as that of notebooks does
    code = """
        import sys, types
        import matplotlib
        from matplotlib.backends import backend_agg

        class Loaded(types.ModuleType):
            pass

        backend = Loaded("a_notebooks_backend")
        for name in ("FigureCanvas", "FigureManagerBase"):
            setattr(backend, name, getattr(backend_agg, name, None) or getattr(matplotlib.backend_bases, name))

        class Finder:
            def find_spec(self, name, path=None, target=None):
                from importlib.machinery import ModuleSpec
                return ModuleSpec(name, self) if name == "a_notebooks_backend" else None
            def create_module(self, spec):
                return backend
            def exec_module(self, module):
                matplotlib.interactive(True)

        sys.meta_path.insert(0, Finder())
        matplotlib.use("module://a_notebooks_backend", force=False)
        matplotlib.rcParams["backend"] = "module://a_notebooks_backend"
        from hierfl.house_style import house_style
        import matplotlib.pyplot as plt
        with house_style():
            plt.subplots()
        assert matplotlib.is_interactive()
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


def test_a_figure_is_drawn_once_whether_it_is_the_value_of_a_cell_or_not() -> None:
    code = """
        from IPython.core.formatters import DisplayFormatter
        from IPython.core.interactiveshell import InteractiveShell

        class Shell(InteractiveShell):
            def enable_gui(self, gui=None):
                pass  # a notebook has none

        drawn = []

        class Counted(DisplayFormatter):
            def format(self, shown, *given, **settings):
                data, metadata = super().format(shown, *given, **settings)
                drawn.append("image/png" in data)
                return data, metadata

        shell = Shell.instance(active_types=["text/plain", "image/png"])
        shell.display_formatter = Counted(parent=shell, active_types=["text/plain", "image/png"])
        shell.run_line_magic("matplotlib", "inline")
        shell.run_cell("import hierfl as hf; federation = hf.Federation([hf.Client()])")
        for cell in ("federation.plot()", "federation.plot();", "kept = federation.plot(); kept", "kept"):
            drawn.clear()
            shell.run_cell(cell).raise_error()
            assert sum(drawn) == 1, (cell, drawn)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)

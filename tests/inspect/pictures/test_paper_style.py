"""Figures for a paper: their width, their type and fonts after the style's own block, and colours that everybody can tell apart."""

from __future__ import annotations

import io

import cvxpy as cp
import matplotlib.pyplot as plt
import numpy as np
import pytest
import scipy.stats
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.text import Text

import hierfl as hf
from hierfl.house_style import COLOURS
from hierfl.inspect.pictures.convergence import plot_runs
from hierfl.solvers import FedAvg


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

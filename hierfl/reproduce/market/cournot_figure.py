"""[2S] Figure 5: the progress of FedRZO_2s on the Stackelberg game by rounds, for three numbers of local steps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from hierfl.inspect.pictures.convergence import moving_mean
from hierfl.reproduce.market.cournot_runs import DIFFERS, LEFT_OPEN, STEPS, cournot_cell, run_cournot
from hierfl.reproduce.market.cournot_table import printed_value
from hierfl.reproduce.reproduction import Cell, DataSets, Measured, Reproduction, TextTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PANELS = ((100, 0.5, 1.0), (1000, 1.0, 0.1))  # followers, b and eta, left and right
WINDOW = 5  # rounds of the moving mean


def _plan(full: bool, data: DataSets) -> list[Cell]:
    return [cournot_cell(n, b, h, eta) for n, b, eta in (PANELS if full else PANELS[:1]) for h in STEPS]


def _tables(measured: Measured) -> Sequence[TextTable]:
    rows = [
        ["followers", "b", "eta", "H", "printed in Table 4", "(a) own y", "difference", "(a) f(x)", "(b) f(x)", "min f"]
    ]
    for cell in measured.cells:
        followers, slope, smoothing, steps = (
            cell.settings[name] for name in ("followers", "slope", "smoothing", "local_steps")
        )
        ours, printed = measured.numbers[cell.name], printed_value(followers, slope, steps, smoothing)
        difference = f"{100 * (ours['own'] / printed - 1):+.1f} %"
        values = [f"{printed:.3f}", f"{ours['own']:.3f}", difference]
        solved = [f"{one:.4f}" for one in (ours["value"], ours["exact"]["value"], ours["optimum"])]
        rows.append([*(f"{one:g}" for one in (followers, slope, smoothing, steps)), *values, *solved])
    title = (
        "f at the last x, averaged over the demand: printed in Table 4, as the figure has no numbers; by (a) the printed settings, solid, with "
        "the run's own y and with the lower level solved; by (b) the lower level solved throughout, dotted. Curves are of each round's own samples."
    )
    return [TextTable(title, rows)]


def _draw(measured: Measured) -> Figure:
    """Draw a panel for each market as in the paper, the values with the run's own y; dotted, those with the lower level solved."""
    from matplotlib.figure import Figure

    panels = [p for p in PANELS if measured.of(followers=p[0], slope=p[1], smoothing=p[2])]
    figure = Figure(figsize=(4.9 * len(panels), 3.7))
    for ax, (followers, slope, smoothing) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels):
        for place, steps in enumerate(STEPS):
            (ours,) = measured.of(followers=followers, slope=slope, smoothing=smoothing, local_steps=steps)
            for values, look in ((ours["objective"], "-"), (ours["exact"]["objective"], ":")):
                mean = moving_mean(np.asarray(values, dtype=float), WINDOW)
                label = f"H = {steps}" if look == "-" else None
                ax.plot(np.arange(1, len(mean) + 1), mean, look, color=f"C{place}", label=label)
            ax.plot(len(ours["objective"]), printed_value(followers, slope, steps, smoothing), "o", color=f"C{place}")
        ax.set(title=f"ñ = {followers}, η = {smoothing:g}, b = {slope:g}", xlabel="communication round")
        ax.set_ylabel("f with the run's own y (dotted: solved; dots: printed)")
        ax.legend()
    return figure


REPRODUCTION = Reproduction(
    name="2s-fig5",
    about="the Stackelberg game by FedRZO_2s: progress by rounds for H = 1, 10, 20",
    source="[2S] (Qiu, Shanbhag, Yousefian, 2024), Figure 5, §6.4",
    caption=(
        "(Left) Convergence of FedRZO_2s for the SNCE problem with 100 followers. (Right) Convergence of FedRZO_2s for the SNCE problem "
        "with 1000 followers. In both settings, the performance of FedRZO_2s improves as the number of local steps increases."
    ),
    plan=_plan,
    run=run_cournot,
    tables=_tables,
    draw=_draw,
    smaller="the left panel alone, at the paper's settings",
    differs=DIFFERS[:2],
    left_open=LEFT_OPEN,
)

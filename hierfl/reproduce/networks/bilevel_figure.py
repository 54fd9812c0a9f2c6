"""[2S] Figure 4 ([NN] Figure 2): hyperparameter learning and fair classification by FedRZO_bl."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from hierfl.reproduce.heterogeneous.heterogeneous_table import interval
from hierfl.reproduce.networks.bilevel_runs import (
    LEARNED,
    LOWERS,
    MIXED,
    MIXTURES,
    fair_cell,
    hyperparameter_cell,
    run_bilevel,
)
from hierfl.reproduce.networks.relu_runs import PRINTS_CURVES, draw_runs, first_of
from hierfl.reproduce.reproduction import Cell, DataSets, Measured, Plain, Reproduction, TextTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def _plan(full: bool, data: DataSets) -> list[Cell]:
    name = first_of(data, "MNIST") if full else "digits"
    steps, rounds = ((1, 5, 10, 20), 1000) if full else ((1, 20), 100)
    seeds = range(5 if full else 2)
    learned = [
        hyperparameter_cell(name, lower, h, seed, rounds, None if full else 1000)
        for lower in LOWERS
        for h in steps
        for seed in seeds
    ]
    mixed = [fair_cell(name, mixture, h, seed, rounds) for mixture in MIXTURES for h in steps for seed in seeds]
    return [*learned, *mixed]


def _tables(measured: Measured) -> Sequence[TextTable]:
    tables = []
    for part, variant in ((LEARNED, "lower level by"), (MIXED, "set of y")):
        rows = [["data", variant, "H", "test loss at the start", "test loss", "worst class", "f(x)", "own f"]]
        for data in measured.each("data", part=part):
            for one in measured.each("variant", part=part):
                for steps in measured.each("local_steps", part=part):
                    runs = measured.of(part=part, data=data, variant=one, local_steps=steps)
                    rows.append([data, one, f"{steps}", *_entries(runs)])
        rounds = measured.each("rounds", part=part)[0]
        seeds = len(measured.each("seed", part=part))
        tables.append(TextTable(f"{part}: {rounds} rounds, means and 95 % intervals over {seeds} seeds", rows))
    return tables


def _entries(runs: Sequence[Plain]) -> list[str]:
    if not runs:
        return ["no data", "", "", "", ""]
    if any(one["diverged"] for one in runs):
        return ["diverged", "", "", "", ""]
    worst = interval([one["worst"][-1] for one in runs], 4) if "worst" in runs[0] else ""
    ends = [interval([one[name] for one in runs], 4) for name in ("value", "own")]
    return [f"{runs[0]['loss'][0]:.4f}", interval([one["loss"][-1] for one in runs], 4), worst, *ends]


def _draw(measured: Measured) -> Figure:
    """Draw hyperparameters to the left and fair classification to the right, a colour for H, dashes for the variants."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10.0, 3.9))
    for ax, part in zip(figure.subplots(1, 2), (LEARNED, MIXED)):
        for variant, look in zip(measured.each("variant", part=part), ("-", "--")):
            for place, steps in enumerate(measured.each("local_steps", part=part)):
                runs = measured.of(part=part, variant=variant, local_steps=steps)
                whole = [one for one in runs if not one["diverged"]]
                draw_runs(ax, whole, f"H = {steps}, {variant}", color=f"C{place}", linestyle=look)
        ax.set(title=part, xlabel="communication round", ylabel="loss on test data")
        ax.legend(fontsize="small")
    return figure


REPRODUCTION = Reproduction(
    name="2s-fig4",
    about="hyperparameter learning and fair classification by FedRZO_bl, with the lower solver of Algorithm 3 and LFD, y in the simplex and free",
    source="[2S] (Qiu, Shanbhag, Yousefian, 2024), Figure 4, §6.2, §6.3; [NN] (2023), Figure 2",
    caption=(
        "(Left) Convergence of FedRZO_bl in hyperparameter FL for ℓ2 regularized logistic loss, where we plot the loss function on test data for different "
        "values of local steps with 95% CIs. (Right) Convergence of FedRZO_bl in minimax FL, where we present test results in solving a "
        "nondifferentiable nonconvex-strongly concave FL minimax formulation of the fair classification problem."
    ),
    data=("MNIST",),
    plan=_plan,
    run=run_bilevel,
    tables=_tables,
    draw=_draw,
    smaller="100 of 1000 rounds, 2 of 5 seeds, H = 1 and 20, scikit-learn's digits",
    differs=(
        PRINTS_CURVES,
        "Queries x + v are projected on X, where the paper's are not: a weight below 0 in the lower level would take its strong convexity away.",
        "The local steps of FedRZO_bl use answers y that are computed once a round. y(x) depends on the mean of x alone, and f on x only through y: H local "
        "steps do here what one step H times as long does.",
    ),
    left_open=(
        "the lower losses are means and the upper ones sums: with sums in both, Algorithm 3 asks for millions of steps; 30 % of a client's data are upper samples",
        "mu = 0.1 of X, the start x = 0.5, eta = 0.01, gamma = 2e-4; fair classification: eta = 0.01, gamma = 5e-4 (5e-5 for y free)",
        "the objective of fair classification is printed without y_c before the loss of class c; here it stands, as in the formulation that is cited, with lambda = 0.1 in the "
        "simplex and 1 for y free; its lower solver takes 5 rounds of 10 steps on minibatches of 128",
        "L_h of Algorithm 3: X has no bound above, and then L_h has none; it is taken for x up to 1",
        "samples are shared by the two calls of the lower solver; labels are 1 for even and -1 for odd classes",
    ),
)

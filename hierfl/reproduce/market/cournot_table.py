"""[2S] Table 4: FedRZO_2s on the Stackelberg game, 4 numbers of followers, 2 slopes, 3 numbers of local steps, 3 smoothings."""

from __future__ import annotations

from collections.abc import Sequence

from hierfl.reproduce.market.cournot_runs import (
    DIFFERS,
    LEFT_OPEN,
    SLOPES,
    SMOOTHING,
    STEPS,
    cournot_cell,
    published_followers,
    run_cournot,
)
from hierfl.reproduce.reproduction import Cell, DataSets, Measured, Reproduction, TextTable

# f(x_K) as printed, by followers and slope; rows H = 1, 10, 20, columns eta = 1, 0.1, 0.01
PRINTED = {
    (10, 0.5): ((-7.875, -7.878, -7.879), (-35.190, -35.192, -35.192), (-39.448, -39.448, -39.448)),
    (10, 1.0): ((-6.557, -6.562, -6.563), (-18.945, -18.945, -18.945), (-19.315, -19.314, -19.314)),
    (20, 0.5): ((-8.774, -8.773, -8.773), (-39.733, -39.732, -39.732), (-44.141, -44.140, -44.140)),
    (20, 1.0): ((-7.964, -7.963, -7.963), (-23.000, -23.000, -23.000), (-23.343, -23.343, -23.342)),
    (100, 0.5): ((-9.084, -9.078, -9.077), (-40.688, -40.685, -40.685), (-45.158, -45.157, -45.157)),
    (100, 1.0): ((-8.252, -8.242, -8.241), (-23.557, -23.556, -23.556), (-23.895, -23.895, -23.895)),
    (1000, 0.5): ((-8.901, -8.903, -8.903), (-40.302, -40.297, -40.297), (-44.758, -44.759, -44.759)),
    (1000, 1.0): ((-8.077, -8.080, -8.081), (-23.329, -23.326, -23.326), (-23.656, -23.656, -23.656)),
}


def printed_value(followers: int, slope: float, local_steps: int, smoothing: float) -> float:
    """The entry of the printed table."""
    return PRINTED[followers, slope][STEPS.index(local_steps)][SMOOTHING.index(smoothing)]


def _plan(full: bool, data: DataSets) -> list[Cell]:
    if full:
        markets = [(followers, slope) for followers in published_followers() for slope in SLOPES]
        return [cournot_cell(*market, h, eta) for market in markets for h in STEPS for eta in SMOOTHING]
    return [cournot_cell(followers, 0.5, h, 0.1) for followers in (20, 100) for h in STEPS]


def _tables(measured: Measured) -> Sequence[TextTable]:
    head = [
        "followers",
        "b",
        "H",
        "eta",
        "printed",
        "(a) own y",
        "difference",
        "(a) f(x)",
        "(b) f(x)",
        "min f",
        "x of (a)",
        "x of (b)",
    ]
    rows = [head]
    for cell in measured.cells:
        entry = tuple(cell.settings[name] for name in ("followers", "slope", "local_steps", "smoothing"))
        ours, printed = measured.numbers[cell.name], printed_value(*entry)
        exact = ours["exact"]
        rows.append(
            [
                *(f"{one:g}" for one in entry),
                f"{printed:.3f}",
                f"{ours['own']:.3f}",
                f"{ours['own'] - printed:+.3f} ({100 * (ours['own'] / printed - 1):+.1f} %)",
                *(f"{one:.4f}" for one in (ours["value"], exact["value"], ours["optimum"])),
                *(f"{one['own_x']:.3f}" for one in (ours, exact)),
            ]
        )
    warned = [sum(one["warned"] for one in runs) for runs in _both(measured)]
    title = (
        "f(x_K): printed, and by (a) the printed settings, (b) the lower level solved. "
        f"Warned that the lower level is not solved: {warned[0]} of {len(measured.cells)} runs of (a), {warned[1]} of (b)."
    )
    return [TextTable(title, rows)]


def _both(measured: Measured) -> tuple[list, list]:
    ours = [measured.numbers[cell.name] for cell in measured.cells]
    return ours, [one["exact"] for one in ours]


REPRODUCTION = Reproduction(
    name="2s-table4",
    about="the Stackelberg game by FedRZO_2s: 72 printed values beside f with the followers at their equilibrium",
    source="[2S] (Qiu, Shanbhag, Yousefian, 2024), Table 4, §6.4",
    caption="Implementation results of FedRZO_2s addressing the SNCE problem. FedRZO_2s displays improvement as H increases.",
    plan=_plan,
    run=run_cournot,
    tables=_tables,
    smaller="6 of the 72 cells, as printed: 20 and 100 followers, b = 0.5, eta = 0.1",
    differs=DIFFERS,
    left_open=LEFT_OPEN,
)

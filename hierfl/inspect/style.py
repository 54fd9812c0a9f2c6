"""The house style of all plots: colour-blind safe, readable in print."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

# Okabe and Ito's palette, reordered: neighbours differ in lightness as well.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")


@contextmanager
def house_style() -> Iterator[None]:
    """Matplotlib settings of hierfl within the block."""
    import matplotlib as mpl
    from cycler import cycler

    settings = {
        "axes.prop_cycle": cycler(color=COLOURS),
        "axes.grid": True,
        "grid.alpha": 0.25,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "figure.dpi": 110,
        "savefig.dpi": 150,
        "savefig.bbox": "tight",
        "font.size": 10,
        "legend.frameon": False,
        "lines.linewidth": 1.6,
        "figure.constrained_layout.use": True,
    }
    with mpl.rc_context(settings):
        yield

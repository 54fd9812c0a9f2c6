"""The house style of all plots: colour-blind safe, readable in print."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from hierfl.errors import SettingError

# Okabe and Ito's palette, reordered: neighbours differ in lightness as well.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")

# What is no part of a curve; reasons for gaps, each with its own grey and hatching.
GAPS = (("0.88", ""), ("0.80", "///"), ("0.72", "..."), ("0.64", "xxx"))


@contextmanager
def house_style() -> Iterator[None]:
    """Matplotlib settings of hierfl within the block."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt
    from cycler import cycler

    plt.draw_if_interactive()  # loads the backend: a notebook's turns "interactive" on, which the block's end would turn off again
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


def require_axes(ax: Any, projection: str = "rectilinear") -> None:
    """Require that ``ax`` is None, or axes of matplotlib of that projection.

    Raises
    ------
    SettingError
        Saying how such axes are made.
    """
    from matplotlib.axes import Axes

    how = "plt.subplots()" if projection == "rectilinear" else "plt.subplots(subplot_kw={'projection': '3d'})"
    if ax is not None and (not isinstance(ax, Axes) or (ax.name == "3d") != (projection == "3d")):
        what = f"3-D axes ({ax.name})" if isinstance(ax, Axes) and ax.name == "3d" else repr(ax)
        raise SettingError(
            f"ax={what}: axes of matplotlib, such as the second value of {how}, or None for a new figure."
        )


def line_style(style: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of matplotlib's lines, under their long names (``lw`` is ``linewidth``).

    Raises
    ------
    SettingError
        Naming a keyword that is none, and the usual ones.
    """
    from matplotlib.artist import ArtistInspector
    from matplotlib.cbook import normalize_kwargs
    from matplotlib.lines import Line2D

    try:
        long: dict[str, Any] = normalize_kwargs(dict(style), Line2D)
    except TypeError as error:  # the same one twice
        raise SettingError(f"style: {error}.") from error
    usual = ("color", "linestyle", "linewidth", "marker", "markersize", "alpha", "label", "zorder")
    require_known(long, ArtistInspector(Line2D).get_setters(), usual)
    return long


def require_known(style: Mapping[str, Any], known: Iterable[str], usual: Iterable[str]) -> None:
    """Require that every keyword is known.

    Raises
    ------
    SettingError
        Naming the keyword, and the usual ones.
    """
    unknown = [name for name in style if name not in set(known)]
    if unknown:
        raise SettingError(f"{unknown[0]}= is no style keyword of this plot: write {', '.join(usual)}, for example.")

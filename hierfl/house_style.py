"""The house style of all plots: colour-blind safe, readable in print."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from hierfl.errors import SettingError
from hierfl.near_names import near_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, reordered: neighbours differ in lightness as well.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")

# What is no part of a curve; reasons for gaps, each with its own grey and hatching, and ties.
GAPS = (("#e0e0e0", ""), ("#cccccc", "///"), ("#b8b8b8", "..."), ("#a3a3a3", "xxx"))
TIED = "#f5dcc3"
HATCHES = ("\\\\\\", "|||", "---", "+++")  # of upper constraints that are violated


SCREEN = {
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.dpi": 110,
    "savefig.dpi": 150,
    "savefig.bbox": "tight",
    "font.size": 10,
    "legend.fontsize": 8,
    "legend.frameon": False,
    "lines.linewidth": 1.6,
    "figure.constrained_layout.use": True,
}
# a column of a paper, in the type of its captions; Type 42 fonts, which publishers ask for; saved at the width that it has
PAPER = SCREEN | {
    "savefig.dpi": 300,
    "savefig.bbox": None,
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.fontsize": 8,
    "figure.titlesize": 8,
    "lines.linewidth": 1.1,
    "lines.markersize": 3,
    "axes.linewidth": 0.6,
    "pdf.fonttype": 42,
    "ps.fonttype": 42,
}
STYLES = {"screen": SCREEN, "paper": PAPER}
COLUMN = 3.4  # inches, of a paper's column
KEPT = ("savefig.dpi", "savefig.bbox", "pdf.fonttype", "ps.fonttype")  # of a style, asked for when a figure is saved


def require_style(style: Any) -> str:
    """Require a style that there is. Raises ``SettingError``, naming those."""
    if style not in STYLES:
        raise SettingError(f"style={style!r}: {near_names(style, tuple(STYLES))}")
    return str(style)


@contextmanager
def house_style(style: str = "screen") -> Iterator[None]:
    """Matplotlib settings of hierfl within the block: ``"screen"``, or ``"paper"`` for a column of 3.4 inches."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt
    from cycler import cycler

    plt.draw_if_interactive()  # loads the backend: a notebook's turns "interactive" on, which the block's end would turn off again
    with mpl.rc_context({"axes.prop_cycle": cycler(color=COLOURS), **STYLES[require_style(style)]}):
        yield


def panels(count: int, width: float, height: float, style: str = "screen") -> tuple[Figure, list[Axes]]:
    """A figure of so many panels (inches) side by side, for a paper below each other, that is saved in its style."""
    import matplotlib.pyplot as plt

    if style == "paper":
        size, grid = (COLUMN, COLUMN * min(height / width, 0.7) * count), (count, 1)
    else:
        size, grid = (width * count, height), (1, count)
    figure, axes = plt.subplots(*grid, figsize=size, squeeze=False, FigureClass=house_figure())
    return figure, list(axes.ravel())


@cache
def house_figure() -> type[Figure]:
    """The class of hierfl's figures: made once, since matplotlib is loaded when it is needed."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt
    from matplotlib.figure import Figure

    class HouseFigure(Figure):
        """A figure that is saved as the style says in which it was drawn, after that style's block as well, and that a notebook draws once."""

        def __init__(self, *args: Any, **settings: Any) -> None:
            super().__init__(*args, **settings)
            self._kept = {name: mpl.rcParams[name] for name in KEPT}

        def savefig(self, *args: Any, **settings: Any) -> None:
            with mpl.rc_context(self._kept):
                super().savefig(*args, **settings)

        def _ipython_display_(self) -> None:
            """Be closed before a notebook draws it as the value of a cell: at the cell's end it draws all that are open."""
            if "inline" in mpl.get_backend():
                plt.close(self)
            raise NotImplementedError  # which lets IPython draw it as it draws any figure

    return HouseFigure


def require_axes(ax: Any, projection: str = "rectilinear") -> None:
    """``ax`` is None, or axes of matplotlib of that projection. Raises ``SettingError``, saying how such are made."""
    from matplotlib.axes import Axes

    how = "plt.subplots()" if projection == "rectilinear" else "plt.subplots(subplot_kw={'projection': '3d'})"
    if ax is not None and (not isinstance(ax, Axes) or (ax.name == "3d") != (projection == "3d")):
        what = f"3-D axes ({ax.name})" if isinstance(ax, Axes) and ax.name == "3d" else repr(ax)
        raise SettingError(f"ax={what}: axes of matplotlib, such as the second value of {how}; None makes a figure.")


def line_style(style: Mapping[str, Any]) -> dict[str, Any]:
    """The keywords of matplotlib's lines, ``lw`` as ``linewidth``. Raises ``SettingError``, naming one that is none."""
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
    """Require that every keyword is known. Raises ``SettingError``, naming the keyword, and the usual ones."""
    unknown = [name for name in style if name not in set(known)]
    if unknown:
        raise SettingError(f"{unknown[0]}= is no style keyword of this plot: write {', '.join(usual)}, for example.")

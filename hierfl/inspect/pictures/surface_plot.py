"""The pictures of a surface: contours with the kink curves, and three dimensions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from hierfl.errors import SettingError
from hierfl.house_style import (
    COLOURS,
    COLUMN,
    house_figure,
    house_style,
    require_axes,
    require_known,
    require_style,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from mpl_toolkits.mplot3d import Axes3D

    from hierfl.inspect.pictures.surface import Surface

LEVELS = 24
STYLE = {
    "contour": ("levels", "cmap", "norm", "alpha", "hatches", "colors", "vmin", "vmax", "extend", "locator", "antialiased",
                "corner_mask", "algorithm", "nchunk", "zorder"),
    "3d": ("cmap", "alpha", "linewidth", "edgecolor", "shade", "color", "norm", "vmin", "vmax", "rcount", "ccount", "rstride",
           "cstride", "lightsource", "antialiased", "zorder"),
}  # fmt: skip


def plot_surface(
    shown: Surface, ax: Axes | None = None, kind: str = "contour", style: str = "screen", **look: Any
) -> Figure:
    """Draw a surface; ``look`` goes to matplotlib's ``contourf`` or ``plot_surface``. Returns the figure."""
    import matplotlib.pyplot as plt

    if kind not in ("contour", "3d"):
        raise SettingError(f"kind={kind!r}: write 'contour' or '3d'.")
    require_axes(ax, "3d" if kind == "3d" else "rectilinear")
    require_known(look, STYLE[kind], STYLE[kind][:5])
    with house_style(require_style(style)):
        if ax is None:
            projection = {"subplot_kw": {"projection": "3d"}} if kind == "3d" else {}
            size = (COLUMN, 2.9) if style == "paper" else (6.0, 4.8)
            figure, panel = plt.subplots(figsize=size, FigureClass=house_figure(), **projection)
        else:
            figure, panel = ax.figure, ax
        first, second = axis_names(shown)
        panel.set(xlabel=first, ylabel=second, title="implicit function")
        (_contours if kind == "contour" else _in_space)(figure, panel, shown, look)
    return figure


def axis_names(shown: Surface) -> tuple[str, str]:
    """Name the axes: by the declared entries of x where the plane is that of its two coordinates, else s and t."""
    if not np.array_equal(shown.plane.directions, np.eye(2)):
        return "s   (along the first direction)", "t   (along the second)"
    variables = shown.compiled.upper.variables
    names = [v.name() for v in variables] if len(variables) == 2 else [f"{variables[0].name()}[{i}]" for i in range(2)]
    return names[0], names[1]


def coordinates(shown: Surface) -> tuple[np.ndarray, np.ndarray]:
    """What the axes count: x itself where the plane is that of its two coordinates, else s and t."""
    shift = shown.plane.centre if np.array_equal(shown.plane.directions, np.eye(2)) else np.zeros(2)
    return shown.s + shift[0], shown.s + shift[1]


def _contours(figure: Figure, panel: Axes, shown: Surface, style: dict[str, Any]) -> None:
    from matplotlib.patheffects import withStroke

    across, up = coordinates(shown)
    shift = np.array([across[0], up[0]]) - shown.s[0]
    panel.grid(False)
    panel.set_facecolor("0.85")
    if np.isfinite(shown.value).any():
        filled = panel.contourf(
            across,
            up,
            _without_rounding(shown.value.T),
            **{"levels": LEVELS, "cmap": "cividis", "extend": _beyond(style), **style},
        )
        figure.colorbar(filled, ax=panel, label="f")
    if len(shown.kink_points):
        places = shown.kink_points + shift
        panel.plot(places[:, 0], places[:, 1], ".", color=COLOURS[1], markersize=3, label="kinks")
    if len(shown.iterates):
        path = shown.iterates + shift
        rim = [
            withStroke(linewidth=3, foreground="black")
        ]  # white on dark colours, rimmed on light ones and in the legend
        look: dict[str, Any] = {"color": "white", "markersize": 2.5, "linewidth": 1.2, "path_effects": rim}
        panel.plot(path[:, 0], path[:, 1], "-o", label="iterates", **look)
    if shown.gaps:
        panel.plot([], [], "s", color="0.85", label="no value: " + ", ".join(shown.gaps))
    if len(shown.kink_points) or len(shown.iterates) or shown.gaps:
        panel.legend(loc="upper left", bbox_to_anchor=(0, -0.12), ncols=3)
    panel.set(xlim=(across[0], across[-1]), ylim=(up[0], up[-1]))


def _beyond(style: dict[str, Any]) -> str:
    """Values at and beyond the last level have its colour, not that of places without a value; levels that are given are kept to."""
    return "neither" if np.ndim(style.get("levels", 0)) else "both"


def _in_space(figure: Figure, panel: Axes3D, shown: Surface, style: dict[str, Any]) -> None:
    across, up = coordinates(shown)
    grid = np.meshgrid(across, up, indexing="ij")
    look = {"linewidth": 0.15, "edgecolor": "0.3", "rcount": 60, "ccount": 60, "zorder": 1, **style}
    if np.isfinite(shown.value).any():
        panel.plot_surface(*grid, shown.value, **({} if "color" in style else {"cmap": "cividis"}), **look)
    if len(shown.kink_points):
        panel.computed_zorder = False  # else matplotlib hides dots on the surface behind it
        places = shown.kink_points + np.array([across[0], up[0]]) - shown.s[0]
        dots: dict[str, Any] = {"color": COLOURS[1], "markersize": 2, "zorder": 2, "label": "kinks"}
        panel.plot(places[:, 0], places[:, 1], shown.kink_values, ".", **dots)
    if shown.gaps:
        panel.plot([], [], [], " ", label="no value: " + ", ".join(shown.gaps))
    if len(shown.kink_points) or shown.gaps:
        panel.legend(loc="upper left")
    panel.set(xlim=(across[0], across[-1]), ylim=(up[0], up[-1]), zlabel="f")
    panel.view_init(elev=28, azim=-128)


def _without_rounding(value: np.ndarray) -> np.ndarray:
    """Round values to nine digits of their range: where f is constant, rounding errors would draw stripes at a level."""
    low, span = np.nanmin(value), np.nanmax(value) - np.nanmin(value)
    return np.asarray(low + span * np.round((value - low) / span, 9) if span > 0 else value)

"""The figures of a study: curves with quartiles, and profiles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from hierfl.errors import SettingError
from hierfl.house_style import house_style, panels, require_axes, require_style
from hierfl.inspect.pictures.convergence import DASHES, SCALES, name_curves
from hierfl.near_names import near_names
from hierfl.study.comparison import UNITS, Comparison, Profile

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_curves(compared: Comparison, problem: str, ax: Axes | None, axis: str, scale: str, best: bool, style: str) -> Figure:
    """A line and its quartiles for each solver; errors as for ``Comparison.plot``."""
    require_axes(ax)
    if scale not in SCALES:
        raise SettingError(f"scale={scale!r}: {near_names(scale, SCALES)}")
    bands = {name: compared.band(problem, name=name, axis=axis, best=best) for name in compared.solvers if not compared.cells[problem, name].refused}
    sign = 1.0 if compared.senses[problem] == "minimize" else -1.0
    seen = [curve.value for name in bands for curve in compared.cells[problem, name].curves]
    least = sign * min((float(np.nanmin(sign * values)) for values in seen if np.isfinite(values).any()), default=np.nan)

    def drawn(values: np.ndarray) -> np.ndarray:
        if scale != "gap":
            return values
        gap = sign * (values - least)
        return np.where(gap > 0, gap, np.nan)

    with house_style(require_style(style)):
        figure, axes = panels(1, 5.2, 3.6, style) if ax is None else (cast("Figure", ax.figure), [ax])
        panel, lines, names = axes[0], [], []
        for place, (name, band) in enumerate(bands.items()):
            if not len(band.at):
                continue
            (line,) = panel.plot(band.at, drawn(band.middle), DASHES[place], drawstyle="steps-post", label=name)
            panel.fill_between(band.at, drawn(band.low), drawn(band.high), step="post", color=line.get_color(), alpha=0.2, linewidth=0)
            lines.append(line)
            names.append(name)
        what = "best f(x) so far" if best else "f(x)"
        panel.set(xlabel=UNITS.get(axis, axis.replace("_", " ")), ylabel=f"{what} - the best seen" if scale == "gap" else what)
        if scale != "linear":
            panel.set_yscale("log", nonpositive="mask")
        _named(figure, panel, lines, names, ax is None, beside=True)
    return figure


def plot_profiles(of: Mapping[float, Mapping[str, Profile]], ax: Axes | None, kind: str, unit: str, style: str) -> Figure:
    """A panel for each tolerance, a step function for each solver; errors as for ``Comparison.plot_profile``."""
    require_axes(ax)
    if ax is not None and len(of) != 1:
        raise SettingError("ax=...: one tolerance for one panel; leave ax out for several.")
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    with house_style(require_style(style)):
        figure, axes = panels(len(of), 4.4, 3.4, style) if ax is None else (cast("Figure", ax.figure), [ax])
        for panel, (tolerance, profiles) in zip(axes, of.items()):
            ends = [float(profile.at[-1]) for profile in profiles.values() if len(profile.at)]
            begins = [float(profile.at[0]) for profile in profiles.values() if len(profile.at)]
            last, lines = 1.05 * max(ends, default=1.0), []
            first = min(begins, default=1.0)
            for place, (name, profile) in enumerate(profiles.items()):
                at, share = np.r_[first, profile.at, last], np.r_[0.0, profile.share, profile.share[-1] if len(profile.share) else 0.0]
                lines += panel.plot(at, share, DASHES[place], drawstyle="steps-post", label=name)
            panel.set(xlabel=unit if kind == "data" else "factor of the quickest", ylabel="share solved", ylim=(-0.02, 1.02), xscale="log")
            if last < 100 * first:  # where powers of ten would be one label, or none
                panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
                panel.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            panel.xaxis.set_minor_formatter(NullFormatter())
            panel.set_title(f"to {tolerance:g} of the way")
            if panel is axes[-1]:
                _named(figure, panel, lines, list(profiles), ax is None, beside=len(of) == 1)
    return figure


def _named(figure: Figure, panel: Axes, lines: list[Any], names: list[str], ours: bool, beside: bool) -> None:
    """Names beside the curves of a single panel, below several, and within a panel of somebody else's figure."""
    if ours and beside and len(lines) > 1:
        name_curves([panel], [lines], names)
    elif ours and len(lines) > 1:
        figure.legend(lines, names, loc="outside lower center", ncols=min(len(names), 4))
    elif lines:
        panel.legend()

"""What a convergence figure is drawn against, and how its values are scaled."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hierfl.errors import SettingError
from hierfl.near_names import near_names
from hierfl.result import Result

if TYPE_CHECKING:
    from matplotlib.axes import Axes

AXES = {
    "rounds": "round",
    "communication": "scalars sent, down and up",
    "seconds": "seconds",
    "lower solves": "lower solves",
}
SCALES = ("linear", "log", "gap")
_PER_ROUND = {"communication": "scalars", "seconds": "seconds", "lower solves": "lower_solves"}


@dataclass(frozen=True)
class ConvergenceAxes:
    """The choice of an ``axis`` and a ``scale``.

    Parameters
    ----------
    axis
        ``"rounds"``, ``"communication"`` (scalars sent up to a round), ``"seconds"`` (that rounds took up to it, compilation left out) or
        ``"lower solves"`` (one y at one point each, as the run counted them).
    scale
        ``"linear"``, ``"log"``, or ``"gap"``: the distance of objectives to ``problem.reference()``, on a logarithmic axis.

    Raises
    ------
    SettingError
        Naming what there is instead.
    """

    axis: str = "rounds"
    scale: str = "linear"

    def __post_init__(self) -> None:
        for name, value, known in (("axis", self.axis, tuple(AXES)), ("scale", self.scale, SCALES)):
            if value not in known:
                raise SettingError(f"{name}={value!r}: {near_names(value, known)}")

    def at(self, results: Sequence[Result], rounds: Any) -> np.ndarray:
        """Where rounds (0 is the start) are on the axis: the mean over some runs."""
        rounds = np.asarray(rounds, int)
        if self.axis == "rounds":
            return rounds
        name = _PER_ROUND[self.axis]
        for result in results:
            if name not in result.history:
                raise SettingError(f"axis={self.axis!r}: {self._why_missing(name, result)}")
        spent = [np.concatenate([[0.0], np.cumsum(result.history[name])])[rounds] for result in results]
        return np.asarray(np.mean(spent, axis=0))

    def _why_missing(self, name: str, result: Result) -> str:
        instead = "Write axis='rounds', 'communication' or 'seconds'."
        if name != "lower_solves":
            return f"this run was saved before its history had {name!r}."
        if result.y is None:
            return f"the problem has no lower level to solve. {instead}"
        solver = result.settings.get("solver_given", "this run")
        return f"{solver} counted none: it moves y along with x, or was saved before solves were counted. {instead}"

    def least(self, results: Sequence[Result]) -> float | None:
        """The value of the reference, of a gap; None for other scales.

        Raises
        ------
        SettingError
            If there is no reference: x is too large, or a result was loaded without its problem.
        """
        return results[0].require_problem("scale='gap'").reference().value if self.scale == "gap" else None

    def scaled(self, values: Any, least: float | None) -> np.ndarray:
        """Values of the objective as they are drawn; gaps that are 0, or below, are left out."""
        values = np.asarray(values, float)
        if least is None:
            return values
        gap = np.abs(values - least)
        return np.where(gap > 0, gap, np.nan)

    def finish(self, panel: Axes, name: str, *, objective: bool) -> None:
        """Label a panel and scale its axes."""
        gap = objective and self.scale == "gap"
        panel.set(xlabel=AXES[self.axis], ylabel="distance to reference()" if gap else name)
        if gap or self.scale == "log":
            panel.set_yscale("log", nonpositive="mask")

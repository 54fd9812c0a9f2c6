"""One run of a study: f by what it had taken, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.inspect.implicit.points import Points
from hierfl.jaxtools.precision import double_precision
from hierfl.result import Result
from hierfl.run_settings import COLUMNS

AXES = {**COLUMNS, "rounds": "rounds", "seconds": "seconds"}  # a unit, and its column
KEPT = 120  # points of a curve


@dataclass(frozen=True)
class Curve:
    """f along the run of a seed, and how it ended.

    ``counts`` ``{column: (points,)}`` are what had been taken by each point, never less than before; ``value`` (points,) is f there, as declared, the lower
    level solved exactly, at the projection on X, NaN where it has no value or the answer violates an upper constraint, and where nothing is known
    yet; ``final`` is f at what the run gives as its answer, NaN where it has none.
    """

    seed: int
    status: str
    counts: dict[str, Float[np.ndarray, " points"]]
    value: Float[np.ndarray, " points"]
    final: float

    @classmethod
    @double_precision
    def of_run(cls, compiled: CompiledProblem, result: Result, whole: bool) -> Curve:
        """Of a run that counts its rounds; ``whole`` keeps what seconds they took."""
        took = result.settings.get("auto", {}).get("took", {})
        done = int(result.settings["rounds_done"])
        path = result.trajectory
        rounds, xs = np.asarray(path.get("round", np.zeros(0)), int), np.asarray(path.get("x", np.zeros((0, compiled.upper.size))), float)
        some = rounds <= done
        rounds, xs = rounds[some], xs[some]
        if not len(rounds) or rounds[-1] != done:
            rounds, xs = np.append(rounds, done), np.concatenate([xs, compiled.upper.flatten(result.iterate, "x")[None]])
        if len(rounds) > KEPT:  # as many early as late on a logarithmic axis, and evenly
            places = np.concatenate([np.linspace(0, len(rounds) - 1, KEPT // 2), np.geomspace(1, len(rounds) - 1, KEPT // 2)])
            chosen = np.unique(np.r_[0, places.round().astype(int), len(rounds) - 1])
            rounds, xs = rounds[chosen], xs[chosen]
        points = Points(compiled)
        inside = points.projected(xs)
        sampled = points.values(inside)
        violated = points.violated(inside, sampled).any(axis=1)
        names = [name for name in COLUMNS.values() if name in result.history or not done]  # nothing was taken where no round was made
        counts = {name: took.get(name, 0) + np.concatenate([[0.0], np.cumsum(result.history.get(name, np.zeros(done)))])[rounds] for name in names}
        counts["rounds"] = rounds.astype(float)
        if whole:
            counts["seconds"] = np.concatenate([[0.0], np.cumsum(result.history.get("seconds", np.zeros(done)))])[rounds]
        final = float(result.value) if result.violation.feasible else float("nan")
        return cls(result.settings["seed"], result.status, counts, np.where(violated, np.nan, sampled.value), final)

    def to_json(self) -> dict[str, Any]:
        """Plain numbers, from which :meth:`of_json` makes the very same again."""
        return {
            "seed": self.seed,
            "status": self.status,
            "counts": {name: values.tolist() for name, values in self.counts.items()},
            "value": self.value.tolist(),
            "final": self.final,
        }

    @classmethod
    def of_json(cls, told: dict[str, Any]) -> Curve:
        counts = {name: np.array(values, float) for name, values in told["counts"].items()}
        return cls(told["seed"], told["status"], counts, np.array(told["value"], float), float(told["final"]))

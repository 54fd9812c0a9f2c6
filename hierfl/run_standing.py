"""Where a run stands when it ends, read off its own history: "completed" says only that its rounds were made."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

LAST = 4  # a quarter of the rounds is looked at
FEWEST = 8  # rounds in it
SURE = 3.0  # standard errors
WORTH = 1e-2  # of the objective's fall so far, from which more of it is to be had
FAR = 1e3  # times as far as it began, from which x runs away

STUCK = "no descent found"  # a method's last word
WHY_STUCK = (
    "not at rest: its model promises more than f gives, as where f jumps; restarts= begins at other points of X, and a slice through the "
    "result shows f here"
)


def still_improving(objective: np.ndarray, sense: str) -> float | None:
    """How much better the objective's estimates became over the last quarter of the rounds, by a line through them.

    None where nothing can be told from noise, where it is less than a hundredth of all that was gained, or of few rounds.
    """
    count = len(objective) // LAST
    values = np.asarray(objective[len(objective) - count :], float)
    if count < FEWEST or not np.isfinite(objective).all():
        return None
    t = np.arange(count) - 0.5 * (count - 1)
    slope = float(t @ values / (t @ t))
    left = values - values.mean() - slope * t
    alike = float(np.clip(left[1:] @ left[:-1] / max(left @ left, 1e-300), 0.0, 0.99))  # neighbours, in a slow run
    error = float(np.sqrt(left @ left / (count - 2) / (t @ t) * (1 + alike) / (1 - alike)))
    gained = (slope if sense == "maximize" else -slope) * count
    whole = abs(float(values.mean()) - float(np.mean(objective[: max(1, count // LAST)])))
    rounding = 1e-9 * (1.0 + float(np.abs(values).max()))
    return gained if gained > max(SURE * error * count, WORTH * whole, rounding) else None


def runs_away(trajectory: Mapping[str, np.ndarray]) -> float | None:
    """|x| at the end, where it is a thousand times what it was and still grows; None elsewhere."""
    points = np.asarray(trajectory.get("x", np.zeros((0, 0))), float)
    if len(points) < 3:
        return None
    sizes = np.linalg.norm(points, axis=1)
    steps = np.diff(sizes)
    grows = steps[-1] > 0 and steps[-1] >= 0.5 * float(np.mean(steps[len(steps) // 2 :]))
    return float(sizes[-1]) if grows and sizes[-1] > FAR * (1.0 + sizes[0]) else None


def running_away(trajectory: Mapping[str, np.ndarray]) -> str:
    """Say that x runs away, if it does."""
    away = runs_away(trajectory)
    if away is None:
        return ""
    return (
        f"x runs away: |x| = {away:.3g} and growing, so that f may be unbounded along it, or least far from the start"
    )


def standing(history: Mapping[str, np.ndarray], trajectory: Mapping[str, np.ndarray], sense: str) -> str:
    """What is left to say of a run that has ended; empty where its history shows nothing."""
    away, gained = running_away(trajectory), still_improving(np.asarray(history.get("objective", ())), sense)
    said = [away] if away else []
    if gained is not None:
        said.append(
            f"not at rest: its objective still improved by {gained:.2g} over the last quarter of the rounds; give more rounds, or "
            f"larger steps"
        )
    return "; ".join(said)

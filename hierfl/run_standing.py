"""Where a run stands when it ends: a verdict, and how far f(x) and x are from an optimum, as far as that is proved or seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from hierfl.language.printing.card import size_text

LAST = 4  # a quarter of the rounds is looked at
FEWEST = 8  # rounds in it
SURE = 3.0  # standard errors
WORTH = 1e-2  # of the objective's fall so far, from which more of it is to be had
FAR = 1e3  # times as far as it began, from which x runs away
MOVES, AS_EVER = 1e-3, 0.5  # of 1 + |entry| in the latest rounds, and of its pace in those before, from which an entry grows without end
NEAR = 1e-5  # of 1 + |x|: how far from an optimum x is at rest
FLAT = 1e-8  # of |f| and its fall: how far from the optimum f is at rest

COMPLETED = "completed"  # what ended a run whose rounds were made
AT_REST, DESCENDING, STALLED, RUNS_AWAY = "at rest", "still descending", "stalled", "runs away"
OUT_OF_ROUNDS = "out of rounds"
INFEASIBLE = "infeasible"
STUCK = "no descent found"  # a method's last word
EDGE = "at the edge of where f has values"
WHY_EDGE = "not known to be at rest: beyond, Y(x) is empty or f is not defined, and steps cannot follow such an edge; constraints on x that say where it is are followed"
WHY_STUCK = (
    "not at rest: its model promises more than f gives, as where f jumps; restarts= begins at other points of X, and a slice through the "
    "result shows f here"
)
OWN_WORD = "by its own model of f no more is to be gained"
LIKELIHOOD = "separation or no events, where f is a likelihood"
LEAST_FAR = f"least far from the start, or nowhere ({LIKELIHOOD})"
UNKNOWN = float("nan")


@dataclass(frozen=True, repr=False)
class Rest:
    """Where a run stands, and how far from rest. Bounds are proved, everything else is an estimate; infinite, or NaN: not known.

    Attributes
    ----------
    verdict
        ``"at rest"``: x is within 1e-5 (1 + |x|) of an optimum, or f(x) within 1e-8 of |f(x)| and its fall since the start, by the
        strongest evidence there is, which ``words`` names: a proof, a model, or the method's own word. ``"still descending"``: not at
        rest, or not known to be, and the objective still improves. ``"stalled"``: not at rest, and it no longer does. ``"runs away"``:
        x grows without end, also where f has come to rest, as where its infimum is attained nowhere. ``"out of rounds"``: none of these shows.
    value_bound, distance_bound
        |f(x) - f*| and |x - x*| at most, proved but for what rounding leaves of slopes.
    modulus
        A proved modulus of strong convexity of f; 0 where there is none.
    why_bound
        What proves the bounds: strong convexity, f alone by convexity on a bounded X, or the multipliers of a convex program.
    value_estimate, distance_estimate
        The same by Newton's model of f at x on X, confirmed by values of f.
    slope
        The length of f's gradient at x, without its part normal to X.
    gain
        How much better f was found at points of X nearby.
    drift, error
        How much better f became over the last half of the rounds, by its values at the iterates where these were asked for, else its
        estimates over the last quarter; and the standard error of that.
    words
        All of this in a sentence.
    jump
        Where f jumps next to x, to what is worse: its value may be a limit that no x attains. Empty where no jump was seen.
    """

    verdict: str
    value_bound: float = float("inf")
    distance_bound: float = float("inf")
    modulus: float = 0.0
    why_bound: str = ""
    value_estimate: float = UNKNOWN
    distance_estimate: float = UNKNOWN
    slope: float = UNKNOWN
    gain: float = UNKNOWN
    drift: float = UNKNOWN
    error: float = UNKNOWN
    words: str = ""
    jump: str = ""

    def __str__(self) -> str:
        return f"{self.verdict}: {self.words}"

    __repr__ = __str__


def standing(ended: str, rest: Rest | None, folder: str | None) -> str:
    """What is known of where a run stands beside its status, in a sentence; ``folder`` has its checkpoint."""
    if folder is not None and ended in ("interrupted", "time limit reached"):
        return f"kept in {folder}: the same solve with resume=True goes on"
    jump = rest.jump if rest is not None else ""
    if ended == STUCK:
        return f"not at rest: {jump}" if jump else WHY_STUCK
    if ended == EDGE:
        return WHY_EDGE
    if rest is None:
        return ""
    said = rest.words if ended in (COMPLETED, AT_REST) else str(rest)
    return f"{said}; but {jump}" if jump else said


def not_feasible(violations: Any, settings: Mapping[str, Any]) -> str:
    """What an x violates of the conditions on its answers, and what that means."""
    violated, rho, smoothing = "; ".join(map(str, violations.violated)), settings.get("penalty"), settings.get("smoothing")
    if rho is None:
        return f"{violated}: of several lower solutions another one satisfies the constraints; selection='optimistic' means the best"
    if settings.get("penalty_gave_up"):
        return (
            f"{violated}: as far as was found the problem is infeasible, since neither penalties up to "
            f"{rho:.3g} nor minimising what is violated came to an x whose answers satisfy the "
            f"constraints. Other starts may: x0=..., restarts=..."
        )
    if smoothing is not None:
        return (
            f"{violated}: x is as near to what is feasible as smoothing={smoothing:g} and the steps make it, with penalty {rho:.3g}. Smaller "
            f"ones, more rounds, or a constraint tightened by that much come nearer"
        )
    return f"{violated}, with penalty {rho:.3g}: more rounds, a larger penalty=..., or none, which raises it, come nearer"


def why_no_value(settings: Mapping[str, Any]) -> str:
    """Why a run that did not diverge has no value, by its settings."""
    if missing := settings.get("missing"):
        return f"nobody was there who could be asked for f: missing are {', '.join(missing)}"
    if "privacy" in settings:
        return "clients tell nothing of their objectives, as noise= asks"
    return "nobody was asked for f at x"


class Drift(NamedTuple):
    """How much better values became, by a line through them, its standard error, and what is nothing beside them."""

    gained: float
    error: float
    nothing: float

    @classmethod
    def of(cls, objective: np.ndarray, sense: str) -> Drift | None:
        """Of the last quarter of a run's estimates, where a hundredth of all that was gained is nothing; None of few rounds, and without numbers."""
        count = len(objective) // LAST
        if count < FEWEST or not np.isfinite(objective).all():
            return None
        values = np.asarray(objective[len(objective) - count :], float)
        whole = abs(float(values.mean()) - float(np.mean(objective[: max(1, count // LAST)])))
        return cls.through(values, sense, WORTH * whole)

    @classmethod
    def through(cls, values: np.ndarray, sense: str, nothing: float = 0.0) -> Drift:
        """Of at least three values, evenly apart."""
        count = len(values)
        t = np.arange(count) - 0.5 * (count - 1)
        slope = float(t @ values / (t @ t))
        left = values - values.mean() - slope * t
        alike = float(np.clip(left[1:] @ left[:-1] / max(left @ left, 1e-300), 0.0, 0.99))  # neighbours, in a slow run
        error = float(np.sqrt(left @ left / (count - 2) / (t @ t) * (1 + alike) / (1 - alike)))
        rounding = 1e-9 * (1.0 + float(np.abs(values).max()))
        return cls((slope if sense == "maximize" else -slope) * count, error * count, max(nothing, rounding))

    @property
    def improves(self) -> bool:
        """Whether that is more than noise, and more than nothing."""
        return self.gained > max(SURE * self.error, self.nothing)


def still_improving(objective: np.ndarray, sense: str) -> float | None:
    """How much better the objective's estimates became over the last quarter of the rounds, by a line through them.

    None where nothing can be told from noise, where it is less than a hundredth of all that was gained, or of few rounds.
    """
    drift = Drift.of(objective, sense)
    return None if drift is None or not drift.improves else drift.gained


Inside = Callable[[np.ndarray], np.ndarray]  # the nearest point of X


def _goes_on(points: np.ndarray, inside: Inside) -> np.ndarray:
    """Which entries may move on within X as they did last."""
    last = points[-1] - points[-2]
    return np.asarray((inside(points[-1] + last) - points[-1]) * np.sign(last) >= AS_EVER * np.abs(last))


def runs_away(trajectory: Mapping[str, np.ndarray], inside: Inside) -> float | None:
    """|x| at the end, where it is a thousand times what it was and still grows; None elsewhere."""
    points = np.asarray(trajectory.get("x", np.zeros((0, 0))), float)
    if len(points) < 3:
        return None
    sizes = np.linalg.norm(points, axis=1)
    steps = np.diff(sizes)
    grows = steps[-1] > 0 and steps[-1] >= 0.5 * float(np.mean(steps[len(steps) // 2 :]))
    if not (grows and sizes[-1] > FAR * (1.0 + sizes[0])):
        return None
    return float(sizes[-1]) if _goes_on(points, inside)[np.argmax(np.abs(points[-1] - points[-2]))] else None


def running_away(trajectory: Mapping[str, np.ndarray], inside: Inside) -> str:
    """Say that x runs away, if it does."""
    away = runs_away(trajectory, inside)
    unbounded = f"and growing, so that f may be unbounded along it, or {LEAST_FAR}"
    return "" if away is None else f"|x| = {away:.3g} {unbounded}"


def growing(trajectory: Mapping[str, np.ndarray], names: Sequence[str], inside: Inside) -> str:
    """Name entries of x that grow as they did before where f has come to rest, if any: the infimum is attained nowhere along them, or f is flat."""
    points, rounds = np.asarray(trajectory.get("x", ()), float), np.asarray(trajectory.get("round", ()), float)
    if len(points) < 4:
        return ""
    moves, made = np.diff(points[-3:], axis=0), np.diff(rounds[-3:])
    before, pace = moves / made[:, None]
    outwards = pace * np.sign(points[-1])
    found = (outwards * made[-1] > MOVES * (1.0 + np.abs(points[-1]))) & (outwards >= AS_EVER * np.abs(before))
    if not found.any() or not (found := found & _goes_on(points, inside)).any():
        return ""
    which = ", ".join(np.array(names)[found][:8])
    return (
        f"f is at rest, but {which} still grow{'s' if found.sum() == 1 else ''}, by {np.max(outwards[found]):.2g} in the last round: f is least nowhere along "
        f"{'it' if found.sum() == 1 else 'them'} ({LIKELIHOOD}), or flat"
    )


def flat_far_away(trajectory: Mapping[str, np.ndarray], estimate: float) -> str:
    """Say that f no longer falls although x is far from where it began and, by Newton's model, from an optimum: it is least nowhere, below rounding."""
    points = np.asarray(trajectory.get("x", ()), float)
    if len(points) < 3 or not estimate > 10 * NEAR * (1.0 + (size := float(np.linalg.norm(points[-1])))):
        return ""
    return f"|x| = {size:.3g}, and f is flat there to rounding: it may be {LEAST_FAR}" if size > FAR * (1.0 + np.linalg.norm(points[0])) else ""


def words_of(rest: Rest, rounds: int, why_unknown: str, by_itself: bool, away: str) -> str:
    """A verdict's evidence in a sentence; ``by_itself``: the method ended by its own word, ``away`` says that x runs away."""
    far = how_far(rest)
    if rest.verdict == RUNS_AWAY:
        return away
    if rest.verdict == AT_REST:
        proves_less = by_itself and rest.distance_bound > NEAR and not np.isfinite(rest.distance_estimate)
        if far:
            return f"{OWN_WORD}; what is proved is less: {far}" if proves_less else far
        level = f"f has slope {size_text(rest.slope)} at x, and is nowhere better along it (no proof of an optimum by itself)"
        return f"{OWN_WORD} (no proof by itself)" if by_itself else level
    unknown = f"how far f(x) is from an optimum is not known{why_unknown and f': {why_unknown}'}"
    if rest.verdict == DESCENDING:
        improved = rest.drift > SURE * rest.error
        still = f"f improved by {rest.drift:.2g} over the last rounds" if improved else "its model promises more"
        return f"{still}; give more rounds{' or larger steps' if improved else ''}; {far or unknown}"
    enough = "beyond noise" if not rest.drift > SURE * rest.error else "enough to count"
    moved = f"f did not improve {enough} over the last rounds ({rest.drift:+.1g}, give or take {rest.error:.1g}); "
    if rest.verdict == STALLED:
        return f"{moved}{far}; smaller steps, larger batches or fewer local steps come nearer"
    return f"{moved if rounds and np.isfinite(rest.drift) else ''}{far or unknown}"


def how_far(rest: Rest) -> str:
    """How far f(x) and x are from an optimum; empty where nothing is known."""
    said = []
    if np.isfinite(rest.value_bound):
        near = f"x is at most {_up(rest.distance_bound)} from the optimum, f(x) " if np.isfinite(rest.distance_bound) else "f(x) is at most "
        of = "" if np.isfinite(rest.distance_bound) else " from the optimum"
        said.append(f"{near}{_up(rest.value_bound)}{of} (proved to rounding, {rest.why_bound})")
    if np.isfinite(rest.distance_estimate):
        x, away = "x" if not said else "it", size_text(rest.distance_estimate)
        about = "" if away.startswith("below") else "about "
        said.append(f"by Newton's model {x} is {about}{away} from an optimum, f(x) {size_text(rest.value_estimate)} (no proof)")
    elif rest.gain > 0 and not said:
        said.append(f"f is better by {rest.gain:.1e} at a point of X nearby")
    return "; ".join(said)


def _up(bound: float) -> str:
    """A bound in two digits, rounded up."""
    text = f"{bound:.2g}"
    return text if float(text) >= bound else f"{bound * 1.05:.2g}"

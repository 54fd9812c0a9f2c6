"""Where a run ended, for its result to print: how steep f^eta is there, f beside its reference, and how far from rest it is.

That is told by f's gradient, curvature and values at and near its x, where they cost next to nothing. Where f is strongly convex on X with a
modulus mu that the declaration and the data prove, and g is its gradient at y, a projection
y = P(x - s grad f(x)) on X, the vector r = (x - y) / s + g - grad f(x) has |y - x*| <= |r| / mu and f(y) - f* <= |r|^2 / (2 mu);
s = 0 where X is the whole space. Where f is convex and the declaration bounds X, f(x) - f* is at most the greatest fall of f's
linear model on these bounds (Frank and Wolfe). Where f and X are one convex program, its multipliers bound f (``hierfl.descent.convex_best``). All else are estimates: the minimiser on X of Newton's model at x, which counts where
values of f confirm it, and values of f along the projected gradient.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from time import perf_counter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from hierfl import run_standing as standing
from hierfl.analysis.convexity import convex_where_known
from hierfl.compiler.compiled_problem import CompiledProblem, penalised_problem
from hierfl.compiler.data.tables import Data
from hierfl.compiler.implicit_differentiation import evaluated_with_gradient
from hierfl.compiler.programs.cones import NoStandardFormError
from hierfl.compiler.starting_points import box_around, on_upper_set
from hierfl.descent.convex_best import convex_optimum
from hierfl.descent.decision_rows import DecisionRows
from hierfl.descent.implicit_oracle import FAILURES
from hierfl.errors import ForkedProcessError, HierflError, IncompatibleSolverError, RestWarning, warn
from hierfl.inspect.assumptions.examination import Holders, known_of_all
from hierfl.inspect.assumptions.lower_curvature import Curvature
from hierfl.inspect.implicit.beside import jump_beside
from hierfl.inspect.implicit.reference import PROVED, known_reference
from hierfl.inspect.implicit.smoothing import gradient_norm, opposite_ways
from hierfl.jaxtools.cheap_jit import quick_jit
from hierfl.jaxtools.interruption import INTERRUPTED, PATIENCE, TIME_IS_UP, CutShort, heeded
from hierfl.jaxtools.precision import double_precision
from hierfl.language.function import asserted_convex, uses_black_box
from hierfl.result import Result

EQUAL = 1e-9  # relative: what f(x) and the reference may differ by to be called one
PAIRS = 32  # of values; one pair where x is a number, since it says all
SHARE = 0.1  # of a second for the lower level, at most
SCALARS = 5_000  # of answers and data at one point, at most


def where_it_ended(compiled: CompiledProblem, result: Result) -> list[str]:
    """What is known of a result's x beside its run's own records, in lines: the slope of (f o P_X)^eta, of a run that descends on it; and how
    far f(x) is from the reference, where that was asked for before.
    """
    eta, settings, lines = result.settings.get("smoothing"), result.settings, []
    if result.status != "diverged" and isinstance(eta, float) and settings["queries"] == "projected":
        with suppress(ForkedProcessError):  # in which nothing can be computed
            slope = slope_where_cheap(compiled, compiled.upper.flatten(result.x, "x"), eta, settings["seed"])
            if slope is not None:
                norm, low, high, pairs = slope
                seen = f"from {pairs} pairs of points" if pairs > 1 else "to rounding"
                lines.append(f"slope of f^eta at x {norm:.2g}, 95% interval [{low:.2g}, {high:.2g}] {seen}, eta = {eta:g}")
    if (known := known_reference(compiled)) is not None:
        gap = compiled.sign * (result.value - known.value)
        same = abs(gap) <= max(EQUAL * abs(known.value), result._rounding)
        lines.append(f"f(x) is {'that of' if same else f'{abs(gap):.2g} ' + ('worse' if gap > 0 else 'better') + ' than'} reference()")
    return lines


@double_precision
def slope_where_cheap(compiled: CompiledProblem, x: np.ndarray, eta: float, seed: int) -> tuple[float, float, float, int] | None:
    """||grad (f o P_X)^eta(x)|| for x (n,), the ends of its 95% interval and the pairs of points around x whose exact values tell it.

    The interval knows nothing of pieces of f that no pair met and that are steeper than all that were. None for large data and for
    lower levels that take iterations, which would be noticed, and where f has no value at one of the points. ``problem.implicit.stationarity`` answers at any cost, and more exactly.
    """
    count = PAIRS if x.size > 1 else 1
    if not _is_cheap(compiled, 2 * count):
        return None
    ways = opposite_ways(np.random.default_rng(seed), count, x.size)
    at = on_upper_set(compiled, x + eta * np.concatenate([ways, -ways]))
    try:
        values = np.array([float(evaluation.value) for evaluation in compiled.exact.at_each(at)])
    except FAILURES:
        return None
    return *gradient_norm(compiled, eta, ways, at, values), count


def _is_cheap(compiled: CompiledProblem, points: int) -> bool:
    """Whether f has values here, and at so many points takes next to no time, by its size, which does not change from run to run."""
    if compiled.elsewhere:
        return False
    method, answers = compiled.exact.method, compiled.owners
    rows = sum(int(np.sum(table.counts)) for table in compiled.static_data.clients.tables)
    if rows + answers * compiled.lower.size > SCALARS:
        return False
    return method is None or (not method.iterative and points * answers <= SHARE * method.solutions_in_a_second)


NO_ANSWER: tuple[type[HierflError], ...] = (*FAILURES, IncompatibleSolverError)
MOST_CLIENTS, MOST_VARIABLES, MOST_DATA = 256, 300, 50_000_000  # for what is computed at x; data in scalars
MOST_WORK = 200_000_000  # variables times scalars of data, for a Hessian
SHARES = (1.0, 0.5, 0.1, 0.01)  # of the model's step, at which f is asked
LENGTHS = (1e-6, 1e-4, 1e-2, 1.0)  # of steps along the projected gradient, in 1 + |x|
CONFIRMED = 0.25  # of the model's fall, that f has to fall for the model to be believed
TREND, TREND_DATA = 16, 1_000_000  # iterates at which f is asked again, and the most scalars of data for that
ROUNDING = 1e-12  # relative, of f
HURRIED, LONGEST = 0.5, 60.0  # seconds that looking may take: after a run that was to end, and after others
LITTLE_WORK = 1e6  # the same, for a convex program of f that no run has solved
APART, SMOOTH, FEW = (1e-4, 1e-5), 0.05, 20  # of differences of gradients of f(x, y(x)), in 1 + |x|; how well both tell one curvature; the most variables for these
LEAST = 1e-10  # of the model's curvatures, relative to its largest


class Nearby(NamedTuple):
    """f at and near x, oriented for minimisation; ``why_not`` says why nothing was looked at."""

    value_bound: float = float("inf")
    distance_bound: float = float("inf")
    modulus: float = 0.0
    why_bound: str = ""
    value_estimate: float = standing.UNKNOWN
    distance_estimate: float = standing.UNKNOWN
    slope: float = standing.UNKNOWN
    gain: float = standing.UNKNOWN
    why_not: str = ""


@double_precision
def rest_of(compiled: CompiledProblem, result: Result) -> standing.Rest:
    """Where a run stands that did not diverge, by its history and by what f is at and near x; by the bound where it has one."""
    if "bound" in result.history:
        return _by_bound(result, float(result.history["bound"][-1]))
    if compiled.coupled.conditions and "penalty" in result.settings:
        compiled, result = _penalised(compiled, result)
    x, value = compiled.upper.flatten(result.x, "x"), compiled.sign * result.value
    objective = np.asarray(result.history.get("objective", ()), float)
    near, asked, jump = _in_time(compiled, result, x, value)
    short = standing.NEAR * (1.0 + float(np.linalg.norm(x)))
    is_close = near.distance_bound < np.inf or near.distance_estimate <= short

    def inside(point: np.ndarray) -> np.ndarray:
        return np.asarray(next(iter(on_upper_set(compiled, point[None]))))

    away = "" if is_close else standing.running_away(result.trajectory, inside)
    drift = asked or standing.Drift.of(objective, result.settings.get("sense", "minimize"))
    first = objective[0] if objective.size and np.isfinite(objective[0]) else result.value
    small = standing.FLAT * (abs(value) + abs(float(first) - result.value))
    verdict = standing.RUNS_AWAY if away else _verdict(result, near, short, small, drift)
    own_word = result.ended == standing.AT_REST and not _proved(near, short, small)
    if verdict == standing.AT_REST and not near.distance_bound < np.inf and (
        away := standing.growing(result.trajectory, compiled.upper.entries, inside) or standing.flat_far_away(result.trajectory, near.distance_estimate)
    ):
        verdict, near = standing.RUNS_AWAY, near._replace(distance_estimate=standing.UNKNOWN)
    gained, error = (standing.UNKNOWN, standing.UNKNOWN) if drift is None else drift[:2]
    rest = standing.Rest(verdict, *near[:-1], gained, error, jump=jump)
    still = near.slope == 0.0 and objective.size > 1 and not np.ptp(objective) and not near.value_bound < np.inf
    if verdict == standing.AT_REST and still and all(found is not None and found[0] == value for found in _around(compiled, x)):
        return replace(rest, words="f was the same at every point that was asked, and its slope 0: it is flat here, or x does not matter to it")
    return replace(rest, words=standing.words_of(rest, objective.size, near.why_not, own_word, away))


def _by_bound(result: Result, bound: float) -> standing.Rest:
    """Where a run stands that told a bound of f on X."""
    short = abs(result.value - bound)
    if not np.isfinite(short):
        return standing.Rest(standing.OUT_OF_ROUNDS, words="no bound of f was found")
    where = f"at most {short:.1e} from the optimum" if short else "the optimum"
    words = f"f(x) is {where} (by its bound; reference(certificate='global') says how that is known)"
    return standing.Rest(standing.AT_REST if result.ended == PROVED else standing.OUT_OF_ROUNDS, value_bound=short, words=words)


def _penalised(compiled: CompiledProblem, result: Result) -> tuple[CompiledProblem, Result]:
    """What a run with conditions on the answers descended on, and its result by that."""
    goal = penalised_problem(compiled, result.settings["penalty"])
    if not np.isfinite(result.value) or goal.elsewhere:
        return goal, result
    value = float(goal.exact.at(compiled.upper.flatten(result.x, "x")).value)
    return goal, replace(result, value=goal.sign * value)


def warn_of_zeroth_order(solver: Any, why: str, rest: standing.Rest | None) -> None:
    """Say of a run by values of f alone that nobody asked for it by name, and why it was made."""
    if rest is not None and hasattr(solver, "smoothing"):
        known = "" if rest.verdict == standing.AT_REST else "; it is not known to be at rest"
        took = f"solve() took {type(solver).__name__}, which asks for values of f alone (zeroth order), as {why}{known}"
        advice = "Name a solver with gradients where f has them: ImplicitGradient, or FedAvg without a lower level."
        warn(RestWarning(f"{took}. {rest}. {advice}"))


def _proved(near: Nearby, short: float, small: float) -> bool:
    return near.distance_bound <= short or near.value_bound <= small


def _verdict(result: Result, near: Nearby, short: float, small: float, drift: standing.Drift | None) -> str:
    """What the strongest evidence says: a bound, then Newton's model, then values, then the method's own word, then its history."""
    if _proved(near, short, small) or near.distance_estimate <= short or near.value_estimate <= small:
        return standing.AT_REST
    seen = near.gain > small or near.value_estimate > small
    if not seen and (result.ended == standing.AT_REST or near.slope * short <= standing.NEAR * small):
        return standing.AT_REST
    made = len(result.history.get("objective", ()))
    cut_short = made and result.ended == standing.COMPLETED and result.settings.get("ended_by_itself") is False
    if cut_short or (drift is not None and drift.improves):
        return standing.DESCENDING
    return standing.STALLED if seen and drift is not None else standing.OUT_OF_ROUNDS


def _trend(compiled: CompiledProblem, result: Result) -> standing.Drift | None:
    """How f itself moved over the last half of the rounds, at kept iterates; None where f is not asked for, or they are few."""
    if _scalars(compiled) > TREND_DATA:
        return None
    points = np.asarray(result.trajectory.get("x", ()), float)
    points = points[len(points) // 2 :]
    if len(points) < standing.FEWEST:
        return None
    chosen = points[np.linspace(0, len(points) - 1, min(len(points), TREND)).astype(int)]
    values = [found and found[0] for found in (_value_and_slope(compiled, x) for x in on_upper_set(compiled, chosen))]
    if any(value is None or not np.isfinite(value) for value in values):
        return None
    return standing.Drift.through(np.array(values, float), "minimize")


def _in_time(compiled: CompiledProblem, result: Result, x: np.ndarray, value: float) -> tuple[Nearby, standing.Drift | None, str]:
    """What f is at and near x, and how it moved, where that is found in time; a run that was to end has a result soon."""
    seconds = HURRIED if result.ended in (INTERRUPTED, TIME_IS_UP) else LONGEST
    try:
        with heeded(perf_counter() + seconds, PATIENCE, anew=True):
            against = _against(compiled, value)
            found = None if against else _value_and_slope(compiled, x)
            if found is None:
                return _by_program(compiled, x, value, Nearby(why_not=against or "f has no gradient at x")), None, ""
            near = _Look(compiled, x, value, found[1], result.ended == standing.AT_REST).nearby()
            return near, _trend(compiled, result), jump_beside(compiled, x, value)
    except CutShort:
        return Nearby(why_not="there was no time to look at f near x"), None, ""


def _by_program(compiled: CompiledProblem, x: np.ndarray, value: float, near: Nearby) -> Nearby:
    """With what the multipliers of one convex program prove, where f and X are one."""
    optimum = convex_optimum(compiled, LITTLE_WORK)
    if optimum is None:
        return near
    above, away = max(0.0, value - optimum.bound), optimum.away(x, near.modulus)
    if near.modulus:
        away = min(away, float(np.sqrt(2.0 * above / near.modulus)))
    if not (above < near.value_bound or away < near.distance_bound):
        return near
    above, away = min(above, near.value_bound), min(away, near.distance_bound)
    return near._replace(value_bound=above, distance_bound=away, why_bound="by the multipliers of one convex program")


def _value_and_slope(compiled: CompiledProblem, x: np.ndarray) -> tuple[float, np.ndarray] | None:
    """f, oriented for minimisation, and its gradient at a point of X; None where it has none."""
    try:
        evaluation, slope = evaluated_with_gradient(compiled, x)
    except NO_ANSWER:
        return None
    return (float(evaluation.value), slope) if np.isfinite(evaluation.value) and np.isfinite(slope).all() else None


def _around(compiled: CompiledProblem, x: np.ndarray) -> list[tuple[float, np.ndarray] | None]:
    """f and its gradients at some points of X on either side of x, None where it has none: what a slope of 0 does not tell."""
    way = np.cos(np.arange(1.0, x.size + 1.0) ** 2)
    lengths = (1.0 + np.linalg.norm(x)) / np.linalg.norm(way) * np.array([sign * length for length in LENGTHS[:-1] for sign in (1.0, -1.0)])
    return [_value_and_slope(compiled, point) for point in on_upper_set(compiled, x + lengths[:, None] * way)]


def _against(compiled: CompiledProblem, value: float) -> str:
    """What speaks against looking at f near x; empty where nothing does."""
    if compiled.elsewhere:
        return "the clients hold their data elsewhere"
    if not np.isfinite(value):
        return "f has no value at x"
    if uses_black_box(compiled.declaration.objective.terms) is not None:
        return "a BlackBox has no gradient"
    if compiled.lower.size and not _is_cheap(compiled, 2 * len(LENGTHS)):
        return "solutions of the lower level take time; problem.implicit.stationarity(x, eta) looks"
    if _scalars(compiled) > MOST_DATA:
        return f"the data have more than {MOST_DATA:,} scalars"
    return ""


def _scalars(compiled: CompiledProblem) -> int:
    """The scalars of data that a value of f reads."""
    data = compiled.static_data
    tables = [*data.clients.tables, *(() if data.server is None else data.server.tables)]
    return sum(int(np.prod(values.shape)) for table in tables for values in table.values.values())


class _Look:
    """One look at f, around a point x of X with its value and gradient; ``ended`` says that the method called it rest, by a model of its own."""

    def __init__(self, compiled: CompiledProblem, x: np.ndarray, value: float, slope: np.ndarray, ended: bool) -> None:
        self.compiled, self.x, self.value, self.slope, self.ended = compiled, x, value, slope, ended
        self.free = not compiled.upper_set.blocks and compiled.private_set is None
        self.steep = float(np.linalg.norm(slope))
        self.size = 1.0 + float(np.linalg.norm(x))

    def nearby(self) -> Nearby:
        if self.steep == 0.0:
            modulus = _modulus_of(self.compiled)
            if modulus is None:
                lowest = min((found[0] for found in _around(self.compiled, self.x) if found is not None), default=self.value)
                return Nearby(slope=0.0, gain=max(self._above(lowest), self._gain(self._downwards())))
            why = f"as f is {_strongly(modulus)} and its slope 0"
            return Nearby(slope=0.0, gain=0.0, value_bound=0.0, modulus=modulus, why_bound=why, distance_bound=0.0 if modulus else float("inf"))
        hessian = self._hessian()
        short = LENGTHS[0] * self.size / self.steep
        slope = self.steep if self.free else float(np.linalg.norm(self.x - self._projected(short))) / short
        near = self._bounded(Nearby(slope=slope), hessian, short)
        found = None if hessian is None else self._by_model(hessian, self.x, self.slope)
        if hessian is None or found is None:
            return near._replace(gain=self._gain([self._projected(length * self.size / self.steep) for length in LENGTHS]))
        step, fall = found
        gain = self._gain([*(self.x + share * step for share in SHARES), *self._downwards()])
        near = near._replace(gain=gain)
        tells = fall > ROUNDING * (1.0 + abs(self.value))
        if tells and (gain < CONFIRMED * fall or not self._is_its_end(hessian, self.x + step, CONFIRMED * fall)):
            return near
        return near._replace(value_estimate=max(fall, gain), distance_estimate=float(np.linalg.norm(step)))

    @cached_property
    def _curvatures(self) -> tuple[np.ndarray, np.ndarray] | None:
        """(eigenvalues, eigenvectors) of f's second derivative at x; None where it would cost much, or is 0."""
        compiled, n = self.compiled, self.x.size
        if n > MOST_VARIABLES or n * _scalars(compiled) > MOST_WORK:
            return None
        if compiled.lower.size:
            hessian = None if self.ended or n > FEW or not _is_cheap(compiled, 2 * len(APART) * n) else self._differences()
        else:
            program = compiled.programs.keep("hessian of f", lambda: quick_jit(_hessian_program(compiled)))
            hessian = np.asarray(program(self.x, compiled.data()))
        if hessian is None or not np.isfinite(hessian).all() or not hessian.any():
            return None
        values, vectors = np.linalg.eigh(0.5 * (hessian + hessian.T))
        return values, vectors

    def _differences(self) -> np.ndarray | None:
        """The second derivative by differences of gradients at points of X; None where there are none on one side, or two lengths tell two: a kink is near."""
        n = self.x.size
        ways = np.array([sign * length * self.size * np.eye(n) for length in APART for sign in (1.0, -1.0)]).reshape(-1, n)
        inside = np.abs(on_upper_set(self.compiled, self.x + ways) - (self.x + ways)).max(axis=1) <= ROUNDING * self.size
        if not inside.reshape(len(APART), 2, n).any(axis=1).all():
            return None
        found = [_value_and_slope(self.compiled, self.x + way) if is_inside else (self.value, self.slope) for way, is_inside in zip(ways, inside)]
        if any(each is None for each in found):
            return None
        slopes = np.array([each[1] for each in found if each is not None]).reshape(len(APART), 2, n, n)
        lengths = np.linalg.norm(np.where(inside[:, None], ways, 0.0), axis=1).reshape(len(APART), 2, n).sum(axis=1)
        far, near = (slopes[:, 0] - slopes[:, 1]) / lengths[:, :, None]
        return near if np.abs(far - near).max() <= SMOOTH * max(np.abs(far).max(), np.abs(near).max()) else None

    def _hessian(self) -> np.ndarray | None:
        """f's second derivative at x, its eigenvalues made positive; None where there is none."""
        if self._curvatures is None:
            return None
        values, vectors = self._curvatures
        return np.asarray((vectors * np.maximum(np.abs(values), LEAST * np.abs(values).max())) @ vectors.T)

    def _downwards(self) -> list[np.ndarray]:
        """Points of X on either side of x along which f is bent downwards most, if it is: a point without a slope may be no minimum."""
        if self._curvatures is None or self._curvatures[0][0] >= -LEAST * np.abs(self._curvatures[0]).max():
            return []
        way = self.size * self._curvatures[1][:, 0]
        points = self.x + np.array([sign * length for length in LENGTHS for sign in (1.0, -1.0)])[:, None] * way
        return list(on_upper_set(self.compiled, points))

    def _is_its_end(self, hessian: np.ndarray, end: np.ndarray, little: float) -> bool:
        """Whether f's own slope at the model's minimiser leaves little to gain: beyond a kink another piece may go on."""
        there = _value_and_slope(self.compiled, end)
        found = None if there is None else self._by_model(hessian, end, there[1])
        return found is not None and found[1] <= little

    def _by_model(self, hessian: np.ndarray, x: np.ndarray, slope: np.ndarray) -> tuple[np.ndarray, float] | None:
        """The step to the minimiser on X of Newton's model at x, and how far the model falls."""
        step = -np.linalg.solve(hessian, slope)
        if self.free:
            return step, -0.5 * float(slope @ step)
        try:
            rows = DecisionRows.of(self.compiled)
        except NoStandardFormError:
            return None
        length = max(float(np.linalg.norm(step)), ROUNDING * self.size)
        found = rows.lowest(hessian, x, slope[None], np.zeros(1), length, np.ones(step.size))
        return None if found is None else (found[0], -(found[1] + 0.5 * float(found[0] @ hessian @ found[0])))

    def _bounded(self, near: Nearby, hessian: np.ndarray | None, short: float) -> Nearby:
        """With what is proved: see the module."""
        modulus = _modulus_of(self.compiled)
        if modulus is not None:
            value, distance, why = self._by_slopes(modulus, hessian, short)
            near = near._replace(value_bound=value, distance_bound=distance, modulus=modulus, why_bound=why)
        return _by_program(self.compiled, self.x, self.value, near)

    def _by_slopes(self, modulus: float, hessian: np.ndarray | None, short: float) -> tuple[float, float, str]:
        """How far f and x are from an optimum by f's slope at x and next to it, and why."""
        why = f"as f is {_strongly(modulus)}"
        if modulus > 0 and self.free:
            return self.steep**2 / (2 * modulus), self.steep / modulus, why
        if modulus > 0:
            step = short if hessian is None else 1.0 / float(np.linalg.eigvalsh(hessian)[-1])
            y = self._projected(step)
            there = _value_and_slope(self.compiled, y)
            if there is not None:
                left = float(np.linalg.norm((self.x - y) / step + there[1] - self.slope))
                return max(0.0, self.value - there[0]) + left**2 / (2 * modulus), float(np.linalg.norm(self.x - y)) + left / modulus, why
        box = box_around(self.compiled, self.x)
        fall = np.maximum(self.slope * (self.x - box.low), self.slope * (self.x - box.high)) if box.bounded else np.inf
        return float(np.sum(fall)), np.inf, f"{why} and X bounded"

    def _projected(self, step: float) -> np.ndarray:
        """The projection on X of a gradient step."""
        return np.asarray(on_upper_set(self.compiled, (self.x - step * self.slope)[None])[0])

    def _gain(self, points: list[np.ndarray]) -> float:
        """How far f is below its value at x at the best of some points; 0 where it is not."""
        found = [there[0] for there in (_value_and_slope(self.compiled, x) for x in points) if there is not None]
        return self._above(min(found, default=self.value))

    def _above(self, lowest: float) -> float:
        """How far f at x is above a value; 0 where that may be rounding."""
        lead = self.value - lowest
        return lead if lead > ROUNDING * (1.0 + abs(self.value)) else 0.0


def _strongly(modulus: float) -> str:
    return f"strongly convex with modulus {modulus:.3g}" if modulus > 0 else "convex"


def _hessian_program(compiled: CompiledProblem) -> Callable[[Any, Data], Any]:
    """The Hessian of f, which has no lower level, as a traceable function of x and the data: a product after another."""

    def hessian(x: jax.Array, data: Data) -> jax.Array:
        def of_party(v: jax.Array, party: Any, value: Callable[..., jax.Array], samples: Any = None) -> jax.Array:
            def product(rows: Any) -> jax.Array:
                slope = jax.grad(lambda at: value(at, None, party.environment, rows))
                return jax.jvp(slope, (x,), (v,))[1]

            return party.mean(product, samples)

        def product(v: jax.Array) -> jax.Array:
            total = jnp.zeros_like(v)
            if compiled.client_program is not None:
                total = data.clients.weighted(lambda party: of_party(v, party, compiled.client_value, compiled.upper_samples), v)
            return total if data.server is None else total + of_party(v, data.server_party, compiled.server_value)

        return jax.lax.map(product, jnp.eye(x.size, dtype=x.dtype))

    return hessian


def _modulus_of(compiled: CompiledProblem) -> float | None:
    """A modulus mu >= 0 with which f is proved to be strongly convex (for a maximum: concave) on X; None where it is not even convex."""
    return compiled.programs.keep(("modulus of f", compiled.parameter_values), lambda: _modulus(compiled))


def _modulus(compiled: CompiledProblem) -> float | None:
    objective, variables = compiled.declaration.objective, tuple(compiled.upper.variables)
    if compiled.lower.size or compiled.num_clients > MOST_CLIENTS or compiled.upper.size > MOST_VARIABLES:
        return None
    if compiled.upper.size * _scalars(compiled) > MOST_WORK or asserted_convex(objective.terms, variables):
        return None
    holders = Holders(compiled)
    if holders.distributed:
        return None
    weights = holders.data.clients.weights
    sides = [(objective.clients, [(float(w), holder) for w, holder in zip(weights, holders.clients)])]
    sides += [] if holders.server is None else [(objective.server, [(1.0, holders.server)])]
    modulus = 0.0
    for term, parts in sides:
        if term is None:
            continue
        known, cost = known_of_all([holder for _, holder in parts]), compiled.sign * term
        low = Curvature(compiled, cost, variables, known).mean_spectrum(parts).low
        if low is None:
            return None
        convex = low.value < 0 and convex_where_known(cost, variables, known)  # to rounding it may be below 0
        modulus += 0.0 if convex else low.value
    return modulus if modulus >= 0 else None

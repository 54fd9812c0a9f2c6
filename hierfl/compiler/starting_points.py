"""Where runs and searches begin: the given point, or points spread over X."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats

from hierfl.atoms.intervals import Interval
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Data
from hierfl.errors import (
    DeclarationError,
    DivergedError,
    EmptyLowerSetError,
    FeasibilityWarning,
    LowerLevelError,
    SettingError,
    warn,
)
from hierfl.jaxtools.cheap_jit import quick_jit
from hierfl.jaxtools.precision import double_precision
from hierfl.language.printing.text import expression_text

INSIDE = 1e-9  # relative: how far rounding may put a point outside X
AS_GIVEN = 1e-7  # relative: the same of points that users give, such as answers of other solvers, rounded
AGAIN = 1000  # projections of a point, each of which leaves less
SPARE = 8  # points for each start, of which those where f has a value are taken
SCALE = 10.0  # half the width of the box where X is unbounded


class Box(NamedTuple):
    """Bounds of X, (n,) each; ``bounded`` says whether they all follow from the declaration."""

    low: np.ndarray
    high: np.ndarray
    bounded: bool


def known_box(compiled: CompiledProblem) -> Interval:
    """The known bounds of X, over the flat x."""
    known = compiled.declaration.known_bounds
    boxes = [known.get(v.id, Interval.free(v.shape)) for v in compiled.upper.variables]
    return Interval(np.concatenate([np.ravel(box.lo) for box in boxes]), np.concatenate([np.ravel(box.hi) for box in boxes]))


def box_around(compiled: CompiledProblem, centre: np.ndarray) -> Box:
    """The known bounds of X; where there are none, ``SCALE`` around the centre."""
    box = known_box(compiled)
    low, high = box.lo, box.hi
    bounded = bool(np.isfinite(low).all() and np.isfinite(high).all())
    return Box(
        np.where(np.isfinite(low), low, centre - SCALE), np.where(np.isfinite(high), high, centre + SCALE), bounded
    )


def sobol_points(box: Box, count: int, seed: int) -> np.ndarray:
    """Scrambled Sobol points of a box, ``(count, n)``."""
    power = int(np.ceil(np.log2(max(count, 1))))
    points = scipy.stats.qmc.Sobol(box.low.size, seed=seed).random_base2(power)[:count]
    return np.asarray(box.low + (box.high - box.low) * points)


def on_upper_set(compiled: CompiledProblem, points: np.ndarray) -> np.ndarray:
    """Projections of points (k, n) on X, private parts included."""

    def make() -> Any:
        known = compiled.known_upper_set
        return quick_jit(jax.vmap(known.project, in_axes=(0, None)))

    project = compiled.programs.keep("projection on X", make)
    return np.asarray(project(np.asarray(points), compiled.laid_out().clients.public))


def project_on_all(compiled: CompiledProblem, x: Any, data: Data | None = None) -> Any:
    """The projection on X, for values alone; with private X_i, on their intersection with the public part.

    A program that is kept gives its argument ``data``, so that it holds for all values of the parameters.
    """
    known = compiled.known_upper_set
    return known.project(jnp.asarray(x), (compiled.laid_out() if data is None else data).clients.public)


def start_point(compiled: CompiledProblem, x0: Any) -> np.ndarray:
    """The flat start: the given point, or the projection of 0 on X."""
    if x0 is not None:
        return compiled.upper.flatten(x0, "x0")
    return np.asarray(compiled.upper_projection(np.zeros(compiled.upper.size), compiled.laid_out().clients.public))


def require_start_in_x(compiled: CompiledProblem, start: np.ndarray, what: str) -> None:
    """Check that a flat start is in X, to rounding.

    Raises ``SettingError``, saying how far it is away, and what nearest point of X to take.
    """
    away, nearest = _away(compiled, start)
    if away > INSIDE * (1 + np.linalg.norm(start)):
        raise SettingError(f"{what}: the theorem is about runs that begin in X, and x0 is {away:.3g} away from it: begin at the nearest point, {nearest}.")


@double_precision
def tell_if_outside(compiled: CompiledProblem, start: np.ndarray) -> None:
    """Warn that a flat start is not in X, as methods treat it each in its own way."""
    away, nearest = _away(compiled, start)
    if away > AS_GIVEN * (1 + np.linalg.norm(start)):
        warn(FeasibilityWarning(f"x0 is {away:.3g} outside X: rounds begin there as they are written, and whatever asks for f begins at the nearest point, {nearest}."))


def _away(compiled: CompiledProblem, start: np.ndarray) -> tuple[float, str]:
    """(how far a flat start is from X, its nearest point there in text)."""
    nearest = on_upper_set(compiled, start[None])[0]
    return float(np.linalg.norm(nearest - start)), np.array2string(nearest, threshold=8, precision=8)


@double_precision
def require_in_upper_set(compiled: CompiledProblem, x: np.ndarray, tolerance: float = AS_GIVEN) -> None:
    """Check that a flat x is in X, private parts included, up to what rounding and iterative projections leave.

    Raises ``SettingError``, saying how far it is away, and which point of X is nearest; ``DeclarationError`` where X is empty.
    """
    broken = compiled.upper.whole & (np.abs(x - np.round(x)) > tolerance)
    if broken.any():
        place = int(np.argmax(broken))
        raise SettingError(f"{compiled.upper.entries[place]} is {x[place]:.6g}, and was declared as a whole number: f is declared at those alone.")
    if compiled.upper_set.kind == "free" and compiled.private_set is None:
        return
    known = compiled.known_upper_set
    if known.is_direct:  # formulas give points of empty sets as well
        compiled.programs.keep(("X has a point", compiled.parameter_values), lambda: require_nonempty(compiled))
    nearest = known.point_near(x, compiled.laid_out().clients.public)
    if (nearest == x).all():
        return
    away = float(np.linalg.norm(nearest - x))
    if np.isnan(away):
        require_nonempty(compiled)
        raise _none_near(x)
    if away > tolerance * (1 + np.linalg.norm(x)):
        shown = np.array2string(nearest, threshold=8, precision=8)
        raise SettingError(f"x is {away:.3g} outside X, on which f is declared: the nearest point of X is {shown}.")


@double_precision
def nearest_in_upper_set(compiled: CompiledProblem, x: np.ndarray) -> np.ndarray:
    """The nearest point of X to a flat x, which X's own check takes: iterative projections are repeated until it does.

    Raises ``SettingError`` where X has no such point within rounding.
    """
    public, known = compiled.laid_out().clients.public, compiled.known_upper_set
    if known.kind == "free":
        return x
    for _ in range(AGAIN):
        nearest = known.point_near(x, public)
        if np.linalg.norm(nearest - x) <= INSIDE * (1 + np.linalg.norm(x)):
            return nearest
        x = nearest
    raise _none_near(x)


def _none_near(x: np.ndarray) -> SettingError:
    return SettingError(f"no point of X was found near {np.array2string(x, threshold=8)}: projections do not settle on one.")


def start_points(compiled: CompiledProblem, x0: Any, count: int, seed: int) -> np.ndarray:
    """``start_point``, then points spread over X: ``(count, n)``; those where Y is empty, or f has no value, are left out as long as there are others."""
    first = start_point(compiled, x0)
    if count == 1:
        return first[None]
    others = on_upper_set(compiled, sobol_points(box_around(compiled, first), SPARE * (count - 1), seed))
    asked, points = ([], [first, *others]) if x0 is None else ([first], list(others))
    good, bad = list[np.ndarray](), list[np.ndarray]()
    while points and len(asked) + len(good) < count:
        point = points.pop(0)
        (good if _has_value(compiled, point) else bad).append(point)
    return np.array([*asked, *good, *bad][:count])


def _has_value(compiled: CompiledProblem, x: np.ndarray) -> bool:
    """Whether f has a value at x, as far as that is known here and at once."""
    method = compiled.exact.method if not compiled.elsewhere else None
    if method is None or method.iterative:
        return True
    try:
        return bool(np.isfinite(compiled.exact.at(x).value))
    except (EmptyLowerSetError, LowerLevelError, DivergedError):
        return False


def require_nonempty(compiled: CompiledProblem) -> None:
    """X has a point.

    Raises ``DeclarationError``, naming the constraints.
    """
    known = compiled.known_upper_set
    if not known.has_point(compiled.laid_out().clients.public):
        constraints = ", ".join(map(expression_text, known.constraints))
        raise DeclarationError(f"X is empty: no x satisfies {constraints}.")

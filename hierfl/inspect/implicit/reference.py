"""``problem.reference()``: a trustworthy optimum of a small implicit function, to compare algorithms with.

f is evaluated with the lower level solved exactly at every point. In one or two dimensions of a bounded X a fine grid comes
first, else scrambled Sobol points; the best of them, spread out, are polished by BFGS on exact values and implicit gradients
(BFGS copes with kinks: Lewis and Overton, 2013), and the best of these by Nelder and Mead's method, which needs values
only. Outside X the polished function is f(P_X(x)) + |x - P_X(x)|^2 / 2: it has the same minimisers.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.implicit_differentiation.adjoint import Hypergradient
from hierfl.compiler.implicit_differentiation.hypergradient import gradient_at
from hierfl.compiler.public_response import public_response
from hierfl.compiler.starting_points import box_around, on_upper_set, project_on_all, sobol_points
from hierfl.errors import DivergedError, IncompatibleSolverError, LowerLevelError, SettingError
from hierfl.inspect.implicit.points import owners
from hierfl.jaxtools.precision import double_precision
from hierfl.progress import RunProgress
from hierfl.result import Certificate

SIZE_LIMIT = 100
GRID = {1: 2001, 2: 61}  # points along each axis
SOBOL = 1024
SMALLEST, SOLVES = 64, 2_000_000  # least number of points; lower-level solutions to spend on all of them
BATCH_SCALARS = 4_000_000
UNBOUNDED = -1e30
NELDER_MEAD_LIMIT = 10  # variables


@dataclass(frozen=True)
class Reference:
    """The best point that was found.

    Attributes
    ----------
    x, y, value
        As in a ``Result``: the point, its exact response, and f there (as declared, sign included).
    certificate
        How the lower level is solved at x, and how accurately.
    local_minima
        Values of the distinct points at which polishing ended, best first; x of each in ``points``.
    evaluations
        Number of evaluations of f.
    guarantee
        What is known of the point, in words.
    """

    x: Any
    y: Any
    value: float
    certificate: Certificate
    local_minima: tuple[float, ...]
    points: tuple[Any, ...]
    evaluations: int
    guarantee: str

    def __str__(self) -> str:
        return f"f = {self.value:.10g}\n{self.certificate}\n{self.guarantee}"


def reference(compiled: CompiledProblem, *, restarts: int, seed: int, x0: Any, progress: bool) -> Reference:
    """The reference, kept unless a start of one's own is given; arguments and errors as for ``Problem.reference``."""
    if x0 is not None:
        return _searched(compiled, restarts, seed, x0, progress)
    key = ("reference", restarts, seed, compiled.parameter_values)
    return compiled.programs.keep(key, lambda: _searched(compiled, restarts, seed, None, progress))


@double_precision
def _searched(compiled: CompiledProblem, restarts: int, seed: int, x0: Any, progress: bool) -> Reference:
    size = compiled.upper.size
    if size > SIZE_LIMIT:
        raise SettingError(
            f"reference() is for small problems: x has {size} scalars, at most {SIZE_LIMIT} are treated."
        )
    if isinstance(restarts, bool) or not isinstance(restarts, int) or restarts < 1:
        raise SettingError(f"restarts={restarts!r}: a whole number of at least 1.")
    search = _Search(compiled)
    given = [] if x0 is None else [compiled.upper.flatten(x0, "x0")]
    candidates, how = _candidates(compiled, seed, given)
    with RunProgress(2 + restarts, "reference", progress, "searches") as bar:
        values = search.values(candidates)
        bar.update(1, how)
        starts = _spread(candidates, values, restarts)
        starts += [point for point in given if np.isfinite(search.values(point[None])[0])]
        ends = []
        for done, start in enumerate(starts):
            ends.append(search.polish(start))
            bar.update(min(done + 2, restarts + 1), f"f {compiled.sign * min(end[1] for end in ends):.6g}")
        if size <= NELDER_MEAD_LIMIT:
            ends = [search.simplex(end) for end in sorted(ends, key=lambda e: e[1])[:3]] + ends
        bar.update(restarts + 2, "done")
    if not np.isfinite(values).any():
        raise LowerLevelError(
            f"f could not be evaluated at any of {len(candidates)} points of X: Y(x) is empty there, or the lower level was not solved. "
            f"Give x0, or constraints on x that keep the lower level solvable."
        )
    ends.sort(key=lambda end: end[1])
    distinct: list[tuple[np.ndarray, float]] = []
    for x, value in ends:
        if all(np.linalg.norm(x - other) > 1e-3 * (1 + np.linalg.norm(x)) for other, _ in distinct):
            distinct.append((x, value))
    if not ends[0][1] > UNBOUNDED:
        raise DivergedError(
            f"f seems unbounded below on X: the search met the value {compiled.sign * ends[0][1]:.3g}. Bound X."
        )
    best, skipped = distinct[0][0], int(np.sum(~np.isfinite(values)))
    gaps = f" ({skipped:,} of them left out: f has no value there)" if skipped else ""
    evaluation = compiled.exact.at(best)
    solution = evaluation.solution
    return Reference(
        x=compiled.upper.unflatten(best),
        y=None if solution is None else public_response(compiled, solution.y),
        value=compiled.sign * float(evaluation.value),
        certificate=Certificate.of(compiled, evaluation),
        local_minima=tuple(compiled.sign * value for _, value in distinct),
        points=tuple(compiled.upper.unflatten(x) for x, _ in distinct),
        evaluations=search.count,
        guarantee=f"the best of {how}{gaps} and of {len(starts)} local searches from the best of them; {search.how}. "
        f"A local minimum up to the searches' accuracy; global unless a basin lies between the points.",
    )


class _Search:
    """f on X, its polished form outside, and local searches; counts its evaluations."""

    def __init__(self, compiled: CompiledProblem) -> None:
        self.compiled, self.count = compiled, 0
        self._data = jax.device_put(compiled.data())
        self.hyper: Hypergradient | None = None
        self.how = "local searches by Nelder and Mead, values only"
        with suppress(IncompatibleSolverError):
            self.hyper = Hypergradient.of(compiled)
            self.how = "local searches by BFGS on implicit gradients, then Nelder and Mead"

    def values(self, points: np.ndarray) -> np.ndarray:
        """f at the projections of points (k, n) on X; infinity where it cannot be evaluated."""
        self.count += len(points)
        batch = max(1, BATCH_SCALARS // (owners(self.compiled) * max(1, self.compiled.lower.size)))

        def all_values(points: jax.Array, data: Any) -> jax.Array:
            return jax.lax.map(lambda x: self._value(x, data), points, batch_size=min(batch, points.shape[0]))

        program = self.compiled.programs.keep("reference values", lambda: jax.jit(all_values))
        return np.asarray(program(jnp.asarray(points), self._data))

    def _value(self, x: jax.Array, data: Any) -> jax.Array:
        inside = project_on_all(self.compiled, x, data)
        evaluation = self.compiled.exact.evaluate(inside, data)
        return self._checked(evaluation) + 0.5 * jnp.sum((x - inside) ** 2)

    @staticmethod
    def _checked(evaluation: Any) -> jax.Array:
        good = jnp.isfinite(evaluation.value) & (jnp.max(evaluation.gap) <= 0)
        if evaluation.solution is not None:
            good = good & evaluation.solution.converged.all()
        return jnp.where(good, evaluation.value, jnp.inf)

    def _slope(self, hyper: Hypergradient, x: jax.Array, data: Any) -> tuple[jax.Array, jax.Array]:
        inside, pull = jax.vjp(lambda v: project_on_all(self.compiled, v, data), x)
        evaluation, gradient = gradient_at(hyper, inside, data)
        away = x - inside
        return self._checked(evaluation) + 0.5 * away @ away, pull(gradient)[0] + away

    def polish(self, start: np.ndarray) -> tuple[np.ndarray, float]:
        """A local search: the point of X and its value."""
        hyper = self.hyper
        if hyper is None:
            return self.simplex((start, np.inf))
        program = self.compiled.programs.keep(("reference slope", hyper), lambda: jax.jit(partial(self._slope, hyper)))

        def slope(x: np.ndarray) -> tuple[float, np.ndarray]:
            self.count += 1
            value, gradient = map(np.asarray, program(jnp.asarray(x), self._data))
            return float(value), np.where(
                np.isfinite(gradient), gradient, 0.0
            )  # at a value of infinity: BFGS steps back

        found = scipy.optimize.minimize(slope, start, jac=True, method="BFGS", options={"gtol": 1e-9})
        return np.asarray(project_on_all(self.compiled, found.x)), float(found.fun)

    def simplex(self, start: tuple[np.ndarray, float]) -> tuple[np.ndarray, float]:
        """Nelder and Mead's method: it sees values only, so that kinks do not stop it."""
        one = self.compiled.programs.keep("reference value", lambda: jax.jit(self._value))

        def value(x: np.ndarray) -> float:
            self.count += 1
            return float(one(jnp.asarray(x), self._data))

        found = scipy.optimize.minimize(
            value,
            start[0],
            method="Nelder-Mead",
            options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 400 * len(start[0])},
        )
        inside = np.asarray(project_on_all(self.compiled, found.x))
        return (inside, float(found.fun)) if found.fun <= start[1] else start


def _candidates(compiled: CompiledProblem, seed: int, given: list[np.ndarray]) -> tuple[np.ndarray, str]:
    """Points to start from, on X, and how they were chosen."""
    size = compiled.upper.size
    box = box_around(compiled, given[0] if given else np.zeros(size))
    afford = max(SMALLEST, SOLVES // owners(compiled))  # points, where each asks for many lower-level solutions
    if box.bounded and size in GRID:
        count = min(GRID[size], round(afford ** (1 / size)))
        axes = [np.linspace(a, b, count) for a, b in zip(box.low, box.high)]
        points = np.stack([axis.ravel() for axis in np.meshgrid(*axes, indexing="ij")], axis=1)
        how = f"a grid of {len(points):,} points on the bounds of X"
    else:
        points = sobol_points(box, min(SOBOL, 2 ** int(np.log2(afford))), seed)
        where = "the bounds of X" if box.bounded else "a box, X being unbounded,"
        how = f"{len(points):,} scrambled Sobol points on {where}"
    return on_upper_set(compiled, np.concatenate([points, *[p[None] for p in given]])), how


def _spread(points: np.ndarray, values: np.ndarray, count: int) -> list[np.ndarray]:
    """The best points that are not close to a better one."""
    order = np.argsort(values, kind="stable")
    width = np.linalg.norm(np.ptp(points, axis=0))
    chosen: list[np.ndarray] = []
    for place in order[np.isfinite(values[order])]:
        if all(np.linalg.norm(points[place] - other) > 0.1 * width for other in chosen):
            chosen.append(points[place])
        if len(chosen) == count:
            break
    return chosen

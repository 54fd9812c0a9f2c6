"""The implicit function at many points: one compiled program, called on pieces of equal size."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Data
from hierfl.compiler.implicit_differentiation import Hypergradient, gradient_at
from hierfl.compiler.lower_level.certificate import TOLERANCE, Evaluation
from hierfl.compiler.programs.convex_program import SEVERAL, UNKNOWN
from hierfl.compiler.starting_points import on_upper_set, project_on_all
from hierfl.compiler.violations import ALLOWED
from hierfl.errors import IncompatibleSolverError
from hierfl.inspect.kinks.switches import Switches, atoms_of
from hierfl.jaxtools.cheap_jit import quick_jit
from hierfl.language.function import BlackBox
from hierfl.progress import RunProgress

PIECE_SCALARS = 2_000_000
PIECE = 64
KEPT_LIMIT, FOLLOWED_LIMIT = 100_000, 30_000
OUTSIDE = 1e-9
REASONS = ("", "x is outside X", "Y(x) is empty", "the lower level was not solved", "a term is undefined")


class Sampled(NamedTuple):
    """f at points, leading axis k; values as declared (sign included), NaN where ``reason`` is not 0.

    ``answers`` (k, owners, size) is y(x) and ``signature`` (k, switches) the signs of the switches, both empty where a point
    has more than 100,000; ``residual`` and ``error_bound`` (NaN where it has to be asked for) are the worst over the owners of a y; ``tied``
    is the first owner, from 1, whose y is one of several solutions that f tells apart, or with a selection may be, 0 where
    there is none; ``reason`` indexes ``REASONS``.
    """

    value: np.ndarray
    server: np.ndarray
    clients: np.ndarray
    answers: np.ndarray
    signature: np.ndarray
    residual: np.ndarray
    error_bound: np.ndarray
    tied: np.ndarray
    reason: np.ndarray


class Followed(NamedTuple):
    """How all moves along a line at points, leading axis k: y (k, owners, size), f, and the switches (k, switches), whose values are here too.

    The same holds below up to ``behind`` and ``ahead`` (k,), if at that rate; NaN where it is not told.
    """

    rates: np.ndarray
    behind: np.ndarray
    ahead: np.ndarray
    slope: np.ndarray
    switches: np.ndarray
    switch_rates: np.ndarray


@dataclass(frozen=True, eq=False)
class Points:
    """Evaluates a problem's implicit function, with the parameters' values of its first question; ``tolerance`` is that of the exact lower level."""

    compiled: CompiledProblem
    tolerance: float = TOLERANCE
    progress: RunProgress | None = None
    _data: list[Data] = field(default_factory=list)  # once there was a question

    # --- what can be asked ---------------------------------------------------------------------------------------

    def values(self, points: np.ndarray) -> Sampled:
        """Evaluate f, its terms and y at points (k, n)."""
        return Sampled(*self._pieces("values", self._value, points))

    def error_bounds(self, points: np.ndarray, sampled: Sampled) -> np.ndarray:
        """Bounds on the error of y at points that have been evaluated, worst over the owners of a y: (k,)."""
        exact = self.compiled.exact
        if exact.method is None or exact.with_bounds is exact:
            return sampled.error_bound

        def bound(x: Array, data: Data, tolerance: Array) -> tuple[Array]:
            return (jnp.max(exact.with_bounds.solve_all(x, data, None, tolerance)[0].error_bound),)

        return self._pieces("error bounds", bound, points)[0]

    def switch_values(self, points: np.ndarray, sampled: Sampled | None = None) -> np.ndarray:
        """Evaluate all switches at points (k, n), which may have been evaluated: (k, switches), NaN where f has no value."""
        return self._of_answers("switches", self.switches.values, points, sampled)

    def violated(self, points: np.ndarray, sampled: Sampled) -> np.ndarray:
        """Whether each upper constraint that mentions y is violated at points that have been evaluated: (k, constraints), 0 or 1."""
        if not self.compiled.coupled.conditions:
            return np.zeros((len(points), 0), int)
        return (self._of_answers("violated", self._violations, points, sampled) > ALLOWED).astype(int)

    def _of_answers(
        self, name: str, function: Callable[[Array, Array | None, Data], Array], points: np.ndarray, sampled: Sampled | None
    ) -> np.ndarray:
        """A function of x, y(x) and the data: of answers that are kept with values, else of such that are found again."""

        def again(x: Array, data: Data, tolerance: Array) -> tuple[Array]:
            evaluation, reason = self._evaluate(x, data, tolerance)
            answers = None if evaluation.solution is None else evaluation.solution.y
            return (jnp.where(reason == 0, function(x, answers, data), jnp.nan),)

        if self.compiled.exact.method is None or self._answer_size > KEPT_LIMIT:
            (values,) = self._pieces(f"{name} found again", again, points)
            return values
        sampled = self.values(points) if sampled is None else sampled
        (values,) = self._pieces(f"{name} of answers", lambda x, y, data, _: (function(x, y, data),), points, sampled.answers)
        return np.where((sampled.reason == 0)[:, None], values, np.nan)

    def slopes(self, points: np.ndarray, directions: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Evaluate (f (k,), its derivatives along directions (k, n)) by implicit differentiation; NaN where f has no value."""
        hyper = Hypergradient.of(self.compiled)
        along = np.broadcast_to(directions, np.shape(points))
        value, slope = self._pieces(("slopes", hyper), partial(self._slope, hyper), points, along)
        return value, slope

    @property
    def follows(self) -> bool:
        """Whether what is between places where switches change can be followed; none of them is unseen."""
        method, switches = self.compiled.exact.method, self.switches
        few = max(self._answer_size, switches.entries) <= FOLLOWED_LIMIT
        if method is None or not few or switches.opaque or switches.sampled.any():
            return False
        return method.follows and self.differentiable

    def followed(self, points: np.ndarray, direction: np.ndarray) -> tuple[Sampled, Followed]:
        """Evaluate f and all else at points (k, n), and how it moves along a direction (n,)."""
        method = self.compiled.exact.method
        most = 1 if method is None else method.followed_at_once
        told = self._pieces("followed", self._followed, points, np.broadcast_to(direction, points.shape), most=most)
        return Sampled(*told[:9]), Followed(*told[9:])

    def slopes_of(
        self, points: np.ndarray, directions: np.ndarray, answers: np.ndarray, rates: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """(f, its derivatives along directions) at points (k, n) whose y, and how that moves, is known: (k, owners, size) each."""
        value, slope = self._pieces("slopes of answers", self._moving, points, directions, answers, rates)
        return value, slope

    def gradients(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Evaluate (f (k,), its gradients (k, n)) by implicit differentiation."""
        hyper = Hypergradient.of(self.compiled)
        value, gradient = self._pieces(("gradients", hyper), partial(self._gradient, hyper), points)
        return value, gradient

    def projected(self, points: np.ndarray) -> np.ndarray:
        """Project points (k, n) on X, in pieces of one size: each size is compiled anew."""
        missing = -len(points) % PIECE
        padded = np.concatenate([points, np.repeat(points[-1:], missing, axis=0)])
        pieces = [on_upper_set(self.compiled, padded[i : i + PIECE]) for i in range(0, len(padded), PIECE)]
        return np.concatenate([points[:0], *pieces])[: len(points)]

    @property
    def differentiable(self) -> bool:
        """Whether gradients can be had by implicit differentiation; a ``BlackBox`` has values only."""
        if any(isinstance(atom, BlackBox) for atom in atoms_of(self.compiled)):
            return False
        try:
            Hypergradient.of(self.compiled)
        except IncompatibleSolverError:
            return False
        return True

    @property
    def switches(self) -> Switches:
        """All switches of the problem's constraints and atoms; found once, and kept with the problem."""
        return self.compiled.programs.keep("switches", lambda: Switches.of(self.compiled))

    # --- at one point, traceable ---------------------------------------------------------------------------------

    def _value(self, x: Array, data: Data, tolerance: Array) -> tuple[Array, ...]:
        evaluation, reason = self._evaluate(x, data, tolerance)
        sign = self.compiled.sign * jnp.where(reason == 0, 1.0, jnp.nan)
        terms = tuple(sign * term for term in (evaluation.value, evaluation.server, evaluation.clients))
        solution, empty = evaluation.solution, jnp.zeros(0)
        answers = None if solution is None else solution.y
        signature = self.switches.signature(x, answers, data) if self.switches.entries <= KEPT_LIMIT else empty
        if solution is None:
            return *terms, empty, signature, jnp.zeros(()), jnp.zeros(()), jnp.zeros((), int), reason
        kept = jnp.where(reason == 0, solution.y, jnp.nan) if self._answer_size <= KEPT_LIMIT else empty
        open_ = SEVERAL if getattr(self.compiled.declaration.lower_level, "selection", None) is None else UNKNOWN
        ties = jnp.ravel(jnp.asarray(solution.unique)) == open_
        tied = jnp.where((reason == 0) & ties.any(), 1 + jnp.argmax(ties), 0)
        return *terms, kept, signature, jnp.max(solution.residual), jnp.max(solution.error_bound), tied, reason

    def _followed(self, x: Array, way: Array, data: Data, tolerance: Array) -> tuple[Array, ...]:
        told = self._value(x, data, tolerance)
        answers = told[3]
        rates, behind, ahead = self.compiled.exact.branches(x, answers, way, data)
        _, slope = self._moving(x, way, answers, rates, data, tolerance)
        switches, moved = jax.jvp(lambda x, y: self.switches.values(x, y, data), (x, answers), (way, rates))
        return *told, rates, jnp.min(behind), jnp.min(ahead), slope, switches, moved

    def _moving(self, x: Array, way: Array, answers: Array, rates: Array, data: Data, tolerance: Array) -> tuple[Array, Array]:
        def value(x: Array, y: Array) -> Array:
            server, clients = self.compiled.exact.value_at(x, y, data)
            return self.compiled.sign * (server + data.clients.weights @ clients)

        return jax.jvp(value, (x, answers), (way, rates))

    def _violations(self, x: Array, answers: Array | None, data: Data) -> Array:
        """What each condition is violated by at its worst, in 1 + its sides."""
        assert answers is not None
        worst, coupled = [], self.compiled.coupled
        for one, (left, right) in zip(coupled.conditions, coupled.sides(self.compiled, x, answers, data)):
            excess = jnp.abs(left - right) if one.equality else jnp.maximum(left - right, 0.0)
            worst.append(jnp.max(excess / (1.0 + jnp.maximum(jnp.abs(left), jnp.abs(right)))))
        return jnp.stack(worst)

    def _evaluate(self, x: Array, data: Data, tolerance: Array) -> tuple[Evaluation, Array]:
        evaluation = self.compiled.exact.evaluate_within(x, data, None, tolerance)
        return evaluation, self._reason(x, evaluation, data)

    def _reason(self, x: Array, evaluation: Evaluation, data: Data) -> Array:
        """Why f has no value, by its place in ``REASONS``."""
        away = jnp.linalg.norm(x - project_on_all(self.compiled, x, data)) > OUTSIDE * (1 + jnp.linalg.norm(x))
        solved = jnp.ones((), bool) if evaluation.solution is None else evaluation.solution.converged.all()
        flags = jnp.stack([away, ~(jnp.max(evaluation.gap) <= 0), ~solved, ~jnp.isfinite(evaluation.value)])
        return jnp.where(flags.any(), 1 + jnp.argmax(flags), 0)

    def _slope(self, hyper: Hypergradient, x: Array, way: Array, data: Data, tolerance: Array) -> tuple[Array, Array]:
        value, gradient = self._gradient(hyper.along(way), x, data, tolerance)
        return value, gradient @ way

    def _gradient(self, hyper: Hypergradient, x: Array, data: Data, tolerance: Array) -> tuple[Array, Array]:
        evaluation, gradient = gradient_at(hyper, x, data)
        factor = self.compiled.sign * jnp.where(self._reason(x, evaluation, data) == 0, 1.0, jnp.nan)
        return factor * evaluation.value, factor * gradient

    # --- many points ---------------------------------------------------------------------------------------------

    @property
    def _answer_size(self) -> int:
        return self.compiled.lower.size * self.compiled.owners

    def _pieces(
        self, name: Hashable, one: Callable[..., tuple[Array, ...]], points: np.ndarray, *more: np.ndarray, most: int = PIECE
    ) -> list[np.ndarray]:
        """The results of ``one`` at points, each with its own entries of further arrays, in calls of one size, at ``most``."""
        rows = sum(int(np.sum(table.counts)) for table in self.compiled.static_data.clients.tables)
        size = int(np.clip(PIECE_SCALARS // (1 + rows + self._answer_size), 1, min(PIECE, most)))  # as many as fit

        def all_of(points: Array, more: tuple[Array, ...], data: Data, tolerance: Array) -> tuple[Array, ...]:
            return jax.vmap(lambda x, more: one(x, *more, data, tolerance))(points, more)

        program = self.compiled.programs.keep(("points", name, size), lambda: quick_jit(all_of))
        if not self._data:
            self._data.append(jax.device_put(self.compiled.data()))
        parts = []
        for start in range(0, len(points), size):
            pieces = [array[start : start + size] for array in (points, *more)]
            count = len(pieces[0])
            padded, *rest = (np.concatenate([p, np.repeat(p[-1:], size - count, axis=0)]) for p in pieces)
            parts.append([np.asarray(a)[:count] for a in program(padded, tuple(rest), self._data[0], self.tolerance)])
            if self.progress is not None:
                self.progress.advance(count)
        return [np.concatenate(arrays) for arrays in zip(*parts)]

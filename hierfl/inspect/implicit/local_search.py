"""Local searches of the implicit function on X: the bundle method on gradients, and Nelder and Mead's method on values.

Outside X the function whose values are searched is f(P_X(x)) + |x - P_X(x)|^2 / 2, which has the same minimisers.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.optimize

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.data.tables import Data
from hierfl.compiler.lower_level.certificate import TOLERANCE
from hierfl.compiler.lower_level.evaluation import Evaluation
from hierfl.compiler.programs.cones import NoStandardFormError
from hierfl.compiler.starting_points import on_upper_set, project_on_all
from hierfl.descent.decision_rows import DecisionRows
from hierfl.descent.implicit_oracle import ImplicitOracle
from hierfl.descent.search import BOTTOM, Descent
from hierfl.inspect.implicit.points import Points, owners
from hierfl.jaxtools.cheap_jit import quick_jit

BATCH_SCALARS = 4_000_000
ACCURACY, MOST = 1e-9, 300  # of a local search, as of ``Descent``, and its evaluations
SAME = 1e-4  # relative: how close to where another search ended one is taken to end there too
UNBOUNDED = BOTTOM  # of f, oriented for minimisation: no least value is called that


class LocalMinimum(NamedTuple):
    """Where a local search ended: a point of X (n,) and its value, oriented for minimisation."""

    x: np.ndarray
    value: float


class LocalSearch:
    """Searches f on X, and what it is outside, from given starts.

    ``count`` counts its evaluations, ``joined`` the searches that were ended since they came to where another one had.
    """

    def __init__(self, compiled: CompiledProblem) -> None:
        self.compiled, self.count, self.joined = compiled, 0, 0
        self._data = jax.device_put(compiled.data())
        self.rows: DecisionRows | None = None
        self.how = "local searches by Nelder and Mead, values only"
        if Points(compiled).differentiable:
            with suppress(NoStandardFormError):
                self.rows = DecisionRows.of(compiled)
                self.how = "local searches by a bundle method on implicit gradients"

    def values(self, points: np.ndarray) -> np.ndarray:
        """Evaluate f at the projections of points (k, n) on X; infinity where it cannot be evaluated."""
        self.count += len(points)
        batch = max(1, BATCH_SCALARS // (owners(self.compiled) * max(1, self.compiled.lower.size)))

        def all_values(points: jax.Array, data: Data) -> jax.Array:
            return jax.lax.map(lambda x: self._value(x, data), points, batch_size=min(batch, points.shape[0]))

        program = self.compiled.programs.keep("reference values", lambda: quick_jit(all_values))
        return np.asarray(program(np.asarray(points, float), self._data))

    def _value(self, x: jax.Array, data: Data) -> jax.Array:
        inside = project_on_all(self.compiled, x, data)
        evaluation = self.compiled.exact.evaluate_within(inside, data, None, TOLERANCE)
        return self._checked(evaluation) + 0.5 * jnp.sum((x - inside) ** 2)

    @staticmethod
    def _checked(evaluation: Evaluation) -> jax.Array:
        good = jnp.isfinite(evaluation.value) & (jnp.max(evaluation.gap) <= 0)
        if evaluation.solution is not None:
            good = good & evaluation.solution.converged.all()
        return jnp.where(good, evaluation.value, jnp.inf)

    def polish(self, start: np.ndarray, accuracy: float = ACCURACY, ends: Sequence[LocalMinimum] = ()) -> LocalMinimum:
        """Search from a start, by gradients where there are any; a search that comes to one of the ``ends`` ends with it."""
        if self.rows is None:
            return self.simplex(LocalMinimum(start, np.inf))
        oracle = ImplicitOracle(self.compiled, seed=0)
        first = oracle(start)
        if first is None:
            return self.simplex(LocalMinimum(start, np.inf)) if oracle.without_gradient else LocalMinimum(start, np.inf)
        descent = Descent(oracle, self.rows, first, accuracy)
        asks, point = descent.asks(), None
        with suppress(StopIteration):
            for _ in range(MOST):
                best = descent.best
                if (there := _end_at(ends, best.x, best.value)) is not None:
                    self.joined += 1
                    return there
                self.count += 1
                point = oracle(asks.send(point))
        best = descent.best
        return LocalMinimum(best.x, best.value)

    def simplex(self, start: LocalMinimum) -> LocalMinimum:
        """Search by Nelder and Mead's method, which sees values only, so that kinks do not stop it; never worse than the start."""
        one = self.compiled.programs.keep("reference value", lambda: quick_jit(self._value))

        def value(x: np.ndarray) -> float:
            self.count += 1
            return float(one(jnp.asarray(x), self._data))

        end = scipy.optimize.minimize(
            value,
            start.x,
            method="Nelder-Mead",
            options={"xatol": 1e-9, "fatol": 1e-12, "maxiter": 400 * len(start.x)},
        )
        inside = on_upper_set(self.compiled, end.x[None])[0]
        return LocalMinimum(inside, float(end.fun)) if end.fun <= start.value else start


def _end_at(ends: Sequence[LocalMinimum], x: np.ndarray, value: float) -> LocalMinimum | None:
    """The end that a search has come to: next to x, and no worse."""
    near = SAME * (1.0 + float(np.linalg.norm(x)))
    return next((end for end in ends if end.value <= value and np.linalg.norm(end.x - x) <= near), None)

"""The curvature of a declared function in one group of variables, numerically, for each party with its own data.

The quadratic bounds of ``hierfl.analysis.curvature_bounds`` are compiled once; their Hessians multiply vectors for any client
(a mean over its rows) or any single sample, and their spectra give mu from below and L from above.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np

from hierfl.analysis.curvature_bounds import CurvatureBounds, End, curvature_bounds, majorant
from hierfl.analysis.enclosure import Known
from hierfl.analysis.spectrum import Edge, largest, smallest
from hierfl.atoms.algebra import addends
from hierfl.compiler.data.tables import Population
from hierfl.compiler.expressions.program import NO_ROWS, Program, Rows
from hierfl.language.levels import averages_of
from hierfl.language.sample import Sample

if TYPE_CHECKING:
    from hierfl.compiler.compiled_problem import CompiledProblem
    from hierfl.inspect.assumptions.holders import Holder

Products = Callable[[np.ndarray], np.ndarray]  # of the Hessian with vectors (k, size)


@dataclass(frozen=True)
class Spectrum:
    """mu from below and L from above of one function (None: no bound)."""

    low: Edge | None
    high: Edge | None


@dataclass(frozen=True, eq=False)
class Curvature:
    """The curvature of ``expression`` in ``variables``, evaluated for holders of data."""

    compiled: CompiledProblem
    expression: cp.Expression
    variables: tuple[cp.Variable, ...]
    known: Known

    @cached_property
    def bounds(self) -> CurvatureBounds:
        """Quadratic bounds of the expression from below and above."""
        return curvature_bounds(self.expression, self.variables, self.known)

    def spectrum(self, holder: Holder) -> Spectrum:
        """Bound the spectrum of the Hessian for one holder (a client, or one of its samples)."""
        return self._spectrum([(1.0, holder)])

    def mean_spectrum(self, holders: Sequence[tuple[float, Holder]]) -> Spectrum:
        """Bound the spectrum of the Hessian of a weighted sum over holders."""
        return self._spectrum(holders)

    @property
    def size(self) -> int:
        return sum(v.size for v in self.variables)

    def _spectrum(self, holders: Sequence[tuple[float, Holder]]) -> Spectrum:
        terms = max((holder.rows for _, holder in holders), default=1)
        low = high = None
        if self.bounds.lower is not None:
            low = smallest(self._products("lower", holders), self.size, terms)
            if low is None and self._plain is not None:  # leaving out convex terms can only lower mu
                low = smallest(self._products("plain", holders), self.size, terms)
            if low is None:
                low = Edge(0.0, "convex, by CVXPY's rules")
        if self.bounds.upper is not None:
            dominating = None if self._dominating is None else self._products("dominating", holders)
            high = largest(self._products("upper", holders), self.size, terms, dominating)
        return Spectrum(low, high)

    @cached_property
    def _plain(self) -> cp.Expression | None:
        """The terms of the lower bound that no data enter."""
        assert self.bounds.lower is not None
        terms = [t for t in addends(self.bounds.lower) if not any(True for _ in averages_of(t)) and t.variables()]
        return sum(terms[1:], start=terms[0]) if terms else None

    @cached_property
    def _dominating(self) -> cp.Expression | None:
        return None if self.bounds.upper is None else majorant(self.bounds.upper, self.variables)

    def _expression(self, which: str) -> cp.Expression:
        if which in ("lower", "upper"):
            return getattr(self.bounds, which)
        return self._plain if which == "plain" else self._dominating

    def _products(self, which: str, holders: Sequence[tuple[float, Holder]]) -> Products:
        multiply = self._compiled_products(which)

        def products(vectors: np.ndarray) -> np.ndarray:
            result = np.zeros_like(vectors)
            for weight, holder in holders:
                ends = {p.id: jnp.asarray(end.value(holder.known)) for p, end in self._ends(which)}
                part = multiply(jnp.asarray(vectors), holder.population, holder.index, holder.own | ends)
                result += weight * np.asarray(part)
            return result

        return products

    def _ends(self, which: str) -> list[tuple[cp.Parameter, End]]:
        used = {p.id for p in self._expression(which).parameters()}
        return [(p, end) for p, end in self.bounds.ends.items() if p.id in used]

    @cached_property
    def _programs(self) -> dict[str, Callable[..., jax.Array]]:
        return {}

    def _compiled_products(self, which: str) -> Callable[..., jax.Array]:
        if which not in self._programs:
            self._programs[which] = self._compile(self._expression(which))
        return self._programs[which]

    def _compile(self, expression: cp.Expression) -> Callable[..., jax.Array]:
        program = Program([expression])
        samples = tuple(p.id for p in expression.parameters() if isinstance(p, Sample))
        starts = np.cumsum([0, *(v.size for v in self.variables)])
        mine = {v.id for v in self.variables}
        others = [v for v in [*self.compiled.upper.variables, *self.compiled.lower.variables] if v.id not in mine]
        zeros = {v.id: np.zeros(v.shape) for v in others}

        def value(flat: jax.Array, own: dict[int, Any], rows: Rows) -> jax.Array:
            decision = {v.id: flat[a:b].reshape(v.shape) for v, a, b in zip(self.variables, starts, starts[1:])}
            return jnp.reshape(program({**zeros, **own, **decision}, rows)[0], ())

        def product(vector: jax.Array, population: Population | None, index: int, own: dict[int, Any]) -> jax.Array:
            def of_rows(rows: Rows) -> jax.Array:
                point = jnp.zeros_like(vector)
                return jax.jvp(lambda flat: jax.grad(value)(flat, own, rows), (point,), (vector,))[1]

            return of_rows(NO_ROWS) if population is None else population.party(index).mean(of_rows, samples)

        @jax.jit
        def products(vectors: jax.Array, population: Population | None, index: int, own: dict[int, Any]) -> jax.Array:
            return jax.lax.map(lambda v: product(v, population, index, own), vectors, batch_size=64)

        return products

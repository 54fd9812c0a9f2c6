"""Several lower levels one after another: each solved by a method of its own, its upper decision being x and the answers before it.

y = (y_1, ..., y_k) with y_j = S_j(x, y_1, ..., y_(j-1)): values go down the levels, derivatives along a direction too, adjoints come up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from hierfl.compiler.lower_level.certificate import Judgement, LowerSolution
from hierfl.compiler.lower_level.methods.method import ITERATION_LIMIT, ExactMethod, Verdict
from hierfl.compiler.lower_level.methods.parametric_program import ParametricProgram, generic_ways
from hierfl.compiler.lower_level.owner import Owner
from hierfl.compiler.lower_level.structure import LowerStructure
from hierfl.compiler.programs.convex_program import ONE, SEVERAL, TWISTED, UNKNOWN
from hierfl.language.printing.text import expression_text

if TYPE_CHECKING:
    from hierfl.compiler.lower_level.exact_lower import ExactLower

CODES = 10 * ITERATION_LIMIT  # what a stage says of its iterations, below its number


@dataclass(frozen=True, eq=False)
class InSequence(ExactMethod):
    """The method for several lower levels; ``stages`` solve them, in their order."""

    stages: tuple[ExactLower, ...] = ()

    name: ClassVar[str] = "levels in sequence"
    cost: ClassVar[str] = "that of its levels together"
    tells_empty: ClassVar[bool] = True

    @property
    def methods(self) -> tuple[ExactMethod, ...]:
        return tuple(stage.method for stage in self.stages if stage.method is not None)

    @property
    def responds(self) -> bool:
        return all(method.responds for method in self.methods)

    @property
    def values_only(self) -> str:
        silent = [method for method in self.methods if not method.responds]
        return "" if not silent else silent[0].values_only or f"the {silent[0].name} of one of its levels does not tell how y moves"

    @property
    def follows(self) -> bool:
        return all(method.follows for method in self.methods)

    @property
    def _moves_on_lines(self) -> bool:
        """Whether all levels but the last say how y moves along a direction."""
        return all(isinstance(method, ParametricProgram) and method.solver.form.polyhedral and not method.solver.mapping for method in self.methods[:-1])

    @property
    def tells_kinks(self) -> bool:
        return False  # what a level says of x and of the answers before it may have kinks of its own

    @property
    def iterative(self) -> bool:  # type: ignore[override]
        return any(method.iterative for method in self.methods)

    @property
    def solutions_in_a_second(self) -> int:
        return int(1 / sum(1 / method.solutions_in_a_second for method in self.methods))

    @classmethod
    def verdict(cls, structure: LowerStructure) -> Verdict:
        return Verdict(False, "is for several lower levels")

    def _each(self, x: Array, owner: Owner, y: Array) -> Iterator[tuple[ExactLower, Array, Owner, slice]]:
        """(stage, x and the answers before it, its owner, its place in y)."""
        start = 0
        for stage in self.stages:
            at, end = jnp.concatenate([x, y[:start]]), start + stage.oracles.lower.size
            yield stage, at, owner.stage(stage, at), slice(start, end)
            start = end

    def solve(
        self, x: Float[Array, " n"], owner: Owner, warm: Float[Array, " size"], tolerance: Array | float
    ) -> LowerSolution:
        return self._solved_from(0, jnp.zeros(0, x.dtype), x, owner, warm, tolerance)

    def _solved_from(self, first: int, y: Array, x: Array, owner: Owner, warm: Array, tolerance: Array | float) -> LowerSolution:
        """The answers from one stage on, those of the stages before being y."""
        residual, status = jnp.zeros((), x.dtype), jnp.zeros((), int)
        solved, empty, unique = jnp.ones((), bool), jnp.zeros((), bool), jnp.asarray(ONE)
        for place in range(first, len(self.stages)):
            stage, start = self.stages[place], y.size
            at = jnp.concatenate([x, y])

            def upper(own: Array, place: int = place, before: Array = y) -> Array:
                """The upper objective at an answer of this stage, the later ones answering that."""
                own = jnp.concatenate([before, own])
                if place + 1 < len(self.stages):
                    own = self._solved_from(place + 1, own, x, owner, warm, tolerance).y
                return owner.upper(own)

            theirs = owner.stage(stage, at)._replace(upper=upper)
            size = stage.oracles.lower.size
            found = stage.solve(at, theirs, warm[start : start + size], tolerance)
            none = stage.gap_of(found, at, theirs.own) > 0
            good = found.converged & ~none
            status = jnp.where(solved & ~good, place * CODES + found.iterations, status)
            empty = empty | (solved & none)
            solved, y = solved & good, jnp.concatenate([y, found.y])
            residual = jnp.maximum(residual, found.residual)
            unique = _worse(unique, jnp.asarray(found.unique))
        unbounded = jnp.full((), jnp.inf, x.dtype)  # how an error of one answer moves the next is not proved
        return LowerSolution(y, residual, unbounded, jnp.zeros((), x.dtype), status, solved, empty, unique)

    def conditions(self, x: Array, owner: Owner, y: Array) -> Judgement:
        """The conditions of all levels, each at the answers before it; their residuals are added, and no bound of y's error is known."""
        found = [stage.conditions(at, own, y[place]) for stage, at, own, place in self._each(x, owner, y)]
        return Judgement.known(jnp.stack([one.residual for one in found]).sum())

    def pull(
        self,
        x: Float[Array, " n"],
        owner: Owner,
        y: Float[Array, " size"],
        seed: Float[Array, " size"],
        ways: Float[Array, "k n"] | None = None,
    ) -> Float[Array, " n"]:
        stages = list(self._each(x, owner, y))
        if self._moves_on_lines:  # later answers have to have derivatives where those before them move, and no more
            ways = jnp.stack(generic_ways(x)) if ways is None else ways
            along = jax.vmap(lambda way: self._rates(x, owner, y, way))(ways)
        else:
            along = None
        seeds, n, pulled = seed, x.size, jnp.zeros_like(x)
        for stage, at, own, place in reversed(stages):
            assert stage.method is not None
            theirs = None if along is None or ways is None else jnp.hstack([ways, along[:, : place.start]])
            moved = stage.method.pull(at, own, y[place], seeds[place], theirs)
            pulled = pulled + moved[:n]
            seeds = seeds.at[: place.start].add(moved[n:])
        return pulled

    def branch(
        self, x: Float[Array, " n"], owner: Owner, y: Float[Array, " size"], way: Float[Array, " n"]
    ) -> Float[Array, " size+2"]:
        rate, back, ahead = jnp.zeros(0, x.dtype), jnp.full((), jnp.inf), jnp.full((), jnp.inf)
        for stage, at, own, place in self._each(x, owner, y):
            assert stage.method is not None
            told = stage.method.branch(at, own, y[place], jnp.concatenate([way, rate]))
            rate = jnp.concatenate([rate, told[:-2]])
            back, ahead = jnp.minimum(back, told[-2]), jnp.minimum(ahead, told[-1])
        return jnp.concatenate([rate, jnp.stack([back, ahead])])

    def _rates(self, x: Array, owner: Owner, y: Array, way: Array) -> Array:
        """By what the answers before the last move along a direction."""
        rate = jnp.zeros(0, x.dtype)
        for method, (_, at, own, _) in zip(self.methods[:-1], self._each(x, owner, y)):
            assert isinstance(method, ParametricProgram)
            rate = jnp.concatenate([rate, method.rate(at, own, jnp.concatenate([way, rate]))])
        return rate

    def explain(self, scope: str | None) -> str:
        each = (f"{_names(stage)} {stage.method.explain(scope)}" for stage in self.stages if stage.method is not None)
        return f"{len(self.stages)} levels in sequence: {'; then '.join(each)}"

    def advice(self) -> str:
        return "; ".join(filter(None, (method.advice() for method in self.methods)))

    def empty(self, solution: LowerSolution, owner: int, at: str) -> str:
        place = int(solution.iterations[owner]) // CODES
        stage = self.stages[place]
        level = stage.oracles.declaration.lower_level
        assert level is not None
        rows = ", ".join(map(expression_text, (level.of or level).constraints))
        start = stage.oracles.upper.size - self.structure.oracles.upper.size
        given = ""
        if place:
            before = np.array2string(np.asarray(solution.y[owner][:start]), threshold=8, precision=6)
            given = f" at the answers of the levels before it, {before}"
        return f"Y(x) of lower level {place + 1} ({_names(stage)}) is empty at {at}: no {_names(stage)} satisfies {rows}{given}."

    def unsolved(self, solution: LowerSolution, owner: int) -> str:
        place, own = divmod(int(solution.iterations[owner]), CODES)
        iterations = jnp.where(jnp.arange(len(solution.y)) == owner, own, solution.iterations)
        method = self.methods[place]
        return f"in its level {place + 1} ({_names(self.stages[place])}), {method.unsolved(solution._replace(iterations=iterations), owner)}"


def _names(stage: ExactLower) -> str:
    return ", ".join(v.name() for v in stage.oracles.lower.variables)


def _worse(one: Array, other: Array) -> Array:
    """Of what two levels know of other solutions: what is worst."""
    found = jnp.maximum(one, other)  # ONE, or ALIKE
    for code in (UNKNOWN, SEVERAL, TWISTED):
        found = jnp.where((one == code) | (other == code), code, found)
    return found

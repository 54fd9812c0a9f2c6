"""Small lower levels on the host: active sets and multipliers by DAQP, cones by Clarabel, smooth maps by Newton's method over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from hierfl.compiler.host.cone_solution import EMPTY, ONE, SOLVED, UNBOUNDED, ConeSolution
from hierfl.compiler.host.standard_form import NoStandardFormError
from hierfl.compiler.lower_level.certificate import LowerSolution
from hierfl.compiler.lower_level.methods.method import ExactMethod, Question, Verdict
from hierfl.compiler.lower_level.on_host.host_problem import HostProblem
from hierfl.compiler.lower_level.on_host.place import Place, Places
from hierfl.compiler.lower_level.owner import Owner
from hierfl.compiler.lower_level.structure import LowerStructure
from hierfl.jaxtools.host_callback import Batch, call_on_host

SIZE_LIMIT = 120  # scalars of y, for whose matrices a solve takes about a millisecond
QUICK, TIED, SLOW = 5_000, 1_000, 300  # solutions in a second
OWNERS_LIMIT = 1000  # of a y: solved one after another
DATA_LIMIT = 200_000  # scalars that are averaged over


@dataclass(frozen=True, eq=False)
class ActiveSet(ExactMethod):
    """The method for small problems: no program to compile, the multipliers known, derivatives from what holds.

    ``bounds`` says whether it bounds the error of y, which takes as long as a solution.
    """

    bounds: bool = False

    name: ClassVar[str] = "active set"
    cost: ClassVar[str] = "a few quadratic programs on the host, for each owner of a y"
    tells_empty: ClassVar[bool] = True
    responds: ClassVar[bool] = True

    @classmethod
    def verdict(cls, structure: LowerStructure) -> Verdict:
        oracles = structure.oracles
        clients = oracles.static_data.clients
        if structure.size > SIZE_LIMIT:
            return Verdict(False, f"needs at most {SIZE_LIMIT} scalars of y; here {structure.size}")
        owners = structure.owners
        if owners > OWNERS_LIMIT:
            return Verdict(False, f"needs at most {OWNERS_LIMIT:,} owners of a y; here {owners:,}")
        held = sum(
            int(np.prod(column.shape))
            for t in clients.tables
            for s, column in t.values.items()
            if s in oracles.lower_samples
        )
        if held * structure.size > DATA_LIMIT and oracles.scope != "sample":
            return Verdict(
                False, f"needs at most {DATA_LIMIT:,} numbers to average over; here {held * structure.size:,}"
            )
        try:
            form = host_problem(structure).form
        except NoStandardFormError as reason:
            return Verdict(False, f"cannot reduce the lower level to rows and cones: {reason}")
        if not form.polyhedral and not structure.is_gradient:
            return Verdict(False, "treats maps that are no gradients over polyhedra only")
        return Verdict(
            True,
            f"{structure.size} scalars of y (at most {SIZE_LIMIT}) of {owners:,} owner{'s' if owners > 1 else ''} (at most "
            f"{OWNERS_LIMIT:,}): on the host, where nothing is compiled; lower=Exact(method=...) chooses otherwise",
        )

    @property
    def solutions_in_a_second(self) -> int:
        """Those of quadratic programs over rows are a fraction of a millisecond each, more where one of several is chosen."""
        if not (self.problem.affine and self.problem.form.polyhedral):
            return SLOW
        return QUICK if self.problem.selection is None else TIED

    @cached_property
    def problem(self) -> HostProblem:
        """The lower level as the host sees it."""
        return host_problem(self.structure)

    def answer(self, question: Question) -> LowerSolution:
        raise AssertionError("solved on the host, not from a question")

    def solve(
        self, x: Float[Array, " n"], owner: Owner, warm: Float[Array, " size"], tolerance: Array | float
    ) -> LowerSolution:
        """y(x) of one owner through a callback, to rounding whatever the tolerance.

        ``residual`` is the relative error of the optimality conditions, ``error_bound`` NaN unless the method has been asked for it.
        """
        size, mu = self.structure.size, self._modulus(owner, x)
        leaves = tuple(owner.own)

        def told_of(answers: Sequence[ConeSolution], dtype: Any) -> np.ndarray:
            rows = np.empty((len(answers), size + 3), dtype)
            for row, answer in zip(rows, answers):
                row[:size] = answer.u[:size]
            rows[:, size:] = [(answer.error, answer.status, answer.unique) for answer in answers]
            return rows

        def on_host(point: np.ndarray, index: np.ndarray, start: np.ndarray, *values: np.ndarray) -> np.ndarray:
            answer = self.problem.solve(_place(leaves, point, index, values), np.asarray(start, float))
            return told_of([answer], point.dtype)[0]

        def many(batch: Batch) -> np.ndarray:
            points, index, starts, *values = batch.arrays
            starts = _for_each(batch.count, starts)
            answers = self.problem.solve_each(_places(leaves, batch.count, points, index, values), starts)
            return told_of(answers, points.dtype)

        given = (owner.own[leaf] for leaf in leaves)
        told = call_on_host(on_host, (size + 3,), x.dtype, x, owner.host_key, warm, *given, many=many)
        y, residual, status = told[:size], told[size], told[size + 1]
        solved = status == SOLVED
        bound = self._bound(x, owner, mu) if self.bounds else jnp.full((), jnp.nan, x.dtype)
        unique = jnp.where((mu > 0) & solved, ONE, told[size + 2]).astype(int)  # whatever the host has seen
        return LowerSolution(y, residual, bound, mu, status.astype(int), solved, status == EMPTY, unique)

    def with_bounds(self) -> ActiveSet:
        return replace(self, bounds=True)

    def _bound(self, x: Float[Array, " n"], owner: Owner, mu: Array) -> Float[Array, ""]:
        """A bound on the error of one owner's y, from the solution that is kept."""
        leaves = tuple(owner.own)

        def on_host(point: np.ndarray, index: np.ndarray, mu: np.ndarray, *values: np.ndarray) -> np.ndarray:
            return np.asarray(self.problem.error_bound(_place(leaves, point, index, values), float(mu)), point.dtype)

        given = (owner.own[leaf] for leaf in leaves)
        return call_on_host(on_host, (), x.dtype, x, owner.host_key, mu, *given)

    def pull(
        self,
        x: Float[Array, " n"],
        owner: Owner,
        seed: Float[Array, " size"],
        ways: Float[Array, "k n"] | None = None,
    ) -> Float[Array, " n"]:
        """The gradient in x of seed'y(x) for one owner; NaN where there is none."""
        leaves = tuple(owner.own)

        def on_host(point: np.ndarray, index: np.ndarray, seed: np.ndarray, *values: np.ndarray) -> np.ndarray:
            place = _place(leaves, point, index, values)
            return self.problem.gradients.pull(place, np.asarray(seed, float)).astype(point.dtype)

        def many(batch: Batch) -> list[np.ndarray]:
            points, index, seeds, *values = batch.arrays
            asked = _places(leaves, batch.count, points, index, values)
            return self.problem.gradients.pull_each(asked, _for_each(batch.count, seeds))

        given = (owner.own[leaf] for leaf in leaves)
        return call_on_host(on_host, x.shape, x.dtype, x, owner.host_key, seed, *given, many=many)

    def unsolved(self, solution: LowerSolution, owner: int) -> str:
        kind = self.structure.level.kind
        what, convex, none = "objective", "convex", "Its infimum may not be attained"
        if kind == "equilibrium":
            what, convex, none = "mapping", "monotone", "It may have no solution"
        if int(solution.iterations[owner]) == UNBOUNDED:
            far = {"argmin": "is unbounded below", "argmax": "is unbounded above"}.get(kind, "pulls y to infinity")
            return f"its {what} {far} on Y(x). Add a strongly {convex} term or a bounded set."
        y, error = solution.y[owner], float(solution.residual[owner])
        missed = not np.isfinite(y).all()
        if missed and not self.problem.affine:
            return (
                f"its {what} has no value, or no slope, wherever Newton's method started. Write the constraints that keep y where the "
                f"{what} is defined."
            )
        if self.problem.affine:
            tried = (
                "no y was found"
                if missed
                else f"its optimality conditions hold with a relative error of {error:.1e} only"
            )
            add = f"add a strongly {convex} term or a bounded set, or write it in other units"
            return f"{tried}. {none}, or it is badly scaled: {add}."
        seems = "may have no solution" if kind == "equilibrium" else "does not seem to attain its infimum"
        return (
            f"Newton's method came to a y of size {float(np.abs(y).max(initial=0.0)):.1e} and was still to move by {error:.1e} of it. The "
            f"lower level {seems}, or is badly scaled; add a strongly {convex} term or a bounded set."
        )

    def _modulus(self, owner: Owner, x: Array) -> Array:
        return jax.lax.stop_gradient(self.structure.modulus(owner.multiply, x.dtype))


def _place(leaves: Sequence[int], point: np.ndarray, index: np.ndarray, values: Sequence[np.ndarray]) -> Place:
    """Where a call asks, with its owner's constants by leaf."""
    return Place(np.asarray(point, float), np.asarray(index), dict(zip(leaves, map(np.asarray, values))))


def _places(
    leaves: Sequence[int], count: int, points: np.ndarray, index: np.ndarray, values: Sequence[np.ndarray]
) -> Places:
    """Where the calls of a batch ask."""
    return Places.marked(_for_each(count, points), _for_each(count, index), dict(zip(leaves, values)))


def _for_each(count: int, array: np.ndarray) -> np.ndarray:
    """An array of an entry for each call, where it may have one for all; numbers as doubles."""
    kind = np.dtype(float) if array.dtype.kind == "f" else array.dtype
    if len(array) == count:
        return array.astype(kind, copy=False)
    whole = np.empty((count, *array.shape[1:]), kind)
    whole[:] = array
    return whole


def host_problem(structure: LowerStructure) -> HostProblem:
    """The lower level as the host sees it, made once for a problem."""
    oracles = structure.oracles
    problem: HostProblem = oracles.programs.keep("host problem", lambda: HostProblem.of(oracles, structure.level))
    return problem

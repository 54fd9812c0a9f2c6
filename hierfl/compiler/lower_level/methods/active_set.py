"""Small lower levels on the host: active sets and multipliers by DAQP, cones by Clarabel, smooth maps by Newton's method over them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jaxtyping import Float

from hierfl.compiler.data.tables import Population
from hierfl.compiler.host.cone_solution import EMPTY, ONE, SOLVED, UNBOUNDED, ConeSolution
from hierfl.compiler.host.standard_form import NoStandardFormError
from hierfl.compiler.lower_level.certificate import LowerSolution
from hierfl.compiler.lower_level.methods.method import ExactMethod, Question, Verdict
from hierfl.compiler.lower_level.on_host.host_problem import HostProblem
from hierfl.compiler.lower_level.on_host.place import Handed, for_each
from hierfl.compiler.lower_level.owner import Owner
from hierfl.compiler.lower_level.structure import LowerStructure
from hierfl.jaxtools.host_callback import Batch, call_on_host

SIZE_LIMIT = 120  # scalars of y, for whose matrices a solve takes about a millisecond
QUICK, TIED, SLOW = 5_000, 1_000, 300  # solutions in a second
OWNERS_LIMIT = 1000  # of a y: solved one after another
DATA_LIMIT = 200_000  # scalars that are averaged over
UPPER_LIMIT = 1_000_000  # of the upper level's at an owner, which tell whether it matters which of several y is taken


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
        held = _scalars(clients, oracles.lower_samples)
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
    def tells_kinks(self) -> bool:
        """Not over curved cones, at the tips of which it takes one of the pieces that meet."""
        return False

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

    @cached_property
    def asks_upper(self) -> bool:
        """Whether it is handed what the upper objective averages over: to choose by it, or to tell whether a choice would matter.

        The latter is left open where one y is certain, or where that is more than it should take along each time.
        """
        structure, oracles = self.structure, self.structure.oracles
        if self.problem.selection is not None:
            return True
        if structure.jacobian.mode == "constant" and structure.jacobian.modulus > 0:
            return False
        data = oracles.static_data
        held = _scalars(data.clients, oracles.upper_samples, whole=oracles.scope == "federation")
        return held + (0 if data.server is None else _scalars(data.server, oracles.server_samples)) <= UPPER_LIMIT

    def answer(self, question: Question) -> LowerSolution:
        raise AssertionError("solved on the host, not from a question")

    def solve(
        self, x: Float[Array, " n"], owner: Owner, warm: Float[Array, " size"], tolerance: Array | float
    ) -> LowerSolution:
        """y(x) of one owner through a callback, to rounding whatever the tolerance.

        ``residual`` is the relative error of the optimality conditions, ``error_bound`` NaN unless the method has been asked for it.
        """
        size, mu, handed = self.structure.size, self._modulus(owner, x), Handed(owner.held(self.asks_upper))

        def told_of(answers: Sequence[ConeSolution], dtype: Any) -> np.ndarray:
            rows = np.empty((len(answers), size + 3), dtype)
            for row, answer in zip(rows, answers):
                row[:size] = answer.u[:size]
            rows[:, size:] = [(answer.error, answer.status, answer.unique) for answer in answers]
            return rows

        def on_host(point: np.ndarray, start: np.ndarray, *held: np.ndarray) -> np.ndarray:
            answer = self.problem.solve(handed.place(point, held), np.asarray(start, float))
            return told_of([answer], point.dtype)[0]

        def many(batch: Batch) -> np.ndarray:
            points, starts, *held = batch.arrays
            answers = self.problem.solve_each(handed.places(batch.count, points, held), for_each(batch.count, starts))
            return told_of(answers, points.dtype)

        told = call_on_host(on_host, (size + 3,), x.dtype, x, warm, *handed.arrays, many=many)
        y, residual, status = told[:size], told[size], told[size + 1]
        solved = status == SOLVED
        bound = self._bound(x, owner, mu) if self.bounds else jnp.full((), jnp.nan, x.dtype)
        unique = jnp.where((mu > 0) & solved, ONE, told[size + 2]).astype(int)  # whatever the host has seen
        return LowerSolution(y, residual, bound, mu, status.astype(int), solved, status == EMPTY, unique)

    def with_bounds(self) -> ActiveSet:
        return replace(self, bounds=True)

    def _bound(self, x: Float[Array, " n"], owner: Owner, mu: Array) -> Float[Array, ""]:
        """A bound on the error of one owner's y, from the solution that is kept."""
        handed = Handed(owner.held(self.asks_upper))

        def on_host(point: np.ndarray, mu: np.ndarray, *held: np.ndarray) -> np.ndarray:
            return np.asarray(self.problem.error_bound(handed.place(point, held), float(mu)), point.dtype)

        return call_on_host(on_host, (), x.dtype, x, mu, *handed.arrays)

    def pull(
        self,
        x: Float[Array, " n"],
        owner: Owner,
        seed: Float[Array, " size"],
        ways: Float[Array, "k n"] | None = None,
    ) -> Float[Array, " n"]:
        """The gradient in x of seed'y(x) for one owner; NaN where there is none."""
        handed = Handed(owner.held(self.asks_upper))

        def on_host(point: np.ndarray, seed: np.ndarray, *held: np.ndarray) -> np.ndarray:
            pulled = self.problem.gradients.pull(handed.place(point, held), np.asarray(seed, float))
            return pulled.astype(point.dtype)

        def many(batch: Batch) -> list[np.ndarray]:
            points, seeds, *held = batch.arrays
            asked = handed.places(batch.count, points, held)
            return self.problem.gradients.pull_each(asked, for_each(batch.count, seeds))

        return call_on_host(on_host, x.shape, x.dtype, x, seed, *handed.arrays, many=many)

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


def _scalars(side: Population, samples: Collection[int], whole: bool = True) -> int:
    """How many numbers the rows of some samples are: those of all parties, or of the one that has most."""
    columns = [(t, column) for t in side.tables for sample, column in t.values.items() if sample in samples]
    return sum((t.size if whole else t.longest) * int(np.prod(column.shape[1:], dtype=int)) for t, column in columns)


def host_problem(structure: LowerStructure) -> HostProblem:
    """The lower level as the host sees it, made once for a problem."""
    oracles = structure.oracles
    problem: HostProblem = oracles.programs.keep("host problem", lambda: HostProblem.of(oracles, structure.level))
    return problem

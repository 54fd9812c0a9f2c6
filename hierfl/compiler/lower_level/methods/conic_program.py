"""Lower levels that only CVXPY can solve: nonsmooth objectives, sets without a closed-form projection.

Without data the problem is built once on hoisted parameters, so that CVXPY canonicalises it once where its rules
allow; with data every mean is written out over the owner's rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from types import SimpleNamespace
from typing import Any, ClassVar

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from cvxpy.reductions.solvers.conic_solvers.clarabel_conif import CLARABEL
from cvxpy.reductions.solvers.conic_solvers.conic_solver import ConicSolver
from cvxpy.settings import A, B, C, P
from jax import Array
from jaxtyping import Float

from hierfl.analysis.conic_solving import judged_here, status_of, tolerances
from hierfl.analysis.hoist import hoist, instantiate
from hierfl.compiler.data.storage import gathered
from hierfl.compiler.data.tables import Table
from hierfl.compiler.expressions.program import Program
from hierfl.compiler.lower_level.certificate import LowerSolution
from hierfl.compiler.lower_level.methods.active_set_polish import LinearQuadratic, Polished, polished
from hierfl.compiler.lower_level.methods.method import ExactMethod, Question, Verdict
from hierfl.compiler.lower_level.owner import Owner
from hierfl.compiler.lower_level.place import Handed, Place
from hierfl.compiler.lower_level.structure import LowerStructure
from hierfl.compiler.party_constraints import lower_constraints
from hierfl.errors import LowerLevelError, NotConvexError
from hierfl.jaxtools.host_callback import call_on_host
from hierfl.language.averages import averages_of
from hierfl.language.expectation import SampleAverage, total
from hierfl.language.function import UserAtom
from hierfl.language.sample import ClientParameter, Sample

ROW_LIMIT = 20_000
TIGHT = tolerances(1e-11)


class ConicProgram(ExactMethod):
    """The method for convex objectives that are not smooth, and for sets without an exact projection."""

    name: ClassVar[str] = "cvxpy"
    cost: ClassVar[str] = "a conic program on the host, for each owner of a y"
    on_host: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if any(map(_has_user_atom, self.structure.level.expressions)):
            raise NotConvexError(
                f"the lower level needs CVXPY ({self.reason}), which cannot see into a hf.Function in it."
            )

    @classmethod
    def verdict(cls, structure: LowerStructure) -> Verdict:
        if structure.level.kind == "equilibrium":
            return Verdict(False, "needs an objective; an equilibrium has none")
        return Verdict(True, structure.obstacle or "Y(x) has no exact projection")

    def answer(self, question: Question) -> LowerSolution:
        raise AssertionError("a conic program is solved on the host, not from a question")

    def solve(
        self, x: Float[Array, " n"], owner: Owner, warm: Float[Array, " size"], tolerance: Array | float
    ) -> LowerSolution:
        """y(x) of one owner through a callback; neither the start nor the tolerance is used.

        ``residual`` is that of the optimality conditions where these are a linear or quadratic program's, which is solved to
        rounding; elsewhere it is unknown (NaN). The error bound always is. An infeasible or unbounded problem gives NaN and
        ``converged=False``.
        """
        size, mu = self.structure.size, self.structure.modulus(owner.multiply, x.dtype)
        self._require_few_rows()
        handed = Handed(owner.held(False))

        def on_host(point: np.ndarray, *held: np.ndarray) -> np.ndarray:
            return self._solve(handed.place(point, held)).astype(point.dtype)

        answer = call_on_host(on_host, (size + 1,), x.dtype, x, *handed.arrays)
        y, residual = answer[:size], answer[size]
        solved = jnp.isfinite(y).all()
        return LowerSolution(y, residual, jnp.asarray(jnp.inf, x.dtype), mu, jnp.zeros((), int), solved)

    def advice(self) -> str:
        smooth = (
            "a smooth objective (cp.huber for abs, cp.logistic for hinge losses) over a set with an exact projection needs no "
            "CVXPY"
        )
        return "; ".join(filter(None, [smooth, super().advice()]))

    @cached_property
    def _has_averages(self) -> bool:
        """Whether the objective is a mean, over data or over clients with constants of their own."""
        expression, scope = self.structure.level.expression, self.structure.level.scope
        of_clients = scope == "federation" and any(isinstance(p, ClientParameter) for p in expression.parameters())
        return of_clients or any(True for _ in averages_of(expression))

    def _require_few_rows(self) -> None:
        """Require as few rows as CVXPY can treat.

        Raises
        ------
        LowerLevelError
            Naming the client with most.
        """
        oracles = self.structure.oracles
        for table in oracles.static_data.clients.tables if self._has_averages else ():
            if table.longest > ROW_LIMIT and set(table.samples) & set(oracles.lower_samples):
                raise LowerLevelError(
                    f"the lower level of {oracles.declaration.client_called(int(np.argmax(table.counts)))} needs CVXPY on {table.longest} rows "
                    f"(limit {ROW_LIMIT}): use a smooth objective, or fewer samples."
                )

    def _solve(self, place: Place) -> np.ndarray:
        """y, and the residual behind it."""
        with judged_here():
            problem, twins = self._with_data(place) if self._has_averages else self._parametrised(place)
            status, residual = _solve_tightly(problem)
        values = [twin.value for twin in twins]
        if status not in (cp.OPTIMAL, cp.OPTIMAL_INACCURATE) or any(value is None for value in values):
            return np.full(self.structure.size + 1, np.nan)
        return np.concatenate([*(np.ravel(value) for value in values), [residual]])

    @cached_property
    def _template(self) -> tuple[cp.Problem, list[cp.Parameter], Program, list[cp.Variable]]:
        level, oracles = self.structure.level, self.structure.oracles
        constraints = lower_constraints(oracles.declaration)
        known = oracles.declaration.known_bounds
        hoisted = hoist([level.sign * level.expression, *constraints], level.variables, known)
        objective, *rest = hoisted.expressions
        parameters = list(hoisted.parameters)
        program = Program([hoisted.parameters[p] for p in parameters])
        return (
            cp.Problem(cp.Minimize(objective), rest),
            parameters,
            program,
            [hoisted.twins[v] for v in level.variables],
        )

    def _parametrised(self, place: Place) -> tuple[cp.Problem, list[cp.Variable]]:
        problem, parameters, program, twins = self._template
        with jax.enable_x64(True):
            values = program(self.structure.oracles.environment(jnp.asarray(place.x), None, place.held.own))
        for parameter, value in zip(parameters, values):
            parameter.save_value(np.asarray(value, dtype=float))
        return problem, twins

    def _with_data(self, place: Place) -> tuple[cp.Problem, list[cp.Variable]]:
        level, oracles = self.structure.level, self.structure.oracles
        constraints = lower_constraints(oracles.declaration)
        hoisted_level = hoist([level.sign * level.expression, *constraints], level.variables)
        twins = [hoisted_level.twins[v] for v in level.variables]
        rename = {v.id: twin for v, twin in zip(level.variables, twins)}
        assert place.held.data is not None  # what is averaged over is handed over
        clients, own = place.held.data.clients, place.held.own
        decisions = {leaf: np.asarray(value) for leaf, value in oracles.upper.split(place.x).items()}
        terms: list[Any] = []
        rest: list[Any] = []
        for party in range(clients.size):
            private = {leaf: values[party] for leaf, values in clients.parameters.items()}
            known = {**own, **private, **decisions}
            leaves = {
                leaf: known[leaf.id]
                for part in [level.expression, *constraints]
                for leaf in [*part.variables(), *part.parameters()]
                if leaf.id in known
            }
            expanded = self._expand(level.sign * level.expression, party, clients.tables)
            weight = float(clients.weights[party])
            terms.append(weight * _rename(instantiate([expanded], leaves)[0], rename))
            if not rest:
                rest = [_rename(c, rename) for c in instantiate(constraints, leaves)]
        return cp.Problem(cp.Minimize(cp.sum(terms) if len(terms) > 1 else terms[0]), rest), twins

    def _expand(self, expression: Any, party: int, tables: Sequence[Table]) -> Any:
        """The expression with every mean written out over the party's rows."""
        if isinstance(expression, SampleAverage):
            return self._written_out(expression, party, tables)
        if not any(averages_of(expression)):
            return expression
        return expression.copy([self._expand(argument, party, tables) for argument in expression.args])

    @staticmethod
    def _written_out(average: SampleAverage, party: int, tables: Sequence[Table]) -> Any:
        samples = [p for p in average.parameters() if isinstance(p, Sample)]
        table = next(table for table in tables if samples[0].id in table.values)
        start, count = int(table.offsets[party]), int(table.counts[party])
        rows = [
            instantiate([average.per_sample], {s: gathered(table.values[s.id], row) for s in samples})[0]
            for row in range(start, start + count)
        ]
        weights = np.full(count, 1.0 / count) if table.weights is None else table.weights[start : start + count]
        weights = np.ones(count) if isinstance(average, total) else weights
        return weights @ cp.hstack(rows) if average.shape == () else sum(w * row for w, row in zip(weights, rows))


def _has_user_atom(expression: Any) -> bool:
    return isinstance(expression, UserAtom) or any(map(_has_user_atom, getattr(expression, "args", ())))


def _rename(part: Any, twins: dict[int, cp.Variable]) -> Any:
    if isinstance(part, cp.Variable):
        return twins.get(part.id, part)
    if not getattr(part, "args", None):
        return part
    return part.copy([_rename(argument, twins) for argument in part.args])


def _solve_tightly(problem: cp.Problem) -> tuple[str, float]:
    """Solve in place: how CVXPY ended, and the residual of the optimality conditions, NaN where it is unknown."""
    data, chain, inverse = problem.get_problem_data(cp.CLARABEL, solver_opts=TIGHT)
    answer = chain.solve_via_data(problem, data, warm_start=True, solver_opts=TIGHT)
    sharp = _polished(data, answer)
    if sharp is None:
        try:
            problem.unpack_results(answer, chain, inverse)
        except cp.SolverError:
            return status_of(problem), np.nan
        return str(problem.status), np.nan
    objective = 0.5 * sharp.x @ (data[P] @ sharp.x) if P in data else 0.0
    kept = {name: getattr(answer, name) for name in ("status", "solve_time", "iterations")}
    kept |= {"x": sharp.x, "z": sharp.z, "obj_val": objective + data[C] @ sharp.x}
    problem.unpack_results(SimpleNamespace(**kept), chain, inverse)
    return str(problem.status), sharp.residual


def _polished(data: dict[str, Any], answer: Any) -> Polished | None:
    """A solved linear or quadratic program to rounding; None for other cones."""
    dims, size = data[ConicSolver.DIMS], data[C].size
    if str(answer.status) != CLARABEL.SOLVED or dims.zero + dims.nonneg != data[B].size:
        return None
    quadratic = sp.csc_array(data[P]) if P in data else sp.csc_array((size, size))
    program = LinearQuadratic(quadratic, data[C], sp.csc_array(data[A]), data[B], dims.zero)
    return polished(program, np.asarray(answer.x), np.asarray(answer.z))

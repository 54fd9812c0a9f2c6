"""The x at which a convex f of x alone is least, by one convex program: zeros of a lasso, margins and quantiles are exact there.

Its multipliers z prove that to rounding. For every u' of the program, with rows A u + b in a cone K and z in its dual, convexity gives
cost(u') >= cost(u) + (slope(u) - A'z)'(u' - u) - z'(A u + b), and the two last terms are nothing but what rounding leaves of its conditions,
where u' is about as far as u is. It may be at infinity instead: then what is left of a slope is all there is of it, and nothing is proved.
"""

from __future__ import annotations

from typing import NamedTuple

import cvxpy as cp
import jax
import numpy as np
from jaxtyping import Float

from hierfl.analysis.enclosure import rules_hold
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.oracles import constraints_of_all_clients
from hierfl.compiler.parametric.level_form import LevelForm, RowGroup, distributed
from hierfl.compiler.programs.cones import NoStandardFormError
from hierfl.compiler.programs.convex_program import ConvexProgram
from hierfl.compiler.programs.distance_bound import distance_bound
from hierfl.compiler.programs.second_looks import carried_on
from hierfl.compiler.programs.small_and_sparse import is_dense, on_one_thread
from hierfl.compiler.programs.solve_program import solve_program
from hierfl.errors import NotConvexError
from hierfl.jaxtools.precision import double_precision
from hierfl.language.aggregates import opened_tails

FAINT, ROUNDING = 1e-12, 1e-15  # of the largest entry, below which one is 0 if the conditions hold as well; what rounding leaves, of 1 and of what it leaves it of
BALANCED = 1e-8  # of what adds up to a slope, that is left of it at an optimum; where f is least at infinity all of it is
SCALARS, WORK = 2e7, 1e10  # of data, and entries of x times that, up to which a program of them is made, and
ENTRIES, OF_P = 2_500_000, 0.1  # of its A, P's counted by so much, up to which it is solved within some seconds


class ConvexOptimum(NamedTuple):
    """Where f is least, and a bound of it, which is f there but for rounding, or minus infinity; oriented for minimisation."""

    x: Float[np.ndarray, " n"]
    bound: float
    program: ConvexProgram
    u: Float[np.ndarray, " width"]
    z: Float[np.ndarray, " rows"]

    def away(self, x: Float[np.ndarray, " n"], modulus: float) -> float:
        """How far x is from where f, with that modulus of strong convexity, is least, at most."""
        return float(np.linalg.norm(x - self.x)) + distance_bound(self.program, self.u, self.z, modulus)


def convex_optimum(problem: CompiledProblem, work: float = WORK) -> ConvexOptimum | None:
    """The optimum of a problem of x alone; None where f and X are no such program, or one of more ``work`` that was not solved yet."""
    declaration, sides = problem.declaration, (problem.static_data.clients, problem.static_data.server)
    scalars = sum(int(np.prod(values.shape)) for side in sides if side is not None for table in side.tables for values in table.values.values())
    if problem.lower.size or problem.elsewhere or problem.upper.whole.any() or problem.coupled.conditions:
        return None
    if not all(term.is_convex() if problem.sign > 0 else term.is_concave() for term in declaration.objective.terms):
        return None
    if not all(rules_hold(term, declaration.known_bounds) for term in declaration.objective.terms):
        return None
    key = "convex optimum", problem.parameter_values
    large = scalars > SCALARS or scalars * problem.upper.size > work
    return problem.programs.get(key) if large else problem.programs.keep(key, lambda: _solved(problem))


@double_precision
@on_one_thread
def _solved(problem: CompiledProblem) -> ConvexOptimum | None:
    declaration, data, sides = problem.declaration, problem.data(), (problem.static_data.clients, problem.static_data.server)
    costs, hidden = [], []
    for term, side, own in zip((declaration.objective.clients, declaration.objective.server), sides, (declaration.own_place, None)):
        cost, ends = opened_tails(cp.Constant(0.0) if term is None else term, own)
        costs.append((sum(distributed(cost, {v.id for v in (*problem.upper.variables, *ends)})), problem.sign, side))
        hidden += ends
    constraints = constraints_of_all_clients(declaration)
    try:
        form = LevelForm.of(costs, constraints, problem.upper.variables, True, declaration.known_bounds, hidden=hidden)
    except (NoStandardFormError, NotConvexError):
        return None
    if form.stairs:
        return None

    def gather(group: RowGroup) -> tuple[dict[int, jax.Array], jax.Array]:
        return problem.laid_out().server_party.gathered(group) if group.server else data.clients.gathered(group)

    program = form.program([np.asarray(part, float) for part in form.thetas(data.clients.party(0).environment, gather)])
    of_p, of_a = (np.count_nonzero(part) if is_dense(part) else part.nnz for part in (program.p, program.a))
    if of_a + OF_P * of_p > ENTRIES:
        return None
    found = carried_on(program, solve_program(program))
    if not found.solved:
        return None
    u = np.where(np.abs(found.u) <= FAINT * np.abs(found.u).max(initial=0.0), 0.0, found.u)
    u = u if program.judged(u, found.z).error <= max(found.error, ROUNDING) else found.u
    x, force, fit = u[: problem.upper.size], np.abs(program.force(u, found.z)), found.z * program.slack(u)
    evaluation = problem.exact.at(x)
    value, parts = float(evaluation.value), float(np.asarray(data.clients.weights) @ np.abs(evaluation.clients)) + abs(float(evaluation.server))
    held = float(np.abs(fit[program.equal | program.loose]).sum()) + sum(abs(float(fit[place].sum())) for _, place in program.curved_cones)
    left = held + float(force @ (1.0 + np.abs(u))) + ROUNDING * (1.0 + abs(value) + parts)  # terms of clients may cancel each other
    sizes = program.force_sizes(u, found.z)
    balanced = force <= np.maximum(BALANCED * sizes, np.finfo(float).eps * sizes.max(initial=0.0))
    return ConvexOptimum(x, value - left if balanced.all() else -np.inf, program, u, found.z)

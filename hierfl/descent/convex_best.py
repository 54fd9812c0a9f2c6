"""The x at which a convex f of x alone is least, by one convex program: zeros of a lasso, margins and quantiles are exact there."""

from __future__ import annotations

import cvxpy as cp
import jax
import numpy as np
from jaxtyping import Float

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.oracles import constraints_of_all_clients
from hierfl.compiler.parametric.level_form import LevelForm, RowGroup
from hierfl.compiler.programs.cones import NoStandardFormError
from hierfl.compiler.programs.small_and_sparse import on_one_thread
from hierfl.compiler.programs.solve_program import solve_program
from hierfl.jaxtools.precision import double_precision

FAINT, ROUNDING = 1e-12, 1e-15  # of the largest entry, below which one is 0 if the conditions hold as well; an error of theirs that is none
WORK = 1e8  # entries of x times scalars of data, up to which a program of them is quick, and
KINKED = 500_000  # entries of x times bounds of what has kinks


@double_precision
@on_one_thread
def convex_best(problem: CompiledProblem) -> Float[np.ndarray, " n"] | None:
    """Such an x; None where f is no such program, or a large one."""
    declaration, data, sides = problem.declaration, problem.data(), (problem.static_data.clients, problem.static_data.server)
    tables = [table for side in sides if side is not None for table in side.tables]
    scalars = sum(int(np.prod(values.shape)) for table in tables for values in table.values.values())
    if problem.lower.size or problem.elsewhere or scalars * problem.upper.size > WORK:
        return None
    terms = (declaration.objective.clients, declaration.objective.server)
    costs = [(cp.Constant(0.0) if term is None else term, problem.sign, side) for term, side in zip(terms, sides)]
    try:
        form = LevelForm.of(costs, constraints_of_all_clients(declaration), problem.upper.variables, True, declaration.known_bounds)
    except NoStandardFormError:
        return None
    if form.stairs:
        return None

    def gather(group: RowGroup) -> tuple[dict[int, jax.Array], jax.Array]:
        return problem.laid_out().server_party.gathered(group) if group.server else data.clients.gathered(group)

    program = form.program([np.asarray(part, float) for part in form.thetas(data.clients.party(0).environment, gather)])
    if (program.width - problem.upper.size) * problem.upper.size > KINKED:
        return None
    found = solve_program(program)
    if not found.solved:
        return None
    u = np.where(np.abs(found.u) <= FAINT * np.abs(found.u).max(initial=0.0), 0.0, found.u)
    exact = program.judged(u, found.z).error <= max(found.error, ROUNDING)
    return (u if exact else found.u)[: problem.upper.size]

"""The x at which those below do what is best above, where x are prices to them: a start beyond all local minima.

What is best above, were y its own to choose, is one convex program in (x, y), and no f is lower. Where x enters the lower level by the
prices of y alone, affinely, the x that make such a y a solution below are the rows of another convex program, in (x, multipliers): its
least gap is 0 where there are any. Tolls on all roads are the classic case (Pigou, 1920; Hearn and Ramana, 1998): whatever tolls keep
empty is seen by no gradient, and the search ends at the best of the routes that are in use.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp

from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.lower_level.methods.parametric_program import ParametricProgram
from hierfl.compiler.oracles import constraints_of_all_clients, lower_constraints
from hierfl.compiler.parametric.level_form import LevelForm
from hierfl.compiler.parametric.template import LevelTemplate
from hierfl.compiler.programs.backends import Clarabel
from hierfl.compiler.programs.cones import ZERO, Cone, NoStandardFormError, blocks
from hierfl.compiler.programs.convex_program import SOLVED, ConvexProgram
from hierfl.compiler.programs.small_and_sparse import on_one_thread, vstack
from hierfl.compiler.programs.solve_program import solve_program
from hierfl.jaxtools.precision import double_precision

LARGEST = 20_000_000  # numbers of the slopes of theta, as a full matrix
APART = 1e-6  # of the cost of y's forces, up to which a gap is none


@double_precision
@on_one_thread
def shared_best(problem: CompiledProblem, x: np.ndarray) -> np.ndarray | None:
    """Such an x, from any other; None where there is none, or the problem is of another kind."""
    method = problem.exact.method
    if problem.scope != "federation" or not isinstance(method, ParametricProgram):
        return None
    if method.solver.form.groups or method.solver.form.asks_for_map:
        return None
    form, declaration, data = method.solver.form, problem.declaration, problem.data()
    if form.base.count * x.size > LARGEST or (prices := _prices(method, form.base, problem, x)) is None:
        return None
    program, q = prices
    terms = [t for t in (declaration.objective.clients, declaration.objective.server) if t is not None]
    parties = (problem.static_data.clients, problem.static_data.server)
    constraints = [*constraints_of_all_clients(declaration), *lower_constraints(declaration)]
    try:
        on_x = LevelTemplate.of(None, constraints_of_all_clients(declaration), problem.upper.variables)
        variables = [*problem.upper.variables, *problem.lower.variables]
        costs = [(term, problem.sign, party) for term, party in zip(terms, parties)]
        both = LevelForm.of(costs, constraints, variables, True, declaration.known_bounds)
    except NoStandardFormError:
        return None
    if both.groups:
        return None
    environment = data.clients.public
    best = solve_program(both.program(both.thetas(environment)))
    if not best.solved:
        return None
    y = best.u[x.size : x.size + form.size]
    held = sp.csr_array((np.ones(form.size), (np.arange(form.size), np.arange(form.size))), (form.size, program.width))
    rows, cones = vstack([program.a, held]), [*program.cones, Cone(ZERO, form.size)]
    below = solve_program(replace(program, a=rows, b=np.append(program.b, -y), cones=cones))
    if not below.solved:
        return None
    of_x = LevelForm(on_x, ())
    return _least_gap(program, below.u, q, x, of_x.program(of_x.thetas(environment)))


def _prices(
    method: ParametricProgram, base: LevelTemplate, problem: CompiledProblem, x: np.ndarray
) -> tuple[ConvexProgram, sp.csr_array] | None:
    """The level's program at x, and how its prices q move with x; None where x moves anything else, or q as no affine function."""
    data = problem.data()

    def theta(x: jax.Array) -> jax.Array:
        owner = problem.exact.federation_owner(x, data.clients)
        return method.thetas(x, owner, jnp.zeros(base.size))[0][0]

    slopes, elsewhere = (np.asarray(jax.jacfwd(theta)(jnp.asarray(at))) for at in (x, x + 1.0 + np.abs(x)))
    moving = sp.csr_array(slopes)
    others = [base.quadratic, base.matrix, base.offset]
    others += [entries for part in base.smooth for entries in (part.form, part.shift, part.weight)]
    alike = np.allclose(slopes, elsewhere, rtol=1e-12, atol=0.0)
    if not alike or any(abs(entries.linear @ moving).sum() for entries in others) or not moving.nnz:
        return None
    moves = sp.coo_array(base.linear.linear @ moving)
    q = sp.csr_array((moves.data, (base.linear.rows[moves.coords[0]], moves.coords[1])), (base.width, x.size))
    return LevelForm(base, ()).program([np.asarray(theta(jnp.asarray(x)), float)]), q


def _least_gap(
    program: ConvexProgram, u: np.ndarray, q: sp.csr_array, x: np.ndarray, on_x: ConvexProgram
) -> np.ndarray | None:
    """The x for which u is a solution, in the middle of all; None where there is none."""
    slack = np.where(program.equal, 0.0, program.slack(u))
    slope = program.slope(u) - np.asarray(q @ x)
    width, count = on_x.width, len(slack)
    size = max(float(np.abs(program.slope(u)).max(initial=0.0)), 1e-300)
    at_x = sp.csr_array(sp.hstack([q, sp.csr_array((program.width, width - x.size)), -sp.csr_array(program.a.T)]))
    signed = [(cone, rows) for cone, rows in blocks(program.cones) if cone.kind != ZERO]
    z = sp.csr_array(sp.hstack([sp.csr_array((count, width)), sp.eye_array(count)]))
    inside = sp.csr_array(sp.hstack([sp.csr_array(on_x.a), sp.csr_array((len(on_x.b), count))]))
    rows = [at_x, inside, *(z[part] for _, part in signed)]
    cost = np.concatenate([np.zeros(width), slack])
    flat = sp.csr_array((width + count, width + count))
    b = np.concatenate([slope, on_x.b, np.zeros(sum(cone.size for cone, _ in signed))])
    cones = [Cone(ZERO, program.width), *on_x.cones, *(cone for cone, _ in signed)]
    found = Clarabel().solve(ConvexProgram(flat, cost, sp.csr_array(sp.vstack(rows)), b, cones, width + count, flat))
    if found.status != SOLVED or float(cost @ found.u) > APART * size * (1.0 + float(np.abs(u).sum())):
        return None
    return found.u[: x.size]

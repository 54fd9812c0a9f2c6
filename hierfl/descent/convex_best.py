"""Where f may be least by a convex program, beyond all local minima.

The x at which a convex f of x alone is least: zeros of a lasso, margins and quantiles are exact there. So is a stage with recourse, where y costs above
what it costs below: f is the least over y as well, convex where costs and constraints are in (x, y). Its multipliers z prove that to rounding. For every u' of the program, with rows A u + b in a cone K and z in its dual, convexity gives
cost(u') >= cost(u) + (slope(u) - A'z)'(u' - u) - z'(A u + b), and the two last terms are nothing but what rounding leaves of its conditions,
where u' is about as far as u is. It may be at infinity instead: then what is left of a slope is all there is of it, and nothing is proved.

The x at which those below do what is best above, where x are prices to them. What is best above, were y its own to choose, is one convex program
in (x, y), and no f is lower. Where x enters the lower level by the prices of y alone, affinely, the x that make such a y a solution below are the
rows of another convex program, in (x, multipliers): its least gap is 0 where there are any. Tolls on all roads are the classic case (Pigou, 1920;
Hearn and Ramana, 1998): whatever tolls keep empty is seen by no gradient, and the search ends at the best of the routes that are in use.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import cvxpy as cp
import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse as sp
from cvxpy.atoms.affine.add_expr import AddExpression
from cvxpy.atoms.affine.binary_operators import DivExpression, MulExpression, multiply
from cvxpy.atoms.affine.unary_operators import NegExpression
from jaxtyping import Float

from hierfl.analysis.enclosure import rules_hold
from hierfl.atoms.algebra import depends
from hierfl.compiler.compiled_problem import CompiledProblem
from hierfl.compiler.content_marks import content_mark
from hierfl.compiler.lower_level.methods.parametric_program import ParametricProgram
from hierfl.compiler.oracles import constraints_of_all_clients, lower_constraints
from hierfl.compiler.parametric.level_form import LevelForm, RowGroup, distributed
from hierfl.compiler.parametric.template import LevelTemplate
from hierfl.compiler.programs.backends import Clarabel
from hierfl.compiler.programs.cones import ZERO, Cone, NoStandardFormError, blocks
from hierfl.compiler.programs.convex_program import SOLVED, ConvexProgram
from hierfl.compiler.programs.distance_bound import distance_bound
from hierfl.compiler.programs.second_looks import carried_on
from hierfl.compiler.programs.small_and_sparse import is_dense, on_one_thread, vstack
from hierfl.compiler.programs.solve_program import solve_program
from hierfl.errors import EmptyLowerSetError, LowerLevelError, NotConvexError
from hierfl.jaxtools.precision import double_precision
from hierfl.language.aggregates import opened_tails, tails_of
from hierfl.language.expectation import E
from hierfl.language.levels import ArgMin
from hierfl.language.sample import Sample

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
    """The optimum of a problem of x alone, or with recourse; None where f and X are no such program, or one of more ``work`` that was not solved yet."""
    declaration, sides = problem.declaration, (problem.static_data.clients, problem.static_data.server)
    scalars = sum(int(np.prod(values.shape)) for side in sides if side is not None for table in side.tables for values in table.values.values())
    if problem.elsewhere or problem.upper.whole.any() or problem.coupled.conditions:
        return None
    recourse = problem.programs.keep("recourse", lambda: _recourse(problem))
    if recourse is None:
        return None
    if not all(term.is_convex() if problem.sign > 0 else term.is_concave() for term in declaration.objective.terms):
        return None
    sides_below = [side for constraint in lower_constraints(declaration) for side in constraint.args]
    if not all(rules_hold(part, declaration.known_bounds) for part in [*declaration.objective.terms, *sides_below]):
        return None
    key = "convex optimum", problem.parameter_values
    large = scalars > SCALARS or scalars * problem.upper.size > work
    return problem.programs.get(key) if large else problem.programs.keep(key, lambda: _solved(problem, recourse))


@double_precision
@on_one_thread
def _solved(problem: CompiledProblem, recourse: Recourse) -> ConvexOptimum | None:
    declaration, data, sides = problem.declaration, problem.data(), (problem.static_data.clients, problem.static_data.server)
    variables, constraints = problem.upper.variables, constraints_of_all_clients(declaration)
    if recourse.shared:
        variables = (*variables, *problem.lower.variables)
        constraints = [*constraints, *lower_constraints(declaration)]
    costs, hidden = [], []
    for term, side, own in zip((declaration.objective.clients, declaration.objective.server), sides, (declaration.own_place, None)):
        cost, ends = opened_tails(cp.Constant(0.0) if term is None else term, own)
        if not recourse.shared:  # what y is in has rows of its own
            own_y = {y.id for y in problem.lower.variables}
            others = [(factor * part, within) for factor, part, within in _parts(cost, 1.0) if not depends(part, own_y)]
            cost = sum((E(part) if within and any(isinstance(p, Sample) for p in part.parameters()) else part for part, within in others), cp.Constant(0.0))
        costs.append((sum(distributed(cost, {v.id for v in (*variables, *ends)})), problem.sign, side))
        hidden += ends
    try:
        form = LevelForm.of(costs, constraints, variables, True, declaration.known_bounds, hidden=hidden)
        if not recourse.shared:
            form = replace(form, groups=(*form.groups, recourse.group(problem)))
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
    try:
        evaluation = problem.exact.at(x)
    except (EmptyLowerSetError, LowerLevelError):  # at the edge of where y exists, beyond it by rounding
        return None
    value, parts = float(evaluation.value), float(np.asarray(data.clients.weights) @ np.abs(evaluation.clients)) + abs(float(evaluation.server))
    held = float(np.abs(fit[program.equal | program.loose]).sum()) + sum(abs(float(fit[place].sum())) for _, place in program.curved_cones)
    left = held + float(force @ (1.0 + np.abs(u))) + ROUNDING * (1.0 + abs(value) + parts)  # terms of clients may cancel each other
    sizes = program.force_sizes(u, found.z)
    balanced = force <= np.maximum(BALANCED * sizes, np.finfo(float).eps * sizes.max(initial=0.0))
    return ConvexOptimum(x, value - left if balanced.all() else -np.inf, program, u, found.z)


class Recourse(NamedTuple):
    """What y costs above, which is a multiple of what it costs below, as each row of ``table`` (None: each client) has it.

    Where y is ``shared`` it is one for all.
    """

    cost: Any
    table: int | None
    shared: bool

    def group(self, problem: CompiledProblem) -> RowGroup:
        """Rows beside x, each with a y of its own."""
        both = (*problem.upper.variables, *problem.lower.variables)
        constraints, known = lower_constraints(problem.declaration), problem.declaration.known_bounds
        return RowGroup(replace(LevelTemplate.of(self.cost, constraints, both, known), size=problem.upper.size), self.table, False)


def _recourse(problem: CompiledProblem) -> Recourse | None:
    """What y costs above, where that is what it costs below; None where it is not. Nothing, where there is no y."""
    if not problem.lower.size:
        return Recourse(None, None, True)
    declaration, clients, scope = problem.declaration, problem.static_data.clients, problem.scope
    level, objective = declaration.lower_level, declaration.objective
    if not isinstance(level, ArgMin) or level.prices or objective.clients is None or not np.asarray(clients.weights).all():
        return None
    if tails_of(objective.clients) and declaration.own_place is None:  # each client's tail has an end of its own, which is not told there
        return None
    ids, leaves = {y.id for y in level.variables}, dict[int, int]()
    above = [own for own in _parts(objective.clients, problem.sign) if depends(own[1], ids)]
    below = [own for own in _parts(level.expression, level.sign, scope == "sample") if depends(own[1], ids)]
    shares: list[dict[tuple[str, bool], float]] = [{}, {}]
    for own, found in zip((above, below), shares):
        for factor, part, within in own:
            key = content_mark(part, leaves), within
            found[key] = found.get(key, 0.0) + factor
    if not above or shares[0].keys() != shares[1].keys() or (objective.server is not None and depends(objective.server, ids)):
        return None
    ratios = np.array([shares[0][key] / share if share else 0.0 for key, share in shares[1].items()])
    if not ratios.min() > 0 or np.ptp(ratios) > ROUNDING * ratios.max():
        return None
    if scope != "federation" and any(within != (scope == "sample") for *_, within in above):  # a client's rows share a y
        return None
    table = problem.row_table(clients) if scope == "sample" else None
    if table is not None and clients.tables[table].has_nodes:
        return None
    return Recourse(sum((factor * part for factor, part, _ in above), cp.Constant(0.0)), table, scope == "federation")


def _parts(expression: Any, factor: float, within: bool = False) -> Iterator[tuple[float, Any, bool]]:
    """(factor, addend, whether it is averaged over rows) of an objective times a factor."""
    if isinstance(expression, AddExpression):
        yield from (part for argument in expression.args for part in _parts(argument, factor, within))
    elif isinstance(expression, NegExpression):
        yield from _parts(expression.args[0], -factor, within)
    elif isinstance(expression, E) and not within:
        yield from _parts(expression.per_sample, factor, True)
    elif isinstance(expression, MulExpression | multiply | DivExpression) and (scaled := _scaled(expression)) is not None:
        yield from _parts(scaled[1], factor * scaled[0], within)
    else:
        yield factor, expression, within


def _scaled(product: Any) -> tuple[float, Any] | None:
    """(number, the other) of a scalar product or quotient by a number; None of others."""
    first, second = product.args
    if isinstance(second, cp.Constant) and second.size == 1 and first.size == 1:
        number = float(np.ravel(second.value)[0])
        return (1.0 / number if isinstance(product, DivExpression) else number), first
    if isinstance(first, cp.Constant) and first.size == second.size == 1 and not isinstance(product, DivExpression):
        return float(np.ravel(first.value)[0]), second
    return None


# --- prices at which those below do what is best above ---------------------------------------------------------------------

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

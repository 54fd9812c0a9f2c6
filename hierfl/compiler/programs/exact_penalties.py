"""Prices so much larger than all else that rounding beside them hides it, as those of penalties e^x for large x.

A penalty whose bound has come to a corner there is exact: with any larger price the solution is the same (Han and Mangasarian, 1979).
So the program with less of that price is solved, beside which all else is seen, and its multipliers tell whether that was enough.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import scipy.sparse as sp
from scipy.optimize import linprog

from hierfl.compiler.programs.cones import middles
from hierfl.compiler.programs.convex_program import FAILED, ConvexProgram, ProgramSolution
from hierfl.compiler.programs.small_and_sparse import row_norms

LARGE, LESS = 1e7, 1e4  # times all else, from which a price hides it, and that is left of such a price
UNSEEN = 1e-4  # of what is hidden, and of the objective, from which there is no answer
AT_CORNER = 1e-11  # of a row's size
ROUNDING = 1e-15  # of what adds up in a sum

Solve = Callable[[ConvexProgram], ProgramSolution]


def seen_beside_penalties(program: ConvexProgram, answer: ProgramSolution, solve: Solve) -> tuple[ConvexProgram, ProgramSolution]:
    """(a program with the same solutions, an answer to it in which nothing is hidden); else the program, and no answer if much of it is."""
    sizes = program.slope_sizes(np.where(np.isfinite(answer.u), answer.u, 0.0))
    most = float(sizes.max(initial=0.0))
    rest = float(sizes[sizes < most / LARGE].max(initial=0.0))
    if rest == 0.0:
        return program, answer
    bounds = (np.arange(program.width) >= program.size) & (row_norms(program.p.T) == 0)
    large = bounds & (program.q > LESS * rest)
    if large.any() and program.q[large].max() == most:
        less = replace(program, q=np.where(large, LESS * rest, program.q), free=program.free | large)
        beside, found = seen_beside_penalties(less, solve(less), solve)
        if found.solved and _are_exact(beside, found, program.q - less.q):
            return beside, found
    if answer.solved and (hidden := _hidden(program, answer, rest)) > UNSEEN:
        answer = replace(answer, error=hidden, status=FAILED)
    return program, answer


def _hidden(program: ConvexProgram, answer: ProgramSolution, rest: float) -> float:
    """By what the conditions are missed, of all that large numbers hide, and of the objective that is missed so, beside what adds up in it."""
    u, of_rest = answer.u, program.error(answer.u, answer.z, rest)
    smooth = 0.0 if program.smooth is None else abs(program.smooth.value(u))
    curved = abs(u @ (program.p @ u)) - ROUNDING * float(np.abs(u) @ (abs(program.p) @ np.abs(u)))
    cost = float(np.abs(program.q) @ np.abs(u)) + 0.5 * max(curved, 0.0) + smooth
    return min(of_rest, of_rest * rest * (1.0 + float(np.abs(u).max(initial=0.0))) / (cost or 1e-300))


def _are_exact(program: ConvexProgram, answer: ProgramSolution, more: np.ndarray) -> bool:
    """Whether rows and cones at their corners take up so much more of these prices: whether some z in K* of theirs has A' z = more."""
    at_corner = np.abs(program.slack(answer.u)) <= AT_CORNER * program.row_sizes(answer.u)
    inner = middles(program.cones, program.sizes)
    simple = at_corner & (program.equal | program.loose)
    columns = [sp.csc_array(sp.diags_array(np.where(program.equal, 1.0, inner)))[:, simple]]
    for _, place in program.curved_cones:
        if at_corner[place].all():
            middle = np.zeros(len(inner))
            middle[place] = inner[place]
            columns.append(sp.csc_array(middle[:, None]))
    ways = sp.csc_array(program.a).T @ sp.hstack(columns, format="csc")
    least = np.append(np.where(program.equal[simple], -np.inf, 0.0), np.zeros(ways.shape[1] - int(simple.sum())))
    if not len(least):
        return False
    ends = np.column_stack([least, np.full(len(least), np.inf)])
    wanted = ((more > 0) / (more > 0).sum(), more / more.max())
    return all(linprog(np.zeros(len(least)), A_eq=ways, b_eq=one, bounds=ends, method="highs").status == 0 for one in wanted)

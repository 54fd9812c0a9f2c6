"""Second looks at answers: rounding beside large numbers hides prices, slopes and that a solution is nowhere.

Prices may be so much larger than all else, as those of penalties e^x for large x. A penalty whose bound has come to a corner there is
exact: with any larger price the solution is the same (Han and Mangasarian, 1979). So the program with less of that price is solved,
beside which all else is seen, and its multipliers tell whether that was enough.

A slope may be so much smaller than all else, as that of ``exp(y)`` far down. A way u + t d is looked for along which nothing changes but
smooth functions that are linear to rounding at u already: d is a linear program. If the objective does not rise along it, it falls, as
these functions are strictly convex: up to a row, where the solution is, or for ever, and it attains its infimum nowhere (for logistic
losses d is a separation of the data: Albert and Anderson, 1984).

A program that was not solved may have a finite infimum that it attains nowhere. To tell that from one without a bound, it is solved over
boxes of y, each twice as wide as the one before. Where an infimum is attained, it is inside of a box from some width on; where there is
none, the least cost falls by no less from each box to the next; else it falls at the edge, ever less.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import scipy.sparse as sp
from jaxtyping import Float
from scipy.optimize import linprog

from hierfl.compiler.programs.cones import NONNEGATIVE, Cone, middles
from hierfl.compiler.programs.convex_program import FAILED, UNATTAINED, UNBOUNDED, ConvexProgram, ProgramSolution
from hierfl.compiler.programs.small_and_sparse import (
    Matrix,
    diagonal,
    is_dense,
    of_blocks,
    row_norms,
    rows_scaled,
    vstack,
)
from hierfl.compiler.programs.smooth_atoms import LOG_SUM_EXP, SmoothTerm
from hierfl.compiler.programs.solve_program import LOST, solve_program

LARGE, LESS = 1e7, 1e4  # times all else, from which a price hides it, and that is left of such a price
UNSEEN = 1e-4  # of what is hidden, and of the objective, from which there is no answer
AT_CORNER = 1e-11  # of a row's size
ROUNDING = 1e-15  # of what adds up in a sum
BESIDE = 1e-3  # of 1 + |u|, how far away slopes are looked at as well

Solve = Callable[[ConvexProgram], ProgramSolution]


def seen_beside_penalties(program: ConvexProgram, answer: ProgramSolution, solve: Solve) -> tuple[ConvexProgram, ProgramSolution]:
    """(a program with the same solutions, an answer to it in which nothing is hidden); else the program, and no answer if much of it is."""
    u = np.where(np.isfinite(answer.u), answer.u, 0.0)
    most = float(program.slope_sizes(u).max(initial=0.0))
    sizes = _sizes_around(program, u)
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


def _sizes_around(program: ConvexProgram, u: np.ndarray) -> np.ndarray:
    """The sizes of slopes at u or next to it: where a function is least they are none, and hidden by nothing."""
    near = BESIDE * (1.0 + float(np.abs(u).max(initial=0.0)))
    with np.errstate(all="ignore"):
        looks = np.array([program.slope_sizes(u + side * near) for side in (0.0, 1.0, -1.0)])
    return np.asarray(np.where(np.isfinite(looks), looks, 0.0).max(axis=0))


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


IN_TAIL = 1e-8  # of what balances, by which a smooth function's slope may still change between 0 and u where it is as good as linear at u
NOTHING = 1e-9  # of the longest entry of a way, and of a row's size, that is none
SAME = 1e-13  # of what adds up in a cost, by which it may rise
FARTHER = (1.0, 2.0**10)  # times the size of u along a way that no row ends
WAYS = 50  # one after another


def carried_on(program: ConvexProgram, answer: ProgramSolution) -> ProgramSolution:
    """The solution at the end of ways along which the objective falls, too little to be seen beside all else: where rows stop them, or UNATTAINED."""
    if not answer.solved or program.smooth is None or program.is_map:
        return answer
    u = answer.u
    for _ in range(WAYS):
        way = _way_on(program, u)
        if way is None:
            break
        slack, rates = program.slack(u)[program.loose], np.asarray(program.a @ way)[program.loose]
        left = float((slack / np.where(rates < 0.0, -rates, 1.0))[rates < 0.0].min(initial=np.inf))
        cost, ends = program.cost(u), [u + end * way for end in ((left,) if np.isfinite(left) else FARTHER)]
        if not all(program.cost(end) <= cost + SAME * (1.0 + abs(cost) + float(np.abs(program.q) @ np.abs(end))) for end in ends):
            break
        if not np.isfinite(left):
            return replace(answer, status=UNATTAINED)
        u = ends[0]
    return answer if u is answer.u else program.judged(u, answer.z, answer.work)


def _way_on(program: ConvexProgram, u: Float[np.ndarray, " width"]) -> Float[np.ndarray, " width"] | None:
    """A way as long as u along which nothing changes but what is linear to rounding, and does not rise; None where there is none."""
    assert program.smooth is not None
    size = float(program.slope_sizes(u).max(initial=0.0)) or 1.0
    tails, fixed = [], [_unit(program.p), program.a[~program.loose]]
    with np.errstate(all="ignore"):
        for term in program.smooth.terms:
            far = _as_good_as_linear(term, u, IN_TAIL * size)
            tails.append(_signed(term, u)[np.repeat(far, term.block)])
            fixed.append(term.curved(u)[np.repeat(~far[term.weight != 0], term.block)])
    ways = vstack(tails)
    if not ways.shape[0]:
        return None
    kept = vstack([part for part in fixed if part.shape[0]] or [program.a[:0]])
    if is_dense(kept) and kept.shape[0] > kept.shape[1]:
        kept = np.linalg.qr(kept, mode="r")
    held = program.loose & (program.slack(u) <= NOTHING * program.row_sizes(u))
    above = vstack([ways, program.a[held], -program.slope(u)[None] / size])
    told = linprog(-np.asarray(ways.sum(axis=0)).ravel(), -above, np.zeros(above.shape[0]), kept, np.zeros(kept.shape[0]), (-1.0, 1.0), method="highs")
    if told.status != 0 or not -told.fun > NOTHING:
        return None
    return np.where(np.abs(told.x) > NOTHING * np.abs(told.x).max(), told.x, 0.0) * (1.0 + float(np.abs(u).max()))


def _as_good_as_linear(term: SmoothTerm, u: np.ndarray, little: float) -> np.ndarray:
    """Which of a term's blocks that count are, where a slope between 0 and u that changes by so little is no change."""
    longest = np.abs(term.arguments(u)).max(axis=1)
    form = row_norms(term.form).reshape(-1, term.block)
    bent = (np.abs(term.curvature(u)) * form[:, :, None] * (form > 0)[:, None, :]).max(axis=(1, 2)) * (1.0 + longest)
    return np.asarray((bent <= little) & (term.weight != 0))


def _signed(term: SmoothTerm, u: np.ndarray) -> np.ndarray:
    """The term's forms, so that each increases where its argument goes on as it is; of exponentials' shares, where the largest one's lead does."""
    v, form = term.arguments(u), term.form
    if term.atom is LOG_SUM_EXP:
        shares = term.atom.slope(v)
        v = v - (shares * v).sum(axis=1, keepdims=True)
        form = form - of_blocks(np.ones((1, term.block, 1)) * shares[:, None, :], form)
    return rows_scaled(form, np.sign(v).ravel())


def _unit(matrix: Matrix) -> Matrix:
    """The rows that are not 0, with length 1."""
    lengths = row_norms(matrix)
    kept = lengths > 0
    return rows_scaled(matrix[kept], 1.0 / lengths[kept])


BOXES, NARROWEST = 4, 10.0  # and half the width of the first one, in units of 1 + the largest bound
EDGE = 0.999  # of a box's half width, that some y is at least at
SLOWER, ALIKE = 0.75, 0.97  # of a fall, that the next one is at most; those of a logarithm are alike, and between these nothing is told
FURTHEST = 2.0**20  # boxes' widths beyond the last one, at which the cost must not have risen again
ROUNDED = 1e-9  # of the cost, that it may rise by; of a direction, that is nothing
MANY = 500  # unknowns, from which nothing is told: boxes would take long


def looked_into(program: ConvexProgram, answer: ProgramSolution) -> ProgramSolution:
    """An answer that is none, by boxes around it: UNATTAINED where the infimum seems to be finite, or the solution where one is inside of a box."""
    if answer.status not in (FAILED, UNBOUNDED) or program.is_map or program.width > MANY:
        return answer
    bound = float(np.abs(program.b / program.sizes).max(initial=0.0))
    half, costs, ends = NARROWEST * (1.0 + bound), [], []
    for _ in range(BOXES):
        found = solve_program(_within(program, half))
        if not found.error <= program.good:
            return answer
        if np.abs(found.u[: program.size]).max(initial=0.0) < EDGE * half:
            inside = program.judged(found.u, found.z[: len(program.b)], found.work)
            prices = np.abs(program.q) + (0.0 if program.smooth is None else program.smooth.gradient_size(inside.u))  # beside a large curvature all is small
            told = inside.solved and program.error(inside.u, inside.z, float(prices.max(initial=0.0)) or 1.0) <= LOST * program.good
            inside = carried_on(program, inside) if told else answer
            return inside if answer.status == FAILED or inside.status == UNATTAINED else answer
        costs.append(program.cost(found.u))
        ends.append(found.u)
        half *= 2.0
    falls = -np.diff(costs)
    if not (falls[0] > 0 and (falls >= 0).all() and (falls[1:] <= ALIKE * falls[:-1]).all()):
        return answer
    if not (falls[1:] <= SLOWER * falls[:-1]).all():
        return replace(answer, status=FAILED)  # too slowly to tell
    way = ends[-1] - ends[-2]
    way = np.where(np.abs(way) > ROUNDED * half, way, 0.0)
    most = costs[-1] + ROUNDED * (1.0 + abs(costs[-1]))
    ends_there = all(program.cost(ends[-1] + far * way) <= most for far in (1.0, 2.0**10, FURTHEST))
    return replace(answer, status=UNATTAINED) if ends_there else answer


def _within(program: ConvexProgram, half: float) -> ConvexProgram:
    """The program with every y between -half and half."""
    only = diagonal(np.ones(program.width), program.a)[: program.size]
    rows = Cone(NONNEGATIVE, 2 * program.size)
    b = np.concatenate([program.b, np.full(2 * program.size, half)])
    return replace(program, a=vstack([program.a, only, -only]), b=b, cones=[*program.cones, rows])

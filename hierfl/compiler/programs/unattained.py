"""Whether a program that was not solved has a finite infimum that it attains nowhere, as ``exp(-y)`` has: told from one without a bound.

It is solved over boxes of y, each twice as wide as the one before. Where an infimum is attained, it is inside of a box from some
width on; where there is none, the least cost falls by no less from each box to the next; else it falls at the edge, ever less.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from hierfl.compiler.programs.cones import NONNEGATIVE, Cone
from hierfl.compiler.programs.convex_program import FAILED, UNATTAINED, UNBOUNDED, ConvexProgram, ProgramSolution
from hierfl.compiler.programs.small_and_sparse import diagonal, stacked
from hierfl.compiler.programs.solve_program import solve_program

BOXES, NARROWEST = 4, 10.0  # and half the width of the first one, in units of 1 + the largest bound
EDGE = 0.999  # of a box's half width, that some y is at least at
LESS, ALIKE = 0.75, 0.97  # of a fall, that the next one is at most; those of a logarithm are alike, and between these nothing is told
FURTHEST = 2.0**20  # boxes' widths beyond the last one, at which the cost must not have risen again
ROUNDING = 1e-9  # of the cost, that it may rise by; of a direction, that is nothing
LARGE = 500  # unknowns, from which nothing is told: boxes would take long


def why_unsolved(program: ConvexProgram, answer: ProgramSolution) -> int:
    """The status of an answer that is none: UNATTAINED where the infimum seems to be finite, FAILED where falls are too slow to tell."""
    if answer.status not in (FAILED, UNBOUNDED) or program.is_map or program.width > LARGE:
        return answer.status
    bound = float(np.abs(program.b / program.sizes).max(initial=0.0))
    half, costs, ends = NARROWEST * (1.0 + bound), [], []
    for _ in range(BOXES):
        found = solve_program(_within(program, half))
        at_edge = np.abs(found.u[: program.size]).max(initial=0.0) >= EDGE * half
        if not (found.error <= program.good and at_edge):  # where it slides along the edge is all the same
            return answer.status
        costs.append(program.cost(found.u))
        ends.append(found.u)
        half *= 2.0
    falls = -np.diff(costs)
    if not (falls[0] > 0 and (falls >= 0).all() and (falls[1:] <= ALIKE * falls[:-1]).all()):
        return answer.status
    if not (falls[1:] <= LESS * falls[:-1]).all():
        return FAILED
    way = ends[-1] - ends[-2]
    way = np.where(np.abs(way) > ROUNDING * half, way, 0.0)
    most = costs[-1] + ROUNDING * (1.0 + abs(costs[-1]))
    return UNATTAINED if all(program.cost(ends[-1] + far * way) <= most for far in (1.0, 2.0**10, FURTHEST)) else answer.status


def _within(program: ConvexProgram, half: float) -> ConvexProgram:
    """The program with every y between -half and half."""
    only = diagonal(np.ones(program.width), program.a)[: program.size]
    rows = Cone(NONNEGATIVE, 2 * program.size)
    b = np.concatenate([program.b, np.full(2 * program.size, half)])
    return replace(program, a=stacked([program.a, only, -only]), b=b, cones=[*program.cones, rows])

"""Variational inequalities of affine maps that are no gradients: P u + q = A' z, A u + b in K, z in K*, z' (A u + b) = 0, P not symmetric.

Over rows DAQP's active sets treat small ones. A monotone P makes them convex quadratic programs, whose cost is the gap between u and what
it is to be better than (Cottle, Pang and Stone, 1992, section 3.1), at a minimum of 0:

    minimise  u' P u + q' u + b' z   subject to   P u + q = A' z,  A u + b in K,  z in K*.

The solutions of that program are all there are, so that its solution set is theirs. Of maps that are not monotone the active sets find
one solution, or none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from hierfl.compiler.programs.backends import daqp_pairs
from hierfl.compiler.programs.cones import ZERO, Cone
from hierfl.compiler.programs.convex_program import EMPTY, FAILED, UNBOUNDED, ConvexProgram, ProgramSolution
from hierfl.compiler.programs.small_and_sparse import (
    as_array,
    diagonal,
    hstack,
    is_monotone,
    largest,
    rows_scaled,
    vstack,
    zeros,
)

SMALL = 400  # scalars of u, and rows, up to which matrices are dense
FAR = 1e8  # of its units, from which u may be a point on the way to infinity

Solve = Callable[[ConvexProgram], ProgramSolution]
Polish = Callable[[ConvexProgram, np.ndarray, np.ndarray], ProgramSolution]


def solve_map(program: ConvexProgram, solve: Solve, polish: Polish) -> ProgramSolution:
    """A solution, or why there is none; ``solve`` solves programs with a cost, ``polish`` betters a pair."""
    weight, unit = _units(program)
    small = max(program.width, len(program.b)) <= SMALL and program.polyhedral
    pair = _by_active_sets(program) if small else None
    best = program.none(FAILED) if pair is None else polish(program, *pair)
    stiff = largest(program.p) or weight / unit
    if best.solved and float(np.abs(best.u).max(initial=0.0)) <= FAR * weight / stiff:
        return best
    if not is_monotone(program.p):
        return best
    found = solve(gap_program(program, weight, unit))
    if found.solved:
        width = program.width
        return polish(program, found.u[:width] * unit, found.u[width:] * weight / program.sizes)
    if found.status == FAILED:
        return replace(best, status=FAILED)
    rows = solve(ConvexProgram.flat(np.zeros(program.width), program.a, program.b, program.cones))
    return program.none(EMPTY if rows.status == EMPTY else UNBOUNDED)  # a gap is never negative


def gap_program(program: ConvexProgram, weight: float = 1.0, unit: float = 1.0) -> ConvexProgram:
    """The program of (u, z), for u in units of ``unit`` and multipliers of rows of length 1 in units of ``weight``."""
    width, count = program.width, len(program.b)
    sizes = program.cone_sizes  # cones keep what they are where all their rows have one unit
    p, a, b = program.p * (unit / weight), rows_scaled(program.a, 1.0 / sizes), program.b / (sizes * unit)
    q, total = program.q / weight, width + count
    loose = ~program.equal
    kept = diagonal(np.ones(count), a)[loose]
    rows = [hstack([p, -a.T]), hstack([a, zeros(count, count, a)]), hstack([zeros(len(b[loose]), width, a), kept])]
    cones = [Cone(ZERO, width), *program.cones, *(cone for cone in program.cones if cone.kind != ZERO)]
    bend = vstack([hstack([p + p.T, zeros(width, count, p)]), zeros(count, total, p)])
    cost, offset = np.concatenate([q, b]), np.concatenate([q, b, np.zeros(int(loose.sum()))])
    return ConvexProgram.of(bend, cost, vstack(rows), offset, [cone for cone in cones if cone.size], program.size)


def gap_solution(gap: ConvexProgram, program: ConvexProgram, answer: ProgramSolution) -> ProgramSolution:
    """The solution of the program of the gap that a solution is; its multipliers are (u, z, A u + b)."""
    sizes = program.cone_sizes
    e, z = program.slack(answer.u) / sizes, answer.z * sizes
    multipliers = np.concatenate([answer.u, z, e[~program.equal]])
    return gap.judged(np.concatenate([answer.u, z]), multipliers)


def solution_of_gap(program: ConvexProgram, one: ProgramSolution) -> ProgramSolution:
    """A map's solution, of one of the program of its gap."""
    width, sizes = program.width, program.cone_sizes
    return program.judged(one.u[:width], one.u[width:] / sizes) if one.solved else program.none(one.status)


def _units(program: ConvexProgram) -> tuple[float, float]:
    """(of multipliers, of u), in which P, q and b are about 1."""
    unit = max(1.0, float(np.abs(program.b / program.sizes).max(initial=0.0)))
    return max(largest(program.p) * unit, float(np.abs(program.q).max(initial=0.0))) or 1.0, unit


def _by_active_sets(program: ConvexProgram) -> tuple[np.ndarray, np.ndarray] | None:
    """DAQP's (u, z)."""
    felt, z = program.seen, np.zeros(len(program.b))
    p, a = as_array(program.p)[None], as_array(program.a)[None, felt]
    u, pulls, _ = daqp_pairs(p, program.q[None], a, program.b[None, felt], program.equal[felt], is_map=True)
    z[felt] = pulls[0]
    return (u[0], z) if np.isfinite(u).all() and np.isfinite(z).all() else None

"""From a program to a solution that meets its conditions to rounding: a solver, then Newton's method on what holds, then judgement."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy.sparse as sp
from jaxtyping import Bool

from hierfl.compiler.host.cones import dual_slope, project_dual
from hierfl.compiler.parametric.backends import backends_for
from hierfl.compiler.parametric.convex_program import FAILED, GOOD, SOLVED, ConvexProgram, ProgramSolution
from hierfl.compiler.parametric.saddle import Saddle

EXACT = 1e-14  # the error of a pair that is not polished any further
STEPS = 12  # of Newton's method, at most


def solve_program(program: ConvexProgram, near: ProgramSolution | None = None) -> ProgramSolution:
    """The solution, or the reason why there is none; from a solution nearby, if there is one."""
    free = None if program.linear else _without_inequalities(program)
    if free is not None and free.error <= EXACT * 100:
        return free
    if near is not None and near.solved:
        moved = polished(program, near.u, near.z)
        if moved.error <= EXACT * 100:
            return moved
    best, reason = free if free is not None and free.solved else None, FAILED
    for backend in backends_for(program):
        found = backend.solve(program, near)
        if found.status != SOLVED:
            reason = found.status
            if reason != FAILED:
                break
            continue
        answer = polished(program, found.u, found.z, found.work)
        if best is None or answer.error < best.error:
            best = answer
        if best.solved:
            return best
    return program.none(reason) if best is None or (not best.solved and reason != FAILED) else best


def _without_inequalities(program: ConvexProgram) -> ProgramSolution | None:
    """The solution if what is no equation does not hold with equality."""
    if not program.polyhedral and len(program.b) > 500:
        return None
    return _at_rows(program, np.zeros(program.width), np.zeros(len(program.b)), program.equal)


def _at_rows(
    program: ConvexProgram, u: np.ndarray, z: np.ndarray, held: Bool[np.ndarray, " rows"], saddle: Saddle | None = None
) -> ProgramSolution:
    """The pair at which these rows hold with equality, and no others have multipliers; by a step from (u, z)."""
    rows = program.by_rows[held]
    saddle = Saddle(program.p, rows) if saddle is None else saddle
    z = np.where(held, z, 0.0)
    for _ in range(2):
        step, change, _ = saddle.solve(-program.force(u, z), -program.slack(u)[held])
        u = u + step
        z = z.copy()
        z[held] -= change
    return program.judged(u, z, 1)


def polished(program: ConvexProgram, u: np.ndarray, z: np.ndarray, work: int = 0) -> ProgramSolution:
    """What some steps of a semismooth Newton method on the conditions make of a pair; the best of them."""
    best = program.judged(u, z, work)
    answer, seen = best, set[bytes]()
    for _ in range(STEPS):
        if best.error <= EXACT:
            break
        if program.polyhedral:
            held = _held(program, answer.u, answer.z)
            if held.tobytes() in seen:
                break
            seen.add(held.tobytes())
            answer = _at_rows(program, answer.u, answer.z, held)
        else:
            answer = _newton_step(program, answer.u, answer.z)
        if not np.isfinite(answer.error):
            break
        if answer.error < best.error:
            best = ProgramSolution(answer.u, answer.z, answer.error, answer.status, work)
        elif not program.polyhedral and answer.error > 10 * best.error:
            break
    return best


def _held(program: ConvexProgram, u: np.ndarray, z: np.ndarray) -> Bool[np.ndarray, " rows"]:
    """Equations, and inequalities whose multiplier is larger than their slack, both in units of their own."""
    dual = z * program.sizes / program.force_size(u, z)
    return program.equal | (program.loose & (dual > program.slack(u) / program.row_sizes(u)))


def _newton_step(program: ConvexProgram, u: np.ndarray, z: np.ndarray) -> ProgramSolution:
    """A step on P u + q = A' z and z = Proj(z - (A u + b)), whose derivative is known."""
    lengths = program.sizes.mean() if len(program.b) else 1.0
    scale = program.force_size(u, z) / max(float(program.row_sizes(u).max(initial=0.0)), 1e-300) / lengths**0
    e = scale * program.slack(u)
    slope = sp.csc_array(dual_slope(program.cones, z - e))
    miss = z - project_dual(program.cones, z - e)
    eye = sp.eye_array(len(z))
    system = sp.bmat([[program.p, -program.a.T], [scale * (slope @ program.a), eye - slope]], format="csc")
    right = -np.concatenate([program.force(u, z), miss])
    step = _least_squares(system, right)
    return program.judged(u + step[: program.width], z + step[program.width :], 1)


def _least_squares(system: Any, right: np.ndarray) -> np.ndarray:
    """The shortest solution of a small system, a solution of a large one."""
    if system.shape[0] <= 700:
        return np.asarray(np.linalg.lstsq(system.toarray(), right, rcond=1e-13)[0])
    square = sp.csc_array(system.T @ system + 1e-16 * abs(system).max() ** 2 * sp.eye_array(system.shape[1]))
    found = np.zeros(system.shape[1])
    factor = sp.linalg.splu(square)
    for _ in range(5):
        found = found + factor.solve(system.T @ (right - system @ found))
    return found


__all__ = ["GOOD", "polished", "solve_program"]

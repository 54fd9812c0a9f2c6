"""DAQP's dual active sets (Arnstrom, Bemporad and Axehill, 2022): dense strictly convex quadratic programs over rows, to rounding."""

from __future__ import annotations

from typing import ClassVar

import daqp
import numpy as np

from hierfl.compiler.programs.backends.backend import Backend
from hierfl.compiler.programs.convex_program import FAILED, SOLVED, ConvexProgram, ProgramSolution
from hierfl.compiler.programs.small_and_sparse import as_array, is_dense

LARGEST = 1_000  # scalars of u: 0.04 s for 500 dense rows
FILLED = 0.1  # of A's entries, from which many of them are dense
FEW = 100  # scalars up to which everything is
STRICT = 1e-10  # of the largest curvature, that the smallest has to be
INFINITE = 1e30
FIRMER = 1e-6  # the curvature that flat programs get, whose numbers are about 1


class Daqp(Backend):
    """For programs over rows that are dense, and strictly convex."""

    name: ClassVar[str] = "DAQP"

    def applies(self, program: ConvexProgram) -> bool:
        width, rows = program.width, len(program.b)
        if not program.polyhedral or width > LARGEST or rows > 4 * LARGEST or program.linear:
            return False
        if width > FEW and not is_dense(program.a) and program.a.nnz < FILLED * width * rows:
            return False
        p = as_array(program.p)
        try:
            np.linalg.cholesky(p - STRICT * np.abs(p).max() * np.eye(width))
        except np.linalg.LinAlgError:
            return False
        return True

    def solve(self, program: ConvexProgram) -> ProgramSolution:
        p, a = as_array(program.p)[None], as_array(program.a)[None]
        u, z, work = daqp_pairs(p, program.q[None], a, program.b[None], program.equal)
        if not np.isfinite(u).all():  # another solver tells why
            return program.none(FAILED)
        return ProgramSolution(u[0], z[0], np.inf, SOLVED, int(work[0]))


def daqp_pairs(
    p: np.ndarray,
    q: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    equal: np.ndarray,
    firmer: bool = False,
    is_map: bool = False,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(u, z, iterations) of dense programs, P (k or 1, width, width), q (k, width), A (k or 1, rows, width), b (k, rows); NaN where none is found.

    ``firmer`` adds a little curvature, without which DAQP cannot treat what is flat: the rows that hold are mostly the same.
    With ``is_map`` P need not be symmetric.
    """
    count = len(q)
    sizes = np.sqrt(np.einsum("kij,kij->ki", a, a))
    sizes = np.where(sizes > 0, sizes, 1.0)
    bounds = -b / sizes
    unit = np.maximum(1.0, np.abs(bounds).max(axis=1, initial=0.0))
    stiff = np.abs(p).max(axis=(1, 2), initial=0.0)
    weight = np.maximum(stiff * unit, np.abs(q).max(axis=1, initial=0.0))
    weight = np.where(weight > 0, weight, 1.0)
    scaled = np.ascontiguousarray(p * (unit / weight)[:, None, None] + (FIRMER * np.eye(q.shape[1]) if firmer else 0.0))
    rows = np.ascontiguousarray(a / sizes[..., None])
    low = np.ascontiguousarray(bounds / unit[:, None])
    high, sense = np.where(equal, low, INFINITE), np.where(equal, 5, 0).astype(np.int32)
    costs = np.ascontiguousarray(q / weight[:, None])
    u, z, work = np.full(q.shape, np.nan), np.full(b.shape, np.nan), np.zeros(count, int)
    for k in range(count):
        given = scaled[k], costs[k], rows[0 if len(rows) == 1 else k], high[k], low[k], sense
        found, _, flag, info = daqp.solve(*given, is_avi=is_map, primal_tol=1e-12)
        if flag > 0:  # what is returned else may be whatever was in memory
            u[k], z[k], work[k] = found, info["lam"], info["iterations"]
    return u * unit[:, None], -z * weight[:, None] / sizes, work

"""DAQP's dual active sets (Arnstrom, Bemporad and Axehill, 2022): dense strictly convex quadratic programs over rows, to rounding."""

from __future__ import annotations

from typing import ClassVar

import daqp
import numpy as np

from hierfl.compiler.parametric.backends.backend import Backend
from hierfl.compiler.parametric.convex_program import FAILED, SOLVED, ConvexProgram, ProgramSolution
from hierfl.compiler.parametric.small_and_sparse import as_array, is_dense

LARGEST = 1_000  # scalars of u: 0.04 s for 500 dense rows
FILLED = 0.1  # of A's entries, from which many of them are dense
FEW = 100  # scalars up to which everything is
STRICT = 1e-10  # of the largest curvature, that the smallest has to be
INFINITE = 1e30


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

    def solve(self, program: ConvexProgram, near: ProgramSolution | None = None) -> ProgramSolution:
        sizes, equal = program.sizes, program.equal
        rows, bounds = as_array(program.a) / sizes[:, None], -program.b / sizes
        unit = max(1.0, float(np.abs(bounds).max(initial=0.0)))
        p = as_array(program.p)
        weight = max(float(np.abs(p).max()) * unit, float(np.abs(program.q).max(initial=0.0))) or 1.0
        u, _, flag, info = daqp.solve(
            np.ascontiguousarray(p * (unit / weight)),
            np.ascontiguousarray(program.q / weight),
            np.ascontiguousarray(rows),
            np.where(equal, bounds / unit, INFINITE),
            np.ascontiguousarray(bounds / unit),
            np.where(equal, 5, 0).astype(np.int32),
            primal_tol=1e-12,
        )
        if flag <= 0:  # what is returned then may be whatever was in memory; another solver tells why
            return program.none(FAILED)
        z = -np.array(info["lam"]) * weight / sizes
        return ProgramSolution(np.array(u) * unit, z, np.inf, SOLVED, int(info["iterations"]))

"""Clarabel's interior points (Goulart and Chen, 2024): sparse quadratic programs, and cones."""

from __future__ import annotations

from typing import ClassVar

import clarabel
import numpy as np
import scipy.sparse as sp

from hierfl.compiler.programs.backends.backend import Backend
from hierfl.compiler.programs.cones import EXPONENTIAL, NONNEGATIVE, SECOND_ORDER, ZERO, Cone
from hierfl.compiler.programs.convex_program import EMPTY, FAILED, SOLVED, UNBOUNDED, ConvexProgram, ProgramSolution
from hierfl.jaxtools.interruption import heed, heeded_unless_within, over, unbroken

LARGE = 10_000  # rows from which one program is worth all cores


class Clarabel(Backend):
    """For every program."""

    name: ClassVar[str] = "Clarabel"

    def applies(self, program: ConvexProgram) -> bool:
        return True

    def solve(self, program: ConvexProgram) -> ProgramSolution:
        cones = [_of_clarabel(cone) for cone in program.cones]
        upper, rows = sp.csc_matrix(sp.triu(program.p)), -sp.csc_matrix(program.a)
        try:
            solver = clarabel.DefaultSolver(upper, program.q, rows, program.b, cones, _settings(len(program.b)))
            solver.set_termination_callback(lambda _: over())
            with heeded_unless_within(), unbroken():  # what is raised in a callback is lost
                result = solver.solve()
                heed()
        except BaseException as panic:  # Clarabel's own, of eigenvalues that it does not find, is no Exception
            if type(panic).__name__ != "PanicException":
                raise
            return program.none(FAILED)
        status, u, z = str(result.status), np.array(result.x), np.array(result.z)
        if "PrimalInfeasible" in status:
            return program.none(EMPTY if program.proves_empty(z) else FAILED)
        if "DualInfeasible" in status:
            return program.none(UNBOUNDED if program.proves_unbounded(u) else FAILED)
        finite = np.isfinite(u).all() and np.isfinite(z).all()
        return ProgramSolution(u, z, np.inf, SOLVED if finite else FAILED, int(result.iterations))


def _settings(rows: int) -> clarabel.DefaultSettings:
    settings = clarabel.DefaultSettings()
    settings.verbose = False
    settings.presolve_enable = False
    settings.max_threads = 1 if rows <= LARGE else 0  # all
    settings.tol_gap_abs = settings.tol_gap_rel = settings.tol_feas = 1e-12
    settings.tol_ktratio = 1e-8
    return settings


def _of_clarabel(cone: Cone) -> object:
    if cone.kind == ZERO:
        return clarabel.ZeroConeT(cone.size)
    if cone.kind == NONNEGATIVE:
        return clarabel.NonnegativeConeT(cone.size)
    if cone.kind == EXPONENTIAL:
        return clarabel.ExponentialConeT()
    if cone.share is not None:
        return clarabel.PowerConeT(cone.share)
    return clarabel.SecondOrderConeT(cone.size) if cone.kind == SECOND_ORDER else clarabel.PSDTriangleConeT(cone.order)

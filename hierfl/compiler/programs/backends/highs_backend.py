"""HiGHS's simplex method (Huangfu and Hall, 2018): linear programs, with a basis, so that vertices are exact."""

from __future__ import annotations

import os
from functools import cache
from typing import Any, ClassVar

import numpy as np
import scipy.sparse as sp

from hierfl.compiler.programs.backends.backend import Backend
from hierfl.compiler.programs.convex_program import EMPTY, FAILED, SOLVED, ConvexProgram, ProgramSolution


class Highs(Backend):
    """For linear programs."""

    name: ClassVar[str] = "HiGHS"

    def applies(self, program: ConvexProgram) -> bool:
        return program.linear

    def solve(self, program: ConvexProgram) -> ProgramSolution:
        highspy = _highspy()
        solver = highspy.Highs()
        solver.silent()
        solver.setOptionValue("threads", 1)
        solver.setOptionValue("primal_feasibility_tolerance", 1e-10)
        solver.setOptionValue("dual_feasibility_tolerance", 1e-10)
        solver.passModel(_model(program))
        solver.run()
        status = solver.getModelStatus()
        if status == highspy.HighsModelStatus.kInfeasible:
            return program.none(EMPTY)
        if status != highspy.HighsModelStatus.kOptimal:
            return program.none(FAILED)  # another solver has a direction to show
        solution = solver.getSolution()
        u, z = np.array(solution.col_value), np.array(solution.row_dual)
        return ProgramSolution(u, z, np.inf, SOLVED, int(solver.getInfo().simplex_iteration_count))


@cache
def _highspy() -> Any:
    """The package, after its first solver: that one greets on the process's own output, whatever it is told."""
    import highspy

    output = os.dup(1)
    silence = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(silence, 1)
        highspy.Highs()
    finally:
        os.dup2(output, 1)
        os.close(output)
        os.close(silence)
    return highspy


def _model(program: ConvexProgram) -> Any:
    highspy = _highspy()
    width, rows = program.width, len(program.b)
    a = sp.csc_matrix(program.a)
    model = highspy.HighsLp()
    model.num_col_, model.num_row_ = width, rows
    model.col_cost_ = program.q
    model.col_lower_, model.col_upper_ = np.full(width, -highspy.kHighsInf), np.full(width, highspy.kHighsInf)
    model.row_lower_, model.row_upper_ = -program.b, np.where(program.equal, -program.b, highspy.kHighsInf)
    model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    model.a_matrix_.start_, model.a_matrix_.index_, model.a_matrix_.value_ = a.indptr, a.indices, a.data
    return model

"""Solvers of convex programs, one a file: ``solve(program) -> ProgramSolution``, as rough as it comes; ``Backend`` says what is asked."""

from __future__ import annotations

from hierfl.compiler.programs.backends.backend import Backend
from hierfl.compiler.programs.backends.clarabel_backend import Clarabel
from hierfl.compiler.programs.backends.daqp_backend import Daqp
from hierfl.compiler.programs.backends.highs_backend import Highs
from hierfl.compiler.programs.convex_program import ConvexProgram

BACKENDS: tuple[Backend, ...] = (Highs(), Daqp(), Clarabel())  # in the order in which they are asked


def backends_for(program: ConvexProgram) -> list[Backend]:
    """Those that can solve a program, the most suitable first."""
    return [backend for backend in BACKENDS if backend.applies(program)]


__all__ = ["BACKENDS", "Backend", "backends_for"]

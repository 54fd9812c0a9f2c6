"""The lower levels of many owners as one traced program of a fixed number of steps, on the device on which JAX computes."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import ClassVar

from hierfl.compiler.lower_level.methods.method import Verdict
from hierfl.compiler.lower_level.methods.parametric_program import ParametricProgram
from hierfl.compiler.lower_level.structure import LowerStructure
from hierfl.compiler.parametric.level_solver import LevelSolver
from hierfl.jaxtools.cheap_jit import traced_for_numpy

MANY = 1_000  # owners, from which a device other than the CPU is worth the way there


class BatchedInteriorPoints(ParametricProgram):
    """The parametric program, of which those of many owners are solved side by side; what does not come to an end so is solved on the host.

    That is for values, gradients and slices. Within compiled programs, such as rounds of an algorithm, which wait for the host, the host solves them:
    a device cannot compute something else meanwhile. On a CPU it takes up to ten times as long as the host (``tests/benchmarks/gpu.py``), and is not chosen.
    """

    name: ClassVar[str] = "batched interior points"
    cost: ClassVar[str] = "20 factorisations of the size of y for each owner, all side by side, and a check of each answer on the host"

    @classmethod
    def verdict(cls, structure: LowerStructure) -> Verdict:
        found = ParametricProgram.verdict(structure)
        if not found.applies:
            return found
        if structure.level.scope == "federation" or not ParametricProgram(structure, found.why).solver.has_quadratic_families:
            return Verdict(False, "needs many owners with small quadratic programs over rows")
        return Verdict(True, "the programs of all owners have one shape")

    @cached_property
    def _side_by_side(self) -> LevelSolver:
        return replace(self.solver, side_by_side=True)

    @property
    def _solver_here(self) -> LevelSolver:
        return self._side_by_side if traced_for_numpy() else self.solver

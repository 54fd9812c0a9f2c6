"""What a solver of programs is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

from hierfl.compiler.programs.convex_program import ConvexProgram, ProgramSolution


class Backend(ABC):
    """A solver: what it says is polished and judged by the conditions, so that it need not be exact.

    A new one is a file of this folder and an entry of ``BACKENDS``.
    """

    name: ClassVar[str]

    @abstractmethod
    def applies(self, program: ConvexProgram) -> bool:
        """Whether it can solve this program, and is quick at it."""

    @abstractmethod
    def solve(self, program: ConvexProgram) -> ProgramSolution:
        """A pair to polish, or the reason why there is none.

        ``EMPTY`` and ``UNBOUNDED`` are told only with a proof that has been checked, else ``FAILED``.
        """

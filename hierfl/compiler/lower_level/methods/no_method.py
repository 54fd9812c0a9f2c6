"""What stands where no method applies: a problem may still be looked at and run by other lower-level solvers."""

from __future__ import annotations

from typing import Any, ClassVar

from hierfl.compiler.lower_level.certificate import LowerSolution
from hierfl.compiler.lower_level.methods.method import ExactMethod, Question, Verdict
from hierfl.compiler.lower_level.structure import LowerStructure
from hierfl.errors import LowerLevelError, NotConvexError
from hierfl.language.function import user_code_in


class NoMethod(ExactMethod):
    """Refuses what is asked, by name."""

    name: ClassVar[str] = "no method"
    cost: ClassVar[str] = "none: it has no exact solution"

    @classmethod
    def verdict(cls, structure: LowerStructure) -> Verdict:
        return Verdict(True, "nothing else applies")

    @property
    def values_only(self) -> str:
        return f"no method solves it: {self.reason}"

    def advice(self) -> str:
        return (
            "a smooth objective (cp.huber for abs, cp.logistic for hinge losses) over a set with an exact projection is iterated on, "
            "whatever its size"
        )

    def answer(self, question: Question) -> LowerSolution:
        raise AssertionError("refused before")

    def solve(self, *_: Any) -> LowerSolution:
        """Raises what is at fault, and what to write instead."""
        level = self.structure.level
        by_user = any(user_code_in(part) for part in (*level.expressions, *level.constraints))
        raise (NotConvexError if by_user else LowerLevelError)(f"{self.values_only}; {self.advice()}.")

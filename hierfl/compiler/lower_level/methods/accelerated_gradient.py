"""Accelerated projected gradient, for whoever asks for it: Newton's method is safeguarded by it, and mostly quicker."""

from __future__ import annotations

from typing import ClassVar

from hierfl.compiler.lower_level.certificate import LowerSolution
from hierfl.compiler.lower_level.methods.first_order_steps import AcceleratedSteps
from hierfl.compiler.lower_level.methods.method import ITERATION_LIMIT, IterativeMethod, Question, Verdict
from hierfl.compiler.lower_level.methods.walk import walked
from hierfl.compiler.lower_level.structure import LowerStructure


class AcceleratedGradient(IterativeMethod):
    """The method for Lipschitz gradients F over sets with an exact projection.

    Never the first choice, since Newton's method is safeguarded by it.
    """

    name: ClassVar[str] = "accelerated gradient"
    cost: ClassVar[str] = "a full pass over the data and a projection in each step, until the residual is met"

    @classmethod
    def verdict(cls, structure: LowerStructure) -> Verdict:
        if structure.obstacle is not None:
            return Verdict(False, structure.obstacle)
        if not structure.is_gradient:
            return Verdict(False, "needs a gradient; F is not one")
        return Verdict(True, "F is a Lipschitz gradient and Y(x) can be projected on")

    def answer(self, question: Question) -> LowerSolution:
        rule = AcceleratedSteps(question.mu, question.tolerance, ITERATION_LIMIT)
        return walked(question, rule, question.warm)

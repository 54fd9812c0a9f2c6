"""Conformance of solvers, lower-level methods and runtimes, for whoever writes one: the same problems, and answers that hierfl had no part in."""

from typing import TYPE_CHECKING

from hierfl.near_names import doors
from hierfl.testing.cases import CASES, Case, CaseAnswer
from hierfl.testing.conformance import CaseFinding, Conformance, conform, conform_lower, gradient_steps

__all__ = ["CASES", "Case", "CaseAnswer", "CaseFinding", "Conformance", "conform", "conform_lower", "gradient_steps"]

if not TYPE_CHECKING:  # type-checkers know the names above
    __getattr__, __dir__ = doors("hierfl.testing", __all__)

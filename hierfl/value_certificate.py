"""How a value of f was obtained, and how accurately."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from hierfl.language.function import asserted_convex
from hierfl.language.printing.card import ROUNDING, Card, Shown, size_text

if TYPE_CHECKING:
    from hierfl.compiler.compiled_problem import CompiledProblem
    from hierfl.compiler.lower_level.certificate import Evaluation


AS_GOOD = 1e-6  # a residual up to which nobody asks whose it is
ALL_TOGETHER = "the federation"
ELSEWHERE = "the run's own lower solver (data are elsewhere)"
NOT_EVALUATED = "f was not evaluated, since the run was to end: problem.implicit(result.x) does"


@dataclass(frozen=True, repr=False)
class Certificate(Shown):
    """How ``Result.value`` was obtained, and how accurately: the lower level (the worst over all owners of a y), and means.

    ``lower_residual`` is the natural residual ||y - P_Y(y - F(y))||, or ||y - prox(y)|| where the objective is not smooth in y or Y(x) is
    not projected on by a formula: evaluated anew on the owner's data, whatever method gave y. Where that cannot be done it is what the
    method says (NaN: nothing), and so at the end of a run that had no time left. ``worst`` names the owner with the largest. ``error_bound`` bounds ||y - y(x)|| (infinity: unknown),
    ``strong_convexity`` is the smallest modulus that could be proved (0: unknown). ``unique`` says whether y(x) is the only solution for every
    owner (None: not known).

    ``own_residual`` is the same of the y that the run's own lower solver gave at the end, the largest of what the clients found on their
    data, wherever these are, and ``own_worst`` names the client (NaN: no such y, or nobody may know).

    Where clients or the server hold distributions, at most ``expectation_points`` nodes stand for those of one of them, by
    ``expectation_rule``; ``expectation_error`` estimates how far the value is from the expectation on that account. It is
    infinite where ``expectation_doubt`` says why nothing can be said.

    ``asserted`` names functions below whose convexity is the user's word, on which the bound and the modulus rest.
    """

    method: str
    lower_residual: float
    error_bound: float
    strong_convexity: float
    iterations: int
    unique: bool | None = None
    expectation_error: float = 0.0
    expectation_points: int = 0
    expectation_rule: str = ""
    expectation_doubt: str = ""
    asserted: tuple[str, ...] = ()
    worst: str = ""
    own_residual: float = float("nan")
    own_worst: str = ""

    @classmethod
    def of(cls, compiled: CompiledProblem, x: np.ndarray, evaluation: Evaluation, *, anew: bool = True) -> Certificate:
        """Read the certificate off one evaluation of the implicit function, at x (n,); not ``anew``, for want of time, what the method says."""
        from hierfl.compiler.expectation_error import expectation_error

        certificate = cls._of_lower_level(compiled, x, evaluation, anew)
        means = expectation_error(compiled, x, evaluation) if anew else None
        told = {} if means is None else {f"expectation_{name}": value for name, value in means._asdict().items()}
        return replace(certificate, **told)

    @classmethod
    def elsewhere(cls, compiled: CompiledProblem) -> Certificate:
        """What can be said where clients hold their data elsewhere, before these are asked: without a lower level nothing is missing."""
        if not compiled.lower.size:
            return cls("no lower level", 0.0, 0.0, float("nan"), 0)
        return cls(ELSEWHERE, float("nan"), float("inf"), 0.0, 0)

    def with_own(self, compiled: CompiledProblem, residual: float, error_bound: float, client: int) -> Certificate:
        """The certificate with what the clients found of the run's own y, which is behind the value too where data are elsewhere."""
        if not compiled.lower.size:
            return self
        who = compiled.declaration.client_called(client) if client >= 0 else "" if np.isnan(residual) else ALL_TOGETHER
        told = replace(self, own_residual=residual, own_worst=who)
        if self.method != ELSEWHERE:
            return told
        return replace(told, lower_residual=residual, error_bound=error_bound, worst=who)

    @classmethod
    def not_evaluated(cls) -> Certificate:
        """What can be said of a run that was to end before f had been evaluated at its last x: nothing; ``problem.implicit(x)`` evaluates it."""
        return cls(NOT_EVALUATED, float("nan"), float("inf"), 0.0, 0)

    @classmethod
    def _of_lower_level(cls, compiled: CompiledProblem, x: np.ndarray, evaluation: Evaluation, anew: bool) -> Certificate:
        from hierfl.compiler.lower_level.diagnosis import owner_name

        solution, level = evaluation.solution, compiled.declaration.lower_level
        if solution is None or compiled.exact.method is None:
            return cls("no lower level", 0.0, 0.0, float("nan"), 0)
        found = compiled.exact.judged_anew(x, evaluation) if anew else solution
        return cls(
            method=compiled.exact.method.name,
            lower_residual=float(np.max(found.residual)),
            error_bound=float(np.max(np.nan_to_num(found.error_bound, nan=np.inf, posinf=np.inf))),
            worst=owner_name(compiled, int(np.argmax(found.residual))),
            strong_convexity=float(np.min(solution.strong_convexity)),
            iterations=int(np.max(solution.iterations)),
            unique=_unique(np.asarray(solution.unique), np.asarray(solution.strong_convexity)),
            asserted=()
            if level is None
            else asserted_convex([*level.expressions, *level.constraints], level.variables),
        )

    def _card(self) -> Card:
        if self.method in ("no lower level", NOT_EVALUATED):
            return Card(self.method, [("E", self.expectation)] if self.expectation else [])
        modulus = f"at least {self.strong_convexity:.4g}" if self.strong_convexity > 0 else "unknown"
        unique = {True: "yes", False: "no: one of several solutions", None: "not known"}[self.unique]
        rows = [
            ("residual", f"{_magnitude(self.lower_residual)}{self._of(self.worst)}"),
            ("error of y", f"at most {_bound(self.error_bound)}" if np.isfinite(self.error_bound) else "unknown"),
            ("strong convexity", modulus),
            ("unique", unique),
            ("iterations", str(self.iterations)),
            *([("the run's own y", f"residual {_of_own}")] if (_of_own := self._of_own) else []),
            *([("asserted", f"convex: {', '.join(self.asserted)}")] if self.asserted else []),
            *([("E", self.expectation)] if self.expectation else []),
        ]
        return Card(f"lower level by {self.method}", rows)

    def __str__(self) -> str:
        own = self._of_own
        of_own = own and f"the run's own y: residual {own}"
        return "; ".join(filter(None, [self._lower_level(), of_own, self.expectation]))

    @property
    def _of_own(self) -> str:
        """How well the run's own y fits, where that is another one than the value's; empty where it does as well."""
        if self.method == ELSEWHERE or not self.own_residual > AS_GOOD:
            return ""
        return f"{self.own_residual:.1e}{self._of(self.own_worst)}"

    @staticmethod
    def _of(owner: str) -> str:
        return f" ({owner})" if owner else ""

    @property
    def expectation(self) -> str:
        """How distributions enter the value, and by how much it errs, in words; empty where nobody holds any."""
        if not self.expectation_rule:
            return ""
        error = self.expectation_doubt or f"error of f about {self.expectation_error:.1e} (estimated)"
        return f"E by {self.expectation_rule}, {self.expectation_points:,} points: {error}"

    def _lower_level(self) -> str:
        if self.method in ("no lower level", NOT_EVALUATED):
            return self.method
        worst = self.worst if self.lower_residual > AS_GOOD else ""
        residual = f"{_magnitude(self.lower_residual)}{self._of(worst)}"
        solved = f"lower level by {self.method}: residual {residual}, error of y"
        if not np.isfinite(self.error_bound):
            return f"{solved} unknown"
        asserted = f" if {' and '.join(self.asserted)} is convex, as asserted" if self.asserted else ""
        return f"{solved} at most {_bound(self.error_bound)}{asserted}"


def _magnitude(value: float) -> str:
    return "unknown" if np.isnan(value) else size_text(value, ".1e")


def _bound(value: float) -> str:
    return f"{max(value, ROUNDING):.1e}" if value else "0"


def _unique(told: np.ndarray, strong_convexity: np.ndarray) -> bool | None:
    """Whether all owners' y are the only solutions, by what the method has found at x or by strong convexity."""
    if ((told == 0) | (told == 2)).any():
        return False
    return True if ((told == 1) | (strong_convexity > 0)).all() else None

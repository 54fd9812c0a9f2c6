"""What every exact method is: a class that says when it applies and why, solves, and says what it costs.

The compiler takes the first method of ``choice.METHODS`` that applies; ``Exact(method=...)`` asks for one by its name.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array
from jaxtyping import Float

from hierfl.compiler.lower_level.certificate import LowerSolution, Wanted, certify_direct
from hierfl.compiler.lower_level.owner import Owner
from hierfl.compiler.lower_level.structure import LowerStructure
from hierfl.compiler.programs.convex_program import ALIKE, SEVERAL
from hierfl.errors import LowerLevelError, NotConvexError
from hierfl.language.function import user_code_in

ITERATION_LIMIT = 20_000
CONDENSED_LIMIT = 128  # scalars of y up to which an affine F is formed as a matrix
INEXACT_TOLERANCE = 1e-6  # where Y(x) has no exact projection
SINGLE_TOLERANCE = 1e-5  # in single precision

BETWEEN = (0, 1, 0), (0, 0, 1), (0.63, 0.37, 0), (0.29, 0, 0.71), (0, 0.41, 0.59), (0.17, 0.36, 0.47)  # shares of three solutions
TOLD_APART = 1e-7  # of f's size, from which values at two solutions differ


class Verdict(NamedTuple):
    """Whether a method applies to a lower level, and the reason either way."""

    applies: bool
    why: str


class Question(NamedTuple):
    """One owner's lower level, as it is put to a method.

    ``owner`` may be a condensed form of what was ``asked``; F as it was asked has the last word. ``warm`` is where to start from,
    in Y(x) or not; ``mu`` is the modulus of strong monotonicity (0 where unknown).
    """

    owner: Owner
    asked: Owner
    warm: Float[Array, " size"]
    mu: Float[Array, ""]
    tolerance: Array | float
    exact_projection: bool

    @property
    def wanted(self) -> Wanted:
        return Wanted(self.mu, self.tolerance, self.exact_projection, self.asked.condition())

    def certified_directly(self, y: Array, step: Array, iterations: Any = 0) -> LowerSolution:
        """A y that needs no further step, with the evidence; F is affine and the step at most 1 / L."""
        force = self.asked.operator(y)
        ahead = self.asked.project(y - step * force)
        return certify_direct(y, force, ahead, self.asked.operator(ahead), step, iterations, self.wanted)


def told_apart(unique: Array, y: Array, ends: Array, owner: Owner) -> Array:
    """``SEVERAL`` where the upper objective has other values at other solutions, else ``ALIKE``; ``unique`` as it is where there are none."""
    here, ends = owner.upper(y), jnp.where(jnp.isfinite(ends), ends, y)
    shares = jnp.asarray(BETWEEN, y.dtype)  # the set is convex: what is alike at its ends may differ in between
    there = jax.vmap(lambda share: owner.upper(share @ jnp.vstack([y, ends])))(shares)
    apart = jnp.any(jnp.abs(there - here) > TOLD_APART * (1.0 + jnp.abs(here) + jnp.abs(there)))
    return jnp.where(unique == SEVERAL, jnp.where(apart, SEVERAL, ALIKE), unique).astype(int)


@dataclass(frozen=True, eq=False)
class ExactMethod(ABC):
    """A method for the lower level of one problem, of which ``structure`` is known; ``reason`` says why it was chosen.

    ``name`` is as users write it, ``Exact(method=name)``, ``cost`` what one use costs, for ``explain()``; ``at_once`` says that y is a formula, or a few
    steps in a few unknowns, ``iterative`` that it is where an iteration on it stopped, ``tells_empty`` that solutions say that Y(x) is empty,
    ``of_several`` which of several solutions is taken.
    """

    structure: LowerStructure
    reason: str
    name: ClassVar[str]
    cost: ClassVar[str]
    at_once: ClassVar[bool] = False
    iterative: ClassVar[bool] = False
    tells_empty: ClassVar[bool] = False
    of_several: ClassVar[str] = "that of least norm"

    @property
    def responds(self) -> bool:
        """Whether it knows how y moves with x: it has ``pull``."""
        return False

    @property
    def values_only(self) -> str:
        """Why what it finds tells nothing of how y moves with x; empty where it does."""
        return ""

    @property
    def follows(self) -> bool:
        """Whether it knows how y moves along a line, and up to where: it has ``branch``."""
        return False

    @property
    def followed_at_once(self) -> int:
        """At how many points it is best asked for that together with y(x)."""
        return 1

    @property
    def tells_kinks(self) -> bool:
        """Whether its derivative of y(x) is NaN where there is none."""
        return self.responds

    @property
    def answered_together(self) -> int | None:
        """How many owners it is best asked about together; None where that does not matter to it."""
        return None

    @property
    def solutions_in_a_second(self) -> int:
        """How many solutions take about a second, once there is a program for them."""
        return 2_000_000

    @classmethod
    @abstractmethod
    def verdict(cls, structure: LowerStructure) -> Verdict:
        """Whether the method can solve this lower level."""

    def answer(self, question: Question) -> LowerSolution:
        """The solution with its evidence, traceable; of a method without a ``solve`` of its own."""
        raise AssertionError(f"{self.name} is not asked by a question")

    def solve(
        self, x: Float[Array, " n"], owner: Owner, warm: Float[Array, " size"], tolerance: Array | float
    ) -> LowerSolution:
        """y(x) of one owner, from a warm start; traceable."""
        return self.answer(self.question(x, owner, owner, warm, tolerance))

    def with_bounds(self) -> ExactMethod:
        """The method that bounds errors of y as well: itself, unless it tells them only where somebody asks."""
        return self

    def pull(
        self,
        x: Float[Array, " n"],
        owner: Owner,
        y: Float[Array, " size"],
        seed: Float[Array, " size"],
        ways: Float[Array, "k n"] | None = None,
    ) -> Float[Array, " n"]:
        """The gradient in x of seed'y(x) for one owner, whose y is y(x), NaN where there is none; traceable.

        ``ways`` are directions along which alone it is asked for, where a method can tell.
        """
        raise AssertionError(f"{self.name} does not know how y moves with x")

    def branch(
        self, x: Float[Array, " n"], owner: Owner, y: Float[Array, " size"], way: Float[Array, " n"]
    ) -> Float[Array, " size+2"]:
        """(by what one owner's y moves along a direction of x, how far back and ahead the same holds below), NaN where that is not told."""
        raise AssertionError(f"{self.name} does not know how y moves along a line")

    def question(self, x: Array, owner: Owner, asked: Owner, warm: Array, tolerance: Array | float) -> Question:
        mu, exact = self.structure.modulus(owner.multiply, x.dtype), self.structure.lower_set.is_exact
        tolerance = tolerance if exact else jnp.maximum(tolerance, INEXACT_TOLERANCE)
        if x.dtype == jnp.float32:
            tolerance = jnp.maximum(tolerance, SINGLE_TOLERANCE)
        return Question(owner, asked, warm, mu, tolerance, exact)

    @property
    def accuracy(self) -> str:
        """How accurately it solves, for ``explain()``."""
        return "exactly"

    def explain(self, scope: str | None) -> str:
        """How the lower level is solved, and where its modulus comes from."""
        return f"solved {self.accuracy} by {self.name}: {self.reason}; {self.structure.modulus_text(scope)}"

    def advice(self) -> str:
        """What to write for a better oracle; empty where there is nothing to gain."""
        if self.structure.modulus_unknown and not self.structure.level.prices:
            return (
                "errors of y are not bounded without strong convexity: add a term such as 0.5 * eps * cp.sum_squares(y)"
            )
        return ""

    def empty(self, solution: LowerSolution, owner: int, at: str) -> str:
        """What to say of this owner's Y(x), which is empty, where that is more than its constraints."""
        return ""

    def unsolved(self, solution: LowerSolution, owner: int) -> str:
        """Why this owner's y was not found, and what to change; what follows "was not solved at x = ...: "."""
        length, residual = float(jnp.linalg.norm(solution.y[owner])), float(solution.residual[owner])
        hidden = residual <= jnp.finfo(solution.y.dtype).eps * length
        return (
            f"{self.name} stopped after {int(solution.iterations[owner])} iterations with "
            + (f"||y|| = {length:.1e}, whose rounding hides the residual" if hidden else f"natural residual {residual:.2e}")
            + ". It may be unbounded below, not strongly convex, or badly scaled; add a strongly "
            "convex term or a bounded set."
        )


class IterativeMethod(ExactMethod):
    """A method that iterates on y itself; an affine F over data is formed once, so that iterations do not pass over the data."""

    iterative: ClassVar[bool] = True

    def solve(
        self, x: Float[Array, " n"], owner: Owner, warm: Float[Array, " size"], tolerance: Array | float
    ) -> LowerSolution:
        structure = self.structure
        formed = structure.affine and structure.quadratic.from_data and warm.size <= CONDENSED_LIMIT
        return self.answer(self.question(x, owner.condensed(warm) if formed else owner, owner, warm, tolerance))


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

    def solve(self, *_: Any) -> LowerSolution:
        """Raises what is at fault, and what to write instead."""
        level = self.structure.level
        by_user = any(user_code_in(part) for part in (*level.expressions, *level.constraints))
        raise (NotConvexError if by_user else LowerLevelError)(f"{self.values_only}; {self.advice()}.")

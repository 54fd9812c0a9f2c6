"""The compiler's choice of an exact method for a lower level, with the reason for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp

from hierfl.compiler.expressions.program import NO_ROWS, Array, Rows
from hierfl.compiler.lower_level.methods.low_rank import LowRank
from hierfl.compiler.lower_level.quadratic_part import QuadraticPart, Structure, dense, safe_smallest_eigenvalue
from hierfl.compiler.lower_level.structure import Facts, quadratic_operator, with_transpose
from hierfl.errors import IncompatibleSolverError, NotConvexError
from hierfl.language.function import UserAtom

if TYPE_CHECKING:
    from hierfl.compiler.compiled_problem import CompiledProblem
    from hierfl.compiler.lower_level.copies import Owner
    from hierfl.compiler.lower_level.methods.cvxpy_lower import CvxpyLower
    from hierfl.compiler.lower_level.methods.fixed_point import LowerSolution

_LINEAR_SYSTEM_LIMIT = 1000
STEEPEST = 1e6  # of a coupling of rank 2 and more: Newton's method in theta stalls beyond
STEEP = 1e4  # rounding errors of theta that reach V'y are then up to 1e-12 of it


# --- the methods, cheapest first: (applies, the reason either way) -------------------------------------------------


def _closed_form(f: Facts) -> tuple[bool, str]:
    s = f.structure
    if f.affine and s.positive and (s.isotropic or (s.diagonal and f.kind in ("box", "free"))):
        return True, "a projection of the unconstrained solution: the Hessian is diagonal"
    return (
        False,
        "needs an affine F with a positive multiple of the identity, or a positive diagonal over a box, as its Jacobian",
    )


def _low_rank(f: Facts) -> tuple[bool, str]:
    affine, skeleton = f.affine and f.kind in ("box", "free"), f.jacobian.skeleton
    # Newton's method in theta stalls on skew parts of rank 2 and more
    steep = f.jacobian.parts is not None and f.jacobian.steepness > STEEPEST
    if affine and skeleton is not None and (skeleton.rank == 1 or (f.structure.symmetric and not steep)):
        otherwise = (
            "" if _sure(f) else "; by Newton's method on y where it is not, or where that of low rank stops short"
        )
        return (
            True,
            f"the Jacobian is diagonal plus rank {skeleton.rank}, over a {f.kind if f.kind == 'box' else 'free'} set{otherwise}",
        )
    return (
        False,
        "needs an affine F over a box (or no constraints) whose Jacobian is diagonal plus rank 1, or symmetric and "
        "diagonal plus a rank of up to 8, in at least 8 variables and 4 for each rank",
    )


def _sure(f: Facts) -> bool:
    """Whether J is diagonal plus rank one everywhere: then its method cannot stop short."""
    return f.jacobian.parts is not None and f.jacobian.parts.left.shape[1] == 1


def _linear_system(f: Facts) -> tuple[bool, str]:
    if f.affine and f.kind == "free" and f.compiled.lower.size <= _LINEAR_SYSTEM_LIMIT:
        return True, "F is affine and y is unconstrained"
    return False, f"needs an affine F, no constraints, and at most {_LINEAR_SYSTEM_LIMIT} variables"


def _newton(f: Facts) -> tuple[bool, str]:
    if f.rough is None and f.exact:
        how = "Newton-CG" if f.kind == "free" and f.is_gradient else "on the normal map"
        return (
            True,
            f"F is smooth and Y(x) has an exact projection ({how}); safeguarded by {'accelerated gradient' if f.is_gradient else 'extragradient'}",
        )
    return False, _needs_smooth(f)


def _accelerated(f: Facts) -> tuple[bool, str]:
    if f.rough is None and f.exact and f.is_gradient:
        return True, "F is a Lipschitz gradient and Y(x) can be projected on"
    return False, _needs_smooth(f) if f.rough is not None or not f.exact else "needs a gradient; F is not one"


def _extragradient(f: Facts) -> tuple[bool, str]:
    if f.rough is None and (f.exact or f.level.kind == "equilibrium"):
        return True, "F can be evaluated and Y(x) projected on"
    return False, _needs_smooth(f)


def _cvxpy(f: Facts) -> tuple[bool, str]:
    if f.level.kind == "equilibrium":
        return False, "needs an objective; an equilibrium has none"
    rough = f.rough
    why = f"{type(rough).__name__} is not smooth in y" if rough is not None else "Y(x) has no exact projection"
    return True, why


def _needs_smooth(f: Facts) -> str:
    rough = f.rough
    return f"{type(rough).__name__} is not smooth in y" if rough is not None else "Y(x) has no exact projection"


AT_ONCE = ("closed form", "diagonal plus low rank", "linear system")
ITERATIVE = ("semismooth Newton", "accelerated gradient", "extragradient")
METHODS: dict[str, Callable[[Facts], tuple[bool, str]]] = {
    "closed form": _closed_form,
    "diagonal plus low rank": _low_rank,
    "linear system": _linear_system,
    "semismooth Newton": _newton,
    "extragradient": _extragradient,
    "cvxpy": _cvxpy,
    "accelerated gradient": _accelerated,  # never the first choice: Newton is safeguarded by it
}


@dataclass(frozen=True, eq=False)
class LowerPlan:
    """Method and modulus of a lower level.

    ``method`` is a key of ``METHODS``; ``modulus_mode`` says where mu comes from: ``"constant"``, ``"diagonal"``, ``"dense"``,
    ``"low rank"`` or ``"unknown"``.
    """

    facts: Facts
    method: str
    reason: str
    host: CvxpyLower | None

    @property
    def at_once(self) -> bool:
        """Whether y is a formula, or a few steps in a few unknowns."""
        return self.method in AT_ONCE

    @property
    def iterative(self) -> bool:
        """Whether y is where an iteration on it stopped."""
        return self.method in ITERATIVE

    @classmethod
    def of(cls, compiled: CompiledProblem) -> LowerPlan:
        """The first method that applies.

        Raises
        ------
        NotConvexError
            If a nonsmooth lower level contains user code, so that neither iteration nor CVXPY applies.
        """
        facts = Facts.of(compiled)
        method, reason = next(
            (name, why) for name, rule in METHODS.items() for applies, why in [rule(facts)] if applies
        )
        return cls(facts, method, reason, _host(compiled, method, reason))

    def override(self, method: str) -> LowerPlan:
        """The same lower level by another method.

        Raises
        ------
        IncompatibleSolverError
            If there is no such method, or it cannot treat this lower level; names those that can.
        """
        able = [name for name, rule in METHODS.items() if rule(self.facts)[0]]
        if method not in METHODS:
            raise IncompatibleSolverError(f"method={method!r}: write one of {', '.join(map(repr, able))}.")
        applies, why = METHODS[method](self.facts)
        if not applies:
            raise IncompatibleSolverError(
                f"method={method!r} cannot solve this lower level: it {why}. These can: {', '.join(map(repr, able))}."
                if why.startswith("needs")
                else f"method={method!r} cannot solve this lower level: {why}. These can: {', '.join(map(repr, able))}."
            )
        reason = f"asked for; {why}"
        return LowerPlan(self.facts, method, reason, _host(self.facts.compiled, method, reason))

    @property
    def compiled(self) -> CompiledProblem:
        """The problem."""
        return self.facts.compiled

    @property
    def quadratic(self) -> QuadraticPart:
        """The quadratic addends of the objective."""
        return self.facts.quadratic

    @property
    def structure(self) -> Structure:
        """Of the Jacobian of the quadratic part."""
        return self.facts.structure

    @property
    def modulus_mode(self) -> str:
        """Where mu comes from."""
        return self.facts.jacobian.mode

    @property
    def constant_modulus(self) -> float:
        """mu, where it is the same everywhere."""
        return self.facts.jacobian.modulus

    @property
    def exact_projection(self) -> bool:
        """Whether the certificate may trust the projection."""
        return self.facts.exact

    def quadratic_operator(self, x: Array, y: Array, own: Any, rows: Rows = NO_ROWS) -> Array:
        """The affine map of the quadratic part (a gradient, or the mapping itself)."""
        return quadratic_operator(self.compiled, self.quadratic, x, y, own, rows)

    def modulus(self, multiply: Any, dtype: Any) -> Array:
        """mu of one owner, safe from below; 0 where unknown."""
        size = self.compiled.lower.size
        if self.modulus_mode == "diagonal":
            return jnp.maximum(jnp.min(multiply(jnp.ones(size, dtype))), 0.0)
        if self.modulus_mode == "low rank":
            return jnp.nan_to_num(self.low_rank(multiply, size).modulus())
        if self.modulus_mode == "dense":
            return safe_smallest_eigenvalue(dense(multiply, size, dtype))
        return jnp.asarray(self.constant_modulus, dtype)

    @property
    def sure(self) -> bool:
        """Whether a Jacobian of diagonal plus low rank is so everywhere, and its method cannot stop short."""
        return _sure(self.facts)

    @property
    def loses_digits(self) -> bool:
        """Whether theta = V'y may be too coarse an unknown for a diagonal plus low rank."""
        return self.facts.jacobian.steepness > STEEP

    def low_rank(self, multiply: Any, size: int) -> LowRank:
        """diag(d) + U V' of one owner's Jacobian; NaN where it is not of that form."""
        known = self.facts.jacobian
        if known.parts is not None:
            return known.parts
        assert known.skeleton is not None
        transpose = multiply if known.structure.symmetric else with_transpose(multiply, size)[1]
        return known.skeleton.decompose(multiply, transpose, size).where_true(multiply)

    def on_host(self, x: Array, owner: Owner, mu: Array) -> LowerSolution:
        """Solve one owner's problem with CVXPY through a callback."""
        assert self.host is not None
        return self.host.solve(x, owner, mu)


def _has_user_atom(expressions: Any) -> bool:
    return any(isinstance(e, UserAtom) or _has_user_atom(getattr(e, "args", ())) for e in expressions)


def _host(compiled: CompiledProblem, method: str, reason: str) -> CvxpyLower | None:
    if method != "cvxpy":
        return None
    from hierfl.compiler.lower_level.methods.cvxpy_lower import CvxpyLower

    level = compiled.problem.lower_level
    if level is not None and _has_user_atom(level.expressions):
        raise NotConvexError(f"the lower level needs CVXPY ({reason}), which cannot see into a hf.Function in it.")
    return CvxpyLower(compiled)
